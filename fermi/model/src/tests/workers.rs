//! Blocks that workers run ahead of their turn: the card does the same, at the same time of its own, step by step.

use super::{
    compute::{A, B, BUFFER_BYTES, C, Kernel, Memories, prepare, vecadd},
    support::*,
};
use crate::{Counters, ShaderPlace, Stepped, Timing, compute::Workers};
use fermi_spec::{
    board::Board,
    regs::{PfifoReg, PgraphReg},
};
use std::sync::Arc;

/// Bytes of each buffer that are looked at after each step, from the beginning and from the end.
const LOOKED_AT: usize = 0x1000;

/// Who executes blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Card,
    /// A worker that does each job when it is sent.
    Worker,
    /// Workers that never come to a job.
    Nobody,
    /// Workers that do it when they come to it.
    Threads(usize),
}

/// What can be seen of the card after a step.
#[derive(Clone, PartialEq, Debug)]
struct Moment {
    time: u64,
    counters: Counters,
    buffers: Vec<u8>,
}

impl Moment {
    fn of(bench: &Bench, memories: &Memories) -> Self {
        let places = [memories.a, memories.b, memories.c];
        let parts = places
            .into_iter()
            .flat_map(|at| [at, at + BUFFER_BYTES - LOOKED_AT as u64]);
        let vram = parts.flat_map(|at| bench.vram_bytes(at, LOOKED_AT));
        Self {
            time: bench.card.gpu_time(),
            counters: *bench.card.counters(),
            buffers: vram.chain(bench.ram_bytes(2 * BUFFER_BYTES, LOOKED_AT)).collect(),
        }
    }
}

/// All that can be seen of it in the end.
#[derive(Clone, PartialEq, Debug)]
struct Ending {
    buffers: Vec<u8>,
    registers: Vec<u32>,
    stopped_at: Option<ShaderPlace>,
}

impl Ending {
    fn of(bench: &mut Bench, memories: &Memories) -> Self {
        let places = [memories.a, memories.b, memories.c];
        let ram = bench.ram_bytes(0, 3 * BUFFER_BYTES as usize);
        let vram = places
            .into_iter()
            .flat_map(|at| bench.vram_bytes(at, BUFFER_BYTES as usize));
        Self {
            buffers: vram.chain(ram).collect(),
            registers: [
                bench.read(PgraphReg::GraphIntr),
                bench.read(PgraphReg::MpWarpError(0)),
                bench.read(PgraphReg::MpGlobalError(0)),
                bench.read(PfifoReg::FaultUnits),
                bench.read(PfifoReg::FaultRecord(0)),
                bench.read(PfifoReg::FaultRecord(1)),
            ]
            .to_vec(),
            stopped_at: bench.card.stopped_at(),
        }
    }
}

struct Case {
    kernel: Kernel,
    timing: Timing,
    /// Buffers are in system memory.
    is_spilled: bool,
    /// What the host does after each step, by its number, in an address space and its buffers.
    host: fn(&mut Bench, Space, &Memories, usize),
}

impl Case {
    fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            timing: Timing::of(Board::Gtx480),
            is_spilled: false,
            host: |_, _, _, _| {},
        }
    }

    /// A channel with the kernel's code and its buffers, which are full of numbers.
    fn prepare(&self, bench: &mut Bench) -> (Channel, Memories) {
        bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
        let channel = bench.channel(1);
        bench.runlist(&[1]);
        let memories = prepare(bench, &channel, &self.kernel);
        for (number, at) in (0..).zip([memories.a, memories.b, memories.c]) {
            let words: Vec<u8> = (0..BUFFER_BYTES as u32 / 4)
                .flat_map(|index| (index.wrapping_mul(0x9e37_79b9) >> 7 ^ number).to_le_bytes())
                .collect();
            bench.set_vram_bytes(at, &words);
        }
        if self.is_spilled {
            for (va, at) in [(A, 0), (B, BUFFER_BYTES), (C, 2 * BUFFER_BYTES)] {
                bench.map(channel.space, va, Page::Ram(at), BUFFER_BYTES);
            }
            bench.flush();
        }
        (channel, memories)
    }

    /// Each step, the end, and how many blocks workers ran.
    fn run(&self, by: By) -> (Vec<Moment>, Ending, u64) {
        let mut bench = ready_with(self.timing);
        let mut threads = Vec::new();
        match by {
            By::Card => {}
            By::Worker => bench.card.workers = Some(Arc::new(Workers::at_once())),
            By::Nobody => drop(bench.card.set_workers(2)),
            By::Threads(count) => {
                let workers = bench.card.set_workers(count);
                threads.extend(
                    workers
                        .into_iter()
                        .map(|worker| std::thread::spawn(|| worker.run())),
                );
            }
        }
        let (mut channel, memories) = self.prepare(&mut bench);
        bench.submit(&mut channel, &self.kernel.methods(C + BUFFER_BYTES - 16, 5).0);
        let mut moments = Vec::new();
        for step in 0.. {
            assert!(step < 1_000_000, "it does not end");
            let stepped = bench.card.step(bench.card.gpu_time(), 1);
            (self.host)(&mut bench, channel.space, &memories, step);
            moments.push(Moment::of(&bench, &memories));
            if stepped != Stepped::Busy {
                break;
            }
        }
        let ending = Ending::of(&mut bench, &memories);
        let played = bench.card.played_blocks();
        drop(bench);
        for thread in threads {
            thread.join().expect("workers do not panic");
        }
        (moments, ending, played)
    }

    /// Runs it in all ways: the blocks that the worker that is never late ran.
    fn check(&self) -> u64 {
        let (moments, ending, none) = self.run(By::Card);
        assert_eq!(none, 0);
        let mut played = 0;
        for by in [By::Worker, By::Nobody, By::Threads(1), By::Threads(3)] {
            let (other_moments, other_ending, blocks) = self.run(by);
            for (step, (moment, other)) in moments.iter().zip(&other_moments).enumerate() {
                assert!(
                    moment == other,
                    "{by:?}: step {step} at {} and {} ns",
                    moment.time,
                    other.time
                );
            }
            assert_eq!(moments.len(), other_moments.len(), "{by:?}");
            assert_eq!(ending.registers, other_ending.registers, "{by:?}");
            assert_eq!(ending.stopped_at, other_ending.stopped_at, "{by:?}");
            assert!(
                ending.buffers == other_ending.buffers,
                "{by:?}: bytes differ in the end"
            );
            match by {
                By::Worker => played = blocks,
                By::Nobody => assert_eq!(blocks, 0),
                By::Card | By::Threads(_) => {}
            }
        }
        played
    }
}

/// A kernel whose register 0 is the number of the thread in the grid, 1 its index in the block, and 2 the block's.
fn kernel(source: &str, blocks: u32, threads: u32) -> Kernel {
    let head = "
        mov b32 $r2 $ctaidx
        mov b32 $r3 $ntidx
        mov b32 $r1 $tidx
        add $r0 (mul u32 $r2 u32 $r3) $r1
        shl b32 $r4 $r0 clamp 0x2";
    Kernel::new(&format!("{head}\n{source}\nexit"), [blocks, 1], threads, &[])
}

/// Loads a word, computes for a while, stores one: with `rounds` rounds of 4 instructions.
fn computing(rounds: u32, blocks: u32) -> Kernel {
    let source = format!(
        "add b32 $r5 $r4 0x{A:x}
        ld b32 $r6 ca g[$r5]
        mov b32 $r7 0x0
        loop: add $r6 (mul u32 $r6 u32 $r6) $r7
        add b32 $r7 $r7 0x1
        set $p0 0x1 lt u32 $r7 0x{rounds:x}
        $p0 bra #loop
        add b32 $r5 $r4 0x{C:x}
        st b32 wb g[$r5] $r6"
    );
    kernel(&source, blocks, 64)
}

#[test]
fn blocks_that_know_nothing_of_each_other() {
    for is_spilled in [false, true] {
        let case = Case {
            is_spilled,
            ..Case::new(vecadd(50_000))
        };
        assert!(case.check() > 150, "of 391 blocks");
    }
}

#[test]
fn blocks_of_several_pieces_and_of_more_than_a_turn() {
    // 2 warps of 4000 instructions and of 40,000, of which a turn has 65,536: all have begun when the first ends.
    assert!(Case::new(computing(1_000, 24)).check() > 8);
    assert_eq!(Case::new(computing(10_000, 10)).check(), 0);
}

#[test]
fn blocks_that_load_what_the_one_before_stored() {
    let source = format!(
        "add b32 $r5 $r4 0x{A:x}
        ld b32 $r8 ca g[$r5]
        shl b32 $r5 $r2 clamp 0x2
        add b32 $r5 $r5 0x{C:x}
        ld b32 $r6 ca g[$r5]
        add b32 $r6 $r6 0x3
        st b32 wb g[$r5+0x4] $r6
        add b32 $r8 $r8 $r6
        add b32 $r7 $r4 0x{B:x}
        st b32 wb g[$r7] $r8"
    );
    let played = Case::new(kernel(&source, 300, 32)).check();
    assert!((1..100).contains(&played), "{played}: it is found out and left");
}

#[test]
fn blocks_with_atomic_operations_and_clocks() {
    for instruction in [
        "red add u32 g[$r5] $r6",
        "mov b32 $r6 $clock\nst b32 wb g[$r5] $r6",
    ] {
        let source = format!(
            "add b32 $r5 $r4 0x{A:x}
            mov b32 $r7 0x0
            ld b32 $r6 ca g[$r5]
            loop: add $r6 (mul u32 $r6 u32 $r6) $r7
            add b32 $r7 $r7 0x1
            set $p0 0x1 lt u32 $r7 0x80
            $p0 bra #loop
            mov b32 $r5 0x{C:x}
            {instruction}
            add b32 $r5 $r4 0x{B:x}
            st b32 wb g[$r5] $r6"
        );
        assert!(Case::new(kernel(&source, 40, 128)).check() > 10, "{instruction}");
    }
}

#[test]
fn blocks_whose_threads_wait_for_each_other_and_load_what_they_stored() {
    let source = format!(
        ".shared 512
        .barriers 1
        mov b32 $r2 $ctaidx
        mov b32 $r1 $tidx
        shl b32 $r4 $r2 clamp 0x7
        add b32 $r4 $r4 $r1
        shl b32 $r4 $r4 clamp 0x2
        add b32 $r5 $r4 0x{A:x}
        ld b32 $r6 ca g[$r5]
        shl b32 $r8 $r1 clamp 0x2
        st b32 s[$r8] $r6
        bar popc 0x1 0x0 0x0 0x0 0x1
        xor b32 $r8 $r8 0x1fc
        ld b32 $r7 s[$r8]
        add b32 $r5 $r4 0x{C:x}
        st b32 wb g[$r5] $r7
        ld b32 $r7 ca g[$r5]
        add b32 $r7 $r7 $r6
        st b32 wb g[$r5] $r7
        exit"
    );
    assert!(Case::new(Kernel::new(&source, [1_000, 1], 128, &[])).check() > 300);
}

#[test]
fn blocks_that_scatter() {
    let source = format!(
        "mul $r5 u32 $r4 u32 $r0
        and b32 $r5 $r5 0xffffc
        add b32 $r6 $r5 0x{A:x}
        add b32 $r7 $r5 0x{C:x}
        ld u8 $r8 ca g[$r6+0x1]
        ld b32 $r9 ca g[$r6]
        add b32 $r9 $r9 $r8
        st b32 wb g[$r7] $r9
        st u8 wb g[$r7+0x3] $r8"
    );
    for is_spilled in [false, true] {
        let case = Case {
            is_spilled,
            ..Case::new(kernel(&source, 200, 96))
        };
        assert!(case.check() > 60);
    }
}

/// More pages than a track may store to, all of which the next block loads from.
#[test]
fn blocks_that_store_to_many_pages() {
    let source = format!(
        "shl b32 $r5 $r1 clamp 0xc
        add b32 $r5 $r5 0x{C:x}
        shl b32 $r6 $r2 clamp 0x2
        add b32 $r5 $r5 $r6
        mov b32 $r7 0x0
        loop: add b32 $r7 $r7 0x1
        set $p0 0x1 lt u32 $r7 0x40
        $p0 bra #loop
        ld b32 $r8 ca g[$r5]
        add b32 $r8 $r8 $r7
        st b32 wb g[$r5] $r8
        st b32 wb g[$r5+0x800] $r0"
    );
    assert!(Case::new(kernel(&source, 60, 255)).check() > 10);
}

/// The buffers end before the grid does.
#[test]
fn block_that_faults() {
    assert!(
        Case::new(vecadd(300_000)).check() == 0,
        "a grid that stops is not counted"
    );
}

#[test]
fn watchdog_in_a_block_that_is_played() {
    let mut case = Case::new(computing(5_000, 24));
    for watchdog_ns in [400_000, 401_777, 555_555, 1_000_001] {
        case.timing.shaders.watchdog_ns = watchdog_ns;
        case.check();
    }
}

/// The host stores to what later blocks load, now and then.
#[test]
fn blocks_whose_memory_the_host_changes() {
    let case = Case {
        host: |bench, _, memories, step| {
            if step % 5 == 3 {
                let at = step as u64 * 0x344 % BUFFER_BYTES / 4 * 4;
                bench.set_vram_u32(memories.a + at, step as u32);
            }
        },
        ..Case::new(computing(100, 1_000))
    };
    case.check();
}

/// A page of theirs goes while the grid runs.
#[test]
fn block_whose_page_goes() {
    let case = Case {
        host: |bench, space, _, step| {
            if step == 12 {
                let entry = bench.small_entry(space, C + 0x8000);
                bench.set_vram_u64(entry, 0);
                bench.flush();
            }
        },
        ..Case::new(computing(100, 1_000))
    };
    case.check();
}

/// A card that is let go, or gets others, while a grid has jobs for them.
#[test]
fn workers_end_while_a_grid_runs() {
    let case = Case::new(computing(2_000, 24));
    let mut bench = ready();
    let workers = bench.card.set_workers(2).into_iter();
    let threads: Vec<_> = workers
        .map(|worker| std::thread::spawn(|| worker.run()))
        .collect();
    let (mut channel, memories) = case.prepare(&mut bench);
    bench.submit(&mut channel, &case.kernel.methods(C + BUFFER_BYTES - 16, 5).0);
    for _ in 0..40 {
        bench.card.step(bench.card.gpu_time(), 1);
    }
    assert_eq!(bench.card.counters().grids, 0, "it runs");
    bench.card.set_workers(0);
    for thread in threads {
        thread.join().expect("workers do not panic");
    }
    assert_eq!(bench.run(), Stepped::Idle);
    let (_, ending, _) = case.run(By::Card);
    assert!(Ending::of(&mut bench, &memories).buffers == ending.buffers);
}

/// Each block waits for the next one, which starts while it waits.
#[test]
fn blocks_that_wait_for_the_next() {
    let source = format!(
        "shl b32 $r5 $r2 clamp 0x2
        add b32 $r5 $r5 0x{B:x}
        set $p0 0x1 eq u32 $r2 0x7
        $p0 bra #end
        wait: ld b32 $r6 cv g[$r5+0x4]
        set $p0 0x1 ne u32 $r6 0x77
        $p0 bra #wait
        end: mov b32 $r6 0x77
        st b32 wb g[$r5] $r6"
    );
    Case::new(kernel(&source, 8, 32)).check();
}
