//! What the virtual board says of itself: the same in every VM.
//!
//! One partition that has all of the VRAM, four GPCs, no display and no video engines. Its initialisation scripts have
//! run and its microcode has been loaded.

use fermi_spec::regs::{LtcReg, PmuReg, PringReg, PunitsReg, PunitsWord, ltc, pgraph, pmu, punits};
use mmio::Storage;

/// Partitions of the virtual board; its one partition has all of the VRAM.
pub(crate) const PARTITIONS: u32 = 1;
/// GPCs of the GF100 design.
pub(crate) const GPCS: u32 = pgraph::GPCS;
/// TPCs in each of them, the last one excepted.
pub(crate) const TPCS: u32 = 4;
/// ROPs that PGRAPH reports to guests.
pub(crate) const ROPS: u32 = 6;

pub(crate) fn read_units(reg: PunitsReg, words: &Storage) -> u32 {
    match reg {
        PunitsReg::Post1 => punits::POST_SCRIPTS_RAN,
        PunitsReg::DesignGpcs => GPCS,
        PunitsReg::DesignTpcs => TPCS,
        PunitsReg::DesignPartitions => PARTITIONS,
        PunitsReg::FuseDisable => punits::NEITHER_DISPLAY_NOR_VIDEO,
        PunitsReg::FuseTpcs(_) => 0,
        PunitsReg::Straps => punits::STRAPS,
        PunitsReg::Straps2 => punits::STRAPS2,
        PunitsReg::Word(PunitsWord::Post0) => punits::POST0_AFTER_VBIOS,
        PunitsReg::Word(word) => words.load(word),
    }
}

pub(crate) fn write_units(reg: PunitsReg, value: u32, words: &mut Storage) {
    match reg {
        PunitsReg::Post1
        | PunitsReg::DesignGpcs
        | PunitsReg::DesignTpcs
        | PunitsReg::DesignPartitions
        | PunitsReg::FuseDisable
        | PunitsReg::FuseTpcs(_)
        | PunitsReg::Straps
        | PunitsReg::Straps2
        | PunitsReg::Word(PunitsWord::Post0) => {}
        PunitsReg::Word(word) => words.store(word, value),
    }
}

pub(crate) fn read_ltc(reg: LtcReg, words: &Storage) -> u32 {
    match reg {
        LtcReg::LtcSlices => ltc::SLICES_OF_AN_LTC << ltc::SLICES_SHIFT,
        // Clear values are remembered for nobody: the host has set its own.
        LtcReg::ZbcIndex | LtcReg::ZbcColour(_) | LtcReg::ZbcDepth => words.load(reg),
        LtcReg::Word(word) => words.load(word),
    }
}

pub(crate) fn write_ltc(reg: LtcReg, value: u32, words: &mut Storage) {
    match reg {
        LtcReg::LtcSlices => {}
        LtcReg::ZbcIndex | LtcReg::ZbcColour(_) | LtcReg::ZbcDepth => words.store(reg, value),
        LtcReg::Word(word) => words.store(word, value),
    }
}

pub(crate) fn read_ring(reg: PringReg, words: &Storage) -> u32 {
    match reg {
        PringReg::RingHubs => 1,
        PringReg::RingPartitions => PARTITIONS,
        PringReg::RingGpcs => GPCS,
        PringReg::Word(word) => words.load(word),
    }
}

pub(crate) fn write_ring(reg: PringReg, value: u32, words: &mut Storage) {
    match reg {
        PringReg::RingHubs | PringReg::RingPartitions | PringReg::RingGpcs => {}
        PringReg::Word(word) => words.store(word, value),
    }
}

/// The microcode of the PMU runs: its rings are there, and nothing is ever in them.
pub(crate) fn read_pmu(reg: PmuReg) -> u32 {
    let place = match reg {
        PmuReg::PmuCommandRing => pmu::PMU_COMMAND_RING,
        PmuReg::PmuMessageRing => pmu::PMU_MESSAGE_RING,
    };
    pmu::PMU_RING_BYTES << 16 | place
}

pub(crate) fn write_pmu(reg: PmuReg) {
    match reg {
        PmuReg::PmuCommandRing | PmuReg::PmuMessageRing => {}
    }
}
