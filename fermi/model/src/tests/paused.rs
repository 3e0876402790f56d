//! A copy that gives way is part of its channel's context: it goes on wherever the context goes.

use super::graph::{give_image, golden_image};
use super::support::*;
use crate::Stepped;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{INSTANCE_BYTES, Timeslice, USERD_BYTES, offset};
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::{CHANNEL_START, ChannelState, PREEMPT_PENDING, RUNLIST_PENDING};

const DATA: u64 = 0x1000_0000;
const CONTEXT: u64 = 0x600_0000;
const HALF: u64 = 4 << 20;
const DONE: u64 = DATA + 2 * HALF;

/// What copies: the class and where it is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    M2mf,
    Engine0,
}

/// Two channels that copy the same, with short slices, so that each gives way to the other.
fn two_that_copy(by: By, has_contexts: bool) -> (Bench, [Channel; 2], u64) {
    let mut bench = ready();
    let golden = golden_image(&mut bench, 0x1234);
    let vram = bench.allocate_aligned(4 * HALF, 0x2_0000);
    let pattern: Vec<u8> = (0..HALF).map(|i| ((i * 31) >> 3) as u8 | 1).collect();
    bench.set_vram_bytes(vram, &pattern);
    let mut channels = [bench.channel(1), bench.channel(2)];
    for channel in &channels {
        bench.map_large(channel.space, DATA, Page::Vram(vram), 4 * HALF);
        let slice = Timeslice::new().with_timeout(1).with_enable(true);
        bench.set_vram_u32(channel.instance + offset::TIMESLICE, slice.into_bits());
        if has_contexts {
            give_image(&mut bench, channel, &golden);
            let context = bench.allocate(0x1000);
            bench.map(channel.space, CONTEXT, Page::Vram(context), 0x1000);
            let at = channel.instance + Engine::Copy0.context_offset();
            bench.set_vram_u32(at, CONTEXT as u32 | 4);
        }
    }
    bench.flush();
    bench.runlist(&[1, 2]);
    for channel in &mut channels {
        let done = DONE + 16 * u64::from(channel.id);
        let lines = (HALF / 0x1000) as u32;
        let words = match by {
            By::M2mf => Methods::new()
                .to(0, 0, &[0x9039])
                .m2mf(0, DATA, DATA + HALF, 0x1000, lines),
            By::Engine0 => Methods::new()
                .to(1, 0, &[0x0004_90b5])
                .copy(1, DATA, DATA + HALF, 0x1000, lines),
        };
        bench.submit(channel, &words.release(done, 1).0);
    }
    (bench, channels, vram)
}

/// Runs until channel 1 has given way in the middle, and the card works for the other one.
fn run_to_its_pause(bench: &mut Bench) {
    for _ in 0..1_000_000 {
        let state = ChannelState::from_bits(bench.read(PfifoReg::ChannelState(1)));
        if bench.card.counters().paused_copies > 2 && state.pending() && !state.loaded() {
            return;
        }
        assert_eq!(
            bench.card.step(bench.now_ns, 1),
            Stepped::Busy,
            "{:?}",
            bench.card.counters()
        );
    }
    panic!("it never gives way");
}

/// Takes the channel off the runlist, the engines and the table.
fn take_out(bench: &mut Bench, channel: &Channel) {
    bench.runlist(&[2]);
    bench.write(PfifoReg::Preempt, u32::from(channel.id));
    for _ in 0..1_000_000 {
        let commits = bench.read(PfifoReg::RunlistStatus) & RUNLIST_PENDING != 0;
        if !commits && bench.read(PfifoReg::Preempt) & PREEMPT_PENDING == 0 {
            break;
        }
        bench.card.step(bench.now_ns, 1);
    }
    bench.write(PfifoReg::ChannelState(channel.id), 0);
    bench.write(PfifoReg::ChannelInstance(channel.id), 0);
    assert_eq!(bench.read(PfifoReg::ChannelInstance(channel.id)), 0);
}

/// Binds the channel under another number, as one that shares the card does, and rings it.
fn bind_as(bench: &mut Bench, channel: &mut Channel, id: u16) {
    let moved = (u64::from(id) - u64::from(channel.id)) * USERD_BYTES;
    (channel.id, channel.userd) = (id, channel.userd + moved);
    bench.set_vram_u32(channel.instance + offset::USERD_LO, channel.userd as u32);
    bench.bind(channel);
    bench.write(PfifoReg::ChannelState(id), CHANNEL_START);
    bench.runlist(&[2, id]);
    bench.ring(channel);
}

#[test]
fn it_goes_on_under_another_number() {
    for by in [By::M2mf, By::Engine0] {
        let (mut bench, [mut channel, _], vram) = two_that_copy(by, true);
        run_to_its_pause(&mut bench);
        take_out(&mut bench, &channel);
        bench.run();
        assert_eq!(bench.card.counters().copies, 1, "{by:?}: the other one is done");
        assert_eq!(bench.vram_u32(vram + 2 * HALF + 16), 0, "{by:?}");
        // What the other one stored is taken away again: what is there in the end, this one's rest has stored.
        bench.set_vram_bytes(vram + HALF, &vec![0; HALF as usize]);
        let before = bench.card.counters().copied_bytes;
        bind_as(&mut bench, &mut channel, 5);
        assert_eq!(bench.run(), Stepped::Idle);
        let counters = *bench.card.counters();
        assert_eq!((counters.copies, counters.carried_copies), (2, 1), "{by:?}");
        let rest = counters.copied_bytes - before;
        assert!(0 < rest && rest < HALF, "{by:?}: {rest}");
        let kept = (HALF - rest) as usize;
        let target = bench.vram_bytes(vram + HALF, HALF as usize);
        assert!(
            target[..kept].iter().all(|byte| *byte == 0),
            "{by:?}: nothing twice"
        );
        let source = bench.vram_bytes(vram, HALF as usize);
        assert!(target[kept..] == source[kept..], "{by:?}: nothing is missing");
        assert_eq!(bench.vram_u32(vram + 2 * HALF + 16), 1, "{by:?}");
    }
}

#[test]
fn it_goes_where_its_instance_block_goes() {
    let (mut bench, [mut channel, _], vram) = two_that_copy(By::M2mf, true);
    run_to_its_pause(&mut bench);
    take_out(&mut bench, &channel);
    bench.run();
    bench.set_vram_bytes(vram + HALF, &vec![0; HALF as usize]);
    let block = bench.vram_bytes(channel.instance, INSTANCE_BYTES as usize);
    bench.set_vram_bytes(channel.instance, &vec![0; INSTANCE_BYTES as usize]);
    channel.instance = bench.allocate(INSTANCE_BYTES);
    bench.set_vram_bytes(channel.instance, &block);
    bind_as(&mut bench, &mut channel, 1);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.card.counters().copies, 2);
    assert_ne!(bench.vram_bytes(vram + 2 * HALF - 4, 4), [0; 4]);
}

#[test]
fn a_context_that_the_card_keeps_goes_with_the_channel() {
    let (mut bench, [mut channel, _], vram) = two_that_copy(By::Engine0, false);
    run_to_its_pause(&mut bench);
    take_out(&mut bench, &channel);
    bench.run();
    bind_as(&mut bench, &mut channel, 5);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.card.counters().copies, 1);
    // What is behind it in the ring is not lost.
    assert_eq!(bench.vram_u32(vram + 2 * HALF + 16), 1);
}

#[test]
fn a_block_that_names_an_engine_without_a_copy_is_survived() {
    for word in [1, 2, 3, 4, 9, 0x20, u32::MAX] {
        let (mut bench, [channel, _], vram) = two_that_copy(By::M2mf, true);
        bench.write(PfifoReg::ChannelState(1), 0);
        take_out(&mut bench, &channel);
        bench.set_vram_u32(channel.instance + offset::WORD_D4, word);
        let mut channel = channel;
        bind_as(&mut bench, &mut channel, 5);
        assert_eq!(bench.run(), Stepped::Idle, "{word:#x}");
        assert_eq!(bench.card.counters().copies, 2, "{word:#x}");
        assert_eq!(bench.vram_u32(vram + 2 * HALF + 16), 1, "{word:#x}");
    }
}
