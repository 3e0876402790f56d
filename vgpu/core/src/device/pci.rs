//! The PCI side of a guest's GPU as its registers show it: the mirror of the configuration space, PROM, VGA ports.
//!
//! The configuration space itself is the edge's, which has to answer it without the core. Nobody shows guests a VBIOS or
//! the mirror yet: both read zero. Whoever makes them readable does it here.

use fermi_spec::regs::{PpciReg, VgaReg};

use super::pmc::Pmc;

/// A load from the mirror of the configuration space.
pub(crate) fn read_mirror() -> u32 {
    0
}

/// A load from PROM.
pub(crate) fn read_prom() -> u32 {
    0
}

/// A register of the mirror, by its name.
pub(crate) fn read(reg: PpciReg) -> u32 {
    match reg {
        PpciReg::PciRomShadow | PpciReg::PciMsiRearm => read_mirror(),
    }
}

pub(crate) fn write(reg: PpciReg, pmc: &mut Pmc) {
    match reg {
        PpciReg::PciMsiRearm => pmc.rearm(),
        PpciReg::PciRomShadow => {}
    }
}

/// The board has no display: index and data of the CRTC read zero, and what is written is dropped.
pub(crate) fn read_vga(reg: VgaReg) -> u32 {
    match reg {
        VgaReg::VgaCrtc => 0,
    }
}

pub(crate) fn write_vga(reg: VgaReg) {
    match reg {
        VgaReg::VgaCrtc => {}
    }
}
