//! A VM that makes errors as fast as it can costs its neighbour neither GPU time nor time of the broker. Times are the card's own; `--no-capture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fermi_spec::methods::m2mf;
use fermi_spec::pushbuffer::incrementing;
use integration::bench::{Bench, gpu_config, vm_config};
use integration::keeper::{KEEPS, LIMIT_NS, WAITS, computes};
use integration::rig::{self, DIRECTORY, Rig};
use vgpu::inspect::Value;
use vgpu::{GpuConfig, Notice, VmId};

/// The attacker's channels.
const CHANNELS: u8 = 32;
/// Errors of one submission: each method is for a subchannel that has no object, which a card survives.
const ERRORS: usize = 1024;
const EMPTY_SUBCHANNEL: u8 = 6;
/// Steps of the neighbour's grids: some 350 µs each.
const STEPS: u32 = 10_000;
/// Steps of those beside it that are no attack.
const STEPS_BESIDE: u32 = 100;
const RUN_NS: u64 = 500_000_000;
/// Errors that are offered in a second, at least.
const OFFERED_MIN: u64 = 100_000;

/// What the other VM does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    Nothing,
    /// Short grids, one after the other, as an honest guest has them.
    Work,
    Errors,
}

/// What the neighbour did and what it cost, and the errors beside it.
#[derive(Debug)]
struct Seen {
    grids: u64,
    /// Units of the broker's work that were charged to it.
    work: u64,
    /// Errors that the attacker's rings held.
    offered: u64,
    /// Those that its guest was told of.
    told: u64,
}

/// A number of a VM's account of the broker's time.
fn work(bench: &Bench, vm: VmId) -> u64 {
    let path = format!("vms/{vm}/share/work");
    let tree = bench.world.manager.inspect(bench.world.now, &path).unwrap();
    let Some(Value::Quantity(work, _)) = tree.value_at(&path) else {
        panic!("no quantity at {path}")
    };
    *work
}

/// Fills rings with errors and acknowledges all that it is told, until it is told to stop.
fn make_errors(bench: &mut Bench, stop: &Arc<AtomicBool>) -> (integration::bench::Task<()>, Arc<AtomicU64>) {
    let offered = Arc::new(AtomicU64::new(0));
    let (stop, count) = (Arc::clone(stop), Arc::clone(&offered));
    let words = [incrementing(EMPTY_SUBCHANNEL, m2mf::NOP, 1), 0].repeat(ERRORS);
    let task = bench.start(KEEPS, move |bus| {
        let mut rig = Rig::start(bus, 4 << 20);
        let all: Vec<u8> = (0..CHANNELS).collect();
        for &channel in &all {
            rig.write_instance(bus, channel, DIRECTORY);
            rig.bind(bus, channel);
        }
        rig.commit(bus, &all);
        while !stop.load(Ordering::Relaxed) {
            for &channel in &all {
                rig.submit(bus, channel, &words);
                count.fetch_add(ERRORS as u64, Ordering::Relaxed);
                rig::acknowledge(bus);
            }
        }
    });
    (task, offered)
}

fn run(beside: Beside) -> Seen {
    let config = GpuConfig {
        watchdog_ns: LIMIT_NS,
        ..gpu_config()
    };
    let mut attacker = vm_config(16);
    attacker.channels = CHANNELS.into();
    let mut bench = Bench::with(64, config, &[vm_config(16), attacker]);
    bench.is_checked = false;
    let stop = Arc::new(AtomicBool::new(false));
    let attack = (beside == Beside::Errors).then(|| make_errors(&mut bench, &stop));
    let work_beside = (beside == Beside::Work).then(|| computes(&mut bench, KEEPS, STEPS_BESIDE, &stop));
    let neighbour = computes(&mut bench, WAITS, STEPS, &stop);
    let before = work(&bench, WAITS);
    bench.pass(RUN_NS);
    let offered = attack
        .as_ref()
        .map_or(0, |(_, offered)| offered.load(Ordering::Relaxed));
    stop.store(true, Ordering::Relaxed);
    let grids = bench.join(neighbour);
    let after = work(&bench, WAITS);
    if let Some((task, _)) = attack {
        bench.join(task);
    }
    if let Some(task) = work_beside {
        bench.join(task);
    }
    let of = |vm: VmId| {
        bench.count_notices(|notice| matches!(notice, Notice::ChannelError { vm: whose, .. } if *whose == vm))
            as u64
    };
    assert_eq!(of(WAITS), 0, "the neighbour made no error");
    let seen = Seen {
        grids,
        work: after - before,
        offered,
        told: of(KEEPS),
    };
    bench.is_checked = true;
    bench.end();
    seen
}

#[test]
fn neighbour_of_a_vm_that_makes_errors_has_its_time_and_pays_for_none_of_them() {
    let [alone, beside_work, beside] = [Beside::Nothing, Beside::Work, Beside::Errors].map(run);
    println!("alone: {alone:?}\nbeside work: {beside_work:?}\nbeside errors: {beside:?}");
    let second = |count: u64| count * 1_000_000_000 / RUN_NS;
    assert!(
        second(beside.offered) >= OFFERED_MIN,
        "too few errors were offered: {beside:?}"
    );
    assert!(beside.told > 0, "{beside:?}");
    assert!(
        beside.grids * 100 >= alone.grids * 95,
        "more than 5 % of its GPU time went to errors: {alone:?}, {beside:?}"
    );
    // While two VMs have work, the broker looks who is on an engine, whatever they do.
    let per_grid = |seen: &Seen| seen.work as f64 / seen.grids as f64;
    assert!(
        per_grid(&beside) <= 1.05 * per_grid(&beside_work),
        "it pays for the other's errors: {beside_work:?}, {beside:?}"
    );
}

#[test]
fn nobody_is_stopped_for_an_error_of_the_last_owner_of_its_number() {
    integration::heir::nobody_answers_for_the_last_owner_of_a_number()
        .unwrap_or_else(|violation| panic!("{}", violation.0));
}
