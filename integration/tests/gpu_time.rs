//! What VMs get of the engines, by weight, whatever the length of their grids and copies. What a VM got is counted by its own work: another
//! account than the broker's. Times are the card's. `--no-capture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermi_model::Timing;
use fermi_spec::board::Board;
use integration::contenders::{
    BEFORE_NS, Piece, Works, bench, engine_is_shared_by_weight, parts, pieces, weigh,
};
use integration::keeper::works;
use vgpu::VmId;

/// Time that is looked at.
const RUN_NS: u64 = 1_500_000_000;

/// Steps that all did in the run, of those that one alone does in the time.
fn busy(vms: &[Works], grids: &[u64]) -> f64 {
    let alone = [Works {
        weight: EQUAL,
        channels: 1,
        ..vms[0]
    }];
    let alone = pieces(&alone, RUN_NS, 1, |_, _| ())[0][0] * vms[0].piece.units();
    let all: u64 = vms
        .iter()
        .zip(grids)
        .map(|(vm, grids)| vm.piece.units() * grids)
        .sum();
    all as f64 / alone as f64
}

fn check(vms: &[Works], expected: &[u64]) {
    let grids = &pieces(vms, RUN_NS, 1, |_, _| ())[0];
    let (parts, busy) = (parts(vms, grids), busy(vms, grids));
    println!("{grids:?} grids, parts {parts:?}, expected {expected:?}; {busy:.3} of what one alone does");
    for (part, expected) in parts.iter().zip(expected) {
        assert!(part.abs_diff(*expected) <= 50, "{parts:?}, expected {expected:?}");
    }
    assert!(busy > 0.9, "{busy:.3}: the card stands while VMs wait");
}

const EQUAL: u32 = 100;

fn computes_by(steps: u32, weight: u32) -> Works {
    let (piece, channels) = (Piece::Grid(steps), 1);
    Works {
        piece,
        channels,
        weight,
    }
}

#[test]
fn grids_twenty_times_as_long_bring_no_more_time() {
    check(
        &[computes_by(400_000, EQUAL), computes_by(20_000, EQUAL)],
        &[500, 500],
    );
}

#[test]
fn weights_divide_the_time_of_equal_grids() {
    check(&[computes_by(20_000, 100), computes_by(20_000, 300)], &[250, 750]);
}

#[test]
fn weights_divide_it_whatever_the_grids() {
    check(
        &[
            computes_by(200_000, 100),
            computes_by(20_000, 300),
            computes_by(60_000, 200),
        ],
        &[167, 500, 333],
    );
}

#[test]
fn weights_that_change_hold_from_then_on() {
    let vms = [computes_by(60_000, 100), computes_by(20_000, 100)];
    let all = pieces(&vms, RUN_NS, 2, |part, bench| {
        if part == 1 {
            weigh(bench, VmId(0), 400);
        }
    });
    let [first, then] = [&all[0], &all[1]].map(|grids| parts(&vms, grids));
    println!("{first:?}, then {then:?}");
    assert!(
        first[0].abs_diff(500) <= 50 && then[0].abs_diff(800) <= 50,
        "{first:?}, then {then:?}"
    );
}

#[test]
fn copies_are_shared_like_grids() {
    let copies = |count, weight| Works {
        piece: Piece::Copy(count),
        channels: 1,
        weight,
    };
    check(&[copies(160, 100), copies(8, 100)], &[500, 500]);
    check(&[copies(80, 100), copies(8, 300)], &[250, 750]);
}

#[test]
fn more_channels_bring_no_more_time() {
    let many = Works {
        channels: 4,
        ..computes_by(60_000, EQUAL)
    };
    check(&[many, computes_by(30_000, EQUAL)], &[500, 500]);
}

/// A VM whose grids are over at once waits for each of them, and rests before the next. It needs next to nothing of the engine, whatever its weight.
#[test]
fn grids_of_no_length_keep_nobody_from_the_engine() {
    let one = computes_by(100_000, EQUAL);
    let alone = pieces(&[one], RUN_NS, 1, |_, _| ())[0][0];
    for (steps, weight) in [(50, EQUAL), (50, 10_000), (1_000, EQUAL)] {
        let grids = &pieces(&[one, computes_by(steps, weight)], RUN_NS, 1, |_, _| ())[0];
        println!("{alone} grids alone, {grids:?} beside grids of {steps} steps, weight {weight}");
        // What the other one used: its grids, and for each the engine's way to it and back.
        let worked = grids[1] * u64::from(steps) * 1000 / (alone * 100_000);
        let switched = grids[1] * 2 * Timing::of(Board::Gtx480).graph_switch_ns * 1000 / RUN_NS;
        // At most 7 in 100 of what is left are lost.
        assert!(
            grids[0] * 1000 >= alone * (1000 - worked - switched) * 93 / 100,
            "{grids:?} of {alone}"
        );
    }
}

/// Beside a VM that has a channel, and rests behind its first work.
#[test]
fn vm_alone_is_never_held_back() {
    let vms = [computes_by(60_000, 1), computes_by(20_000, 10_000)];
    let [alone, beside] = [1, 2].map(|present| {
        let mut bench = bench(present);
        let stop = Arc::new(AtomicBool::new(false));
        let rests = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        let mut first = None;
        for (vm, of) in (0..).zip(&vms[..present]) {
            weigh(&mut bench, VmId(vm), of.weight);
            let piece = of.piece;
            let stop = if vm == 0 { &stop } else { &rests };
            let (task, count) = works(&mut bench, VmId(vm), 1, stop, move |bus| piece.words(bus));
            tasks.push(task);
            first.get_or_insert(count);
        }
        bench.pass(BEFORE_NS);
        rests.store(true, Ordering::Relaxed);
        bench.pass(BEFORE_NS);
        let count = first.unwrap();
        let before = count.load(Ordering::Relaxed);
        bench.pass(RUN_NS);
        let done = count.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        for task in tasks {
            bench.join(task);
        }
        bench.end();
        done
    });
    println!("{alone} grids alone, {beside} beside a VM that rests");
    assert!(beside * 100 >= alone * 98, "{beside} of {alone}");
}

#[test]
fn scene_for_planted_faults_finds_nothing() {
    engine_is_shared_by_weight().unwrap();
}
