//! Shares against two calculations that have nothing in common with theirs: bytes given one by one, and bisection.

use super::*;
use proptest::prelude::*;

const FREE: Party = Party {
    weight: 100,
    fixed: 0,
    min: 0,
    low: 0,
    cap: u64::MAX,
    wanted: u64::MAX,
};

fn party(weight: u32, wanted: u64) -> Party {
    Party {
        weight,
        wanted,
        ..FREE
    }
}

#[test]
fn who_wants_less_than_its_share_leaves_the_rest_to_others() {
    assert_eq!(
        shares(90, &[party(1, 10), party(1, 100), party(1, 100)]),
        [10, 40, 40]
    );
}

#[test]
fn weights_divide_what_is_contended() {
    assert_eq!(shares(90, &[party(100, 90), party(200, 90)]), [30, 60]);
}

#[test]
fn all_get_what_they_want_if_there_is_enough() {
    assert_eq!(shares(u64::MAX, &[party(1, 7), party(9, 100)]), [7, 100]);
}

#[test]
fn min_is_kept_within_the_share_and_not_on_top_of_it() {
    let keeps = Party { min: 40, ..FREE };
    assert_eq!(shares(90, &[keeps, FREE]), [45, 45]);
    assert_eq!(shares(60, &[keeps, FREE]), [40, 20]);
}

#[test]
fn min_that_is_not_wanted_is_left_to_others() {
    let keeps = Party {
        min: 40,
        ..party(100, 10)
    };
    assert_eq!(shares(60, &[keeps, FREE]), [10, 50]);
}

#[test]
fn low_yields_to_min_alone() {
    let (min, low) = (Party { min: 50, ..FREE }, Party { low: 70, ..FREE });
    assert_eq!(shares(100, &[min, low]), [50, 50]);
    assert_eq!(shares(160, &[min, low]), [80, 80]);
    assert_eq!(shares(130, &[min, low]), [60, 70]);
}

#[test]
fn lows_that_do_not_fit_are_divided_by_weight() {
    let low = |weight| Party {
        low: 80,
        weight,
        ..FREE
    };
    assert_eq!(shares(90, &[low(100), low(200), FREE]), [30, 60, 0]);
}

#[test]
fn cap_bounds_a_share_though_there_is_enough() {
    let capped = Party { cap: 20, ..FREE };
    assert_eq!(shares(100, &[capped, party(1, 30)]), [20, 30]);
}

#[test]
fn what_cannot_be_taken_now_counts_first() {
    let fixed = Party { fixed: 70, ..FREE };
    assert_eq!(shares(100, &[fixed, FREE, FREE]), [70, 15, 15]);
}

#[test]
fn nobody_is_an_answer() {
    assert!(shares(100, &[]).is_empty());
}

/// Bytes are given one by one to whoever has least by weight, layer by layer.
fn byte_by_byte(capacity: u64, parties: &[Party]) -> Vec<u64> {
    let mut given: Vec<u64> = parties.iter().map(|party| party.fixed).collect();
    let mut left = capacity.saturating_sub(given.iter().sum());
    for layer in 0..3 {
        while left > 0 {
            let open = (0..parties.len()).filter(|&i| {
                let Party {
                    fixed,
                    min,
                    low,
                    cap,
                    wanted,
                    ..
                } = parties[i];
                let least = min.min(wanted).max(fixed);
                let most = least.max(wanted.min(cap));
                given[i] < [least, low.max(least).min(most), most][layer]
            });
            let level = |i: &usize| {
                let next = u128::from(given[*i] + 1) * 1_000_000_000;
                (next / u128::from(parties[*i].weight), *i)
            };
            let Some(poorest) = open.min_by_key(level) else {
                break;
            };
            given[poorest] += 1;
            left -= 1;
        }
    }
    given
}

/// The level is searched by halving, in 2^-40 of a byte by weight.
pub(crate) fn by_bisection(capacity: u64, parties: &[Party]) -> Vec<u64> {
    let bounds = |layer: usize| -> Vec<u64> {
        let bound = |party: &Party| match layer {
            0 => party.fixed,
            1 => party.fixed.max(party.min.min(party.wanted)),
            _ => {
                let least = party.fixed.max(party.min.min(party.wanted));
                let most = least.max(party.wanted.min(party.cap));
                if layer == 2 {
                    most.min(least.max(party.low))
                } else {
                    most
                }
            }
        };
        parties.iter().map(bound).collect()
    };
    let sum = |given: &[u64]| given.iter().map(|&bytes| u128::from(bytes)).sum::<u128>();
    let Some(layer) = (1..=3).find(|&layer| sum(&bounds(layer)) > u128::from(capacity)) else {
        return bounds(3);
    };
    let (from, to) = (bounds(layer - 1), bounds(layer));
    let scaled = |bytes: u64| u128::from(bytes) << 40;
    let at = |level: u128| -> Vec<u128> {
        let one = |i: usize| level * u128::from(parties[i].weight);
        let all = (0..parties.len()).map(|i| one(i).clamp(scaled(from[i]), scaled(to[i])));
        all.collect()
    };
    let (mut below, mut above) = (0, 1 << 80);
    while above - below > 1 {
        let middle = (below + above) / 2;
        match at(middle).iter().sum::<u128>() <= scaled(capacity) {
            true => below = middle,
            false => above = middle,
        }
    }
    at(below).iter().map(|scaled| (scaled >> 40) as u64).collect()
}

fn any_party(most: u64) -> impl Strategy<Value = Party> {
    let bytes = move || prop_oneof![Just(0), 0..most, Just(most)];
    (1u32..=10_000, bytes(), bytes(), bytes(), bytes()).prop_map(move |(weight, min, low, cap, wanted)| {
        Party {
            weight: if weight % 3 == 0 { 100 } else { weight },
            fixed: 0,
            min: min / 8,
            low: low / 4,
            cap: if cap % 2 == 0 { u64::MAX } else { cap },
            wanted,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn shares_are_what_giving_byte_by_byte_ends_at(
        parties in proptest::collection::vec(any_party(200), 2..=32), capacity in 0u64..3000,
    ) {
        let (shares, given) = (shares(capacity, &parties), byte_by_byte(capacity, &parties));
        // The bytes that rounding leaves are with somebody, perhaps all with the one of the greatest weight.
        let short = given.iter().sum::<u64>() - shares.iter().sum::<u64>();
        prop_assert!(short < parties.len() as u64);
        for (share, given) in shares.iter().zip(&given) {
            prop_assert!((share.saturating_sub(1)..=share + short).contains(given), "{shares:?} and {given}");
        }
    }

    #[test]
    fn shares_are_where_bisection_finds_the_level(
        mut parties in proptest::collection::vec(any_party(64 << 30), 2..=32),
        capacity in 0u64..(256 << 30), fixed in 0u64..(1 << 20),
    ) {
        parties[0].fixed = fixed.min(capacity);
        let (shares, found) = (shares(capacity, &parties), by_bisection(capacity, &parties));
        for (share, found) in shares.iter().zip(&found) {
            prop_assert!(share.abs_diff(*found) <= 1, "{shares:?} and {found:?}");
        }
        prop_assert!(shares.iter().sum::<u64>() <= capacity);
    }
}
