//! Names the operation of an access from its offset and width.
//!
//! Registers take whole, aligned words; narrower accesses reach only the parts made of bytes: the mirror of the PCI
//! configuration space, PROM and the two VGA CRTC ports (envytools `hw/mmio.rst`; nouveau `pci/gf100.c` re-arms MSI by
//! one byte).

use fermi_spec::regs::ppci::PPCI;
use fermi_spec::regs::{Bar0Reg, PROM_BASE, PROM_END, PpciReg, VgaReg, Width};

/// First of the two VGA CRTC bytes, index and data (envytools PDISPLAY.VGA, 0x3d4 at 0x601000).
pub(crate) const VGA_CRTC: u32 = VgaReg::VgaCrtc.offset();

/// A read, named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bar0Read {
    /// A register of the table, by name.
    Register(Bar0Reg),
    /// The PROM window, by offset in it.
    Prom {
        /// Offset in the image.
        offset: u32,
        /// Width of the access.
        width: Width,
    },
    /// The mirror of the configuration space, by offset in that.
    PciMirror {
        /// Offset in the configuration space.
        offset: u32,
        /// Width of the access.
        width: Width,
    },
    /// A VGA CRTC port: 0 index, 1 data.
    VgaCrtc {
        /// Number of the port: 0 index, 1 data.
        port: u8,
    },
    /// A word that no row of the register table names. [`crate::Policy::of`] may still know it.
    Unmodelled {
        /// Byte offset in BAR0.
        offset: u32,
    },
    /// Less than a word, where only words are answered.
    Narrow {
        /// Byte offset in BAR0.
        offset: u32,
        /// Width of the access.
        width: Width,
    },
}

/// A write, named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bar0Write {
    /// A register of the table, by name, with the value.
    Register {
        /// Name of the register.
        reg: Bar0Reg,
        /// Value that is written.
        value: u32,
    },
    /// PROM is read-only.
    Prom {
        /// Offset in the image.
        offset: u32,
    },
    /// MSI re-arm: one more interrupt may be sent.
    MsiRearm,
    /// The mirror of the configuration space, by offset in that.
    PciMirror {
        /// Offset in the configuration space.
        offset: u32,
        /// Width of the access.
        width: Width,
        /// Value that is written.
        value: u32,
    },
    /// A VGA CRTC port: 0 index, 1 data.
    VgaCrtc {
        /// Number of the port: 0 index, 1 data.
        port: u8,
        /// Value that is written.
        value: u8,
    },
    /// A word that no row of the register table names. [`crate::Policy::of`] may still know it.
    Unmodelled {
        /// Byte offset in BAR0.
        offset: u32,
        /// Value that is written.
        value: u32,
    },
    /// Less than a word, where only words are taken.
    Narrow {
        /// Byte offset in BAR0.
        offset: u32,
        /// Width of the access.
        width: Width,
    },
}

/// The part of BAR0 that an access reaches.
enum Part {
    Register(Bar0Reg),
    Prom(u32),
    PciMirror(u32),
    VgaCrtc(u8),
    Unmodelled,
    Narrow,
}

fn place(offset: u32, width: Width) -> Part {
    match offset {
        _ if PPCI.range().contains(&offset) => Part::PciMirror(offset - PPCI.first),
        PROM_BASE..PROM_END => Part::Prom(offset - PROM_BASE),
        VGA_CRTC.. if offset - VGA_CRTC < 2 && width == Width::Byte => {
            Part::VgaCrtc((offset - VGA_CRTC) as u8)
        }
        _ if width != Width::Dword || !offset.is_multiple_of(4) => Part::Narrow,
        _ => match Bar0Reg::decode(offset) {
            Some(reg) => Part::Register(reg),
            None => Part::Unmodelled,
        },
    }
}

/// Names a read.
pub fn decode_read(offset: u32, width: Width) -> Bar0Read {
    match place(offset, width) {
        Part::Register(reg) => Bar0Read::Register(reg),
        Part::Prom(offset) => Bar0Read::Prom { offset, width },
        Part::PciMirror(offset) => Bar0Read::PciMirror { offset, width },
        Part::VgaCrtc(port) => Bar0Read::VgaCrtc { port },
        Part::Unmodelled => Bar0Read::Unmodelled { offset },
        Part::Narrow => Bar0Read::Narrow { offset, width },
    }
}

/// Names a write. Bits of `value` beyond the width are ignored.
pub fn decode_write(offset: u32, width: Width, value: u32) -> Bar0Write {
    let value = value & width.ones();
    match place(offset, width) {
        Part::Register(reg) => Bar0Write::Register { reg, value },
        Part::Prom(offset) => Bar0Write::Prom { offset },
        Part::PciMirror(_) if offset == PpciReg::PciMsiRearm.offset() => Bar0Write::MsiRearm,
        Part::PciMirror(offset) => Bar0Write::PciMirror { offset, width, value },
        Part::VgaCrtc(port) => Bar0Write::VgaCrtc {
            port,
            value: value as u8,
        },
        Part::Unmodelled => Bar0Write::Unmodelled { offset, value },
        Part::Narrow => Bar0Write::Narrow { offset, width },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::regs::PfifoReg;
    use proptest::prelude::*;

    #[test]
    fn register_write_is_named_with_its_value() {
        assert_eq!(
            decode_write(0x2270, Width::Dword, 0x1234),
            Bar0Write::Register {
                reg: PfifoReg::RunlistBase.into(),
                value: 0x1234
            }
        );
    }

    #[test]
    fn byte_to_a_register_is_narrow() {
        assert_eq!(
            decode_write(0x2270, Width::Byte, 1),
            Bar0Write::Narrow {
                offset: 0x2270,
                width: Width::Byte
            }
        );
    }

    #[test]
    fn byte_to_the_rearm_register_rearms() {
        assert_eq!(decode_write(0x08_8704, Width::Byte, 0xff), Bar0Write::MsiRearm);
    }

    #[test]
    fn windows_take_bytes_up_to_their_last() {
        assert_eq!(
            [0x37_ffff, 0x08_8fff, VGA_CRTC + 1].map(|offset| decode_read(offset, Width::Byte)),
            [
                Bar0Read::Prom {
                    offset: 0x7_ffff,
                    width: Width::Byte
                },
                Bar0Read::PciMirror {
                    offset: 0xfff,
                    width: Width::Byte
                },
                Bar0Read::VgaCrtc { port: 1 },
            ]
        );
        assert_eq!(
            decode_read(0x80_0000, Width::Dword),
            Bar0Read::Unmodelled { offset: 0x80_0000 }
        );
    }

    proptest! {
        #[test]
        fn value_never_exceeds_the_width(offset in 0u32..0x200_0000, value: u32) {
            for width in [Width::Byte, Width::Word, Width::Dword] {
                let written = match decode_write(offset, width, value) {
                    Bar0Write::Register { value, .. }
                    | Bar0Write::PciMirror { value, .. }
                    | Bar0Write::Unmodelled { value, .. } => value,
                    Bar0Write::VgaCrtc { value, .. } => u32::from(value),
                    Bar0Write::Prom { .. } | Bar0Write::MsiRearm | Bar0Write::Narrow { .. } => 0,
                };
                prop_assert!(written <= width.ones());
            }
        }
    }
}
