//! What one warp instruction of each class costs on the software card, in nanoseconds of processor time.
//!
//! Each row runs a loop of copies of one instruction, in 8 warps a block, from the doorbell to the release. It is run
//! with ordinary operands and with special ones: NaN, infinities, denormals, zeros of both signs, ties, bounds of
//! integers. A row of 64 ns is half a billion instructions of lanes in a second.
//!
//! `cargo bench -p fermi_model --profile release --bench instructions` measures what ships. Words behind `--` choose
//! the rows that contain one of them. `MODEL_BENCH_ROUNDS` sets the rounds.

mod classes;
mod machine;
mod special;

use classes::Class;
use fermi_spec::isa::assembler::assemble;
use machine::{INPUT_VA, Machine};

const THREADS: u32 = 256;
const BLOCKS: u32 = 15;
const TRIPS: u32 = 8;
/// Copies of the instruction in the loop.
const COPIES: usize = 48;
/// Nanoseconds of a warp instruction at half a billion instructions of lanes in a second.
const GOAL_NS: f64 = 64.0;
const ROUNDS: usize = 5;

/// How the bench was called.
struct Arguments {
    /// `cargo bench`, not `cargo test --benches`.
    measures: bool,
    rounds: usize,
    words: Vec<String>,
}

impl Arguments {
    /// `None`: a test runner asks for a list of tests.
    fn of_process() -> Option<Self> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
        let rounds = std::env::var("MODEL_BENCH_ROUNDS").ok();
        (!has("--list")).then(|| Self {
            measures: has("--bench"),
            rounds: rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS),
            words: arguments
                .iter()
                .filter(|argument| !argument.starts_with('-'))
                .cloned()
                .collect(),
        })
    }

    fn wants(&self, class: &Class) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| class.name.contains(word.as_str()))
    }
}

/// The kernel of a class: R0 to R7 are loaded, then the loop.
fn text(class: &Class, trips: u32) -> String {
    let mut text = format!(
        ".shared 0x1000
        mov b32 $r8 $laneid
        shl b32 $r8 $r8 clamp 0x5
        add b32 $r8 $r8 0x{INPUT_VA:x}
        ld b128 $r0q ca g[$r8]
        ld b128 $r4q ca g[$r8+0x10]
        mov b32 $r8 $laneid
        mov b32 $r9 0x0
        {}\nloop:\n",
        class.setup
    );
    for copy in 0..COPIES {
        text += &class
            .instruction
            .replace("%d", &format!("$r{}", 12 + 4 * (copy % 8)));
        text.push('\n');
    }
    text + &format!(
        "add b32 $r9 $r9 0x1
        set $p6 0x1 lt u32 $r9 0x{trips:x}
        $p6 bra #loop
        exit"
    )
}

/// Nanoseconds of a warp instruction, or of the loop's if `class` has none.
fn measure(machine: &mut Machine, class: &Class, trips: u32) -> f64 {
    let program = assemble(&text(class, trips)).unwrap_or_else(|error| panic!("{}: {error:?}", class.name));
    let before = machine.counters().warp_instructions;
    let time = processor_nanoseconds(|| machine.run(&program, BLOCKS, THREADS));
    time / (machine.counters().warp_instructions - before) as f64
}

/// The smallest of some rounds for each kind of operands: other load only adds.
fn best(machine: &mut Machine, class: &Class, arguments: &Arguments) -> [f64; 2] {
    [false, true].map(|is_special| {
        machine.set_input(&class.data.input(is_special));
        let (rounds, trips) = if arguments.measures {
            (arguments.rounds, TRIPS)
        } else {
            (1, 1)
        };
        (0..rounds)
            .map(|_| measure(machine, class, trips))
            .fold(f64::INFINITY, f64::min)
    })
}

fn main() {
    let Some(arguments) = Arguments::of_process() else {
        return;
    };
    let classes = classes::all();
    classes::check_that_none_is_missing(&classes);
    let mut machine = Machine::new();
    println!("nanoseconds of a warp instruction: ordinary operands, special ones");
    let (mut rows, mut slow) = (0, 0);
    for class in classes.iter().filter(|class| arguments.wants(class)) {
        let [ordinary, special] = best(&mut machine, class, &arguments);
        let is_slow = ordinary.max(special) > GOAL_NS;
        rows += 1;
        slow += u32::from(is_slow);
        let mark = if is_slow { "  slow" } else { "" };
        println!("  {:<44} {ordinary:>7.1} {special:>7.1}{mark}", class.name);
    }
    println!("{rows} rows, {slow} above {GOAL_NS} ns");
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
