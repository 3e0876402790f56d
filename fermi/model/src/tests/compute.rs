//! Grids launched by a channel.

use super::support::*;
use crate::{Stepped, Timing};
use fermi_spec::{
    board::Board,
    engine::Engine,
    fault::{FaultType, client},
    graphics::{BindConstants, BindSampler, BindTexture, SurfaceFormat, UnbindAll, compute, shader, surface},
    isa::assembler::{Program, assemble},
    methods::class,
    regs::{
        PfifoReg, PgraphReg,
        pgraph::{TPC_TRAP_TEXTURE, TRAP_ACKNOWLEDGE, graph_intr},
    },
};

pub(super) const CODE: u64 = 0x6000_0000;
const CONSTANTS: u64 = 0x6100_0000;
pub(super) const A: u64 = 0x7000_0000;
pub(super) const B: u64 = 0x7100_0000;
pub(super) const C: u64 = 0x7200_0000;
pub(super) const BUFFER_BYTES: u64 = 0x10_0000;
const SC: u8 = 1;

/// A launch in the making.
pub(super) struct Kernel {
    program: Program,
    grid: [u32; 2],
    block: u32,
    parameters: Vec<u32>,
}

impl Kernel {
    pub(super) fn new(source: &str, grid: [u32; 2], block: u32, parameters: &[u32]) -> Self {
        Self {
            program: assemble(source).expect("assembles"),
            grid,
            block,
            parameters: parameters.to_vec(),
        }
    }

    /// Methods of the launch and a release of semaphore `va` behind it.
    pub(super) fn methods(&self, va: u64, payload: u32) -> Methods {
        let bind = BindConstants::new().with_valid(true).with_bank(0).into_bits();
        let words = self.parameters.len() as u16;
        Methods::new()
            .to(SC, 0, &[u32::from(class::COMPUTE)])
            .to(SC, compute::CODE_HIGH, &[0, CODE as u32])
            .to(SC, compute::ENTRY, &[0])
            .to(SC, compute::SHARED_WINDOW, &[0xfe00_0000])
            .to(SC, compute::LOCAL_WINDOW, &[0xff00_0000])
            .to(SC, compute::REGISTERS, &[self.program.registers])
            .to(SC, compute::SHARED_BYTES, &[self.program.shared_bytes])
            .to(SC, compute::BARRIERS, &[self.program.barriers])
            .to(SC, compute::GRID_XY, &[self.grid[0] | self.grid[1] << 16, 1])
            .to(SC, compute::BLOCK_XY, &[self.block | 1 << 16, 1])
            .to(SC, shader::CONSTANT_BYTES, &[0x100, 0, CONSTANTS as u32])
            .to(SC, compute::BIND_CONSTANTS, &[bind])
            .to(SC, shader::CONSTANT_OFFSET, &[0x20])
            .to(SC, shader::CONSTANT_DATA, &self.parameters[..usize::from(words)])
            .to(SC, compute::LAUNCH, &[0x1000])
            .to(
                SC,
                shader::REPORT_HIGH,
                &[(va >> 32) as u32, va as u32, payload, 0x1000_0000],
            )
    }
}

/// Memory of a channel for kernels: code, constants and three buffers.
pub(super) struct Memories {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) c: u64,
}

pub(super) fn prepare(bench: &mut Bench, channel: &Channel, kernel: &Kernel) -> Memories {
    let code = bench.allocate(0x1000);
    let bytes: Vec<u8> = kernel
        .program
        .words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    bench.set_vram_bytes(code, &bytes);
    bench.map(channel.space, CODE, Page::Vram(code), 0x1000);
    let constants = bench.allocate(0x1000);
    bench.map(channel.space, CONSTANTS, Page::Vram(constants), 0x1000);
    let buffer = |bench: &mut Bench, va| {
        let at = bench.allocate(BUFFER_BYTES);
        bench.map(channel.space, va, Page::Vram(at), BUFFER_BYTES);
        at
    };
    let (a, b, c) = (buffer(bench, A), buffer(bench, B), buffer(bench, C));
    bench.flush();
    Memories { a, b, c }
}

const VECADD: &str = include_str!("../../../../docs/examples/kernels/vecadd.asm");

pub(super) fn vecadd(n: u32) -> Kernel {
    let parameters = [A as u32, 0, B as u32, 0, C as u32, 0, n];
    Kernel::new(VECADD, [n.div_ceil(128), 1], 128, &parameters)
}

#[test]
fn grid_runs_and_the_report_behind_it_comes_after() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let n = 10_000;
    let kernel = vecadd(n);
    let memories = prepare(&mut bench, &channel, &kernel);
    for i in 0..n {
        bench.set_vram_u32(memories.a + u64::from(i) * 4, (i as f32).to_bits());
        bench.set_vram_u32(memories.b + u64::from(i) * 4, (0.5f32).to_bits());
    }
    let done = C + BUFFER_BYTES - 16;
    bench.submit(&mut channel, &kernel.methods(done, 77).0);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(memories.c + BUFFER_BYTES - 16), 77);
    for i in 0..n {
        let found = f32::from_bits(bench.vram_u32(memories.c + u64::from(i) * 4));
        assert_eq!(found, i as f32 + 0.5, "{i}");
    }
    let counters = *bench.card.counters();
    assert_eq!(
        (counters.grids, counters.engine_errors, counters.mmu_faults),
        (1, 0, 0)
    );
    // 79 blocks of 4 warps of 18 instructions; the last lanes leave early.
    assert!(counters.warp_instructions > 79 * 4 * 17 - 100);
}

#[test]
fn illegal_instruction_traps_and_the_channel_goes_on() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new("mov b32 $r9 0x1\nexit", [1, 1], 32, &[]);
    let memories = prepare(&mut bench, &channel, &kernel);
    let mut short = kernel;
    short.program.registers = 4;
    bench.submit(&mut channel, &short.methods(C, 5).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    // GPR_OUT_OF_BOUNDS.
    assert_eq!(bench.read(PgraphReg::MpWarpError(0)), 13);
    assert_eq!(bench.vram_u32(memories.c), 0);
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    bench.run();
    assert_eq!(bench.vram_u32(memories.c), 5);
}

#[test]
fn unmapped_access_is_a_fault_of_a_gpc_and_others_go_on() {
    let mut bench = ready();
    let (mut bad, mut good) = (bench.channel(1), bench.channel(2));
    bench.runlist(&[1, 2]);
    let kernel = Kernel::new(
        "mov b32 $r1 0x10000000\nld b32 $r2 ca g[$r1]\nexit",
        [1, 1],
        32,
        &[],
    );
    prepare(&mut bench, &bad, &kernel);
    let other = vecadd(100);
    let memories = prepare(&mut bench, &good, &other);
    bench.submit(&mut bad, &kernel.methods(C, 5).0);
    bench.run();
    assert_eq!(bench.read(PfifoReg::FaultUnits), 1 << Engine::Graph.fault_unit());
    let kind = FaultType::from_bits(bench.read(PfifoReg::FaultRecord(3)));
    assert!(!kind.hub());
    assert_eq!(kind.client(), client::GPC_L1 & 0x1f);
    assert_eq!(bench.read(PfifoReg::FaultRecord(1)), 0x1000_0000);
    bench.write(PfifoReg::FaultUnits, u32::MAX);
    bench.write(PfifoReg::EngineFault, 1);
    bench.submit(&mut good, &other.methods(C, 9).0);
    bench.run();
    assert_eq!(bench.vram_u32(memories.c), 9);
}

#[test]
fn impossible_block_is_a_data_error() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new("exit", [1, 1], 2000, &[]);
    prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &kernel.methods(C, 5).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::DATA_ERROR);
}

#[test]
fn endless_grid_ends_by_the_watchdog() {
    let mut timing = Timing::of(Board::Gtx480);
    timing.shaders.watchdog_ns = 1_000_000;
    let mut bench = ready_with(timing);
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new("x: bra #x", [1, 1], 32, &[]);
    prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &kernel.methods(C, 5).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    assert_ne!(bench.read(PgraphReg::MpGlobalError(0)), 0);
}

/// Nothing runs on any SM and nothing ever will: the card says so, and other channels have their turn.
#[test]
fn grid_that_can_do_nothing_ends_and_others_go_on() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let (mut stuck, mut other) = (bench.channel(1), bench.channel(2));
    bench.runlist(&[1, 2]);
    let kernel = Kernel::new(
        ".barriers 1\nbar popc 0x1 0x0 0x0 0x40 0x1\nexit",
        [15 * 8 + 1, 1],
        32,
        &[],
    );
    prepare(&mut bench, &stuck, &kernel);
    let adds = vecadd(100);
    let memories = prepare(&mut bench, &other, &adds);
    bench.submit(&mut stuck, &kernel.methods(C, 5).0);
    bench.submit(&mut other, &adds.methods(C, 9).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    assert_eq!(bench.run(), Stepped::Idle);
    assert_eq!(bench.vram_u32(memories.c), 9);
}

/// GPU time of a kernel whose buffers are in VRAM, or in system memory.
fn time_of(kernel: &Kernel, is_spilled: bool) -> u64 {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    prepare(&mut bench, &channel, kernel);
    if is_spilled {
        for (va, at) in [(A, 0), (B, BUFFER_BYTES), (C, 2 * BUFFER_BYTES)] {
            bench.map(channel.space, va, Page::Ram(at), BUFFER_BYTES);
        }
        bench.flush();
    }
    // The first grid brings the channel onto PGRAPH.
    let times = [1, 2].map(|round| {
        let before = bench.card.gpu_time();
        bench.submit(&mut channel, &kernel.methods(C, round).0);
        bench.run();
        bench.card.gpu_time() - before
    });
    assert_eq!(bench.card.counters().grids, 2);
    times[1]
}

#[test]
fn streaming_kernel_feels_where_its_pages_are_and_a_computing_one_does_not() {
    let streaming = vecadd(250_000);
    let ratio = time_of(&streaming, true) as f64 / time_of(&streaming, false) as f64;
    // 161 GB/s to 6 GB/s, and the launch costs the same.
    assert!((8.0..40.0).contains(&ratio), "{ratio}");
    let source = "
        mov b32 $r1 0x0
        loop: fma rn f32 $r2 $r2 $r2 $r2
        fma rn f32 $r3 $r2 $r2 $r2
        add b32 $r1 $r1 0x1
        set $p0 0x1 lt u32 $r1 0x400
        $p0 bra #loop
        mov b32 $r4 0x72000000
        st b32 wb g[$r4] $r3
        exit";
    let computing = Kernel::new(source, [30, 1], 256, &[]);
    let ratio = time_of(&computing, true) as f64 / time_of(&computing, false) as f64;
    assert!((0.9..1.2).contains(&ratio), "{ratio}");
}

/// A thread for each word; together they access the words up to `mask` again and again, in register 0.
fn accessing(access: &str, blocks: u32, mask: u32) -> Kernel {
    let source = "
        mov b32 $r0 $ctaidx
        mov b32 $r1 $ntidx
        mov b32 $r2 $tidx
        add $r0 (mul u32 $r0 u32 $r1) $r2
        shl b32 $r0 $r0 clamp 0x2
        and b32 $r0 $r0 c0[0x20]
        add b32 $r0 $r0 c0[0x24]
        ACCESS
        exit";
    Kernel::new(
        &source.replace("ACCESS", access),
        [blocks, 1],
        256,
        &[mask, A as u32],
    )
}

/// The same with loads of 4096 blocks.
fn loading(mask: u32) -> Kernel {
    accessing("ld b32 $r3 ca g[$r0]", 4096, mask)
}

#[test]
fn atomic_operations_on_one_word_wait_for_each_other() {
    let adding = |mask| time_of(&accessing("red add u32 g[$r0] $r2", 100, mask), false);
    let (together, apart) = (adding(0), adding(0x1_fffc));
    let shaders = Timing::of(Board::Gtx480).shaders;
    let wait = 100 * 256 * shaders.atomic_same_word * 1000 / shaders.mhz;
    assert!(
        (wait..wait + 10_000).contains(&together),
        "{together} of {wait} ns"
    );
    assert!(apart < together / 10, "{apart} and {together} ns");
}

#[test]
fn words_that_l2_holds_come_faster_than_those_of_vram() {
    let (many, few) = (loading(BUFFER_BYTES as u32 - 1), loading(0xffff));
    let ratio = time_of(&many, false) as f64 / time_of(&few, false) as f64;
    assert!((1.2..3.0).contains(&ratio), "{ratio}");
    // Where L2 holds them it hardly matters where they are.
    let ratio = time_of(&few, true) as f64 / time_of(&few, false) as f64;
    assert!((0.9..2.0).contains(&ratio), "{ratio}");
}

#[test]
fn words_of_one_bank_take_as_many_passes() {
    let kernel = |stride| {
        let source = "
            .shared 8192
            mov b32 $r0 $tidx
            mul $r0 u32 $r0 u32 c0[0x20]
            mov b32 $r1 0x0
            loop: ld b32 $r2 s[$r0]
            ld b32 $r3 s[$r0]
            ld b32 $r4 s[$r0]
            ld b32 $r5 s[$r0]
            add b32 $r1 $r1 0x1
            set $p0 0x1 lt u32 $r1 0x100
            $p0 bra #loop
            exit";
        Kernel::new(source, [120, 1], 64, &[stride])
    };
    let [row, two, column] = [4, 8, 128].map(|stride| time_of(&kernel(stride), false) as f64);
    assert!((1.1..2.0).contains(&(two / row)), "{two} {row}");
    assert!((8.0..32.0).contains(&(column / row)), "{column} {row}");
}

#[test]
fn fewer_warps_on_an_sm_wait_longer_for_memory() {
    let kernel = loading(0xffff);
    let mut crowded = loading(0xffff);
    crowded.program.registers = 63;
    let ratio = time_of(&crowded, false) as f64 / time_of(&kernel, false) as f64;
    assert!((1.3..4.0).contains(&ratio), "{ratio}");
}

#[test]
fn two_channels_take_turns_between_their_grids() {
    let mut bench = ready();
    let mut channels = [bench.channel(1), bench.channel(2)];
    bench.runlist(&[1, 2]);
    let kernel = vecadd(1000);
    let memories: Vec<_> = channels
        .iter()
        .map(|channel| prepare(&mut bench, channel, &kernel))
        .collect();
    for round in 1..=5 {
        for channel in &mut channels {
            let methods = kernel.methods(C + BUFFER_BYTES - 16, round);
            bench.submit(channel, &methods.0);
        }
    }
    bench.run();
    for memories in memories {
        assert_eq!(bench.vram_u32(memories.c + BUFFER_BYTES - 16), 5);
    }
    assert_eq!(bench.card.counters().grids, 10);
}

/// Takes texel `laneid` of the texture in slot 3 and stores it as texel `laneid` of surface 1.
pub(super) const TEXELS: &str = "
    mov b32 $r0 $laneid
    texfetch lzero all $r4:#:#:# t1d $t3 $s0 $r0 ()
    shl b32 $r1 $r0 clamp 0x2
    sustb wb zero img[0x1] 1d $r1 b32 $r4
    exit";

/// A header of a buffer of 32 integers of 32 bits at `va`.
pub(super) fn buffer_header(va: u64) -> [u32; 8] {
    [
        0x0f | 4 << 6 | 2 << 18,
        va as u32,
        6 << 14 | 1 << 18,
        0,
        32,
        0,
        0,
        0,
    ]
}

/// Gives slot 3 the entry of a pool at A whose last entry is `last`, and makes C surface 1.
pub(super) fn bindings(entry: u32, pool: u64, last: u32) -> Methods {
    let texture = BindTexture::new().with_valid(true).with_slot(3).with_entry(entry);
    let sampler = BindSampler::new().with_valid(true).with_entry(1);
    let format = SurfaceFormat::new().with_color(0xe4);
    let first = compute::SURFACES + compute::SURFACE_STEP;
    Methods::new()
        .to(SC, 0, &[u32::from(class::COMPUTE)])
        .to(SC, compute::TEXTURE_POOL_HIGH, &[0, pool as u32, last])
        .to(SC, compute::SAMPLER_POOL_HIGH, &[0, A as u32, 4])
        .to(SC, compute::BIND_TEXTURE, &[texture.into_bits()])
        .to(SC, compute::BIND_SAMPLER, &[sampler.into_bits()])
        .to(
            SC,
            first + surface::ADDRESS_HIGH,
            &[0, C as u32, 128, 1 | 1 << 20, format.into_bits(), 0],
        )
}

#[test]
fn bound_texture_and_surface_reach_a_grid() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new(TEXELS, [1, 1], 32, &[]);
    let memories = prepare(&mut bench, &channel, &kernel);
    for (index, word) in buffer_header(B).into_iter().enumerate() {
        bench.set_vram_u32(memories.a + 5 * 32 + 4 * index as u64, word);
    }
    for index in 0..32 {
        bench.set_vram_u32(memories.b + 4 * index, 1000 + index as u32);
    }
    bench.submit(&mut channel, &bindings(5, A, 5).0);
    bench.submit(&mut channel, &kernel.methods(C + 0x1000, 3).0);
    bench.run();
    assert_eq!(bench.vram_u32(memories.c + 0x1000), 3);
    let found: Vec<_> = (0..32)
        .map(|index| bench.vram_u32(memories.c + 4 * index))
        .collect();
    assert_eq!(found, (1000..1032).collect::<Vec<_>>());
}

#[test]
fn entry_beyond_the_pool_traps_in_the_texture_unit() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new(TEXELS, [1, 1], 32, &[]);
    let memories = prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &bindings(6, A, 5).0);
    bench.submit(&mut channel, &kernel.methods(C + 0x1000, 3).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::GraphIntr), graph_intr::TRAP);
    assert_eq!(bench.read(PgraphReg::TpcTrap(0)), TPC_TRAP_TEXTURE);
    assert_ne!(bench.read(PgraphReg::TextureTrap(0)), 0);
    assert_eq!(bench.read(PgraphReg::MpWarpError(0)), 0);
    bench.write(PgraphReg::TextureTrap(0), TRAP_ACKNOWLEDGE);
    bench.write(PgraphReg::TpcTrap(0), TPC_TRAP_TEXTURE);
    assert_eq!(
        (
            bench.read(PgraphReg::TextureTrap(0)),
            bench.read(PgraphReg::TpcTrap(0))
        ),
        (0, 0)
    );
    bench.write(PgraphReg::GraphIntr, graph_intr::TRAP);
    bench.run();
    assert_eq!(bench.vram_u32(memories.c + 0x1000), 3);
}

#[test]
fn unbound_slot_traps_too() {
    let mut bench = ready();
    bench.write(PgraphReg::GraphIntrEnable, u32::MAX);
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new(TEXELS, [1, 1], 32, &[]);
    let memories = prepare(&mut bench, &channel, &kernel);
    for (index, word) in buffer_header(B).into_iter().enumerate() {
        bench.set_vram_u32(memories.a + 5 * 32 + 4 * index as u64, word);
    }
    let all = UnbindAll::new().with_textures(true).into_bits();
    let methods = bindings(5, A, 5).to(SC, compute::UNBIND_ALL, &[all]);
    bench.submit(&mut channel, &methods.0);
    bench.submit(&mut channel, &kernel.methods(C + 0x1000, 3).0);
    bench.run();
    assert_eq!(bench.read(PgraphReg::TpcTrap(0)), TPC_TRAP_TEXTURE);
}

#[test]
fn pool_that_is_not_mapped_is_a_fault_of_the_texture_cache() {
    let mut bench = ready();
    let mut channel = bench.channel(1);
    bench.runlist(&[1]);
    let kernel = Kernel::new(TEXELS, [1, 1], 32, &[]);
    prepare(&mut bench, &channel, &kernel);
    bench.submit(&mut channel, &bindings(5, 0x1000_0000, 5).0);
    bench.submit(&mut channel, &kernel.methods(C + 0x1000, 3).0);
    bench.run();
    let kind = FaultType::from_bits(bench.read(PfifoReg::FaultRecord(3)));
    assert_eq!((kind.hub(), kind.client()), (false, client::GPC_T1 & 0x1f));
    assert_eq!(bench.read(PfifoReg::FaultRecord(1)), 0x1000_0000 + 5 * 32);
}
