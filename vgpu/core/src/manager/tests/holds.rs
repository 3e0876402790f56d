//! What an operator holds back from a VM for now.

use fermi_spec::regs::pfifo;
use fermi_spec::regs::{Bar0Reg, PfifoReg};

use super::scene::{MIB, MS, Scene, is_store, rings};
use super::{A, B, FIRST_CHANNEL, STOPPED, rolled_back};
use crate::config::{Hold, Quota};
use crate::event::{Action, Event, VmId};
use crate::notice::Notice;
use crate::reason::RollBack;

const FROZEN: Hold = Hold {
    vram: Some(0),
    is_suspended: false,
};
const SUSPENDED: Hold = Hold {
    vram: None,
    is_suspended: true,
};
const FREE: Hold = Hold {
    vram: None,
    is_suspended: false,
};

fn hold(scene: &mut Scene, vm: VmId, hold: Hold) {
    scene.take();
    scene.apply(Event::SetHold { vm, hold });
}

fn starts(action: &Action, value: u32) -> bool {
    is_store(
        action,
        Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL)),
        value,
    )
}

fn is_rung(scene: &Scene) -> bool {
    scene
        .actions
        .iter()
        .any(|action| rings(action, u64::from(FIRST_CHANNEL)))
}

#[test]
fn frozen_vm_has_nothing_in_vram_and_is_as_before_when_thawed() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    assert_eq!(scene.resident(A), 20 * MIB);
    hold(&mut scene, A, FROZEN);
    scene.pass(200 * MS);
    assert_eq!(scene.resident(A), 0);
    // VRAM is free, and none of it comes back by itself.
    scene.pass(2000 * MS);
    assert_eq!(scene.resident(A), 0);
    hold(&mut scene, A, FREE);
    scene.pass(2000 * MS);
    assert_eq!(scene.resident(A), 20 * MIB);
}

#[test]
fn memory_that_a_frozen_vm_asks_for_is_host_ram_at_once() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    hold(&mut scene, A, FROZEN);
    let request = scene.bind(A, 8);
    assert!(scene.reply(request).is_some(), "its access waits");
    let in_host_ram = |notice: &Notice| matches!(notice, Notice::Backed { resident: false, .. });
    assert!(scene.notices().any(in_host_ram));
    scene.pass(200 * MS);
    assert_eq!(scene.resident(A), 0);
}

#[test]
fn what_a_frozen_vm_is_promised_is_lent_and_not_given_away() {
    let mut scene = Scene::up();
    scene.attach(A, 48);
    let quota = Quota {
        min: 30 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.bind(A, 30);
    hold(&mut scene, A, FROZEN);
    scene.pass(200 * MS);
    scene.attach(B, 64);
    scene.bind(B, 54);
    scene.pass(200 * MS);
    assert_eq!((scene.resident(A), scene.resident(B)), (0, 54 * MIB));
    // 54 are usable: B cannot have 30 of them for good.
    scene.take();
    scene.apply(Event::SetQuota { vm: B, quota });
    let is_refused = |action: &Action| matches!(action, Action::QuotaRefused { vm: B, .. });
    assert!(scene.actions.iter().any(is_refused));
    hold(&mut scene, A, FREE);
    scene.pass(2000 * MS);
    assert_eq!((scene.resident(A), scene.resident(B)), (30 * MIB, 24 * MIB));
}

#[test]
fn vm_that_was_spilled_stays_below_whatever_is_free() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    let some = Hold {
        vram: Some(12 * MIB),
        ..FREE
    };
    hold(&mut scene, A, some);
    scene.pass(2000 * MS);
    assert_eq!(scene.resident(A), 12 * MIB);
}

#[test]
fn suspended_channel_is_off_the_runlist_and_rings_when_it_is_let_go() {
    let mut scene = Scene::up();
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.run_channel(A);
    hold(&mut scene, A, SUSPENDED);
    assert!(scene.actions.iter().any(|action| starts(action, STOPPED)));
    scene.take();
    scene.doorbell(A, 5);
    scene.run_channel(A);
    scene.pass(200 * MS);
    assert!(!is_rung(&scene));
    assert!(
        !scene
            .actions
            .iter()
            .any(|action| starts(action, pfifo::CHANNEL_START))
    );
    hold(&mut scene, A, FREE);
    scene.pass(MS);
    let started = scene.first("start", |action| starts(action, pfifo::CHANNEL_START));
    let rung = scene.first("doorbell", |action| rings(action, u64::from(FIRST_CHANNEL)));
    assert!(started < rung);
}

/// The move that stopped the channel ends, and does not start what an operator holds.
#[test]
fn channel_suspended_in_the_middle_of_a_move_stays_off_the_card_behind_it() {
    let mut scene = Scene::up();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let (mut scene, _) = scene.contended();
    scene.doorbell(A, 5);
    assert!(scene.is_moving());
    hold(&mut scene, A, SUSPENDED);
    super::moments::works(&mut scene, FIRST_CHANNEL);
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), false);
    scene.pass(70 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle));
    assert!(!is_rung(&scene));
    assert!(
        !scene
            .actions
            .iter()
            .any(|action| starts(action, pfifo::CHANNEL_START))
    );
    hold(&mut scene, A, FREE);
    assert!(
        scene
            .actions
            .iter()
            .any(|action| starts(action, pfifo::CHANNEL_START))
    );
    assert!(is_rung(&scene));
}

#[test]
fn hold_of_nobody_is_nothing() {
    let mut scene = Scene::up();
    hold(&mut scene, B, FROZEN);
    scene.attach(B, 16);
    scene.bind(B, 4);
    assert_eq!(scene.resident(B), 4 * MIB);
}
