//! nouveau's ways out of errors, register by register (Linux 6.12 `nvkm/engine/fifo`), while other channels run.

use super::support::*;
use fermi_spec::regs::pbdma;
use fermi_spec::{
    bar::Bar,
    engine::Engine,
    regs::{PbdmaReg, PfifoReg, PmcReg, pbdma::pbdma_intr, pfifo},
};

const PAGE: u64 = 0x800_0000;
const COPY0: u16 = 4;

/// Three channels with a page in common.
fn three(bench: &mut Bench) -> ([Channel; 3], u64) {
    let channels = [1, 2, 3].map(|id| bench.channel(id));
    let page = bench.allocate(0x1000);
    for channel in &channels {
        bench.map(channel.space, PAGE, Page::Vram(page), 0x1000);
    }
    bench.flush();
    bench.runlist(&[1, 2, 3]);
    bench.run();
    bench.write(PfifoReg::RunlistIntr, pfifo::RUNLIST_DONE);
    (channels, page)
}

fn copy_and_release(target: u64, payload: u32) -> Vec<u32> {
    Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, PAGE + 0x10, target, 16, 1)
        .release(PAGE + 4 * u64::from(payload), payload)
        .0
}

/// What nouveau reads to find the channel on an engine that has to be reset.
fn busy_channel(bench: &mut Bench, engine: u16) -> Option<u32> {
    let status = bench.read(PfifoReg::EngineStatus(engine));
    (status & 1 << 28 != 0).then_some(status & 0x7f)
}

fn reset(bench: &mut Bench, engine: Engine) {
    let enable = bench.read(PmcReg::PmcEnable);
    bench.write(PmcReg::PmcEnable, enable & !(1 << engine.enable_bit()));
    bench.write(PmcReg::PmcEnable, enable);
}

/// `nvkm_runl_rc`: the channel is stopped and taken off the list, the engine that stands on it is reset.
fn recover(bench: &mut Bench, channel: u16, others: &[u16]) {
    let state = bench.read(PfifoReg::ChannelState(channel));
    bench.write(PfifoReg::ChannelState(channel), state & !1);
    for engine in Engine::ALL {
        if busy_channel(bench, u16::from(engine.number())) == Some(u32::from(channel)) {
            reset(bench, engine);
        }
    }
    bench.runlist(others);
    let faulted = bench.read(PfifoReg::EngineFault);
    bench.write(PfifoReg::EngineFault, faulted);
    bench.write(PfifoReg::EngineBlock, 0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::RunlistStatus) & pfifo::RUNLIST_PENDING, 0);
}

#[test]
fn faulted_channel_is_killed_and_the_others_use_its_engine() {
    let mut bench = ready();
    let ([mut a, mut b, mut c], page) = three(&mut bench);
    bench.submit(&mut a, &copy_and_release(0x7777_7000, 1));
    bench.submit(&mut b, &copy_and_release(PAGE + 0x40, 2));
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    let instance = bench.read(PfifoReg::FaultRecord(4 * 0x15));
    assert_eq!(u64::from(instance) << 12, a.instance);
    assert_eq!(bench.read(PfifoReg::InjectFault(COPY0)) & 0x100, 0);
    bench.write(PfifoReg::EngineBlock, u32::MAX);
    bench.write(PfifoReg::FaultUnits, 1 << 0x15);
    assert_eq!(busy_channel(&mut bench, COPY0), Some(1));
    recover(&mut bench, 1, &[2, 3]);
    bench.submit(&mut c, &copy_and_release(PAGE + 0x60, 3));
    bench.run();
    let released = [4, 8, 12].map(|at| bench.vram_u32(page + at));
    assert_eq!(released, [0, 2, 3]);
    assert_eq!(bench.read(PfifoReg::EngineFault), 0);
    // Its end: preempt, then the entry.
    bench.write(PfifoReg::Preempt, 1);
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
    bench.write(PfifoReg::ChannelInstance(1), 0);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(1)), 0);
    assert_eq!(bench.read(PfifoReg::PfifoIntr) & pfifo::intr::CHANNEL_TABLE, 0);
}

#[test]
fn pushbuffer_fault_of_a_pbdma_kills_its_channel_alone() {
    let mut bench = ready();
    let ([mut a, mut b, _], page) = three(&mut bench);
    let bad = fermi_spec::gpfifo::GpEntry::fetch(fermi_spec::addr::GpuVa(0x6666_0000), 4);
    bench.push_entry(&mut a, bad);
    bench.ring(&a);
    bench.run();
    let units = bench.read(PfifoReg::FaultUnits);
    let unit = units.trailing_zeros();
    assert!((7..10).contains(&unit), "{units:#x}");
    bench.write(PfifoReg::EngineBlock, u32::MAX);
    bench.write(PfifoReg::FaultUnits, units);
    recover(&mut bench, 1, &[2, 3]);
    bench.submit(&mut b, &copy_and_release(PAGE + 0x40, 2));
    bench.run();
    assert_eq!(bench.vram_u32(page + 8), 2);
}

#[test]
fn engine_that_does_not_switch_in_time_is_made_to_fault() {
    let mut bench = ready();
    let ([mut a, mut b, _], page) = three(&mut bench);
    bench.write(PfifoReg::SwitchTimeout, 1 << 31 | 100);
    // A rejected method stops the engine, and nobody acknowledges it.
    let stops = Methods::new().to(1, 0, &[0x0004_90b5]).to(1, 0x400, &[0]);
    bench.submit(&mut a, &stops.0);
    bench.run();
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    bench.run_for(200_000);
    assert_eq!(
        bench.read(PfifoReg::SchedulerError),
        pfifo::scheduler_error::SWITCH_TIMEOUT
    );
    // Busy, and a switch is asked for: nouveau injects a fault there.
    let status = bench.read(PfifoReg::EngineStatus(COPY0));
    assert_eq!(status & 0x1000_007f, 0x1000_0001);
    assert_ne!(status & 0x5000, 0);
    bench.write(PfifoReg::EngineBlock, u32::MAX);
    bench.write(PfifoReg::PfifoIntr, pfifo::intr::SCHEDULER);
    bench.write(PfifoReg::InjectFault(COPY0), 0x100 | 0x15);
    bench.write(PfifoReg::EngineBlock, 0);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    assert_eq!(bench.read(PfifoReg::InjectFault(COPY0)), 0x115);
    bench.write(PfifoReg::InjectFault(COPY0), 0x15);
    bench.write(PfifoReg::FaultUnits, 1 << 0x15);
    assert_eq!(busy_channel(&mut bench, COPY0), Some(1));
    recover(&mut bench, 1, &[2, 3]);
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
    bench.submit(&mut b, &copy_and_release(PAGE + 0x40, 2));
    bench.run();
    assert_eq!(bench.vram_u32(page + 8), 2);
}

/// `gf100_runq_intr` for a channel whose error is its end.
fn end_channel_of_pbdma(bench: &mut Bench) -> (u32, u32) {
    let source = bench.read(PfifoReg::PbdmaIntrSource);
    let pbdma = source.trailing_zeros() as u16;
    let intr = bench.read(PbdmaReg::PbdmaIntr(pbdma)) & bench.read(PbdmaReg::PbdmaIntrEnable(pbdma));
    let channel = bench.read(PbdmaReg::PbdmaChannel(pbdma)) & 0x7f;
    let state = bench.read(PfifoReg::ChannelState(channel as u16));
    bench.write(PfifoReg::ChannelState(channel as u16), state & !1);
    bench.write(PfifoReg::Preempt, channel);
    bench.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    bench.write(PfifoReg::PbdmaIntrSource, 1 << pbdma);
    (channel, intr)
}

#[test]
fn channel_with_an_illegal_method_ends_and_frees_its_pbdma() {
    let mut bench = ready();
    let ([mut a, mut b, _], page) = three(&mut bench);
    let words = Methods::new().to(0, 0x04, &[0]).release(PAGE + 4, 1);
    bench.submit(&mut a, &words.0);
    bench.submit(&mut b, &copy_and_release(PAGE + 0x40, 2));
    bench.run();
    assert_eq!(end_channel_of_pbdma(&mut bench), (1, pbdma_intr::METHOD));
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
    assert_eq!(bench.read(PfifoReg::PbdmaIntrSource), 0);
    assert_eq!(bench.read(PfifoReg::ChannelState(1)) & 0x1001, 0);
    let released = [4, 8].map(|at| bench.vram_u32(page + at));
    assert_eq!(released, [0, 2]);
}

#[test]
fn source_that_is_still_up_at_the_handlers_end_sends_a_new_message() {
    let mut bench = ready();
    let ([mut a, mut b, _], _) = three(&mut bench);
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    let notify = Methods::new().to(0, 0x20, &[0]).0;
    bench.submit(&mut a, &notify);
    bench.run();
    assert!(bench.card.take_interrupt());
    // The handler: unarm, re-arm the message, service, arm.
    bench.write(PmcReg::PmcIntrEnable(0), 0);
    bench.card.bar_write(Bar::Bar0, 0x88704, &[0xff]);
    bench.write(PfifoReg::EngineIntr(0), 1);
    bench.submit(&mut b, &notify);
    bench.run();
    assert!(!bench.card.take_interrupt(), "the line is off");
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    assert!(bench.card.take_interrupt());
    bench.write(PmcReg::PmcIntrEnable(0), 0);
    bench.card.bar_write(Bar::Bar0, 0x88704, &[0xff]);
    bench.write(PfifoReg::EngineIntr(0), 1);
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    assert!(!bench.card.take_interrupt());
}

#[test]
fn masked_notification_is_sent_once_it_is_let_through() {
    let mut bench = ready();
    let ([mut a, _, _], _) = three(&mut bench);
    bench.write(PmcReg::PmcIntrEnable(0), 1);
    bench.write(PfifoReg::PfifoIntrEnable, 0x7fff_ffff);
    bench.submit(&mut a, &Methods::new().to(0, 0x20, &[0]).0);
    bench.run();
    assert!(!bench.card.take_interrupt());
    assert_eq!(bench.read(PfifoReg::PfifoIntr), pfifo::intr::ENGINE);
    bench.write(PfifoReg::PfifoIntrEnable, u32::MAX);
    assert!(bench.card.take_interrupt());
}
