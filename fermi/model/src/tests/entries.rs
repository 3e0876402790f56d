//! The channel table, runlists, ring entries and headers: their errors and their flags.

use super::support::*;
use crate::Stepped;
use fermi_spec::regs::pbdma;
use fermi_spec::{
    addr::GpuVa,
    gpfifo::GpEntry,
    instance::offset,
    pushbuffer,
    regs::{
        BypassReg, PbdmaReg, PfifoReg,
        pbdma::pbdma_intr,
        pfifo::{self, intr, scheduler_error, table_error},
    },
};

const PAGE: u64 = 0x800_0000;
const ACQUIRE_AND: u32 = 8;
const GIVE_WAY: u32 = 1 << 12;
const NO_SWITCH: u64 = 2;

fn pair(bench: &mut Bench) -> (Channel, Channel, u64) {
    let (a, b) = (bench.channel(1), bench.channel(2));
    let page = bench.allocate(0x1000);
    bench.map(a.space, PAGE, Page::Vram(page), 0x1000);
    bench.map(b.space, PAGE, Page::Vram(page), 0x1000);
    bench.flush();
    bench.runlist(&[1, 2]);
    bench.run();
    (a, b, page)
}

/// All channels on one PBDMA.
fn pair_on_one_pbdma(bench: &mut Bench) -> (Channel, Channel, u64) {
    bench.write(PfifoReg::PfifoPbdmas, 1);
    pair(bench)
}

fn table_error_of(bench: &mut Bench, id: u16, value: u32) -> Option<u32> {
    let before = bench.read(PfifoReg::ChannelInstance(id));
    bench.write(PfifoReg::ChannelInstance(id), value);
    let raised = bench.read(PfifoReg::PfifoIntr) & intr::CHANNEL_TABLE != 0;
    bench.write(PfifoReg::PfifoIntr, intr::CHANNEL_TABLE);
    assert_eq!(raised, bench.read(PfifoReg::ChannelInstance(id)) == before);
    raised.then(|| bench.read(PfifoReg::ChannelTableError))
}

#[test]
fn entries_of_channels_in_use_stay_and_say_why() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    let other = 0xc000_0123;
    assert_eq!(table_error_of(&mut bench, 1, other), Some(table_error::IN_USE));
    assert_eq!(table_error_of(&mut bench, 1, 0), Some(table_error::RUNNABLE));
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    assert_eq!(table_error_of(&mut bench, 1, 0), Some(table_error::PENDING));
    bench.runlist(&[2]);
    bench.run();
    assert_eq!(table_error_of(&mut bench, 1, 0), None);
    assert_eq!(
        table_error_of(&mut bench, 9, 0x9000_0123),
        Some(table_error::INVALID_TARGET)
    );
}

#[test]
fn entry_of_a_channel_on_a_pbdma_stays() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.submit(&mut a, &Methods::new().semaphore(PAGE, 5, 1).0);
    bench.run();
    assert_eq!(table_error_of(&mut bench, 1, 0), Some(table_error::ACTIVE));
}

#[test]
fn runlist_of_ids_that_no_channel_has_runs_the_others() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.runlist(&[700, 1, 1, 77, 1]);
    bench.run();
    assert_ne!(bench.read(PfifoReg::PfifoIntr) & intr::SCHEDULER, 0);
    assert_eq!(
        bench.read(PfifoReg::SchedulerError),
        scheduler_error::INACTIVE_CHANNEL
    );
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 5);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
}

#[test]
fn runlist_that_is_nowhere_is_empty_and_an_error() {
    for base in [0x0fff_ffff, 0x1000_0100, 0x3fff_ffff] {
        let mut bench = ready();
        let (mut a, _, page) = pair(&mut bench);
        bench.write(PfifoReg::PfifoIntr, intr::SCHEDULER);
        bench.write(PfifoReg::RunlistBase, base);
        bench.write(PfifoReg::RunlistCommit, 0x01f0_0fff);
        bench.run();
        assert_eq!(bench.read(PfifoReg::RunlistStatus) & pfifo::RUNLIST_PENDING, 0);
        assert_ne!(bench.read(PfifoReg::PfifoIntr) & intr::SCHEDULER, 0);
        bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
        bench.run();
        assert_eq!(bench.vram_u32(page), 0);
    }
}

#[test]
fn commit_while_another_is_pending_replaces_it() {
    let mut bench = ready();
    let (_, mut b, page) = pair(&mut bench);
    bench.runlist(&[]);
    bench.runlist(&[2]);
    assert_ne!(bench.read(PfifoReg::RunlistStatus) & pfifo::RUNLIST_PENDING, 0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 1);
    bench.submit(&mut b, &Methods::new().release(PAGE, 1).0);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
}

#[test]
fn all_channels_of_the_table_get_their_turn() {
    let mut bench = ready();
    let page = bench.allocate(0x1000);
    let space = bench.space();
    bench.map(space, PAGE, Page::Vram(page), 0x1000);
    // Far more would not fit into the test's VRAM; the last ids are among them.
    let ids: Vec<u16> = (0..128).step_by(8).chain([127]).collect();
    let mut channels: Vec<Channel> = ids.iter().map(|&id| bench.channel_in(id, space)).collect();
    bench.flush();
    bench.runlist(&ids);
    for channel in &mut channels {
        let at = PAGE + 4 * u64::from(channel.id);
        bench.submit(channel, &Methods::new().release(at, 7).0);
    }
    assert_eq!(bench.run(), Stepped::Idle);
    for id in ids {
        assert_eq!(bench.vram_u32(page + 4 * u64::from(id)), 7, "channel {id}");
    }
}

/// The interrupt that a raw ring entry gives, with its shadow.
fn error_of_entry(entry: u64) -> Option<u32> {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.push_entry(&mut a, entry);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    bench.run();
    let Some(pbdma) = (0..3).find(|&pbdma| bench.read(PbdmaReg::PbdmaIntr(pbdma)) != 0) else {
        assert_eq!(bench.vram_u32(page), 1);
        return None;
    };
    assert_eq!(bench.vram_u32(page), 0);
    assert_eq!(bench.read(PbdmaReg::PbdmaGpShadowLow(pbdma)), entry as u32);
    assert_eq!(
        bench.read(PbdmaReg::PbdmaGpShadowHigh(pbdma)),
        (entry >> 32) as u32
    );
    let intr = bench.read(PbdmaReg::PbdmaIntr(pbdma));
    bench.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1, "it goes on behind the entry");
    Some(intr)
}

#[test]
fn control_entries_do_nothing_or_stop_the_pbdma() {
    let opcodes = [0u64, 2, 3, 1, 4, 0xff].map(|opcode| error_of_entry(opcode << 32));
    let bad = Some(pbdma_intr::GP_ENTRY);
    assert_eq!(opcodes, [None, None, None, bad, bad, bad]);
}

#[test]
fn methods_for_another_board_are_skipped() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.set_vram_u32(a.instance + offset::SUBDEVICE, 0x3000_0001);
    let release = |at: u64| Methods::new().release(PAGE + at, 1).0;
    let words = [
        vec![0x0002_0010, 0x0001_0020],
        release(0),
        vec![pushbuffer::immediate(0, 0x04, 0), 0x0003_0000],
        release(4),
        vec![0x0001_0000],
        release(8),
        vec![0x0001_0010],
        release(12),
    ];
    bench.submit(&mut a, &words.concat());
    bench.run();
    let released = [0, 4, 8, 12].map(|at| bench.vram_u32(page + at));
    assert_eq!(released, [0, 1, 0, 1]);
    assert_eq!(bench.card.counters().pbdma_errors, 0);
}

#[test]
fn conditional_entry_for_another_board_is_not_fetched() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    bench.submit(&mut a, &[0x0001_0000]);
    // Nothing is mapped there.
    let nowhere = GpEntry::fetch(GpuVa(0x6666_0000), 4);
    bench.push_entry(&mut a, nowhere | 1);
    bench.push(&mut a, &[0x0001_fff0]);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 1);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 0);
}

#[test]
fn non_incrementing_old_form_reaches_one_method() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let mut words = Methods::new().semaphore(PAGE, 0, 2 | 1 << 24).0;
    // Payloads, of which the last counts.
    words.extend([2 << 29 | 3 << 18 | 0x18, 1, 2, 3]);
    words.extend(Methods::new().to(0, 0x1c, &[2 | 1 << 24]).0);
    bench.submit(&mut a, &words);
    bench.run();
    assert_eq!(bench.vram_u32(page), 3);
}

#[test]
fn acquire_of_bits_waits_for_one_of_them() {
    for operation in [ACQUIRE_AND, ACQUIRE_AND | GIVE_WAY] {
        let mut bench = ready();
        let (mut a, mut b, page) = pair(&mut bench);
        bench.set_vram_u32(page, 0x70);
        let waits = Methods::new()
            .semaphore(PAGE, 0x8f, operation)
            .release(PAGE + 4, 1);
        bench.submit(&mut a, &waits.0);
        assert_eq!(bench.run(), Stepped::Waiting);
        bench.submit(&mut b, &Methods::new().release(PAGE, 0x71).0);
        bench.run();
        assert_eq!(bench.vram_u32(page + 4), 1);
    }
}

/// Adds a segment that forbids switches.
fn submit_no_switch(bench: &mut Bench, channel: &mut Channel, words: &[u32]) {
    let put = channel.put;
    bench.push(channel, words);
    let entry = bench.ring_entry(channel, put) | NO_SWITCH;
    channel.put = put;
    bench.push_entry(channel, entry);
    bench.ring(channel);
}

#[test]
fn short_segment_without_switches_is_not_interrupted() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair_on_one_pbdma(&mut bench);
    bench.set_vram_u32(a.instance + offset::TIMESLICE, 1 << 28 | 2);
    let mut words = vec![0; 600];
    words.extend(Methods::new().release(PAGE, 1).0);
    submit_no_switch(&mut bench, &mut a, &words);
    bench.submit(
        &mut b,
        &Methods::new().semaphore(PAGE, 1, 1).release(PAGE + 4, 2).0,
    );
    bench.run();
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 4)], [1, 2]);
    assert_eq!(bench.card.counters().channel_loads, 2);
}

#[test]
fn wait_in_a_segment_without_switches_is_an_error_when_others_want_to_run() {
    for operation in [1, 1 | GIVE_WAY] {
        let mut bench = ready();
        let (mut a, mut b, page) = pair_on_one_pbdma(&mut bench);
        submit_no_switch(
            &mut bench,
            &mut a,
            &Methods::new().semaphore(PAGE, 5, operation).0,
        );
        bench.submit(&mut b, &Methods::new().release(PAGE + 4, 2).0);
        bench.run();
        bench.run_for(10_000_000);
        assert_eq!(bench.read(PbdmaReg::PbdmaIntr(0)), pbdma_intr::NO_SWITCH_SEGMENT);
        assert_eq!(bench.read(PbdmaReg::PbdmaChannel(0)), 1 | 1 << 8);
        // The driver ends the channel.
        bench.write(PfifoReg::ChannelState(1), 0);
        bench.write(PfifoReg::Preempt, 1);
        bench.write(PbdmaReg::PbdmaMethod0(0), pbdma::METHOD_NOP);
        bench.write(PbdmaReg::PbdmaIntr(0), pbdma_intr::NO_SWITCH_SEGMENT);
        bench.run();
        assert_eq!(bench.vram_u32(page + 4), 2);
    }
}

#[test]
fn endless_segment_without_switches_ends_in_an_error() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair_on_one_pbdma(&mut bench);
    bench.set_vram_u32(a.instance + offset::TIMESLICE, 1 << 28 | 10);
    // Each word goes round: a segment of padding over one page again and again.
    let padding = bench.allocate(0x1000);
    for va in (0..4 << 20).step_by(0x1000) {
        bench.map(a.space, 0x2000_0000 + va, Page::Vram(padding), 0x1000);
    }
    bench.flush();
    bench.push_entry(&mut a, GpEntry::fetch(GpuVa(0x2000_0000), 1 << 20) | NO_SWITCH);
    bench.ring(&a);
    bench.submit(&mut b, &Methods::new().release(PAGE, 2).0);
    bench.run();
    assert_eq!(bench.read(PbdmaReg::PbdmaIntr(0)), pbdma_intr::NO_SWITCH_SEGMENT);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    bench.write(PbdmaReg::PbdmaIntr(0), u32::MAX);
    bench.run();
    assert_eq!(bench.vram_u32(page), 2);
}

#[test]
fn frozen_scheduler_starts_nothing_and_blocked_engines_get_no_channel() {
    for (reg, value) in [(PfifoReg::SchedulerFreeze, 1), (PfifoReg::EngineBlock, u32::MAX)] {
        let mut bench = ready();
        let (mut a, _, page) = pair(&mut bench);
        bench.write(reg, value);
        bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
        bench.run();
        assert_eq!(bench.vram_u32(page), 0);
        bench.write(reg, 0);
        bench.run();
        assert_eq!(bench.vram_u32(page), 1);
    }
}

#[test]
fn second_fault_of_a_unit_is_dropped_and_said_so() {
    let mut bench = ready();
    bench.write(PfifoReg::InjectFault(4), 0x115);
    assert_eq!(bench.read(PfifoReg::PfifoIntr) & intr::DROPPED_FAULT, 0);
    bench.write(PfifoReg::InjectFault(4), 0x115);
    assert_ne!(bench.read(PfifoReg::PfifoIntr) & intr::DROPPED_FAULT, 0);
    bench.write(PfifoReg::PfifoIntr, u32::MAX);
    assert_eq!(bench.read(PfifoReg::PfifoIntr), intr::MMU_FAULT);
    bench.write(PfifoReg::FaultUnits, 1 << 0x15);
    assert_eq!(bench.read(PfifoReg::PfifoIntr), 0);
}

#[test]
fn bypass_is_never_enabled() {
    let mut bench = ready();
    bench.write(BypassReg::BypassConfig, 0x104);
    bench.write(BypassReg::BypassAddress, 0x300);
    bench.write(BypassReg::BypassData, 1);
    assert_eq!(bench.read(BypassReg::BypassConfig), 0);
    assert_eq!(bench.read(BypassReg::BypassStatus), pfifo::bypass::NOT_ENABLED);
    assert_eq!(bench.read(PfifoReg::PfifoIntr), intr::BYPASS);
    bench.write(BypassReg::BypassStatus, u32::MAX);
    bench.write(PfifoReg::PfifoIntr, u32::MAX);
    assert_eq!(
        (
            bench.read(BypassReg::BypassStatus),
            bench.read(PfifoReg::PfifoIntr)
        ),
        (0, 0)
    );
}

#[test]
fn invalidation_by_method_makes_the_engines_look_again() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let other = bench.allocate(0x1000);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    bench.run();
    bench.map(a.space, PAGE, Page::Vram(other), 0x1000);
    bench.submit(&mut a, &Methods::new().release(PAGE, 2).0);
    bench.run();
    assert_eq!(
        [bench.vram_u32(page), bench.vram_u32(other)],
        [2, 0],
        "the TLB knows the old page"
    );
    let directory = (a.space.directory >> 12 << 2) as u32;
    let words = Methods::new().to(0, 0x28, &[directory, 9 << 27]).release(PAGE, 3);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!([bench.vram_u32(page), bench.vram_u32(other)], [2, 3]);
}
