use std::collections::BTreeSet;
use std::sync::atomic::AtomicU32;
use std::thread;

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::*;

/// Units of a card of 8 GiB in frames of 128 KiB.
const COUNT: u32 = 65_536;

fn took(search: Search) -> u32 {
    match search.ended {
        Ended::Took(unit) => unit,
        ended => panic!("{ended:?}"),
    }
}

/// Of which each is free by a chance in ten thousand.
fn filled(free: u32, rng: &mut ChaCha8Rng) -> Units {
    let units = Units::new(COUNT);
    for unit in (0..COUNT).filter(|_| !rng.random_ratio(free, 10_000)) {
        units.0.taken[(unit / BITS) as usize].set(1 << (unit % BITS), Relaxed);
    }
    units
}

/// Section 4.1.1: with a part p of the units free, and 64 in a word, 1 / (1 - (1 - p)^64) steps on average.
#[test]
fn walk_takes_the_steps_that_the_papers_formula_says() {
    const POOLS: u32 = 200;
    const SEARCHES: u32 = 100;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for free in [5_000, 1_000, 100, 50] {
        let mut steps = 0;
        for _ in 0..POOLS {
            let units = filled(free, &mut rng);
            for _ in 0..SEARCHES {
                let search = units.take(|end| rng.random_range(0..end));
                units.give(took(search)).unwrap();
                assert_eq!(search.locked, 0);
                steps += u64::from(search.steps);
            }
        }
        let mean = steps as f64 / f64::from(POOLS * SEARCHES);
        let hits = 1.0 - (1.0 - f64::from(free) / 10_000.0).powi(64);
        // Steps of a search, and words with a free unit among the 1,024 of a pool.
        let steps = (1.0 - hits) / hits.powi(2) / f64::from(POOLS * SEARCHES);
        let pools = (1.0 - hits) / hits.powi(3) / 1024.0 / f64::from(POOLS);
        let (formula, error) = (1.0 / hits, (steps + pools).sqrt());
        assert!(
            (mean - formula).abs() <= 3.0 * error + 1e-9,
            "{free}: {mean}, and {formula} ± {error}"
        );
    }
}

/// The paper's utilisation is close to 100 % at the first failure (section 5.2.2).
#[test]
fn first_search_that_fails_finds_all_units_taken() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for count in [0, 1, 63, 64, 65, 4_000, COUNT] {
        let units = Units::new(count);
        let mut all = BTreeSet::new();
        let last = loop {
            let search = units.take(|end| rng.random_range(0..end));
            match search.ended {
                Ended::Took(unit) => assert!(unit < count && all.insert(unit), "{unit}"),
                _ => break search,
            }
        };
        assert_eq!((all.len(), last.ended), (count as usize, Ended::Full));
    }
}

/// One free unit of 65,536: most walks end with the search in order.
#[test]
fn walk_among_taken_units_is_bounded_and_finds_what_there_is() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let units = filled(0, &mut rng);
    units.give(40_000).unwrap();
    let mut longest = 0;
    for _ in 0..50 {
        let search = units.take(|end| rng.random_range(0..end));
        assert_eq!(took(search), 40_000);
        assert!(search.steps <= DRAWS_MAX + COUNT / BITS);
        longest = longest.max(search.steps);
        units.give(40_000).unwrap();
    }
    assert!(longest > DRAWS_MAX);
    let _ = units.take(|_| 0);
    let search = units.take(|_| 0);
    assert_eq!(
        (search.ended, search.steps),
        (Ended::Full, DRAWS_MAX + COUNT / BITS)
    );
}

#[test]
fn locked_word_is_full_to_others_and_not_waited_for() {
    let units = Units::new(128);
    units.0.locks[0].set(0b01, Acquire);
    let mut draws = [0, 0, 1].into_iter();
    let search = units.take(|_| draws.next().unwrap_or(0));
    assert_eq!(
        (search.ended, search.steps, search.locked),
        (Ended::Took(64), 3, 2)
    );
    units.0.locks[0].set(0b11, Acquire);
    let search = units.take(|_| 0);
    assert_eq!((search.ended, search.locked), (Ended::HeldUp, DRAWS_MAX + 2));
}

#[test]
fn unit_is_given_back_once() {
    let units = Units::new(70);
    let unit = took(units.take(|_| 1));
    assert_eq!((unit, units.give(unit)), (64, Ok(())));
    for wrong in [unit, 0, 70, 127, 128, u32::MAX] {
        assert_eq!(units.give(wrong), Err(NotTaken { unit: wrong }), "{wrong}");
    }
}

/// Four threads take and give at once; whoever has a unit writes his name there and finds it again.
#[test]
fn threads_never_share_a_unit() {
    const UNITS: u32 = 200;
    let units = Units::new(UNITS);
    let names: Vec<AtomicU32> = (0..UNITS).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for name in 1..=4 {
            let (units, names) = (&units, &names);
            scope.spawn(move || {
                let mut rng = ChaCha8Rng::seed_from_u64(name.into());
                let mut held = Vec::new();
                for _ in 0..20_000 {
                    if held.len() == 40 || rng.random_bool(0.4) {
                        let Some(unit) = held.pop() else { continue };
                        assert_eq!(names[unit as usize].swap(0, Relaxed), name);
                        units.give(unit).unwrap();
                    } else if let Ended::Took(unit) = units.take(|end| rng.random_range(0..end)).ended {
                        assert_eq!(names[unit as usize].swap(name, Relaxed), 0);
                        held.push(unit);
                    }
                }
                for unit in held {
                    names[unit as usize].store(0, Relaxed);
                    units.give(unit).unwrap();
                }
            });
        }
    });
    let free: u32 = units.0.taken.iter().map(|word| word.look().count_zeros()).sum();
    assert_eq!(free, UNITS);
}

proptest! {
    #[test]
    fn history_matches_a_set(
        count in 1u32..200,
        steps in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..400),
    ) {
        let units = Units::new(count);
        let mut model = BTreeSet::new();
        for (takes, number) in steps {
            if takes {
                match units.take(|_| number).ended {
                    Ended::Took(unit) => prop_assert!(unit < count && model.insert(unit)),
                    ended => prop_assert_eq!((ended, model.len() as u32), (Ended::Full, count)),
                }
            } else {
                let unit = number % (count + 64);
                prop_assert_eq!(units.give(unit).is_ok(), model.remove(&unit));
            }
        }
    }
}
