//! The tests: kernels with their arguments, and fills.

mod fills;

use anyhow::Result;
use report::Outcome;

use crate::device::{Argument, Machine, Range};
use Argument::{Number, Shared, Words, Zeros};

/// Source text of all kernels.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/arithmetic.cl"),
    include_str!("../kernels/groups.cl"),
    include_str!("../kernels/memory.cl"),
);

/// Source of a test's expected results.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// It runs kernels and returns the contents of their buffers; the software renderer's have to be the same.
    Compared(fn(&Machine) -> Result<Vec<u32>>),
    /// It computes the expected result itself.
    Checked(fn(&Machine) -> Result<Outcome>),
}

/// One named test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Name of the test.
    pub(crate) name: &'static str,
    /// The function of the test.
    pub(crate) work: Work,
}

const fn case(name: &'static str, run: fn(&Machine) -> Result<Vec<u32>>) -> Case {
    Case {
        name,
        work: Work::Compared(run),
    }
}

const fn checked(name: &'static str, run: fn(&Machine) -> Result<Outcome>) -> Case {
    Case {
        name,
        work: Work::Checked(run),
    }
}

/// All tests, in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    [KERNELS, fills::CASES].concat()
}

const KERNELS: &[Case] = &[
    case("integers", integers),
    case("long-integers", long_integers),
    case("floats", floats),
    case("vectors", vectors),
    case("loops", loops),
    case("reduction", reduction),
    case("multiplication", multiplication),
    case("histogram", histogram),
    case("atomics", atomics),
    case("bytes", byte_memory),
    case("private-memory", private_memory),
    case("rounds", rounds),
];

/// Words that depend on `seed` (a generator of Lehmer's kind; the upper halves of its states).
fn words(seed: u32, count: usize) -> Vec<u32> {
    let mut state = u64::from(seed) << 1 | 1;
    let next = || {
        state = state.wrapping_mul(0xda94_2042_e4dd_58b5);
        (state >> 32) as u32
    };
    std::iter::repeat_with(next).skip(2).take(count).collect()
}

/// f32 from -2048 to 2047: sums of products of a few dozen are exact.
fn whole_floats(seed: u32, count: usize) -> Vec<u32> {
    let float = |word: u32| ((word >> 20) as f32 - 2048.0).to_bits();
    words(seed, count).into_iter().map(float).collect()
}

fn integers(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 512;
    let given = words(1, 2 * COUNT);
    machine.run(
        "integers",
        &[Words(&given), Zeros(COUNT * 16)],
        Range::line(COUNT, 64),
    )
}

fn long_integers(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 256;
    let given = words(2, 4 * COUNT);
    machine.run(
        "long_integers",
        &[Words(&given), Zeros(COUNT * 16)],
        Range::line(COUNT, 64),
    )
}

fn floats(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 512;
    let given = whole_floats(3, 3 * COUNT);
    machine.run(
        "floats",
        &[Words(&given), Zeros(COUNT * 12)],
        Range::line(COUNT, 128),
    )
}

fn vectors(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 256;
    let given = words(4, 4 * COUNT);
    machine.run(
        "vectors",
        &[Words(&given), Zeros(COUNT * 8)],
        Range::line(COUNT, 32),
    )
}

fn loops(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 1024;
    let given = words(5, COUNT);
    machine.run(
        "loops",
        &[Words(&given), Zeros(COUNT), Number(200)],
        Range::line(COUNT, 64),
    )
}

fn reduction(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 4096;
    const GROUP: usize = 256;
    let given = words(6, COUNT);
    machine.run(
        "reduction",
        &[Words(&given), Zeros(COUNT / GROUP), Zeros(COUNT), Shared(GROUP)],
        Range::line(COUNT, GROUP),
    )
}

fn multiplication(machine: &Machine) -> Result<Vec<u32>> {
    const SIDE: usize = 48;
    let (left, right) = (whole_floats(7, SIDE * SIDE), whole_floats(8, SIDE * SIDE));
    machine.run(
        "multiplication",
        &[
            Words(&left),
            Words(&right),
            Zeros(SIDE * SIDE),
            Number(SIDE as u32),
        ],
        Range {
            all: [SIDE; 2],
            group: [16; 2],
        },
    )
}

fn histogram(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 4096;
    let given = words(9, COUNT);
    machine.run(
        "histogram",
        &[Words(&given), Zeros(64), Shared(64)],
        Range::line(COUNT, 128),
    )
}

fn atomics(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 2048;
    let given = words(10, COUNT);
    let mut start = vec![0; 8];
    (start[1], start[3]) = (u32::MAX, u32::MAX);
    machine.run(
        "atomics",
        &[Words(&given), Words(&start), Zeros(COUNT)],
        Range::line(COUNT, 64),
    )
}

fn byte_memory(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 1024;
    let given = words(11, COUNT);
    machine.run(
        "byte_memory",
        &[Words(&given), Zeros(COUNT), Zeros(COUNT)],
        Range::line(COUNT * 2, 64),
    )
}

fn private_memory(machine: &Machine) -> Result<Vec<u32>> {
    const COUNT: usize = 512;
    let given = words(12, COUNT);
    machine.run(
        "private_memory",
        &[Words(&given), Zeros(COUNT)],
        Range::line(COUNT, 64),
    )
}

/// A kernel works on the results of the one before.
fn rounds(machine: &Machine) -> Result<Vec<u32>> {
    const SIDE: usize = 32;
    const ROUNDS: usize = 6;
    let mut cells: Vec<_> = words(13, SIDE * SIDE)
        .into_iter()
        .map(|word| word >> 31)
        .collect();
    for _ in 0..ROUNDS {
        let both = machine.run(
            "life",
            &[Words(&cells), Zeros(SIDE * SIDE)],
            Range {
                all: [SIDE; 2],
                group: [16, 8],
            },
        )?;
        cells = both[SIDE * SIDE..].to_vec();
    }
    Ok(cells)
}
