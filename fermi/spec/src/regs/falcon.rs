//! The registers of a falcon: the small processor in front of PMU, copy engines, video engines and PGRAPH's contexts.
//!
//! All falcons have the same registers, each in a page (4 KiB) of its own. Offsets are within that page. Sources:
//! envytools `rnndb/falcon.xml`, `docs/hw/falcon/*.rst`; nouveau `nvkm/falcon/v1.c`, `nvkm/engine/falcon.c`.

use super::PAGES;
use super::fecs::{FECS, GPCCS};
use super::pcopy::PCOPY;
use super::pgraph::{GPC, GPC_GPCCS, GPCS, GPCS_BASE};
use super::pmu::PMU;
use super::units::{PPDEC, PPPP, PVLD};
use crate::addr::Aperture;
use core::fmt;

/// Bytes of a falcon's registers.
pub(crate) const FALCON_BYTES: u32 = 0x1000;

/// Number of ports for code.
pub const CODE_PORTS: usize = 4;
/// Number of ports for data.
pub const DATA_PORTS: usize = 8;
/// Number of ports for accesses to memory.
pub const MEMORY_PORTS: usize = 8;
/// Bytes from one code port to the next.
const CODE_PORT_BYTES: u32 = 0x10;
/// Bytes of a page of code, which a tag names.
pub const CODE_PAGE_BYTES: u32 = 0x100;

registers! {
    /// A falcon's register, with its offset in the falcon's page. Ports are numbered.
    pub enum FalconReg {
        /// Raises the interrupts written.
        IntrTrigger = 0x000, WriteOnly;
        /// Acknowledges the interrupts written.
        IntrAck = 0x004, WriteOnly;
        /// Pending interrupts, a bit each.
        Intr = 0x008, ReadOnly;
        /// Interrupts that are edges.
        IntrMode = 0x00c, ReadWrite;
        /// Enables the interrupts written.
        IntrEnableSet = 0x010, WriteOnly;
        /// Disables the interrupts written.
        IntrEnableClear = 0x014, WriteOnly;
        /// Enabled interrupts, a bit each.
        IntrEnable = 0x018, ReadOnly;
        /// Routing: low half to the host, high half to the falcon instead.
        IntrRoute = 0x01c, ReadWrite;
        /// Scratch 0: copy engines put an error code here.
        Scratch0 = 0x040, ReadWrite;
        /// Scratch 1: copy engines put an error's data here.
        Scratch1 = 0x044, ReadWrite;
        /// Work that the falcon accepts: bit 0 channel switches, bit 1 methods.
        AccessEnable = 0x048, ReadWrite;
        /// Parts of the falcon that are busy, one bit each.
        Busy = 0x04c, ReadOnly;
        /// Channel that runs.
        ChannelCurrent = 0x050, ReadWrite;
        /// Channel that comes next.
        ChannelNext = 0x054, ReadWrite;
        /// Third scratch word.
        Scratch2 = 0x080, ReadWrite;
        /// Scratch 3: copy engines learn their number from it.
        Scratch3 = 0x084, ReadWrite;
        /// Bit 1 starts the microcode; bit 4 reads stopped, 5 asleep.
        Control = 0x100, ReadWrite;
        /// Address of the first instruction.
        Entry = 0x104, ReadWrite;
        /// Sizes of the memories and of the FIFO, see [`Caps`].
        Caps = 0x108, ReadOnly;
        /// Bit 0: stop at an empty FIFO; bits 2:1 read as ones while memories are being cleared.
        BlockOnFifo = 0x10c, ReadWrite;
        /// Bits 3:0 version.
        Version = 0x12c, ReadOnly;
        /// The same register as [`FalconReg::Control`], at a second offset.
        ControlAlias = 0x130, ReadWrite;
        /// Where a code port points, see [`PortIndex`].
        CodeIndex[CODE_PORTS, CODE_PORT_BYTES] = 0x180, ReadWrite;
        /// Word of code memory that CodeIndex points at.
        CodeData[CODE_PORTS, CODE_PORT_BYTES] = 0x184, ReadWrite;
        /// Virtual page of the 256 bytes that CodeIndex points into.
        CodeTag[CODE_PORTS, CODE_PORT_BYTES] = 0x188, ReadWrite;
        /// Where a data port points.
        DataIndex[DATA_PORTS, 8] = 0x1c0, ReadWrite;
        /// Word of data memory that DataIndex points at.
        DataData[DATA_PORTS, 8] = 0x1c4, ReadWrite;
        /// Target of a memory port: 0 virtual, 4 VRAM, 5 and 6 system memory.
        MemoryPort[MEMORY_PORTS, 4] = 0x600, ReadWrite;
    }
}

decoded_in_a_page!(FalconReg);

/// Position of a port: [`FalconReg::CodeIndex`], [`FalconReg::DataIndex`].
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
    /// A read moves on to the next word.
    pub advance_on_read: bool,
    #[bits(2)]
    __: u8,
    /// The code written may do what only signed code may (later falcons).
    pub secret: bool,
    #[bits(3)]
    __: u8,
}

/// Memory sizes and queue slots: [`FalconReg::Caps`].
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

/// Channel of a falcon: [`FalconReg::ChannelCurrent`], [`FalconReg::ChannelNext`].
#[bitfield_struct::bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Channel {
    /// Instance block address >> 12.
    #[bits(28)]
    pub frame: u32,
    /// Which memory the block is in.
    #[bits(2)]
    pub aperture: Aperture,
    /// The falcon has such a channel; clear means none.
    pub valid: bool,
    __: bool,
}

/// [`FalconReg::Control`]: starts the microcode.
pub const CONTROL_START: u32 = 1 << 1;
/// [`FalconReg::Control`]: the microcode has not been started or has ended.
pub const CONTROL_STOPPED: u32 = 1 << 4;
/// [`FalconReg::Control`]: the microcode waits for an interrupt.
pub const CONTROL_SLEEPING: u32 = 1 << 5;

/// A falcon of BAR0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Falcon {
    /// That of PVLD, which decodes the bitstream of a video.
    Pvld,
    /// That of PPDEC, which decodes pictures.
    Ppdec,
    /// That of PPPP, which processes decoded pictures.
    Pppp,
    /// That of a copy engine, by number.
    Copy(u16),
    /// The power management unit.
    Pmu,
    /// FECS, which switches PGRAPH's contexts.
    Fecs,
    /// Those of all GPCs at once.
    Gpccs,
    /// That of one GPC, by number.
    GpccsOf(u16),
}

impl Falcon {
    const COUNT: usize = 6 + (PCOPY.count + GPCS) as usize;

    const ALL: [Self; Self::COUNT] = {
        let mut all = [Self::Pvld; Self::COUNT];
        let (mut n, mut copy, mut gpc) = (6, 0, 0);
        (all[1], all[2], all[3], all[4], all[5]) =
            (Self::Ppdec, Self::Pppp, Self::Pmu, Self::Fecs, Self::Gpccs);
        while copy < PCOPY.count {
            all[n] = Self::Copy(copy as u16);
            (n, copy) = (n + 1, copy + 1);
        }
        while gpc < GPCS {
            all[n] = Self::GpccsOf(gpc as u16);
            (n, gpc) = (n + 1, gpc + 1);
        }
        all
    };

    /// Where its registers begin in BAR0.
    pub const fn first(self) -> u32 {
        match self {
            Self::Pvld => PVLD.first,
            Self::Ppdec => PPDEC.first,
            Self::Pppp => PPPP.first,
            Self::Copy(engine) => PCOPY.first + engine as u32 * PCOPY.bytes,
            Self::Pmu => PMU.first,
            Self::Fecs => FECS.first,
            Self::Gpccs => GPCCS.first,
            Self::GpccsOf(gpc) => GPCS_BASE + gpc as u32 * GPC.bytes + GPC_GPCCS.first,
        }
    }

    /// The falcon and its register at an offset of BAR0. PGRAPH has registers of its own where the memory ports of
    /// another falcon are: counts of units.
    pub fn decode(offset: u32) -> Option<(Self, FalconReg)> {
        let index = FALCON_OF_PAGE.get((offset / FALCON_BYTES) as usize)?;
        let falcon = Self::ALL[usize::from(index.checked_sub(1)?)];
        let reg = FalconReg::decode(offset % FALCON_BYTES)?;
        let is_of_graph = matches!(falcon, Self::Fecs | Self::Gpccs | Self::GpccsOf(_));
        (!is_of_graph || !matches!(reg, FalconReg::MemoryPort(_))).then_some((falcon, reg))
    }
}

/// Falcon of each page of BAR0: one more than its index in [`Falcon::ALL`], zero for none.
static FALCON_OF_PAGE: [u8; PAGES] = {
    let (mut falcons, mut n) = ([0; PAGES], 0);
    while n < Falcon::COUNT {
        let page = (Falcon::ALL[n].first() / FALCON_BYTES) as usize;
        assert!(falcons[page] == 0, "two falcons in one page");
        falcons[page] = n as u8 + 1;
        n += 1;
    }
    falcons
};

impl fmt::Display for Falcon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pvld => f.write_str(PVLD.name),
            Self::Ppdec => f.write_str(PPDEC.name),
            Self::Pppp => f.write_str(PPPP.name),
            Self::Copy(engine) => write!(f, "{}{engine}", PCOPY.name),
            Self::Pmu => f.write_str(PMU.name),
            Self::Fecs => f.write_str(FECS.name),
            Self::Gpccs => f.write_str(GPCCS.name),
            Self::GpccsOf(gpc) => write!(f, "PGRAPH.GPC{gpc}.GPCCS"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PgraphReg;
    use super::*;

    #[test]
    fn register_is_where_it_is_decoded() {
        let mut registers = (0..FALCON_BYTES).filter_map(|at| Some((at, FalconReg::decode(at)?)));
        assert_eq!(registers.find(|(at, reg)| reg.offset() != *at), None);
        assert_eq!(
            (0..FALCON_BYTES).filter_map(FalconReg::decode).count(),
            FalconReg::COUNT
        );
    }

    #[test]
    fn falcons_of_a_kind_are_told_apart() {
        assert_eq!(
            Falcon::decode(0x10_5188),
            Some((Falcon::Copy(1), FalconReg::CodeTag(0)))
        );
        assert_eq!(
            Falcon::decode(0x51_2104),
            Some((Falcon::GpccsOf(2), FalconReg::Entry))
        );
        assert_eq!(Falcon::decode(0x10_6000), None);
        for falcon in Falcon::ALL {
            let found = Falcon::decode(falcon.first() + FalconReg::Version.offset());
            assert_eq!(found, Some((falcon, FalconReg::Version)));
        }
    }

    #[test]
    fn counts_of_units_are_not_taken_for_memory_ports() {
        assert_eq!(Falcon::decode(PgraphReg::GraphUnits.offset()), None);
        assert_eq!(Falcon::decode(PgraphReg::GpcTpcs(3).offset()), None);
        assert!(Falcon::decode(PMU.first + FalconReg::MemoryPort(1).offset()).is_some());
    }

    #[test]
    fn ports_are_numbered() {
        assert_eq!(FalconReg::decode(0x1a4), Some(FalconReg::CodeData(2)));
        assert_eq!(FalconReg::decode(0x1fc), Some(FalconReg::DataData(7)));
        assert_eq!(FalconReg::decode(0x60c), Some(FalconReg::MemoryPort(3)));
        assert_eq!(FalconReg::decode(0x18c), None);
    }
}
