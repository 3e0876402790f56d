//! From power-on to the first copies, register by register.

use super::support::*;
use crate::Stepped;
use fermi_spec::bar::Bar;
use fermi_spec::regs::pflush;
use fermi_spec::regs::{
    PRAMIN_BASE, PbusReg, PcopyReg, PffbReg, PfifoReg, PflushReg, PmcReg, PtimerReg, PunitsReg,
};

#[test]
fn card_tells_what_it_is() {
    let mut bench = bare();
    assert_eq!(bench.read(PmcReg::Boot0), 0x0c00_00a3);
    let count = bench.read(PunitsReg::DesignPartitions);
    let total: u32 = (0..count as u16)
        .map(|p| bench.read(PffbReg::PartitionMebibytes(p)))
        .sum();
    assert_eq!(u64::from(total) << 20, VRAM_BYTES);
    bench.write(PmcReg::PbdmaEnable, u32::MAX);
    assert_eq!(bench.read(PmcReg::PbdmaEnable), 7);
}

#[test]
fn pramin_shows_physical_memory_of_both_kinds() {
    let mut bench = bare();
    bench.write(PbusReg::PraminBase, 0x12);
    bench.write_at(PRAMIN_BASE + 0x34, 0xcafe);
    assert_eq!(bench.vram_u32(0x12_0034), 0xcafe);
    bench.write(PbusReg::PraminBase, 2 << 24 | (RAM_BASE >> 16) as u32);
    bench.write_at(PRAMIN_BASE + 0x38, 0xbeef);
    assert_eq!(bench.ram_u32(0x38), 0xbeef);
}

#[test]
fn pramin_takes_bytes_and_halves() {
    let mut bench = bare();
    bench
        .card
        .bar_write(Bar::Bar0, u64::from(PRAMIN_BASE) + 5, &[0xaa]);
    bench
        .card
        .bar_write(Bar::Bar0, u64::from(PRAMIN_BASE) + 6, &[0xbb, 0xcc]);
    assert_eq!(bench.vram_u32(4), 0xccbb_aa00);
}

#[test]
fn window_built_through_pramin_translates() {
    let mut bench = bare();
    // Directory at 64 KiB, small table at 256 KiB, block at 128 KiB: all through PRAMIN.
    bench.write(PbusReg::PraminBase, 0);
    let put = |bench: &mut Bench, at: u32, words: &[u32]| {
        for (index, word) in words.iter().enumerate() {
            bench.write_at(PRAMIN_BASE + at + 4 * index as u32, *word);
        }
    };
    put(&mut bench, 0x1_0000, &[0, 1 | 0x40 << 4]);
    put(&mut bench, 0x4_0000 + 8 * 5, &[1 | 0x300 << 4, 0]);
    put(&mut bench, 0x2_0200, &[0x1_0000, 0, 0x3ff_ffff, 0]);
    bench.write(PbusReg::Bar3Block, 1 << 31 | 0x20);
    bench.write(PflushReg::HostFlush, 1);
    assert_eq!(bench.read(PflushReg::HostFlush) & pflush::FLUSH_BUSY, 0);
    bench
        .card
        .bar_write(Bar::Bar3, 0x5008, &0x1234_5678u32.to_le_bytes());
    assert_eq!(bench.vram_u32(0x30_0008), 0x1234_5678);
    assert_eq!(bench.read_bar(Bar::Bar3, 0x5008), 0x1234_5678);
}

#[test]
fn window_fault_reads_a_pattern_and_is_recorded() {
    let mut bench = ready();
    assert_eq!(bench.read_bar(Bar::Bar1, 0x700_0000), 0xbad0_ac00);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 4);
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 4 + 1)), 0x700_0000);
    assert_eq!(bench.read(PfifoReg::PfifoIntr) & 1 << 28, 1 << 28);
    bench.write(PfifoReg::FaultUnits, 1 << 4);
    assert_eq!(bench.read(PfifoReg::PfifoIntr) & 1 << 28, 0);
}

#[test]
fn second_fault_of_a_unit_is_dropped_and_reported() {
    let mut bench = ready();
    bench.read_bar(Bar::Bar1, 0x700_0000);
    bench.read_bar(Bar::Bar1, 0x700_1000);
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 4 + 1)), 0x700_0000);
    assert_eq!(bench.read(PfifoReg::PfifoIntr) & 1 << 27, 1 << 27);
}

/// Copies a pattern from VRAM to system memory and back to other VRAM, by the given methods.
fn copy_there_and_back(bind: u32, copy: fn(Methods, u64, u64) -> Methods) {
    const THERE: u64 = 0x800_0000;
    const RAM: u64 = 0x900_0000;
    const BACK: u64 = 0xa00_0000;
    const BYTES: u64 = 0x2_3000;
    let mut bench = ready();
    let mut channel = bench.channel(3);
    let (there, back) = (bench.allocate(BYTES), bench.allocate(BYTES));
    bench.map(channel.space, THERE, Page::Vram(there), BYTES);
    bench.map(channel.space, RAM, Page::Ram(0x10_0000), BYTES);
    bench.map(channel.space, BACK, Page::Vram(back), BYTES);
    let pattern: Vec<u8> = (0..BYTES).map(|i| (i * 7 + i / 256) as u8).collect();
    bench.set_vram_bytes(there, &pattern);
    bench.runlist(&[3]);
    let methods = Methods::new().to(1, 0, &[bind]);
    let methods = copy(copy(methods, THERE, RAM), RAM, BACK);
    bench.submit(&mut channel, &methods.0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.ram_bytes(0x10_0000, BYTES as usize), pattern);
    assert_eq!(bench.vram_bytes(back, BYTES as usize), pattern);
    assert_eq!(bench.gp_get(&channel), channel.put);
    assert_eq!(bench.card.counters().copies, 2);
    // 140 KiB each way at 6 GB/s, and twice the start-up.
    let expected = 2 * (BYTES * 1_000 / 6_000 + 7_000);
    let time = bench.card.gpu_time();
    assert!(
        (expected..expected + 50_000).contains(&time),
        "{time} ns, expected {expected}"
    );
}

#[test]
fn copy_engine_0_copies_there_and_back() {
    copy_there_and_back(0x0004_90b5, |m, from, to| m.copy(1, from, to, 0x1000, 0x23));
}

#[test]
fn copy_engine_1_copies_there_and_back() {
    copy_there_and_back(0x0005_90b8, |m, from, to| m.copy(1, from, to, 0x1000, 0x23));
}

#[test]
fn m2mf_copies_there_and_back() {
    copy_there_and_back(0x0000_9039, |m, from, to| m.m2mf(1, from, to, 0x1000, 0x23));
}

#[test]
fn lines_with_pitches_land_where_they_belong() {
    let mut bench = ready();
    let mut channel = bench.channel(0);
    let vram = bench.allocate(0x4000);
    bench.map(channel.space, 0x800_0000, Page::Vram(vram), 0x4000);
    for line in 0..4 {
        bench.set_vram_bytes(vram + line * 0x100, &[line as u8 + 1; 5]);
    }
    bench.runlist(&[0]);
    let methods = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .to(1, 0x30c, &[0, 0x800_0000, 0, 0x800_2003, 0x100, 0x20, 5, 4])
        .to(1, 0x300, &[0x110]);
    bench.submit(&mut channel, &methods.0);
    bench.run();
    for line in 0..4u64 {
        let bytes = bench.vram_bytes(vram + 0x2003 + line * 0x20 - 1, 7);
        let value = line as u8 + 1;
        assert_eq!(bytes, [0, value, value, value, value, value, 0]);
    }
}

#[test]
fn query_is_written_after_the_copy_with_the_time() {
    let mut bench = ready();
    let mut channel = bench.channel(0);
    let vram = bench.allocate(0x4000);
    bench.map(channel.space, 0x800_0000, Page::Vram(vram), 0x4000);
    bench.set_vram_u32(vram, 77);
    bench.runlist(&[0]);
    let methods = Methods::new()
        .to(1, 0, &[0x0005_90b8])
        .to(1, 0x30c, &[0, 0x800_0000, 0, 0x800_1000, 4, 4, 4, 1])
        .to(1, 0x338, &[0, 0x800_2000, 0x1234])
        .to(1, 0x300, &[0x1110]);
    bench.submit(&mut channel, &methods.0);
    bench.run();
    assert_eq!(bench.vram_u32(vram + 0x1000), 77);
    assert_eq!(bench.vram_u32(vram + 0x2000), 0x1234);
    let time = bench.vram_u64(vram + 0x2008);
    assert!(time > 7_000 && time <= bench.card.gpu_time());
}

#[test]
fn inline_data_lands_and_releases_the_semaphore() {
    let mut bench = ready();
    let mut channel = bench.channel(0);
    let vram = bench.allocate(0x2000);
    bench.map(channel.space, 0x800_0000, Page::Vram(vram), 0x2000);
    bench.runlist(&[0]);
    let methods = Methods::new()
        .to(2, 0, &[0x9039])
        .to(2, 0x238, &[0, 0x800_0ffe])
        .to(2, 0x31c, &[8, 1])
        .to(2, 0x32c, &[0, 0x800_0100, 9])
        .to(2, 0x300, &[0x10_2111]);
    let mut words = methods.0;
    words.push(fermi_spec::pushbuffer::non_incrementing(2, 0x304, 2));
    words.extend([0x0403_0201, 0x0807_0605]);
    bench.submit(&mut channel, &words);
    bench.run();
    assert_eq!(bench.vram_bytes(vram + 0xffe, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bench.vram_u32(vram + 0x100), 9);
}

#[test]
fn fence_interrupt_sends_one_message_until_rearmed() {
    let mut bench = ready();
    let mut channel = bench.channel(0);
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    bench.runlist(&[0]);
    bench.run();
    assert!(bench.card.take_interrupt(), "runlist done");
    bench.write(PfifoReg::RunlistIntr, 1 << 28);
    assert!(!bench.card.interrupt_line());
    bench.card.bar_write(Bar::Bar0, 0x88704, &[0xff]);
    bench.submit(&mut channel, &Methods::new().to(0, 0x20, &[0]).0);
    bench.run();
    assert!(bench.card.take_interrupt());
    assert!(!bench.card.take_interrupt());
    assert_eq!(bench.read(PmcReg::PmcIntr(0)), 1 << 8);
    assert_eq!(bench.read(PfifoReg::EngineIntrSource), 1);
    // Still pending at the re-arm: another message.
    bench.card.bar_write(Bar::Bar0, 0x88704, &[0xff]);
    assert!(bench.card.take_interrupt());
    bench.write(PfifoReg::EngineIntr(0), 1);
    assert_eq!(bench.read(PmcReg::PmcIntr(0)), 0);
}

#[test]
fn idle_card_follows_the_host_and_reads_never_stand_still() {
    let mut bench = ready();
    bench.card.step(1_000, 10);
    let before = bench.card.gpu_time();
    bench.card.step(501_000, 10);
    assert_eq!(bench.card.gpu_time(), before + 500_000);
    let first = bench.read(PtimerReg::PtimerLow);
    assert!(bench.read(PtimerReg::PtimerLow) > first);
}

#[test]
fn access_to_a_unit_that_is_off_is_squashed() {
    let mut bench = bare();
    assert_eq!(bench.read(PcopyReg::CopyCaps(0)), 0xbad0_da00);
    assert_eq!(bench.read(PbusReg::PbusIntr), 2);
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(PcopyReg::CopyCaps(0)), 0x2040_1012);
}

#[test]
fn unmodelled_words_read_zero_and_are_counted() {
    let mut bench = bare();
    assert_eq!(bench.read_at(0x1ff_0000), 0);
    bench.write_at(0x1ff_0000, 1);
    assert_eq!(bench.card.counters().unmodelled_reads, 1);
    assert_eq!(bench.card.counters().unmodelled_writes, 1);
}
