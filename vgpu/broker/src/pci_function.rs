//! The PCI function that a guest sees: its regions and its interrupts. What its configuration space says is the core's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fermi_spec::bar::Bar;
use fermi_spec::board::BAR0_BYTES;
use fermi_spec::regs::{PRAMIN_BASE, PRAMIN_BYTES};
use vfio_user_server::MemoryPart;
use vfio_user_server::function::{Area, FunctionInfo, MappableRegion, Region, RegionInfo};
use vfio_user_server::irq::IrqIndex;
use vgpu::{CONFIG_BYTES, Capabilities};

use crate::error::StartError;
use crate::memory::RAM_MAPS_MAX;

/// Least and most bytes of a BAR.
const BAR_BYTES: std::ops::RangeInclusive<u64> = 16..=1 << 62;

/// Sizes of the BARs that a backend may choose. Bytes, powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BarSizes {
    pub(crate) bar1: u64,
    pub(crate) bar3: u64,
}

impl BarSizes {
    /// Those of a backend, if a guest can be shown them.
    pub(crate) fn of(capabilities: &Capabilities) -> Result<Self, StartError> {
        let sizes = Self {
            bar1: capabilities.bar1_bytes,
            bar3: capabilities.bar3_bytes,
        };
        for bytes in [sizes.bar1, sizes.bar3] {
            if !bytes.is_power_of_two() || !BAR_BYTES.contains(&bytes) {
                let reason = format!("a BAR of {bytes:#x} bytes cannot be shown");
                return Err(StartError::Card { reason });
            }
        }
        Ok(sizes)
    }

    pub(crate) fn bytes(self, bar: Bar) -> u64 {
        match bar {
            Bar::Bar0 => BAR0_BYTES,
            Bar::Bar1 => self.bar1,
            Bar::Bar3 => self.bar3,
        }
    }
}

/// The part of a BAR that lies in a window file, which holds BAR3 and then PRAMIN.
pub(crate) fn window_part(bars: BarSizes, bar: Bar) -> Option<MemoryPart> {
    match bar {
        Bar::Bar0 => Some(MemoryPart {
            offset: PRAMIN_BASE.into(),
            bytes: PRAMIN_BYTES.into(),
            file_offset: bars.bar3,
        }),
        Bar::Bar1 => None,
        Bar::Bar3 => Some(MemoryPart {
            offset: 0,
            bytes: bars.bar3,
            file_offset: 0,
        }),
    }
}

/// Regions and interrupts for a vfio-user client. With a window file it may map BAR3 and PRAMIN.
pub(crate) fn function(bars: BarSizes, windows: Option<&Arc<OwnedFd>>) -> FunctionInfo {
    let region = |bar: Bar| {
        let mut info = RegionInfo::read_write(bars.bytes(bar));
        let mappable = windows
            .zip(window_part(bars, bar))
            .map(|(descriptor, part)| MappableRegion {
                descriptor: descriptor.clone(),
                offset: part.file_offset.wrapping_sub(part.offset),
                areas: match part.bytes == info.bytes {
                    true => Vec::new(),
                    false => vec![Area {
                        offset: part.offset,
                        bytes: part.bytes,
                    }],
                },
            });
        info.mappable = mappable;
        info
    };
    FunctionInfo::new()
        .with_dma_maps_max(RAM_MAPS_MAX)
        .with_region(Region::Bar0, region(Bar::Bar0))
        .with_region(Region::Bar1, region(Bar::Bar1))
        .with_region(Region::Bar3, region(Bar::Bar3))
        .with_region(Region::Config, RegionInfo::read_write(CONFIG_BYTES as u64))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}
