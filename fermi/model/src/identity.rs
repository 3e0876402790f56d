//! Words of BAR0 that identify the card: fixed when it is made.

use crate::storage::Storage;
use fermi_spec::{
    board::Board,
    regs::{PringReg, PunitsReg, pffb, pgraph, punits},
};

const MIB: u64 = 1 << 20;
/// TPCs of a GPC in the design.
const TPCS: u32 = 4;
const TPC_MASK: u32 = (1 << TPCS) - 1;

/// Partitions and the MiB in each: all of the same size, as unequal ones put VRAM at two places. Sizes that six
/// partitions cannot share equally are shared by fewer.
fn partitions(vram_bytes: u64) -> (u32, u32) {
    let mebibytes = vram_bytes / MIB;
    let count = (1..=u64::from(pffb::PARTITIONS_MAX))
        .rev()
        .find(|count| mebibytes.is_multiple_of(*count))
        .unwrap_or(1);
    (count as u32, (mebibytes / count) as u32)
}

/// SMs in each of the four GPCs (nouveau reads 502608 + 0x8000·g): 15 on a GTX 480, 14 on the others.
fn tpcs(board: Board, gpc: u32) -> u32 {
    match (board, gpc) {
        (Board::Gtx480, 0) => 3,
        (Board::Gtx480, _) => 4,
        (_, 0 | 1) => 3,
        (_, _) => 4,
    }
}

/// What the card says of itself, whatever is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    board: Board,
    partitions: u32,
    /// MiB of each partition.
    mebibytes: u32,
}

impl Identity {
    pub(crate) fn new(board: Board, vram_bytes: u64) -> Self {
        let (partitions, mebibytes) = partitions(vram_bytes);
        Self {
            board,
            partitions,
            mebibytes,
        }
    }

    /// Number of memory partitions.
    pub(crate) fn partitions(&self) -> u32 {
        self.partitions
    }

    /// MiB of a partition.
    pub(crate) fn mebibytes_of(&self, partition: u16) -> u32 {
        if u32::from(partition) < self.partitions {
            self.mebibytes
        } else {
            0
        }
    }

    /// Value of GRAPH_UNITS: ROPs and GPCs.
    pub(crate) fn graph_units(&self) -> u32 {
        self.partitions << pgraph::UNITS_ROPS_SHIFT | pgraph::GPCS
    }

    /// TPCs of a GPC.
    pub(crate) fn tpcs(&self, gpc: u16) -> u32 {
        tpcs(self.board, u32::from(gpc))
    }

    pub(crate) fn read_units(&self, reg: PunitsReg, words: &Storage) -> u32 {
        match reg {
            PunitsReg::Post1 => punits::POST_SCRIPTS_RAN,
            PunitsReg::DesignGpcs => pgraph::GPCS,
            PunitsReg::DesignTpcs => TPCS,
            PunitsReg::DesignPartitions => self.partitions,
            // Compute only.
            PunitsReg::FuseDisable => punits::NEITHER_DISPLAY_NOR_VIDEO,
            // The last TPCs of a GPC are those that are off.
            PunitsReg::FuseTpcs(gpc) if u32::from(gpc) < pgraph::GPCS => !0 << self.tpcs(gpc) & TPC_MASK,
            PunitsReg::FuseTpcs(_) => 0,
            PunitsReg::Straps => punits::STRAPS,
            PunitsReg::Straps2 => punits::STRAPS2,
            PunitsReg::Word(word) => words.load(word),
        }
    }

    pub(crate) fn read_ring(&self, reg: PringReg, words: &Storage) -> u32 {
        match reg {
            PringReg::RingHubs => 1,
            PringReg::RingPartitions => self.partitions,
            PringReg::RingGpcs => pgraph::GPCS,
            // It has no command running and no interrupt.
            PringReg::Word(word) => words.load(word),
        }
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
        | PunitsReg::Straps2 => {}
        PunitsReg::Word(word) => words.store(word, value),
    }
}

pub(crate) fn write_ring(reg: PringReg, value: u32, words: &mut Storage) {
    match reg {
        PringReg::RingHubs | PringReg::RingPartitions | PringReg::RingGpcs => {}
        PringReg::Word(word) => words.store(word, value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::regs::PunitsWord;

    #[test]
    fn partitions_add_up_to_the_vram() {
        for mebibytes in [1u64, 7, 64, 256, 1536, 6144] {
            let (count, each) = partitions(mebibytes * MIB);
            assert_eq!(u64::from(count) * u64::from(each), mebibytes);
        }
    }

    /// Numbers that nouveau or Mesa divides by or counts up to.
    #[test]
    fn no_count_is_zero_for_any_board_and_size() {
        let words = Storage::default();
        for board in Board::ALL {
            for mebibytes in (1..=128 << 10).step_by(97) {
                let card = Identity::new(board, mebibytes * MIB);
                let counts = [
                    card.read_units(PunitsReg::DesignGpcs, &words),
                    card.read_units(PunitsReg::DesignTpcs, &words),
                    card.read_units(PunitsReg::DesignPartitions, &words),
                    card.read_ring(PringReg::RingHubs, &words),
                    card.read_ring(PringReg::RingPartitions, &words),
                    card.read_ring(PringReg::RingGpcs, &words),
                    card.partitions(),
                    card.mebibytes_of(0),
                    card.graph_units() & 0x1f,
                    card.graph_units() >> 16 & 0x1f,
                    card.tpcs(0),
                    card.tpcs(1),
                    card.tpcs(2),
                    card.tpcs(3),
                ];
                assert!(
                    counts.iter().all(|count| *count > 0),
                    "{counts:?} of {mebibytes} MiB"
                );
            }
        }
    }

    #[test]
    fn fuses_and_counts_agree() {
        let words = Storage::default();
        for board in Board::ALL {
            let card = Identity::new(board, board.vram_bytes());
            let read = |reg| card.read_units(reg, &words);
            assert_eq!(
                read(PunitsReg::DesignGpcs) - read(PunitsWord::FuseGpcs.into()).count_ones(),
                card.read_ring(PringReg::RingGpcs, &words)
            );
            for gpc in 0..4 {
                let off = read(PunitsReg::FuseTpcs(gpc)).count_ones();
                assert_eq!(read(PunitsReg::DesignTpcs) - off, card.tpcs(gpc));
            }
        }
    }

    #[test]
    fn gtx480_has_fifteen_sms_and_the_others_fourteen() {
        let sms = |board| (0..4).map(|gpc| tpcs(board, gpc)).sum::<u32>();
        assert_eq!([Board::Gtx480, Board::TeslaC2050].map(sms), [15, 14]);
    }
}
