//! Words of BAR0 that tell what card this is: fixed when it is made.

use fermi_spec::{
    board::Board,
    regs::{Bar0Reg, pmc},
};

const MIB: u64 = 1 << 20;
/// Partitions that can have a size register, and that GF100 has at most.
const PARTITIONS_MAX: u64 = 6;

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
        Bar0Reg::Boot0 => board.boot0(),
        Bar0Reg::Endian => 0,
        Bar0Reg::Post0 => 0x0001_0000,
        Bar0Reg::Post1 => pmc::POST_SCRIPTS_RAN,
        Bar0Reg::DesignGpcs | Bar0Reg::DesignTpcs => 4,
        Bar0Reg::DesignPartitions | Bar0Reg::PartitionConfig => count,
        // Compute only: no display, no video decoders.
        Bar0Reg::FuseDisable => 0x7,
        Bar0Reg::FusePartitions => 0,
        Bar0Reg::Straps => pmc::STRAPS,
        Bar0Reg::PartitionMebibytesOld => mebibytes,
        Bar0Reg::PartitionMebibytes(index) if u32::from(index) < count => mebibytes,
        Bar0Reg::PartitionMebibytes(_) => 0,
        _ => return None,
    })
}

/// What a word without a name tells.
#[derive(Clone, Copy)]
enum Word {
    Constant(u32),
    Partitions,
    /// ROPs in bits 20:16, GPCs in 4:0.
    GraphUnits,
    /// TPCs of a GPC.
    Tpcs(u32),
}

const GPCS: u32 = 4;

/// Words without a name, by offset, ascending: counts that drivers divide by, commands that are always done.
const WORDS: &[(u32, Word)] = &[
    (0x10_100c, Word::Constant(0x8003_b010)), // second strap word (read from a Quadro 6000 by GPUvm)
    (0x12_1c4c, Word::Constant(0)),           // register ring: no command running
    (0x12_1c58, Word::Constant(0)),           // register ring: no interrupt
    (0x12_1c5c, Word::Constant(0)),
    (0x12_1c74, Word::Partitions),
    (0x12_1c78, Word::Constant(GPCS)),
    (0x17_e8dc, Word::Constant(2 << 28)), // slices of an L2 partition. unverified: 2 of 64 KiB make 768 KiB
    (0x40_9604, Word::GraphUnits),
    (0x50_2608, Word::Tpcs(0)),
    (0x50_a608, Word::Tpcs(1)),
    (0x51_2608, Word::Tpcs(2)),
    (0x51_a608, Word::Tpcs(3)),
];

/// The fixed value of a word without a name.
pub(crate) fn word(board: Board, vram_bytes: u64, offset: u32) -> Option<u32> {
    let index = WORDS.binary_search_by_key(&offset, |(at, _)| *at).ok()?;
    Some(match WORDS[index].1 {
        Word::Constant(value) => value,
        Word::Partitions => partitions(vram_bytes).0,
        Word::GraphUnits => partitions(vram_bytes).0 << 16 | GPCS,
        Word::Tpcs(gpc) => tpcs(board, gpc),
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

    #[test]
    fn words_are_in_ascending_order() {
        assert!(WORDS.is_sorted_by_key(|(offset, _)| *offset));
    }

    #[test]
    fn gtx480_has_fifteen_sms_and_the_others_fourteen() {
        let sms = |board| (0..4).map(|gpc| tpcs(board, gpc)).sum::<u32>();
        assert_eq!([Board::Gtx480, Board::TeslaC2050].map(sms), [15, 14]);
    }
}
