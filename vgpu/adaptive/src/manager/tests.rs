use proptest::prelude::*;

use super::*;
use crate::{Migration, Spread};

const LRU: Rules = Rules {
    bring: Bring::Alone,
    evict: Evict::Oldest,
    migration: Migration::FirstTouch,
};

fn manager(capacity: u32, allocations: &[u32], choice: Choice) -> Manager {
    Manager::new(Setup {
        capacity,
        units_of_large: 8,
        allocations: allocations.to_vec(),
        choice,
        reserve_percent: 0,
        seed: 1,
    })
}

fn load(manager: &mut Manager, unit: u32) -> Outcome {
    let place = Place { allocation: 0, unit };
    manager.access(place, 1, 0)
}

/// Units that went, and those that came, for loads of some units in turn.
fn moved(manager: &mut Manager, units: impl IntoIterator<Item = u32>) -> [Vec<u32>; 2] {
    let mut all = [Vec::new(), Vec::new()];
    for unit in units {
        if let Outcome::Comes { units, gone, .. } = load(manager, unit) {
            all[0].extend(gone.iter().map(|one| one.place.unit));
            all[1].extend(units);
        }
    }
    all
}

#[test]
fn oldest_unit_goes_and_a_use_makes_it_young() {
    let mut lru = manager(3, &[32], Choice::Fixed(LRU));
    assert_eq!(moved(&mut lru, [0, 8, 16]), [vec![], vec![0, 8, 16]]);
    assert_eq!(load(&mut lru, 0), Outcome::Local);
    assert_eq!(moved(&mut lru, [24]), [vec![8], vec![24]]);
}

#[test]
fn only_what_was_stored_to_is_dirty() {
    let mut lru = manager(2, &[32], Choice::Fixed(LRU));
    let store = |lru: &mut Manager, unit| lru.access(Place { allocation: 0, unit }, 0, 1);
    store(&mut lru, 0);
    load(&mut lru, 8);
    let gone = |outcome| match outcome {
        Outcome::Comes { gone, .. } => gone.iter().map(|one| (one.place.unit, one.is_dirty)).collect(),
        _ => Vec::new(),
    };
    assert_eq!(gone(load(&mut lru, 16)), [(0, true)]);
    assert_eq!(gone(load(&mut lru, 24)), [(8, false)]);
    // It came again, and was not stored to since.
    load(&mut lru, 0);
    load(&mut lru, 8);
    assert_eq!(gone(load(&mut lru, 16)), [(0, false)]);
}

#[test]
fn large_pages_go_whole_and_the_coldest_ones_without_stores_first() {
    let rules = |evict| Choice::Fixed(Rules { evict, ..LRU });
    let mut large = manager(16, &[32], rules(Evict::Large));
    moved(&mut large, 0..16);
    assert_eq!(moved(&mut large, [16])[0], (0..8).collect::<Vec<_>>());

    let mut coldest = manager(24, &[32], rules(Evict::Coldest));
    moved(&mut coldest, 0..24);
    moved(&mut coldest, [0, 0, 8, 8, 8]);
    // The third large page has fewest accesses, but was stored to.
    coldest.access(
        Place {
            allocation: 0,
            unit: 16,
        },
        0,
        1,
    );
    assert_eq!(moved(&mut coldest, [24])[0], (0..8).collect::<Vec<_>>());
}

#[test]
fn local_order_is_by_large_page_first() {
    let rules = Rules {
        evict: Evict::Local,
        ..LRU
    };
    let mut local = manager(16, &[32], Choice::Fixed(rules));
    moved(&mut local, 0..16);
    // Unit 1 is the oldest of all, but its large page is the younger one.
    load(&mut local, 0);
    assert_eq!(moved(&mut local, [16])[0], [8]);
}

#[test]
fn reserve_spares_the_oldest() {
    let setup = Setup {
        capacity: 10,
        units_of_large: 8,
        allocations: vec![64],
        choice: Choice::Fixed(LRU),
        reserve_percent: 20,
        seed: 1,
    };
    let mut reserved = Manager::new(setup);
    let units: Vec<u32> = (0..10).collect();
    moved(&mut reserved, units);
    assert_eq!(moved(&mut reserved, [20])[0], [2]);
}

#[test]
fn unit_is_read_from_the_host_until_it_was_used_often_enough_and_a_store_brings_it() {
    let rules = Rules {
        migration: Migration::Always(3),
        ..LRU
    };
    let mut delayed = manager(4, &[32], Choice::Fixed(rules));
    assert_eq!(
        [load(&mut delayed, 0), load(&mut delayed, 0)],
        [Outcome::Remote, Outcome::Remote]
    );
    assert!(matches!(load(&mut delayed, 0), Outcome::Comes { remote: 0, .. }));
    // Of ten loads at once two go to the host before the unit comes.
    let many = delayed.access(
        Place {
            allocation: 0,
            unit: 9,
        },
        10,
        0,
    );
    assert!(matches!(many, Outcome::Comes { remote: 2, .. }));
    let stored = delayed.access(
        Place {
            allocation: 0,
            unit: 1,
        },
        0,
        1,
    );
    assert!(matches!(stored, Outcome::Comes { .. }));
}

#[test]
fn engine_starts_as_the_driver_and_pins_what_is_used_in_no_order_when_memory_is_full() {
    let mut engine = manager(32, &[32, 64], Choice::ByPattern);
    let scattered = [50, 3, 41, 12, 60, 25, 7, 33, 19, 55, 1, 46];
    for unit in 0..32 {
        engine.access(Place { allocation: 0, unit }, 1, 0);
    }
    for unit in scattered {
        engine.access(Place { allocation: 1, unit }, 1, 0);
    }
    engine.kernel_ends();
    assert_eq!(
        [engine.pattern(0), engine.pattern(1)],
        [Pattern::Streaming, Pattern::Random]
    );
    assert_eq!(
        engine.access(
            Place {
                allocation: 1,
                unit: 30
            },
            1,
            0
        ),
        Outcome::Remote
    );
}

#[test]
fn what_is_no_unit_is_remote() {
    let mut lru = manager(3, &[4], Choice::Fixed(LRU));
    assert_eq!(load(&mut lru, 4), Outcome::Remote);
    assert_eq!(
        lru.access(
            Place {
                allocation: 1,
                unit: 0
            },
            1,
            0
        ),
        Outcome::Remote
    );
    assert_eq!(
        manager(0, &[4], Choice::Fixed(LRU)).access(
            Place {
                allocation: 0,
                unit: 0
            },
            1,
            0
        ),
        Outcome::Remote
    );
}

fn rules() -> impl Strategy<Value = Rules> {
    let bring = prop::sample::select(vec![
        Bring::Alone,
        Bring::Random,
        Bring::Tree(Spread::Balance),
        Bring::Tree(Spread::Largest),
    ]);
    let evict = prop::sample::select(vec![
        Evict::Random,
        Evict::Oldest,
        Evict::Local,
        Evict::Tree,
        Evict::Large,
        Evict::Coldest,
    ]);
    let migration = prop::sample::select(vec![
        Migration::FirstTouch,
        Migration::Always(3),
        Migration::Oversubscribed(3),
        Migration::DYNAMIC,
        Migration::Pinned,
    ]);
    (bring, evict, migration).prop_map(|(bring, evict, migration)| Rules {
        bring,
        evict,
        migration,
    })
}

proptest! {
    /// Whatever the policy: what came and did not go is what is in memory, it fits, and what is wanted is among what comes and not among what goes.
    #[test]
    fn memory_is_never_more_than_it_is_and_never_less_than_was_said(
        rules in rules(),
        by_pattern in any::<bool>(),
        capacity in 1_u32..40,
        reserve_percent in prop::sample::select(vec![0_u32, 10, 20, 100]),
        steps in prop::collection::vec((0_usize..3, 0_u32..40, 0_u8..4), 1..300),
    ) {
        let setup = Setup {
            capacity,
            units_of_large: 8,
            allocations: vec![30, 13, 1],
            choice: if by_pattern { Choice::ByPattern } else { Choice::Fixed(rules) },
            reserve_percent,
            seed: 7,
        };
        let mut manager = Manager::new(setup.clone());
        let mut there = std::collections::BTreeSet::new();
        for (allocation, unit, kind) in steps {
            let place = Place { allocation, unit };
            if kind == 3 {
                manager.kernel_ends();
                continue;
            }
            match manager.access(place, 1, u32::from(kind == 0)) {
                Outcome::Local => prop_assert!(there.contains(&place)),
                Outcome::Remote => prop_assert!(!there.contains(&place)),
                Outcome::Comes { units, gone, .. } => {
                    for one in gone {
                        prop_assert!(there.remove(&one.place));
                    }
                    prop_assert!(units.contains(&unit));
                    for unit in units {
                        prop_assert!(unit < setup.allocations[allocation]);
                        let is_new = there.insert(Place { allocation, unit });
                        prop_assert!(is_new);
                    }
                }
            }
            prop_assert_eq!(manager.resident(), there.len());
            prop_assert!(there.len() <= capacity as usize);
        }
    }
}

/// Allocations that units go from when units of one are loaded.
fn gone_for(manager: &mut Manager, allocation: usize, units: std::ops::Range<u32>) -> Vec<usize> {
    let outcomes = units.map(|unit| manager.access(Place { allocation, unit }, 1, 0));
    let gone = outcomes.flat_map(|outcome| match outcome {
        Outcome::Comes { gone, .. } => gone,
        _ => Vec::new(),
    });
    gone.map(|one| one.place.allocation).collect()
}

#[test]
fn spared_allocations_go_when_nobody_else_has_anything() {
    use Evict::{Coldest, Large, Local, Oldest, Random, Tree};
    for evict in [Oldest, Random, Large, Coldest, Local, Tree] {
        let mut manager = manager(16, &[32, 32], Choice::Fixed(Rules { evict, ..LRU }));
        for allocation in [0, 1] {
            assert_eq!(gone_for(&mut manager, allocation, 0..8), []);
        }
        manager.spare(0..1);
        let mut from = |allocation, units| gone_for(&mut manager, allocation, units);
        // The spared one is older, and takes from the other; the other takes from itself.
        let others = [from(0, 8..10), from(1, 8..12)].concat();
        assert!(
            others.iter().all(|from| *from == 1) && !others.is_empty(),
            "{evict:?}"
        );
        let last = from(0, 10..32);
        assert!(
            last.ends_with(&[0]) && last.is_sorted_by(|a, b| a >= b),
            "{evict:?}: {last:?}"
        );
    }
}

#[test]
fn who_leaves_leaves_nothing() {
    let mut manager = manager(16, &[8, 8], Choice::Fixed(LRU));
    moved(&mut manager, 0..4);
    manager.access(
        Place {
            allocation: 1,
            unit: 3,
        },
        0,
        1,
    );
    let gone = manager.leave(1..2);
    let place = Place {
        allocation: 1,
        unit: 3,
    };
    assert_eq!(
        gone,
        [Gone {
            place,
            is_dirty: true
        }]
    );
    assert_eq!(
        (manager.resident(), manager.leave(0..1).len(), manager.resident()),
        (4, 4, 0)
    );
}
