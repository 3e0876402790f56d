use super::*;
use crate::bar0::{Bar0Read, decode_read};
use fermi_spec::board::BAR0_BYTES;
use fermi_spec::regs::nouveau::TOUCHED;
use fermi_spec::regs::{Piece, Width};
use std::collections::BTreeSet;

fn words() -> impl Iterator<Item = u32> {
    (0..BAR0_BYTES as u32).step_by(4)
}

#[test]
fn every_named_register_has_been_decided_on() {
    let mirrored = |reg: &Bar0Reg| PPCI.range().contains(&reg.offset());
    let undecided: Vec<Bar0Reg> = Bar0Reg::all()
        .filter(|reg| !mirrored(reg))
        .filter(|&reg| Policy::of(reg.offset()) != Policy::of_register(reg))
        .collect();
    assert!(undecided.is_empty(), "{undecided:?}");
}

#[test]
fn everything_that_nouveau_touches_is_answered() {
    let refused: Vec<String> = TOUCHED
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
            || matches!(Piece::first(offset.into(), 4), Piece::Pramin { .. })
            || offset == VGA_CRTC;
        !listed && Policy::of(offset) != Policy::Refused
    });
    assert_eq!(answered, None);
}

#[test]
fn storage_is_bounded() {
    let pages: BTreeSet<u32> = words()
        .filter(|&offset| Policy::of(offset) == Policy::Storage || Bar0Reg::decode(offset).is_some())
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
        0x00_26c8, 0x10_4054, 0x10_5054, 0x10_a110, 0x08_4050, 0x61_0010, 0x61_9f04,
    ];
    let acting: Vec<u32> = inert
        .into_iter()
        .filter(|&offset| Policy::of(offset) == Policy::Virtual)
        .collect();
    assert_eq!(acting, [0; 0]);
}

#[test]
fn word_that_cannot_be_written_is_not_kept() {
    let kept: Vec<Bar0Reg> = Bar0Reg::all()
        .filter(|reg| reg.access() != Access::ReadWrite && Policy::of_register(*reg) == Policy::Storage)
        .collect();
    assert!(kept.is_empty(), "{kept:?}");
}
