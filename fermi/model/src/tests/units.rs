//! The units around the engines: PMC's tree, PTIMER, PEEPHOLE, L2, and what nobody has named.

use super::support::*;
use crate::Stepped;
use crate::unknown::{Poll, UnknownAccesses};
use fermi_spec::bar::Bar;
use fermi_spec::regs::{
    LtcReg, LtcWord, PbusReg, PcopyReg, PeepholeReg, PfifoReg, PmcReg, PtimerReg, PunitsReg, PunitsWord,
    describe, ltc, nouveau,
};

#[test]
fn everything_that_nouveau_touches_is_modelled() {
    let mut bench = ready();
    for &(first, last) in nouveau::TOUCHED {
        for offset in (first..=last).step_by(4) {
            let value = bench.read_at(offset);
            bench.write_at(offset, value);
        }
    }
    let unknown: Vec<String> = bench
        .card
        .unknown_registers()
        .map(|(offset, _)| describe(offset).to_string())
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert_eq!(bench.card.counters().unmodelled_writes, 0);
}

#[test]
fn unknown_words_and_a_poll_of_one_are_told() {
    let mut bench = bare();
    for _ in 0..10 {
        bench.read_at(0x1ff_0000);
        bench.read(PtimerReg::PtimerLow);
    }
    bench.write_at(0x1ff_0004, 1);
    bench.read_at(0x1ff_0000);
    let unknown: Vec<_> = bench.card.unknown_registers().collect();
    let accesses = |reads, writes| UnknownAccesses { reads, writes };
    assert_eq!(
        unknown,
        [(0x1ff_0000, accesses(11, 0)), (0x1ff_0004, accesses(0, 1))]
    );
    assert_eq!(
        bench.card.longest_poll(),
        Poll {
            offset: 0x1ff_0000,
            reads: 10
        }
    );
}

#[test]
fn alarm_interrupts_when_the_clock_of_the_card_gets_there() {
    let mut bench = bare();
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    bench.write(PtimerReg::PtimerIntrEnable, 1);
    let now = bench.read(PtimerReg::PtimerLow);
    bench.write(PtimerReg::PtimerAlarm, now + 64_000);
    assert_eq!(bench.card.step(0, 10), Stepped::Waiting);
    assert_eq!(bench.card.step(63_000, 10), Stepped::Waiting);
    assert!(!bench.card.interrupt_line());
    assert_eq!(bench.card.step(65_000, 10), Stepped::Idle);
    assert!(bench.card.take_interrupt());
    assert_eq!(bench.read(PmcReg::PmcIntr(0)), 1 << 20);
    bench.write(PtimerReg::PtimerIntr, 1);
    assert_eq!(bench.read(PmcReg::PmcIntr(0)), 0);
}

#[test]
fn time_that_a_driver_sets_goes_on() {
    let mut bench = bare();
    bench.write(PtimerReg::PtimerHigh, 0x12);
    bench.write(PtimerReg::PtimerLow, 0x1000);
    assert_eq!(bench.read(PtimerReg::PtimerHigh), 0x12);
    let low = bench.read(PtimerReg::PtimerLow);
    assert!(low > 0x1000 && low < 0x2000, "{low:#x}");
    assert_eq!(low & 31, 0);
}

#[test]
fn peephole_walks_through_an_address_space() {
    let mut bench = bare();
    let space = bench.space();
    let page = bench.allocate(0x2000);
    bench.map(space, 0x1_2345_6000, Page::Vram(page), 0x1000);
    let block = bench.allocate(0x1000);
    bench.point(block, space);
    bench.write(PeepholeReg::PeepholeBlock, 1 << 31 | (block >> 12) as u32);
    bench.write(PeepholeReg::PeepholeHigh, 1);
    bench.write(PeepholeReg::PeepholeLow, 0x2345_6ff8);
    bench.write(PeepholeReg::PeepholeData, 0xcafe);
    bench.write(PeepholeReg::PeepholeData, 0xbeef);
    assert_eq!(bench.vram_u64(page + 0xff8), 0xbeef_0000_cafe);
    assert_eq!(bench.read(PeepholeReg::PeepholeLow), 0x2345_7000);
    assert_eq!(bench.read(PeepholeReg::PeepholeData), 0xbad0_ac00);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 3);
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 3 + 1)), 0x2345_7000);
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 3 + 2)), 1);
}

#[test]
fn clear_values_are_kept_by_entry() {
    let mut bench = bare();
    for entry in [1, 15] {
        bench.write(LtcReg::ZbcIndex, entry);
        bench.write(LtcReg::ZbcColour(3), 0x100 + entry);
        bench.write(LtcReg::ZbcDepth, 0x200 + entry);
    }
    bench.write(LtcReg::ZbcIndex, 1);
    assert_eq!(bench.read(LtcReg::ZbcColour(3)), 0x101);
    assert_eq!(bench.read(LtcReg::ZbcColour(2)), 0);
    assert_eq!(bench.read(LtcReg::ZbcDepth), 0x201);
}

#[test]
fn clearing_of_tags_is_done_at_once_in_every_slice() {
    let mut bench = bare();
    bench.write(LtcWord::LtcTagFirst, 0);
    bench.write(LtcWord::LtcTagLast, 0xfff);
    bench.write(LtcWord::LtcTagClear, 4);
    let count = bench.read(PunitsReg::DesignPartitions);
    let slices = bench.read(LtcReg::LtcSlices) >> ltc::SLICES_SHIFT;
    assert!(count > 0 && slices > 0);
    for slice in (0..count).flat_map(|c| (0..slices).map(move |s| c * ltc::LTC.bytes + s * ltc::SLICE.bytes))
    {
        let first = ltc::LTC.first + ltc::SLICE.first;
        assert_eq!(bench.read_at(first + slice + 0xc8), 0);
    }
}

#[test]
fn what_the_vbios_left_reads_back_as_a_driver_changes_it() {
    let mut bench = bare();
    let before = bench.read(PunitsWord::Post0);
    bench.write(PunitsWord::Post0, before | 0x800);
    assert_eq!(bench.read(PunitsWord::Post0), 0x0001_0800);
    assert_eq!(bench.read(PunitsWord::PciVersion) & 0x81, 0x81);
    bench.card.bar_write(Bar::Bar0, 0x60_13d5, &[0x57]);
    let mut byte = [0];
    bench.card.bar_read(Bar::Bar0, 0x60_13d5, &mut byte);
    assert_eq!(byte, [0x57]);
}

#[test]
fn third_line_tells_the_pmu_what_the_first_tells_the_host() {
    let mut bench = bare();
    bench.write(PbusReg::PbusIntrEnable, 2);
    bench.read(PcopyReg::CopyCaps(0));
    assert_eq!(bench.read(PmcReg::PmcIntr(0)), 1 << 28);
    assert_eq!(bench.read(PmcReg::PmcIntr(2)), 1 << 28);
}
