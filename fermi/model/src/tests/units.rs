//! The units around the engines: PMC's tree, PTIMER, PEEPHOLE, L2, and what nobody has named.

use super::support::*;
use crate::Stepped;
use crate::unknown::{Poll, UnknownAccesses};
use fermi_spec::bar::Bar;
use fermi_spec::board::BAR0_BYTES;
use fermi_spec::engine::Engine;
use fermi_spec::regs::falcon::{Falcon, FalconReg};
use fermi_spec::regs::ltc::SliceReg;
use fermi_spec::regs::pfifo::{INJECT_VALID, intr};
use fermi_spec::regs::{
    Access, Bar0Reg, Bar0Word, LtcReg, LtcWord, PRAMIN_BASE, PbusReg, PcopyReg, PeepholeReg, PfifoReg,
    PmcReg, PtimerReg, PunitsReg, PunitsWord, describe, ltc, nouveau,
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

/// Words that have a name, with their access: registers, and those of falcons and slices.
fn named_words() -> Vec<(u32, Access)> {
    (0..BAR0_BYTES as u32)
        .step_by(4)
        .filter_map(|offset| match Bar0Word::decode(offset) {
            Bar0Word::Register(reg) => Some((offset, reg.access())),
            // The model has the falcons of units that a board for computing has, and those of the GPCs together only.
            Bar0Word::Falcon(Falcon::Pvld | Falcon::Ppdec | Falcon::Pppp | Falcon::GpccsOf(_), _) => None,
            Bar0Word::Falcon(_, reg) => Some((offset, reg.access())),
            Bar0Word::Slice(reg) => Some((offset, reg.access())),
            Bar0Word::Unnamed => None,
        })
        .collect()
}

/// Whether a load of the word has an effect: time goes on, a window moves on.
fn moves_on(offset: u32) -> bool {
    match Bar0Word::decode(offset) {
        Bar0Word::Register(reg) => matches!(
            reg,
            Bar0Reg::Ptimer(PtimerReg::PtimerLow | PtimerReg::PtimerHigh)
                | Bar0Reg::Peephole(PeepholeReg::PeepholeLow | PeepholeReg::PeepholeData)
        ),
        Bar0Word::Falcon(_, reg) => matches!(reg, FalconReg::CodeData(_) | FalconReg::DataData(_)),
        Bar0Word::Slice(_) | Bar0Word::Unnamed => false,
    }
}

/// A card with something pending in most units.
fn troubled() -> Bench {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut channel, &Methods::new().to(0, 0x20, &[0]).0);
    bench.run();
    for engine in Engine::ALL {
        bench.write(
            PfifoReg::InjectFault(u16::from(engine.number())),
            INJECT_VALID | 1,
        );
    }
    let enable = bench.read(PmcReg::PmcEnable);
    bench.write(PmcReg::PmcEnable, enable & !(1 << Engine::Copy1.enable_bit()));
    bench.read(PcopyReg::CopyCaps(1));
    bench.write(PmcReg::PmcEnable, enable);
    bench
}

/// The access column of the register table holds for the card too.
#[test]
fn store_to_a_read_only_register_changes_nothing() {
    let mut bench = troubled();
    let words = named_words();
    let snapshot = |bench: &mut Bench| -> Vec<(u32, u32)> {
        let still = words.iter().filter(|(offset, _)| !moves_on(*offset));
        still
            .map(|(offset, _)| (*offset, bench.read_at(*offset)))
            .collect()
    };
    let before = snapshot(&mut bench);
    let read_only = words.iter().filter(|(_, access)| *access == Access::ReadOnly);
    for (offset, _) in read_only.clone() {
        bench.write_at(*offset, u32::MAX);
        bench.write_at(*offset, 0);
    }
    let after = snapshot(&mut bench);
    let changed: Vec<String> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after)
        .map(|(before, after)| format!("{}: {:#x} to {:#x}", describe(before.0), before.1, after.1))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert_eq!(bench.card.counters().unmodelled_writes, 0);
    assert!(read_only.count() > 500);
}

#[test]
fn write_only_register_reads_zero_and_a_bit_is_cleared_by_a_one() {
    let mut bench = troubled();
    let mut cleared = 0;
    for (offset, access) in named_words() {
        let before = bench.read_at(offset);
        match access {
            Access::WriteOnly => assert_eq!(before, 0, "{}", describe(offset)),
            Access::WriteOneClears => {
                // Levels go when their sources do.
                let levels = match Bar0Reg::decode(offset) {
                    Some(Bar0Reg::Pfifo(PfifoReg::PfifoIntr)) => intr::LEVELS,
                    Some(Bar0Reg::Pfifo(PfifoReg::PbdmaIntrSource)) => u32::MAX,
                    _ => 0,
                };
                let bit = before & before.wrapping_neg();
                bench.write_at(offset, bit);
                let after = bench.read_at(offset);
                assert_eq!(after & !levels, before & !bit & !levels, "{}", describe(offset));
                cleared += u32::from(bit & !levels != 0);
            }
            Access::ReadOnly | Access::ReadWrite => {}
        }
    }
    assert!(cleared >= 4, "only {cleared} registers had a bit to clear");
}

/// What a word keeps that means nothing besides its access is what the table says of it.
#[test]
fn plain_register_keeps_a_store_as_its_access_says() {
    let mut bench = bare();
    let plain = Bar0Reg::all().filter(|reg| matches!(reg, Bar0Reg::Pclock(_) | Bar0Reg::Pnvio(_)));
    for reg in plain {
        bench.write(reg, 0x5a5a_5a5a);
        let kept = if reg.access() == Access::ReadWrite {
            0x5a5a_5a5a
        } else {
            0
        };
        assert_eq!(bench.read(reg), kept, "{reg}");
    }
}

#[test]
fn eight_byte_access_is_two_registers() {
    let mut bench = bare();
    let at = u64::from(PbusReg::PraminBase.offset());
    let words = [0x12u32, 0x34].map(u32::to_le_bytes).concat();
    bench.card.bar_write(Bar::Bar0, at, &words);
    assert_eq!(
        [PbusReg::PraminBase, PbusReg::Bar1Block].map(|reg| bench.read(reg)),
        [0x12, 0x34]
    );
    let mut found = [0; 8];
    bench.card.bar_read(Bar::Bar0, at, &mut found);
    assert_eq!(found[..], words);
}

/// Each part is answered where it lies, whatever the rest of the access reaches.
#[test]
fn access_across_ends_is_answered_piece_by_piece() {
    let mut bench = ready();
    bench.write(PbusReg::PraminBase, 0);
    bench.set_vram_u32(0, 0xcafe);
    let mut found = [0; 8];
    bench
        .card
        .bar_read(Bar::Bar0, u64::from(PRAMIN_BASE) - 4, &mut found);
    assert_eq!(found[4..], 0xcafeu32.to_le_bytes());
    bench.card.bar_read(Bar::Bar0, BAR0_BYTES - 4, &mut found);
    assert_eq!((found[..4] == [0; 4], &found[4..]), (true, &[0xff; 4][..]));
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
        assert_eq!(bench.read_at(first + slice + SliceReg::TagClearBusy.offset()), 0);
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
