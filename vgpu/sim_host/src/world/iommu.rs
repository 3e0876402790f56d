//! Bus addresses and the memory behind them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use fermi_model::{Backing, SystemBus};
use fermi_spec::addr::Iova;

/// What the card reaches by bus address.
#[derive(Default)]
pub(super) struct Iommu {
    pub(super) maps: Mutex<BTreeMap<u64, Backing>>,
}

impl Iommu {
    /// Whether a map leads to some of this memory.
    pub(super) fn reaches(&self, memory: Range<usize>) -> bool {
        let maps = self.maps.lock().expect("one thread");
        maps.values().any(|backing| {
            let slice = backing.slice();
            let start = slice.ptr_guard().as_ptr() as usize;
            start < memory.end && memory.start < start + slice.len()
        })
    }
}

impl SystemBus for Iommu {
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing> {
        let maps = self.maps.lock().expect("one thread");
        let (&start, backing) = maps.range(..=at.0).next_back()?;
        let offset = (at.0 - start) as usize;
        let left = backing.len().checked_sub(offset).filter(|&left| left > 0)?;
        backing.part(offset, left.min(bytes as usize))
    }
}
