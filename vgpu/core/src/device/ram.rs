//! Guest RAM that the device may reach: GPA ranges and the bus addresses given to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fermi_spec::addr::{Gpa, Iova, SMALL_PAGE};
use planted::Fault;
use serde::{Deserialize, Serialize};

use crate::config::{BUS_ADDRESSES, BUS_UNIT, Bus, BusRange, VmConfig};
use crate::contained::Owner;
use crate::event::{Refusal, VmId};
use crate::inspect::{Inspect, Space, Tree};
use crate::reason::{Inconsistency, UsableBus};
use crate::saved::Unsound;

/// Most maps of one VM.
pub(crate) const MAPS_MAX: usize = 65_536;
/// Maps that a VM may have whatever the others have: more than a VMM without an IOMMU needs.
const MAPS_OF_EVERY_VM: usize = 512;
/// GPAs are bus addresses to the guest's device: 40 bits.
pub(crate) const GPA_END: u64 = 1 << 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RamMap {
    pub(crate) bytes: u64,
    pub(crate) iova: Iova,
    pub(crate) writable: bool,
    /// The range that was asked for begins with it; the others of that follow it without a gap.
    pub(crate) is_first: bool,
}

/// A VM's maps, by start.
#[derive(Default, Debug, Serialize, Deserialize)]
pub(crate) struct RamMaps {
    maps: BTreeMap<u64, RamMap>,
    /// Bytes of all of them. A VMM with an IOMMU maps page by page.
    bytes: u64,
    /// A range that comes or goes, and that no entry leads to meanwhile: start and bytes.
    hidden: Option<(u64, u64)>,
}

impl RamMaps {
    /// Whether a map could be added.
    pub(crate) fn check(&self, gpa: Gpa, bytes: u64) -> Result<(), Refusal> {
        let end = gpa
            .0
            .checked_add(bytes)
            .filter(|&end| end <= GPA_END)
            .ok_or(Refusal::BadRange)?;
        if bytes == 0 || !gpa.is_aligned(SMALL_PAGE) || !bytes.is_multiple_of(SMALL_PAGE) {
            return Err(Refusal::BadRange);
        }
        if self.maps.len() >= MAPS_MAX {
            return Err(Refusal::TooManyMaps);
        }
        match self.maps.range(..end).next_back() {
            Some((&start, map)) if start + map.bytes > gpa.0 && !planted::is(Fault::OverlapMapped) => {
                Err(Refusal::BadRange)
            }
            _ => Ok(()),
        }
    }

    /// Checks maps that were read: none is empty, misaligned or overlaps another.
    pub(crate) fn sound(&self) -> Result<(), Unsound> {
        Unsound::unless(self.maps.len() <= MAPS_MAX, "more maps of RAM than there may be")?;
        let mut end = 0;
        for (&start, map) in &self.maps {
            let after = start.checked_add(map.bytes).filter(|after| {
                start >= end
                    && (map.is_first || start == end)
                    && *after <= GPA_END
                    && map.bytes > 0
                    && start.is_multiple_of(SMALL_PAGE)
            });
            end = after.ok_or_else(|| Unsound::new("a map of RAM overlaps another, or lies nowhere"))?;
        }
        let bytes = self.maps.values().map(|map| map.bytes).sum::<u64>();
        Unsound::unless(bytes == self.bytes, "the sum of its maps of RAM is another one")
    }

    pub(crate) fn insert(&mut self, gpa: Gpa, map: RamMap) {
        self.bytes += map.bytes;
        if let Some(before) = self.maps.insert(gpa.0, map) {
            self.bytes -= before.bytes;
        }
    }

    /// The maps of the ranges that cover a range exactly, in order; `None` if it cuts one, or covers more.
    pub(crate) fn covering(&self, gpa: Gpa, bytes: u64) -> Option<Vec<(Gpa, RamMap)>> {
        let end = gpa.0.checked_add(bytes)?;
        let found: Vec<_> = self
            .maps
            .range(gpa.0..end)
            .map(|(&at, &map)| (Gpa(at), map))
            .collect();
        let first = found.first()?;
        let last = found.last()?;
        let is_whole = last.0.0 + last.1.bytes == end || planted::is(Fault::PartUnmapped);
        let is_cut = self.maps.get(&end).is_some_and(|next| !next.is_first);
        (first.0 == gpa && first.1.is_first && is_whole && !is_cut).then_some(found)
    }

    /// The first map that begins in a range.
    pub(crate) fn first_within(&self, gpa: Gpa, bytes: u64) -> Option<(Gpa, RamMap)> {
        let mut maps = self.maps.range(gpa.0..gpa.0.saturating_add(bytes));
        maps.next().map(|(&at, &map)| (Gpa(at), map))
    }

    /// No entry leads to this range from now on; `None`: each range that is mapped may be named.
    pub(crate) fn hide(&mut self, range: Option<(Gpa, u64)>) {
        self.hidden = range.map(|(gpa, bytes)| (gpa.0, bytes));
    }

    /// The range that no entry leads to.
    pub(crate) fn hidden(&self) -> Option<(Gpa, u64)> {
        self.hidden.map(|(start, bytes)| (Gpa(start), bytes))
    }

    /// Whether the address lies in it.
    pub(crate) fn is_hidden(&self, at: Gpa) -> bool {
        self.hidden
            .is_some_and(|(start, bytes)| at.0 >= start && at.0 - start < bytes)
    }

    pub(crate) fn remove(&mut self, gpa: Gpa) {
        let Some(gone) = self.maps.remove(&gpa.0) else {
            return;
        };
        self.bytes -= gone.bytes;
        if let Some(next) = self.maps.get_mut(&(gpa.0 + gone.bytes)) {
            // What is left of the range begins with it.
            next.is_first = true;
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Gpa, RamMap)> {
        self.maps.iter().map(|(&at, &map)| (Gpa(at), map))
    }

    pub(crate) fn count(&self) -> usize {
        self.maps.len()
    }

    /// Bytes of all maps.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The one door from guest RAM to a bus address.
    pub(crate) fn locate(&self, at: Gpa) -> Option<(Iova, bool)> {
        let (&start, map) = self.maps.range(..=at.0).next_back()?;
        let offset = at.0 - start;
        (offset < map.bytes).then(|| (map.iova.offset(offset), map.writable))
    }
}

/// First-fit allocator of bus addresses within the usable ranges of the path to host memory. What is smaller than a unit of 2 MiB takes whole
/// pages, anything else whole units: an IOMMU maps those by one entry each.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct IovaSpace {
    /// Whole units, ascending, never touching.
    ranges: Vec<BusRange>,
    /// The allocated ranges: start, length and owner.
    used: BTreeMap<u64, (u64, Owner)>,
    /// No usable address below this one is free: a search begins here.
    full_below: u64,
    /// Maps that are there or promised, and their bound.
    maps: u32,
    /// Of these, each VM's.
    maps_of: BTreeMap<VmId, u32>,
    maps_max: u32,
}

impl IovaSpace {
    pub(crate) fn new(bus: &Bus) -> Self {
        let mut sorted: Vec<_> = bus.ranges.iter().filter_map(BusRange::given_away).collect();
        sorted.sort_unstable();
        let mut ranges: Vec<BusRange> = Vec::new();
        for range in sorted {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Self {
            ranges,
            used: BTreeMap::new(),
            full_below: 0,
            maps: 0,
            maps_of: BTreeMap::new(),
            maps_max: bus.maps_max,
        }
    }

    /// The addresses that are one VM's: what it does with them changes nobody else's, and no map is counted here.
    pub(crate) fn of_vm(start: Iova, config: &VmConfig) -> Self {
        let end = start.offset(config.bus_bytes());
        Self {
            ranges: vec![BusRange { start, end }],
            used: BTreeMap::new(),
            full_below: 0,
            maps: 0,
            maps_of: BTreeMap::new(),
            maps_max: 0,
        }
    }

    /// Takes the last `bytes`, of which there are more.
    pub(crate) fn take_last(&mut self, bytes: u64, owner: Owner) -> Iova {
        let (start, length) = self.span();
        let bytes = bytes.next_multiple_of(BUS_UNIT);
        let at = start.offset(length.saturating_sub(bytes));
        self.used.insert(at.0, (bytes, owner));
        at
    }

    /// First address, and the number of them.
    pub(crate) fn span(&self) -> (Iova, u64) {
        let ends = (self.ranges.first(), self.ranges.last());
        ends.0.zip(ends.1).map_or((Iova(0), 0), |(first, last)| {
            (first.start, last.end.0.saturating_sub(first.start.0))
        })
    }

    /// Addresses for `bytes` in one piece, and how many pieces were looked at.
    pub(crate) fn allocate(&mut self, bytes: u64, owner: Owner) -> (Option<Iova>, u64) {
        let unit = if bytes < BUS_UNIT { SMALL_PAGE } else { BUS_UNIT };
        let mut search = Search {
            bytes: bytes.max(1).saturating_add(unit - 1) / unit * unit,
            unit,
            first_gap: None,
            looked_at: 0,
        };
        let from = self.full_below;
        let found = self.ranges.iter().find_map(|range| {
            let start = range.start.0.max(from);
            (start < range.end.0).then(|| search.within(start..range.end.0, &self.used))?
        });
        self.full_below = search.first_gap.unwrap_or(from);
        if let Some(at) = found {
            self.used.insert(at, (search.bytes, owner));
            if at == self.full_below {
                self.full_below = at + search.bytes;
            }
        }
        (found.map(Iova), search.looked_at)
    }

    /// Gives addresses back.
    ///
    /// # Errors
    /// They were not given to this VM, and stay whose they are.
    pub(crate) fn release(&mut self, at: Iova, owner: VmId) -> Result<(), Inconsistency> {
        let is_held = |held: &(u64, Owner)| held.1 == Some(owner);
        if !self.used.get(&at.0).is_some_and(is_held) {
            return Err(Inconsistency::on_bus(at));
        }
        self.used.remove(&at.0);
        self.full_below = self.full_below.min(at.0);
        Ok(())
    }

    /// Addresses and maps that are a VM's are nobody's any more, and never given to anybody.
    pub(crate) fn withhold(&mut self, vm: VmId) {
        self.maps_of.remove(&vm);
        for (_, owner) in self.used.values_mut().filter(|(_, owner)| *owner == Some(vm)) {
            *owner = None;
        }
    }

    /// The addresses of a VM whose own space is `own`: none, if it was not given what that says.
    pub(crate) fn held_as(&self, own: &Self, owner: VmId) -> Range<u64> {
        let (start, length) = own.span();
        match self.used.get(&start.0) {
            Some(&given) if given == (length, Some(owner)) => start.0..start.0 + length,
            _ => 0..0,
        }
    }

    /// Checks that addresses lie in those of a VM whose own space is `own`.
    pub(crate) fn check_held(
        &self,
        own: &Self,
        owner: VmId,
        at: Iova,
        bytes: u64,
    ) -> Result<(), Inconsistency> {
        let held = self.held_as(own, owner);
        match held.contains(&at.0) && bytes <= held.end - at.0 {
            true => Ok(()),
            false => Err(Inconsistency::on_bus(at)),
        }
    }

    /// Whether none of its addresses is given away.
    pub(crate) fn is_unused(&self) -> bool {
        self.used.is_empty()
    }

    /// Promises maps; `false` if the bound does not allow that many.
    pub(crate) fn reserve_maps(&mut self, count: u32, owner: Owner) -> bool {
        let after = self
            .maps
            .checked_add(count)
            .filter(|after| *after <= self.maps_max);
        let Some(after) = after else { return false };
        self.maps = after;
        if let Some(vm) = owner {
            *self.maps_of.entry(vm).or_default() += count;
        }
        true
    }

    /// The same for one of a VM's maps of RAM, of which it has `held`. Those beyond what every VM may have take half of all there are, so that no VM
    /// takes the others' with a guest that maps page by page.
    pub(crate) fn reserve_ram_map(&mut self, held: usize, vm: VmId) -> bool {
        (held < MAPS_OF_EVERY_VM || self.maps_left() > self.maps_max / 2) && self.reserve_maps(1, Some(vm))
    }

    /// A map of a VM is gone.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn release_map(&mut self, vm: VmId) -> Result<(), Inconsistency> {
        let none = || {
            let part = "a map for DMA".to_owned();
            Inconsistency::NotHeld { part }
        };
        let held = self.maps_of.get_mut(&vm).filter(|held| **held > 0);
        *held.ok_or_else(none)? -= 1;
        self.maps -= 1;
        Ok(())
    }

    /// Maps of a VM that are there or promised.
    pub(crate) fn map_count(&self, vm: VmId) -> u32 {
        self.maps_of.get(&vm).copied().unwrap_or_default()
    }

    /// All maps of a VM are gone.
    pub(crate) fn release_maps(&mut self, vm: VmId) {
        self.maps -= self.maps_of.remove(&vm).unwrap_or_default();
    }

    /// Maps that could still be promised.
    pub(crate) fn maps_left(&self) -> u32 {
        self.maps_max - self.maps
    }

    /// Checks addresses that were read. `held` are the ranges that somebody has been given.
    pub(crate) fn check(
        &self,
        bus: &Bus,
        held: impl Iterator<Item = (Iova, u64, VmId)>,
    ) -> Result<(), Unsound> {
        self.check_as(&Self::new(bus), held)
    }

    /// The same for the addresses of one VM.
    pub(crate) fn check_of_vm(
        &self,
        config: &VmConfig,
        held: impl Iterator<Item = (Iova, u64, VmId)>,
    ) -> Result<(), Unsound> {
        let (start, _) = self.span();
        Unsound::unless(start.0 < BUS_ADDRESSES.end, "bus addresses of a VM lie nowhere")?;
        self.check_as(&Self::of_vm(start, config), held)
    }

    fn check_as(&self, fresh: &Self, held: impl Iterator<Item = (Iova, u64, VmId)>) -> Result<(), Unsound> {
        Unsound::unless(
            self.ranges == fresh.ranges && self.maps_max == fresh.maps_max,
            "the bus is another one",
        )?;
        let mut end = 0;
        for (&start, &(bytes, _)) in &self.used {
            let after = start.checked_add(bytes).filter(|_| start >= end && bytes > 0);
            end = after.ok_or_else(|| Unsound::new("two owners of a bus address"))?;
        }
        let is_full = self
            .ranges
            .iter()
            .all(|range| self.is_full(range.start.0..self.full_below.min(range.end.0)));
        Unsound::unless(is_full, "a bus address is free that counts as used")?;
        Unsound::unless(self.maps <= self.maps_max, "more DMA maps than there may be")?;
        let of_vms: u64 = self.maps_of.values().map(|&maps| u64::from(maps)).sum();
        Unsound::unless(of_vms <= u64::from(self.maps), "more DMA maps of VMs than of all")?;
        let mut seen = BTreeSet::new();
        for (at, bytes, vm) in held {
            let given = self.used.get(&at.0);
            let given = given.is_some_and(|&(given, owner)| given >= bytes && owner == Some(vm));
            Unsound::unless(given && seen.insert(at), "a bus address that nobody was given")?;
        }
        Ok(())
    }

    /// Whether no address of a range is free. One that ends before it begins has none.
    fn is_full(&self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let mut at = range.start;
        for (&start, &(bytes, _)) in self.used.range(range.clone()) {
            if start != at {
                return false;
            }
            at = start + bytes;
        }
        at >= range.end
    }

    /// Text of the usable ranges, for messages.
    pub(crate) fn usable(&self) -> UsableBus {
        UsableBus(self.ranges.clone())
    }
}

/// A search for free addresses.
struct Search {
    /// Whole units that are wanted.
    bytes: u64,
    unit: u64,
    /// The first free address that was met.
    first_gap: Option<u64>,
    /// Pieces in use that were looked at.
    looked_at: u64,
}

impl Search {
    /// The first place in a range that has room. No piece reaches into the range from before it.
    fn within(&mut self, range: Range<u64>, used: &BTreeMap<u64, (u64, Owner)>) -> Option<u64> {
        let mut at = range.start;
        for (&start, &(length, _)) in used.range(range.clone()) {
            if let Some(found) = self.between(at, start) {
                return Some(found);
            }
            self.looked_at += 1;
            at = start + length;
        }
        self.between(at, range.end)
    }

    fn between(&mut self, start: u64, end: u64) -> Option<u64> {
        if start < end {
            self.first_gap.get_or_insert(start);
        }
        let at = start.checked_next_multiple_of(self.unit)?;
        (at.checked_add(self.bytes)? <= end).then_some(at)
    }
}

impl Inspect for RamMaps {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.bytes("size", self.bytes());
        tree.on_request("maps", self.count(), |tree| {
            for (at, map) in self.all() {
                tree.group(at, |tree| {
                    tree.bytes("size", map.bytes);
                    tree.address("at", map.iova.0, Space::BusAddress);
                    tree.flag("is_writable", map.writable);
                });
            }
        });
    }
}

impl Inspect for IovaSpace {
    fn inspect(&self, tree: &mut Tree<'_>) {
        let usable = self.ranges.iter().map(|range| range.end.0 - range.start.0);
        tree.bytes("usable", usable.sum());
        tree.bytes("used", self.used.values().map(|(bytes, _)| bytes).sum());
        tree.count("maps_promised", self.maps as usize);
        match self.maps_max {
            u32::MAX => tree.name("maps_left", "no bound"),
            _ => tree.count("maps_left", self.maps_left() as usize),
        }
        tree.on_request("ranges", self.used.len(), |tree| {
            for (&start, &(bytes, _)) in &self.used {
                tree.bytes(Iova(start), bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VM: Owner = Some(VmId(3));

    fn map(bytes: u64, iova: u64) -> RamMap {
        RamMap {
            bytes,
            iova: Iova(iova),
            writable: true,
            is_first: true,
        }
    }

    #[test]
    fn overlap_is_refused() {
        let mut maps = RamMaps::default();
        maps.insert(Gpa(0x1000), map(0x2000, 0));
        assert_eq!(maps.check(Gpa(0x2000), 0x1000), Err(Refusal::BadRange));
        assert_eq!(maps.check(Gpa(0), 0x1000), Ok(()));
        assert_eq!(maps.check(Gpa(0), 0x1001), Err(Refusal::BadRange));
        assert_eq!(maps.check(Gpa(u64::MAX - 0xfff), 0x1000), Err(Refusal::BadRange));
    }

    #[test]
    fn address_past_a_map_is_nowhere() {
        let mut maps = RamMaps::default();
        maps.insert(Gpa(0x1000), map(0x2000, 0x10_0000));
        assert_eq!(maps.locate(Gpa(0x2fff)), Some((Iova(0x10_1fff), true)));
        assert_eq!(maps.locate(Gpa(0x3000)), None);
        assert_eq!(maps.locate(Gpa(0)), None);
    }

    #[test]
    fn part_of_a_map_is_not_covered() {
        let mut maps = RamMaps::default();
        maps.insert(Gpa(0x1000), map(0x2000, 0));
        assert!(maps.covering(Gpa(0x1000), 0x1000).is_none());
        assert_eq!(
            maps.covering(Gpa(0x1000), 0x2000).map(|found| found.len()),
            Some(1)
        );
    }

    fn bus(ranges: &[std::ops::Range<u64>]) -> Bus {
        let range = |range: &std::ops::Range<u64>| BusRange {
            start: Iova(range.start),
            end: Iova(range.end),
        };
        Bus {
            ranges: ranges.iter().map(range).collect(),
            ..Bus::default()
        }
    }

    const GIB: u64 = 1 << 30;

    fn take(space: &mut IovaSpace, bytes: u64) -> Option<Iova> {
        space.allocate(bytes, VM).0
    }
    /// Interrupts are sent there on x86.
    const INTERRUPTS: std::ops::Range<u64> = 0xfee0_0000..0xfef0_0000;

    #[test]
    fn released_bus_addresses_are_used_again() {
        let mut space = IovaSpace::new(&Bus::default());
        let first = take(&mut space, 1).expect("room");
        let second = take(&mut space, 8 << 20).expect("room");
        assert!(second.0 >= first.0 + BUS_UNIT);
        let wrong = [(first, VmId(4)), (Iova(first.0 + BUS_UNIT / 2), VmId(3))];
        assert!(wrong.iter().all(|&(at, vm)| space.release(at, vm).is_err()));
        assert_eq!(space.release(first, VmId(3)), Ok(()));
        assert!(space.release(first, VmId(3)).is_err());
        assert_eq!(take(&mut space, 0x1000), Some(first));
        assert_eq!(take(&mut space, 1 << 40), None);
    }

    #[test]
    fn addresses_of_interrupts_are_never_given_away() {
        let mut space = IovaSpace::new(&bus(&[0..INTERRUPTS.start, INTERRUPTS.end..1 << 48]));
        let all = take(&mut space, 1020 * GIB).expect("everything above 4 GiB");
        assert_eq!(all, Iova(4 * GIB));
        assert_eq!(take(&mut space, 1), None);
    }

    #[test]
    fn iommu_of_39_bits_is_filled_to_its_end_and_not_beyond() {
        let mut space = IovaSpace::new(&bus(&[0..INTERRUPTS.start, INTERRUPTS.end..1 << 39]));
        assert_eq!(take(&mut space, 509 * GIB), None);
        assert_eq!(take(&mut space, 508 * GIB), Some(Iova(4 * GIB)));
        assert_eq!(take(&mut space, 1), None);
    }

    #[test]
    fn hole_is_stepped_over_and_small_things_fill_the_room_before_it() {
        let hole = 6 * GIB + 0x1000..7 * GIB - 0x1000;
        let mut space = IovaSpace::new(&bus(&[4 * GIB..hole.start, hole.end..16 * GIB]));
        assert_eq!(take(&mut space, 3 * GIB), Some(Iova(7 * GIB)));
        assert_eq!(take(&mut space, 2 * GIB), Some(Iova(4 * GIB)));
        assert_eq!(take(&mut space, BUS_UNIT), Some(Iova(10 * GIB)));
    }

    #[test]
    fn without_room_it_is_said_what_there_is() {
        let mut space = IovaSpace::new(&bus(&[
            0..4 * GIB,
            2 * GIB..4 * GIB + BUS_UNIT - 1,
            1 << 40..1 << 41,
        ]));
        assert_eq!(take(&mut space, 1), None);
        assert_eq!(space.usable().to_string(), "none between 4 GiB and 1 TiB");
        let space = IovaSpace::new(&bus(&[8 * GIB..16 * GIB, 0..8 * GIB]));
        assert_eq!(space.usable().to_string(), "0x100000000 to 0x3ffffffff");
    }

    #[test]
    fn maps_are_promised_up_to_the_bound() {
        let mut space = IovaSpace::new(&Bus {
            maps_max: 3,
            ..Bus::default()
        });
        assert!(space.reserve_maps(2, VM) && !space.reserve_maps(2, None) && space.reserve_maps(1, None));
        assert_eq!(space.maps_left(), 0);
        assert!(space.release_map(VmId(4)).is_err());
        assert_eq!(space.release_map(VmId(3)), Ok(()));
        assert_eq!((space.maps_left(), space.map_count(VmId(3))), (1, 1));
        space.release_maps(VmId(3));
        assert!(space.release_map(VmId(3)).is_err() && !space.reserve_maps(u32::MAX, VM));
        assert_eq!((space.maps_left(), space.map_count(VmId(3))), (2, 0));
        assert!(space.reserve_maps(1, VM));
        space.withhold(VmId(3));
        assert_eq!((space.maps_left(), space.map_count(VmId(3))), (1, 0));
    }

    /// What first fit over pages gives: `pages[i]` says whether page i of the range is in use.
    fn first_fit(pages: &[bool], bytes: u64) -> Option<usize> {
        let unit = if bytes < BUS_UNIT { SMALL_PAGE } else { BUS_UNIT };
        let (step, count) = (
            (unit / SMALL_PAGE) as usize,
            (bytes.next_multiple_of(unit) / SMALL_PAGE) as usize,
        );
        let mut places = (0..pages.len()).step_by(step);
        places.find(|&at| {
            pages
                .get(at..at + count)
                .is_some_and(|part| part.iter().all(|used| !used))
        })
    }

    proptest! {
        #[test]
        fn addresses_are_those_of_first_fit(
            steps in prop::collection::vec((any::<bool>(), 0usize..40, 0usize..4), 1..200),
        ) {
            let start = 4 * GIB;
            let units = start..start + 5 * BUS_UNIT;
            let mut space = IovaSpace::new(&bus(std::slice::from_ref(&units)));
            prop_assert!(space.check(&bus(std::slice::from_ref(&units)), std::iter::empty()).is_ok());
            let mut pages = vec![false; (5 * BUS_UNIT / SMALL_PAGE) as usize];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (takes, which, size) in steps {
                if takes || held.is_empty() {
                    let bytes = [1, 3 * SMALL_PAGE, BUS_UNIT / 2, BUS_UNIT][size] + which as u64 % 3 * SMALL_PAGE;
                    let wanted = first_fit(&pages, bytes);
                    let at = take(&mut space, bytes);
                    prop_assert_eq!(at, wanted.map(|page| Iova(start + page as u64 * SMALL_PAGE)));
                    if let Some(page) = wanted {
                        let unit = if bytes < BUS_UNIT { SMALL_PAGE } else { BUS_UNIT };
                        let count = (bytes.next_multiple_of(unit) / SMALL_PAGE) as usize;
                        pages[page..page + count].fill(true);
                        held.push((page, count));
                    }
                } else {
                    let (page, count) = held.swap_remove(which % held.len());
                    pages[page..page + count].fill(false);
                    prop_assert_eq!(space.release(Iova(start + page as u64 * SMALL_PAGE), VmId(3)), Ok(()));
                }
                let all = held.iter().map(|(page, count)| {
                    (Iova(start + *page as u64 * SMALL_PAGE), *count as u64 * SMALL_PAGE, VmId(3))
                });
                prop_assert!(space.check(&bus(std::slice::from_ref(&units)), all).is_ok());
            }
        }
    }

    #[test]
    fn maps_page_by_page_take_half_of_all_at_most() {
        let mut space = IovaSpace::new(&Bus {
            maps_max: 4 * MAPS_OF_EVERY_VM as u32,
            ..Bus::default()
        });
        let mut take = |vm| {
            (0..)
                .take_while(|&held| space.reserve_ram_map(held, VmId(vm)))
                .count()
        };
        assert_eq!(take(1), 2 * MAPS_OF_EVERY_VM);
        assert_eq!([2, 3, 4].map(take), [MAPS_OF_EVERY_VM, MAPS_OF_EVERY_VM, 0]);
    }

    #[test]
    fn pages_one_by_one_cost_a_look_each() {
        let mut space = IovaSpace::new(&Bus::default());
        let looks: u64 = (0..10_000).map(|_| space.allocate(SMALL_PAGE, VM).1).sum();
        assert_eq!(looks, 0);
        // A hole at the start is found at once, and what is used behind it is passed once.
        assert_eq!(space.release(Iova(4 * GIB), VmId(3)), Ok(()));
        let looks: Vec<u64> = (0..3).map(|_| space.allocate(SMALL_PAGE, VM).1).collect();
        assert_eq!(looks, [0, 9_999, 0]);
    }
}
