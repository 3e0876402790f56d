//! What a guest gets at each level of pressure: no mapping is refused, and no wait is without a bound.

use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::regs::{Bar0Reg, PfifoReg};

use super::quotas::show;
use super::scene::{MIB, MS, Scene};
use super::{A, B};
use crate::config::Quota;
use crate::event::{Action, Event, Reply};
use crate::notice::Notice;
use crate::reason::MoveCause;

fn refuses(action: &Action) -> bool {
    matches!(
        action,
        Action::Reply {
            reply: Reply::Refused(_),
            ..
        }
    )
}

#[test]
fn demand_that_fits_is_met_at_once_and_nothing_moves() {
    let mut scene = Scene::up();
    for vm in [A, B] {
        scene.attach(vm, 32);
        let request = scene.bind(vm, 20);
        assert_eq!(scene.reply(request), Some(&Reply::Done));
    }
    scene.pass(1000 * MS);
    assert_eq!((scene.resident(A), scene.resident(B)), (20 * MIB, 20 * MIB));
    let is_felt = |notice: &Notice| matches!(notice, Notice::MoveStarted { .. } | Notice::DemandWaits { .. });
    assert!(!scene.notices().any(is_felt));
}

#[test]
fn idle_memory_stays_until_another_vm_needs_it_and_goes_without_a_pause() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    scene.run_channel(A);
    show(&mut scene, A, 0..0, 20);
    scene.pass(1000 * MS);
    assert_eq!(scene.resident(A), 20 * MIB);
    scene.attach(B, 64);
    scene.take();
    let request = scene.bind(B, 40);
    scene.pass(20 * MS);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    assert_eq!((scene.resident(A), scene.resident(B)), (14 * MIB, 40 * MIB));
    let moved = scene.notices().filter_map(|notice| match notice {
        Notice::Moved { cause, pause_ns, .. } => Some((*cause, *pause_ns)),
        _ => None,
    });
    let moved: Vec<_> = moved.collect();
    let for_b = (MoveCause::Idle { taken_for: B }, None);
    assert!(
        !moved.is_empty() && moved.iter().all(|told| *told == for_b),
        "{moved:?}"
    );
}

/// Nothing can be taken from who has all VRAM: its channels do not go idle.
#[test]
fn every_mapping_is_answered_within_the_demand_budget_however_full_the_card_is() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    scene.attach(A, 64);
    scene.bind(A, 54);
    scene.run_channel(A);
    scene.attach(B, 64);
    let request = scene.bind(B, 60);
    assert_eq!(scene.reply(request), None);
    scene.pass(149 * MS);
    scene.pass(2 * MS);
    assert_eq!(scene.reply(request), Some(&Reply::Done));
    let audit = scene.manager.audit().unwrap();
    let b = audit.vms.iter().find(|of| of.vm == B).unwrap();
    assert_eq!((b.resident, b.spilled), (0, 60 * MIB));
    assert!(!scene.actions.iter().any(refuses));
}

#[test]
fn memory_that_starts_in_host_ram_is_asked_of_the_host_ahead() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    let request = scene.bind(A, 12);
    assert_eq!(scene.reply(request), Some(&Reply::Done), "nobody waits for it");
    let asked = scene.actions.iter().filter_map(|action| match action {
        Action::Reserve { vm, images } => Some((*vm, images)),
        _ => None,
    });
    assert!(asked.clone().all(|(vm, _)| vm == A));
    let parts: Vec<_> = asked.flat_map(|(_, images)| images).collect();
    // Eight are in VRAM.
    assert_eq!(parts.iter().map(|(_, bytes)| bytes).sum::<u64>(), 4 * MIB);
    let is_whole = |at: u64| at.is_multiple_of(SMALL_PAGE);
    assert!(parts.iter().all(|(at, bytes)| is_whole(at.0) && is_whole(*bytes)));
}
