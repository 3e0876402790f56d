//! The broker's own part of VRAM: tables, instance blocks, USERD, runlists.
//!
//! One contiguous range that host BAR3 shows byte for byte, so a table write is a store at `address − base`. Handed out
//! first-fit in 4 KiB units.

use std::collections::BTreeMap;

use fermi_spec::addr::{SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use serde::{Deserialize, Serialize};

use crate::event::{Action, Actions};
use crate::inspect::{Inspect, Space, Tree};
use crate::saved::Unsound;

/// First-fit allocator of the arena.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Arena {
    base: VramAddr,
    bytes: u64,
    /// Free ranges: start → length, never adjacent.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl Arena {
    pub(crate) fn new(base: VramAddr, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            free: BTreeMap::from([(base.0, bytes)]),
            free_bytes: bytes,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Start and length of each part that holds nothing.
    pub(crate) fn free_ranges(&self) -> impl Iterator<Item = (VramAddr, u64)> {
        self.free
            .iter()
            .map(|(&start, &length)| (VramAddr(start), length))
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(SMALL_PAGE)
    }

    /// `bytes`, rounded up to pages, at a multiple of `align`; `None` if no range is long enough.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64) -> Option<VramAddr> {
        let bytes = Self::rounded(bytes);
        let (start, length, at) = self.free.iter().find_map(|(&start, &length)| {
            let at = start.next_multiple_of(align);
            (at + bytes <= start + length).then_some((start, length, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let end = at + bytes;
        if start + length > end {
            self.free.insert(end, start + length - end);
        }
        self.free_bytes -= bytes;
        Some(VramAddr(at))
    }

    /// Gives a range back, as allocated. Panics if any of it is free: that would be two owners.
    pub(crate) fn release(&mut self, at: VramAddr, bytes: u64) {
        let bytes = Self::rounded(bytes);
        let (mut start, mut end) = (at.0, at.0 + bytes);
        assert!(
            start >= self.base.0 && end <= self.base.0 + self.bytes,
            "{at} + {bytes:#x} is not the arena's"
        );
        if let Some((&before, &length)) = self.free.range(..=start).next_back() {
            assert!(before + length <= start, "{at} released twice");
            if before + length == start {
                self.free.remove(&before);
                start = before;
            }
        }
        if let Some((&after, &length)) = self.free.range(at.0..).next() {
            assert!(after >= end, "{at} released twice");
            if after == end {
                self.free.remove(&after);
                end += length;
            }
        }
        self.free.insert(start, end - start);
        self.free_bytes += bytes;
    }

    /// Checks an arena that was read: it is `bytes` from `base` on, and of its ranges some are free and `held` are others'.
    /// No two of all these share a byte.
    pub(crate) fn check(
        &self,
        base: VramAddr,
        bytes: u64,
        held: impl Iterator<Item = (VramAddr, u64)>,
    ) -> Result<(), Unsound> {
        let same = (self.base, self.bytes) == (base, bytes);
        Unsound::unless(same, "the arena lies elsewhere")?;
        let free = self.free.iter().map(|(&start, &length)| (start, length));
        let mut ranges: Vec<(u64, u64)> = free.chain(held.map(|(at, bytes)| (at.0, bytes))).collect();
        ranges.sort_unstable();
        let mut end = base.0;
        for (start, length) in ranges {
            let after = start.checked_add(length).filter(|_| start >= end && length > 0);
            end = after.ok_or_else(|| Unsound::new("two owners of a page of the arena, or none"))?;
            let whole = start.is_multiple_of(SMALL_PAGE) && length.is_multiple_of(SMALL_PAGE);
            Unsound::unless(whole, "a part of a page of the arena")?;
        }
        Unsound::unless(end <= base.0 + bytes, "a range behind the arena")?;
        let mut free = self.free.iter().map(|(&start, &length)| (start, start + length));
        Unsound::unless(
            self.free.values().sum::<u64>() == self.free_bytes,
            "free bytes of the arena",
        )?;
        let mut before = None;
        let apart = free.all(|(start, end)| before.replace(end) != Some(start));
        Unsound::unless(apart, "two free ranges of the arena are one")
    }

    /// The store that writes arena memory.
    pub(crate) fn write(&self, at: VramAddr, data: Vec<u8>, actions: &mut Actions) {
        actions.push(Action::HostWrite {
            bar: Bar::Bar3,
            offset: self.window(at),
            data,
        });
    }

    /// Where BAR3 shows arena memory.
    pub(crate) fn window(&self, at: VramAddr) -> u64 {
        assert!(
            at.0 >= self.base.0 && at.0 < self.base.0 + self.bytes,
            "{at} is not the arena's"
        );
        at.0 - self.base.0
    }
}

impl Inspect for Arena {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.address("base", self.base.0, Space::VramAddress);
        tree.bytes("size", self.bytes);
        tree.bytes("free", self.free_bytes);
        let largest = self.free.values().copied().max().unwrap_or(0);
        tree.bytes("largest_free_range", largest);
        tree.on_request("free_ranges", self.free.len(), |tree| {
            for (&start, &bytes) in &self.free {
                tree.bytes(VramAddr(start), bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_merge_again() {
        let mut arena = Arena::new(VramAddr(0x10_0000), 0x3000);
        let parts: Vec<_> = (0..3).map(|_| arena.allocate(0x1000, 0x1000).unwrap()).collect();
        for i in [1, 0, 2] {
            arena.release(parts[i], 0x1000);
        }
        assert_eq!(arena.allocate(0x3000, 0x1000), Some(VramAddr(0x10_0000)));
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn second_release_panics() {
        let mut arena = Arena::new(VramAddr(0), 0x10000);
        let at = arena.allocate(0x1000, 0x1000).unwrap();
        arena.release(at, 0x1000);
        arena.release(at, 0x1000);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(steps in proptest::collection::vec((any::<bool>(), 1u64..0x8000, 0u32..4), 0..200)) {
            let mut arena = Arena::new(VramAddr(0x2_0000), 0x4_0000);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (allocate, size, align) in steps {
                if allocate {
                    if let Some(at) = arena.allocate(size, 0x1000 << align) {
                        let size = size.next_multiple_of(0x1000);
                        prop_assert!(at.0 % (0x1000 << align) == 0);
                        prop_assert!(live.iter().all(|&(start, len)| at.0 + size <= start || start + len <= at.0));
                        live.push((at.0, size));
                    }
                } else if !live.is_empty() {
                    let (start, len) = live.swap_remove(size as usize % live.len());
                    arena.release(VramAddr(start), len);
                }
                let used: u64 = live.iter().map(|part| part.1).sum();
                prop_assert_eq!(arena.free_bytes(), 0x4_0000 - used);
            }
        }
    }
}
