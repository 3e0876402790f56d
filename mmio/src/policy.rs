//! Who answers a register: by unit for the named ones, by a table of ranges for the others. What it does not list is refused.
//!
//! There is no policy "pass through": whatever a guest does in BAR0 is answered for its own virtual GPU, and what has
//! an effect on the card is the mediator's own doing. Ranges and constants: what nouveau touches on a GF100 (envytools
//! `rnndb` for the units' extents), registers with physical addresses (debug pages, compression tags, flush page) are
//! remembered and never used.

use crate::bar0::VGA_CRTC;
use fermi_spec::regs::falcon::FalconReg;
use fermi_spec::regs::fecs::{FECS, GPCCS};
use fermi_spec::regs::ltc::{LTC, LTCS, SLICE};
use fermi_spec::regs::pbdma::PBDMA;
use fermi_spec::regs::pclock::PCLOCK_PLLS;
use fermi_spec::regs::pcopy::PCOPY;
use fermi_spec::regs::pgraph::{GPCS_BASE, GPCS_BYTES, PGRAPH};
use fermi_spec::regs::pmu::PMU;
use fermi_spec::regs::pnvio::{PNVIO, PTHERM};
use fermi_spec::regs::ppci::PPCI;
use fermi_spec::regs::pring::PRING_MASTER;
use fermi_spec::regs::punits::PFUSE;
use fermi_spec::regs::units::{PPDEC, PPPP, PVLD};
use fermi_spec::regs::{
    Access, Bar0Reg, LtcReg, PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END, PffbReg, PfifoReg, PgraphReg,
    PmcReg, PringReg, PtimerReg, PunitsReg, UnitRange, pffb,
};

/// Who answers an aligned word of BAR0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The virtual GPU: reads or writes have a meaning for it.
    Virtual,
    /// Always reads this; writes are ignored.
    Constant(u32),
    /// Reads what was written last, per VM, and means nothing.
    Storage,
    /// Reads zero, writes are dropped, both are counted: nobody has said what the register should be.
    Refused,
}

/// Bytes of host memory that [`Policy::Storage`] can take for one VM: pages that contain such a word.
#[cfg(test)]
const STORAGE_BYTES_MAX: usize = 2 << 20;

impl Policy {
    /// The policy of the word at `offset`. Offsets that are no multiple of 4 are refused, windows excepted.
    pub fn of(offset: u32) -> Self {
        let in_window = PPCI.range().contains(&offset)
            || (PROM_BASE..PROM_END).contains(&offset)
            || (PRAMIN_BASE..PRAMIN_BASE + PRAMIN_BYTES).contains(&offset)
            || offset & !3 == VGA_CRTC & !3;
        if in_window {
            return Self::Virtual;
        }
        if !offset.is_multiple_of(4) {
            return Self::Refused;
        }
        match Bar0Reg::decode(offset) {
            Some(reg) => Self::of_register(reg),
            None => Self::of_range(offset),
        }
    }

    /// The policy of a named register. Registers of a unit that the virtual GPU has are virtual: each unit answers its
    /// own, one by one. What nothing else depends on ("words") is told by its access.
    pub fn of_register(reg: Bar0Reg) -> Self {
        match reg {
            // A way to engines without a channel; a second way to memory that no driver for this board uses.
            Bar0Reg::Bypass(_) | Bar0Reg::Peephole(_) => Self::Refused,
            // Bits that reach memory past the page tables are never acted on.
            Bar0Reg::Pffb(PffbReg::MmuConfig) => Self::Constant(pffb::MMU_CONFIG_READY),
            Bar0Reg::Pmc(PmcReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Pfifo(PfifoReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Ptimer(PtimerReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Punits(PunitsReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Pffb(PffbReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Ltc(LtcReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Pring(PringReg::Word(word)) => Self::of_word(word.access()),
            Bar0Reg::Pgraph(PgraphReg::Word(word)) => Self::of_word(word.access()),
            // Units of nothing but words.
            Bar0Reg::Pnvio(reg) => Self::of_word(reg.access()),
            Bar0Reg::Pclock(reg) => Self::of_word(reg.access()),
            Bar0Reg::Pmc(_)
            | Bar0Reg::Pbus(_)
            | Bar0Reg::Pfifo(_)
            | Bar0Reg::Ptimer(_)
            | Bar0Reg::Punits(_)
            | Bar0Reg::Pbdma(_)
            | Bar0Reg::Pflush(_)
            | Bar0Reg::Ppci(_)
            | Bar0Reg::Pffb(_)
            | Bar0Reg::Ltc(_)
            | Bar0Reg::Pring(_)
            | Bar0Reg::Pmu(_)
            | Bar0Reg::Pcopy(_)
            | Bar0Reg::Pgraph(_)
            | Bar0Reg::Fecs(_)
            | Bar0Reg::Vga(_) => Self::Virtual,
        }
    }

    /// A word keeps what is written, if anything can be.
    const fn of_word(access: Access) -> Self {
        if access.keeps_writes() {
            Self::Storage
        } else {
            Self::Constant(0)
        }
    }

    fn of_range(offset: u32) -> Self {
        if let Ok(index) = WORDS.binary_search_by_key(&offset, |word| word.0) {
            return WORDS[index].1;
        }
        let after = RANGES.partition_point(|range| range.0 <= offset);
        match after.checked_sub(1).map(|index| RANGES[index]) {
            Some((_, end, policy)) if offset < end => policy,
            _ => Self::Refused,
        }
    }
}

/// Single words without a name that read a constant, by offset; they take precedence over [`RANGES`].
const WORDS: &[(u32, Policy)] = &[
    // The PMU is idle, its memories scrubbed.
    (PMU.first + FalconReg::Busy.offset(), Policy::Constant(0)),
    (PMU.first + FalconReg::BlockOnFifo.offset(), Policy::Constant(0)),
    // Nobody asks the GPC falcons.
    (GPCCS.first + FalconReg::Caps.offset(), Policy::Constant(0)),
    (GPCCS.first + FalconReg::Version.offset(), Policy::Constant(0)),
];

/// Ranges of words without a name, from, to (exclusive), by offset and disjoint.
const RANGES: &[(u32, u32, Policy)] = &[
    unit(PNVIO, Policy::Storage),
    unit(PTHERM, Policy::Storage),
    // Fuses, zero: no sensor, no voltage control.
    unit(PFUSE, Policy::Storage),
    // Loaded RAMFC of whoever runs.
    unit(PBDMA, Policy::Constant(0)),
    unit(PVLD, Policy::Storage),
    unit(PPDEC, Policy::Storage),
    unit(PPPP, Policy::Storage),
    // Microcode that is uploaded goes nowhere.
    unit(PCOPY, Policy::Storage),
    unit(PMU, Policy::Storage),
    unit(PRING_MASTER, Policy::Storage),
    unit(PCLOCK_PLLS, Policy::Storage),
    // No slice has anything pending.
    (LTC.first + SLICE.first, LTC.end(), Policy::Constant(0)),
    unit(LTCS, Policy::Storage),
    // PGRAPH's defaults; the handshake with FECS is answered by the virtual GPU.
    (PGRAPH.first, FECS.first, Policy::Storage),
    unit(FECS, Policy::Virtual),
    (FECS.end(), GPCS_BASE + GPCS_BYTES, Policy::Storage),
];

const fn unit(unit: UnitRange, policy: Policy) -> (u32, u32, Policy) {
    (unit.first, unit.end(), policy)
}

#[cfg(test)]
#[path = "policy/tests.rs"]
mod tests;
