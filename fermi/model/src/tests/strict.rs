//! PGRAPH of a strict card: microcode first, no foreign image, and register lists that are written.

use super::{
    graph::{
        IMAGE, IMAGE_BYTES, STATE, give_image, golden_channel, golden_image, in_image, save, set_channel,
    },
    support::*,
};
use crate::Stepped;
use fermi_spec::{
    addr::SMALL_PAGE,
    engine::Engine,
    fault::{FaultType, Reason, client},
    instance::{Timeslice, offset},
    methods::class,
    pte::Pte,
    regs::{
        Bar0Reg, FecsReg, PeepholeReg, PfifoReg, PgraphReg, PmcReg,
        falcon::{CONTROL_SLEEPING, CONTROL_STOPPED, Falcon, FalconReg, PortIndex},
        fecs::{FECS_CHANNEL_VALID, FECS_SWITCH_REQUEST, context_list, fecs_nouveau, fecs_nvidia},
        pfifo,
        pgraph::FIFO_CONTROL_ON,
    },
};
use proptest::prelude::*;

const LIST: u64 = 0x4100_0000;
/// A list's longest permitted form takes eight of these pages.
const LIST_BYTES: u64 = 0x1_0000;
const DATA: u64 = 0x5000_0000;
const M2MF: u32 = class::M2MF as u32;
/// Registers of nouveau's lists, without any effect here.
const BUNDLE: u32 = 0x40_8004;
const BUNDLE_SIZE: u32 = 0x40_8008;

fn upload(bench: &mut Bench, falcon: Falcon) {
    let at = |reg: FalconReg| falcon.first() + reg.offset();
    let index = PortIndex::new().with_advance_on_write(true);
    bench.write_at(at(FalconReg::CodeIndex(0)), index.into_bits());
    bench.write_at(at(FalconReg::CodeData(0)), 0x1234_5678);
}

fn start(bench: &mut Bench) {
    bench.write(FecsReg::FecsControl, 2);
}

fn upload_both(bench: &mut Bench) {
    upload(bench, Falcon::Fecs);
    upload(bench, Falcon::Gpccs);
}

/// A strict card whose PGRAPH runs, and a golden image with [`STATE`] set to 0x1234.
fn running() -> (Bench, Vec<u8>) {
    let mut bench = ready_strict();
    upload_both(&mut bench);
    start(&mut bench);
    let golden = golden_image(&mut bench, 0x1234);
    (bench, golden)
}

fn bind() -> Vec<u32> {
    Methods::new().to(0, 0, &[M2MF]).0
}

fn current(bench: &mut Bench) -> u32 {
    bench.read(FecsReg::FecsChannel)
}

fn word_of(channel: &Channel) -> u32 {
    FECS_CHANNEL_VALID | (channel.instance >> 12) as u32
}

/// Reason, client and address of PGRAPH's fault, if it has one.
fn fault(bench: &mut Bench) -> Option<(Option<Reason>, u8, u64)> {
    if bench.read(PfifoReg::FaultUnits) & 1 == 0 {
        return None;
    }
    let kind = FaultType::from_bits(bench.read(PfifoReg::FaultRecord(3)));
    let [low, high] = [1, 2].map(|word| u64::from(bench.read(PfifoReg::FaultRecord(word))));
    Some((Reason::from_code(kind.reason()), kind.client(), high << 32 | low))
}

fn recover(bench: &mut Bench) {
    bench.write(PfifoReg::FaultUnits, 1);
    bench.write(PfifoReg::EngineFault, 1 << Engine::Graph.number());
}

/// Puts a list into the image; where the list is.
fn give_list(bench: &mut Bench, channel: &Channel, image: u64, pairs: &[(u32, u32)]) -> u64 {
    let list = bench.allocate(LIST_BYTES);
    bench.map(channel.space, LIST, Page::Vram(list), LIST_BYTES);
    bench.flush();
    for (at, (register, value)) in (list..).step_by(8).zip(pairs) {
        bench.set_vram_u32(at, *register);
        bench.set_vram_u32(at + 4, *value);
    }
    name_list(bench, image, pairs.len() as u32);
    list
}

fn name_list(bench: &mut Bench, image: u64, pairs: u32) {
    bench.set_vram_u32(image + context_list::COUNT, pairs);
    bench.set_vram_u32(image + context_list::AT, (LIST >> context_list::AT_SHIFT) as u32);
}

/// Channel 1 on the runlist of a card that runs, with an image and a list, and its image.
fn with_list(pairs: &[(u32, u32)]) -> (Bench, Channel, u64) {
    let (mut bench, golden) = running();
    let channel = bench.channel(1);
    let image = give_image(&mut bench, &channel, &golden);
    give_list(&mut bench, &channel, image, pairs);
    bench.runlist(&[1]);
    (bench, channel, image)
}

fn count(bench: &Bench, image: u64) -> u32 {
    bench.vram_u32(image + context_list::COUNT)
}

#[test]
fn channel_waits_for_microcode_while_a_copy_engine_works() {
    let mut bench = ready_strict();
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    let page = bench.allocate(0x1000);
    bench.map(b.space, DATA, Page::Vram(page), 0x1000);
    bench.flush();
    bench.runlist(&[1, 2]);
    bench.submit(&mut a, &bind());
    let copies = Methods::new()
        .to(0, 0, &[0x0004_90b5])
        .copy(0, DATA, DATA + 0x100, 16, 1)
        .release(DATA + 0x200, 7);
    bench.submit(&mut b, &copies.0);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.vram_u32(page + 0x200), 7);
    assert_eq!(current(&mut bench), 0);
    assert_eq!(fault(&mut bench), None);
    upload_both(&mut bench);
    start(&mut bench);
    let golden = golden_image(&mut bench, 0x1234);
    let image = give_image(&mut bench, &a, &golden);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(current(&mut bench), word_of(&a));
    save(&mut bench, &a);
    assert_eq!(in_image(&bench, image, STATE), 0x1234);
}

#[test]
fn start_without_code_answers_nothing() {
    let mut bench = ready_strict();
    start(&mut bench);
    bench.write(FecsReg::GpccsControl, 2);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    assert_eq!(bench.read(FecsReg::FecsScratch(1)), 0);
    assert_eq!(bench.read(FecsReg::FecsControl), CONTROL_STOPPED);
    assert_eq!(bench.read(FecsReg::GpccsControl), CONTROL_STOPPED);
    // The start of the GPCs' falcons was none, so the microcode that comes is nouveau's.
    upload_both(&mut bench);
    start(&mut bench);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    assert_eq!(bench.read(FecsReg::FecsControl), CONTROL_SLEEPING);
}

#[test]
fn code_of_fecs_alone_switches_nothing() {
    let mut bench = ready_strict();
    let mut a = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut a, &bind());
    upload(&mut bench, Falcon::Fecs);
    start(&mut bench);
    let (block, _) = golden_channel(&mut bench);
    set_channel(&mut bench, block);
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    assert_eq!(current(&mut bench), 0);
    upload(&mut bench, Falcon::Gpccs);
    start(&mut bench);
    let golden = golden_image(&mut bench, 1);
    give_image(&mut bench, &a, &golden);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(current(&mut bench), word_of(&a));
}

#[test]
fn reset_of_the_engine_and_of_the_card_lose_the_microcode() {
    let (mut bench, golden) = running();
    let mut a = bench.channel(1);
    give_image(&mut bench, &a, &golden);
    bench.runlist(&[1]);
    bench.write(PmcReg::PmcEnable, !(1 << Engine::Graph.enable_bit()));
    bench.write(PmcReg::PmcEnable, u32::MAX);
    start(&mut bench);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    upload_both(&mut bench);
    start(&mut bench);
    assert_eq!(bench.run(), Stepped::Idle);
    bench.card.reset();
    bench.write(PmcReg::PmcEnable, u32::MAX);
    start(&mut bench);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
}

#[test]
fn halted_microcode_switches_nothing() {
    let mut bench = ready_strict();
    upload_both(&mut bench);
    bench.write(FecsReg::GpccsControl, 2);
    start(&mut bench);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nvidia::DONE);
    bench.write(FecsReg::FecsCommand, fecs_nvidia::HALT);
    let mut a = bench.channel(1);
    bench.runlist(&[1]);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(fault(&mut bench), None);
}

#[test]
fn foreign_image_is_a_fault_that_leaves_the_next_channel_alone() {
    let (mut bench, golden) = running();
    let [mut a, mut b, mut c] = [1, 2, 3].map(|id| bench.channel(id));
    let image_of_a = give_image(&mut bench, &a, &golden);
    give_image(&mut bench, &b, &[]);
    let image_of_c = give_image(&mut bench, &c, &golden);
    bench.runlist(&[1, 2, 3]);
    let words = Methods::new()
        .to(0, 0, &[u32::from(class::THREED)])
        .to(0, STATE, &[5]);
    bench.submit(&mut a, &words.0);
    bench.run();
    bench.submit(&mut b, &words.0);
    bench.run();
    assert_eq!(
        fault(&mut bench),
        Some((Some(Reason::InvalidKind), client::CTXCTL, IMAGE))
    );
    assert_eq!(bench.read(PfifoReg::FaultRecord(0)), (b.instance >> 12) as u32);
    // Nothing of the channel before is left on the engine.
    assert_eq!(bench.read(PgraphReg::GraphSubchannelClass(0)), 0);
    assert_eq!(bench.card.graph.state, Default::default());
    bench.write(PfifoReg::ChannelState(2), 0);
    recover(&mut bench);
    bench.submit(&mut c, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(current(&mut bench), word_of(&c));
    save(&mut bench, &c);
    assert_eq!(in_image(&bench, image_of_a, STATE), 5);
    assert_eq!(in_image(&bench, image_of_c, STATE), 0x1234);
}

#[test]
fn channel_without_a_pointer_has_its_image_at_address_0() {
    let (mut bench, golden) = running();
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    let image = bench.allocate(IMAGE_BYTES);
    bench.set_vram_bytes(image, &golden);
    bench.map(b.space, 0, Page::Vram(image), IMAGE_BYTES);
    bench.flush();
    bench.runlist(&[1, 2]);
    bench.submit(&mut a, &bind());
    bench.run();
    let (reason, by, va) = fault(&mut bench).unwrap();
    assert_eq!((reason, by), (Some(Reason::PageNotPresent), client::CTXCTL));
    assert!(va < SMALL_PAGE);
    bench.write(PfifoReg::ChannelState(1), 0);
    recover(&mut bench);
    let words = Methods::new()
        .to(0, 0, &[u32::from(class::THREED)])
        .to(0, STATE, &[9]);
    bench.submit(&mut b, &words.0);
    assert_eq!(bench.run(), Stepped::Idle);
    save(&mut bench, &b);
    assert_eq!(in_image(&bench, image, STATE), 9);
}

#[test]
fn requested_switch_to_a_foreign_image_is_a_fault_without_a_channel() {
    let (mut bench, _) = running();
    let (block, _) = golden_channel(&mut bench);
    bench.write(
        FecsReg::FecsNextChannel,
        FECS_CHANNEL_VALID | (block >> 12) as u32,
    );
    bench.write(FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
    assert_eq!(
        fault(&mut bench),
        Some((Some(Reason::InvalidKind), client::CTXCTL, IMAGE))
    );
    assert_eq!(bench.card.graph.state, Default::default());
}

#[test]
fn list_is_written_once_and_before_the_first_method() {
    let pairs = [
        (BUNDLE, 7),
        (BUNDLE_SIZE, 8),
        (BUNDLE, 9),
        (PgraphReg::GraphFifoControl.offset(), 0),
    ];
    let (mut bench, mut a, image) = with_list(&pairs);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!([BUNDLE, BUNDLE_SIZE].map(|at| bench.read_at(at)), [9, 8]);
    assert_eq!(bench.read(PgraphReg::GraphSubchannelClass(0)), 0);
    assert_eq!((count(&bench, image), bench.card.counters().list_words), (0, 4));
    bench.write(PgraphReg::GraphFifoControl, FIFO_CONTROL_ON);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PgraphReg::GraphSubchannelClass(0)), M2MF);
    save(&mut bench, &a);
    bench.write_at(BUNDLE, 0);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read_at(BUNDLE), 0);
    assert_eq!(in_image(&bench, image, STATE), 0x1234);
}

#[test]
fn list_comes_with_a_requested_switch_and_not_with_set_channel() {
    let (mut bench, a, image) = with_list(&[(BUNDLE, 7)]);
    bench.run();
    set_channel(&mut bench, a.instance);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    bench.run();
    assert_eq!((count(&bench, image), bench.read_at(BUNDLE)), (1, 0));
    bench.write(FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
    assert_eq!(current(&mut bench), word_of(&a));
    // FECS is busy until it has written the list; a command waits for that.
    assert_eq!(bench.read(PgraphReg::GraphStatus), 1);
    bench.write(FecsReg::FecsScratchClear(0), u32::MAX);
    bench.write(FecsReg::FecsCommand, fecs_nouveau::SAVE);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), fecs_nouveau::DONE);
    assert_eq!((count(&bench, image), bench.read_at(BUNDLE)), (0, 7));
}

#[test]
fn what_is_no_register_is_not_written() {
    let pairs = [
        (BUNDLE + 2, 7),
        (0x70_0000, 7),
        (0x200_0000, 7),
        (u32::MAX, 7),
        (BUNDLE, 8),
    ];
    let (mut bench, mut a, image) = with_list(&pairs);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read_at(BUNDLE), 8);
    assert_eq!((count(&bench, image), bench.card.counters().list_words), (0, 1));
}

#[test]
fn list_that_resets_its_engine_ends_there() {
    let off = !(1 << Engine::Graph.enable_bit());
    let pairs = [
        (PmcReg::PmcEnable.offset(), off),
        (PmcReg::PmcEnable.offset(), u32::MAX),
        (BUNDLE, 7),
    ];
    let (mut bench, mut a, image) = with_list(&pairs);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Waiting);
    assert_eq!(bench.read(PmcReg::PmcEnable), off);
    assert_eq!((count(&bench, image), bench.card.counters().list_words), (3, 1));
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert_eq!(bench.read(FecsReg::FecsScratch(0)), 0);
    name_list(&mut bench, image, 0);
    upload_both(&mut bench);
    start(&mut bench);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read(PgraphReg::GraphSubchannelClass(0)), M2MF);
}

#[test]
fn list_that_resets_pfifo_takes_the_channels_away() {
    let off = !fermi_spec::engine::pmc_enable::PFIFO;
    let enable = PmcReg::PmcEnable.offset();
    let (mut bench, mut a, _) = with_list(&[(enable, off), (enable, u32::MAX), (BUNDLE, 7)]);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.read_at(BUNDLE), 7);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(1)), 0);
    assert_eq!(bench.read(PgraphReg::GraphSubchannelClass(0)), 0);
}

#[test]
fn list_writes_the_runlist_and_asks_fecs_for_a_switch() {
    let (mut bench, golden) = running();
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    let image = give_image(&mut bench, &a, &golden);
    let image_of_b = give_image(&mut bench, &b, &golden);
    bench.runlist(&[1, 2]);
    bench.submit(&mut b, &bind());
    bench.run();
    let base = bench.read(PfifoReg::RunlistBase);
    let pairs = [
        (FecsReg::FecsControl.offset(), 2),
        (FecsReg::FecsNextChannel.offset(), word_of(&b)),
        (FecsReg::FecsIntrSet.offset(), FECS_SWITCH_REQUEST),
        (PfifoReg::RunlistBase.offset(), base),
        (PfifoReg::RunlistCommit.offset(), 0x01f0_0000),
    ];
    give_list(&mut bench, &a, image, &pairs);
    bench.submit(&mut a, &bind());
    bench.run();
    assert_eq!(count(&bench, image), 0);
    assert_eq!(bench.read(PfifoReg::RunlistStatus), 0);
    // The request took the channel off; it came back, as its method was not done.
    assert_eq!(bench.card.counters().list_words, 5);
    assert_ne!(bench.vram_u32(image_of_b + 0x80), 0);
    assert_eq!(fault(&mut bench), None);
}

#[test]
fn lists_that_cause_each_other_keep_nobody_from_the_card() {
    let (mut bench, golden) = running();
    let channels = [bench.channel(1), bench.channel(2)];
    let images = [0, 1].map(|index| give_image(&mut bench, &channels[index], &golden));
    let mut b = bench.channel(3);
    let page = bench.allocate(0x1000);
    bench.map(b.space, DATA, Page::Vram(page), 0x1000);
    // Each gives the other's image its list back, and asks for the other.
    for (index, other) in [(0, 1), (1, 0)] {
        let pairs = [
            (PeepholeReg::PeepholeHigh.offset(), 0),
            (PeepholeReg::PeepholeLow.offset(), images[other] as u32),
            (PeepholeReg::PeepholeData.offset(), 5),
            (FecsReg::FecsNextChannel.offset(), word_of(&channels[other])),
            (FecsReg::FecsIntrSet.offset(), FECS_SWITCH_REQUEST),
        ];
        give_list(&mut bench, &channels[index], images[index], &pairs);
    }
    bench.runlist(&[3]);
    bench.run();
    bench.write(FecsReg::FecsNextChannel, word_of(&channels[0]));
    bench.write(FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
    bench.submit(&mut b, &Methods::new().release(DATA, 7).0);
    for _ in 0..1_000 {
        assert_eq!(bench.card.step(bench.now_ns, 5), Stepped::Busy);
    }
    assert_eq!(bench.vram_u32(page), 7);
    assert!(bench.card.counters().list_words > 4_000);
}

#[test]
fn list_beyond_the_longest_is_a_fault() {
    for (pairs, faults) in [(4096, false), (4097, true), (u32::MAX, true)] {
        let (mut bench, mut a, image) = with_list(&[(BUNDLE, 7)]);
        name_list(&mut bench, image, pairs);
        bench.submit(&mut a, &bind());
        bench.run();
        let expected = (Some(Reason::BeyondLimit), client::CTXCTL, LIST);
        assert_eq!(fault(&mut bench), faults.then_some(expected));
        assert_eq!(bench.read_at(BUNDLE), if faults { 0 } else { 7 });
        assert_eq!(count(&bench, image), if faults { pairs } else { 0 });
    }
}

#[test]
fn list_that_cannot_be_read_is_a_fault_of_its_channel() {
    let (mut bench, golden) = running();
    let (mut a, mut b) = (bench.channel(1), bench.channel(2));
    let image = give_image(&mut bench, &a, &golden);
    give_image(&mut bench, &b, &golden);
    // The second page is missing.
    give_list(&mut bench, &a, image, &[(BUNDLE, 7)]);
    name_list(&mut bench, image, 600);
    let entry = bench.small_entry(a.space, LIST + SMALL_PAGE);
    bench.set_vram_u64(entry, 0);
    bench.flush();
    bench.runlist(&[1, 2]);
    bench.submit(&mut a, &bind());
    bench.run();
    assert_eq!(
        fault(&mut bench),
        Some((Some(Reason::PageNotPresent), client::CTXCTL, LIST + SMALL_PAGE))
    );
    assert_eq!((bench.read_at(BUNDLE), count(&bench, image)), (0, 600));
    assert_eq!(bench.card.graph.state, Default::default());
    bench.write(PfifoReg::ChannelState(1), 0);
    recover(&mut bench);
    bench.submit(&mut b, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(current(&mut bench), word_of(&b));
}

#[test]
fn list_whose_length_cannot_be_cleared_is_a_fault_when_it_is_written() {
    let (mut bench, mut a, image) = with_list(&[(BUNDLE, 7)]);
    let entry = bench.small_entry(a.space, IMAGE);
    let pte = Pte::from_bits(bench.vram_u64(entry)).with_read_only(true);
    bench.set_vram_u64(entry, pte.into_bits());
    bench.flush();
    bench.submit(&mut a, &bind());
    bench.run();
    assert_eq!(
        fault(&mut bench),
        Some((Some(Reason::ReadOnly), client::CTXCTL, IMAGE))
    );
    assert_eq!((bench.read_at(BUNDLE), count(&bench, image)), (7, 1));
    assert_eq!(bench.card.graph.state, Default::default());
    assert_ne!(bench.read(PfifoReg::EngineFault), 0);
}

#[test]
fn microcode_of_nvidia_does_not_look_for_nouveaus_list() {
    let mut bench = ready_strict();
    upload_both(&mut bench);
    bench.write(FecsReg::GpccsControl, 2);
    start(&mut bench);
    let (block, golden) = golden_channel(&mut bench);
    let word = FECS_CHANNEL_VALID | (block >> 12) as u32;
    for command in [fecs_nvidia::BIND_CHANNEL, fecs_nvidia::SAVE_GOLDEN] {
        bench.write(FecsReg::FecsData, word);
        bench.write(FecsReg::FecsCommand, command);
    }
    let golden = bench.vram_bytes(golden, IMAGE_BYTES as usize);
    let mut a = bench.channel(1);
    let image = give_image(&mut bench, &a, &golden);
    give_list(&mut bench, &a, image, &[(BUNDLE, 7)]);
    bench.runlist(&[1]);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!((count(&bench, image), bench.read_at(BUNDLE)), (1, 0));
}

#[test]
fn list_comes_before_the_rest_of_a_copy_that_gave_way() {
    let (mut bench, golden) = running();
    let mut channels = [bench.channel(1), bench.channel(2)];
    let bytes = 0x20_0000;
    let vram = bench.allocate_aligned(bytes, 0x2_0000);
    bench.set_vram_bytes(vram, &[7; 0x10_0000]);
    let mut images = [0; 2];
    for (channel, image) in channels.iter().zip(&mut images) {
        *image = give_image(&mut bench, channel, &golden);
        give_list(&mut bench, channel, *image, &[(BUNDLE, 7)]);
        bench.map_large(channel.space, DATA, Page::Vram(vram), bytes);
        let slice = Timeslice::new().with_timeout(1).with_enable(true);
        bench.set_vram_u32(channel.instance + offset::TIMESLICE, slice.into_bits());
    }
    bench.flush();
    bench.runlist(&[1, 2]);
    let half = bytes / 2;
    let words = Methods::new()
        .to(0, 0, &[M2MF])
        .m2mf(0, DATA, DATA + half, 0x1000, (half / 0x1000) as u32);
    for channel in &mut channels {
        bench.submit(channel, &words.0);
    }
    let mut steps = 0;
    while bench.card.step(bench.now_ns, 1) == Stepped::Busy {
        for image in images {
            name_list(&mut bench, image, 1);
        }
        steps += 1;
        assert!(steps < 1_000_000);
    }
    let counters = *bench.card.counters();
    assert_eq!(counters.copies, 2);
    assert!(counters.paused_copies > 0 && counters.list_words > counters.paused_copies);
    assert_eq!(bench.vram_bytes(vram + bytes - 4, 4), [7; 4]);
}

/// An offset of BAR0: mostly of a register that does something.
fn register() -> impl Strategy<Value = u32> {
    let named: Vec<u32> = Bar0Reg::all().map(Bar0Reg::offset).collect();
    let of_falcons: Vec<u32> = [Falcon::Fecs, Falcon::Gpccs]
        .into_iter()
        .flat_map(|falcon| (0..0x200).step_by(4).map(move |at| falcon.first() + at))
        .collect();
    prop_oneof![
        6 => proptest::sample::select(named),
        1 => proptest::sample::select(of_falcons),
        1 => 0u32..0x200_0000,
        1 => any::<u32>(),
    ]
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        Just(u32::MAX),
        0u32..0x200,
        // Frames of the test's VRAM, enabled or valid.
        (0u32..0x2000).prop_map(|frame| frame | 0xc000_0000),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_list_is_survived(
        lists in proptest::array::uniform2(proptest::collection::vec((register(), value()), 1..60)),
        requests in proptest::collection::vec((0usize..2, any::<bool>()), 0..6),
    ) {
        let (mut bench, golden) = running();
        let mut channels = [bench.channel(1), bench.channel(2)];
        let mut images = [0; 2];
        for ((channel, image), list) in channels.iter().zip(&mut images).zip(&lists) {
            *image = give_image(&mut bench, channel, &golden);
            give_list(&mut bench, channel, *image, list);
        }
        bench.runlist(&[1, 2]);
        for channel in &mut channels {
            bench.submit(channel, &bind());
            bench.now_ns += 10_000;
            bench.card.step(bench.now_ns, 40);
        }
        for (index, by_request) in requests {
            name_list(&mut bench, images[index], lists[index].len() as u32);
            if by_request {
                bench.write(FecsReg::FecsNextChannel, word_of(&channels[index]));
                bench.write(FecsReg::FecsIntrSet, FECS_SWITCH_REQUEST);
            }
            bench.now_ns += 100_000;
            bench.card.step(bench.now_ns, 40);
            recover(&mut bench);
            bench.write(PfifoReg::ChannelState(1 + index as u16), pfifo::CHANNEL_START);
        }
        for _ in 0..20 {
            bench.now_ns += 1_000_000;
            bench.card.step(bench.now_ns, 200);
            recover(&mut bench);
        }
    }
}

/// As nouveau does when it lets go of a card: PGRAPH is reset, and its own channel, which used it last, releases one more semaphore.
#[test]
fn channel_that_used_pgraph_last_releases_a_semaphore_though_its_microcode_is_gone() {
    let (mut bench, golden) = running();
    let mut a = bench.channel(1);
    give_image(&mut bench, &a, &golden);
    let page = bench.allocate(0x1000);
    bench.map(a.space, DATA, Page::Vram(page), 0x1000);
    bench.flush();
    bench.runlist(&[1]);
    bench.submit(&mut a, &bind());
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(current(&mut bench), word_of(&a));
    save(&mut bench, &a);
    let enabled = bench.read(PmcReg::PmcEnable);
    bench.write(PmcReg::PmcEnable, enabled & !(1 << Engine::Graph.enable_bit()));
    bench.write(PmcReg::PmcEnable, enabled);
    bench.submit(&mut a, &Methods::new().release(DATA, 7).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(page), 7);
}
