//! The windows of BAR0 and their extents; fields of the registers that place windows: BAR1, BAR3, PRAMIN.

use crate::addr::{Aperture, PhysAddr};
use bitfield_struct::bitfield;

/// First byte of the PROM window.
pub const PROM_BASE: u32 = 0x30_0000;
/// One past its last byte.
pub const PROM_END: u32 = 0x38_0000;
/// First byte of the PRAMIN window.
pub const PRAMIN_BASE: u32 = 0x70_0000;
/// Bytes of the PRAMIN window.
pub const PRAMIN_BYTES: u32 = 0x10_0000;

/// Value of a load through a translated window that the MMU refuses. unverified: PEEPHOLE reads the same.
pub const FAULT_PATTERN: u32 = 0xbad0_ac00;

/// BAR1_BLOCK, BAR3_BLOCK, PEEPHOLE_BLOCK (1704, 1714, 1718).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WindowBlock {
    /// Instance block address >> 12.
    #[bits(28)]
    pub frame: u32,
    /// Which memory the block is in.
    #[bits(2)]
    pub aperture: Aperture,
    /// unverified: GPUvm sets it for BAR3; with nouveau's NvBar2Halve half of the BAR is used.
    pub unknown30: bool,
    /// Translate through the block's page directory; otherwise the window is physical.
    pub enable: bool,
}

impl WindowBlock {
    /// Address of the instance block.
    pub fn instance(self) -> PhysAddr {
        PhysAddr::from_page_number(self.frame())
    }
}

/// Memory that PRAMIN shows: PRAMIN_BASE (1700).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PraminBase {
    /// Base address >> 16.
    #[bits(24)]
    pub base: u32,
    /// Which memory the window shows.
    #[bits(2)]
    pub aperture: Aperture,
    #[bits(6)]
    __: u8,
}

impl PraminBase {
    /// Bits that the register has.
    pub const STORED: u32 = 0x03ff_ffff;

    /// The window begins at multiples of this.
    pub const UNIT: u64 = 1 << 16;

    /// First byte of the window.
    pub fn address(self) -> PhysAddr {
        PhysAddr(u64::from(self.base()) * Self::UNIT)
    }
}
