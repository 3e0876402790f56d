//! Kernels on a flat memory.

use std::collections::BTreeMap;

use fermi_spec::{
    addr::GpuVa,
    fault::Reason,
    isa::{
        Predicate, Register,
        assembler::{Program, assemble},
    },
};

use super::{
    grid::{Grid, GridProgress},
    launch::{Bank, Launch},
    outside::Outside,
    tally::Tally,
    trap::{ShaderPlace, Stop, WarpError},
    watch::{WarpStep, WarpWatcher},
};
use crate::{mmu::Refusal, replay::FaultBuffer};

mod constants;
mod demand;
mod levels;
mod textures;

const CODE: u64 = 0x10_0000;

/// Memory by pages that exist once they were given.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Flat {
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Flat {
    fn put(&mut self, va: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = va + index as u64;
            let page = self.pages.entry(at / 4096).or_insert_with(|| vec![0; 4096]);
            page[(at % 4096) as usize] = *byte;
        }
    }

    fn put_words(&mut self, va: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.put(va, &bytes);
    }

    fn words(&mut self, va: u64, count: usize) -> Vec<u32> {
        let mut bytes = vec![0; count * 4];
        self.read(va, &mut bytes).expect("mapped");
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect()
    }

    fn byte(&mut self, va: u64, write: bool) -> Result<&mut u8, Refusal> {
        let page = self.pages.get_mut(&(va / 4096)).ok_or(Refusal {
            va: GpuVa(va),
            reason: Reason::PageNotPresent,
            write,
        })?;
        Ok(&mut page[(va % 4096) as usize])
    }
}

impl Outside for Flat {
    fn fetch(&mut self, va: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        self.read(va, bytes)
    }

    fn read(&mut self, va: u64, data: &mut [u8]) -> Result<(), Refusal> {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = *self.byte(va + index as u64, false)?;
        }
        Ok(())
    }

    fn write(&mut self, va: u64, data: &[u8]) -> Result<(), Refusal> {
        for (index, byte) in data.iter().enumerate() {
            *self.byte(va + index as u64, true)? = *byte;
        }
        Ok(())
    }

    fn atomic(&mut self, va: u64, bytes: u32, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Refusal> {
        let mut data = [0; 8];
        self.read(va, &mut data[..bytes as usize])?;
        let old = u64::from_le_bytes(data);
        self.write(va, &change(old).to_le_bytes()[..bytes as usize])?;
        Ok(old)
    }
}

/// Parameters of a kernel from byte 0x20 of bank 0.
fn parameters(words: &[u32]) -> Bank {
    let mut bytes = vec![0; 0x20];
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    Bank::new(&bytes)
}

fn launch(program: &Program, grid: [u32; 3], block: [u32; 3], words: &[u32]) -> Launch {
    let mut launch = Launch {
        code: CODE,
        grid,
        block,
        registers: program.registers,
        shared_bytes: program.shared_bytes,
        barriers: program.barriers,
        shared_base: 0xfe00_0000,
        local_base: 0xff00_0000,
        ..Launch::default()
    };
    launch.banks[0] = parameters(words);
    launch
}

fn load(memory: &mut Flat, program: &Program) {
    // Fetches are of whole pages of code.
    memory.put(CODE, &[0; 4096]);
    let bytes: Vec<u8> = program.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.put(CODE, &bytes);
}

/// Runs a launch in pieces of `piece` instructions, and once more on memory that comes page by page.
fn run(memory: &mut Flat, program: &Program, launch: Launch, piece: u64) -> Result<Tally, Stop> {
    load(memory, program);
    launch.check().expect("a launch that can be");
    let mut demanded = memory.clone();
    let tally = run_once(memory, launch.clone(), piece);
    let (other, _) = demand::run(&mut demanded, &launch, piece);
    assert_eq!(tally.is_ok(), other.is_ok(), "{tally:?} {other:?}");
    if tally.is_ok() {
        assert!(*memory == demanded, "page by page the memory becomes another");
    }
    tally
}

/// Runs a launch in pieces of `piece` instructions.
fn run_once(memory: &mut Flat, launch: Launch, piece: u64) -> Result<Tally, Stop> {
    let mut grid = Grid::new(launch, 15, 0, FaultBuffer::default(), None);
    for _ in 0..1_000_000 {
        if grid.run(memory, None, piece)? == GridProgress::Done {
            return Ok(grid.tally);
        }
    }
    panic!("the grid does not end");
}

macro_rules! kernel {
    ($name:literal) => {
        assemble(include_str!(concat!(
            "../../../../docs/examples/kernels/",
            $name,
            ".asm"
        )))
        .expect("assembles")
    };
}

const A: u64 = 0x100_0000;
const B: u64 = 0x200_0000;
const C: u64 = 0x300_0000;

fn noise(seed: u32, count: usize) -> Vec<u32> {
    let mut state = u64::from(seed) | 1 << 32;
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        })
        .collect()
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn vecadd_adds_whatever_the_piece() {
    let program = kernel!("vecadd");
    let n = 1000;
    let a = floats((0..n).map(|i| i as f32 * 0.5));
    let b = floats((0..n).map(|i| 100.0 - i as f32));
    let mut tallies = Vec::new();
    for piece in [1, 7, 100_000] {
        let mut memory = Flat::default();
        memory.put_words(A, &a);
        memory.put_words(B, &b);
        memory.put_words(C, &[7; 1024]);
        let launch = launch(
            &program,
            [8, 1, 1],
            [128, 1, 1],
            &[A as u32, 0, B as u32, 0, C as u32, 0, n],
        );
        tallies.push(run(&mut memory, &program, launch, piece).unwrap());
        let c = memory.words(C, 1024);
        for i in 0..n as usize {
            assert_eq!(
                f32::from_bits(c[i]),
                f32::from_bits(a[i]) + f32::from_bits(b[i]),
                "{i}"
            );
        }
        assert_eq!(c[n as usize..], [7; 24]);
    }
    assert!(tallies.iter().all(|tally| *tally == tallies[0]));
    // Full warps read two lines and write one each.
    assert_eq!(tallies[0].awaited, 2 * 32);
}

#[test]
fn saxpy_leaves_its_loop_lane_by_lane() {
    let program = kernel!("saxpy");
    let n = 1000;
    let mut memory = Flat::default();
    memory.put_words(A, &floats((0..n).map(|i| (i % 37) as f32)));
    memory.put_words(B, &floats((0..n).map(|i| (i % 11) as f32 - 5.0)));
    let words = [A as u32, 0, B as u32, 0, 2.5f32.to_bits(), n];
    let launch = launch(&program, [3, 1, 1], [64, 1, 1], &words);
    run(&mut memory, &program, launch, 1000).unwrap();
    let expected = floats((0..n).map(|i| 2.5 * (i % 37) as f32 + (i % 11) as f32 - 5.0));
    assert_eq!(memory.words(B, n as usize), expected);
}

#[test]
fn reduce_sums_through_shared_memory_and_barriers() {
    let program = kernel!("reduce");
    let n = 1000usize;
    let input: Vec<f32> = (0..n).map(|i| (i % 19) as f32 - 7.0).collect();
    let mut memory = Flat::default();
    memory.put_words(A, &floats(input.iter().copied()));
    memory.put_words(B, &[0; 4]);
    let mut launch = launch(
        &program,
        [4, 1, 1],
        [256, 1, 1],
        &[A as u32, 0, B as u32, 0, n as u32],
    );
    launch.shared_bytes = 1024;
    run(&mut memory, &program, launch, 333).unwrap();
    let expected = floats(input.chunks(256).map(|part| part.iter().sum()));
    assert_eq!(memory.words(B, 4), expected);
}

#[test]
fn diverge_takes_both_sides_and_loops_per_lane() {
    let program = kernel!("diverge");
    let input = noise(1, 960);
    let mut memory = Flat::default();
    memory.put_words(A, &input);
    memory.put_words(B, &vec![0; 2 * input.len()]);
    let launch = launch(
        &program,
        [10, 1, 1],
        [96, 1, 1],
        &[A as u32, 0, B as u32, 0, input.len() as u32],
    );
    run(&mut memory, &program, launch, 10_000).unwrap();
    let expected: Vec<u32> = input
        .iter()
        .flat_map(|x| {
            let mut y = if x & 1 != 0 {
                x.wrapping_mul(3).wrapping_add(1)
            } else {
                x >> 1
            };
            let mut count = 0;
            while y >= 10 {
                y = y - (y >> 2) - 1;
                count += 1;
            }
            [y, count]
        })
        .collect();
    assert_eq!(memory.words(B, expected.len()), expected);
}

#[test]
fn histogram_counts_with_atomics() {
    let program = kernel!("histogram");
    let input = noise(2, 1024);
    let mut memory = Flat::default();
    memory.put_words(A, &input);
    memory.put_words(B, &[0; 256]);
    let launch = launch(
        &program,
        [8, 1, 1],
        [128, 1, 1],
        &[A as u32, 0, B as u32, 0, 1024],
    );
    let tally = run(&mut memory, &program, launch, 10_000).unwrap();
    let mut expected = [0; 256];
    input
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .for_each(|byte| expected[usize::from(byte)] += 1);
    assert_eq!(memory.words(B, 256), expected);
    assert_eq!(tally.atomics, 4096);
}

#[test]
fn matmul_multiplies_tiles_in_order() {
    let program = kernel!("matmul");
    let n = 32usize;
    let a: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.25).collect();
    let b: Vec<f32> = (0..n * n).map(|i| (i % 5) as f32 * 0.3).collect();
    let mut memory = Flat::default();
    memory.put_words(A, &floats(a.iter().copied()));
    memory.put_words(B, &floats(b.iter().copied()));
    memory.put_words(C, &vec![0; n * n]);
    let words = [A as u32, 0, B as u32, 0, C as u32, 0, n as u32];
    let mut launch = launch(&program, [2, 2, 1], [16, 16, 1], &words);
    launch.shared_bytes = 2048;
    run(&mut memory, &program, launch, 777).unwrap();
    let mut expected = vec![0f32; n * n];
    for row in 0..n {
        for column in 0..n {
            let sum = (0..n).fold(0f32, |sum, k| a[row * n + k].mul_add(b[k * n + column], sum));
            expected[row * n + column] = sum;
        }
    }
    assert_eq!(memory.words(C, n * n), floats(expected));
}

#[test]
fn stencil_carries_addresses_across_four_gibibytes() {
    let program = kernel!("stencil");
    let (w, h) = (37usize, 21usize);
    let input: Vec<f32> = (0..w * h).map(|i| (i * 13 % 100) as f32).collect();
    let (from, to) = (0x2_0000_0000u64 - 0x400, 0x3_0000_0000u64 - 0x800);
    let mut memory = Flat::default();
    memory.put_words(from, &floats(input.iter().copied()));
    memory.put_words(to, &vec![0; w * h]);
    let words = [
        from as u32,
        (from >> 32) as u32,
        to as u32,
        (to >> 32) as u32,
        w as u32,
        h as u32,
    ];
    let launch = launch(&program, [3, 3, 1], [16, 8, 1], &words);
    run(&mut memory, &program, launch, 4096).unwrap();
    let at = |x: usize, y: usize| input[y * w + x];
    let expected = floats((0..w * h).map(|i| {
        let (x, y) = (i % w, i / w);
        if x == 0 || y == 0 || x == w - 1 || y == h - 1 {
            at(x, y)
        } else {
            ((at(x, y - 1) + at(x, y + 1)) + (at(x - 1, y) + at(x + 1, y))) * 0.25
        }
    }));
    assert_eq!(memory.words(to, w * h), expected);
}

#[test]
fn bithash_mixes_and_counts_bits() {
    let program = kernel!("bithash");
    let mut input = noise(3, 126);
    input.extend([0, 0x8000_0000]);
    let mut memory = Flat::default();
    memory.put_words(A, &input);
    memory.put_words(B, &vec![0; 2 * input.len()]);
    let launch = launch(&program, [2, 1, 1], [64, 1, 1], &[A as u32, 0, B as u32, 0, 128]);
    run(&mut memory, &program, launch, 64).unwrap();
    let expected: Vec<u32> = input
        .iter()
        .flat_map(|&x| {
            let h = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
            let h = (h ^ h >> 13).wrapping_mul(0xc2b2_ae35);
            let top = if x == 0 { 0xff } else { 31 - x.leading_zeros() };
            let packed = x.count_ones() | top << 8 | (x.reverse_bits() & 0xff) << 16 | x >> 24 << 24;
            [h ^ h >> 16, packed]
        })
        .collect();
    assert_eq!(memory.words(B, expected.len()), expected);
}

/// Stops of a program of one warp.
fn stop_of(source: &str) -> Stop {
    let program = assemble(source).expect("assembles");
    let mut memory = Flat::default();
    let mut launch = launch(&program, [1, 1, 1], [32, 1, 1], &[]);
    launch.registers = launch.registers.min(20);
    launch.shared_bytes = 64;
    launch.barriers = 1;
    run(&mut memory, &program, launch, 100).expect_err("it stops")
}

#[test]
fn what_a_warp_does_wrong_has_its_number() {
    let errors = [
        ("prebrk #x\nx: join nop", WarpError::StackMismatch),
        ("ret", WarpError::ReturnFromEmptyStack),
        ("mov b32 $r20 0x1", WarpError::RegisterOutOfBounds),
        ("mov b32 $r1 0x2\nld b32 $r2 s[$r1]", WarpError::UnalignedAccess),
        ("ld b32 $r2 s[0x40]", WarpError::MemoryOutOfBounds),
        ("st b32 wb l[0x0] $r0", WarpError::MemoryOutOfBounds),
        (
            "mov b32 $r1 0xfe000000\nred add u32 g[$r1] $r1",
            WarpError::InvalidAddressSpace,
        ),
        (
            "mov b32 $r1 0x3\nbar popc 0x1 0x0 $r1 0x0 0x1",
            WarpError::InvalidParameter,
        ),
        ("x: call #x", WarpError::OutOfStack),
        ("bra 0x4", WarpError::MisalignedPc),
        ("bra 0x800", WarpError::InvalidOpcode),
    ];
    for (source, error) in errors {
        let found = match stop_of(&format!("{source}\nexit")) {
            Stop::Error(found) => found,
            Stop::Fault(refusal) | Stop::TextureFault(refusal) => panic!("{source}: {refusal:?}"),
        };
        assert_eq!(found, error, "{source}");
    }
}

#[test]
fn unmapped_memory_and_code_are_faults() {
    for source in ["mov b32 $r1 0x70000000\nld b32 $r2 ca g[$r1]", "bra 0x100000"] {
        assert!(matches!(stop_of(source), Stop::Fault(_)), "{source}");
    }
}

#[test]
fn barrier_that_is_never_complete_times_out() {
    let program = assemble(".barriers 1\nbar popc 0x1 0x0 0x0 0x40 0x1\nexit").expect("assembles");
    let mut memory = Flat::default();
    let launch = launch(&program, [3, 1, 1], [32, 1, 1], &[]);
    let stop = run(&mut memory, &program, launch, 1 << 20).expect_err("it stops");
    assert_eq!(stop, Stop::Error(WarpError::TimedOut));
}

/// A target in a constant bank: of all lanes, of each lane by its index, as an address and from the next instruction.
#[test]
fn branches_and_calls_through_constants_lead_where_the_constant_says() {
    let source = "
        mov b32 $r0 $tidx
        and b32 $r1 $r0 0x1
        shl b32 $r1 $r1 clamp 0x2
        mov b32 $r3 0x0
        joinat #both
        bra c0[$r1+0x20]
        add b32 $r3 $r3 0x1000
        even: add b32 $r3 $r3 0x100
        join nop
        odd: add b32 $r3 $r3 0x200
        join nop
        both: call pcrel c0[0x28]
        joinat #last
        bra pcrel c0[$r1+0x2c]
        add b32 $r3 $r3 0x1000
        add b32 $r3 $r3 0x10
        join nop
        add b32 $r3 $r3 0x20
        join nop
        last: call c0[0x34]
        bra c0[0x38]
        sub: add b32 $r3 $r3 0x1
        ret
        end: shl b32 $r1 $r0 clamp 0x2
        mov b32 $r2 0x1000000
        add b32 $r2 $r2 $r1
        st b32 wb g[$r2] $r3
        exit";
    let program = assemble(source).expect("assembles");
    let at = |line: u32| 8 * line;
    let (even, odd, call, distances, sub, end) = (at(7), at(9), at(11), at(13), at(21), at(23));
    let words = [
        even,
        odd,
        sub - call - 8,
        at(15) - distances - 8,
        at(17) - distances - 8,
        sub,
        end,
    ];
    let mut memory = Flat::default();
    memory.put(A, &[0; 128]);
    let launch = launch(&program, [1, 1, 1], [32, 1, 1], &words);
    run(&mut memory, &program, launch, 3).expect("it ends");
    let expected: Vec<u32> = (0..32)
        .map(|lane| if lane % 2 == 0 { 0x112 } else { 0x222 })
        .collect();
    assert_eq!(memory.words(A, 32), expected);

    let stray = assemble("mov b32 $r1 0x2\nbra c0[$r1+0x20]\nexit").expect("assembles");
    let launch = self::launch(&stray, [1, 1, 1], [32, 1, 1], &[8, 8]);
    let stop = run(&mut Flat::default(), &stray, launch, 100).expect_err("it stops");
    assert_eq!(stop, Stop::Error(WarpError::MisalignedConstant));
}

/// Blocks at a barrier that is never complete give no place to those that have yet to start.
#[test]
fn grid_of_more_stuck_blocks_than_the_card_holds_times_out() {
    let program = assemble(".barriers 1\nbar popc 0x1 0x0 0x0 0x40 0x1\nexit").expect("assembles");
    for blocks in [15 * 8, 15 * 8 + 1, 60_000] {
        let launch = launch(&program, [blocks, 1, 1], [32, 1, 1], &[]);
        assert_eq!(super::grid::blocks_per_sm(&launch), 8);
        let stop = run(&mut Flat::default(), &program, launch, 2048).expect_err("it stops");
        assert_eq!(stop, Stop::Error(WarpError::TimedOut), "{blocks}");
    }
}

#[test]
fn blocks_that_wait_for_later_blocks_end() {
    // Every block counts itself in and waits for all 20.
    let source = "
        mov b32 $r1 0x1
        mov b32 $r4 0x1000000
        ld add u32 $r2 g[$r4] $r1
        wait:
        ld b32 $r3 cv g[0x1000000]
        set $p0 0x1 lt u32 $r3 c0[0x20]
        $p0 bra #wait
        exit";
    let program = assemble(source).expect("assembles");
    let mut memory = Flat::default();
    memory.put_words(A, &[0]);
    let launch = launch(&program, [20, 1, 1], [1, 1, 1], &[20]);
    run(&mut memory, &program, launch, 5000).unwrap();
    assert_eq!(memory.words(A, 1), [20]);
}

#[test]
fn local_memory_is_each_lanes_own() {
    let source = "
        mov b32 $r0 $tidx
        mov b32 $r4 0x4
        add $r2 (mul u32 $r0 u32 $r4) c0[0x20]
        mul $r1 u32 $r0 u32 0x11
        st b32 wb l[0x8] $r1
        st b32 wb l[0xfffff8] $r0
        mov b32 $r1 0x0
        ld b32 $r1 ca l[0x8]
        ld b32 $r3 ca l[0xfffff8]
        add b32 $r1 $r1 $r3
        st b32 wb g[$r2] $r1
        exit";
    let program = assemble(source).expect("assembles");
    let mut memory = Flat::default();
    memory.put_words(A, &[0; 64]);
    memory.put(C, &[0; 0x20000]);
    let mut launch = launch(&program, [1, 1, 1], [64, 1, 1], &[A as u32]);
    (launch.local_positive, launch.local_negative, launch.temp) = (0x10, 0x10, C);
    run(&mut memory, &program, launch, 5000).unwrap();
    let expected: Vec<u32> = (0..64).map(|i| i * 0x12).collect();
    assert_eq!(memory.words(A, 64), expected);
}

#[test]
fn shared_lock_serializes_lanes() {
    let source = "
        try:
        ld lock b32 $p0 $r1 s[0x0]
        $p0 add b32 $r1 $r1 0x3
        $p0 st unlock b32 s[0x0] $r1
        (not $p0) bra #try
        bar popc 0x1 0x0 0x0 0x0 0x1
        mov b32 $r2 $tidx
        set $p1 0x1 ne u32 $r2 0x0
        $p1 exit
        ld b32 $r1 s[0x0]
        st b32 wb g[0x1000000] $r1
        exit";
    let program = assemble(source).expect("assembles");
    let mut memory = Flat::default();
    memory.put_words(A, &[0]);
    let mut launch = launch(&program, [1, 1, 1], [96, 1, 1], &[]);
    (launch.shared_bytes, launch.stack_bytes) = (0x80, 0x800);
    run(&mut memory, &program, launch, 5000).unwrap();
    assert_eq!(memory.words(A, 1), [288]);
}

#[test]
fn occupancy_follows_the_scarcest_resource() {
    let launch = |threads, registers, shared_bytes| Launch {
        block: [threads, 1, 1],
        registers,
        shared_bytes,
        ..Launch::default()
    };
    let per_sm = super::grid::blocks_per_sm;
    assert_eq!(per_sm(&launch(32, 16, 0)), 8);
    assert_eq!(per_sm(&launch(256, 20, 0)), 6);
    assert_eq!(per_sm(&launch(256, 63, 0)), 2);
    assert_eq!(per_sm(&launch(64, 16, 20 << 10)), 2);
}

/// Block and warp.
type WarpId = ([u32; 3], u32);

/// Counts instructions, and compares each one's writes with the registers that it declares.
#[derive(Default)]
struct Checking {
    steps: u64,
    lanes: u64,
    stops: Vec<(u32, u32)>,
    /// Registers and predicates of the warps.
    known: BTreeMap<WarpId, (Vec<[u32; 32]>, Vec<u32>)>,
    /// A warp that waits at a barrier gets the barrier's results later.
    is_waiting: BTreeMap<WarpId, bool>,
}

impl WarpWatcher for Checking {
    fn see(&mut self, step: &WarpStep<'_>) {
        self.steps += 1;
        self.lanes += u64::from(step.executed.count_ones());
        if step.is_stop {
            self.stops.push((step.pc, step.active));
        }
        let warp = (step.block, step.warp);
        let registers: Vec<_> = (0..63).map(|number| *step.register(Register(number))).collect();
        let predicates: Vec<_> = (0..7).map(|number| step.predicate(Predicate(number))).collect();
        let (old_registers, old_predicates) = self
            .known
            .entry(warp)
            .or_insert_with(|| (vec![[0; 32]; 63], vec![0; 7]));
        let text = step.instruction.to_string();
        let was_waiting = self
            .is_waiting
            .insert(warp, text.contains("bar "))
            .unwrap_or(false);
        let result = step.instruction.result().map_or(0..0, |(first, count)| {
            usize::from(first.0)..usize::from(first.0) + count as usize
        });
        for number in 0..63 {
            for lane in 0..32 {
                let is_written = result.contains(&number) && step.executed >> lane & 1 != 0;
                let is_same = registers[number][lane] == old_registers[number][lane];
                assert!(
                    is_same || is_written || was_waiting,
                    "{text}: $r{number} of lane {lane}"
                );
            }
        }
        let written: Vec<_> = step.instruction.result_predicates().collect();
        for number in 0..7 {
            let changed = predicates[number] ^ old_predicates[number];
            let is_written = written.contains(&Predicate(number as u8)) || text.contains("mov $flags");
            assert!(
                changed == 0 || was_waiting || is_written && changed & !step.executed == 0,
                "{text}: $p{number}"
            );
        }
        (*old_registers, *old_predicates) = (registers, predicates);
    }
}

/// A bit of everything that writes registers or predicates.
const MIXTURE: &str = "
    mov b32 $r0 $tidx
    mov b32 $r1 $ctaidx
    set $p0 $p1 lt u32 $r0 0x10
    joinat #both
    $p0 bra #low
    add b32 $r2 $c $r0 $r1
    bra #both_join
    low:
    mul $r2 u32 $r0 u32 $r0
    both_join:
    join nop
    both:
    vote all $r4 $p2 $p0
    mov $r5 $flags mask 0xffff
    mov $flags $r5 mask 0x3
    cvt rn f64 $r6d u32 $r0
    add rn f64 $r8d $r6d $r6d
    and b32 $r10 $r0 0x1f
    shl b32 $r10 $r10 clamp 0x4
    st b128 s[$r10] $r4q
    bar popc 0x1 0x0 0x0 0x0 0x1
    ld b128 $r12q s[$r10]
    mov b32 $r16 0x1000000
    ld add u32 $r17 g[$r16] $r0
    red add u32 g[$r16+0x4] $r0
    mov b32 $r20 0x0
    again:
    ld lock b32 $p3 $r18 s[$r10]
    $p3 st unlock b32 s[$r10] $r18
    (not $p3) bra #again
    bar popc 0x1 $r19 0x0 0x0 $p0
    exit";

/// Runs a launch while it is watched.
fn watched(memory: &mut Flat, program: &Program, launch: Launch) -> (Result<Tally, Stop>, Grid, Checking) {
    load(memory, program);
    let mut watcher = Checking::default();
    let mut grid = Grid::new(launch, 15, 0, FaultBuffer::default(), None);
    loop {
        match grid.run(memory, Some(&mut watcher), 100) {
            Ok(GridProgress::Paused) => {}
            Ok(GridProgress::Waiting) => panic!("a grid waits without being looked at"),
            Ok(GridProgress::Done) => return (Ok(grid.tally), grid, watcher),
            Err(stop) => return (Err(stop), grid, watcher),
        }
    }
}

#[test]
fn watcher_sees_everything_and_changes_nothing() {
    let program = assemble(MIXTURE).unwrap();
    let mut launch = launch(&program, [3, 1, 1], [80, 1, 1], &[]);
    launch.shared_bytes = 512;
    let memories = [true, false].map(|is_watched| {
        let mut memory = Flat::default();
        memory.put_words(A, &[0; 4]);
        let tally = if is_watched {
            let (tally, _, seen) = watched(&mut memory, &program, launch.clone());
            let tally = tally.unwrap();
            assert_eq!(
                (seen.steps, seen.lanes),
                (tally.instructions(), tally.lane_instructions)
            );
            assert_eq!(seen.known.len(), 9);
            assert_eq!(seen.stops, []);
            tally
        } else {
            run(&mut memory, &program, launch.clone(), 100).unwrap()
        };
        (tally, memory.words(A, 4))
    });
    assert_eq!(memories[0], memories[1]);
    assert_eq!(memories[0].1[0], 3 * 80 * 79 / 2);
}

#[test]
fn stopped_grid_shows_where() {
    let source = "
        mov b32 $r0 $ctaidx
        set $p0 0x1 eq u32 $r0 0x1
        mov b32 $r1 $tidx
        set $p1 0x1 ge u32 $r1 0x20
        (not $p1) exit
        $p0 ld b32 $r2 ca g[0x0]
        exit";
    let program = assemble(source).unwrap();
    let launch = launch(&program, [1, 2, 1], [40, 1, 1], &[]);
    // Block 0,1 has an index in y alone: the guard lets none of its lanes through.
    let (outcome, _, _) = watched(&mut Flat::default(), &program, launch.clone());
    assert!(outcome.is_ok());
    let launch = Launch {
        grid: [2, 1, 1],
        ..launch
    };
    let (outcome, mut grid, seen) = watched(&mut Flat::default(), &program, launch);
    assert!(matches!(outcome, Err(Stop::Fault(_))), "{outcome:?}");
    let place = ShaderPlace {
        block: [1, 0, 0],
        warp: 1,
        pc: 0x28,
        active: 0xff,
    };
    assert_eq!(grid.place(), Some(place));
    assert_eq!(seen.stops, [(0x28, 0xff)]);
}

#[test]
fn word_that_is_no_instruction_stops_where_it_is() {
    let mut program = assemble("nop\nnop\nexit").unwrap();
    program.words[1] = 3;
    let launch = launch(&program, [1, 1, 1], [32, 1, 1], &[]);
    let (outcome, mut grid, seen) = watched(&mut Flat::default(), &program, launch);
    assert_eq!(outcome.unwrap_err(), Stop::Error(WarpError::InvalidOpcode));
    assert_eq!(grid.place().map(|place| place.pc), Some(8));
    assert_eq!(seen.steps, 1);
}
