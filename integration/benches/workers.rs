//! Grids of the guests' kernels on a bare software card, with threads that run blocks ahead of their turn and without.
//!
//! What is timed is the card's own thread, from each turn of the waiting driver to the next: nothing else runs on this machine meanwhile but the
//! workers. Results and GPU time are the same whoever executes, which each run checks.

#[expect(dead_code, reason = "other benches pin their threads")]
#[path = "pairs/cores.rs"]
mod cores;
#[path = "pairs/mod.rs"]
mod pairs;

use card::BareMachine;
use fermi_model::{BareCard, Capabilities, CopyMicrocode, ModelConfig, Timing};
use fermi_spec::addr::Iova;
use fermi_spec::board::Board;
use guests::{Machine, Options, Summary, run, scratch_words};
use kernels::NAMES;
use pairs::{Measure, Mode, Table, Way};

const MIB: u64 = 1 << 20;
const VRAM_BYTES: u64 = 64 * MIB;
const RAM_BYTES: u64 = 16 * MIB;
const ROUNDS: usize = 7;
const ALONE: &str = "the card's thread alone";
const WAYS: [(&str, usize); 4] = [
    (ALONE, 0),
    ("and 1 worker", 1),
    ("and 3 workers", 3),
    ("and 7 workers", 7),
];

/// What came of a run: milliseconds of the card's thread, GPU time, and blocks that workers ran.
struct Ran {
    milliseconds: f64,
    gpu_ns: u64,
    played: u64,
}

fn run_kernel(name: &str, workers: usize, kib: u64) -> Ran {
    let config = ModelConfig {
        board: Board::Quadro6000,
        vram_bytes: VRAM_BYTES,
        timing: Timing::of(Board::Quadro6000),
        copy_microcode: CopyMicrocode::default(),
        strict: false,
        capabilities: Capabilities::NONE,
    };
    let card = BareCard::new(config, Iova(0), RAM_BYTES).expect("a card");
    let mut bus = BareMachine::new(card);
    let threads: Vec<_> = bus.card.model.set_workers(workers);
    let threads: Vec<_> = threads
        .into_iter()
        .map(|worker| std::thread::spawn(|| worker.run()))
        .collect();
    let line = format!("vramd.workload={name} vramd.footprint_kib={kib} vramd.rounds=2");
    let options = Options::parse(&line).expect("a command line of ours");
    let mut scratch = vec![0; scratch_words(options.workload, kib * 1024)];
    let machine = Machine {
        dma: MIB..8 * MIB,
        scratch: &mut scratch,
        inputs: &[],
        options,
    };
    let summary = match run(&mut bus, machine) {
        Ok(Summary::Kernel(summary)) => summary,
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(summary.mismatches, 0, "{line}");
    let ran = Ran {
        milliseconds: bus.card_time.as_secs_f64() * 1e3,
        gpu_ns: bus.card.model.gpu_time(),
        played: bus.card.model.played_blocks(),
    };
    drop(bus);
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("workers do not panic"));
    ran
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let kib = if mode == Mode::Measure { 3000 } else { 100 };
    let processors = cores::processors().len();
    let fits = |workers: usize| workers < processors;
    for (way, workers) in WAYS {
        if !fits(workers) {
            println!(
                "{way}: SKIPPED ({workers} workers want {} processors, there are {processors})",
                workers + 1
            );
        }
    }
    for name in NAMES {
        let alone = run_kernel(name, 0, kib);
        let ways: Vec<Way<'_>> = WAYS
            .into_iter()
            .filter(|(_, workers)| fits(*workers))
            .map(|(way, workers)| {
                let gpu_ns = alone.gpu_ns;
                let time: Box<dyn FnMut() -> f64> = Box::new(move || {
                    let ran = run_kernel(name, workers, kib);
                    assert_eq!(ran.gpu_ns, gpu_ns, "{name}: GPU time is the same");
                    ran.milliseconds
                });
                (way, time)
            })
            .collect();
        Table {
            title: name,
            unit: "ms",
            measure: Measure::Time,
            bases: &[ALONE],
            rounds: mode.rounds(ROUNDS),
        }
        .run(ways);
        println!(
            "  blocks that one worker ran: {}",
            run_kernel(name, 1, kib).played
        );
    }
}
