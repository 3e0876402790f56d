//! Channels that change engines all the time get on, whatever drives them.

use super::support::*;
use crate::Stepped;
use fermi_spec::{
    engine::Engine,
    instance::{Timeslice, offset},
    methods::{CopyExec, CopyFormat, copy},
    regs::PfifoReg,
};
use proptest::prelude::*;

const DATA: u64 = 0x1000_0000;
const BYTES: u64 = 0x4_0000;
const DONE: u64 = 0x800_0000;
const ENGINES: [(Engine, u32); 3] = [
    (Engine::Graph, 0x9039),
    (Engine::Copy0, 0x0004_90b5),
    (Engine::Copy1, 0x0005_90b8),
];
/// GPU time in which one word is executed even if the channel and the engine's context have to be changed for it.
const WORD_NS: u64 = 40_000;
/// GPU time of the longest job.
const JOB_NS: u64 = 200_000;

/// What a channel does next.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Sets a register of an engine.
    Register(usize),
    /// A copy by an engine, of so many lines of 4 KiB.
    Copy(usize, u32),
    /// A host release that waits for the engines.
    Release,
}

impl Job {
    fn append(self, methods: Methods) -> Methods {
        match self {
            Self::Register(engine) => methods.to(engine as u8, 0x30c, &[0]),
            Self::Copy(0, lines) => methods.m2mf(0, DATA, DATA + BYTES / 2, 0x1000, lines),
            Self::Copy(engine, lines) => methods.copy(engine as u8, DATA, DATA + BYTES / 2, 0x1000, lines),
            Self::Release => methods.release(DONE + 0x10, 1),
        }
    }
}

/// One channel's slice and jobs.
#[derive(Clone, Debug)]
struct Load {
    slice: Timeslice,
    jobs: Vec<Job>,
}

/// Runs all loads at once. `masks` are those of the engines' PBDMAs; `None`: one each.
fn all_finish(loads: &[Load], masks: Option<[u32; 3]>) {
    let mut bench = ready();
    for ((engine, _), mask) in ENGINES.iter().zip(masks.into_iter().flatten()) {
        bench.write(PfifoReg::EnginePbdmaMask(u16::from(engine.number())), mask);
    }
    let vram = bench.allocate_aligned(BYTES, 0x2_0000);
    let mut ends = Vec::new();
    let (mut words, mut jobs) = (0, 0);
    let ids: Vec<u16> = (0..loads.len() as u16).collect();
    bench.runlist(&ids);
    for (&id, load) in ids.iter().zip(loads) {
        let mut channel = bench.channel(id);
        bench.set_vram_u32(channel.instance + offset::TIMESLICE, load.slice.into_bits());
        bench.map_large(channel.space, DATA, Page::Vram(vram), BYTES);
        let end = bench.allocate(0x1000);
        bench.map(channel.space, DONE, Page::Vram(end), 0x1000);
        bench.flush();
        ends.push(end);
        let mut methods = Methods::new();
        for (subchannel, (_, class)) in (0..).zip(ENGINES) {
            methods = methods.to(subchannel, 0, &[class]);
        }
        for job in &load.jobs {
            methods = job.append(methods);
        }
        let methods = methods.release(DONE, 1).0;
        words += methods.len() as u64;
        jobs += load.jobs.len() as u64;
        bench.submit(&mut channel, &methods);
    }
    let limit = words * WORD_NS + jobs * JOB_NS;
    while bench.card.step(0, 100) == Stepped::Busy {
        assert!(
            bench.card.gpu_time() < limit,
            "{loads:?}: not done after {limit} ns"
        );
    }
    for (id, end) in ends.iter().enumerate() {
        assert_eq!(bench.vram_u32(*end), 1, "channel {id}");
    }
    assert_eq!(bench.card.counters().pbdma_errors, 0);
    assert_eq!(bench.card.counters().engine_errors, 0);
}

fn slice(microseconds: u8) -> Timeslice {
    Timeslice::new()
        .with_timeout(microseconds)
        .with_enable(microseconds != 0)
}

/// `count` channels that go through the engines, each from another one on, one register at a time.
fn in_step(count: usize, microseconds: u8) -> Vec<Load> {
    (0..count)
        .map(|first| Load {
            slice: slice(microseconds),
            jobs: (0..60).map(|step| Job::Register((first + step) % 3)).collect(),
        })
        .collect()
}

#[test]
fn channels_that_exchange_engines_all_finish() {
    for count in [2, 3, 4, 7] {
        for microseconds in [0, 1, 50, 255] {
            all_finish(&in_step(count, microseconds), None);
        }
    }
}

#[test]
fn channels_that_exchange_engines_on_any_pbdma_all_finish() {
    for count in [2, 3, 4, 7] {
        for microseconds in [0, 1, 50, 255] {
            all_finish(&in_step(count, microseconds), Some([0; 3]));
        }
    }
}

#[test]
fn copies_without_pause_do_not_keep_an_engine_from_others() {
    let mut bench = ready();
    bench.write(PfifoReg::EnginePbdmaMask(u16::from(Engine::Copy0.number())), 0);
    let vram = bench.allocate_aligned(8 << 20, 0x2_0000);
    let end = bench.allocate(0x1000);
    bench.runlist(&[1, 2]);
    let mut channels = [1, 2].map(|id| bench.channel(id));
    for channel in &channels {
        bench.map(channel.space, DATA, Page::Ram(0), 8 << 20);
        bench.map_large(channel.space, DATA + (8 << 20), Page::Vram(vram), 8 << 20);
        bench.map(channel.space, DONE, Page::Vram(end), 0x1000);
    }
    bench.flush();
    // 1.4 ms each.
    let copies = |count| {
        let methods = Methods::new().to(1, 0, &[0x0004_90b5]);
        (0..count).fold(methods, |methods, _| {
            methods.copy(1, DATA, DATA + (8 << 20), 0x1000, 2048)
        })
    };
    bench.submit(&mut channels[0], &copies(100).0);
    bench.run_for(200_000);
    bench.submit(&mut channels[1], &copies(1).release(DONE, 1).0);
    bench.run_for(10_000_000);
    assert_eq!(bench.vram_u32(end), 1);
}

/// Units of work until a small copy of channel 0 is done beside 7 channels whose copies take what they can, each with slices
/// of 96 µs.
fn work_beside(format: Option<CopyFormat>) -> u32 {
    const OTHERS: u16 = 7;
    let mut bench = ready();
    let vram = bench.allocate_aligned(8 << 20, 0x2_0000);
    let end = bench.allocate(0x1000);
    let ids: Vec<u16> = (0..=OTHERS).collect();
    bench.runlist(&ids);
    let mut channels: Vec<_> = ids.iter().map(|&id| bench.channel(id)).collect();
    for channel in &channels {
        bench.set_vram_u32(channel.instance + offset::TIMESLICE, slice(96).into_bits());
        bench.map_large(channel.space, DATA, Page::Vram(vram), 8 << 20);
        bench.map(channel.space, DONE, Page::Vram(end), 0x1000);
    }
    bench.flush();
    for channel in &mut channels[1..] {
        let methods = Methods::new().to(1, 0, &[0x0004_90b5]);
        // The same lines again and again: no pitch.
        let surfaces = [
            0,
            DATA as u32,
            0,
            DATA as u32 + (4 << 20),
            0,
            0,
            0x1000,
            copy::LINES_MAX,
        ];
        let exec = CopyExec::new()
            .with_src_linear(true)
            .with_dst_linear(true)
            .with_format(format.is_some());
        let methods = methods
            .to(1, copy::FORMAT, &[format.unwrap_or_default().into_bits()])
            .to(1, copy::SRC_HIGH, &surfaces)
            .to(1, copy::EXEC, &[exec.into_bits()]);
        bench.submit(channel, &methods.0);
    }
    bench.run_for(2_000_000);
    let one = Methods::new().to(1, 0, &[0x0004_90b5]);
    let one = one.copy(1, DATA, DATA + (1 << 20), 0x1000, 1).release(DONE, 1);
    bench.submit(&mut channels[0], &one.0);
    let mut units = 0;
    while bench.vram_u32(end) == 0 {
        bench.card.step(0, 1);
        units += 1;
        assert!(units < 1_000_000, "the copy is never done");
    }
    units
}

#[test]
fn wait_for_an_engine_is_bounded_in_work_too() {
    let format = CopyFormat::new()
        .with_x(3)
        .with_y(2)
        .with_z(1)
        .with_component_bytes_less_one(3)
        .with_source_components_less_one(3)
        .with_target_components_less_one(3);
    for format in [None, Some(format)] {
        let units = work_beside(format);
        assert!(units < 300, "{format:?}: {units} steps");
    }
}

#[test]
fn runlist_committed_all_the_time_leaves_every_channel_its_turn() {
    let mut bench = ready();
    let end = bench.allocate(0x1000);
    let ids = [1, 2, 3];
    bench.runlist(&ids);
    let mut channels = ids.map(|id| bench.channel(id));
    for channel in &mut channels {
        bench.map(channel.space, DONE, Page::Vram(end), 0x1000);
        bench.set_vram_u32(channel.instance + offset::TIMESLICE, slice(40).into_bits());
    }
    bench.flush();
    // From now on only the PBDMA of PGRAPH takes them.
    for channel in &mut channels {
        bench.submit(channel, &Methods::new().to(0, 0, &[0x9039]).0);
        bench.run();
    }
    let busy = (0..8_000)
        .fold(Methods::new(), |methods, _| methods.to(0, 0x30c, &[0]))
        .0;
    for channel in &mut channels[..2] {
        for _ in 0..20 {
            bench.push(channel, &busy);
        }
        bench.ring(channel);
    }
    bench.run_for(10_000);
    bench.submit(&mut channels[2], &Methods::new().release(DONE, 1).0);
    for _ in 0..30 {
        bench.runlist(&ids);
        bench.run_for(10_000);
    }
    assert_eq!(bench.card.counters().pbdma_errors, 0);
    assert_eq!(bench.vram_u32(end), 1);
}

fn job() -> impl Strategy<Value = Job> {
    prop_oneof![
        4 => (0..3usize).prop_map(Job::Register),
        2 => (0..3usize, 0..32u32).prop_map(|(engine, lines)| Job::Copy(engine, lines)),
        1 => Just(Job::Release),
    ]
}

fn load() -> impl Strategy<Value = Load> {
    let slices = prop_oneof![Just(0), 1..255u8];
    (slices, proptest::collection::vec(job(), 0..60)).prop_map(|(microseconds, jobs)| Load {
        slice: slice(microseconds),
        jobs,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_channels_on_any_engines_all_finish(
        loads in proptest::collection::vec(load(), 1..9),
        masks in proptest::option::of(proptest::array::uniform3(0..7u32)),
    ) {
        all_finish(&loads, masks);
    }
}
