//! f64 arithmetic against `rustc_apfloat`, in every direction.

use super::*;
use proptest::prelude::*;
use rustc_apfloat::{Float as _, Round as R, ieee::Double};

const ROUNDS: [(Round, R); 4] = [
    (Round::Nearest, R::NearestTiesToEven),
    (Round::Down, R::TowardNegative),
    (Round::Up, R::TowardPositive),
    (Round::Zero, R::TowardZero),
];

/// Zeros, denormals, the places where a step would overflow or lose digits, infinities, NaN: of both signs.
fn specials() -> Vec<u64> {
    let mut values = vec![
        0,
        1,
        2,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x0010_0000_0000_0001,
    ];
    for exponent in [
        -1000, -960, -900, -600, -512, -500, -474, -450, -130, -60, -53, -1, 0, 1, 52, 53, 54, 129, 449, 450,
        500, 512, 600, 899, 960, 1019, 1020, 1022,
    ] {
        let value = power(exponent).to_bits();
        values.extend([value - 1, value, value + 1, value | 0x000a_5a5a_5a5a_5a5b]);
    }
    values.extend([
        f64::MAX.to_bits() - 1,
        f64::MAX.to_bits(),
        f64::INFINITY.to_bits(),
    ]);
    values.extend([
        0x7ff0_0000_0000_0001,
        0x7ff8_0000_0000_0000,
        0x7fff_ffff_ffff_ffff,
    ]);
    values.iter().flat_map(|bits| [*bits, *bits | SIGN]).collect()
}

fn nan_or(bits: u64, operands: &[u64]) -> u64 {
    if !f(bits).is_nan() {
        return bits;
    }
    operands
        .iter()
        .find(|bits| f(**bits).is_nan())
        .map_or(DEFAULT_NAN, |bits| bits | QUIET)
}

/// All of them, and those that are moderate by themselves: a vector with another one goes another way.
fn check(operands: &[[u64; 3]]) {
    check_together(operands);
    let is_moderate = |bits: u64, exponent| immoderate(bits, exponent) == 0;
    let moderate: Vec<_> = operands
        .iter()
        .copied()
        .filter(|[a, b, c]| is_moderate(*a, FACTORS) && is_moderate(*b, FACTORS) && is_moderate(*c, ADDENDS))
        .collect();
    check_together(&moderate);
}

fn check_together(operands: &[[u64; 3]]) {
    let double = |bits: u64| Double::from_bits(bits.into());
    for (ours, theirs) in ROUNDS {
        for part in operands.chunks(32) {
            let [a, b, c]: [Wide; 3] =
                std::array::from_fn(|number| wide_each(|lane| part[lane % part.len()][number]));
            let (sums, products, fused) = (add(&a, &b, ours), mul(&a, &b, ours), fma(&a, &b, &c, ours));
            for (lane, [a, b, c]) in part.iter().copied().enumerate() {
                let what = || format!("{a:#018x} {b:#018x} {c:#018x} {ours:?}");
                let bits = |value: Double| value.to_bits() as u64;
                let sum = bits(double(a).add_r(double(b), theirs).value);
                assert_eq!(sums[lane], nan_or(sum, &[a, b]), "sum {}", what());
                let product = bits(double(a).mul_r(double(b), theirs).value);
                assert_eq!(products[lane], nan_or(product, &[a, b]), "product {}", what());
                let both = bits(double(a).mul_add_r(double(b), double(c), theirs).value);
                assert_eq!(fused[lane], nan_or(both, &[a, b, c]), "both {}", what());
            }
        }
    }
}

#[test]
fn special_values_meet_in_every_direction() {
    let specials = specials();
    let mut operands = Vec::new();
    for a in &specials {
        for b in &specials {
            let third = specials[operands.len() * 7 % specials.len()];
            let product = (f(*a) * f(*b)).to_bits() ^ SIGN;
            operands.extend([[*a, *b, third], [*a, *b, product]]);
        }
    }
    check(&operands);
}

/// Results about the least normal number and below, ties of each count of lost digits among them.
#[test]
fn denormal_results_round_in_every_direction() {
    let mut operands = Vec::new();
    for digits in [
        0,
        1,
        2,
        3,
        0x000f_ffff_ffff_ffff,
        0x0008_0000_0000_0000,
        0x0005_5555_5555_5555,
    ] {
        for exponent in (-56..3).chain([-100]) {
            let b = power(exponent).to_bits();
            for a in [power(-1022).to_bits() | digits, digits] {
                for (b, c) in [
                    (b, 0),
                    (b + 1, 1),
                    (b | SIGN, 1),
                    (b - 1, SIGN | 1),
                    (b, digits | 1),
                ] {
                    operands.push([a, b, c]);
                }
            }
        }
    }
    check(&operands);
}

#[test]
fn third_rounds_in_the_four_directions() {
    let add = |a: u64, b: u64, round| add(&[a; 32], &[b; 32], round)[7];
    let (one, third) = (1f64.to_bits(), (1.0f64 / 3.0).to_bits());
    assert_eq!(mul(&[one; 32], &[third; 32], Round::Down)[0], third);
    let tiny = 2f64.powi(-60).to_bits();
    assert_eq!(add(one, tiny, Round::Nearest), one);
    assert_eq!(add(one, tiny, Round::Up), one + 1);
    assert_eq!(add(one, tiny | SIGN, Round::Down), one - 1);
    assert_eq!(add(one | SIGN, tiny, Round::Zero), (one - 1) | SIGN);
    assert_eq!(fma(&[one; 32], &[one; 32], &[tiny; 32], Round::Up)[31], one + 1);
}

#[test]
fn nan_operand_becomes_quiet() {
    let signalling = 0x7ff0_0000_0000_0001;
    let (one, nan) = ([1f64.to_bits(); 32], [signalling; 32]);
    assert_eq!(add(&one, &nan, Round::Nearest)[3], signalling | QUIET);
    assert_eq!(min_max(&nan, &one, u32::MAX)[3], 1f64.to_bits());
    assert_eq!(min_max(&nan, &nan, 0)[3], signalling | QUIET);
    assert_eq!(modify(signalling | SIGN, true, true), signalling | SIGN);
}

#[test]
fn comparisons_and_minima_hold_for_what_they_name() {
    let specials = specials();
    for a in &specials {
        for part in specials.chunks(32) {
            let b = wide_each(|lane| part[lane % part.len()]);
            for number in 0..16 {
                let found = compare(&[*a; 32], &b, Comparison(number));
                for (lane, b) in b.iter().enumerate() {
                    let holds = Comparison(number).holds(f(*a).partial_cmp(&f(*b)));
                    assert_eq!(found >> lane & 1 != 0, holds, "{a:#x} {b:#x} {number}");
                }
            }
            let lower = min_max(&[*a; 32], &b, 0x5555_5555);
            for (lane, b) in b.iter().enumerate() {
                let (x, y) = (f(*a), f(*b));
                let expected = match (x.is_nan(), y.is_nan()) {
                    (true, true) => *a | QUIET,
                    (true, false) => *b,
                    (false, true) => *a,
                    _ if (x.total_cmp(&y).is_lt()) == (lane % 2 == 0) => *a,
                    _ => *b,
                };
                assert_eq!(lower[lane], expected, "{a:#x} {b:#x} {lane}");
            }
        }
    }
}

/// Any values, and values near each other.
fn doubles() -> impl Strategy<Value = u64> {
    let near = (0x3fe0_0000_0000_0000u64..0x4020_0000_0000_0000, any::<bool>())
        .prop_map(|(bits, neg)| bits | u64::from(neg) << 63);
    prop_oneof![any::<u64>(), near]
}

proptest! {
    #[test]
    fn arithmetic_agrees_with_an_independent_library(
        operands in prop::collection::vec([doubles(), doubles(), doubles()], 32), steps in 0u64..4
    ) {
        check(&operands);
        // Around 1.
        let near: Vec<_> = operands
            .iter()
            .map(|triple| triple.map(|bits| bits & !(0x7f0 << 52) | 0x3f0 << 52))
            .collect();
        check(&near);
        // The third operand takes nearly all of the product away.
        let cancelled: Vec<_> = operands
            .iter()
            .map(|[a, b, _]| [*a, *b, ((f(*a) * f(*b)).to_bits() ^ SIGN).wrapping_add(steps)])
            .collect();
        check(&cancelled);
    }
}
