//! Guest RAM that the device may reach: GPA ranges and the bus addresses given to them.

use std::collections::BTreeMap;

use fermi_spec::addr::{Gpa, Iova, SMALL_PAGE};

use crate::event::Refusal;

/// Most maps of one VM.
pub(crate) const MAPS_MAX: usize = 65_536;
/// GPAs are bus addresses to the guest's device: 40 bits.
const GPA_END: u64 = 1 << 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RamMap {
    pub(crate) bytes: u64,
    pub(crate) iova: Iova,
    pub(crate) writable: bool,
}

/// A VM's maps, by start.
#[derive(Default, Debug)]
pub(crate) struct RamMaps {
    maps: BTreeMap<u64, RamMap>,
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
            Some((&start, map)) if start + map.bytes > gpa.0 => Err(Refusal::BadRange),
            _ => Ok(()),
        }
    }

    pub(crate) fn insert(&mut self, gpa: Gpa, map: RamMap) {
        self.maps.insert(gpa.0, map);
    }

    /// The maps that cover a range exactly, in order; `None` if they do not.
    pub(crate) fn covering(&self, gpa: Gpa, bytes: u64) -> Option<Vec<(Gpa, RamMap)>> {
        let end = gpa.0.checked_add(bytes)?;
        let found: Vec<_> = self
            .maps
            .range(gpa.0..end)
            .map(|(&at, &map)| (Gpa(at), map))
            .collect();
        let first = found.first()?;
        let last = found.last()?;
        (first.0 == gpa && last.0.0 + last.1.bytes == end).then_some(found)
    }

    pub(crate) fn remove(&mut self, gpa: Gpa) {
        self.maps.remove(&gpa.0);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Gpa, RamMap)> {
        self.maps.iter().map(|(&at, &map)| (Gpa(at), map))
    }

    /// The one door from guest RAM to a bus address.
    pub(crate) fn locate(&self, at: Gpa) -> Option<(Iova, bool)> {
        let (&start, map) = self.maps.range(..=at.0).next_back()?;
        let offset = at.0 - start;
        (offset < map.bytes).then(|| (map.iova.offset(offset), map.writable))
    }
}

/// First-fit allocator of bus addresses, in 2 MiB units, from 8 GiB to 1 TiB.
#[derive(Debug)]
pub(crate) struct IovaSpace {
    used: BTreeMap<u64, u64>,
}

const IOVA_UNIT: u64 = 2 << 20;
const IOVA_FIRST: u64 = 8 << 30;
const IOVA_END: u64 = 1 << 40;

impl IovaSpace {
    pub(crate) fn new() -> Self {
        Self {
            used: BTreeMap::new(),
        }
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Option<Iova> {
        let bytes = bytes.checked_next_multiple_of(IOVA_UNIT)?;
        let mut at = IOVA_FIRST;
        for (&start, &length) in &self.used {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        (at.checked_add(bytes)? <= IOVA_END).then(|| {
            self.used.insert(at, bytes);
            Iova(at)
        })
    }

    pub(crate) fn release(&mut self, at: Iova) {
        assert!(self.used.remove(&at.0).is_some(), "{at} released twice");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: u64, iova: u64) -> RamMap {
        RamMap {
            bytes,
            iova: Iova(iova),
            writable: true,
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

    #[test]
    fn released_bus_addresses_are_used_again() {
        let mut space = IovaSpace::new();
        let first = space.allocate(1).expect("room");
        let second = space.allocate(8 << 20).expect("room");
        assert!(second.0 >= first.0 + IOVA_UNIT);
        space.release(first);
        assert_eq!(space.allocate(0x1000), Some(first));
        assert_eq!(space.allocate(1 << 40), None);
    }
}
