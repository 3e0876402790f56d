//! For how long VMs' work was on the engines, as the broker's samples tell, beside what their grids took by another account: how many
//! they were, and how long one is. Times are the card's own. `--no-capture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::keeper::{KEEPS, LIMIT_NS, WAITS, bench, computes};
use vgpu::{Event, Quota, VmId};

const MS: u64 = 1_000_000;
/// Steps of the grids of the one and of the other.
const LONG: u32 = 40_000;
const SHORT: u32 = 10_000;
/// Time for which VMs compute. A period has one sample.
const PERIODS: u64 = 40;
const RUN_NS: u64 = PERIODS * 50 * MS;

/// What samples tell of the two VMs, and how many grids each ran, while `runs` compute.
fn run(runs: &[(VmId, u32)]) -> ([u64; 2], Vec<u64>, u64) {
    let mut bench = bench(10 * LIMIT_NS);
    bench.is_checked = false;
    let stop = Arc::new(AtomicBool::new(false));
    // So that one has more of it than the other.
    let quota = Quota {
        weight: 300,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: WAITS, quota });
    let start = bench.world.now.0;
    let tasks: Vec<_> = runs
        .iter()
        .map(|(vm, steps)| computes(&mut bench, *vm, *steps, &stop))
        .collect();
    bench.pass(RUN_NS);
    stop.store(true, Ordering::Relaxed);
    let grids = tasks.into_iter().map(|task| bench.join(task)).collect();
    let sampled = [WAITS, KEEPS].map(|vm| bench.world.manager.account(vm).unwrap().graph_ns);
    let took = bench.world.now.0 - start;
    bench.is_checked = true;
    bench.end();
    (sampled, grids, took)
}

#[test]
fn samples_tell_how_long_each_vm_has_an_engine() {
    // Alone, a VM has the engine all the time but for its submissions: so long is one grid.
    let mut long = [0; 2];
    for (of, steps) in long.iter_mut().zip([LONG, SHORT]) {
        let (sampled, grids, took) = run(&[(WAITS, steps)]);
        println!("alone: {sampled:?} ns of {took}, {grids:?} grids");
        assert_eq!(sampled[1], 0, "a VM that has no channel");
        assert!(
            sampled[0] > took * 8 / 10 && sampled[0] <= took + 50 * MS,
            "{sampled:?} of {took}"
        );
        *of = took / grids[0];
    }
    let (sampled, grids, took) = run(&[(WAITS, LONG), (KEEPS, SHORT)]);
    let counted = [grids[0] * long[0], grids[1] * long[1]];
    println!("together: sampled {sampled:?}, counted {counted:?} of {took}");
    assert!(
        counted[0] > 2 * counted[1],
        "{counted:?}: their weights are 3 to 1"
    );
    for (sampled, counted) in sampled.into_iter().zip(counted) {
        // Of 40 samples a share of a fifth has a third of it as its deviation.
        let off = sampled.abs_diff(counted);
        assert!(
            off < took * 15 / 100,
            "sampled {sampled}, counted {counted} of {took}"
        );
    }
}
