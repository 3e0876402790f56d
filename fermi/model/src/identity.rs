//! Words of BAR0 that identify the card: fixed when it is made.

use fermi_spec::regs::punits;
use fermi_spec::{
    board::Board,
    regs::{Bar0Reg, PffbReg, PgraphReg, PmcReg, PmcWord, PringReg, PringWord, PunitsReg, PunitsWord},
};

const MIB: u64 = 1 << 20;
/// Partitions that can have a size register, and that GF100 has at most.
const PARTITIONS_MAX: u64 = 6;

/// GPCs, none fused off.
const GPCS: u32 = 4;
/// TPCs of a GPC in the design.
const TPCS: u32 = 4;
const TPC_MASK: u32 = (1 << TPCS) - 1;

/// Partitions and the MiB in each: all of the same size, as unequal ones put VRAM at two places. Sizes that six
/// partitions cannot share equally are shared by fewer.
fn partitions(vram_bytes: u64) -> (u32, u32) {
    let mebibytes = vram_bytes / MIB;
    let count = (1..=PARTITIONS_MAX)
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

/// The fixed value of a named register, `None` for one that has state.
pub(crate) fn register(board: Board, vram_bytes: u64, reg: Bar0Reg) -> Option<u32> {
    let (count, mebibytes) = partitions(vram_bytes);
    Some(match reg {
        Bar0Reg::Pmc(PmcReg::Boot0) => board.boot0(),
        Bar0Reg::Pmc(PmcReg::Endian) => 0,
        Bar0Reg::Punits(PunitsReg::Post1) => punits::POST_SCRIPTS_RAN,
        Bar0Reg::Punits(PunitsReg::DesignGpcs) => GPCS,
        Bar0Reg::Punits(PunitsReg::DesignTpcs) => TPCS,
        Bar0Reg::Punits(PunitsReg::DesignPartitions) | Bar0Reg::Pffb(PffbReg::PartitionConfig) => count,
        // Compute only: no display, no video decoders.
        Bar0Reg::Punits(PunitsReg::FuseDisable) => 0x7,
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FusePartitions)) => 0,
        Bar0Reg::Punits(PunitsReg::Straps) => punits::STRAPS,
        Bar0Reg::Punits(PunitsReg::Straps2) => punits::STRAPS2,
        // The L2 and the memory partitions have nothing to report.
        Bar0Reg::Pmc(PmcReg::Word(PmcWord::NewId))
        | Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcLtcIntr))
        | Bar0Reg::Pmc(PmcReg::Word(PmcWord::PmcPartitionIntr)) => 0,
        Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FuseGpcs))
        | Bar0Reg::Punits(PunitsReg::Word(PunitsWord::Fuse(_))) => 0,
        // The last TPCs of a GPC are those that are off.
        Bar0Reg::Punits(PunitsReg::FuseTpcs(gpc)) if u32::from(gpc) < GPCS => {
            !0 << tpcs(board, u32::from(gpc)) & TPC_MASK
        }
        Bar0Reg::Punits(PunitsReg::FuseTpcs(_)) => 0,
        // The ring has no command running and no interrupt.
        Bar0Reg::Pring(PringReg::Word(PringWord::RingCommand))
        | Bar0Reg::Pring(PringReg::Word(PringWord::RingIntr(_))) => 0,
        Bar0Reg::Pring(PringReg::RingHubs) => 1,
        Bar0Reg::Pring(PringReg::RingPartitions) => count,
        Bar0Reg::Pring(PringReg::RingGpcs) => GPCS,
        Bar0Reg::Pgraph(PgraphReg::GraphUnits) => count << 16 | GPCS,
        Bar0Reg::Pgraph(PgraphReg::GpcTpcs(gpc)) => tpcs(board, u32::from(gpc)),
        Bar0Reg::Pffb(PffbReg::PartitionMebibytesOld) => mebibytes,
        Bar0Reg::Pffb(PffbReg::PartitionMebibytes(index)) if u32::from(index) < count => mebibytes,
        Bar0Reg::Pffb(PffbReg::PartitionMebibytes(_)) => 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let counts = [
            Bar0Reg::Punits(PunitsReg::DesignGpcs),
            Bar0Reg::Punits(PunitsReg::DesignTpcs),
            Bar0Reg::Punits(PunitsReg::DesignPartitions),
            Bar0Reg::Pffb(PffbReg::PartitionConfig),
            Bar0Reg::Pffb(PffbReg::PartitionMebibytes(0)),
            Bar0Reg::Pffb(PffbReg::PartitionMebibytesOld),
            Bar0Reg::Pring(PringReg::RingHubs),
            Bar0Reg::Pring(PringReg::RingPartitions),
            Bar0Reg::Pring(PringReg::RingGpcs),
            Bar0Reg::Pgraph(PgraphReg::GpcTpcs(0)),
            Bar0Reg::Pgraph(PgraphReg::GpcTpcs(1)),
            Bar0Reg::Pgraph(PgraphReg::GpcTpcs(2)),
            Bar0Reg::Pgraph(PgraphReg::GpcTpcs(3)),
        ];
        for board in Board::ALL {
            for mebibytes in (1..=128 << 10).step_by(97) {
                for reg in counts {
                    let value = register(board, mebibytes * MIB, reg);
                    assert!(value.is_some_and(|value| value > 0), "{reg} of {mebibytes} MiB");
                }
                let units = register(board, mebibytes * MIB, Bar0Reg::Pgraph(PgraphReg::GraphUnits)).unwrap();
                assert!(units & 0x1f != 0 && units >> 16 & 0x1f != 0);
            }
        }
    }

    #[test]
    fn fuses_and_counts_agree() {
        for board in Board::ALL {
            let read = |reg| register(board, board.vram_bytes(), reg).unwrap();
            let design = read(Bar0Reg::Punits(PunitsReg::DesignGpcs));
            assert_eq!(
                design - read(Bar0Reg::Punits(PunitsReg::Word(PunitsWord::FuseGpcs))).count_ones(),
                read(Bar0Reg::Pring(PringReg::RingGpcs))
            );
            for gpc in 0..4 {
                let off = read(Bar0Reg::Punits(PunitsReg::FuseTpcs(gpc))).count_ones();
                assert_eq!(
                    read(Bar0Reg::Punits(PunitsReg::DesignTpcs)) - off,
                    read(Bar0Reg::Pgraph(PgraphReg::GpcTpcs(gpc)))
                );
            }
        }
    }

    #[test]
    fn gtx480_has_fifteen_sms_and_the_others_fourteen() {
        let sms = |board| (0..4).map(|gpc| tpcs(board, gpc)).sum::<u32>();
        assert_eq!([Board::Gtx480, Board::TeslaC2050].map(sms), [15, 14]);
    }
}
