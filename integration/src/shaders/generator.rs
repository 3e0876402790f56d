//! Random programs that have one result: every instruction that the sources specify, structured divergence, and
//! accesses to memory that do not depend on how warps take turns.
//!
//! ```text
//!   prologue: own addresses, registers from the input     R0–R23   data
//!   statements: arithmetic, accesses, if, loop, call, …   R24–R35  addresses of one statement
//!   epilogue: every register to the dump                  R36–R39  bases of the warp's and the common memory
//!   functions                                             R40–R43  MUFU, read by nobody: compared by accuracy
//!                                                         R44–R51  loop counters
//!                                                         R52–R62  own addresses
//! ```
//!
//! Lanes own memory; a warp owns memory, where the order of its lanes and of the sides of its branches shows; all warps
//! share words to which each applies one operation that commutes, and shared memory between two barriers.

mod accesses;
mod arithmetic;
mod control;
mod word;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use fermi_spec::isa::assembler::assemble;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Launch;
use super::memory::Memory;
use super::runner::{self, HIGH};

/// Registers that the epilogue stores, of each lane.
pub(crate) const DUMPED: u32 = 63;
/// Registers with results of MUFU.
pub(crate) const APPROXIMATE: Range<u32> = 40..44;
/// Instructions of the epilogue.
pub(crate) const EPILOGUE_WORDS: u32 = 22;
/// Bytes of the dump of a lane.
pub(crate) const DUMP_BYTES: u64 = 256;

/// Registers of the data.
const DATA_REGISTERS: u32 = 24;
/// Threads of a launch at most.
const THREADS_MAX: u32 = 1024;
/// Offsets in VRAM: random input, memory of each lane, of each warp, of all.
const INPUT: u64 = 0;
const INPUT_BYTES: u32 = 0x2_0000;
const OWN: u64 = 0x2_0000;
const OWN_BYTES: u32 = 64;
const WARP: u64 = 0x4_0000;
const WARP_BYTES: u32 = 0x200;
const COMMON: u64 = 0x8_0000;
/// Bytes of shared memory of a lane and of a warp.
const SHARED_OWN_BYTES: u32 = 16;
const SHARED_WARP_BYTES: u32 = 128;
/// Local memory of a lane.
const LOCAL_POSITIVE: u32 = 0x40;
const LOCAL_NEGATIVE: u32 = 0x20;
const SHARED_WINDOW: u32 = 0xfe00_0000;
const LOCAL_WINDOW: u32 = 0xff00_0000;
/// Words of a constant bank, and the banks there are.
const BANK_WORDS: usize = 64;
const BANKS: [u32; 5] = [0, 1, 2, 15, 16];
/// Counters of loops within loops are in registers from here on.
const COUNTERS: u32 = 44;

static PROLOGUE: LazyLock<Vec<u64>> = LazyLock::new(|| assembled(&prologue()));
static EPILOGUE: LazyLock<Vec<u64>> = LazyLock::new(|| assembled(&epilogue()));

fn assembled(text: &str) -> Vec<u64> {
    assemble(text).expect("text of ours").words
}

/// A random program with its launch and memory.
#[derive(Clone, Debug)]
pub struct Program {
    /// The launch of the program.
    pub launch: Launch,
    /// Memory at the start.
    pub memory: Memory,
    /// Words that may be replaced by NOP: not those that make addresses.
    pub removable: Vec<usize>,
    /// Words between prologue and epilogue.
    pub body: Range<usize>,
}

/// Context of a statement.
#[derive(Clone, Copy, Debug)]
struct Context {
    /// Statements around it.
    depth: u32,
    /// All living lanes of the block come here together.
    is_uniform: bool,
    /// The next join belongs to this program.
    in_region: bool,
    /// Inside a loop, and whether CONT has an entry.
    in_loop: bool,
    has_continue: bool,
    /// Inside a function: RET has an entry.
    in_function: bool,
}

struct Generator {
    rng: ChaCha8Rng,
    words: Vec<u64>,
    removable: Vec<usize>,
    /// Loop counters in use.
    counters: u32,
    /// Calls whose target is not known yet, by function.
    calls: Vec<(usize, usize)>,
    /// Function under way; it may call later ones only.
    function: usize,
    /// Functions that were called.
    functions: usize,
    /// Statements that may still be made.
    budget: u32,
}

/// The program of a seed.
pub fn generate(seed: u64) -> Program {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut memory = runner::memory();
    let values: Vec<u8> = (0..INPUT_BYTES / 4)
        .flat_map(|_| interesting(&mut rng).to_le_bytes())
        .collect();
    memory.regions[0].bytes[INPUT as usize..][..values.len()].copy_from_slice(&values);
    for byte in &mut memory.regions[0].bytes[OWN as usize..COMMON as usize + 0x1000] {
        *byte = rng.random();
    }
    memory.regions[1].bytes.fill(0xa5);
    let (launch, removable, body) = words(rng);
    Program {
        launch,
        memory,
        removable,
        body,
    }
}

/// A launch alone, for any memory.
pub(crate) fn generate_launch(seed: u64) -> Launch {
    words(ChaCha8Rng::seed_from_u64(seed)).0
}

fn words(mut rng: ChaCha8Rng) -> (Launch, Vec<usize>, Range<usize>) {
    let launch = random_launch(&mut rng);
    let mut generator = Generator {
        budget: rng.random_range(10..120),
        rng,
        words: Vec::new(),
        removable: Vec::new(),
        counters: 0,
        calls: Vec::new(),
        function: 0,
        functions: 0,
    };
    let body = generator.program();
    let launch = Launch {
        code: generator.words,
        ..launch
    };
    (launch, generator.removable, body)
}

fn random_launch(rng: &mut ChaCha8Rng) -> Launch {
    let block = match rng.random_range(0..4) {
        0 => [rng.random_range(1..=200), 1, 1],
        1 => [rng.random_range(1..=16), rng.random_range(1..=10), 1],
        2 => [
            rng.random_range(1..=7),
            rng.random_range(1..=5),
            rng.random_range(1..=4),
        ],
        _ => [32 * rng.random_range(1..=4), 1, 1],
    };
    let threads: u32 = block.iter().product();
    let mut grid = [
        rng.random_range(1..=3),
        rng.random_range(1..=2),
        rng.random_range(1..=2),
    ];
    while grid.iter().product::<u32>() * threads > THREADS_MAX / 2 {
        grid = [1; 3];
    }
    let warps = threads.div_ceil(32);
    let banks = BANKS
        .iter()
        .map(|bank| (*bank, (0..BANK_WORDS).map(|_| interesting(rng)).collect()))
        .collect::<BTreeMap<u32, Vec<u32>>>();
    Launch {
        grid,
        block,
        registers: 63,
        shared_bytes: (threads * SHARED_OWN_BYTES + warps * SHARED_WARP_BYTES).next_multiple_of(0x80),
        barriers: 16,
        stack_bytes: 0x800,
        shared_window: SHARED_WINDOW,
        local_window: LOCAL_WINDOW,
        local_positive: LOCAL_POSITIVE,
        local_negative: LOCAL_NEGATIVE,
        grid_id: rng.random(),
        argument: rng.random(),
        banks,
        ..Launch::default()
    }
}

/// A word that is a corner of something: of integers, f32, f64 or f16.
fn interesting(rng: &mut ChaCha8Rng) -> u32 {
    const CORNERS: [u32; 24] = [
        0,
        1,
        2,
        31,
        32,
        33,
        0xff,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_ffff,
        0x3f80_0000,
        0xbf80_0000,
        0x3f00_0000,
        0x4020_0000,
        0x7f80_0000,
        0xff80_0000,
        0x7f7f_ffff,
        0x0080_0000,
        0x007f_ffff,
        0x7fc0_0001,
        0x4f00_0000,
        0x3ff0_0000,
        0x7ff0_0000,
    ];
    match rng.random_range(0..8) {
        0 | 1 => CORNERS[rng.random_range(0..CORNERS.len())],
        2 => rng.random_range(0..256),
        3 => rng.random::<u32>() >> rng.random_range(0..32),
        // f32 of similar size, so that sums are more than the greater one.
        4 | 5 => (rng.random::<u32>() & 0x807f_ffff) | rng.random_range(117..140) << 23,
        // Upper words of f64 of similar size.
        6 => (rng.random::<u32>() & 0x800f_ffff) | rng.random_range(1013..1044) << 20,
        _ => rng.random(),
    }
}

impl Generator {
    fn emit(&mut self, word: u64) {
        self.words.push(word);
    }

    /// Adds a word that a smaller program may do without.
    fn emit_removable(&mut self, word: u64) {
        self.removable.push(self.words.len());
        self.words.push(word);
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.rng.random_range(0..100) < percent
    }

    /// Makes all words; returns which are the statements'.
    fn program(&mut self) -> Range<usize> {
        self.words.extend_from_slice(&PROLOGUE);
        let start = self.words.len();
        let top = Context {
            depth: 0,
            is_uniform: true,
            in_region: false,
            in_loop: false,
            has_continue: false,
            in_function: false,
        };
        while self.budget > 0 {
            self.statements(top);
        }
        let end = self.words.len();
        self.words.extend_from_slice(&EPILOGUE);
        self.bodies_of_functions();
        // Control can be left out as well: a program that does not end then is no candidate.
        let words = self.words.iter().enumerate();
        let control = words.filter(|(at, word)| *at < end && **word & 7 == 7);
        self.removable.extend(control.map(|(at, _)| at));
        self.removable.sort_unstable();
        self.removable.dedup();
        start..end
    }
}

/// Bases of what the lane, the warp and all own, and in R24 where the lane's input is.
fn own_addresses() -> String {
    let (input, own) = (runner::vram_va(INPUT), HIGH + runner::vram_va(OWN));
    let (warp, common) = (HIGH + runner::vram_va(WARP), runner::large_va(COMMON));
    format!(
        "
        mov b32 $r24 $tid
        ext u32 $r25 $r24 0x1000
        ext u32 $r26 $r24 0x0a10
        ext u32 $r27 $r24 0x061a
        mov b32 $r28 $ntidy
        add $r26 (mul u32 $r27 u32 $r28) $r26
        mov b32 $r29 $ntidx
        add $r30 (mul u32 $r26 u32 $r29) $r25
        mul $r32 u32 $r28 u32 $r29
        mov b32 $r27 $ntidz
        mul $r32 u32 $r32 u32 $r27
        mov b32 $r24 $ctaidz
        mov b32 $r25 $nctaidy
        mov b32 $r26 $ctaidy
        add $r24 (mul u32 $r24 u32 $r25) $r26
        mov b32 $r25 $nctaidx
        mov b32 $r26 $ctaidx
        add $r31 (mul u32 $r24 u32 $r25) $r26
        add $r62 (mul u32 $r31 u32 $r32) $r30
        shl b32 $r57 $r30 clamp 0x4
        shr u32 $r24 $r30 clamp 0x5
        shl b32 $r58 $r32 clamp 0x4
        add b32 $r58 (shl $r24 0x7) $r58
        add b32 $r25 $r32 0x1f
        shr u32 $r25 $r25 clamp 0x5
        add $r24 (mul u32 $r31 u32 $r25) $r24
        mov b32 $r25 0x{WARP_BYTES:x}
        mul $r36 u32 $r24 u32 $r25
        add b32 $r36 $c $r36 0x{warp_low:x}
        mov b32 $r37 0x{warp_high:x}
        add b32 $r37 $r37 0x0 $c
        mov b32 $r38 0x{common:x}
        mov b32 $r39 0x0
        shl b32 $r60 $r62 clamp 0x6
        add b32 $r60 $c $r60 0x{own_low:x}
        mov b32 $r61 0x{own_high:x}
        add b32 $r61 $r61 0x0 $c
        mov b32 $r24 0x60
        mul $r24 u32 $r62 u32 $r24
        add b32 $r24 $r24 0x{input:x}
        mov b32 $r25 0x0
        ",
        warp_low = warp as u32,
        warp_high = warp >> 32,
        own_low = own as u32,
        own_high = own >> 32,
    )
}

/// Own addresses, registers from the input, own memory filled.
fn prologue() -> String {
    let mut text = own_addresses();
    for quad in 0..DATA_REGISTERS / 4 {
        let (register, offset) = (4 * quad, 16 * quad);
        text += &format!("ld b128 $r{register}q ca g[$r24d+0x{offset:x}]\n");
    }
    for quad in 0..LOCAL_POSITIVE / 16 {
        text += &format!("st b128 wb l[0x{:x}] $r{}q\n", 16 * quad, 4 * quad);
    }
    for quad in 0..LOCAL_NEGATIVE / 16 {
        text += &format!(
            "st b128 wb l[0x{:x}] $r{}q\n",
            (1 << 24) - LOCAL_NEGATIVE + 16 * quad,
            4 * quad
        );
    }
    text += "st b128 s[$r57] $r8q\n";
    // Predicates and flags.
    text += "mov $flags $r1 mask 0xf07f\n";
    text
}

/// Stores all registers.
fn epilogue() -> String {
    let dump = HIGH + runner::ram_va(0);
    let mut text = format!(
        "
        mov $r54 $flags mask 0xf07f
        shl b32 $r52 $r62 clamp 0x8
        add b32 $r52 $r52 0x{:x}
        mov b32 $r53 0x{:x}
        ",
        dump as u32,
        dump >> 32
    );
    for quad in 0..15 {
        text += &format!("st b128 wb g[$r52d+0x{:x}] $r{}q\n", 16 * quad, 4 * quad);
    }
    text += "st b64 wb g[$r52d+0xf0] $r60d\nst b32 wb g[$r52d+0xf8] $r62\nexit\n";
    text
}
