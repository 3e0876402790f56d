//! The description of the card for its client.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fermi_model::CONFIG_BYTES;
use fermi_spec::board::{BAR0_BYTES, BAR1_BYTES, BAR3_BYTES};
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES};
use vfio_user_server::{Area, FunctionInfo, IrqIndex, MappableRegion, Region, RegionInfo};

use super::live::PRAMIN_OFFSET;

/// Pages of 4 GiB. A map is an entry in a table here, less than 200 bytes; a client that has an IOMMU in front maps single pages, and an IOMMU
/// has no bound on those: QEMU goes on when one is refused, and DMA to it reads ones.
const DMA_MAPS_MAX: usize = 1 << 20;

/// Regions and interrupts. With a `window` file the client may map BAR3 and, of BAR0, PRAMIN.
pub(super) fn function(window: Option<Arc<OwnedFd>>) -> FunctionInfo {
    let mut bar0 = RegionInfo::read_write(BAR0_BYTES);
    let mut bar3 = RegionInfo::read_write(BAR3_BYTES);
    if let Some(descriptor) = window {
        let pramin = Area {
            offset: PRAMIN_BASE.into(),
            bytes: PRAMIN_BYTES.into(),
        };
        bar0.mappable = Some(MappableRegion {
            descriptor: descriptor.clone(),
            offset: PRAMIN_OFFSET - pramin.offset,
            areas: vec![pramin],
        });
        bar3.mappable = Some(MappableRegion {
            descriptor,
            offset: 0,
            areas: Vec::new(),
        });
    }
    FunctionInfo::new()
        .with_dma_maps_max(DMA_MAPS_MAX)
        .with_region(Region::Bar0, bar0)
        .with_region(Region::Bar1, RegionInfo::read_write(BAR1_BYTES))
        .with_region(Region::Bar3, bar3)
        .with_region(Region::Config, RegionInfo::read_write(CONFIG_BYTES as u64))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}
