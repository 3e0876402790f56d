//! What a client is told of the card.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fermi_model::CONFIG_BYTES;
use fermi_spec::board::{BAR0_BYTES, BAR1_BYTES, BAR3_BYTES};
use vfio_user_server::{FunctionInfo, IrqIndex, MappableRegion, Region, RegionInfo};

/// Regions and interrupts. With a `window` file the client may map BAR3.
pub(super) fn function(window: Option<Arc<OwnedFd>>) -> FunctionInfo {
    let mut bar3 = RegionInfo::read_write(BAR3_BYTES);
    bar3.mappable = window.map(|descriptor| MappableRegion {
        descriptor,
        offset: 0,
        areas: Vec::new(),
    });
    FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(BAR0_BYTES))
        .with_region(Region::Bar1, RegionInfo::read_write(BAR1_BYTES))
        .with_region(Region::Bar3, bar3)
        .with_region(Region::Config, RegionInfo::read_write(CONFIG_BYTES as u64))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}
