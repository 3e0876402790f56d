//! The broker's copies go to the copy engine on which no guest's transfer is.
//!
//! Times are the card's own. `--no-capture` prints the figures.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermi_spec::engine::Engine;
use integration::bench::{Bench, gpu_config, vm_config};
use integration::keeper::{guest, works};
use integration::rig::{self, DATA_VA, RAM_VA};
use vgpu::{Direction, Event, MoveStage, Notice, Quota, VmId};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// The VM whose memory moves.
const MOVES: VmId = VmId(0);
/// Times that memory goes and comes back.
const ROUNDS: u64 = 10;
/// Where a guest's transfers end in its RAM.
const TARGET_GPA: u64 = 8 << 20;

/// Transfers of 2 MiB each from VRAM to RAM, eight of them: some 3 ms.
fn transfers(engine: Engine) -> Vec<u32> {
    const LINE: u32 = 32 << 10;
    let copy = rig::copy_words(DATA_VA, RAM_VA + TARGET_GPA, LINE, (2 << 20) / LINE);
    [rig::bind_words(engine).to_vec(), copy.repeat(8)].concat()
}

fn set_max(bench: &mut Bench, max: u64, wanted: Direction) {
    let quota = Quota {
        max,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: MOVES, quota });
    let is_moved =
        |notice: &Notice| matches!(notice, Notice::Moved { direction, .. } if *direction == wanted);
    bench.turn_until("the move", |bench| bench.count_notices(is_moved) > 0);
}

/// How long the copies of one VM's moves of 2 MiB take, in order, beside VMs each of which has transfers on one of these engines all the time.
fn copies_beside(engines: &[Engine]) -> Vec<u64> {
    let mut bench = Bench::with(96, gpu_config(), &vec![vm_config(16); 1 + engines.len()]);
    bench.is_checked = false;
    bench.run(MOVES, guest);
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for (vm, &engine) in (1..).zip(engines) {
        let (task, _) = works(&mut bench, VmId(vm), 1, &stop, move |_| transfers(engine));
        tasks.push(task);
    }
    bench.pass(20 * MS);
    let before = bench.world.manager.audit().unwrap().vms[0].resident;
    let mut took = Vec::new();
    for round in 0..ROUNDS {
        for (max, wanted) in [
            (before - 2 * MIB, Direction::Spill),
            (u64::MAX, Direction::Refill),
        ] {
            bench.world.notices.clear();
            set_max(&mut bench, max, wanted);
            took.extend(bench.world.notices.iter().filter_map(|(_, notice)| match notice {
                Notice::MoveStage {
                    vm: MOVES,
                    stage: MoveStage::Copying,
                    took_ns,
                    ..
                } => Some(*took_ns),
                _ => None,
            }));
            // Not in step with the transfers.
            bench.pass(MS + round * MS / 7);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(bench.join(task) > 20, "the guest's transfers stand still");
    }
    bench.is_checked = true;
    bench.end();
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2] / 1_000, took[took.len() - 1] / 1_000);
    println!("beside transfers on {engines:?}: copies of 2 MiB take {median} µs, {longest} at most");
    took
}

#[test]
fn transfers_of_guests_on_one_engine_keep_no_move_waiting() {
    let alone = copies_beside(&[]);
    let longest = alone[alone.len() - 1];
    for engine in [Engine::Copy0, Engine::Copy1] {
        let beside = copies_beside(&[engine]);
        // The link is shared all the same.
        let late = beside.iter().filter(|&&ns| ns > 2 * longest + MS / 5).count();
        assert!(
            late <= beside.len() / 10,
            "behind {engine:?}, where {longest} ns are enough: {beside:?}"
        );
    }
    // With transfers on both there is no idle one, and a copy waits.
    let both = copies_beside(&[Engine::Copy0, Engine::Copy1]);
    assert!(both[both.len() / 2] > 2 * longest, "{both:?}");
}
