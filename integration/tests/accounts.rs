//! The core tells why memory moved, how long each stage took, and who waited for whom; its accounts add up to that.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use integration::bench::{Bench, gpu_config, vm_config};
use integration::rig::Rig;
use vgpu::{Direction, Event, MoveCause, MoveId, MoveStage, Notice, Quota, VmId};

const VM: VmId = VmId(0);
const OTHER: VmId = VmId(1);
const MIB: u64 = 1 << 20;
const DATA_BYTES: u64 = 8 * MIB;

/// Two VMs of 24 MiB on a card of so many MiB. The first has a pattern in 8 MiB and one channel that may write it; the
/// other is promised 16 MiB, so that nothing of its own is taken for it.
fn painted(vram: u64) -> (Bench, Rig) {
    let mut other = vm_config(24);
    other.quota.min = 16 * MIB;
    let mut bench = Bench::with(vram, gpu_config(), &[vm_config(24), other]);
    bench.world.work_between_actions = 2;
    let rig = bench.run(VM, |bus| {
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 5, DATA_BYTES));
        rig
    });
    (bench, rig)
}

/// Stages of a move as they ended, and their times together.
fn stages(bench: &Bench, of: MoveId) -> (Vec<MoveStage>, u64) {
    let ended = bench.world.notices.iter().filter_map(|(_, notice)| match notice {
        Notice::MoveStage {
            id, stage, took_ns, ..
        } if *id == of => Some((*stage, *took_ns)),
        _ => None,
    });
    let (stages, times): (Vec<_>, Vec<u64>) = ended.unzip();
    (stages, times.into_iter().sum())
}

#[test]
fn each_stage_of_a_move_is_told_with_its_time() {
    let (mut bench, _rig) = painted(48);
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    bench.is_checked = false;
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    let resident = |bench: &Bench| bench.world.manager.audit().unwrap().vms[0].resident;
    bench.turn_until("the spill", |bench| resident(bench) == 0);
    let notices = &bench.world.notices;
    let moved: Vec<_> = notices
        .iter()
        .filter_map(|(at, notice)| match notice {
            Notice::Moved {
                id, cause, pause_ns, ..
            } => Some((*at, *id, *cause, *pause_ns)),
            _ => None,
        })
        .collect();
    assert!(moved.iter().any(|(.., pause)| pause.is_some()));
    for (at, id, cause, pause) in &moved {
        assert_eq!(*cause, MoveCause::AboveMax);
        let started = notices
            .iter()
            .find(|(_, told)| matches!(told, Notice::MoveStarted { id: of, .. } if of == id));
        let (told, took_ns) = stages(&bench, *id);
        assert_eq!(at.since(started.unwrap().0), took_ns, "{id:?}: {told:?}");
        assert_eq!(told.contains(&MoveStage::Suspending), pause.is_some());
        let mut rest = told.iter().filter(|stage| **stage != MoveStage::Suspending);
        assert!(rest.clone().is_sorted(), "{told:?}");
        assert_eq!(
            (rest.clone().next(), rest.next_back()),
            (Some(&MoveStage::Preparing), Some(&MoveStage::Resuming))
        );
    }
    let account = bench.world.manager.account(VM).unwrap();
    let pauses: Vec<u64> = moved.iter().filter_map(|(.., pause)| *pause).collect();
    assert_eq!(account.suspensions, pauses.len() as u64);
    assert_eq!(account.suspended_ns, pauses.iter().sum::<u64>());
    assert_eq!(account.suspended_since, None);
    // What the stage of the drain took is what is told of it, and no move was given up.
    assert_eq!(
        Some(&account.drained_ns),
        account.stages_ns.get(&MoveStage::Suspending)
    );
    assert_eq!(account.suspended_in_vain_ns, 0);
    assert_eq!(
        account.spilled_bytes,
        bench.world.manager.audit().unwrap().vms[0].spilled
    );
    assert!(account.link_bytes > 0 && account.link_bytes <= account.spilled_bytes);
    let told_ns: u64 = moved.iter().map(|(_, id, ..)| stages(&bench, *id).1).sum();
    assert_eq!(account.stages_ns.values().sum::<u64>(), told_ns);
}

#[test]
fn who_waits_for_memory_is_told_for_whom_and_how_long() {
    let (mut bench, _rig) = painted(28);
    bench.run(OTHER, |bus| {
        let mut rig = Rig::start(bus, 14 * MIB);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 6, 14 * MIB));
    });
    let mut waits = Vec::new();
    for (at, notice) in &bench.world.notices {
        match notice {
            Notice::DemandWaits { vm, .. } => waits.push((*vm, *at, None)),
            Notice::DemandEnded {
                vm,
                waited_ns,
                waited_for,
                ..
            } => {
                let begun = waits.iter_mut().rfind(|(of, ..)| of == vm).unwrap();
                assert_eq!(begun.2, None, "it ends once");
                assert_eq!(at.since(begun.1), *waited_ns);
                begun.2 = Some((*waited_ns, waited_for.clone()));
            }
            _ => {}
        }
    }
    let ended = |(vm, _, end): &(VmId, vgpu::Tick, Option<(u64, Vec<VmId>)>)| {
        end.clone()
            .map(|(waited_ns, waited_for)| (*vm, waited_ns, waited_for))
    };
    let ended: Vec<_> = waits.iter().filter_map(ended).collect();
    assert_eq!(ended.len(), waits.len(), "all are met");
    assert!(
        ended
            .iter()
            .any(|(vm, _, waited_for)| *vm == OTHER && waited_for.contains(&VM))
    );
    let account = bench.world.manager.account(OTHER).unwrap();
    let of_other = || ended.iter().filter(|(vm, ..)| *vm == OTHER);
    assert_eq!(account.demands, of_other().count() as u64);
    assert_eq!(
        account.demand_wait_ns,
        of_other().map(|(_, waited_ns, _)| waited_ns).sum::<u64>()
    );
    // The notices' sum and the account's, of bytes that the first VM gave up for the other.
    let given: u64 = bench
        .world
        .notices
        .iter()
        .filter_map(|(_, notice)| match notice {
            Notice::Moved {
                vm: VM,
                direction: Direction::Spill,
                cause,
                bytes,
                ..
            } if cause.beneficiary() == Some(OTHER) => Some(*bytes),
            _ => None,
        })
        .sum();
    let account = bench.world.manager.account(VM).unwrap();
    assert!(given > 0);
    assert_eq!(account.spilled_for.get(&OTHER), Some(&given));
    bench.detach(OTHER);
    let account = bench.world.manager.account(VM).unwrap();
    assert!(
        account.spilled_for_gone >= given,
        "its number may be another's now"
    );
    assert!(bench.world.manager.account(OTHER).is_none());
}
