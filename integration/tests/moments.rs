//! A VM that shares an engine is stopped for a move while another one's work is there: it has nothing to end then.
//!
//! Times are the card's own. `--no-capture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::bench::Bench;
use integration::keeper::{KEEPS, LIMIT_NS, WAITS, bench, computes};
use integration::keeper::{
    endless_grid_is_stopped, move_does_not_wait_for_an_endless_grid, suspended_vm_does_not_run,
};
use vgpu::{Direction, Event, MoveStage, Notice, Quota, VmId};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Steps of each grid: some 700 µs.
const STEPS: u32 = 20_000;
/// Times that memory goes and comes back.
const ROUNDS: usize = 20;
/// A preempt of a channel without work, and the look that comes before it.
const NOTHING_NS: u64 = MS / 10;

fn resident(bench: &Bench) -> u64 {
    bench.world.manager.audit().unwrap().vms[0].resident
}

fn set_max(bench: &mut Bench, max: u64, wanted: Direction) {
    let quota = Quota {
        max,
        ..Quota::default()
    };
    bench.world.notices.clear();
    bench.world.submit(Event::SetQuota { vm: WAITS, quota });
    bench.turn_until("the move", |bench| {
        bench
            .count_notices(|notice| matches!(notice, Notice::Moved { direction, .. } if *direction == wanted))
            > 0
    });
}

/// Drains of a VM's moves beside others that compute, and how long was waited for moments; nanoseconds.
fn drains_beside(others: &[VmId]) -> (Vec<u64>, u64) {
    let mut bench = bench(10 * LIMIT_NS);
    bench.is_checked = false;
    let stop = Arc::new(AtomicBool::new(false));
    let all = [&[WAITS], others].concat();
    let tasks: Vec<_> = all
        .iter()
        .map(|vm| computes(&mut bench, *vm, STEPS, &stop))
        .collect();
    bench.pass(20 * MS);
    let before = resident(&bench);
    let (mut drains, mut awaited) = (Vec::new(), 0);
    for round in 0..2 * ROUNDS {
        match round % 2 {
            0 => set_max(&mut bench, before - 4 * MIB, Direction::Spill),
            _ => set_max(&mut bench, u64::MAX, Direction::Refill),
        }
        for (_, notice) in &bench.world.notices {
            match notice {
                Notice::Resumed { drained_ns, .. } => drains.push(*drained_ns),
                Notice::MoveStage {
                    stage: MoveStage::Awaiting,
                    took_ns,
                    ..
                } => awaited += took_ns,
                _ => {}
            }
        }
        // Not in step with the grids.
        bench.pass(MS + round as u64 * MS / 7);
    }
    stop.store(true, Ordering::Relaxed);
    let grids: Vec<u64> = tasks.into_iter().map(|task| bench.join(task)).collect();
    assert!(grids.iter().all(|&grids| grids > 20), "{grids:?}");
    bench.is_checked = true;
    bench.end();
    drains.sort_unstable();
    (drains, awaited)
}

fn print(name: &str, drains: &[u64], awaited: u64) {
    println!(
        "{name}: {} pauses, drain median {} µs, longest {} µs, all together {} µs; waited for {} µs",
        drains.len(),
        drains[drains.len() / 2] / 1_000,
        drains[drains.len() - 1] / 1_000,
        drains.iter().sum::<u64>() / 1_000,
        awaited / 1_000,
    );
}

#[test]
fn vm_that_takes_turns_on_an_engine_has_nothing_to_end_when_it_is_stopped() {
    let (drains, awaited) = drains_beside(&[KEEPS]);
    print("two VMs", &drains, awaited);
    assert!(drains.len() > ROUNDS, "its memory moved without a stop");
    // One that comes back onto the engine between the look and the stop, such as behind its time off, ends its grid.
    let late = drains.iter().filter(|&&ns| ns >= NOTHING_NS).count();
    assert!(late <= drains.len() / 20, "{drains:?}");
    assert!(
        awaited > 2 * MS,
        "it was never at work when its memory was to move"
    );
}

#[test]
fn vm_that_has_the_engine_for_itself_is_not_waited_for_long() {
    let (drains, awaited) = drains_beside(&[]);
    print("one VM", &drains, awaited);
    let each = awaited / drains.len() as u64;
    assert!(each < 2 * MS, "{each} ns for each of its moves");
}

#[test]
fn endless_grid_keeps_no_move_waiting() {
    move_does_not_wait_for_an_endless_grid().unwrap();
    endless_grid_is_stopped().unwrap();
}

#[test]
fn vm_that_an_operator_suspends_runs_nothing_until_it_is_resumed() {
    suspended_vm_does_not_run().unwrap();
}
