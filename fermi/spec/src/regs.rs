//! The registers of BAR0, by unit: every register that model, mediator or drivers treat by name.
//!
//! Each unit has a module below with all there is to know of it: where it is, its registers, their bits and values. The
//! row of a register is the only place with its number. Sources: envytools `rnndb` (names in parentheses in the docs of a
//! row), nouveau for what drivers do with them.

use core::fmt;

pub use pieces::{Piece, Width};
pub use rows::Access;
pub use units::{Description, UnitRange, describe, enable_bit, unit_at};
pub use windows::{PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END};

#[macro_use]
mod rows;
mod decoder;
pub mod falcon;
pub mod fecs;
pub mod ltc;
pub mod nouveau;
pub mod pbdma;
pub mod pbus;
pub mod pclock;
pub mod pcopy;
pub mod peephole;
pub mod pffb;
pub mod pfifo;
pub mod pflush;
pub mod pgraph;
pub mod pieces;
pub mod pmc;
pub mod pmu;
pub mod pnvio;
pub mod ppci;
pub mod pring;
pub mod ptimer;
pub mod punits;
pub mod units;
pub mod vga;
pub mod windows;

pub use fecs::FecsReg;
pub use ltc::{LtcReg, LtcWord};
pub use pbdma::PbdmaReg;
pub use pbus::PbusReg;
pub use pclock::PclockReg;
pub use pcopy::PcopyReg;
pub use peephole::PeepholeReg;
pub use pffb::{PffbReg, PffbWord};
pub use pfifo::{BypassReg, PfifoReg, PfifoWord};
pub use pflush::PflushReg;
pub use pgraph::{PgraphReg, PgraphWord};
pub use pmc::{PmcReg, PmcWord};
pub use pmu::PmuReg;
pub use pnvio::PnvioReg;
pub use ppci::PpciReg;
pub use pring::{PringReg, PringWord};
pub use ptimer::{PtimerReg, PtimerWord};
pub use punits::{PunitsReg, PunitsWord};
pub use vga::VgaReg;

units! {
    /// A named register of BAR0, by the unit that it belongs to; an indexed one carries its index.
    pub enum Bar0Reg {
        /// Identification, interrupt lines, unit enables.
        Pmc(PmcReg),
        /// Failed accesses, places of the windows.
        Pbus(PbusReg),
        /// Window onto one word of an address space.
        Peephole(PeepholeReg),
        /// Channels, runlist, engines, faults.
        Pfifo(PfifoReg),
        /// Methods to an engine without a channel.
        Bypass(BypassReg),
        /// Time and alarm.
        Ptimer(PtimerReg),
        /// Fuses, design, straps.
        Punits(PunitsReg),
        /// GPIO lines, fan, temperature.
        Pnvio(PnvioReg),
        /// Units that fetch what channels have to do.
        Pbdma(PbdmaReg),
        /// Flushes by the host.
        Pflush(PflushReg),
        /// Mirror of the configuration space.
        Ppci(PpciReg),
        /// MMU and memory partitions.
        Pffb(PffbReg),
        /// The L2 cache and its clear values.
        Ltc(LtcReg),
        /// Ring that register accesses take.
        Pring(PringReg),
        /// PCLOCK: the clocks of the card.
        Pclock(PclockReg),
        /// Power management unit.
        Pmu(PmuReg),
        /// PCOPY0 and PCOPY1, the copy engines.
        Pcopy(PcopyReg),
        /// Graphics and compute engine.
        Pgraph(PgraphReg),
        /// Context switching of PGRAPH.
        Fecs(FecsReg),
        /// The VGA ports of PDISPLAY.
        Vga(VgaReg),
    }
}

/// Pages of BAR0.
const PAGES: usize = (crate::board::BAR0_BYTES / decoder::PAGE_BYTES as u64) as usize;

const REGISTERS: [Bar0Reg; Bar0Reg::COUNT] = {
    let (mut registers, mut n) = ([Bar0Reg::nth(0); Bar0Reg::COUNT], 0);
    while n < Bar0Reg::COUNT {
        registers[n] = Bar0Reg::nth(n);
        n += 1;
    }
    registers
};

const OFFSETS: [u32; Bar0Reg::COUNT] = {
    let (mut offsets, mut n) = ([0; Bar0Reg::COUNT], 0);
    while n < Bar0Reg::COUNT {
        offsets[n] = REGISTERS[n].offset();
        n += 1;
    }
    offsets
};

type Bar0Decoder = decoder::Decoder<
    Bar0Reg,
    PAGES,
    { decoder::count_pages::<PAGES, { Bar0Reg::COUNT }>(&OFFSETS) },
    { Bar0Reg::COUNT },
>;

static DECODER: Bar0Decoder = Bar0Decoder::new(REGISTERS, OFFSETS);

/// An aligned word of BAR0 outside of windows, as far as its offset tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bar0Word {
    /// A register of a unit that comes once, or whose copies are counted.
    Register(Bar0Reg),
    /// A register of a falcon that [`Bar0Reg`] has no name for.
    Falcon(falcon::Falcon, falcon::FalconReg),
    /// A register of some slice of the L2 cache.
    Slice(ltc::SliceReg),
    /// A word without a name.
    Unnamed,
}

impl Bar0Word {
    /// The word at `offset` bytes.
    pub fn decode(offset: u32) -> Self {
        if let Some(reg) = Bar0Reg::decode(offset) {
            return Self::Register(reg);
        }
        if let Some((falcon, reg)) = falcon::Falcon::decode(offset) {
            return Self::Falcon(falcon, reg);
        }
        ltc::SliceReg::at(offset).map_or(Self::Unnamed, Self::Slice)
    }
}

impl Bar0Reg {
    /// The register at `offset` bytes, `None` where there is none with a name.
    pub fn decode(offset: u32) -> Option<Self> {
        DECODER.decode(offset)
    }

    /// Every register by offset, indexed ones one by one.
    pub fn all() -> impl Iterator<Item = Self> {
        DECODER.registers().iter().copied()
    }
}

impl fmt::Display for Bar0Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_register_decodes_to_itself() {
        for reg in Bar0Reg::all() {
            assert_eq!(Bar0Reg::decode(reg.offset()), Some(reg), "{reg}");
        }
    }

    #[test]
    fn channel_table_is_indexed_by_channel() {
        assert_eq!(
            Bar0Reg::decode(0x3000 + 8 * 5 + 4),
            Some(PfifoReg::ChannelState(5).into())
        );
        assert_eq!(PfifoReg::ChannelState(5).name(), "ChannelState");
    }

    #[test]
    fn offset_without_a_row_is_none() {
        assert_eq!(Bar0Reg::decode(0x3000 + 8 * 128), None);
        assert_eq!(Bar0Reg::decode(0x3002), None);
    }
}
