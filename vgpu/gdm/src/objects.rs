//! What lies in an owner's memory: regions that it reserved, cut into objects by its copies (section 4.2, 5.1).

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of one owner, each in one object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Objects {
    /// The end of each object by its first block.
    ends: BTreeMap<u32, u32>,
}

impl Objects {
    /// The object that has a block.
    pub(crate) fn of(&self, block: u32) -> Option<Range<u32>> {
        let (start, end) = self.ends.range(..=block).next_back()?;
        (block < *end).then_some(*start..*end)
    }

    /// All blocks of all objects.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().flat_map(|(start, end)| *start..*end)
    }

    /// A region is an object, but for a block at its beginning or end that another one has.
    pub(crate) fn reserve(&mut self, blocks: Range<u32>) {
        let mut blocks = blocks;
        while self.of(blocks.start).is_some() && !blocks.is_empty() {
            blocks.start += 1;
        }
        while !blocks.is_empty() && self.of(blocks.end - 1).is_some() {
            blocks.end -= 1;
        }
        if !blocks.is_empty() {
            self.ends.insert(blocks.start, blocks.end);
        }
    }

    /// These blocks belong to no object any more.
    pub(crate) fn free(&mut self, blocks: Range<u32>) {
        self.cut(blocks.start);
        self.cut(blocks.end);
        self.ends
            .retain(|start, end| *end <= blocks.start || *start >= blocks.end);
    }

    /// A copy makes what it covers an object: it cuts those that it covers in part, and merges those that it covers whole. Blocks without an
    /// object stay so.
    pub(crate) fn copied(&mut self, blocks: Range<u32>) {
        self.cut(blocks.start);
        self.cut(blocks.end);
        let starts = self.ends.range(blocks).map(|(start, end)| (*start, *end));
        let mut merged: Option<Range<u32>> = None;
        for (start, end) in starts.collect::<Vec<_>>() {
            merged = match merged {
                Some(before) if before.end == start => {
                    self.ends.remove(&start);
                    self.ends.insert(before.start, end);
                    Some(before.start..end)
                }
                _ => Some(start..end),
            };
        }
    }

    fn cut(&mut self, at: u32) {
        if let Some(object) = self.of(at).filter(|object| object.start < at) {
            self.ends.insert(object.start, at);
            self.ends.insert(at, object.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(objects: &Objects) -> Vec<Range<u32>> {
        objects.ends.iter().map(|(start, end)| *start..*end).collect()
    }

    /// Figure 3, in blocks of 4 MB: 800 MB, of which 400 and then 200 MB are copied, then 10 KB, which is less than a block.
    #[test]
    fn example_of_the_paper_has_three_objects() {
        let mut objects = Objects::default();
        objects.reserve(0..200);
        objects.copied(0..100);
        objects.copied(100..150);
        assert_eq!(list(&objects), [0..100, 100..150, 150..200]);
        // One copy over all of them makes them one again.
        objects.copied(0..200);
        assert_eq!(objects.of(17), Some(0..200));
        objects.free(50..60);
        assert_eq!(list(&objects), [0..50, 60..200]);
        // Two that are not neighbours are not merged.
        objects.copied(40..70);
        assert_eq!(list(&objects), [0..40, 40..50, 60..70, 70..200]);
    }

    #[test]
    fn region_that_begins_within_a_block_leaves_it_to_the_one_before() {
        let mut objects = Objects::default();
        objects.reserve(0..11);
        objects.reserve(10..22);
        assert_eq!(list(&objects), [0..11, 11..22]);
        objects.reserve(5..8);
        assert_eq!(list(&objects), [0..11, 11..22]);
    }

    proptest! {
        /// Against one number a block.
        #[test]
        fn blocks_are_in_one_object_each(steps in prop::collection::vec((0u8..3, 0u32..40, 1u32..20), 0..30)) {
            let mut objects = Objects::default();
            let mut plain = [false; 64];
            for (what, start, length) in steps {
                let blocks = start..start + length;
                let all = blocks.start as usize..blocks.end as usize;
                match what {
                    0 if plain[all.clone()].iter().all(|used| !used) => {
                        objects.reserve(blocks);
                        plain[all].fill(true);
                    }
                    1 => {
                        objects.free(blocks);
                        plain[all].fill(false);
                    }
                    _ => objects.copied(blocks),
                }
                let of: Vec<u32> = objects.blocks().collect();
                let wanted: Vec<u32> = (0..64).filter(|at| plain[*at as usize]).collect();
                prop_assert_eq!(of, wanted);
                for at in 0..64 {
                    prop_assert_eq!(objects.of(at).is_some_and(|object| object.contains(&at)), plain[at as usize]);
                }
            }
        }
    }
}
