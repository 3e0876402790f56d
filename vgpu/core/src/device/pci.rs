//! The PCI side of a guest's GPU: its configuration space, and what registers show of it. These are the mirror of the
//! configuration space, PROM and VGA ports.
//!
//! The mirror is read-only: a store through it would move BARs or stop messages without the VM's machine, which only
//! hears of requests, ever knowing. Nobody shows guests a VBIOS yet, so PROM reads zero.

mod config_space;

use fermi_spec::regs::ppci::PPCI;
use fermi_spec::regs::{PpciReg, VgaReg, Width};

pub use config_space::{CONFIG_BYTES, ConfigSpace};

use super::pmc::Pmc;

/// A load from the mirror of the configuration space, `offset` bytes into it. What lies behind the space reads zero.
pub(crate) fn read_mirror(config: &ConfigSpace, offset: u32, width: Width) -> u32 {
    let mut word = [0; 4];
    if (offset as usize) < CONFIG_BYTES {
        config.read(offset.into(), &mut word[..width.bytes()]);
    }
    u32::from_le_bytes(word)
}

/// A load from PROM.
pub(crate) fn read_prom() -> u32 {
    0
}

/// A register of the mirror, by its name.
pub(crate) fn read(reg: PpciReg, config: &ConfigSpace) -> u32 {
    match reg {
        PpciReg::PciRomShadow | PpciReg::PciMsiRearm => {
            read_mirror(config, reg.offset() - PPCI.first, Width::Dword)
        }
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
