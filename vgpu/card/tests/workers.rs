//! Every kernel on a card with workers: the same results in the same GPU time as without.

mod small_card;

use fermi_model::Counters;
use guests::{Machine, Options, Summary, run, scratch_words};
use kernels::NAMES;
use small_card::{MIB, small_card};

const WORKERS: usize = 2;

/// Results, what the card counted, its time, and how many blocks workers ran.
fn run_kernel(name: &str, workers: usize) -> (Summary, Counters, u64, u64) {
    let mut bus = small_card();
    let threads = bus.card.model.set_workers(workers);
    let threads: Vec<_> = threads
        .into_iter()
        .map(|worker| std::thread::spawn(|| worker.run()))
        .collect();
    let line = format!("vramd.workload={name} vramd.footprint_kib=700 vramd.rounds=2");
    let options = Options::parse(&line).expect("a command line of ours");
    let words = scratch_words(options.workload, options.footprint.unwrap_or(MIB));
    let machine = Machine {
        dma: MIB..8 * MIB,
        scratch: &mut vec![0; words],
        inputs: &[],
        options,
    };
    let summary = run(&mut bus, machine).expect("it runs");
    let model = &bus.card.model;
    let ran = (
        summary,
        *model.counters(),
        model.gpu_time(),
        model.played_blocks(),
    );
    drop(bus);
    for thread in threads {
        thread.join().expect("workers do not panic");
    }
    ran
}

#[test]
fn every_kernel_is_the_same_with_workers() {
    let mut all = 0;
    for name in NAMES {
        let (summary, counters, time, none) = run_kernel(name, 0);
        let (other_summary, other_counters, other_time, played) = run_kernel(name, WORKERS);
        assert!(summary.is_ok(), "{name}");
        assert_eq!(format!("{summary:?}"), format!("{other_summary:?}"), "{name}");
        assert_eq!((counters, time), (other_counters, other_time), "{name}");
        assert_eq!(none, 0);
        all += played;
    }
    assert!(all > 100, "workers ran {all} blocks");
}
