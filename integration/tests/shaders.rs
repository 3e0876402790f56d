//! Random shader programs on the software card against an evaluator that shares no code with it.
//!
//! `SHADER_SEEDS=1000..2000 cargo test -p integration --test shaders` runs other seeds than CI does.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::ops::Range;

use integration::shaders::differential::{compare, listing, minimize};
use integration::shaders::generator::generate;
use integration::shaders::runner::Runner;

/// Seeds of a run in CI.
const SEEDS: Range<u64> = 0..400;

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("SHADER_SEEDS") else {
        return SEEDS;
    };
    let (first, end) = text.split_once("..").expect("SHADER_SEEDS is FIRST..END");
    first.parse().unwrap()..end.parse().unwrap()
}

/// Programs that are shown when several fail.
const SHOWN_MAX: usize = 6;

#[test]
fn random_programs_leave_what_the_evaluator_leaves() {
    let mut runner = Runner::default();
    let mut failed = Vec::new();
    for seed in seeds() {
        let program = generate(seed);
        let Err(difference) = compare(&mut runner, &program) else {
            continue;
        };
        failed.push(seed);
        println!("seed {seed}: {difference}");
        let smaller = minimize(&mut runner, &program);
        if let Err(difference) = compare(&mut runner, &smaller) {
            println!("smaller: {difference}\n{}", listing(&smaller));
        }
        if failed.len() >= SHOWN_MAX {
            break;
        }
    }
    assert!(failed.is_empty(), "seeds {failed:?} differ");
}

/// Threads of a launch that the programs' memory has room for.
const THREADS_MAX: u32 = 512;

/// As many blocks as there is memory for, so that most come behind the one that the card's thread begins with.
#[test]
fn random_programs_with_workers_leave_what_the_evaluator_leaves_in_the_time_without() {
    let (mut runner, mut alone) = (Runner::default(), Runner::default());
    let threads = runner.set_workers(2).into_iter();
    let threads: Vec<_> = threads
        .map(|worker| std::thread::spawn(|| worker.run()))
        .collect();
    for seed in seeds() {
        let mut program = generate(seed);
        let block: u32 = program.launch.block.iter().product();
        program.launch.grid = [(THREADS_MAX / block).max(1), 1, 1];
        for runner in [&mut runner, &mut alone] {
            if let Err(difference) = compare(runner, &program) {
                panic!("seed {seed}: {difference}\n{}", listing(&program));
            }
        }
        let (time, other) = (runner.time_and_played().0, alone.time_and_played().0);
        assert_eq!(
            (time, runner.counters()),
            (other, alone.counters()),
            "seed {seed}"
        );
    }
    let (_, played) = runner.time_and_played();
    drop(runner);
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("workers do not panic"));
    assert!(played > 100, "workers ran {played} blocks");
}
