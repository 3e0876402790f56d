//! The mirror of the PCI configuration space (envytools PPCI, nouveau `pci/gf100.c`).

use super::units::{UnitRange, unit};

/// Where the mirror is.
pub const PPCI: UnitRange = unit("PPCI", 0x08_8000, 0x1000);

registers! {
    /// Registers in the mirror of the configuration space that are known by name.
    pub enum PpciReg {
        /// ROM shadow switch.
        PciRomShadow = 0x088050, ReadWrite;
        /// MSI re-arm (8-bit write of 0xff).
        PciMsiRearm = 0x088704, ReadWrite;
    }
}

/// PCI_ROM_SHADOW (088050): the VBIOS runs from memory and PROM shows nothing.
pub const ROM_SHADOWED: u8 = 1;
/// PCI_MSI_REARM (088704): lets the next message out.
pub const MSI_REARM: u32 = 0xff;

impl PpciReg {
    /// Where it is in the configuration space.
    pub const fn in_config(self) -> usize {
        (self.offset() - PPCI.first) as usize
    }
}
