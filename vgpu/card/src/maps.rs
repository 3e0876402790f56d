//! The memory that the card reaches by DMA: bus addresses to host memory, as an IOMMU would have it.
//!
//! The model does not say whether it is going to read or to write, so a range that it may not write must not be
//! readable either: it stays unreachable, as behind an IOMMU that faults. Guests map such ranges only for ROMs.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};

use fermi_model::{Backing, SystemBus};
use fermi_spec::addr::Iova;
use vgpu::{DmaMemory, HostGpuError};

#[derive(Debug)]
struct Map {
    memory: DmaMemory,
    is_reachable: bool,
}

/// Stores to nowhere that are kept until they are [taken](DmaMaps::take_strays). A card that has gone wrong makes millions.
const STRAYS_MAX: usize = 32;

/// A store that the card made where nothing is mapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stray {
    pub(crate) at: Iova,
    pub(crate) data: Vec<u8>,
}

/// The table. Ranges do not overlap.
#[derive(Debug, Default)]
pub(crate) struct DmaMaps {
    maps: RwLock<BTreeMap<u64, Map>>,
    /// `None` if stores to nowhere are not wanted.
    strays: Option<Mutex<Vec<Stray>>>,
}

impl DmaMaps {
    /// An empty table that keeps the first stores to nowhere until they are taken.
    pub(crate) fn with_strays() -> Self {
        Self {
            strays: Some(Mutex::default()),
            ..Self::default()
        }
    }

    /// Stores to nowhere since the last time, the first of them.
    pub(crate) fn take_strays(&self) -> Vec<Stray> {
        let strays = self.strays.as_ref().map(Mutex::lock);
        strays.map_or(Vec::new(), |strays| {
            std::mem::take(&mut *strays.unwrap_or_else(PoisonError::into_inner))
        })
    }

    pub(crate) fn insert(&self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError> {
        let bytes = memory.bytes;
        let failed = |reason: &str| HostGpuError::Map {
            iova,
            bytes,
            reason: reason.to_owned(),
        };
        let end = iova.0.checked_add(bytes).filter(|_| bytes != 0);
        let end = end.ok_or_else(|| failed("the range is empty or wraps around"))?;
        let memory_end = memory.offset.checked_add(bytes);
        if memory_end.is_none_or(|end| end > memory.region.size() as u64) {
            return Err(failed("the memory is shorter than the range"));
        }
        // One insertion or removal is all that happens under this lock: a panic leaves nothing half done.
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let before = maps.range(..end).next_back();
        if before.is_some_and(|(start, map)| start.saturating_add(map.memory.bytes) > iova.0) {
            return Err(failed("the range overlaps another"));
        }
        let is_reachable = writable && memory.region.prot() & libc::PROT_WRITE != 0;
        maps.insert(iova.0, Map { memory, is_reachable });
        Ok(())
    }

    /// Takes every map away.
    pub(crate) fn clear(&self) {
        self.maps.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn remove(&self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        if maps.get(&iova.0).is_none_or(|map| map.memory.bytes != bytes) {
            return Err(HostGpuError::Map {
                iova,
                bytes,
                reason: "nothing is mapped there in this length".to_owned(),
            });
        }
        maps.remove(&iova.0);
        Ok(())
    }
}

impl SystemBus for DmaMaps {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let maps = self.maps.read().unwrap_or_else(PoisonError::into_inner);
        let (start, map) = maps.range(..=at.0).next_back()?;
        let offset = at.0 - start;
        let left = map.memory.bytes.checked_sub(offset)?;
        if !map.is_reachable {
            return None;
        }
        let from = (map.memory.offset + offset) as usize;
        Backing::new(map.memory.region.clone(), from, left.min(bytes) as usize)
    }

    fn store_nowhere(&self, at: Iova, data: &[u8]) {
        let Some(strays) = &self.strays else { return };
        let mut strays = strays.lock().unwrap_or_else(PoisonError::into_inner);
        if strays.len() < STRAYS_MAX {
            let data = data.to_vec();
            strays.push(Stray { at, data });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::MmapRegion;

    use super::*;

    fn memory(bytes: u64) -> DmaMemory {
        DmaMemory {
            region: Arc::new(MmapRegion::new(bytes as usize).unwrap()),
            offset: 0,
            bytes,
        }
    }

    #[test]
    fn address_in_a_map_gives_at_most_its_rest() {
        let maps = DmaMaps::default();
        maps.insert(Iova(0x10000), memory(0x3000), true).unwrap();
        let length = |at, bytes| maps.resolve(Iova(at), bytes).map(|backing| backing.len());
        assert_eq!(length(0x12000, 0x4000), Some(0x1000));
        assert_eq!(length(0x10000, 4), Some(4));
        assert_eq!((length(0x13000, 4), length(0xffff, 4)), (None, None));
    }

    #[test]
    fn removed_map_is_gone() {
        let maps = DmaMaps::default();
        maps.insert(Iova(0x10000), memory(0x1000), true).unwrap();
        maps.remove(Iova(0x10000), 0x1000).unwrap();
        assert!(maps.resolve(Iova(0x10000), 4).is_none());
        assert!(maps.remove(Iova(0x10000), 0x1000).is_err());
    }

    #[test]
    fn overlapping_map_is_refused() {
        let maps = DmaMaps::default();
        maps.insert(Iova(0x10000), memory(0x2000), true).unwrap();
        assert!(maps.insert(Iova(0x11000), memory(0x1000), true).is_err());
        assert!(maps.insert(Iova(0xf000), memory(0x2000), true).is_err());
        assert!(maps.insert(Iova(0x12000), memory(0x1000), true).is_ok());
    }

    #[test]
    fn first_stores_to_nowhere_are_kept_for_whoever_wants_them() {
        let maps = DmaMaps::with_strays();
        (0..100).for_each(|at| maps.store_nowhere(Iova(at), &[at as u8]));
        let strays = maps.take_strays();
        assert_eq!(strays.len(), STRAYS_MAX);
        let second = Stray {
            at: Iova(1),
            data: vec![1],
        };
        assert_eq!(strays[1], second);
        assert!(maps.take_strays().is_empty());
        let unheard = DmaMaps::default();
        unheard.store_nowhere(Iova(0), &[1]);
        assert!(unheard.take_strays().is_empty());
    }

    #[test]
    fn map_that_may_not_be_written_is_not_reached() {
        let maps = DmaMaps::default();
        maps.insert(Iova(0x10000), memory(0x1000), false).unwrap();
        assert!(maps.resolve(Iova(0x10000), 4).is_none());
    }
}
