//! A VM is stopped when none of its channels that can write the chunks is at work; it is not waited for without end.

use fermi_spec::engine::Engine;
use fermi_spec::regs::pfifo::{self, EngineStatus};
use fermi_spec::regs::{Bar0Reg, PfifoReg};

use super::scene::{MIB, MS, Scene, frees, is_store, rings};
use super::{A, FIRST_CHANNEL, moved, rolled_back};
use crate::config::{GpuConfig, Quota};
use crate::event::{Action, Event, Request};
use crate::notice::{MoveStage, Notice};
use crate::reason::RollBack;

fn graph() -> Bar0Reg {
    PfifoReg::EngineStatus(Engine::Graph.number().into()).into()
}

/// From now on the channel of the card is at work on PGRAPH.
pub(super) fn works(scene: &mut Scene, channel: u16) {
    let status = EngineStatus::new().with_channel(channel as u8).with_busy(true);
    scene.registers.insert(graph(), status.into_bits());
}

/// From now on nobody is, though the last one's context is still there.
pub(super) fn rests(scene: &mut Scene) {
    let status = EngineStatus::new().with_channel(FIRST_CHANNEL as u8);
    scene.registers.insert(graph(), status.into_bits());
}

pub(super) fn stops(action: &Action) -> bool {
    let state = Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL));
    is_store(action, state, pfifo::CHANNEL_START & !1)
}

/// A holds 20 MiB that its channel can write, one chunk goes in a move.
fn up() -> Scene {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        batch_bytes: 2 * MIB,
        ..GpuConfig::default()
    });
    scene.attach(A, 32);
    scene.bind(A, 20);
    scene.run_channel(A);
    scene.take();
    scene
}

fn set_max(scene: &mut Scene, max: u64) {
    let quota = Quota {
        max,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
}

fn stage(scene: &Scene, of: MoveStage) -> Option<u64> {
    scene.notices().find_map(|notice| match notice {
        Notice::MoveStage { stage, took_ns, .. } if *stage == of => Some(*took_ns),
        _ => None,
    })
}

fn predicted(scene: &Scene) -> u64 {
    let predicted = scene.notices().find_map(|notice| match notice {
        Notice::Suspended { predicted_ns, .. } => Some(*predicted_ns),
        _ => None,
    });
    predicted.expect("it was stopped")
}

#[test]
fn vm_at_work_goes_on_until_its_work_is_over() {
    let mut scene = up();
    works(&mut scene, FIRST_CHANNEL);
    set_max(&mut scene, 18 * MIB);
    scene.pass(2 * MS);
    assert!(scene.is_moving() && !scene.actions.iter().any(stops));
    // What it submits runs.
    scene.doorbell(A, 5);
    scene.first("doorbell", |action| rings(action, u64::from(FIRST_CHANNEL)));
    rests(&mut scene);
    scene.pass(MS / 5);
    scene.first("stop", stops);
    scene.pass(3 * MS);
    assert!(scene.notices().any(moved));
    let waited = stage(&scene, MoveStage::Awaiting).expect("it was waited for");
    assert!((2 * MS..2 * MS + MS / 5).contains(&waited), "{waited}");
    assert!(
        predicted(&scene) < MS,
        "nothing has to end, {} ns were said",
        predicted(&scene)
    );
}

#[test]
fn vm_that_is_not_at_work_is_stopped_at_once() {
    for who in [None, Some(FIRST_CHANNEL + 1), Some(0)] {
        let mut scene = up();
        match who {
            Some(other) => works(&mut scene, other),
            None => rests(&mut scene),
        }
        set_max(&mut scene, 18 * MIB);
        scene.first("stop", stops);
        assert_eq!(stage(&scene, MoveStage::Awaiting), None, "{who:?}");
    }
}

#[test]
fn vm_that_works_without_end_is_stopped_all_the_same_and_waited_for_less_the_next_time() {
    let mut scene = up();
    works(&mut scene, FIRST_CHANNEL);
    let mut waits = Vec::new();
    for max in [18, 16, 14] {
        scene.take();
        set_max(&mut scene, max * MIB);
        scene.pass(50 * MS);
        assert!(scene.notices().any(moved), "it never comes to {max} MiB");
        assert!(predicted(&scene) > MS / 2, "the drain was not foreseen");
        waits.push(stage(&scene, MoveStage::Awaiting).unwrap_or(0));
        // The drains of this card are short.
    }
    assert!((4 * MS..4 * MS + MS / 5).contains(&waits[0]), "{waits:?}");
    assert!(
        waits[1] < waits[0] / 2 + MS / 5 && waits[2] <= waits[1],
        "{waits:?}"
    );
}

#[test]
fn copies_go_to_the_engine_that_is_idle() {
    let mut scene = up();
    let mut max = 18;
    // Guests' transfers on the engines, and who copies then: who copied last, unless it is at work and the other is not.
    let cases = [
        ([false, false], Engine::Copy0),
        ([true, false], Engine::Copy1),
        ([false, false], Engine::Copy1),
        ([true, true], Engine::Copy1),
        ([true, false], Engine::Copy1),
        ([false, true], Engine::Copy0),
        ([true, true], Engine::Copy0),
    ];
    for (at_work, expected) in cases {
        for (engine, is_at_work) in [Engine::Copy0, Engine::Copy1].into_iter().zip(at_work) {
            let status = EngineStatus::new().with_channel(9).with_busy(is_at_work);
            let reg = PfifoReg::EngineStatus(engine.number().into()).into();
            scene.registers.insert(reg, status.into_bits());
        }
        scene.take();
        set_max(&mut scene, max * MIB);
        scene.pass(50 * MS);
        assert!(scene.notices().any(moved), "it never comes to {max} MiB");
        assert_eq!(scene.copies_by(), expected.number(), "{at_work:?}");
        max -= 2;
    }
}

#[test]
fn vm_that_leaves_or_whose_quota_changes_is_not_stopped_for_it() {
    for leaves in [false, true] {
        let mut scene = up();
        set_max(&mut scene, 18 * MIB);
        scene.pass(100 * MS);
        works(&mut scene, FIRST_CHANNEL);
        set_max(&mut scene, u64::MAX);
        scene.pass(100 * MS / 50);
        assert!(scene.is_moving(), "the chunk is to come back");
        scene.take();
        match leaves {
            true => drop(scene.ask(A, Request::Reset)),
            false => {
                set_max(&mut scene, 18 * MIB);
                rests(&mut scene);
                scene.pass(MS / 5);
            }
        }
        let reason = if leaves {
            RollBack::Leaving
        } else {
            RollBack::QuotaChanged
        };
        assert_eq!(rolled_back(&scene), Some(reason));
        assert!(
            !scene
                .notices()
                .any(|notice| matches!(notice, Notice::Suspended { .. }))
        );
        scene.first("frames", frees);
    }
}

#[test]
fn look_that_is_lost_is_had_again() {
    let mut scene = up();
    works(&mut scene, FIRST_CHANNEL);
    set_max(&mut scene, 18 * MIB);
    // Whoever reads the state knows nothing of what was asked.
    scene.running().volatile.engines_asked.clear();
    rests(&mut scene);
    scene.pass(3 * MS);
    assert!(scene.notices().any(moved));
}

/// Unbound and at work still: the move cannot stop it, and copies nothing before it has left the card.
#[test]
fn channel_that_leaves_is_waited_for() {
    for is_late in [false, true] {
        let mut scene = up();
        let preempt = Bar0Reg::from(PfifoReg::Preempt);
        scene.held.insert(preempt);
        scene.register(A, PfifoReg::ChannelInstance(0).into(), 0);
        scene.take();
        set_max(&mut scene, 18 * MIB);
        scene.pass(15 * MS);
        assert!(scene.is_moving() && !scene.notices().any(moved));
        if is_late {
            scene.pass(6 * MS);
            assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle));
            assert!(!scene.actions.iter().any(frees));
        }
        scene.held.clear();
        scene.end_polls(preempt, true);
        scene.pass(200 * MS);
        assert_eq!(scene.resident(A), 18 * MIB);
    }
}
