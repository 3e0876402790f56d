use super::*;
use crate::access::Width;
use crate::bar0::{Bar0Read, decode_read};
use fermi_spec::board::BAR0_BYTES;
use std::collections::BTreeSet;

/// Words of BAR0, first to last, that Linux 6.12's nouveau touches on a GF100 from probe to unload; recorded on a
/// software model. Runs inside of PGRAPH are joined over small gaps.
const NOUVEAU: &[(u32, u32)] = &[
    (0x00_0000, 0x00_0004),
    (0x00_0100, 0x00_0104),
    (0x00_0140, 0x00_0144),
    (0x00_0200, 0x00_0204),
    (0x00_0260, 0x00_0260),
    (0x00_0640, 0x00_0644),
    (0x00_1100, 0x00_1100),
    (0x00_1140, 0x00_1140),
    (0x00_1700, 0x00_1704),
    (0x00_1714, 0x00_1714),
    (0x00_2100, 0x00_2100),
    (0x00_2140, 0x00_2140),
    (0x00_2200, 0x00_221c),
    (0x00_2254, 0x00_2254),
    (0x00_2270, 0x00_2274),
    (0x00_227c, 0x00_227c),
    (0x00_259c, 0x00_259c),
    (0x00_25a4, 0x00_25a8),
    (0x00_2628, 0x00_2634),
    (0x00_2640, 0x00_2654),
    (0x00_2800, 0x00_280c),
    (0x00_2950, 0x00_295c),
    (0x00_2a04, 0x00_2a04),
    (0x00_2a30, 0x00_2a30),
    (0x00_2a40, 0x00_2a40),
    (0x00_3000, 0x00_300c),
    (0x00_9140, 0x00_9140),
    (0x00_9200, 0x00_9200),
    (0x00_9210, 0x00_9210),
    (0x00_9220, 0x00_9220),
    (0x00_9400, 0x00_9400),
    (0x00_9410, 0x00_9410),
    (0x00_e050, 0x00_e054),
    (0x00_e068, 0x00_e074),
    (0x00_e720, 0x00_e720),
    (0x00_e728, 0x00_e728),
    (0x02_0000, 0x02_0000),
    (0x02_0100, 0x02_0100),
    (0x02_1000, 0x02_1000),
    (0x02_12a8, 0x02_12a8),
    (0x02_12cc, 0x02_12cc),
    (0x02_2400, 0x02_2400),
    (0x02_240c, 0x02_240c),
    (0x02_2430, 0x02_2438),
    (0x02_2500, 0x02_2500),
    (0x02_2554, 0x02_2554),
    (0x04_0108, 0x04_010c),
    (0x04_013c, 0x04_013c),
    (0x04_2108, 0x04_210c),
    (0x04_213c, 0x04_213c),
    (0x04_4108, 0x04_410c),
    (0x04_413c, 0x04_413c),
    (0x07_0000, 0x07_0000),
    (0x08_4014, 0x08_4014),
    (0x08_4048, 0x08_4048),
    (0x08_5014, 0x08_5014),
    (0x08_5048, 0x08_5048),
    (0x08_6014, 0x08_6014),
    (0x08_6048, 0x08_6048),
    (0x08_8050, 0x08_8050),
    (0x08_8704, 0x08_8704),
    (0x10_0800, 0x10_0800),
    (0x10_0c10, 0x10_0c10),
    (0x10_0c80, 0x10_0c80),
    (0x10_0cb8, 0x10_0cbc),
    (0x10_1000, 0x10_1000),
    (0x10_4014, 0x10_4014),
    (0x10_4048, 0x10_4048),
    (0x10_4084, 0x10_4084),
    (0x10_4100, 0x10_410c),
    (0x10_412c, 0x10_412c),
    (0x10_4180, 0x10_4188),
    (0x10_41c0, 0x10_41c4),
    (0x10_5014, 0x10_5014),
    (0x10_5048, 0x10_5048),
    (0x10_5084, 0x10_5084),
    (0x10_5100, 0x10_510c),
    (0x10_512c, 0x10_512c),
    (0x10_5180, 0x10_5188),
    (0x10_51c0, 0x10_51c4),
    (0x10_a010, 0x10_a014),
    (0x10_a04c, 0x10_a04c),
    (0x10_a100, 0x10_a104),
    (0x10_a10c, 0x10_a10c),
    (0x10_a180, 0x10_a188),
    (0x10_a1c0, 0x10_a1c4),
    (0x10_a4d0, 0x10_a4d0),
    (0x10_a4dc, 0x10_a4dc),
    (0x11_020c, 0x11_020c),
    (0x12_1c74, 0x12_1c74),
    (0x12_2310, 0x12_2310),
    (0x12_232c, 0x12_2334),
    (0x12_2348, 0x12_2348),
    (0x13_7100, 0x13_7100),
    (0x13_7160, 0x13_7168),
    (0x13_717c, 0x13_7184),
    (0x13_7190, 0x13_7190),
    (0x13_7198, 0x13_7198),
    (0x13_7250, 0x13_7258),
    (0x13_726c, 0x13_7274),
    (0x13_7280, 0x13_7280),
    (0x13_7288, 0x13_7288),
    (0x13_7300, 0x13_7300),
    (0x13_73f0, 0x13_73f0),
    (0x17_e820, 0x17_e820),
    (0x17_e8c0, 0x17_e8c0),
    (0x17_e8d4, 0x17_e8dc),
    (0x17_ea44, 0x17_ea58),
    (0x40_0054, 0x40_0700),
    (0x40_4000, 0x40_4754),
    (0x40_5800, 0x40_5a18),
    (0x40_6018, 0x40_6034),
    (0x40_64a8, 0x40_6fe0),
    (0x40_7804, 0x40_78bc),
    (0x40_8000, 0x40_8064),
    (0x40_8800, 0x40_898c),
    (0x40_9000, 0x40_9c24),
    (0x41_0070, 0x41_1608),
    (0x41_8380, 0x41_9018),
    (0x41_980c, 0x41_a1c4),
    (0x50_0420, 0x50_0420),
    (0x50_0824, 0x50_1028),
    (0x50_2608, 0x50_2608),
    (0x50_2c90, 0x50_2c94),
    (0x50_405c, 0x50_5e98),
    (0x50_8420, 0x50_8420),
    (0x50_8824, 0x50_9028),
    (0x50_a608, 0x50_a608),
    (0x50_ac90, 0x50_ac94),
    (0x50_c084, 0x50_de98),
    (0x51_0420, 0x51_0420),
    (0x51_0824, 0x51_1028),
    (0x51_2608, 0x51_2608),
    (0x51_2c90, 0x51_2c94),
    (0x51_4084, 0x51_5e98),
    (0x51_8420, 0x51_8420),
    (0x51_8824, 0x51_9028),
    (0x51_a608, 0x51_a608),
    (0x51_ac90, 0x51_ac94),
    (0x51_c084, 0x51_d698),
    (0x60_13d4, 0x60_13d4),
];

fn words() -> impl Iterator<Item = u32> {
    (0..BAR0_BYTES as u32).step_by(4)
}

#[test]
fn every_named_register_has_been_decided_on() {
    let undecided: Vec<Bar0Reg> = Bar0Reg::all().filter(|&reg| named(reg).is_none()).collect();
    assert!(undecided.is_empty(), "{undecided:?}");
}

#[test]
fn everything_that_nouveau_touches_is_answered() {
    let refused: Vec<String> = NOUVEAU
        .iter()
        .flat_map(|&(first, last)| (first..=last).step_by(4))
        .filter(|&offset| Policy::of(offset) == Policy::Refused)
        .map(|offset| format!("{offset:#x}"))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[test]
fn word_outside_of_every_table_row_is_refused() {
    let answered = words().find(|&offset| {
        let listed = WORDS.iter().any(|word| word.0 == offset)
            || RANGES.iter().any(|range| (range.0..range.1).contains(&offset))
            || !matches!(decode_read(offset, Width::Dword), Bar0Read::Unmodelled { .. })
            || offset == VGA_CRTC;
        !listed && Policy::of(offset) != Policy::Refused
    });
    assert_eq!(answered, None);
}

#[test]
fn storage_is_bounded() {
    let pages: BTreeSet<u32> = words()
        .filter(|&offset| Policy::of(offset) == Policy::Storage)
        .map(|offset| offset / 0x1000)
        .collect();
    assert!(pages.len() * 0x1000 <= STORAGE_BYTES_MAX, "{} pages", pages.len());
}

#[test]
fn tables_are_sorted_and_disjoint() {
    assert!(WORDS.is_sorted_by(|one, next| one.0 < next.0));
    assert!(RANGES.iter().all(|range| range.0 < range.1));
    assert!(RANGES.is_sorted_by(|one, next| one.1 <= next.0));
}

#[test]
fn unaligned_offset_is_refused_outside_of_windows() {
    assert_eq!(Policy::of(0x0002), Policy::Refused);
    assert_eq!(Policy::of(PRAMIN_BASE + 1), Policy::Virtual);
}

/// Registers that take a physical address or reach the whole card: remembered or refused if not virtual, so that no
/// caller acts on the value.
#[test]
fn address_registers_that_are_not_mediated_have_no_effect() {
    let inert = [
        0x00_1718, 0x06_0014, 0x10_0c10, 0x10_0c80, 0x10_0cc8, 0x10_0ccc, 0x41_88b4, 0x41_88b8, 0x17_e8d4,
        0x00_26c8, 0x10_4050, 0x10_5054, 0x10_a110, 0x08_4050, 0x61_0010, 0x61_9f04,
    ];
    let acting: Vec<u32> = inert
        .into_iter()
        .filter(|&offset| Policy::of(offset) == Policy::Virtual)
        .collect();
    assert_eq!(acting, [0; 0]);
}
