use proptest::prelude::*;

use super::*;

/// 512 KiB in blocks of 64 KiB, as in the thesis's figures.
const EIGHT: u32 = 8;

fn bring(tree: &mut Tree, block: u32) -> Vec<u32> {
    tree.bring(block, Some(Spread::Balance))
}

#[test]
fn figure_4_first_pattern() {
    let mut tree = Tree::new(EIGHT);
    for block in [1, 3, 5, 7] {
        assert_eq!(bring(&mut tree, block), [block]);
    }
    assert_eq!(bring(&mut tree, 0), [0, 2, 4, 6]);
    assert_eq!(tree.count(), EIGHT);
}

#[test]
fn figure_4_second_pattern() {
    let mut tree = Tree::new(EIGHT);
    assert_eq!(bring(&mut tree, 1), [1]);
    assert_eq!(bring(&mut tree, 3), [3]);
    assert_eq!(bring(&mut tree, 0), [0, 2]);
    let fourth = bring(&mut tree, 4);
    assert_eq!(fourth, [4, 5, 6, 7]);
    // They come in one transfer.
    assert_eq!(
        runs(&fourth).map(|run| (run.start, run.end)).collect::<Vec<_>>(),
        [(4, 8)]
    );
}

#[test]
fn figure_9() {
    let mut tree = Tree::new(EIGHT);
    for block in 0..EIGHT {
        tree.bring(block, None);
    }
    for block in [1, 3, 4] {
        assert_eq!(tree.evict(block, true), [block]);
    }
    let fourth = tree.evict(0, true);
    assert_eq!(fourth, [0, 2, 5, 6, 7]);
    assert_eq!(runs(&fourth).collect::<Vec<_>>(), [0..1, 2..3, 5..8]);
    assert_eq!(tree.count(), 0);
}

#[test]
fn large_page_brings_1020_kib_behind_the_page_that_faults() {
    let mut tree = Tree::new(32);
    for block in 0..16 {
        tree.bring(block, None);
    }
    // 16 blocks of 64 KiB, of which the page of 4 KiB that faulted comes alone.
    assert_eq!(bring(&mut tree, 16).len(), 16);
    assert_eq!(tree.count(), 32);
}

#[test]
fn half_of_a_node_is_not_more_than_half() {
    let mut tree = Tree::new(EIGHT);
    assert_eq!(bring(&mut tree, 0), [0]);
    assert_eq!(bring(&mut tree, 4), [4]);
    assert_eq!(bring(&mut tree, 1), [1]);
    assert_eq!(tree.count(), 3);
}

#[test]
fn largest_node_with_51_percent_comes_whole_and_counts_for_no_other() {
    let mut tree = Tree::new(EIGHT);
    for block in [1, 3, 5, 7] {
        assert_eq!(tree.bring(block, Some(Spread::Largest)), [block]);
    }
    // 5 of 8 blocks are 62 %.
    assert_eq!(tree.bring(0, Some(Spread::Largest)), [0, 2, 4, 6]);
    let mut tree = Tree::new(EIGHT);
    for block in [1, 3] {
        tree.bring(block, Some(Spread::Largest));
    }
    // 3 of 4 blocks are enough; the four that are valid then are no more than half of eight, and do not count here.
    assert_eq!(tree.bring(0, Some(Spread::Largest)), [0, 2]);
}

#[test]
fn blocks_that_the_allocation_has_not_never_come() {
    let mut tree = Tree::new(3);
    assert_eq!(tree.bring(3, Some(Spread::Balance)), [0; 0]);
    assert_eq!(bring(&mut tree, 0), [0]);
    assert_eq!(bring(&mut tree, 1), [1]);
    assert_eq!(bring(&mut tree, 2), [2]);
    assert_eq!(tree.evict_all(), [0, 1, 2]);
}

fn count(valid: &[bool]) -> usize {
    valid.iter().filter(|is| **is).count()
}

/// What the thesis says in words, on a plain list: no tree, no counts kept.
fn brought_by_words(valid: &mut [bool], block: usize) {
    valid[block] = true;
    let mut bytes = 2;
    while bytes <= valid.len() {
        let start = block / bytes * bytes;
        let node = &mut valid[start..start + bytes];
        if 2 * count(node) > bytes {
            let (left, right) = node.split_at_mut(bytes / 2);
            let (fuller, emptier) = match count(right) > count(left) {
                true => (count(right), left),
                false => (count(left), right),
            };
            fill_by_words(emptier, fuller);
        }
        bytes *= 2;
    }
}

/// One block at a time, always to the side that has less.
fn fill_by_words(node: &mut [bool], target: usize) {
    while count(node) < target {
        let mut part = &mut *node;
        while part.len() > 1 {
            let half = part.len() / 2;
            let (left, right) = part.split_at_mut(half);
            part = match count(right) < count(left) {
                true => right,
                false => left,
            };
        }
        part[0] = true;
    }
}

/// The same for eviction.
fn evicted_by_words(valid: &mut [bool], block: usize) {
    if !std::mem::take(&mut valid[block]) {
        return;
    }
    let mut bytes = 2;
    while bytes <= valid.len() {
        let start = block / bytes * bytes;
        let node = &mut valid[start..start + bytes];
        if 2 * count(node) < bytes {
            let (left, right) = node.split_at_mut(bytes / 2);
            let (emptier, fuller) = match count(right) > count(left) {
                true => (count(left), right),
                false => (count(right), left),
            };
            drain_by_words(fuller, emptier);
        }
        bytes *= 2;
    }
}

/// One block at a time, always from the side that has more; of two alike the left one loses one first.
fn drain_by_words(node: &mut [bool], target: usize) {
    while count(node) > target {
        let mut part = &mut *node;
        while part.len() > 1 {
            let half = part.len() / 2;
            let (left, right) = part.split_at_mut(half);
            part = match count(right) > count(left) {
                true => right,
                false => left,
            };
        }
        part[0] = false;
    }
}

proptest! {
    /// The blocks that come are as many in each half of every node as when they are chosen one at a time.
    #[test]
    fn fault_brings_what_the_words_say(faults in prop::collection::vec(0_u32..32, 1..40)) {
        let mut tree = Tree::new(32);
        let mut list = [false; 32];
        for block in faults {
            let was = tree.is_valid(block);
            let came = bring(&mut tree, block);
            prop_assert_eq!(came.contains(&block), !was);
            if !was {
                brought_by_words(&mut list, block as usize);
            }
            let is: Vec<bool> = (0..32).map(|block| tree.is_valid(block)).collect();
            prop_assert_eq!(&is, &list);
        }
    }

    /// What is said to have come and gone is what is valid, whatever the order, and blocks that are not there do not count.
    #[test]
    fn what_came_and_went_is_what_is_valid(
        blocks in 1_u32..40,
        steps in prop::collection::vec((0_u32..48, 0_u8..5), 1..80),
    ) {
        let mut tree = Tree::new(blocks);
        let mut valid = std::collections::BTreeSet::new();
        for (block, step) in steps {
            match step {
                0 => valid.extend(tree.bring(block, None)),
                1 => valid.extend(bring(&mut tree, block)),
                2 => valid.extend(tree.bring(block, Some(Spread::Largest))),
                other => {
                    for gone in tree.evict(block, other == 3) {
                        prop_assert!(valid.remove(&gone));
                    }
                }
            }
            prop_assert_eq!(tree.valid_blocks().collect::<Vec<_>>(), valid.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(tree.count() as usize, valid.len());
            prop_assert!(valid.iter().all(|block| *block < blocks));
        }
    }

    /// The same for what goes.
    #[test]
    fn eviction_takes_what_the_words_say(
        holes in prop::collection::btree_set(0_u32..32, 0..20),
        evictions in prop::collection::vec(0_u32..32, 1..40),
    ) {
        let mut tree = Tree::new(32);
        let mut list: Vec<bool> = (0..32).map(|block| !holes.contains(&block)).collect();
        for block in (0..32).filter(|block| !holes.contains(block)) {
            tree.bring(block, None);
        }
        for block in evictions {
            tree.evict(block, true);
            evicted_by_words(&mut list, block as usize);
            let is: Vec<bool> = (0..32).map(|block| tree.is_valid(block)).collect();
            prop_assert_eq!(&is, &list);
        }
    }
}
