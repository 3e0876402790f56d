//! The PCI function that a guest sees: its regions and its interrupts. What its configuration space says is the core's.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fermi_spec::bar::Bar;
use fermi_spec::board::BAR0_BYTES;
use vfio_user_server::function::{Area, FunctionInfo, MappableRegion, Region, RegionInfo};
use vfio_user_server::irq::IrqIndex;
use vfio_user_server::{MemoryPart, doorbells};
use vgpu::{CONFIG_BYTES, Capabilities, WindowLayout};

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

    /// Windows in the file that a client maps.
    pub(crate) fn windows(self) -> WindowLayout {
        WindowLayout::new(self.bar1, self.bar3)
    }

    pub(crate) fn bytes(self, bar: Bar) -> u64 {
        match bar {
            Bar::Bar0 => BAR0_BYTES,
            Bar::Bar1 => self.bar1,
            Bar::Bar3 => self.bar3,
        }
    }
}

/// The part of a BAR that lies in a window file.
pub(crate) fn window_part(bars: BarSizes, bar: Bar) -> MemoryPart {
    let part = bars.windows().part(bar);
    MemoryPart {
        offset: part.offset,
        bytes: part.bytes,
        file_offset: part.file_offset,
    }
}

/// Regions and interrupts for a vfio-user client. With a window file it may map BAR1, BAR3 and PRAMIN, and make its guest's doorbells trap.
pub(crate) fn function(bars: BarSizes, windows: Option<&Arc<OwnedFd>>) -> FunctionInfo {
    let region = |bar: Bar| {
        let mut info = RegionInfo::read_write(bars.bytes(bar));
        let part = window_part(bars, bar);
        info.mappable = windows.map(|descriptor| MappableRegion {
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
        info
    };
    let info = FunctionInfo::new()
        .with_dma_maps_max(RAM_MAPS_MAX)
        .with_region(Region::Bar0, region(Bar::Bar0))
        .with_region(Region::Bar1, region(Bar::Bar1))
        .with_region(Region::Bar3, region(Bar::Bar3))
        .with_region(Region::Config, RegionInfo::read_write(CONFIG_BYTES as u64))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1);
    match windows {
        // Doorbells are stores to memory.
        Some(_) => info
            .with_region(Region::DeviceSpecific, doorbells::region_info())
            .with_irqs(IrqIndex::DeviceSpecific, 1),
        None => info,
    }
}
