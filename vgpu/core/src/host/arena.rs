//! The broker's own part of VRAM: tables, instance blocks, USERD, runlists.
//!
//! One contiguous range that host BAR3 shows byte for byte, so a table write is a store at `address − base`. Handed out
//! first-fit in 4 KiB units.

use std::collections::BTreeMap;

use fermi_spec::addr::{SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use serde::{Deserialize, Serialize};

use crate::contained::Owner;
use crate::event::{Action, Actions, VmId};
use crate::inspect::{Inspect, Space, Tree};
use crate::reason::Inconsistency;
use crate::saved::Unsound;

/// First-fit allocator of the arena.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Arena {
    base: VramAddr,
    bytes: u64,
    /// Free ranges: start → length, never adjacent.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
    /// The other ranges, as they were given: start → length and owner.
    held: BTreeMap<u64, (u64, Owner)>,
}

impl Arena {
    pub(crate) fn new(base: VramAddr, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            free: BTreeMap::from([(base.0, bytes)]),
            free_bytes: bytes,
            held: BTreeMap::new(),
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
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64, owner: Owner) -> Option<VramAddr> {
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
        self.held.insert(at, (bytes, owner));
        Some(VramAddr(at))
    }

    /// Gives a range back, as allocated.
    ///
    /// # Errors
    /// It was not given to this owner, and stays whose it is.
    pub(crate) fn release(&mut self, at: VramAddr, bytes: u64, owner: Owner) -> Result<(), Inconsistency> {
        let bytes = Self::rounded(bytes);
        if self.held.get(&at.0) != Some(&(bytes, owner)) {
            let part = format!("{bytes:#x} bytes of the arena at {at}");
            return Err(Inconsistency::NotHeld { part });
        }
        self.held.remove(&at.0);
        let (mut start, mut end) = (at.0, at.0 + bytes);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
        self.free_bytes += bytes;
        Ok(())
    }

    /// The ranges of a VM, whatever its accounts say.
    pub(crate) fn held_by(&self, vm: VmId) -> impl Iterator<Item = (VramAddr, u64)> {
        self.held
            .iter()
            .filter(move |(_, (_, owner))| *owner == Some(vm))
            .map(|(&start, &(bytes, _))| (VramAddr(start), bytes))
    }

    /// Whether all of a range is the VM's. It may lie in several that follow each other: one store can write tables that
    /// were given one by one.
    fn holds(&self, vm: VmId, at: VramAddr, bytes: u64) -> bool {
        let (mut at, Some(end)) = (at.0, at.0.checked_add(bytes)) else {
            return false;
        };
        let first = self.held.range(..=at).next_back();
        for (&start, &(length, owner)) in first.into_iter().chain(self.held.range(at.saturating_add(1)..)) {
            if owner != Some(vm) || !(start..start + length).contains(&at) {
                return false;
            }
            at = start + length;
            if at >= end {
                return true;
            }
        }
        false
    }

    /// Checks an arena that was read: it is `bytes` from `base` on, and of its ranges some are free and `held` are their
    /// owners'. No two of all these share a byte. The broker holds more than it names.
    pub(crate) fn check(
        &self,
        base: VramAddr,
        bytes: u64,
        held: impl Iterator<Item = (VramAddr, u64, Owner)>,
    ) -> Result<(), Unsound> {
        let same = (self.base, self.bytes) == (base, bytes);
        Unsound::unless(same, "the arena lies elsewhere")?;
        let free = self.free.iter().map(|(&start, &length)| (start, length));
        let taken = self.held.iter().map(|(&start, &(length, _))| (start, length));
        let mut ranges: Vec<(u64, u64)> = free.chain(taken).collect();
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
        let mut named = 0;
        for (at, bytes, owner) in held {
            let is_known = self.held.get(&at.0) == Some(&(Self::rounded(bytes), owner));
            Unsound::unless(is_known, "a part of the arena is not whose it is said to be")?;
            named += usize::from(owner.is_some());
        }
        let vms = self.held.values().filter(|(_, owner)| owner.is_some()).count();
        Unsound::unless(
            vms == named,
            "a part of the arena is a VM's that does not know of it",
        )?;
        let mut before = None;
        let apart = free.all(|(start, end)| before.replace(end) != Some(start));
        Unsound::unless(apart, "two free ranges of the arena are one")
    }

    /// The store that writes a VM's part of the arena.
    ///
    /// # Errors
    /// It is not the VM's: nothing is written.
    pub(crate) fn write_for(
        &self,
        vm: VmId,
        at: VramAddr,
        data: Vec<u8>,
        actions: &mut Actions,
    ) -> Result<(), Inconsistency> {
        if !self.holds(vm, at, data.len() as u64) {
            let part = format!("{:#x} bytes of the arena at {at}", data.len());
            return Err(Inconsistency::NotHeld { part });
        }
        self.write(at, data, actions);
        Ok(())
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
        let parts: Vec<_> = (0..3)
            .map(|_| arena.allocate(0x1000, 0x1000, None).unwrap())
            .collect();
        for i in [1, 0, 2] {
            assert_eq!(arena.release(parts[i], 0x1000, None), Ok(()));
        }
        assert_eq!(arena.allocate(0x3000, 0x1000, None), Some(VramAddr(0x10_0000)));
    }

    #[test]
    fn store_may_cross_from_one_of_the_vms_ranges_to_its_next() {
        let (vm, other) = (VmId(1), VmId(2));
        let mut arena = Arena::new(VramAddr(0), 0x10000);
        for owner in [vm, vm, vm, other] {
            arena.allocate(0x1000, 0x1000, Some(owner)).unwrap();
        }
        for (at, bytes, is_own) in [
            (0xff8, 0x10, true),
            (0xff8, 0x2008, true),
            (0, 0x3000, true),
            (0, 0x3001, false),
            (0x2ff8, 0x10, false),
            (0x4000, 8, false),
        ] {
            let mut actions = Actions::default();
            let written = arena.write_for(vm, VramAddr(at), vec![0; bytes], &mut actions);
            assert_eq!(written.is_ok(), is_own, "{bytes:#x} bytes at {at:#x}");
        }
    }

    #[test]
    fn range_is_released_and_written_by_its_owner_alone() {
        let (vm, other) = (VmId(1), VmId(2));
        let mut arena = Arena::new(VramAddr(0), 0x10000);
        let at = arena.allocate(0x2000, 0x1000, Some(vm)).unwrap();
        arena.allocate(0x1000, 0x1000, Some(other)).unwrap();
        let wrong = [
            (at, 0x2000, Some(other)),
            (at, 0x2000, None),
            (at, 0x1000, Some(vm)),
            (at.offset(0x1000), 0x1000, Some(vm)),
            (VramAddr(0x8000), 0x1000, Some(vm)),
            (VramAddr(u64::MAX), 0x1000, Some(vm)),
        ];
        for (at, bytes, owner) in wrong {
            assert!(
                arena.release(at, bytes, owner).is_err(),
                "{at} {bytes:#x} {owner:?}"
            );
        }
        let mut actions = Actions::default();
        for (at, is_own) in [
            (0x1ff8, true),
            (0x1ffc, false),
            (0x2000, false),
            (u64::MAX, false),
        ] {
            let written = arena.write_for(vm, VramAddr(at), vec![0; 8], &mut actions);
            assert_eq!(written.is_ok(), is_own, "{at:#x}");
        }
        assert_eq!(actions.as_slice().len(), 1);
        assert_eq!(arena.release(at, 0x2000, Some(vm)), Ok(()));
        assert!(arena.release(at, 0x2000, Some(vm)).is_err());
        assert_eq!(arena.free_bytes(), 0xf000);
    }

    proptest! {
        #[test]
        fn ranges_never_overlap(steps in proptest::collection::vec((any::<bool>(), 1u64..0x8000, 0u32..4), 0..200)) {
            let mut arena = Arena::new(VramAddr(0x2_0000), 0x4_0000);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (allocate, size, align) in steps {
                if allocate {
                    if let Some(at) = arena.allocate(size, 0x1000 << align, None) {
                        let size = size.next_multiple_of(0x1000);
                        prop_assert!(at.0 % (0x1000 << align) == 0);
                        prop_assert!(live.iter().all(|&(start, len)| at.0 + size <= start || start + len <= at.0));
                        live.push((at.0, size));
                    }
                } else if !live.is_empty() {
                    let (start, len) = live.swap_remove(size as usize % live.len());
                    prop_assert!(arena.release(VramAddr(start), len, None).is_ok());
                }
                let used: u64 = live.iter().map(|part| part.1).sum();
                prop_assert_eq!(arena.free_bytes(), 0x4_0000 - used);
            }
        }
    }
}
