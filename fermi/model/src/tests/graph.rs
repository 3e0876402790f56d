//! PGRAPH: context handshakes as drivers do them, contexts in memory, and what its classes do.

use super::support::*;
use crate::Stepped;
use fermi_spec::{
    engine::Engine,
    fault::{FaultType, client},
    graphics::compute,
    instance::offset,
    methods::class,
    regs::{
        FecsReg, PfifoReg, PgraphReg, PmcReg,
        fecs::{FECS_CHANNEL_VALID, fecs_intr, fecs_nouveau, fecs_nvidia},
        pfifo,
        pgraph::{METHOD_PORT_GO, graph_intr},
    },
};

pub(super) const IMAGE: u64 = 0x4000_0000;
pub(super) const IMAGE_BYTES: u64 = 0x2_0000;
const DATA: u64 = 0x5000_0000;
/// A method of 9097 that only sets state.
pub(super) const STATE: u16 = 0x1700;

/// Starts nouveau's microcode.
fn start_microcode(bench: &mut Bench) {
    bench.write(FecsReg::FecsControl, 2);
    bench.write(FecsReg::FecsHostIntrEnable, 0x000e_0001);
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
}

/// An instance block with a context image behind it; where the image is.
pub(super) fn golden_channel(bench: &mut Bench) -> (u64, u64) {
    let space = bench.space();
    let block = bench.allocate(0x1000);
    bench.point(block, space);
    let image = bench.allocate(IMAGE_BYTES);
    bench.map(space, IMAGE, Page::Vram(image), IMAGE_BYTES);
    bench.set_vram_u32(block + offset::ENGINE_CONTEXTS, IMAGE as u32 | 4);
    (block, image)
}

pub(super) fn set_channel(bench: &mut Bench, block: u64) {
    bench.write(FecsReg::FecsScratchClear(0), fecs_nouveau::DONE);
    bench.write(FecsReg::FecsData, FECS_CHANNEL_VALID | (block >> 12) as u32);
    bench.write(FecsReg::FecsCommand, fecs_nouveau::SET_CHANNEL);
}

/// As nouveau makes its golden image: a context with [`STATE`] of 9097 set to `value`.
pub(super) fn golden_image(bench: &mut Bench, value: u32) -> Vec<u8> {
    let (block, image) = golden_channel(bench);
    set_channel(bench, block);
    bench.write(PgraphReg::GraphMethodPortData, value);
    let method = METHOD_PORT_GO | u32::from(class::THREED) | u32::from(STATE) << 14;
    bench.write(PgraphReg::GraphMethodPort, method);
    let next = bench.read(FecsReg::FecsNextChannel);
    bench.write(FecsReg::FecsNextChannel, next & !FECS_CHANNEL_VALID);
    bench.write(FecsReg::FecsIntrSet, 0x100);
    assert_eq!(bench.read(FecsReg::FecsChannel) & FECS_CHANNEL_VALID, 0);
    bench.vram_bytes(image, IMAGE_BYTES as usize)
}

/// Gives a channel a context image with these bytes; where it is.
pub(super) fn give_image(bench: &mut Bench, channel: &Channel, bytes: &[u8]) -> u64 {
    let image = bench.allocate(IMAGE_BYTES);
    bench.set_vram_bytes(image, bytes);
    bench.map(channel.space, IMAGE, Page::Vram(image), IMAGE_BYTES);
    bench.set_vram_u32(channel.instance + offset::ENGINE_CONTEXTS, IMAGE as u32 | 4);
    bench.flush();
    image
}

/// Takes a channel off PGRAPH, so that its context is in its image.
pub(super) fn save(bench: &mut Bench, channel: &Channel) {
    bench.write(PfifoReg::Preempt, u32::from(channel.id));
    bench.run();
    assert_eq!(bench.read(PfifoReg::Preempt) & pfifo::PREEMPT_PENDING, 0);
}

/// Value of a method of 9097 in an image.
pub(super) fn in_image(bench: &Bench, image: u64, method: u16) -> u32 {
    bench.vram_u32(image + 0x900 + u64::from(method))
}

#[test]
fn microcode_of_nouveau_starts_with_the_size_of_an_image() {
    let mut bench = ready();
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    start_microcode(&mut bench);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    assert_eq!(bench.read(FecsReg::FecsScratch(1)), IMAGE_BYTES as u32);
}

#[test]
fn power_mode_of_the_front_end_is_reached_at_once() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphPowerMode, 0x12);
    assert_eq!(bench.read(PgraphReg::GraphPowerMode), 2);
}

#[test]
fn set_channel_makes_the_context_current() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let (block, _) = golden_channel(&mut bench);
    set_channel(&mut bench, block);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    let word = FECS_CHANNEL_VALID | (block >> 12) as u32;
    assert_eq!(bench.read(FecsReg::FecsChannel), word);
}

#[test]
fn switch_request_without_a_next_channel_stores_the_golden_image() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let image = golden_image(&mut bench, 0x1234);
    assert_eq!(image[0x900 + 0x1700..][..4], [0x34, 0x12, 0, 0]);
}

#[test]
fn channel_starts_from_its_image_and_is_saved_to_it() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let golden = golden_image(&mut bench, 0x1234);
    let mut a = bench.channel(1);
    let image = give_image(&mut bench, &a, &golden);
    bench.set_vram_u32(image, 5);
    bench.runlist(&[1]);
    let words = Methods::new()
        .to(0, 0, &[u32::from(class::THREED)])
        .to(0, STATE + 4, &[0x5678]);
    bench.submit(&mut a, &words.0);
    assert_eq!(bench.run(), Stepped::Idle);
    let word = FECS_CHANNEL_VALID | (a.instance >> 12) as u32;
    assert_eq!(bench.read(FecsReg::FecsChannel), word);
    assert_eq!(
        bench.read(PgraphReg::GraphSubchannelClass(0)),
        u32::from(class::THREED)
    );
    save(&mut bench, &a);
    assert_eq!(in_image(&bench, image, STATE), 0x1234);
    assert_eq!(in_image(&bench, image, STATE + 4), 0x5678);
    // The driver's words are not touched.
    assert_eq!(bench.vram_u32(image), 5);
}

#[test]
fn interleaved_channels_keep_their_contexts_apart() {
    let mut bench = ready();
    let mut channels = [bench.channel(1), bench.channel(2)];
    let data = bench.allocate(0x2000);
    let mut images = [0; 2];
    for (channel, image) in channels.iter().zip(&mut images) {
        *image = give_image(&mut bench, channel, &[]);
        bench.map(channel.space, DATA, Page::Vram(data), 0x2000);
    }
    bench.flush();
    bench.set_vram_bytes(data, &[1, 2, 3, 4, 5, 6, 7, 8]);
    bench.runlist(&[1, 2]);
    let high = (DATA >> 32) as u32;
    for round in 0..4 {
        for (number, channel) in channels.iter_mut().enumerate() {
            let low = DATA as u32 + 0x1000 * number as u32;
            let words = match round {
                0 => Methods::new()
                    .to(0, 0, &[u32::from(class::M2MF)])
                    .to(1, 0, &[u32::from(class::THREED)])
                    .to(0, 0x238, &[high, low + 0x100]),
                1 => Methods::new().to(0, 0x30c, &[high, low & !0x1000, 0x40, 0x40]),
                2 => Methods::new().to(0, 0x31c, &[4 + 4 * number as u32, 1]),
                _ => Methods::new().to(0, 0x300, &[0x110]),
            };
            let words = words.to(1, STATE + 4 * round, &[7 + number as u32]);
            bench.submit(channel, &words.0);
            bench.run();
        }
    }
    assert_eq!(bench.vram_bytes(data + 0x100, 6), [1, 2, 3, 4, 0, 0]);
    assert_eq!(
        bench.vram_bytes(data + 0x1100, 10),
        [1, 2, 3, 4, 5, 6, 7, 8, 0, 0]
    );
    for (number, channel) in channels.iter().enumerate() {
        save(&mut bench, channel);
        let words = [0, 4, 8, 12].map(|at| in_image(&bench, images[number], STATE + at));
        assert_eq!(words, [7 + number as u32; 4]);
    }
}

#[test]
fn image_that_nobody_saved_is_a_fresh_context() {
    let mut bench = ready();
    let mut a = bench.channel(1);
    let garbage: Vec<u8> = (0..IMAGE_BYTES).map(|at| (at * 7) as u8).collect();
    let image = give_image(&mut bench, &a, &garbage);
    bench.runlist(&[1]);
    let words = Methods::new()
        .to(0, 0, &[u32::from(class::THREED)])
        .to(0, STATE, &[1]);
    bench.submit(&mut a, &words.0);
    bench.run();
    save(&mut bench, &a);
    assert_eq!(in_image(&bench, image, STATE), 1);
    assert_eq!(in_image(&bench, image, STATE + 4), 0);
}

#[test]
fn unmapped_image_is_a_fault_of_ctxctl_that_stops_only_its_channel() {
    let mut bench = ready();
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    bench.set_vram_u32(a.instance + offset::ENGINE_CONTEXTS, 0x7000_0004);
    bench.runlist(&[1, 2]);
    let bind = Methods::new().to(0, 0, &[u32::from(class::M2MF)]);
    bench.submit(&mut a, &bind.0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1);
    let kind = FaultType::from_bits(bench.read(PfifoReg::FaultRecord(3)));
    assert_eq!((kind.client(), kind.write()), (client::CTXCTL, false));
    assert_eq!(bench.read(PfifoReg::FaultRecord(0)), (a.instance >> 12) as u32);
    bench.write(PfifoReg::ChannelState(1), 0);
    bench.write(PfifoReg::FaultUnits, 1);
    bench.write(PfifoReg::EngineFault, 1 << Engine::Graph.number());
    bench.submit(&mut b, &bind.0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(
        bench.read(FecsReg::FecsChannel),
        FECS_CHANNEL_VALID | (b.instance >> 12) as u32
    );
}

#[test]
fn unknown_command_is_an_error_of_the_microcode() {
    let mut bench = ready();
    start_microcode(&mut bench);
    bench.write(FecsReg::FecsCommand, 0x77);
    assert_eq!(bench.read(FecsReg::FecsScratch(5)), 0x77_0001);
    assert_eq!(bench.read(FecsReg::FecsHostIntr), fecs_intr::ERROR);
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::CTXCTL);
    assert_eq!(bench.read(PmcReg::PmcIntr(0)) & 1 << 12, 1 << 12);
    bench.write(FecsReg::FecsHostIntrClear, fecs_intr::ERROR);
    bench.write(PgraphReg::GraphIntr, graph_intr::CTXCTL);
    assert_eq!(bench.read(PmcReg::PmcIntr(0)) & 1 << 12, 0);
}

#[test]
fn set_channel_with_an_unmapped_image_faults_and_is_never_done() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let (block, _) = golden_channel(&mut bench);
    bench.set_vram_u32(block + offset::ENGINE_CONTEXTS, 0x7000_0004);
    set_channel(&mut bench, block);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1);
}

#[test]
fn command_before_the_microcode_runs_does_nothing() {
    let mut bench = ready();
    let (block, _) = golden_channel(&mut bench);
    set_channel(&mut bench, block);
    bench.write(FecsReg::FecsControl, 2);
    assert_eq!(bench.read(FecsReg::FecsChannel), 0);
}

#[test]
fn microcode_of_nvidia_answers_its_commands() {
    let mut bench = ready();
    bench.write(FecsReg::GpccsControl, 2);
    bench.write(FecsReg::FecsControl, 2);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nvidia::DONE);
    let mut ask = |command: u32, data: u32, clear: u32| {
        bench.write(FecsReg::FecsScratchClear(0), clear);
        bench.write(FecsReg::FecsData, data);
        bench.write(FecsReg::FecsCommand, command);
        bench.read(FecsReg::FecsScratch(0))
    };
    assert_eq!(ask(fecs_nvidia::IMAGE_BYTES, 0, u32::MAX), 0x2_0000);
    assert_ne!(ask(fecs_nvidia::ZCULL_BYTES, 0, u32::MAX), 0);
    assert_ne!(ask(fecs_nvidia::MONITOR_BYTES, 0, u32::MAX), 0);
    assert_eq!(
        ask(fecs_nvidia::BIND_CHANNEL, 0, u32::MAX),
        fecs_nvidia::NOT_BOUND
    );
    let (block, image) = golden_channel(&mut bench);
    let word = FECS_CHANNEL_VALID | (block >> 12) as u32;
    let mut ask = |command: u32, clear: u32| {
        bench.write(FecsReg::FecsScratchClear(0), clear);
        bench.write(FecsReg::FecsData, word);
        bench.write(FecsReg::FecsCommand, command);
        bench.read(FecsReg::FecsScratch(0))
    };
    assert_eq!(ask(fecs_nvidia::BIND_CHANNEL, u32::MAX), fecs_nvidia::BOUND);
    assert_eq!(ask(fecs_nvidia::SAVE_GOLDEN, u32::MAX), fecs_nvidia::DONE);
    assert_ne!(bench.vram_u32(image + 0x80), 0);
}

#[test]
fn stopped_switching_keeps_the_engine_for_its_context() {
    let mut bench = ready();
    bench.write(FecsReg::GpccsControl, 2);
    bench.write(FecsReg::FecsControl, 2);
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    bench.runlist(&[1, 2]);
    let bind = Methods::new().to(0, 0, &[u32::from(class::M2MF)]);
    bench.submit(&mut a, &bind.0);
    bench.run();
    bench.write(FecsReg::FecsCommand, fecs_nvidia::STOP_SWITCHING);
    assert_eq!(bench.read(FecsReg::FecsScratch(1)), fecs_nvidia::DONE);
    bench.submit(&mut b, &bind.0);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(PfifoReg::EngineChannel(0)) & 0x7f, 1);
    bench.write(FecsReg::FecsCommand, fecs_nvidia::START_SWITCHING);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PfifoReg::EngineChannel(0)) & 0x7f, 2);
}

#[test]
fn reset_stops_the_microcode_and_loses_the_context() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let (block, _) = golden_channel(&mut bench);
    set_channel(&mut bench, block);
    bench.write(PmcReg::PmcEnable, !(1 << Engine::Graph.enable_bit()));
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    assert_eq!(bench.read(FecsReg::FecsChannel), 0);
    start_microcode(&mut bench);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
}

#[test]
fn closed_front_end_takes_no_methods() {
    let mut bench = ready();
    let mut a = bench.channel(1);
    bench.runlist(&[1]);
    bench.write(PgraphReg::GraphFifoControl, 0);
    bench.submit(&mut a, &Methods::new().to(0, 0, &[u32::from(class::M2MF)]).0);
    assert_eq!(bench.run(), Stepped::Waiting);
    bench.write(PgraphReg::GraphFifoControl, 0x0001_0001);
    assert_eq!(bench.run(), Stepped::Idle);
}

const INCREMENT: u32 = 1 << 12;

/// A channel with 3D, compute and 2D on subchannels 0 to 2 and a page at [`DATA`]; the page.
pub(super) fn with_classes(bench: &mut Bench) -> (Channel, u64) {
    let mut channel = bench.channel(1);
    let page = bench.allocate(0x1000);
    bench.map(channel.space, DATA, Page::Vram(page), 0x1000);
    bench.flush();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    bench.runlist(&[1]);
    let words = Methods::new()
        .to(0, 0, &[u32::from(class::THREED)])
        .to(1, 0, &[u32::from(class::COMPUTE)])
        .to(2, 0, &[u32::from(class::TWOD)])
        .to(3, 0, &[u32::from(class::M2MF)]);
    bench.submit(&mut channel, &words.0);
    assert_eq!(bench.run(), Stepped::Idle);
    (channel, page)
}

fn at_data(offset: u64) -> [u32; 2] {
    [((DATA + offset) >> 32) as u32, (DATA + offset) as u32]
}

fn report(subchannel: u8, offset: u64, payload: u32, operand: u32) -> Vec<u32> {
    let [high, low] = at_data(offset);
    Methods::new()
        .to(subchannel, 0x1b00, &[high, low, payload, operand])
        .0
}

#[test]
fn short_release_writes_the_payload_alone() {
    for subchannel in [0, 1] {
        let mut bench = ready();
        let (mut a, page) = with_classes(&mut bench);
        bench.set_vram_u64(page + 0x14, u64::MAX);
        bench.submit(&mut a, &report(subchannel, 0x10, 7, 0x1000_f010));
        assert_eq!(bench.run(), Stepped::Idle);
        assert_eq!(bench.vram_u32(page + 0x10), 7);
        assert_eq!(bench.vram_u64(page + 0x14), u64::MAX);
    }
}

#[test]
fn long_report_release_writes_payload_and_time() {
    for subchannel in [0, 1] {
        let mut bench = ready();
        let (mut a, page) = with_classes(&mut bench);
        bench.submit(&mut a, &report(subchannel, 0, 7, 0));
        bench.run();
        assert_eq!(bench.vram_u64(page), 7);
        assert!((1..=bench.card.gpu_time()).contains(&bench.vram_u64(page + 8)));
    }
}

#[test]
fn reports_of_counters_are_zero_with_the_time() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    bench.set_vram_u64(page, u64::MAX);
    bench.set_vram_u64(page + 0x10, u64::MAX);
    // Samples, as u32 sequence and u32 count; primitives, as u64 count.
    bench.submit(&mut a, &report(0, 0, 7, 0x0100_f002));
    bench.submit(&mut a, &report(0, 0x10, 7, 0x0900_5002));
    bench.run();
    assert_eq!([bench.vram_u64(page), bench.vram_u64(page + 0x10)], [7, 0]);
    assert_ne!(bench.vram_u64(page + 0x18), 0);
}

#[test]
fn release_with_awaken_interrupts_without_stopping() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    bench.submit(&mut a, &report(1, 0, 7, 0x1010_0000));
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PfifoReg::EngineIntr(0)), 1);
    assert_eq!(bench.read(PgraphReg::GraphIntr), 0);
}

#[test]
fn report_acquire_blocks_only_its_channel() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    let mut b = bench.channel(2);
    bench.map(b.space, DATA, Page::Vram(page), 0x1000);
    bench.flush();
    bench.runlist(&[1, 2]);
    let mut waits = report(0, 0x20, 5, 0x0001_0001);
    waits.extend(report(0, 0x30, 1, 0x1000_f010));
    bench.submit(&mut a, &waits);
    assert_eq!(bench.run(), Stepped::Waiting);
    let mut other = Methods::new().to(0, 0, &[u32::from(class::COMPUTE)]).0;
    other.extend(report(0, 0x20, 6, 0x1000_0000));
    bench.submit(&mut b, &other);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page + 0x30), 1);
}

#[test]
fn release_to_an_unmapped_page_is_a_fault_of_pgraph() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    bench.submit(&mut a, &report(0, 0x10_0000, 7, 0x1000_f010));
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1);
    let kind = FaultType::from_bits(bench.read(PfifoReg::FaultRecord(3)));
    assert_eq!((kind.client(), kind.write()), (client::DISPATCH, true));
}

#[test]
fn compute_has_no_report_of_counters() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    bench.submit(&mut a, &report(1, 0, 7, 2));
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::DATA_ERROR);
}

#[test]
fn constant_words_go_to_the_buffer_one_after_the_other() {
    for subchannel in [0, 1] {
        let mut bench = ready();
        let (mut a, page) = with_classes(&mut bench);
        let [high, low] = at_data(0x100);
        let words = Methods::new()
            .to(subchannel, 0x2380, &[0x100, high, low])
            .to(subchannel, 0x238c, &[0x10, 1, 2, 3])
            .to(subchannel, 0x2390, &[4]);
        bench.submit(&mut a, &words.0);
        assert_eq!(bench.run(), Stepped::Idle);
        let stored = [0x10, 0x14, 0x18, 0x1c, 0x20].map(|at| bench.vram_u32(page + 0x100 + at));
        assert_eq!(stored, [1, 2, 3, 4, 0]);
    }
}

#[test]
fn notification_is_written_at_the_next_operation() {
    for subchannel in [0, 1, 2, 3] {
        let mut bench = ready();
        let (mut a, page) = with_classes(&mut bench);
        bench.set_vram_u64(page + 8, u64::MAX);
        let [high, low] = at_data(0);
        let words = Methods::new().to(subchannel, 0x104, &[high, low, 1]);
        bench.submit(&mut a, &words.0);
        bench.run();
        assert_eq!(bench.vram_u64(page + 8), u64::MAX);
        bench.submit(&mut a, &Methods::new().to(subchannel, 0x100, &[0]).0);
        bench.run();
        assert_ne!(bench.vram_u64(page), 0);
        assert_eq!(bench.vram_u64(page + 8), 0);
        assert_eq!(bench.read(PfifoReg::EngineIntr(0)), 1);
    }
}

#[test]
fn two_notifications_at_once_are_an_error() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    let words = Methods::new().to(0, 0x10c, &[0]).to(0, 0x10c, &[0]);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::DOUBLE_NOTIFY);
    assert_eq!(bench.read(PgraphReg::GraphTrappedMethod), 0x10c);
}

#[test]
fn software_method_of_nouveau_is_illegal_and_the_channel_goes_on() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    let mut words = Methods::new().to(1, 0x1528, &[1]).0;
    words.extend(report(1, 0, 7, 0x1000_0000));
    bench.submit(&mut a, &words);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::ILLEGAL_METHOD);
    assert_eq!(bench.read(PgraphReg::GraphTrappedMethod), 1 << 16 | 0x1528);
    assert_eq!(bench.read(PgraphReg::GraphTrappedData), 1);
    bench.write(PgraphReg::GraphIntr, graph_intr::ILLEGAL_METHOD);
    bench.write(PgraphReg::GraphFifoControl, 0x0001_0001);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 7);
}

#[test]
fn method_beyond_a_class_is_illegal() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    bench.submit(&mut a, &Methods::new().to(2, 0x1000, &[1]).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::ILLEGAL_METHOD);
}

#[test]
fn unknown_instruction_traps_and_the_channel_goes_on() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    // A block of one thread; the code is the page of zeros.
    let mut words = Methods::new()
        .to(1, compute::CODE_HIGH, &[0, DATA as u32])
        .to(1, compute::ENTRY, &[0x800])
        .to(1, compute::REGISTERS, &[4])
        .to(1, compute::GRID_XY, &[1 | 1 << 16, 1])
        .to(1, compute::BLOCK_XY, &[1 | 1 << 16, 1])
        .to(1, compute::LAUNCH, &[0x1000])
        .0;
    words.extend(report(1, 0, 7, 0x1000_0000));
    bench.submit(&mut a, &words);
    assert_eq!(bench.run(), Stepped::Waiting);
    // As nouveau finds out and acknowledges.
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    assert_eq!(bench.read(PgraphReg::GraphTrap), 1 << 24);
    assert_eq!(bench.read(PgraphReg::GraphGpcTrap), 1);
    assert_eq!(bench.read(PgraphReg::GpcTrap(0)), 1 << 16);
    assert_eq!(bench.read(PgraphReg::TpcTrap(0)), 2);
    assert_eq!(bench.read(PgraphReg::MpWarpError(0)), 9);
    bench.write(PgraphReg::MpWarpError(0), 0);
    bench.write(PgraphReg::GpcTrap(0), 1 << 16);
    bench.write(PgraphReg::GraphGpcTrap, 1);
    bench.write(PgraphReg::GraphTrap, 1 << 24);
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    bench.write(PgraphReg::GraphFifoControl, 0x0001_0001);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 7);
    assert_eq!(bench.read(PgraphReg::GraphTrap), 0);
}

#[test]
fn firmware_method_is_reported_by_the_microcode() {
    let mut bench = ready();
    start_microcode(&mut bench);
    let (mut a, _) = with_classes(&mut bench);
    bench.submit(&mut a, &Methods::new().to(0, 0x2300, &[5]).0);
    assert_eq!(bench.run(), Stepped::Idle);
    let scratch = [2, 3, 4, 5].map(|index| bench.read(FecsReg::FecsScratch(index)));
    assert_eq!(scratch, [u32::from(class::THREED), 0x2300, 5, 3]);
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::CTXCTL);
}

/// Uploads a macro at `place` and makes it macro `index`.
fn upload(index: u32, place: u32, code: &[u32]) -> Methods {
    let mut words = Methods::new().to(0, 0x114, &[place]);
    for word in code {
        words = words.to(0, 0x118, &[*word]);
    }
    words.to(0, 0x11c, &[index, place])
}

/// A macro that sends its first parameter to a method and each of two more to the next one.
fn three_words(method: u16) -> Vec<u32> {
    let address = u32::from(method / 4) | INCREMENT;
    vec![
        address << 14 | 2 << 4 | 1,
        1 << 11 | 4 << 4 | 1,
        2 << 8 | 1,
        2 << 11 | 3 << 8 | 4 << 4 | 1,
        3 << 8 | 1 << 7 | 1,
        3 << 11 | 4 << 4 | 1,
    ]
}

#[test]
fn macro_sends_its_parameters_as_methods() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    let [high, low] = at_data(0);
    let words = upload(3, 0x40, &three_words(0x238c))
        .to(0, 0x2384, &[high, low])
        .to(0, 0x3818, &[8])
        .to(0, 0x381c, &[11])
        .to(0, 0x381c, &[12])
        .to(0, 0x110, &[0]);
    bench.submit(&mut a, &words.0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!([8, 12].map(|at| bench.vram_u32(page + at)), [11, 12]);
}

#[test]
fn macro_that_waits_for_a_parameter_survives_a_switch() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    let mut b = bench.channel(2);
    give_image(&mut bench, &a, &[]);
    save(&mut bench, &a);
    bench.runlist(&[1, 2]);
    let [high, low] = at_data(0);
    let first = upload(0, 0, &three_words(0x238c))
        .to(0, 0, &[u32::from(class::THREED)])
        .to(0, 0x2384, &[high, low])
        .to(0, 0x3800, &[8])
        .to(0, 0x3804, &[11]);
    // Uploads before the class is bound are refused in the fresh context.
    let bind = Methods::new().to(0, 0, &[u32::from(class::THREED)]);
    bench.submit(&mut a, &bind.0);
    bench.submit(&mut a, &first.0);
    assert_eq!(bench.run(), Stepped::Idle);
    bench.submit(&mut b, &bind.0);
    assert_eq!(bench.run(), Stepped::Idle);
    bench.submit(&mut a, &Methods::new().to(0, 0x3804, &[12]).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!([8, 12].map(|at| bench.vram_u32(page + at)), [11, 12]);
}

#[test]
fn endless_macro_ends_in_a_trap() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    let words = upload(0, 0x10, &[7 | 1 << 5]).to(0, 0x3800, &[0]);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    assert_eq!(bench.read(PgraphReg::GraphTrap), 1 << 7);
    assert_eq!(bench.read(PgraphReg::GraphMacroTrap), 1 << 4);
    assert_eq!(bench.read(PgraphReg::GraphMacroTrapAt), 1 << 28 | 0x10);
    bench.write(PgraphReg::GraphMacroTrap, 0xc000_0000);
    bench.write(PgraphReg::GraphTrap, 1 << 7);
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PgraphReg::GraphMacroTrap), 1 << 31);
}

#[test]
fn parameters_too_few_and_too_many_trap() {
    let mut bench = ready();
    let (mut a, _) = with_classes(&mut bench);
    let words = upload(0, 0, &three_words(0x1700))
        .to(0, 0x3800, &[1])
        .to(0, 0x110, &[0]);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphMacroTrap), 1);
    bench.write(PgraphReg::GraphMacroTrap, 0xc000_0000);
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    bench.submit(&mut a, &Methods::new().to(0, 0x3804, &[1]).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphMacroTrap), 1 << 31 | 2);
}

/// Methods of a surface of 2D: format, layout, sizes in pixels, address.
struct Surface {
    format: u32,
    /// Block size of a block-linear surface.
    block: Option<u32>,
    pitch: u32,
    size: [u32; 2],
    offset: u64,
}

impl Surface {
    fn set(&self, words: Methods, first: u16) -> Methods {
        let [high, low] = at_data(self.offset);
        let linear = u32::from(self.block.is_none());
        words
            .to(2, first, &[self.format, linear, self.block.unwrap_or(0), 1])
            .to(
                2,
                first + 0x14,
                &[self.pitch, self.size[0], self.size[1], high, low],
            )
    }
}

/// A copy by 2D of a rectangle of `size` pixels, one to one.
fn copy_pixels(source: &Surface, target: &Surface, from: [u32; 2], to: [u32; 2], size: [u32; 2]) -> Methods {
    let words = target.set(source.set(Methods::new(), 0x230), 0x200);
    words
        .to(2, 0x26c, &[1])
        .to(2, 0x2ac, &[3])
        .to(2, 0x8b0, &[to[0], to[1], size[0], size[1]])
        .to(2, 0x8c0, &[0, 1, 0, 1])
        .to(2, 0x8d0, &[0, from[0], 0, from[1]])
}

const LINEAR: Surface = Surface {
    format: 0xd5,
    block: None,
    pitch: 64,
    size: [16, 8],
    offset: 0,
};

/// Fills [`LINEAR`] at `page` with pixels that tell their place.
fn paint(bench: &mut Bench, page: u64) {
    for y in 0..8u32 {
        for x in 0..16u32 {
            bench.set_vram_u32(page + u64::from(64 * y + 4 * x), 0x4433_0000 | y << 8 | x);
        }
    }
}

#[test]
fn pixels_go_through_a_block_linear_surface_and_back() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    paint(&mut bench, page);
    let tiled = Surface {
        block: Some(0),
        offset: 0x400,
        ..LINEAR
    };
    let back = Surface {
        offset: 0x800,
        ..LINEAR
    };
    bench.submit(&mut a, &copy_pixels(&LINEAR, &tiled, [0, 0], [0, 0], [16, 8]).0);
    bench.submit(&mut a, &copy_pixels(&tiled, &back, [3, 1], [5, 2], [4, 3]).0);
    assert_eq!(bench.run(), Stepped::Idle);
    // One GOB of 64 bytes by 8 lines lies like the linear surface.
    assert_eq!(
        bench.vram_bytes(page + 0x400, 0x200),
        bench.vram_bytes(page, 0x200)
    );
    let pixel = |x: u64, y: u64| bench.vram_u32(page + 0x800 + 64 * y + 4 * x);
    assert_eq!([pixel(5, 2), pixel(8, 4)], [0x4433_0103, 0x4433_0306]);
    assert_eq!([pixel(4, 2), pixel(9, 4), pixel(5, 5)], [0, 0, 0]);
    assert_eq!(bench.card.counters().unmodelled_draws, 0);
}

#[test]
fn components_change_places_between_formats() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    paint(&mut bench, page);
    let reordered = Surface {
        format: 0xcf,
        offset: 0x800,
        ..LINEAR
    };
    bench.submit(
        &mut a,
        &copy_pixels(&LINEAR, &reordered, [0, 0], [0, 0], [16, 8]).0,
    );
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x800 + 64 * 2 + 4 * 7), 0x4407_0233);
}

#[test]
fn clip_rectangle_and_edges_cut_the_copy() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    paint(&mut bench, page);
    let target = Surface {
        offset: 0x800,
        ..LINEAR
    };
    let clip = Methods::new().to(2, 0x280, &[2, 1, 100, 2, 1]);
    bench.submit(&mut a, &clip.0);
    bench.submit(
        &mut a,
        &copy_pixels(&LINEAR, &target, [0, 0], [0, 0], [1000, 1000]).0,
    );
    bench.run();
    let line = |y: u64| bench.vram_bytes(page + 0x800 + 64 * y, 64);
    assert_eq!(line(1)[8..], bench.vram_bytes(page + 64, 64)[8..]);
    assert_eq!(line(1)[..8], [0; 8]);
    assert_eq!([line(0), line(3)], [vec![0; 64], vec![0; 64]]);
}

#[test]
fn copy_that_would_scale_does_nothing_and_is_counted() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    paint(&mut bench, page);
    let target = Surface {
        offset: 0x800,
        ..LINEAR
    };
    let words = copy_pixels(&LINEAR, &target, [0, 0], [0, 0], [4, 4])
        .to(2, 0x8c0, &[0, 2, 0, 2])
        .to(2, 0x8dc, &[0]);
    bench.submit(&mut a, &words.0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.card.counters().unmodelled_draws, 1);
    assert_eq!(bench.vram_u32(page + 0x800 + 4), 0x4433_0001);
}

#[test]
fn copy_on_a_condition_that_does_not_hold_does_nothing() {
    let mut bench = ready();
    let (mut a, page) = with_classes(&mut bench);
    paint(&mut bench, page);
    let target = Surface {
        offset: 0x800,
        ..LINEAR
    };
    let [high, low] = at_data(0xf00);
    let words = copy_pixels(&LINEAR, &target, [0, 0], [0, 0], [0, 0])
        .to(2, 0x264, &[high, low, 2])
        .to(2, 0x8b8, &[16, 8])
        .to(2, 0x8dc, &[0]);
    bench.submit(&mut a, &words.0);
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x804), 0);
    bench.set_vram_u32(page + 0xf00, 1);
    bench.submit(&mut a, &Methods::new().to(2, 0x8dc, &[0]).0);
    bench.run();
    assert_eq!(bench.vram_u32(page + 0x804), 0x4433_0001);
}
