//! The registers of a falcon: the small processor in front of PMU, copy engines, video engines and PGRAPH's contexts.
//!
//! All falcons have the same registers, each in a page (4 KiB) of its own. Offsets are within that page. Sources:
//! envytools `rnndb/falcon.xml`, `docs/hw/falcon/*.rst`; nouveau `nvkm/falcon/v1.c`, `nvkm/engine/falcon.c`.

use crate::addr::Aperture;

/// Bytes of a falcon's registers.
pub const FALCON_BYTES: u32 = 0x1000;

/// A falcon's register. Ports are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FalconReg {
    /// Raises the interrupts written. WO.
    IntrTrigger,
    /// Acknowledges the interrupts written. WO.
    IntrAck,
    /// Interrupts pending. RO.
    Intr,
    /// Interrupts that are edges. RW.
    IntrMode,
    /// Enables the interrupts written. WO.
    IntrEnableSet,
    /// Disables the interrupts written. WO.
    IntrEnableClear,
    /// Interrupts enabled. RO.
    IntrEnable,
    /// Routing: low half to the host, high half to the falcon instead. RW.
    IntrRoute,
    /// Scratch 0: copy engines put an error code here. RW.
    Scratch0,
    /// Scratch 1: copy engines put an error's data here. RW.
    Scratch1,
    /// What is let in: bit 0 channel switches, bit 1 methods. RW.
    AccessEnable,
    /// What is busy. RO.
    Busy,
    /// Channel that runs. RW.
    ChannelCurrent,
    /// Channel that comes next. RW.
    ChannelNext,
    /// Scratch 2. RW.
    Scratch2,
    /// Scratch 3: copy engines learn their number from it. RW.
    Scratch3,
    /// Bit 1 starts the microcode; bit 4 reads stopped, 5 asleep.
    Control,
    /// First instruction. RW.
    Entry,
    /// Sizes of the memories and of the FIFO, see [`Caps`]. RO.
    Caps,
    /// Bit 0: stop at an empty FIFO; bits 2:1 read as ones while memories are being cleared.
    BlockOnFifo,
    /// Bits 3:0 version. RO.
    Version,
    /// Another place of [`FalconReg::Control`].
    ControlAlias,
    /// Where a code port points, see [`PortIndex`]. RW.
    CodeIndex(u8),
    /// The word there. RW.
    CodeData(u8),
    /// Virtual page of the 256 bytes there. RW.
    CodeTag(u8),
    /// Where a data port points. RW.
    DataIndex(u8),
    /// The word there. RW.
    DataData(u8),
    /// Target of a memory port: 0 virtual, 4 VRAM, 5 and 6 system memory. RW.
    MemoryPort(u8),
}

/// Code ports.
pub const CODE_PORTS: usize = 4;
/// Data ports.
pub const DATA_PORTS: usize = 8;
/// Memory ports.
pub const MEMORY_PORTS: usize = 8;
/// Bytes of a page of code, which a tag names.
pub const CODE_PAGE_BYTES: u32 = 0x100;

impl FalconReg {
    /// The register at `offset` bytes of a falcon's page; `None` where nothing is known.
    pub const fn decode(offset: u32) -> Option<Self> {
        Some(match offset {
            0x000 => Self::IntrTrigger,
            0x004 => Self::IntrAck,
            0x008 => Self::Intr,
            0x00c => Self::IntrMode,
            0x010 => Self::IntrEnableSet,
            0x014 => Self::IntrEnableClear,
            0x018 => Self::IntrEnable,
            0x01c => Self::IntrRoute,
            0x040 => Self::Scratch0,
            0x044 => Self::Scratch1,
            0x048 => Self::AccessEnable,
            0x04c => Self::Busy,
            0x050 => Self::ChannelCurrent,
            0x054 => Self::ChannelNext,
            0x080 => Self::Scratch2,
            0x084 => Self::Scratch3,
            0x100 => Self::Control,
            0x104 => Self::Entry,
            0x108 => Self::Caps,
            0x10c => Self::BlockOnFifo,
            0x12c => Self::Version,
            0x130 => Self::ControlAlias,
            0x180 | 0x190 | 0x1a0 | 0x1b0 => Self::CodeIndex((offset >> 4 & 3) as u8),
            0x184 | 0x194 | 0x1a4 | 0x1b4 => Self::CodeData((offset >> 4 & 3) as u8),
            0x188 | 0x198 | 0x1a8 | 0x1b8 => Self::CodeTag((offset >> 4 & 3) as u8),
            0x1c0..=0x1ff if offset & 7 == 0 => Self::DataIndex((offset >> 3 & 7) as u8),
            0x1c0..=0x1ff if offset & 7 == 4 => Self::DataData((offset >> 3 & 7) as u8),
            0x600..=0x61f if offset & 3 == 0 => Self::MemoryPort((offset >> 2 & 7) as u8),
            _ => return None,
        })
    }
}

impl FalconReg {
    /// Where the register is in a falcon's page: what [`FalconReg::decode`] takes. A port's number is taken modulo what
    /// there is.
    pub const fn offset(self) -> u32 {
        match self {
            Self::IntrTrigger => 0x000,
            Self::IntrAck => 0x004,
            Self::Intr => 0x008,
            Self::IntrMode => 0x00c,
            Self::IntrEnableSet => 0x010,
            Self::IntrEnableClear => 0x014,
            Self::IntrEnable => 0x018,
            Self::IntrRoute => 0x01c,
            Self::Scratch0 => 0x040,
            Self::Scratch1 => 0x044,
            Self::AccessEnable => 0x048,
            Self::Busy => 0x04c,
            Self::ChannelCurrent => 0x050,
            Self::ChannelNext => 0x054,
            Self::Scratch2 => 0x080,
            Self::Scratch3 => 0x084,
            Self::Control => 0x100,
            Self::Entry => 0x104,
            Self::Caps => 0x108,
            Self::BlockOnFifo => 0x10c,
            Self::Version => 0x12c,
            Self::ControlAlias => 0x130,
            Self::CodeIndex(port) => 0x180 + 0x10 * (port as u32 & 3),
            Self::CodeData(port) => 0x184 + 0x10 * (port as u32 & 3),
            Self::CodeTag(port) => 0x188 + 0x10 * (port as u32 & 3),
            Self::DataIndex(port) => 0x1c0 + 8 * (port as u32 & 7),
            Self::DataData(port) => 0x1c4 + 8 * (port as u32 & 7),
            Self::MemoryPort(port) => 0x600 + 4 * (port as u32 & 7),
        }
    }
}

/// [`FalconReg::CodeIndex`], [`FalconReg::DataIndex`].
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct PortIndex {
    #[bits(2)]
    __: u8,
    /// Word that is accessed next.
    #[bits(14)]
    pub word: u16,
    #[bits(8)]
    __: u8,
    /// A write moves on to the next word.
    pub advance_on_write: bool,
    /// A read does.
    pub advance_on_read: bool,
    #[bits(2)]
    __: u8,
    /// The code written may do what only signed code may (later falcons).
    pub secret: bool,
    #[bits(3)]
    __: u8,
}

/// [`FalconReg::Caps`].
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Caps {
    /// Code memory, in 256 bytes.
    #[bits(9)]
    pub code_pages: u16,
    /// Data memory, in 256 bytes.
    #[bits(9)]
    pub data_pages: u16,
    /// Entries of the method FIFO.
    #[bits(8)]
    pub fifo: u8,
    /// Outstanding memory transfers.
    #[bits(6)]
    pub slots: u8,
}

/// [`FalconReg::ChannelCurrent`], [`FalconReg::ChannelNext`].
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Channel {
    /// Instance block address >> 12.
    #[bits(28)]
    pub frame: u32,
    /// Which memory the block is in.
    #[bits(2)]
    pub aperture: Aperture,
    /// There is one.
    pub valid: bool,
    __: bool,
}

/// [`FalconReg::Control`]: start.
pub const CONTROL_START: u32 = 1 << 1;
/// [`FalconReg::Control`]: the microcode has not been started or has ended.
pub const CONTROL_STOPPED: u32 = 1 << 4;
/// [`FalconReg::Control`]: the microcode waits for an interrupt.
pub const CONTROL_SLEEPING: u32 = 1 << 5;

/// Where falcons are in BAR0: name and first byte.
pub const FALCONS: &[(&str, u32)] = &[
    ("PVLD", 0x08_4000),
    ("PPDEC", 0x08_5000),
    ("PPPP", 0x08_6000),
    ("PCOPY0", 0x10_4000),
    ("PCOPY1", 0x10_5000),
    ("PMU", 0x10_a000),
    ("PGRAPH.FECS", 0x40_9000),
    ("PGRAPH.GPCCS", 0x41_a000),
    ("PGRAPH.GPC0.GPCCS", 0x50_2000),
    ("PGRAPH.GPC1.GPCCS", 0x50_a000),
    ("PGRAPH.GPC2.GPCCS", 0x51_2000),
    ("PGRAPH.GPC3.GPCCS", 0x51_a000),
];

/// The falcon that a BAR0 offset lies in, and the offset within it.
pub fn falcon_at(offset: u32) -> Option<(&'static str, u32)> {
    let base = offset & !(FALCON_BYTES - 1);
    let (name, _) = FALCONS.iter().find(|(_, first)| *first == base)?;
    Some((name, offset - base))
}

/// First byte of the PMU's falcon.
pub const PMU_BASE: u32 = 0x10_a000;
/// First byte of FECS.
pub const FECS_BASE: u32 = 0x40_9000;
/// First byte of the place that writes the registers of all GPC falcons.
pub const GPCCS_BASE: u32 = 0x41_a000;
/// First byte of copy engine 0's falcon.
pub const COPY_BASE: u32 = 0x10_4000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regs::Bar0Reg;

    #[test]
    fn rows_of_pgraphs_falcons_are_a_falcons_registers() {
        let rows = [
            (Bar0Reg::FecsIntrSet, "PGRAPH.FECS", FalconReg::IntrTrigger),
            (Bar0Reg::FecsControl, "PGRAPH.FECS", FalconReg::Control),
            (Bar0Reg::GpccsControl, "PGRAPH.GPCCS", FalconReg::Control),
        ];
        for (row, falcon, reg) in rows {
            let (name, at) = falcon_at(row.offset()).unwrap();
            assert_eq!((name, FalconReg::decode(at)), (falcon, Some(reg)));
        }
    }

    #[test]
    fn register_is_where_it_is_decoded() {
        let mut registers = (0..FALCON_BYTES).filter_map(|at| Some((at, FalconReg::decode(at)?)));
        assert_eq!(registers.find(|(at, reg)| reg.offset() != *at), None);
    }

    #[test]
    fn copy_engines_rows_are_a_falcons_registers() {
        let rows = [
            (Bar0Reg::CopyIntr(1), FalconReg::Intr),
            (Bar0Reg::CopyIntrAck(1), FalconReg::IntrAck),
            (Bar0Reg::CopyIntrRoute(1), FalconReg::IntrRoute),
            (Bar0Reg::CopyError(1), FalconReg::Scratch0),
            (Bar0Reg::CopyErrorData(1), FalconReg::Scratch1),
            (Bar0Reg::CopyCaps(1), FalconReg::Caps),
            (Bar0Reg::CopyVersion(1), FalconReg::Version),
            (Bar0Reg::CopyControl(1), FalconReg::Control),
        ];
        for (row, reg) in rows {
            let (name, at) = falcon_at(row.offset()).unwrap();
            assert_eq!((name, FalconReg::decode(at)), ("PCOPY1", Some(reg)));
        }
    }

    #[test]
    fn ports_are_numbered() {
        assert_eq!(FalconReg::decode(0x1a4), Some(FalconReg::CodeData(2)));
        assert_eq!(FalconReg::decode(0x1fc), Some(FalconReg::DataData(7)));
        assert_eq!(FalconReg::decode(0x60c), Some(FalconReg::MemoryPort(3)));
        assert_eq!(FalconReg::decode(0x18c), None);
    }
}
