//! Owners against a plain memory: whatever is evicted, launches and owners find the bytes that were stored last.

use super::*;
use crate::setup::Touch;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// A byte stands for a part of a block.
const BLOCK: u64 = 4;

/// A card whose blocks hold bytes, and the host's copies of them.
#[derive(Default)]
struct Plain {
    capacity: usize,
    card: BTreeMap<Block, [u8; BLOCK as usize]>,
    host: BTreeMap<Block, [u8; BLOCK as usize]>,
    written_back: u32,
    loaded: u32,
    signed: Vec<Block>,
    /// Bytes by `copy_in` and `copy_out`.
    copied: u64,
    /// What the owners' addresses hold: the judge.
    truth: BTreeMap<(u32, u64), u8>,
}

impl Plain {
    fn place(address: u64, owner: u32) -> (Block, usize) {
        let index = (address / BLOCK) as u32;
        (Block { owner, index }, (address % BLOCK) as usize)
    }
}

impl Card for Plain {
    type Signature = [u8; BLOCK as usize];

    fn load(&mut self, block: Block) {
        // What a launch left of a block on the host that nobody gave bytes is zeros.
        let bytes = self.host.get(&block).copied().unwrap_or_default();
        assert!(self.card.insert(block, bytes).is_none());
        assert!(self.card.len() <= self.capacity);
        self.loaded += 1;
    }

    fn clear(&mut self, block: Block) {
        assert!(!self.host.contains_key(&block), "the host's bytes are lost");
        assert!(self.card.insert(block, [0; BLOCK as usize]).is_none());
        assert!(self.card.len() <= self.capacity);
    }

    fn evict(&mut self, block: Block, writes_back: bool) {
        let bytes = self.card.remove(&block).expect("it was on the card");
        if writes_back {
            self.host.insert(block, bytes);
            self.written_back += 1;
        }
    }

    fn discard(&mut self, block: Block) {
        assert!(self.card.remove(&block).is_some(), "it was on the card");
    }

    fn sign(&mut self, blocks: &[Block]) -> Vec<Self::Signature> {
        self.signed.extend(blocks);
        blocks.iter().map(|block| self.card[block]).collect()
    }

    fn copy_in(&mut self, owner: u32, bytes: Range<u64>) {
        self.copied += bytes.end - bytes.start;
        for address in bytes {
            let (block, at) = Self::place(address, owner);
            let value = self.truth[&(owner, address)];
            self.card.get_mut(&block).expect("it is on the card")[at] = value;
        }
    }

    fn copy_out(&mut self, owner: u32, bytes: Range<u64>) {
        self.copied += bytes.end - bytes.start;
        for address in bytes {
            let (block, at) = Self::place(address, owner);
            let value = self.card[&block][at];
            self.host.entry(block).or_default()[at] = value;
        }
    }
}

/// A manager with its card, and whether its launches say the truth.
struct World {
    manager: Manager<Plain>,
    card: Plain,
    under_way: Vec<(u32, Prepared)>,
}

impl World {
    fn new(setup: Setup) -> Self {
        Self {
            manager: Manager::new(setup),
            card: Plain {
                capacity: setup.capacity as usize,
                ..Plain::default()
            },
            under_way: Vec::new(),
        }
    }

    fn gdm(capacity: u32) -> Self {
        Self::new(Setup::gdm(capacity, BLOCK))
    }

    fn reserve(&mut self, owner: u32, bytes: Range<u64>) {
        self.manager.reserve(owner, bytes.clone());
        self.card.truth.extend(bytes.map(|address| ((owner, address), 0)));
    }

    fn copy_in(&mut self, owner: u32, bytes: Range<u64>, value: u8) {
        self.finish_of(owner);
        for address in bytes.clone() {
            self.card.truth.insert((owner, address), value);
            // What the owner's buffer holds is the host's copy, as soon as the manager says that the card's is nothing worth.
            let (block, at) = Plain::place(address, owner);
            self.card.host.entry(block).or_default()[at] = value;
        }
        self.manager.copy_in(&mut self.card, owner, bytes).unwrap();
    }

    fn copy_out(&mut self, owner: u32, bytes: Range<u64>) {
        self.finish_of(owner);
        self.manager.copy_out(&mut self.card, owner, bytes.clone());
        for address in bytes {
            let (block, at) = Plain::place(address, owner);
            let value = self.card.host.get(&block).map_or(0, |bytes| bytes[at]);
            assert_eq!(value, self.card.truth[&(owner, address)], "{owner} {address}");
        }
    }

    /// Runs a launch: it loads all that it touches, and stores `value` where it may. Others' may be under way.
    fn launch(&mut self, launch: &Launch, value: u8) -> Prepared {
        let prepared = loop {
            match self.manager.prepare(&mut self.card, launch) {
                Ok(prepared) => break prepared,
                Err(Busy) => {
                    let (_, first) = self.under_way.remove(0);
                    self.manager.finish(first);
                }
            }
        };
        let remote: BTreeSet<Block> = prepared.remote.iter().map(|(block, _)| *block).collect();
        for touch in &launch.touches {
            for address in touch.bytes.clone() {
                let (block, at) = Plain::place(address, launch.owner);
                let Some(truth) = self.card.truth.get_mut(&(launch.owner, address)) else {
                    continue;
                };
                let bytes = if remote.contains(&block) {
                    self.card.host.entry(block).or_default()
                } else {
                    self.card
                        .card
                        .get_mut(&block)
                        .expect("what a launch touches is on the card")
                };
                assert_eq!(bytes[at], *truth, "{} {address}", launch.owner);
                if touch.stores {
                    bytes[at] = value;
                    *truth = value;
                }
            }
        }
        prepared
    }

    /// One that ends at once.
    fn run(&mut self, owner: u32, bytes: Range<u64>, stores: Option<u8>) {
        let launch = Launch {
            owner,
            touches: vec![Touch {
                bytes,
                stores: stores.is_some(),
            }],
        };
        let prepared = self.launch(&launch, stores.unwrap_or(0));
        self.manager.finish(prepared);
    }

    fn finish_of(&mut self, owner: u32) {
        while let Some(at) = self.under_way.iter().position(|(whose, _)| *whose == owner) {
            let (_, prepared) = self.under_way.remove(at);
            self.manager.finish(prepared);
        }
    }
}

const CAPACITY: u32 = 8;

fn setups() -> Vec<Setup> {
    let gdm = Setup::gdm(CAPACITY, BLOCK);
    vec![
        gdm,
        Setup::base(CAPACITY, BLOCK),
        Setup {
            evict: Evict::Lru,
            ..gdm
        },
        Setup {
            clean: Clean::Sets,
            working_set: WorkingSet::Blocks,
            ..gdm
        },
        Setup {
            working_set: WorkingSet::Context,
            clean: Clean::Signatures {
                uniformity: false,
                at_load: true,
            },
            ..gdm
        },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Two owners with more memory than the card, regions that share blocks, copies of any length. Few values, so that old bytes come again
    /// and a signature that is kept too long fits.
    #[test]
    fn no_byte_is_lost(
        setup in 0usize..5,
        protected in 0u32..5,
        steps in prop::collection::vec((0u8..8, 0u32..2, 0u64..44, 1u64..20, 1u8..4), 1..120),
    ) {
        let mut world = World::new(setups()[setup]);
        world.manager.protect(1, protected);
        // The second begins within the first's last block.
        for region in [0..14, 14..33, 36..44] {
            world.reserve(0, region.clone());
            world.reserve(1, region);
        }
        for (what, owner, start, length, value) in steps {
            let end = (start + length).min(44);
            let reserved = |address: &u64| !(33..36).contains(address);
            if !(start..end).all(|address| reserved(&address)) {
                continue;
            }
            match what {
                0 | 1 => world.copy_in(owner, start..end, value),
                2 => world.copy_out(owner, start..end),
                3 => { world.manager.prefetch(&mut world.card); }
                4 => { world.manager.source_changes(owner, start..end); }
                _ => {
                    world.finish_of(owner);
                    let launch = Launch { owner, touches: vec![
                        Touch { bytes: start..end, stores: what == 5 },
                        Touch { bytes: 0..2, stores: false },
                    ] };
                    let prepared = world.launch(&launch, value);
                    if what == 7 {
                        world.under_way.push((owner, prepared));
                    } else {
                        world.manager.finish(prepared);
                    }
                }
            }
            prop_assert_eq!(world.manager.resident(), world.card.card.len());
        }
        for owner in 0..2 {
            for region in [0..14, 14..33, 36..44] {
                world.copy_out(owner, region);
            }
        }
    }
}

#[test]
fn data_that_is_only_read_is_written_back_once_until_it_has_a_signature() {
    let mut world = World::gdm(4);
    world.reserve(0, 0..12);
    world.reserve(1, 0..12);
    world.copy_in(0, 0..12, 7);
    world.copy_in(1, 0..12, 8);
    for _ in 0..4 {
        (0..2).for_each(|owner| world.run(owner, 0..12, None));
    }
    // Each of six blocks once: the first signature has nothing to be compared with.
    assert_eq!(world.card.written_back, 6);
    assert!(world.card.loaded > 12);
}

#[test]
fn what_a_launch_says_it_only_reads_is_clean_by_its_sets() {
    let mut world = World::new(Setup {
        clean: Clean::Sets,
        ..Setup::gdm(4, BLOCK)
    });
    for owner in 0..2 {
        world.reserve(owner, 0..12);
        world.copy_in(owner, 0..12, 7);
    }
    for _ in 0..4 {
        (0..2).for_each(|owner| world.run(owner, 0..12, None));
    }
    assert_eq!((world.card.written_back, world.card.signed.len()), (0, 0));
}

#[test]
fn cheapest_of_the_oldest_fifth_goes_first() {
    let mut world = World::new(Setup {
        clean: Clean::Sets,
        working_set: WorkingSet::Blocks,
        ..Setup::gdm(10, BLOCK)
    });
    world.reserve(0, 0..48);
    world.copy_in(0, 0..48, 1);
    // The oldest is dirty, the next clean; a fifth of ten are two.
    world.run(0, 0..4, Some(2));
    for block in 1..10 {
        world.run(0, block * 4..block * 4 + 4, None);
    }
    world.run(0, 40..44, None);
    assert_eq!(world.card.written_back, 0, "block 1 goes, not block 0");
    assert!(!world.card.card.contains_key(&Block { owner: 0, index: 1 }));
    // Then the section has but the dirty one, and is not filled before it is empty.
    world.run(0, 44..48, None);
    assert_eq!(world.card.written_back, 1);
}

#[test]
fn object_that_is_dirty_at_both_ends_and_in_the_middle_is_not_signed() {
    let mut world = World::gdm(8);
    world.reserve(0, 0..32);
    world.reserve(1, 0..32);
    let round = |world: &mut World, value| {
        world.run(0, 0..32, Some(value));
        world.run(1, 0..32, None);
        std::mem::take(&mut world.card.signed)
            .into_iter()
            .filter(|block| block.owner == 0)
            .count()
    };
    assert_eq!(round(&mut world, 1), 8);
    // From now on the three alone.
    assert_eq!(round(&mut world, 2), 3);
    assert_eq!(round(&mut world, 3), 3);
}

/// A loop that fills a buffer, uses it, and works on other data meanwhile that does not fit beside it.
#[test]
fn overwritten_buffer_is_not_written_back_from_the_second_round_on() {
    let mut world = World::new(Setup {
        working_set: WorkingSet::Blocks,
        ..Setup::gdm(10, BLOCK)
    });
    world.reserve(0, 0..16);
    world.reserve(0, 16..52);
    world.copy_in(0, 16..52, 9);
    let mut written = Vec::new();
    for round in 0..5 {
        let before = world.card.written_back;
        world.copy_in(0, 0..16, round);
        world.run(0, 0..16, Some(round + 100));
        for part in 0..9 {
            world.run(0, 16 + part * 4..20 + part * 4, None);
        }
        written.push(world.card.written_back - before);
    }
    // The first two rounds write the read-only blocks back that have no signature yet.
    assert!(written[0] > 0, "{written:?}");
    assert_eq!(written[2..], [0, 0, 0], "{written:?}");
}

#[test]
fn what_was_copied_out_is_evicted_without_a_copy() {
    let mut world = World::gdm(4);
    world.reserve(0, 0..16);
    world.reserve(1, 0..16);
    world.run(0, 0..16, Some(5));
    world.copy_out(0, 0..16);
    let before = (world.card.copied, world.card.written_back);
    world.run(1, 0..16, None);
    assert_eq!((world.card.copied, world.card.written_back), before);
    assert_eq!(before, (16, 0));
    world.copy_out(0, 0..16);
}

#[test]
fn block_that_was_copied_out_in_part_is_not_taken_for_what_the_host_had_before() {
    let mut world = World::new(Setup {
        clean: Clean::Signatures {
            uniformity: false,
            at_load: true,
        },
        ..Setup::gdm(1, BLOCK)
    });
    (0..2).for_each(|owner| world.reserve(owner, 0..4));
    world.copy_in(0, 0..4, 7);
    world.run(0, 0..4, None);
    world.run(0, 0..4, Some(1));
    // The host has 1, 1, 7, 7 now; then the card has the bytes of the first signature again.
    world.copy_out(0, 0..2);
    world.run(0, 0..4, Some(7));
    world.run(1, 0..4, None);
    world.copy_out(0, 0..4);
}

#[test]
fn blocks_of_a_launch_under_way_stay_and_its_end_makes_room() {
    let mut world = World::gdm(4);
    world.reserve(0, 0..12);
    world.reserve(1, 0..12);
    let launch = |owner| Launch {
        owner,
        touches: vec![Touch {
            bytes: 0..12,
            stores: true,
        }],
    };
    let first = world.launch(&launch(0), 1);
    assert_eq!(world.manager.prepare(&mut world.card, &launch(1)), Err(Busy));
    assert_eq!(world.manager.copy_in(&mut world.card, 0, 0..4), Err(Busy));
    assert_eq!(world.manager.free(&mut world.card, 0, 0), Err(Busy));
    world.manager.finish(first);
    let second = world.manager.prepare(&mut world.card, &launch(1)).unwrap();
    assert!(second.remote.is_empty());
}

#[test]
fn set_larger_than_the_card_stays_on_the_host_in_part() {
    let mut world = World::gdm(4);
    world.reserve(0, 0..40);
    world.run(0, 0..40, Some(3));
    world.run(0, 0..40, Some(4));
    world.copy_out(0, 0..40);
    assert_eq!(world.manager.resident(), 4);
}

/// Stored to where it is on the host, and later on the card what it had before that: the old signature would fit.
#[test]
fn block_that_was_stored_to_on_the_host_has_no_signature() {
    let mut world = World::new(Setup {
        working_set: WorkingSet::Blocks,
        clean: Clean::Signatures {
            uniformity: false,
            at_load: true,
        },
        ..Setup::gdm(4, BLOCK)
    });
    world.reserve(0, 0..40);
    world.copy_in(0, 0..40, 1);
    world.run(0, 20..24, None);
    world.run(0, 0..16, None);
    let before = world.card.written_back;
    world.run(0, 0..40, Some(2));
    assert!(!world.card.card.contains_key(&Block { owner: 0, index: 5 }));
    world.run(0, 20..24, Some(1));
    world.run(0, 0..16, None);
    assert!(world.card.written_back > before);
    world.copy_out(0, 20..24);
}

#[test]
fn protected_blocks_stay_though_another_owner_wants_all() {
    let mut world = World::gdm(8);
    world.manager.protect(0, 3);
    for owner in 0..2 {
        world.reserve(owner, 0..32);
    }
    world.run(0, 0..20, Some(1));
    world.run(1, 0..32, Some(2));
    let mine = world.card.card.keys().filter(|block| block.owner == 0).count();
    assert_eq!(mine, 3);
}

#[test]
fn buffer_that_changes_is_staged_once() {
    let mut world = World::gdm(8);
    world.reserve(0, 0..16);
    world.copy_in(0, 0..16, 1);
    assert_eq!(world.manager.source_changes(0, 2..6), 4);
    assert_eq!(world.manager.source_changes(0, 0..16), 8);
    assert_eq!(world.manager.source_changes(0, 0..16), 0);
}

#[test]
fn freed_region_is_gone_and_a_block_that_another_shares_is_not() {
    let mut world = World::gdm(8);
    world.reserve(0, 0..10);
    world.reserve(0, 10..16);
    world.run(0, 0..16, Some(6));
    world.manager.free(&mut world.card, 0, 0).unwrap();
    assert_eq!(world.manager.resident(), 2);
    assert_eq!(world.card.written_back, 0);
    world.copy_out(0, 10..16);
    // Unknown regions and owners: nothing happens.
    world.manager.free(&mut world.card, 0, 0).unwrap();
    world.manager.free(&mut world.card, 9, 0).unwrap();
}

#[test]
fn what_waits_for_the_copy_engine_is_bounded_by_blocks() {
    let mut world = World::gdm(2);
    for round in 0..50 {
        world.reserve(0, 0..20);
        world.copy_in(0, 0..20, round);
        world.copy_in(0, 1..19, round);
        assert_eq!(world.manager.pending.len(), 5);
        world.run(0, 0..8, None);
        assert!(world.manager.pending.len() <= 3);
        world.manager.free(&mut world.card, 0, 0).unwrap();
        assert!(world.manager.pending.is_empty());
        world.card.host.clear();
    }
}

#[test]
fn prefetch_follows_the_order_of_copies_until_memory_is_full() {
    let mut world = World::gdm(3);
    world.reserve(0, 0..20);
    world.copy_in(0, 8..16, 1);
    world.copy_in(0, 0..8, 2);
    let came: Vec<u32> =
        std::iter::from_fn(|| world.manager.prefetch(&mut world.card).map(|block| block.index)).collect();
    assert_eq!(came, [2, 3, 0]);
}
