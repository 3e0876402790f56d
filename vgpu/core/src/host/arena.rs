//! The broker's own part of VRAM: tables, instance blocks, USERD, runlists.
//!
//! One contiguous range that host BAR3 shows byte for byte, so a table write is a store at `address − base`. Handed out
//! first-fit in 4 KiB units: to the broker from anywhere, to a VM from *slots*, each as large as the largest table. A slot is
//! one VM's as long as that holds a part of it. So small parts of one VM never stand in the way of another's large ones, and
//! slots can be promised and lent by number ([`Lending`]).

use std::collections::BTreeMap;

use fermi_spec::addr::{SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::pte::SMALL_PT_BYTES;
use serde::{Deserialize, Serialize};

use super::lending::Lending;
use crate::contained::Owner;
use crate::event::{Action, Actions, VmId};
use crate::inspect::{Inspect, Space, Tree};
use crate::reason::Inconsistency;
use crate::saved::Unsound;

/// Bytes of a slot: the largest table.
pub(crate) const SLOT_BYTES: u64 = SMALL_PT_BYTES;
/// Of all slots, how many are never lent: two in three are for promises alone.
const NEVER_LENT: (u32, u32) = (2, 3);

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
    /// Slots that are a VM's: start → VM and bytes that it holds there.
    slots: BTreeMap<u64, (VmId, u64)>,
    /// Whose slots they may be.
    pub(crate) lending: Lending,
}

impl Arena {
    pub(crate) fn new(base: VramAddr, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            free: BTreeMap::from([(base.0, bytes)]),
            free_bytes: bytes,
            held: BTreeMap::new(),
            slots: BTreeMap::new(),
            lending: Lending::new(0, 0),
        }
    }

    /// The broker holds all that it ever will: what is left is for VMs.
    pub(crate) fn open_to_vms(&mut self) {
        let total = self.free_slots().count() as u32;
        let (kept, of) = NEVER_LENT;
        self.lending = Lending::new(total, total - total * kept / of);
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

    #[cfg(test)]
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    fn rounded(bytes: u64) -> u64 {
        bytes.next_multiple_of(SMALL_PAGE)
    }

    /// Slots without a part that is held, in order.
    fn free_slots(&self) -> impl Iterator<Item = u64> {
        self.free.iter().flat_map(|(&start, &length)| {
            let first = start.next_multiple_of(SLOT_BYTES);
            let count = (start + length).saturating_sub(first) / SLOT_BYTES;
            (0..count).map(move |i| first + i * SLOT_BYTES)
        })
    }

    /// Where `bytes` fit at a multiple of `align`, within a part of the arena.
    fn fit(&self, part: std::ops::Range<u64>, bytes: u64, align: u64) -> Option<u64> {
        let before = self.free.range(..part.start).next_back();
        let ranges = before.into_iter().chain(self.free.range(part.clone()));
        ranges
            .map(|(&start, &length)| (start.max(part.start), (start + length).min(part.end)))
            .find_map(|(start, end)| {
                let at = start.next_multiple_of(align);
                (at + bytes <= end).then_some(at)
            })
    }

    /// `bytes`, rounded up to pages, at a multiple of `align`. A VM gets no more than a slot at once.
    ///
    /// `None`: there is no room, or the VM holds what it was promised and may borrow no more.
    pub(crate) fn allocate(&mut self, bytes: u64, align: u64, owner: Owner) -> Option<VramAddr> {
        let bytes = Self::rounded(bytes);
        let at = match owner {
            None => self.fit(self.base.0..self.base.0 + self.bytes, bytes, align)?,
            Some(vm) => self.fit_in_slot(vm, bytes, align)?,
        };
        self.hold(at, bytes, owner);
        Some(VramAddr(at))
    }

    /// Room in a slot of the VM's, or at the start of another that becomes its own.
    fn fit_in_slot(&mut self, vm: VmId, bytes: u64, align: u64) -> Option<u64> {
        if bytes > SLOT_BYTES || align > SLOT_BYTES {
            return None;
        }
        let own = self.slots.iter().filter(|(_, (owner, _))| *owner == vm);
        let at = own
            .map(|(&slot, _)| slot)
            .find_map(|slot| self.fit(slot..slot + SLOT_BYTES, bytes, align));
        let at = match at {
            Some(at) => at,
            None => {
                let slot = self.free_slots().next()?;
                self.lending.take(vm).then_some(slot)?
            }
        };
        self.slots
            .entry(at / SLOT_BYTES * SLOT_BYTES)
            .or_insert((vm, 0))
            .1 += bytes;
        Some(at)
    }

    /// Takes a part of a free range.
    fn hold(&mut self, at: u64, bytes: u64, owner: Owner) {
        let (&start, &length) = self.free.range(..=at).next_back().expect("it was found free");
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
        if let Some(vm) = owner {
            self.leave_slot(vm, at.0 / SLOT_BYTES * SLOT_BYTES, bytes);
        }
        Ok(())
    }

    /// The VM holds less of a slot; without any it is nobody's.
    fn leave_slot(&mut self, vm: VmId, slot: u64, bytes: u64) {
        if let Some((_, held)) = self.slots.get_mut(&slot) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                self.slots.remove(&slot);
                self.lending.give_back(vm);
            }
        }
    }

    /// Slots that a VM holds.
    pub(crate) fn slots_held(&self, vm: VmId) -> u32 {
        self.slots.values().filter(|(owner, _)| *owner == vm).count() as u32
    }

    /// Checks what was promised and lent, as read. `promised` says for each VM how many slots.
    pub(crate) fn check_lending(&self, promised: impl Iterator<Item = (VmId, u32)>) -> Result<(), Unsound> {
        let total = self.free_slots().count() + self.slots.len();
        let vms = promised.map(|(vm, promised)| (vm, (self.slots_held(vm), promised)));
        self.lending.check(total as u32, &vms.collect())
    }

    /// Checks slots that were read: each part of a VM lies in one of its own, and they hold no more.
    fn check_slots(&self) -> Result<(), Unsound> {
        let mut slots = BTreeMap::new();
        for (&at, &(bytes, owner)) in &self.held {
            let Some(vm) = owner else { continue };
            let slot = at / SLOT_BYTES * SLOT_BYTES;
            let (of, held) = slots.entry(slot).or_insert((vm, 0));
            *held += bytes;
            let is_whole = *of == vm && at + bytes <= slot + SLOT_BYTES;
            Unsound::unless(is_whole, "a slot of the arena is two VMs', or a part lies in two")?;
        }
        Unsound::unless(self.slots == slots, "slots of the arena")
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
        self.check_slots()?;
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
        tree.bytes("slot", SLOT_BYTES);
        tree.part("slots", &self.lending);
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
        let mut arena = slots(4, &[(vm, 2), (other, 1)]);
        // The VM's last page is the last of its slot, and the next one is the other's.
        for (bytes, owner) in [(0x1000, vm), (0x3e000, vm), (0x1000, vm), (0x1000, other)] {
            arena.allocate(bytes, 0x1000, Some(owner)).unwrap();
        }
        for (at, bytes, is_own) in [
            (0xff8, 0x10, true),
            (0xff8, 0x3f008, true),
            (0, 0x40000, true),
            (0, 0x40001, false),
            (0x3fff8, 0x10, false),
            (0x40000, 8, false),
            (0x41000, 8, false),
        ] {
            let mut actions = Actions::default();
            let written = arena.write_for(vm, VramAddr(at), vec![0; bytes], &mut actions);
            assert_eq!(written.is_ok(), is_own, "{bytes:#x} bytes at {at:#x}");
        }
    }

    #[test]
    fn range_is_released_and_written_by_its_owner_alone() {
        let (vm, other) = (VmId(1), VmId(2));
        let mut arena = slots(2, &[(vm, 1), (other, 1)]);
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
        assert_eq!(arena.free_bytes(), 0x7f000);
    }

    /// An arena of slots that are promised.
    fn slots(count: u64, promises: &[(VmId, u32)]) -> Arena {
        let mut arena = Arena::new(VramAddr(0), count * SLOT_BYTES);
        arena.open_to_vms();
        for &(vm, promise) in promises {
            arena.lending.promise(vm, promise);
        }
        arena
    }

    fn page(arena: &mut Arena, vm: VmId) -> Option<VramAddr> {
        arena.allocate(SMALL_PAGE, SMALL_PAGE, Some(vm))
    }

    /// Pages are taken in turns, and all but one in 64 are given back: of all that is free, no piece would be long enough for a
    /// table if the VMs' pages lay among each other.
    #[test]
    fn scattered_pages_of_one_vm_leave_another_its_large_tables() {
        let (hog, other) = (VmId(1), VmId(2));
        let mut arena = slots(12, &[(hog, 3), (other, 5)]);
        let mut pages = Vec::new();
        while let Some(at) = page(&mut arena, hog) {
            pages.push(at);
            if pages.len() % 64 == 1 {
                assert!(page(&mut arena, other).is_some());
            }
        }
        assert!(pages.len() > 3 * 64, "{}", pages.len());
        for (i, &at) in pages.iter().enumerate().filter(|(i, _)| i % 64 != 0) {
            assert_eq!(arena.release(at, SMALL_PAGE, Some(hog)), Ok(()), "page {i}");
        }
        let tables = (0..4).map(|_| arena.allocate(SLOT_BYTES, SMALL_PAGE, Some(other)));
        assert_eq!(tables.flatten().count(), 4);
    }

    #[test]
    fn slot_is_anybodys_again_when_nothing_of_it_is_held() {
        let (one, other) = (VmId(1), VmId(2));
        let mut arena = slots(2, &[(one, 1), (other, 1)]);
        let parts = [page(&mut arena, one).unwrap(), page(&mut arena, one).unwrap()];
        assert_eq!((arena.slots_held(one), arena.slots_held(other)), (1, 0));
        for at in parts {
            assert_eq!(arena.release(at, SMALL_PAGE, Some(one)), Ok(()));
        }
        assert_eq!(arena.slots_held(one), 0);
        assert_eq!(
            arena.allocate(SLOT_BYTES, SMALL_PAGE, Some(other)),
            Some(VramAddr(0))
        );
        assert!(arena.allocate(SLOT_BYTES, SMALL_PAGE, Some(one)).is_some());
    }

    #[test]
    fn table_larger_than_a_slot_is_nobodys() {
        let vm = VmId(1);
        let mut arena = slots(4, &[(vm, 2)]);
        assert_eq!(arena.allocate(SLOT_BYTES + 1, SMALL_PAGE, Some(vm)), None);
        assert_eq!(arena.slots_held(vm), 0);
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
