//! A card that does not end a flush or take a runlist is lost: nothing that it may still reach is given to anybody.

use fermi_spec::addr::Gpa;
use fermi_spec::regs::{Bar0Reg, PffbReg, PfifoReg};

use super::scene::{MIB, Scene, vm_config};
use super::{A, B};
use crate::config::GpuConfig;
use crate::event::{Action, Event, Refusal, Reply, Request};
use crate::reason::{CardOperation, Denial};

/// Two VMs with channels, and a register that answers no poll any more.
fn hung(reg: Bar0Reg) -> Scene {
    let mut scene = Scene::up();
    for vm in [A, B] {
        scene.attach(vm, 16);
        scene.bind(vm, 4);
        scene.run_channel(vm);
    }
    scene.held.insert(reg);
    scene.take();
    scene
}

/// Whether memory that the card may still reach goes to somebody.
fn gives(action: &Action) -> bool {
    matches!(
        action,
        Action::UnmapDma { .. }
            | Action::PlaceFrames { .. }
            | Action::MapDma { .. }
            | Action::Detached { .. }
            | Action::Reply { .. }
            | Action::DropImage { .. }
    )
}

fn lost_in(scene: &Scene) -> Option<CardOperation> {
    scene.actions.iter().find_map(|action| match action {
        Action::CardLost { operation } => Some(*operation),
        _ => None,
    })
}

/// The first wait for it is over and was in vain, then the second.
fn come_to_the_bound(scene: &mut Scene, reg: Bar0Reg) {
    scene.end_polls(reg, false);
    assert_eq!(lost_in(scene), None, "a host that stood still looks late");
    scene.end_polls(reg, false);
}

#[test]
fn flush_that_does_not_end_frees_nothing_and_loses_the_card() {
    let reg = Bar0Reg::from(PffbReg::MmuConfig);
    let mut scene = hung(reg);
    scene.ask(
        A,
        Request::UnmapRam {
            gpa: Gpa(0),
            bytes: 16 * MIB,
        },
    );
    come_to_the_bound(&mut scene, reg);
    assert_eq!(lost_in(&scene), Some(CardOperation::TlbFlush));
    assert_eq!(scene.actions.iter().find(|action| gives(action)), None);
}

#[test]
fn runlist_that_is_not_taken_keeps_the_channel_and_loses_the_card() {
    let reg = Bar0Reg::from(PfifoReg::RunlistStatus);
    let mut scene = hung(reg);
    scene.apply(Event::Detach { vm: A });
    come_to_the_bound(&mut scene, reg);
    assert_eq!(lost_in(&scene), Some(CardOperation::Runlist));
    assert_eq!(scene.actions.iter().find(|action| gives(action)), None);
}

#[test]
fn flush_that_ends_in_its_second_wait_goes_on() {
    let reg = Bar0Reg::from(PffbReg::MmuConfig);
    let mut scene = hung(reg);
    let id = scene.ask(
        A,
        Request::UnmapRam {
            gpa: Gpa(0),
            bytes: 16 * MIB,
        },
    );
    scene.end_polls(reg, false);
    scene.end_polls(reg, true);
    assert_eq!((lost_in(&scene), scene.reply(id)), (None, Some(&Reply::Done)));
}

#[test]
fn lost_card_refuses_everybody_and_stays_lost_in_a_saved_state() {
    let reg = Bar0Reg::from(PffbReg::MmuConfig);
    let mut scene = hung(reg);
    scene.apply(Event::Detach { vm: A });
    come_to_the_bound(&mut scene, reg);
    let text = scene.manager.save();
    let old = std::mem::replace(&mut scene.manager, super::Manager::new(GpuConfig::default()));
    scene.manager =
        super::Manager::load(GpuConfig::default(), &text, old.into_volatile()).expect("its own text");
    scene.take();
    let id = scene.ask(B, Request::Reset);
    assert_eq!(scene.reply(id), Some(&Reply::Refused(Refusal::NotAttached)));
    scene.apply(Event::Attach {
        vm: A,
        config: vm_config(16),
    });
    let reason = Denial::CardLost {
        operation: CardOperation::TlbFlush,
    };
    assert!(scene.actions.contains(&Action::Denied { vm: A, reason }));
}
