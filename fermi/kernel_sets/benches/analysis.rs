//! What an analysis takes: `cargo bench -p kernel_sets`.
//!
//! Launches of our own kernels as they come from a channel, each with parameters of its own, so that no analysis is known; beside them a
//! launch that the cache knows, and a program that is to be dear. The second table has the time of one unit of work, which is what a broker charges a VM for.

#[path = "../../../integration/benches/pairs/mod.rs"]
mod pairs;

use std::hint::black_box;
use std::time::Instant;

use fermi_spec::isa::assembler::assemble;
use kernel_sets::{Bank, Cache, Kernel, Limits, analyse};
use kernels::{Gpu, Launch, Stopped};
use pairs::{Measure, Mode, Table, Way};

/// Short and long programs, with and without loops.
const NAMES: [&str; 8] = [
    "triad",
    "bfs",
    "backprop",
    "matrix",
    "lud",
    "srad2",
    "hashjoin",
    "heartwall",
];
const FOOTPRINT: u64 = 256 << 10;
const FIRST: u64 = 8 << 30;
const APART: u64 = 16 << 20;
const BANK_WORDS: usize = 1024;
const WINDOWS: [u64; 2] = [0xfe00_0000, 0xff00_0000];
/// Launches of a plan that are taken.
const LAUNCHES_MAX: usize = 64;
const ROUNDS: usize = 31;

/// All that one analysis gets.
struct Asked {
    code: Vec<u64>,
    bank: Vec<Option<u32>>,
    grid: [u32; 3],
    block: [u32; 3],
}

impl Asked {
    fn with<R>(&self, run: impl FnOnce(&Kernel<'_>, &mut dyn FnMut(u32) -> Option<u64>) -> R) -> R {
        let kernel = Kernel {
            entry: 0,
            grid: self.grid,
            block: self.block,
            banks: &[Bank { words: &self.bank }],
            windows: WINDOWS,
        };
        run(&kernel, &mut |at| self.code.get(at as usize / 8).copied())
    }

    fn analyse(&self) -> u64 {
        self.with(|kernel, code| analyse(kernel, code, Limits::default()).work)
    }
}

/// Notes what a plan launches, and runs nothing.
#[derive(Default)]
struct Plan(Vec<Asked>);

impl Gpu for Plan {
    fn address(&self, buffer: usize) -> u64 {
        FIRST + APART * buffer as u64
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        for piece in launch.pieces().take(LAUNCHES_MAX - self.0.len()) {
            let (words, count) = launch.parameters.bank(piece);
            let mut bank: Vec<Option<u32>> = words[..count].iter().copied().map(Some).collect();
            bank.resize(BANK_WORDS, None);
            self.0.push(Asked {
                code: launch.program.code.to_vec(),
                bank,
                grid: [piece.blocks[0], piece.blocks[1], 1],
                block: [launch.threads[0], launch.threads[1], 1],
            });
        }
        Ok(())
    }

    fn load(&mut self, _: usize, _: usize, words: &mut [u32]) -> Result<(), Stopped> {
        words.fill(0);
        Ok(())
    }

    fn store(&mut self, _: usize, _: usize, _: &[u32]) -> Result<(), Stopped> {
        Ok(())
    }
}

/// A guest's attempt to make a unit of work dear: all registers matter and change in each of nested loops.
fn hostile() -> Vec<Asked> {
    use std::fmt::Write as _;
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes it");
    let registers = 0..60;
    for depth in 0..4 {
        line(format_args!("loop{depth}:"));
    }
    for depth in (0..4).rev() {
        for register in registers.clone() {
            line(format_args!(
                "$p0 add b32 $r{register} $r{register} 0x{:x}",
                4 << depth
            ));
        }
        line(format_args!("set $p0 0x1 ge u32 $r{depth} c0[0x30]"));
        line(format_args!("$p0 bra #loop{depth}"));
    }
    for register in registers {
        line(format_args!("ld b32 $r61 ca g[$r{register}]"));
    }
    line(format_args!("exit"));
    vec![Asked {
        code: assemble(&text).expect("it is a program").words,
        bank: vec![Some(0x1000); BANK_WORDS],
        grid: [64, 1, 1],
        block: [128, 1, 1],
    }]
}

fn launches_of(name: &str) -> Vec<Asked> {
    let instance = kernels::make(name, FOOTPRINT).expect("a kernel of the list");
    let mut plan = Plan::default();
    instance.kernel().run(&mut plan).expect("nothing stops it");
    plan.0
}

/// Nanoseconds, and units of work, of all analyses together.
fn took(launches: &[Asked]) -> (f64, f64) {
    let start = Instant::now();
    let work: u64 = launches.iter().map(|asked| black_box(asked.analyse())).sum();
    (start.elapsed().as_nanos() as f64, work as f64)
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let mut plans: Vec<(&str, Vec<Asked>)> = NAMES.iter().map(|name| (*name, launches_of(name))).collect();
    plans.push(("hostile", hostile()));
    let known = &plans[NAMES.len() - 1].1;
    let mut cache = Cache::new(LAUNCHES_MAX);
    let mut ask_cache = || {
        for asked in known {
            black_box(asked.with(|kernel, code| cache.sets(kernel, code, Limits::default())));
        }
    };
    ask_cache();
    let mut ways: Vec<Way<'_>> = plans
        .iter()
        .map(|(name, launches)| {
            let way = move || took(launches).0 / 1e3 / launches.len() as f64;
            (*name, Box::new(way) as Box<dyn FnMut() -> f64>)
        })
        .collect();
    let of_known = move || {
        let start = Instant::now();
        ask_cache();
        start.elapsed().as_nanos() as f64 / 1e3 / known.len() as f64
    };
    ways.push(("heartwall, known", Box::new(of_known)));
    let table = Table {
        title: "A launch's sets",
        unit: "µs",
        measure: Measure::Time,
        bases: &["heartwall, known"],
        rounds: mode.rounds(ROUNDS),
    };
    table.run(ways);
    let ways = plans.iter().map(|(name, launches)| {
        let way = move || {
            let (ns, work) = took(launches);
            ns / work
        };
        (*name, Box::new(way) as Box<dyn FnMut() -> f64>)
    });
    let table = Table {
        title: "A unit of work",
        unit: "ns",
        measure: Measure::Time,
        bases: &["triad"],
        rounds: mode.rounds(ROUNDS),
    };
    table.run(ways.collect());
}
