//! The shader cores of the software card: arithmetic, and kernels that move memory, beside plain Rust and `memcpy`.
//!
//! A launch is timed from the doorbell to the release behind it, in processor time of the only thread. All memory has
//! been touched before. Bytes of the memory tables are those of the algorithm, not the card's count.
//!
//! Kernels come in two forms. The plain one has a thread for each element, as a first lesson has them. In the wide
//! one a thread moves four times 16 bytes, as kernels do that need all of the memory's bandwidth.

#[path = "../pairs/mod.rs"]
mod pairs;

use std::cell::RefCell;
use std::hint::black_box;

use fermi_spec::isa::assembler::{Program, assemble};
use integration::shaders::Launch;
use integration::shaders::runner::{MORE_VA, Runner};
use pairs::{Measure, Mode, Table, Way};

const ROUNDS: usize = 7;
/// Elements of an array, of 4 bytes: more than caches hold.
const ELEMENTS: u32 = 4 << 20;
const ARRAY_BYTES: u64 = ELEMENTS as u64 * 4;
/// Elements in a smoke test.
const FEW: u32 = 16 << 10;
const THREADS: u32 = 256;
/// Factor of the triad.
const FACTOR: f32 = 3.0;

const FFMA_TITLE: &str = "FFMA in a loop: instructions of lanes";
const FFMA_TRIPS: u32 = 256;
const FFMA_BLOCKS: u32 = 64;
const FFMA_BODY: usize = 16;

/// Places of the arrays.
const A: u64 = MORE_VA;
const B: u64 = A + ARRAY_BYTES;
const C: u64 = B + ARRAY_BYTES;

/// R0 = index; leaves if it is beyond the count in c0[0x38]. R4, R6, R8: pairs with the addresses of the elements.
const INDEX: &str = "
    mov b32 $r0 $ctaidx
    mov b32 $r1 $ntidx
    mov b32 $r2 $tidx
    add $r0 (mul u32 $r0 u32 $r1) $r2
    set $p0 0x1 ge u32 $r0 c0[0x38]
    $p0 exit
    mov b32 $r3 0x4
    add $r4 $c (mul u32 $r0 u32 $r3) c0[0x20]
    add $r5 (mul high u32 $r0 u32 $r3) c0[0x24] $c
    add $r6 $c (mul u32 $r0 u32 $r3) c0[0x28]
    add $r7 (mul high u32 $r0 u32 $r3) c0[0x2c] $c
    add $r8 $c (mul u32 $r0 u32 $r3) c0[0x30]
    add $r9 (mul high u32 $r0 u32 $r3) c0[0x34] $c
";
const COPY: &str = "
    ld b32 $r10 ca g[$r4d]
    st b32 wb g[$r8d] $r10
    exit";
const VECADD: &str = "
    ld b32 $r10 ca g[$r4d]
    ld b32 $r11 ca g[$r6d]
    add rn f32 $r10 $r10 $r11
    st b32 wb g[$r8d] $r10
    exit";
const TRIAD: &str = "
    ld b32 $r10 ca g[$r4d]
    ld b32 $r11 ca g[$r6d]
    fma rn f32 $r10 $r11 c0[0x3c] $r10
    st b32 wb g[$r8d] $r10
    exit";
/// The same addresses for the first 16 bytes of four that a thread moves.
const WIDE_INDEX: &str = "
    mov b32 $r0 $ctaidx
    mov b32 $r2 $tidx
    mov b32 $r1 0x400
    add $r0 (mul u32 $r0 u32 $r1) $r2
    set $p0 0x1 ge u32 $r0 c0[0x38]
    $p0 exit
    mov b32 $r3 0x10
    add $r4 $c (mul u32 $r0 u32 $r3) c0[0x20]
    add $r5 (mul high u32 $r0 u32 $r3) c0[0x24] $c
    add $r6 $c (mul u32 $r0 u32 $r3) c0[0x28]
    add $r7 (mul high u32 $r0 u32 $r3) c0[0x2c] $c
    add $r8 $c (mul u32 $r0 u32 $r3) c0[0x30]
    add $r9 (mul high u32 $r0 u32 $r3) c0[0x34] $c
";
/// Accesses of a thread of a wide kernel, each of four elements.
const WIDE_ACCESSES: u32 = 4;
const WIDE_ELEMENTS: u32 = 4;

/// The body of a wide kernel: all loads of A, and of B if there is something to do with it, then all stores.
fn wide(combine: Option<&str>) -> String {
    const FIRST: u32 = 12;
    const SECOND: u32 = FIRST + WIDE_ACCESSES * WIDE_ELEMENTS;
    let each = |verb: &dyn Fn(u32, u32) -> String| -> String {
        (0..WIDE_ACCESSES)
            .map(|access| verb(access * WIDE_ELEMENTS, access * THREADS * 16))
            .collect()
    };
    let mut text = String::from(WIDE_INDEX);
    text += &each(&|register, offset| format!("ld b128 $r{}q ca g[$r4d+0x{offset:x}]\n", FIRST + register));
    if let Some(combine) = combine {
        text +=
            &each(&|register, offset| format!("ld b128 $r{}q ca g[$r6d+0x{offset:x}]\n", SECOND + register));
        for register in 0..WIDE_ACCESSES * WIDE_ELEMENTS {
            let (a, b) = (
                format!("$r{}", FIRST + register),
                format!("$r{}", SECOND + register),
            );
            text += &(combine.replace("%a", &a).replace("%b", &b) + "\n");
        }
    }
    text += &each(&|register, offset| format!("st b128 wb g[$r8d+0x{offset:x}] $r{}q\n", FIRST + register));
    text + "exit"
}

/// c[i] = a[hash of i].
const GATHER: &str = "
    mul $r10 u32 $r0 u32 0x9e3779b1
    shr u32 $r11 $r10 clamp 0xf
    xor b32 $r10 $r10 $r11
    and b32 $r10 $r10 c0[0x3c]
    add $r4 $c (mul u32 $r10 u32 $r3) c0[0x20]
    add $r5 (mul high u32 $r10 u32 $r3) c0[0x24] $c
    ld b32 $r10 ca g[$r4d]
    st b32 wb g[$r8d] $r10
    exit";

fn hash(index: u32) -> u32 {
    let mixed = index.wrapping_mul(0x9e37_79b1);
    mixed ^ mixed >> 15
}

/// Four independent chains, as compilers leave them.
fn ffma_text() -> String {
    let mut text = String::from("mov b32 $r8 0x0\nloop:\n");
    for at in 0..FFMA_BODY {
        let register = at % 4;
        text += &format!("fma rn f32 $r{register} $r{register} $r4 $r5\n");
    }
    text + &format!(
        "add b32 $r8 $r8 0x1
        set $p0 0x1 lt u32 $r8 0x{FFMA_TRIPS:x}
        $p0 bra #loop
        exit"
    )
}

fn program(text: &str) -> Program {
    assemble(text).expect("a kernel of ours")
}

fn launch_of(program: &Program, blocks: u32, parameters: &[u32]) -> Launch {
    let mut bank = vec![0; 8];
    bank.extend_from_slice(parameters);
    Launch {
        code: program.words.clone(),
        grid: [blocks, 1, 1],
        block: [THREADS, 1, 1],
        registers: program.registers,
        banks: [(0, bank)].into(),
        ..Launch::default()
    }
}

fn split(address: u64) -> [u32; 2] {
    [address as u32, (address >> 32) as u32]
}

/// A kernel over arrays: A and B to C.
fn over_arrays(kernel: &Kernel, elements: u32) -> Launch {
    let program = program(&kernel.text);
    let [a, b, c] = [A, B, C].map(split);
    let parameters = [a, b, c].concat();
    let parameters = [&parameters[..], &[elements / kernel.form.unit(), kernel.last]].concat();
    let threads = elements.div_ceil(kernel.form.elements());
    launch_of(&program, threads.div_ceil(THREADS), &parameters)
}

/// Runs a launch; nanoseconds.
fn run(runner: &RefCell<Runner>, launch: &Launch) -> f64 {
    let mut runner = runner.borrow_mut();
    runner.prepare(launch);
    processor_nanoseconds(|| runner.launch(launch).expect("a kernel of ours ends"))
}

fn arithmetic(mode: Mode, runner: &RefCell<Runner>) {
    let launch = launch_of(&program(&ffma_text()), FFMA_BLOCKS, &[]);
    let lanes = f64::from(FFMA_BLOCKS * THREADS);
    let mut values = vec![1.0f32; 4 * (FFMA_BLOCKS * THREADS) as usize];
    let ways: Vec<Way<'_>> = vec![
        (
            "software card",
            Box::new(|| {
                let before = runner.borrow().counters().lane_instructions;
                let time = run(runner, &launch);
                (runner.borrow().counters().lane_instructions - before) as f64 * 1e3 / time
            }),
        ),
        (
            "plain Rust",
            Box::new(|| {
                let (factor, addend) = black_box((0.5f32, 0.25f32));
                let time = processor_nanoseconds(|| {
                    // Chains that fit the registers of a vector unit, with nothing in their loop that the compiler must
                    // not see through.
                    for chains in values.as_chunks_mut::<32>().0 {
                        let mut held = *chains;
                        for _ in 0..FFMA_TRIPS * (FFMA_BODY / 4) as u32 {
                            for value in &mut held {
                                *value = *value * factor + addend;
                            }
                        }
                        *chains = held;
                    }
                    black_box(&mut values);
                });
                lanes * f64::from(FFMA_TRIPS) * FFMA_BODY as f64 * 1e3 / time
            }),
        ),
    ];
    Table {
        title: FFMA_TITLE,
        unit: "M/s",
        measure: Measure::Rate,
        bases: &["plain Rust"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
}

/// The same computation in plain Rust.
#[derive(Clone, Copy)]
enum Plain {
    Copy,
    Vecadd,
    Triad,
    Gather,
}

fn plain(which: Plain, [a, b]: [&[f32]; 2], c: &mut [f32]) {
    match which {
        Plain::Copy => c.iter_mut().zip(a).for_each(|(c, a)| *c = *a),
        Plain::Vecadd => {
            for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
                *c = a + b;
            }
        }
        Plain::Triad => {
            let factor = black_box(FACTOR);
            for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
                *c = b * factor + a;
            }
        }
        Plain::Gather => {
            let mask = a.len() - 1;
            for (c, index) in c.iter_mut().zip(0..) {
                *c = a[hash(index) as usize & mask];
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Form {
    /// An element for each thread.
    Narrow,
    Wide,
}

impl Form {
    /// Elements of an access.
    fn unit(self) -> u32 {
        match self {
            Self::Narrow => 1,
            Self::Wide => WIDE_ELEMENTS,
        }
    }

    /// Elements of a thread.
    fn elements(self) -> u32 {
        match self {
            Self::Narrow => 1,
            Self::Wide => WIDE_ELEMENTS * WIDE_ACCESSES,
        }
    }
}

struct Kernel {
    title: &'static str,
    text: String,
    form: Form,
    plain: Plain,
    /// Arrays that are read or written.
    arrays: f64,
    /// The last parameter of the kernel.
    last: u32,
}

fn memory(mode: Mode, runner: &RefCell<Runner>, elements: u32, kernel: &Kernel) {
    let count = elements as usize;
    let (a, b): (Vec<f32>, Vec<f32>) = (0..elements)
        .map(|index| ((hash(index) >> 12) as f32, (hash(index + 1) >> 12) as f32))
        .unzip();
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    runner.borrow_mut().store_more(A - MORE_VA, &bytes(&a));
    runner.borrow_mut().store_more(B - MORE_VA, &bytes(&b));
    runner
        .borrow_mut()
        .store_more(C - MORE_VA, &bytes(&vec![1.0; count]));
    let mut expected = vec![1.0f32; count];
    let mut copied = vec![1.0f32; count];
    let launch = over_arrays(kernel, elements);
    // Bytes in a nanosecond are GB/s.
    let moved = kernel.arrays * 4.0 * f64::from(elements);
    let ways: Vec<Way<'_>> = vec![
        ("software card", Box::new(|| moved / run(runner, &launch))),
        (
            "plain Rust",
            Box::new(|| {
                moved
                    / processor_nanoseconds(|| {
                        plain(kernel.plain, [black_box(&a), black_box(&b)], &mut expected);
                        black_box(&mut expected);
                    })
            }),
        ),
        (
            "memcpy",
            Box::new(|| {
                let time = processor_nanoseconds(|| {
                    copied.copy_from_slice(black_box(&a));
                    black_box(&mut copied);
                });
                8.0 * f64::from(elements) / time
            }),
        ),
    ];
    Table {
        title: kernel.title,
        unit: "GB/s",
        measure: Measure::Rate,
        bases: &["plain Rust", "memcpy"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
    let mut found = vec![0; 4 * count];
    runner.borrow().load_more(C - MORE_VA, &mut found);
    assert!(found == bytes(&expected), "the card's result is plain Rust's");
}

fn kernels(elements: u32) -> [Kernel; 7] {
    let narrow = |title, body: &str, plain, arrays, last| Kernel {
        title,
        text: format!("{INDEX}{body}"),
        form: Form::Narrow,
        plain,
        arrays,
        last,
    };
    let wide = |title, combine: Option<&str>, plain, arrays, last| Kernel {
        title,
        text: wide(combine),
        form: Form::Wide,
        plain,
        arrays,
        last,
    };
    let (sum, fused) = ("add rn f32 %a %a %b", "fma rn f32 %a %b c0[0x3c] %a");
    let factor = FACTOR.to_bits();
    [
        narrow("copy: c[i] = a[i]", COPY, Plain::Copy, 2.0, 0),
        wide("copy, wide", None, Plain::Copy, 2.0, 0),
        narrow("vecadd: c[i] = a[i] + b[i]", VECADD, Plain::Vecadd, 3.0, 0),
        wide("vecadd, wide", Some(sum), Plain::Vecadd, 3.0, 0),
        narrow("triad: c[i] = a[i] + s × b[i]", TRIAD, Plain::Triad, 3.0, factor),
        wide("triad, wide", Some(fused), Plain::Triad, 3.0, factor),
        narrow(
            "gather: c[i] = a[hash(i)]",
            GATHER,
            Plain::Gather,
            2.0,
            elements - 1,
        ),
    ]
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let elements = if mode == Mode::Measure { ELEMENTS } else { FEW };
    let runner = RefCell::new(Runner::new(3 * ARRAY_BYTES));
    let kernels = kernels(elements);
    // `cargo bench --bench shader -- copy` measures what begins with that word.
    let only = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let is_wanted = |title: &str| only.as_deref().is_none_or(|only| title.starts_with(only));
    if is_wanted(FFMA_TITLE) {
        arithmetic(mode, &runner);
    }
    for kernel in kernels.iter().filter(|kernel| is_wanted(kernel.title)) {
        memory(mode, &runner, elements, kernel);
    }
}

/// Nanoseconds of processor time that `work` takes on this thread: other programs on the machine do not count.
fn processor_nanoseconds(work: impl FnOnce()) -> f64 {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    work();
    now() - start
}
