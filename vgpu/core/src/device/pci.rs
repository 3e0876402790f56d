//! The PCI side of a guest's GPU: its configuration space, and what registers show of it. These are the mirror of the
//! configuration space, PROM and VGA ports.
//!
//! The mirror is the configuration space itself. The VM's machine decodes BARs and sends messages by what it heard of as requests for
//! configuration space, so a base address that is stored through the mirror reads back and moves nothing. PROM shows a VBIOS image of our own,
//! as the card's does: while the ROM shadow is off.

mod config_space;

use fermi_spec::regs::{PpciReg, VgaReg, Width};
use fermi_spec::vbios;

pub use config_space::{CONFIG_BYTES, ConfigSpace};

use super::pmc::Pmc;

/// A load from the mirror of the configuration space, `offset` bytes into it, while the interrupt line is up or not. What lies
/// behind the space reads zero.
pub(crate) fn read_mirror(config: &ConfigSpace, offset: u32, width: Width, is_up: bool) -> u32 {
    let mut word = [0; 4];
    if (offset as usize) < CONFIG_BYTES {
        config.read_with_line(offset.into(), &mut word[..width.bytes()], is_up);
    }
    u32::from_le_bytes(word)
}

/// A store through the mirror.
pub(crate) fn write_mirror(config: &mut ConfigSpace, offset: u32, width: Width, value: u32) {
    config.write(offset.into(), &value.to_le_bytes()[..width.bytes()]);
}

/// A load from PROM, `offset` bytes into it.
pub(crate) fn read_prom(config: &ConfigSpace, offset: u32, width: Width) -> u32 {
    let mut word = [0; 4];
    let image = vbios::image_of(config.board());
    let bytes = &mut word[..width.bytes()];
    vbios::read_prom(image, config.is_rom_visible(), offset as usize, bytes);
    u32::from_le_bytes(word)
}

/// A register of the mirror, by its name.
pub(crate) fn read(reg: PpciReg, config: &ConfigSpace) -> u32 {
    match reg {
        PpciReg::PciRomShadow | PpciReg::PciMsiRearm => {
            // Neither is where the status register is.
            read_mirror(config, reg.in_config() as u32, Width::Dword, false)
        }
    }
}

pub(crate) fn write(reg: PpciReg, value: u32, config: &mut ConfigSpace, pmc: &mut Pmc) {
    match reg {
        PpciReg::PciMsiRearm => pmc.rearm(),
        PpciReg::PciRomShadow => write_mirror(config, reg.in_config() as u32, Width::Dword, value),
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
