//! Bus addresses and the memory behind them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use fermi_model::{Backing, SystemBus};
use fermi_spec::addr::Iova;

/// What the card reaches by bus address.
#[derive(Default)]
pub(super) struct Iommu {
    pub(super) maps: Mutex<BTreeMap<u64, Backing>>,
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
