//! Programs and launches of any kind: any word, any descriptor, any address.
//!
//! Oracle: nothing panics, every grid ends by itself or by the watchdog, a channel that computes beside it gets its
//! results, and memory that the launching channel does not see, or may not write, stays as it was.

use std::sync::LazyLock;

use super::channels::{INNOCENT, address, service};
use super::input::Input;
use crate::card::{
    APART_DATA, APART_DIRECTORY, Card, CardSetup, DATA, DATA_VA, DIRECTORY, RAM_VA, UNUSED, USERS, VRAM_BYTES,
};
use crate::shaders::runner::{self, Addresses, BANK_BYTES};
use crate::shaders::{Launch, generator};
use fermi_model::{CopyMicrocode, Stepped};
use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::graphics::{compute, shader};
use fermi_spec::isa::assembler::{Program, assemble};
use fermi_spec::methods::{class, host};
use fermi_spec::pushbuffer::incrementing;

/// The channel that launches.
const HOSTILE: u16 = 1;
const CHANNELS: u16 = 2;
const SUBCHANNEL: u8 = 1;
/// Launches of an input.
const LAUNCHES_MAX: u32 = 4;
/// Instructions of a program.
const WORDS_MAX: usize = 1024;
/// Work of a step, and steps after which all is done: a grid has 50 µs of the GPU's time.
const WORK: u32 = 2_000;
const PATIENCE: u32 = 20_000;

/// Places of a launch's parts in the data of the hostile channel: behind those that the generator's programs use.
const CODE_AT: u64 = 0xc_0000;
const BANKS_AT: u64 = 0xd_0000;
const TEMP_AT: u64 = 0x4_0000;
const ADDRESSES: Addresses = Addresses {
    subchannel: SUBCHANNEL,
    code: DATA_VA + CODE_AT,
    banks: DATA_VA + BANKS_AT,
    temp: RAM_VA + TEMP_AT,
    temp_bytes: 0xc_0000,
};
/// A page that the hostile channel may read.
const READ_ONLY_VA: u64 = 0x300_0000;
const READ_ONLY: u64 = UNUSED;
/// Parts of the page of the innocent channel.
const INNOCENT_RESULT: u64 = 0x100;
const INNOCENT_CODE: u64 = 0x400;
const INNOCENT_DONE: u64 = 0;

/// VRAM that no page of the hostile channel's space shows, or only for reading: tables and data
/// of the innocent channel.
const OUT_OF_REACH: [(u64, u64); 2] = [(DIRECTORY, USERS), (APART_DIRECTORY, UNUSED + SMALL_PAGE)];
/// VRAM that no page of any space shows.
const EMPTY: [(u64, u64); 2] = [(0, DIRECTORY), (UNUSED + SMALL_PAGE, VRAM_BYTES)];

const KERNELS: [&str; 8] = [
    include_str!("../../../docs/examples/kernels/vecadd.asm"),
    include_str!("../../../docs/examples/kernels/saxpy.asm"),
    include_str!("../../../docs/examples/kernels/reduce.asm"),
    include_str!("../../../docs/examples/kernels/diverge.asm"),
    include_str!("../../../docs/examples/kernels/histogram.asm"),
    include_str!("../../../docs/examples/kernels/matmul.asm"),
    include_str!("../../../docs/examples/kernels/stencil.asm"),
    include_str!("../../../docs/examples/kernels/bithash.asm"),
];
static PROGRAMS: LazyLock<Vec<Program>> =
    LazyLock::new(|| KERNELS.iter().map(|text| assembled(text)).collect());
/// One word for each instruction and form.
static WORDS: LazyLock<Vec<u64>> = LazyLock::new(|| {
    let lines = include_str!("../../../fermi/spec/src/isa/tests/vectors.txt").lines();
    let words = lines.filter_map(|line| line.split('\t').next());
    words
        .filter_map(|word| u64::from_str_radix(word, 16).ok())
        .collect()
});
/// Each lane stores 3 × its number.
static INNOCENT_PROGRAM: LazyLock<Program> = LazyLock::new(|| {
    assembled(&format!(
        "
        mov b32 $r0 $tidx
        mov b32 $r1 0x3
        mul $r1 u32 $r0 u32 $r1
        add b32 $r2 (shl $r0 0x2) 0x{:x}
        st b32 wb g[$r2] $r1
        exit",
        DATA_VA + INNOCENT_RESULT
    ))
});

fn assembled(text: &str) -> Program {
    assemble(text).expect("text of ours")
}

/// One of the kernels with buffers in the data.
fn kernel(input: &mut Input<'_>) -> Launch {
    let program = &PROGRAMS[usize::from(input.u8()) % PROGRAMS.len()];
    let mut bank = vec![0; 64];
    for pair in bank[8..].chunks_exact_mut(2) {
        let address = address(input);
        pair.copy_from_slice(&[address as u32, (address >> 32) as u32]);
    }
    // Sizes are small numbers: three of the words.
    for _ in 0..3 {
        let at = 8 + usize::from(input.u8()) % 56;
        bank[at] = input.u16().into();
    }
    Launch {
        code: program.words.clone(),
        registers: program.registers,
        shared_bytes: program.shared_bytes.max(0x2000),
        barriers: program.barriers.max(1),
        banks: [(0, bank)].into(),
        ..plain(input)
    }
}

/// A launch of a few blocks without a program.
fn plain(input: &mut Input<'_>) -> Launch {
    Launch {
        grid: [u32::from(input.u8() & 7) + 1, u32::from(input.u8() & 1) + 1, 1],
        block: [u32::from(input.u8()) + 1, u32::from(input.u8() & 15) + 1, 1],
        registers: 63,
        shared_bytes: 0x800,
        barriers: 16,
        stack_bytes: 0x200 * u32::from(input.u8() & 7),
        shared_window: 0xfe00_0000,
        local_window: 0xff00_0000,
        local_positive: 0x40,
        local_negative: 0x20,
        ..Launch::default()
    }
}

/// A launch of any kind.
pub(super) fn launch(input: &mut Input<'_>) -> Launch {
    let mut launch = match input.u8() % 4 {
        0 => kernel(input),
        1 => generator::generate_launch(input.u16().into()),
        2 => Launch {
            code: (0..input.u8() & 63).map(|_| input.u64()).collect(),
            ..plain(input)
        },
        // Instructions that exist.
        _ => Launch {
            code: (0..input.u8() & 63)
                .map(|_| WORDS[usize::from(input.u16()) % WORDS.len()])
                .collect(),
            ..plain(input)
        },
    };
    for _ in 0..rarely(input, 15) {
        change(&mut launch.code, input);
    }
    launch
}

/// Number of repetitions: mostly none, at most `end`.
fn rarely(input: &mut Input<'_>, end: u8) -> u8 {
    (input.u8() % (2 * end)).saturating_sub(end)
}

/// Changes a word of a program.
fn change(code: &mut Vec<u64>, input: &mut Input<'_>) {
    let at = input.below(code.len() as u64 + 1) as usize;
    let kind = input.u8() % 8;
    let Some(word) = code.get_mut(at) else {
        if code.len() < WORDS_MAX {
            code.push(input.u64());
        }
        return;
    };
    match kind {
        0 => *word = input.u64(),
        1 | 2 => *word ^= 1 << (input.u8() & 63),
        // An offset, a guard, a modifier: some bits in a row.
        3 | 4 => *word ^= u64::from(input.u16()) << (input.u8() % 49),
        5 if code.len() < WORDS_MAX => code.insert(at, input.u64()),
        6 => {
            let other = input.below(code.len() as u64) as usize;
            code.swap(at, other);
        }
        _ => {
            code.remove(at);
        }
    }
}

/// Methods that a launch reads, and some that it does not.
const METHODS: [u16; 20] = [
    compute::CODE_HIGH,
    compute::CODE_HIGH + 4,
    compute::ENTRY,
    compute::LOCAL_POSITIVE,
    compute::LOCAL_NEGATIVE,
    compute::STACK_BYTES,
    compute::TEMP_HIGH,
    compute::TEMP_HIGH + 4,
    compute::TEMP_PER_WARP,
    compute::SHARED_WINDOW,
    compute::LOCAL_WINDOW,
    compute::REGISTERS,
    compute::SHARED_BYTES,
    compute::BARRIERS,
    compute::GRID_XY,
    compute::GRID_Z,
    compute::BLOCK_XY,
    compute::BLOCK_Z,
    shader::CONSTANT_BYTES,
    compute::BIND_CONSTANTS,
];

fn submit(card: &mut Card, input: &mut Input<'_>) {
    let launch = launch(input);
    let code: Vec<u8> = launch.code.iter().flat_map(|word| word.to_le_bytes()).collect();
    card.vram_write(DATA + CODE_AT, &code);
    for (bank, constants) in &launch.banks {
        let bytes: Vec<u8> = constants.iter().flat_map(|word| word.to_le_bytes()).collect();
        card.vram_write(DATA + BANKS_AT + u64::from(*bank) * BANK_BYTES, &bytes);
    }
    let mut words = runner::state(&launch, ADDRESSES);
    for _ in 0..rarely(input, 6) {
        let method = input.choose(&METHODS);
        let operand = if input.u8() & 1 == 0 {
            input.u32()
        } else {
            input.u16().into()
        };
        words.extend([incrementing(SUBCHANNEL, method, 1), operand]);
    }
    words.extend(runner::start(SUBCHANNEL, launch.argument));
    card.push(HOSTILE, &words, 0);
    card.ring(HOSTILE);
}

fn bind_class(card: &mut Card, channel: u16) {
    let words = [
        incrementing(SUBCHANNEL, host::SET_OBJECT, 1),
        u32::from(class::COMPUTE),
    ];
    card.push(channel, &words, 0);
    card.ring(channel);
}

/// The innocent channel's launch, and a release behind it.
fn submit_innocent(card: &mut Card, payload: u32) {
    let launch = Launch {
        grid: [1; 3],
        block: [48, 1, 1],
        registers: INNOCENT_PROGRAM.registers,
        ..Launch::default()
    };
    let addresses = Addresses {
        code: DATA_VA + INNOCENT_CODE,
        ..ADDRESSES
    };
    let mut words = runner::state(&launch, addresses);
    words.extend(runner::start(SUBCHANNEL, 0));
    words.extend(runner::release(SUBCHANNEL, DATA_VA + INNOCENT_DONE, payload));
    card.vram_write(APART_DATA + INNOCENT_RESULT, &[0; 4 * 48]);
    card.push(INNOCENT, &words, 0);
    card.ring(INNOCENT);
}

/// The bytes of [`OUT_OF_REACH`].
fn out_of_reach(card: &Card) -> Vec<u8> {
    let mut all = Vec::new();
    for (start, end) in OUT_OF_REACH {
        let from = all.len();
        all.resize(from + (end - start) as usize, 0);
        assert!(card.vram_read(start, &mut all[from..]), "in VRAM");
    }
    all
}

/// Whether the ranges of [`EMPTY`] are still zero.
fn is_empty(card: &Card) -> bool {
    let pages = EMPTY
        .iter()
        .flat_map(|(start, end)| (*start..*end).step_by(SMALL_PAGE as usize));
    let mut page = [0; SMALL_PAGE as usize];
    for at in pages {
        if !card.vram_read(at, &mut page) || page.iter().any(|byte| *byte != 0) {
            return false;
        }
    }
    true
}

/// Body of the target `shader`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut card = Card::with_channels_but_one(CHANNELS, CardSetup::fuzzed(CopyMicrocode::Nouveau));
    runner::map_high(&mut card);
    card.map_read_only(READ_ONLY_VA, READ_ONLY);
    card.vram_write(READ_ONLY, &[0x5a; SMALL_PAGE as usize]);
    let code: Vec<u8> = INNOCENT_PROGRAM
        .words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    card.vram_write(APART_DATA + INNOCENT_CODE, &code);
    bind_class(&mut card, INNOCENT);
    bind_class(&mut card, HOSTILE);
    let before = out_of_reach(&card);
    for payload in 1..=LAUNCHES_MAX {
        if input.is_empty() {
            break;
        }
        submit(&mut card, &mut input);
        submit_innocent(&mut card, payload);
        let is_done = (0..PATIENCE).any(|_| {
            if card.step(WORK) != Stepped::Busy {
                service(&mut card);
            }
            card.vram_u32(APART_DATA + INNOCENT_DONE) == payload
        });
        assert!(is_done, "the innocent channel does not get on");
        for lane in 0..48 {
            let found = card.vram_u32(APART_DATA + INNOCENT_RESULT + 4 * lane);
            assert_eq!(u64::from(found), 3 * lane, "the innocent's lane {lane}");
        }
        // After a fault the channel has to be started again.
        card.bind(HOSTILE);
        bind_class(&mut card, HOSTILE);
    }
    // Leftovers of the last grid.
    for _ in 0..PATIENCE {
        if card.step(WORK) != Stepped::Busy {
            break;
        }
    }
    assert!(before == out_of_reach(&card), "memory out of reach has changed");
    assert!(is_empty(&card), "nobody's memory has changed");
}
