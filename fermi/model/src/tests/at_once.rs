//! A channel whose work is done at once, beside others that keep the engines busy.

use super::support::*;
use crate::pfifo::ChannelId;
use crate::{Counters, Stepped};
use fermi_spec::regs::pfifo::PREEMPT_PENDING;
use fermi_spec::regs::{PfifoReg, PmcReg};

const DATA: u64 = 0x1000_0000;
const RAM: u64 = 0x800_0000;
const BYTES: u64 = 2 << 20;
const SEMAPHORE: u64 = DATA + 4 * BYTES;

/// What a run with the copies of two channels came to.
struct Outcome {
    /// GPU time that the copy of channel 0 took.
    first_ns: u64,
    /// Steps of one unit of work until it was done.
    steps: u32,
    /// The other channel was still copying then.
    other_copies: bool,
    /// GPU time of everything, and what both copied.
    whole_ns: u64,
    counters: Counters,
    copied: [Vec<u8>; 2],
}

/// Channel 1 copies 8 MiB back and forth on the engine that channel 0 needs, when channel 0's work comes.
fn run(at_once: bool) -> Outcome {
    let mut bench = ready();
    if at_once {
        bench.card.do_at_once(0);
    }
    let vram = bench.allocate_aligned(4 * BYTES + 0x2_0000, 0x2_0000);
    let mut channels: [Channel; 2] = [0, 1].map(|id| bench.channel(id));
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    bench.set_vram_bytes(vram, &pattern);
    for channel in &channels {
        bench.map_large(channel.space, DATA, Page::Vram(vram), 4 * BYTES + 0x2_0000);
        bench.map(channel.space, RAM, Page::Ram(0), 2 * BYTES);
    }
    bench.flush();
    bench.runlist(&[0, 1]);
    bench.run();
    let mut long = Methods::new().to(1, 0, &[0x0004_90b5]);
    for _ in 0..4 {
        long = long.copy(1, DATA, RAM, 0x1000, (BYTES / 0x1000) as u32);
    }
    let [first, other] = &mut channels;
    bench.submit(other, &long.release(SEMAPHORE + 16, 1).0);
    while bench.card.counters().copied_bytes < BYTES / 4 {
        bench.card.step(0, 1);
    }
    let start = bench.card.gpu_time();
    let copy = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, DATA, DATA + 2 * BYTES, 0x1000, (BYTES / 0x1000) as u32)
        .release(SEMAPHORE, 1);
    bench.submit(first, &copy.0);
    let mut steps = 0;
    while bench.vram_u32(vram + 4 * BYTES) != 1 {
        assert!(
            bench.card.step(0, 1) == Stepped::Busy,
            "it rests before the copy is done"
        );
        steps += 1;
    }
    let first_ns = bench.card.gpu_time() - start;
    let other_copies = bench.vram_u32(vram + 4 * BYTES + 16) != 1;
    bench.run();
    Outcome {
        first_ns,
        steps,
        other_copies,
        whole_ns: bench.card.gpu_time(),
        counters: *bench.card.counters(),
        copied: [
            bench.vram_bytes(vram + 2 * BYTES, BYTES as usize),
            bench.ram_bytes(0, BYTES as usize),
        ],
    }
}

#[test]
fn work_that_is_done_at_once_takes_no_gpu_time_and_no_work_of_others_comes_before_its_end() {
    let (before, now) = (run(false), run(true));
    // What the test would show anyway: 2 MiB take time, and most of the other copy.
    assert!(before.first_ns > 20_000, "{} ns", before.first_ns);
    assert_eq!(now.first_ns, 0);
    // 256 KiB a step, and a few for methods.
    assert!(now.steps < 8 + 64, "{} steps", now.steps);
    assert!(now.other_copies);
    // Both are right, and nobody copied more or less.
    assert_eq!(now.copied[0], now.copied[1]);
    assert_eq!(now.copied, before.copied);
    assert_eq!(now.counters.copied_bytes, before.counters.copied_bytes);
    assert_eq!((now.counters.pbdma_errors, now.counters.engine_errors), (0, 0));
}

#[test]
fn channel_that_was_named_stays_so_through_resets_of_pfifo_and_of_the_card() {
    let mut bench = ready();
    bench.card.do_at_once(0);
    bench.write(PmcReg::PmcEnable, 0);
    bench.write(PmcReg::PmcEnable, u32::MAX);
    assert!(bench.card.is_at_once(ChannelId::new(0)));
    bench.card.reset();
    assert!(bench.card.is_at_once(ChannelId::new(0)));
}

#[test]
fn what_is_moved_at_once_still_takes_its_time_on_the_links() {
    let (before, now) = (run(false), run(true));
    // The copy within VRAM takes 26 µs of the VRAM's time, which does not hold up one over PCIe: no run is much shorter.
    assert!(
        now.whole_ns.abs_diff(before.whole_ns) < before.whole_ns / 10,
        "{} and {}",
        now.whole_ns,
        before.whole_ns
    );
}

/// Steps of one unit of work that all of it takes at most.
const STEPS_MAX: u32 = 1_000_000;

/// GPU time and steps from a preempt in a copy of so many times 2 MiB to its end, and what is in RAM then.
fn preempt(is_shared: bool, copies: u32) -> (u64, u32, Vec<u8>) {
    let mut bench = ready();
    if is_shared {
        bench.card.do_at_once(0);
    }
    let vram = bench.allocate_aligned(BYTES, 0x2_0000);
    let mut channel = bench.channel(3);
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    bench.set_vram_bytes(vram, &pattern);
    // Behind each other in the channel's view, and all the same memory.
    for copy in 0..u64::from(copies) {
        bench.map_large(channel.space, DATA + copy * BYTES, Page::Vram(vram), BYTES);
        bench.map(channel.space, RAM + copy * BYTES, Page::Ram(0), BYTES);
    }
    bench.flush();
    bench.runlist(&[3]);
    bench.run();
    let lines = copies * (BYTES / 0x1000) as u32;
    let copy = Methods::new()
        .to(1, 0, &[0x0004_90b5])
        .copy(1, DATA, RAM, 0x1000, lines);
    bench.submit(&mut channel, &copy.0);
    let mut steps = 0;
    let step = |bench: &mut Bench, steps: &mut u32| {
        *steps += 1;
        assert!(*steps < STEPS_MAX, "it does not end: {:?}", bench.card.counters());
        bench.card.step(0, 1);
    };
    while bench.card.counters().copied_bytes < BYTES / 4 {
        step(&mut bench, &mut steps);
    }
    let start = bench.card.gpu_time();
    bench.write(PfifoReg::Preempt, 3);
    steps = 0;
    while bench.read(PfifoReg::Preempt) & PREEMPT_PENDING != 0 {
        step(&mut bench, &mut steps);
    }
    (
        bench.card.gpu_time() - start,
        steps,
        bench.ram_bytes(0, BYTES as usize),
    )
}

#[test]
fn copy_that_a_preempt_waits_for_ends_at_once_where_somebody_shares_the_card() {
    let ((before_ns, _, copied), (now_ns, steps, copied_now)) = (preempt(false, 1), preempt(true, 1));
    // The copy ends in both: 1.5 MiB over PCIe, of which it takes no GPU time where the card is shared.
    assert!(before_ns > 100_000, "{before_ns} ns");
    assert_eq!(now_ns, 0);
    assert!(steps <= 32, "{steps} steps");
    assert_eq!(copied, copied_now);
}

/// A guest may copy for hours: what it copies in none of the GPU's time keeps everybody else from theirs.
#[test]
fn long_copy_that_a_preempt_waits_for_takes_its_time() {
    let ((before_ns, ..), (now_ns, ..)) = (preempt(false, 15), preempt(true, 15));
    // What 4 MiB of 29.5 save is made up for on the link, which they keep as long as ever.
    assert!(
        now_ns > before_ns * 8 / 10 && now_ns <= before_ns,
        "{now_ns} of {before_ns} ns"
    );
}
