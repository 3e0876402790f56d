//! Errors of a channel do not affect other channels.

use super::support::*;
use crate::Stepped;
use fermi_spec::regs::pbdma;
use fermi_spec::{
    instance::offset,
    regs::{PbdmaReg, PcopyReg, PfifoReg, PgraphReg, PmcReg, pbdma::pbdma_intr, pfifo},
};

const PAGE: u64 = 0x800_0000;

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

fn stopped_pbdma(bench: &mut Bench) -> (u16, u32) {
    (0..3)
        .map(|pbdma| (pbdma, bench.read(PbdmaReg::PbdmaIntr(pbdma))))
        .find(|(_, intr)| *intr != 0)
        .expect("a PBDMA with an interrupt")
}

#[test]
fn engine_fault_stops_its_channel_and_no_other() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    let bad = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, PAGE, 0x7777_7000, 16, 1)
        .release(PAGE, 1);
    bench.submit(&mut a, &bad.0);
    let good = Methods::new()
        .to(1, 0, &[0x0005_90b8])
        .copy(1, PAGE + 0x10, PAGE + 0x20, 16, 1)
        .release(PAGE + 4, 2);
    bench.submit(&mut b, &good.0);
    bench.run();
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 4)], [0, 2]);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    let record: Vec<u32> = (0..4)
        .map(|word| bench.read(PfifoReg::FaultRecord(4 * 0x15 + word)))
        .collect();
    assert_eq!(
        record,
        [
            (a.instance >> 12) as u32,
            0x7777_7000,
            0,
            1 << 6 | 1 << 7 | 1 << 8
        ]
    );
    assert_eq!(bench.read(PfifoReg::EngineFault), 1 << 4);
    assert_ne!(bench.read(PfifoReg::PfifoIntr) & pfifo::intr::MMU_FAULT, 0);

    // The engine is there again for others once the driver has recovered it.
    let later = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, PAGE, PAGE + 0x40, 16, 1)
        .release(PAGE + 8, 3);
    bench.submit(&mut b, &later.0);
    assert_eq!(bench.run(), Stepped::Waiting);
    bench.write(PfifoReg::FaultUnits, 1 << 0x15);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::EngineFault, 1 << 4);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 8)], [0, 3]);
}

#[test]
fn preempt_of_a_faulted_channel_waits_for_the_recovery() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.submit(
        &mut a,
        &Methods::new()
            .to(1, 0, &[0x0004_90b5])
            .copy(1, PAGE, 0x7777_7000, 16, 1)
            .0,
    );
    bench.run();
    bench.write(PfifoReg::Preempt, 1);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(PfifoReg::Preempt), 1 | pfifo::PREEMPT_PENDING);
    // A reset of the unit: its PMC bit down and up.
    bench.write(PmcReg::PmcEnable, !(1 << 6));
    bench.write(PmcReg::PmcEnable, u32::MAX);
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
    assert_eq!(bench.read(PfifoReg::EngineFault), 0);
}

#[test]
fn read_only_page_refuses_writes_only() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let entry = bench.small_entry(a.space, PAGE + 0x1000);
    bench.set_vram_u64(entry, (page >> 12) << 4 | 1 | 4);
    bench.flush();
    let methods = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, PAGE + 0x1000, PAGE + 0x10, 4, 1)
        .copy(1, PAGE + 0x10, PAGE + 0x1000, 4, 1);
    bench.submit(&mut a, &methods.0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultRecord(4 * 0x15 + 3)) & 0xf, 6);
    assert_eq!(bench.card.counters().copies, 1);
}

#[test]
fn pushbuffer_nowhere_faults_its_pbdma_and_halts_the_channel() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    bench.push_entry(
        &mut a,
        fermi_spec::gpfifo::GpEntry::fetch(fermi_spec::addr::GpuVa(0x6666_0000), 4),
    );
    bench.ring(&a);
    bench.submit(&mut b, &Methods::new().release(PAGE, 1).0);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
    let units = bench.read(PfifoReg::FaultUnits);
    assert_eq!((units.count_ones(), units & 0x380), (1, units));
}

/// Submits bad words on one channel and good ones on another; the interrupt bits that the first gives.
fn error_of(words: &[u32]) -> u32 {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    bench.submit(&mut a, words);
    bench.run();
    let (pbdma, intr) = stopped_pbdma(&mut bench);
    assert_eq!(bench.read(PbdmaReg::PbdmaChannel(pbdma)), 1 | 1 << 8);
    assert_eq!(bench.read(PfifoReg::PbdmaIntrSource), 1 << pbdma);
    bench.submit(&mut b, &Methods::new().release(PAGE, 1).0);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1, "other PBDMAs go on");
    bench.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PfifoReg::PbdmaIntrSource), 0);
    assert_eq!(bench.gp_get(&a), a.put);
    intr
}

#[test]
fn illegal_host_method_stops_the_pbdma() {
    assert_eq!(error_of(&Methods::new().to(0, 0x04, &[0]).0), pbdma_intr::METHOD);
}

#[test]
fn bad_semaphore_operation_stops_the_pbdma() {
    assert_eq!(
        error_of(&Methods::new().semaphore(PAGE, 0, 3).0),
        pbdma_intr::SEMAPHORE
    );
}

#[test]
fn reserved_header_stops_the_pbdma() {
    assert_eq!(error_of(&[6 << 29]), pbdma_intr::PB_ENTRY);
}

#[test]
fn method_to_an_empty_subchannel_stops_the_pbdma() {
    assert_eq!(error_of(&Methods::new().to(5, 0x400, &[1]).0), pbdma_intr::DEVICE);
}

#[test]
fn engine_that_is_not_there_stops_the_pbdma() {
    assert_eq!(
        error_of(&Methods::new().to(5, 0, &[0x0003_90b1]).0),
        pbdma_intr::DEVICE
    );
}

#[test]
fn software_method_shows_in_the_latch() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let words = Methods::new()
        .to(7, 0, &[0x001f_906e])
        .to(7, 0x600, &[0x1234])
        .release(PAGE, 1);
    bench.submit(&mut a, &words.0);
    bench.run();
    let (pbdma, _) = stopped_pbdma(&mut bench);
    assert_eq!(
        bench.read(PbdmaReg::PbdmaMethod0(pbdma)),
        1 << 31 | 7 << 16 | 0x600
    );
    assert_eq!(bench.read(PbdmaReg::PbdmaData0(pbdma)), 0x1234);
    assert_eq!(bench.vram_u32(page), 0);
    bench.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), pbdma_intr::DEVICE);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
}

#[test]
fn put_beyond_the_ring_stops_the_pbdma() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    a.put = 64;
    bench.ring(&a);
    bench.run();
    assert_eq!(stopped_pbdma(&mut bench).1, pbdma_intr::GP_POINTER);
}

#[test]
fn wrong_signature_halts_the_channel_at_the_acknowledgement() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    bench.set_vram_u32(a.instance + offset::SIGNATURE, 0);
    bench.submit(&mut a, &Methods::new().release(PAGE, 1).0);
    bench.run();
    let (pbdma, intr) = stopped_pbdma(&mut bench);
    assert_eq!(intr, pbdma_intr::SIGNATURE);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    bench.submit(&mut b, &Methods::new().release(PAGE + 4, 2).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 4)], [0, 2]);
}

#[test]
fn dispatch_error_stops_the_engine_until_acknowledged() {
    let mut bench = ready();
    let (mut a, _, page) = pair(&mut bench);
    let words = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .to(1, 0x328, &[0x2000])
        .copy(1, PAGE + 0x10, PAGE + 0x20, 4, 1)
        .release(PAGE, 1);
    bench.submit(&mut a, &words.0);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(PcopyReg::CopyIntr(0)), 0x40);
    assert_eq!(
        bench.read(PcopyReg::CopyError(0)),
        3 | (0x328 >> 2 | 1 << 11) << 16
    );
    assert_eq!(bench.read(PmcReg::PmcIntr(0)) & 1 << 5, 1 << 5);
    bench.write(PcopyReg::CopyIntrAck(0), 0x40);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 1);
}

#[test]
fn pgraph_stopped_by_a_channel_that_is_gone_works_again_once_acknowledged() {
    let mut bench = ready();
    let (mut culprit, mut other, page) = pair(&mut bench);
    bench.submit(&mut other, &Methods::new().to(0, 0, &[0x9039]).0);
    bench.run();
    bench.submit(&mut culprit, &Methods::new().to(0, 0, &[0xffff]).0);
    bench.run();
    bench.submit(&mut other, &Methods::new().to(0, 0x30c, &[0]).release(PAGE, 1).0);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::Preempt, 1);
    bench.runlist(&[2]);
    bench.run();
    // Neither the kill nor a preempt ends the stop: the engine still waits for its interrupt to be acknowledged.
    assert_eq!(bench.vram_u32(page), 0);
    assert_ne!(bench.read(PfifoReg::Preempt) & pfifo::PREEMPT_PENDING, 0);
    let intr = bench.read(PgraphReg::GraphIntr);
    bench.write(PgraphReg::GraphIntr, intr);
    bench.run();
    assert_eq!(bench.vram_u32(page), 1);
    assert_eq!(bench.read(PfifoReg::Preempt), 1);
}

#[test]
fn class_that_pgraph_lacks_is_an_illegal_class() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    bench.submit(&mut a, &Methods::new().to(1, 0, &[0x9197]).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), 1 << 5);
    assert_eq!(bench.read(PmcReg::PmcIntr(0)) & 1 << 12, 1 << 12);
}

#[test]
fn failed_copy_on_request_reports_a_dispatch_error() {
    let mut bench = ready();
    let (mut a, _, _) = pair(&mut bench);
    bench.card.faults_mut().failed_copies = 1;
    bench.submit(
        &mut a,
        &Methods::new()
            .to(1, 0, &[0x0004_90b5])
            .copy(1, PAGE, PAGE + 16, 4, 1)
            .0,
    );
    bench.run();
    assert_eq!(bench.read(PcopyReg::CopyIntr(0)), 0x40);
    // The falcon names the channel, as nouveau wants to know whose error it is.
    assert_eq!(bench.read_at(0x10_4050), 1 << 30 | (a.instance >> 12) as u32);
}

#[test]
fn reset_of_pfifo_forgets_channels_and_runlist() {
    let mut bench = ready();
    pair(&mut bench);
    bench.write(PmcReg::PmcEnable, !(1 << 8));
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(1)), 0);
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 0);
    assert_eq!(bench.read(PfifoReg::UserdBase), 0);
}

#[test]
fn binding_without_a_polling_area_is_refused() {
    let mut bench = ready();
    bench.write(PfifoReg::UserdBase, 0);
    bench.write(PfifoReg::ChannelInstance(9), 0xc000_0100);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(9)), 0);
    assert_eq!(
        bench.read(PfifoReg::ChannelTableError),
        pfifo::table_error::NO_USERD
    );
}

#[test]
fn pbdma_that_stopped_shows_its_channel_though_an_engine_faults_meanwhile() {
    let mut bench = ready();
    let (mut a, mut b, page) = pair(&mut bench);
    // The copy faults on its way, after the host has stumbled over the method behind it.
    let words = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, PAGE, PAGE + 0xff0, 0x100, 1)
        .to(0, 0x04, &[0])
        .release(PAGE, 1);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << 0x15);
    let (pbdma, intr) = stopped_pbdma(&mut bench);
    assert_eq!(bench.read(PbdmaReg::PbdmaChannel(pbdma)), 1 | 1 << 8);
    bench.write(PbdmaReg::PbdmaMethod0(pbdma), pbdma::METHOD_NOP);
    bench.write(PbdmaReg::PbdmaIntr(pbdma), intr);
    assert_eq!(bench.read(PbdmaReg::PbdmaChannel(pbdma)), 0);
    bench.submit(&mut b, &Methods::new().release(PAGE + 4, 2).0);
    bench.run();
    assert_eq!([bench.vram_u32(page), bench.vram_u32(page + 4)], [0, 2]);
}
