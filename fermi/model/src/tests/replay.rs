//! Warps that wait for pages.

use super::compute::{
    A, B, BUFFER_BYTES, C, CODE, Kernel, Memories, TEXELS, bindings, buffer_header, prepare, vecadd,
};
use super::support::*;
use crate::{Capabilities, ReplayableFault, ReplayableFaults, Stepped, Timing};
use fermi_spec::{
    addr::{Aperture, PhysAddr},
    board::Board,
    engine::Engine,
    fault::{FaultType, Reason, client},
    pte::Pte,
    regs::{
        PfifoReg, PgraphReg, PmcReg,
        pfifo::{PREEMPT_PENDING, intr},
        pgraph::graph_intr,
    },
};

const PAGE: u64 = 0x1000;
const HANDLING_NS: u64 = ReplayableFaults::DEFAULT.handling_ns;

/// A card whose faults can be replayed, and a channel with a kernel.
struct Demand {
    bench: Bench,
    channel: Channel,
    memories: Memories,
    kernel: Kernel,
}

impl Demand {
    fn new(kernel: Kernel) -> Self {
        Self::with(kernel, ReplayableFaults::DEFAULT, Timing::of(Board::Gtx480))
    }

    fn with(kernel: Kernel, parameters: ReplayableFaults, timing: Timing) -> Self {
        let capabilities = Capabilities {
            access_counters: true,
            replayable_faults: Some(parameters),
        };
        let mut bench = ready_with_capabilities(timing, capabilities);
        bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
        let channel = bench.channel(1);
        bench.runlist(&[1]);
        let memories = prepare(&mut bench, &channel, &kernel);
        Self {
            bench,
            channel,
            memories,
            kernel,
        }
    }

    /// Takes the entries of pages away.
    fn take_away(&mut self, va: u64, bytes: u64) {
        for va in (va..va + bytes).step_by(PAGE as usize) {
            let entry = self.bench.small_entry(self.channel.space, va);
            self.bench.set_vram_u64(entry, 0);
        }
        self.bench.flush();
    }

    /// Gives a page of the buffers its entry back, without a flush.
    fn give(&mut self, va: u64) {
        let first = va / PAGE * PAGE;
        let at = match first {
            A..B => self.memories.a + first - A,
            B..C => self.memories.b + first - B,
            _ => self.memories.c + first - C,
        };
        self.bench.map(self.channel.space, first, Page::Vram(at), PAGE);
    }

    fn launch(&mut self) -> Stepped {
        let methods = self.kernel.methods(C + BUFFER_BYTES - 16, 77);
        self.bench.submit(&mut self.channel, &methods.0);
        self.bench.run()
    }

    /// Gives all that is asked for until the grid has ended; how many replays it took.
    fn serve(&mut self) -> u64 {
        let mut rounds = 0;
        while self.bench.run() == Stepped::Waiting {
            rounds += 1;
            assert!(rounds < 10_000, "the grid gets nowhere");
            for fault in self.bench.card.take_faults() {
                self.give(fault.va.0);
            }
            self.bench.card.replay_faults(0);
        }
        assert_eq!(self.bench.card.counters().replays, rounds);
        assert_eq!(self.bench.card.counters().mmu_faults, 0);
        assert_eq!(self.bench.vram_u32(self.memories.c + BUFFER_BYTES - 16), 77);
        rounds
    }

    fn words(&self, at: u64, count: u64) -> Vec<u32> {
        (0..count)
            .map(|index| self.bench.vram_u32(at + 4 * index))
            .collect()
    }
}

/// One warp: lane i accesses the word at an address and 4·i bytes more, in register 4; register 1 is i, register 2 is 4·i.
fn row(at: u64, access: &str) -> Kernel {
    let source = format!(
        "mov b32 $r1 $laneid
        shl b32 $r2 $r1 clamp 0x2
        add b32 $r4 $r2 0x{at:x}
        {access}
        exit"
    );
    Kernel::new(&source, [1, 1], 32, &[])
}

#[test]
fn missing_pages_are_told_and_every_warp_goes_on_where_it_waited() {
    let n = 10_000;
    let mut demand = Demand::new(vecadd(n));
    for i in 0..u64::from(n) {
        demand
            .bench
            .set_vram_u32(demand.memories.a + 4 * i, (i as f32).to_bits());
        demand
            .bench
            .set_vram_u32(demand.memories.b + 4 * i, 0.5f32.to_bits());
    }
    demand.take_away(A, BUFFER_BYTES);
    demand.take_away(C, BUFFER_BYTES - PAGE);
    assert_eq!(demand.launch(), Stepped::Waiting);
    let first = demand.bench.card.take_faults();
    // 79 blocks of 4 warps at once, of which each waits for one page of A; the last ones have no element.
    assert_eq!(first.len(), 313);
    let wanted = ReplayableFault {
        va: first[0].va,
        is_store: false,
        client: client::GPC_L1,
        engine: Engine::Graph,
        instance: (Aperture::Vram, PhysAddr(demand.channel.instance)),
        at_ns: first[0].at_ns,
    };
    assert_eq!(first[0], wanted);
    assert!(
        first
            .iter()
            .all(|fault| (A..A + 4 * u64::from(n)).contains(&fault.va.0) && !fault.is_store)
    );
    for fault in first {
        demand.give(fault.va.0);
    }
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    let second = demand.bench.card.take_faults();
    assert!(
        second
            .iter()
            .all(|fault| (C..C + 4 * u64::from(n)).contains(&fault.va.0) && fault.is_store)
    );
    for fault in second {
        demand.give(fault.va.0);
    }
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Idle);
    for i in 0..n {
        let found = f32::from_bits(demand.bench.vram_u32(demand.memories.c + u64::from(i) * 4));
        assert_eq!(found, i as f32 + 0.5, "{i}");
    }
    let counters = *demand.bench.card.counters();
    assert_eq!(
        (
            counters.grids,
            counters.replays,
            counters.replayable_faults,
            counters.mmu_faults
        ),
        (1, 2, 626, 0)
    );
    // What waited counts once: two loads and a store of each of the warps.
    let counts = demand.bench.card.access_counts();
    let sums = counts.fold([0; 2], |[loads, stores], count| {
        [loads + count.loads, stores + count.stores]
    });
    assert_eq!(sums, [2 * 313, 313]);
}

#[test]
fn group_of_faults_costs_the_handling_time_and_what_the_host_moved() {
    let time = |is_missing: bool, moved_ns: u64| {
        let mut demand = Demand::new(row(A, "ld b32 $r5 ca g[$r4]\nst b32 wb g[$r4] $r5"));
        if is_missing {
            demand.take_away(A, BUFFER_BYTES);
        }
        if demand.launch() == Stepped::Waiting {
            demand.give(A);
            demand.bench.card.replay_faults(moved_ns);
        }
        assert_eq!(demand.bench.run(), Stepped::Idle);
        assert_eq!(demand.bench.card.counters().replays, u64::from(is_missing));
        demand.bench.card.gpu_time()
    };
    let (without, with) = (time(false, 0), time(true, 0));
    // The instructions before the fault ran meanwhile.
    assert!(
        (HANDLING_NS - 200..=HANDLING_NS).contains(&(with - without)),
        "{with} {without}"
    );
    assert_eq!(time(true, 12_345) - with, 12_345);
}

#[test]
fn grid_that_waits_takes_no_time() {
    let mut demand = Demand::new(vecadd(100_000));
    demand.take_away(A, BUFFER_BYTES);
    demand.launch();
    let before = demand.bench.card.gpu_time();
    for _ in 0..100 {
        assert_eq!(demand.bench.run(), Stepped::Waiting);
    }
    assert_eq!(demand.bench.card.gpu_time(), before);
    demand.serve();
}

#[test]
fn other_warps_go_on() {
    let source = format!(
        "mov b32 $r1 $ctaidx
        shl b32 $r2 $r1 clamp 0x2
        set $p0 0x1 eq u32 $r1 0x3
        mov b32 $r4 0x{A:x}
        $p0 ld b32 $r5 ca g[$r4]
        add b32 $r2 $r2 0x{C:x}
        add b32 $r1 $r1 0x1
        st b32 wb g[$r2] $r1
        exit"
    );
    let mut demand = Demand::new(Kernel::new(&source, [500, 1], 32, &[]));
    demand.take_away(A, PAGE);
    assert_eq!(demand.launch(), Stepped::Waiting);
    let stored = |demand: &Demand| demand.words(demand.memories.c, 500);
    let all: Vec<u32> = (1..501).collect();
    let mut wanted = all.clone();
    wanted[3] = 0;
    assert_eq!(stored(&demand), wanted);
    assert_eq!(demand.serve(), 1);
    assert_eq!(stored(&demand), all);
}

/// 16 lanes have their page, 16 have not.
#[test]
fn nothing_of_an_instruction_is_done_before_all_its_lanes_have_their_pages() {
    let border = A + PAGE - 64;
    let at = |demand: &Demand| demand.words(demand.memories.a + PAGE - 64, 32);
    for (access, wanted) in [
        ("st b32 wb g[$r4] $r1", (0..32).collect::<Vec<u32>>()),
        (
            "red add u32 g[$r4] $r1",
            (0..32).map(|lane| 1000 + lane).collect(),
        ),
        // In reverse, lane by lane.
        (
            "mov b32 $r6 0x7c\nsub b32 $r6 $r6 $r2\nsub b32 $r4 $r4 $r2\nadd b32 $r4 $r4 $r6\nst b32 wb g[$r4] $r1",
            (0..32).rev().collect(),
        ),
    ] {
        for missing in [A, A + PAGE] {
            let mut demand = Demand::new(row(border, access));
            for index in 0..32 {
                demand
                    .bench
                    .set_vram_u32(demand.memories.a + PAGE - 64 + 4 * index, 1000);
            }
            demand.take_away(missing, PAGE);
            assert_eq!(demand.launch(), Stepped::Waiting, "{access}");
            assert_eq!(at(&demand), [1000; 32], "{access}");
            assert_eq!(demand.bench.card.access_counts().count(), 0);
            // Replays that bring nothing do nothing.
            for _ in 0..3 {
                demand.bench.card.replay_faults(0);
                assert_eq!(demand.bench.run(), Stepped::Waiting);
                assert_eq!(at(&demand), [1000; 32], "{access}");
            }
            let faults = demand.bench.card.take_faults();
            assert!(
                faults
                    .iter()
                    .all(|fault| fault.is_store && fault.va.0 / PAGE == missing / PAGE)
            );
            assert_eq!(faults.len(), 4);
            demand.give(missing);
            demand.bench.card.replay_faults(0);
            assert_eq!(demand.bench.run(), Stepped::Idle);
            assert_eq!(at(&demand), wanted, "{access}");
        }
    }
}

#[test]
fn full_buffer_stalls_and_loses_nothing() {
    let few = ReplayableFaults {
        buffer_entries: 5,
        ..ReplayableFaults::DEFAULT
    };
    // Each lane of each of 8 warps adds to a page of its own.
    let source = format!(
        "mov b32 $r1 $laneid
        mov b32 $r2 $ctaidx
        shl b32 $r3 $r1 clamp 0xc
        shl b32 $r4 $r2 clamp 0x11
        add b32 $r3 $r3 $r4
        add b32 $r3 $r3 0x{A:x}
        add b32 $r1 $r1 0x1
        red add u32 g[$r3] $r1
        exit"
    );
    let kernel = Kernel::new(&source, [8, 1], 32, &[]);
    let mut demand = Demand::with(kernel, few, Timing::of(Board::Gtx480));
    demand.take_away(A, BUFFER_BYTES);
    assert_eq!(demand.launch(), Stepped::Waiting);
    let counters = *demand.bench.card.counters();
    assert_eq!(
        (counters.replayable_faults, counters.stalled_faults),
        (5, 8 * 32 - 5)
    );
    // Five at a time.
    assert_eq!(demand.serve(), (8 * 32u64).div_ceil(5));
    for page in 0..8 * 32 {
        let found = demand.bench.vram_u32(demand.memories.a + page * PAGE);
        assert_eq!(u64::from(found), page % 32 + 1);
    }
}

#[test]
fn read_only_page_waits_for_the_right_to_store() {
    let mut demand = Demand::new(row(
        A,
        "ld b32 $r5 ca g[$r4]\nadd b32 $r5 $r5 0x1\nst b32 wb g[$r4] $r5",
    ));
    let entry = demand.bench.small_entry(demand.channel.space, A);
    let writable = Pte::from_bits(demand.bench.vram_u64(entry));
    demand
        .bench
        .set_vram_u64(entry, writable.with_read_only(true).into_bits());
    demand.bench.flush();
    assert_eq!(demand.launch(), Stepped::Waiting);
    let faults = demand.bench.card.take_faults();
    assert_eq!(
        faults
            .iter()
            .map(|fault| (fault.va.0, fault.is_store))
            .collect::<Vec<_>>(),
        [(A, true)]
    );
    // The TLB has the entry from the load; the replay drops it.
    demand.bench.set_vram_u64(entry, writable.into_bits());
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Idle);
    assert_eq!(demand.words(demand.memories.a, 32), [1; 32]);
}

#[test]
fn what_mapping_cannot_help_ends_the_grid_as_ever() {
    let mut demand = Demand::new(row(A, "ld b32 $r5 ca g[$r4]"));
    let entry = demand.bench.small_entry(demand.channel.space, A);
    let supervisors = Pte::from_bits(demand.bench.vram_u64(entry)).with_privileged(true);
    demand.bench.set_vram_u64(entry, supervisors.into_bits());
    demand.bench.flush();
    demand.launch();
    assert_eq!(demand.bench.card.take_faults(), []);
    let units = demand.bench.read(PfifoReg::FaultUnits);
    assert_eq!(units, 1 << Engine::Graph.fault_unit());
    let kind = FaultType::from_bits(demand.bench.read(PfifoReg::FaultRecord(3)));
    assert_eq!(kind.reason(), Reason::Privileged as u8);
}

#[test]
fn faults_of_copies_are_fatal_whatever_the_card_can_do() {
    let mut demand = Demand::new(vecadd(1));
    demand.take_away(A, PAGE);
    let copy = Methods::new().to(2, 0, &[0x0004_90b5]).copy(2, A, B, 64, 1);
    demand.bench.submit(&mut demand.channel, &copy.0);
    demand.bench.run();
    assert_eq!(demand.bench.card.take_faults(), []);
    assert_eq!(
        demand.bench.read(PfifoReg::FaultUnits),
        1 << Engine::Copy0.fault_unit()
    );
}

#[test]
fn textures_surfaces_and_code_wait_too() {
    let mut demand = Demand::new(Kernel::new(TEXELS, [1, 1], 32, &[]));
    for (index, word) in buffer_header(B).into_iter().enumerate() {
        demand
            .bench
            .set_vram_u32(demand.memories.a + 5 * 32 + 4 * index as u64, word);
    }
    for index in 0..32 {
        demand
            .bench
            .set_vram_u32(demand.memories.b + 4 * index, 1000 + index as u32);
    }
    let code = demand.bench.small_entry(demand.channel.space, CODE);
    let code_page = demand.bench.vram_u64(code);
    demand.take_away(CODE, PAGE);
    demand.take_away(B, PAGE);
    demand.take_away(C, PAGE);
    let methods = bindings(5, A, 5);
    demand.bench.submit(&mut demand.channel, &methods.0);
    assert_eq!(demand.launch(), Stepped::Waiting);
    let told = |demand: &mut Demand| {
        let faults = demand.bench.card.take_faults();
        assert_eq!(faults.len(), 1);
        (faults[0].va.0, faults[0].is_store, faults[0].client)
    };
    assert_eq!(told(&mut demand), (CODE, false, client::GPC_L1));
    demand.bench.set_vram_u64(code, code_page);
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    assert_eq!(told(&mut demand), (B, false, client::GPC_T1));
    demand.give(B);
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    assert_eq!(told(&mut demand), (C, true, client::GPC_L1));
    demand.give(C);
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Idle);
    assert_eq!(
        demand.words(demand.memories.c, 32),
        (1000..1032).collect::<Vec<u32>>()
    );
}

/// A grid that waits for a page of A, on a card with another channel that can run.
fn waiting(timing: Timing) -> (Demand, Channel, Kernel, Memories) {
    let mut demand = Demand::with(row(A, "ld b32 $r5 ca g[$r4]"), ReplayableFaults::DEFAULT, timing);
    let other = demand.bench.channel(2);
    demand.bench.runlist(&[1, 2]);
    let kernel = vecadd(100);
    let memories = prepare(&mut demand.bench, &other, &kernel);
    demand.take_away(A, PAGE);
    assert_eq!(demand.launch(), Stepped::Waiting);
    (demand, other, kernel, memories)
}

/// The other channel's grid runs to its end.
fn check_other(demand: &mut Demand, mut other: Channel, kernel: &Kernel, memories: &Memories) {
    demand.bench.submit(&mut other, &kernel.methods(C, 9).0);
    demand.bench.run();
    assert_eq!(demand.bench.vram_u32(memories.c), 9);
    assert_eq!(demand.bench.card.take_faults(), []);
    // A late replay finds nobody.
    demand.bench.card.replay_faults(0);
    demand.bench.run();
    assert_eq!(demand.bench.card.counters().replays, 0);
}

#[test]
fn watchdog_ends_a_grid_that_nobody_serves() {
    let mut timing = Timing::of(Board::Gtx480);
    timing.shaders.watchdog_ns = 1_000_000;
    let (mut demand, other, kernel, memories) = waiting(timing);
    demand.bench.now_ns += 900_000;
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    assert_eq!(demand.bench.read(PgraphReg::GraphIntr), 0);
    demand.bench.now_ns += 200_000;
    demand.bench.run();
    assert_eq!(demand.bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    assert_ne!(demand.bench.read(PgraphReg::MpGlobalError(0)), 0);
    let place = demand.bench.card.stopped_at().expect("it was somewhere");
    assert_eq!((place.pc, place.active), (3 * 8, u32::MAX));
    demand.bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    demand.bench.run();
    check_other(&mut demand, other, &kernel, &memories);
}

#[test]
fn reset_of_pgraph_drops_a_waiting_grid() {
    let (mut demand, other, kernel, memories) = waiting(Timing::of(Board::Gtx480));
    let state = demand.bench.read(PfifoReg::ChannelState(1));
    demand.bench.write(PfifoReg::ChannelState(1), state & !1);
    let enable = demand.bench.read(PmcReg::PmcEnable);
    demand
        .bench
        .write(PmcReg::PmcEnable, enable & !(1 << Engine::Graph.enable_bit()));
    demand.bench.write(PmcReg::PmcEnable, enable);
    demand.bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    demand.bench.runlist(&[2]);
    demand.bench.run();
    // Each of the methods behind the launch meets a PGRAPH that has forgotten their class.
    while demand.bench.read(PgraphReg::GraphIntr) != 0 {
        demand.bench.write(PgraphReg::GraphIntr, u32::MAX);
        demand.bench.run();
    }
    check_other(&mut demand, other, &kernel, &memories);
}

#[test]
fn reset_of_the_card_drops_a_waiting_grid() {
    let (mut demand, ..) = waiting(Timing::of(Board::Gtx480));
    demand.bench.card.reset();
    assert_eq!(demand.bench.run(), Stepped::Idle);
    assert_eq!(demand.bench.card.take_faults(), []);
    assert_eq!(demand.bench.card.access_counts().count(), 0);
    demand.bench.card.replay_faults(0);
    assert_eq!(demand.bench.run(), Stepped::Idle);
}

#[test]
fn preempt_waits_for_a_waiting_grid_and_its_time_out_tells() {
    let (mut demand, other, kernel, memories) = waiting(Timing::of(Board::Gtx480));
    demand.bench.write(PfifoReg::PfifoIntr, u32::MAX);
    demand.bench.write(PfifoReg::SwitchTimeout, 1 << 31 | 1_000);
    demand.bench.write(PfifoReg::Preempt, 1);
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    assert_ne!(demand.bench.read(PfifoReg::Preempt) & PREEMPT_PENDING, 0);
    demand.bench.now_ns += 2_000_000;
    assert_eq!(demand.bench.run(), Stepped::Waiting);
    assert_ne!(demand.bench.read(PfifoReg::PfifoIntr) & intr::SCHEDULER, 0);
    demand.give(A);
    demand.bench.card.replay_faults(0);
    demand.bench.run();
    assert_eq!(demand.bench.read(PfifoReg::Preempt), 1);
    let mut other = other;
    demand.bench.submit(&mut other, &kernel.methods(C, 9).0);
    demand.bench.run();
    assert_eq!(demand.bench.vram_u32(memories.c), 9);
}

#[test]
fn replay_that_was_asked_for_early_comes_at_its_time() {
    // A warp waits at once, another one counts for a while and then waits too.
    let source = format!(
        "mov b32 $r1 $ctaidx
        mov b32 $r4 0x{A:x}
        set $p0 0x1 eq u32 $r1 0x0
        $p0 bra #wait
        mov b32 $r2 0x0
        loop: add b32 $r2 $r2 0x1
        set $p1 0x1 lt u32 $r2 0x10000
        $p1 bra #loop
        wait: ld b32 $r5 ca g[$r4]
        exit"
    );
    let mut demand = Demand::new(Kernel::new(&source, [2, 1], 32, &[]));
    demand.take_away(A, PAGE);
    let methods = demand.kernel.methods(C + BUFFER_BYTES - 16, 77);
    demand.bench.submit(&mut demand.channel, &methods.0);
    let mut faults = Vec::new();
    while faults.is_empty() {
        assert_eq!(demand.bench.card.step(0, 10), Stepped::Busy);
        faults = demand.bench.card.take_faults();
    }
    let first_at = faults[0].at_ns;
    demand.give(A);
    demand.bench.card.replay_faults(0);
    while demand.bench.card.counters().replays == 0 {
        assert_eq!(demand.bench.card.step(0, 10), Stepped::Busy);
    }
    assert!(demand.bench.card.gpu_time() >= first_at + HANDLING_NS);
    assert_eq!(demand.bench.run(), Stepped::Idle);
    let counters = demand.bench.card.counters();
    assert_eq!(
        (counters.replayable_faults, counters.replays, counters.grids),
        (1, 1, 1)
    );
}
