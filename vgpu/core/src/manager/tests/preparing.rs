//! Memory that a move will write is there before anything stops; the VM goes on meanwhile, and may leave.

use fermi_spec::addr::{FRAME, SMALL_PAGE};
use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo};

use super::scene::{DATA, MIB, MS, Scene, frees, is_store};
use super::{A, B, FIRST_CHANNEL, detached, moved, rolled_back};
use crate::config::{GpuConfig, Quota};
use crate::event::{Action, Event, Reply, Request, VmId};
use crate::notice::{Direction, MoveId, MoveStage, Notice};
use crate::reason::RollBack;

/// Parts of an image that a move asks for: first address and bytes.
type Parts = Vec<(u64, u64)>;

/// The memory that a move has asked for: its number, parts of the image, bytes of frames.
fn asked(scene: &Scene) -> Option<(MoveId, VmId, Parts, u64)> {
    scene.actions.iter().find_map(|action| match action {
        Action::Populate {
            id,
            vm,
            images,
            frames,
        } => {
            let images = images.iter().map(|(at, bytes)| (at.0, *bytes)).collect();
            Some((*id, *vm, images, frames.len() as u64 * FRAME))
        }
        _ => None,
    })
}

/// A's chunk is to move for B, and the host has not given the memory yet.
fn preparing() -> (Scene, MoveId) {
    let mut scene = Scene::up();
    scene.memory_for_moves = None;
    let (scene, _) = scene.contended();
    assert!(scene.is_moving());
    let (id, ..) = asked(&scene).expect("a first spill has no pages to go to");
    (scene, id)
}

pub(super) fn stops(action: &Action) -> bool {
    let state = Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL));
    is_store(action, state, pfifo::CHANNEL_START & !1)
}

#[test]
fn spill_asks_for_its_image_and_stops_nothing_before_it_is_there() {
    let (mut scene, id) = preparing();
    let (_, vm, images, frames) = asked(&scene).unwrap();
    assert_eq!((vm, frames), (A, 0));
    assert_eq!(images.iter().map(|(_, bytes)| bytes).sum::<u64>(), 2 * MIB);
    assert!(
        images
            .iter()
            .all(|(at, bytes)| at % SMALL_PAGE == 0 && bytes % SMALL_PAGE == 0)
    );
    scene.take();
    // The VM goes on: its doorbells ring, its stores take effect wherever they go, its tables are built.
    scene.doorbell(A, 5);
    scene.register(A, Bar0Reg::from(fermi_spec::regs::PbusReg::Bar1Block), 0);
    for chunk in 0..27 {
        let store = scene.store(
            A,
            fermi_spec::bar::Bar::Bar1,
            DATA + chunk * 2 * MIB,
            &[1, 2, 3, 4],
        );
        assert!(scene.reply(store).is_some(), "a store to chunk {chunk} waits");
    }
    assert!(!scene.actions.iter().any(stops));
    scene.first("doorbell", |action| {
        super::rings(action, u64::from(FIRST_CHANNEL))
    });
    scene.apply(Event::Populated { id, done: true });
    scene.first("stop", stops);
    scene.pass(5 * MS);
    assert!(scene.notices().any(moved));
    let first = scene.notices().find_map(|notice| match notice {
        Notice::MoveStage { stage, .. } => Some(*stage),
        _ => None,
    });
    assert_eq!(first, Some(MoveStage::Preparing));
}

#[test]
fn refill_asks_for_its_frames_and_a_second_spill_finds_its_image_warm() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    let quota = |max| Quota {
        max,
        ..Quota::default()
    };
    let set = |max, scene: &mut Scene| {
        scene.take();
        scene.apply(Event::SetQuota {
            vm: A,
            quota: quota(max),
        });
        scene.pass(100 * MS);
        let started = scene.notices().find_map(|notice| match notice {
            Notice::MoveStarted { direction, .. } => Some(*direction),
            _ => None,
        });
        (
            started,
            asked(scene).map(|(_, _, images, frames)| (!images.is_empty(), frames)),
        )
    };
    assert_eq!(
        set(18 * MIB, &mut scene),
        (Some(Direction::Spill), Some((true, 0)))
    );
    assert_eq!(
        set(u64::MAX, &mut scene),
        (Some(Direction::Refill), Some((false, 2 * MIB)))
    );
}

#[test]
fn move_whose_memory_the_host_has_not_is_given_up_before_anything_stops() {
    let (mut scene, id) = preparing();
    scene.take();
    scene.apply(Event::Populated { id, done: false });
    assert_eq!(rolled_back(&scene), Some(RollBack::HostMemory));
    assert!(!scene.actions.iter().any(stops) && !scene.actions.iter().any(frees));
    // An answer that nobody waits for any more changes nothing.
    let (actions, held) = (scene.actions.len(), scene.resident(A));
    scene.apply(Event::Populated { id, done: true });
    assert_eq!(scene.resident(A), held);
    assert!(!scene.actions[actions..].iter().any(stops));
    // Who waits for the memory gets host RAM when its time is up.
    scene.pass(300 * MS);
    assert!(
        scene
            .notices()
            .any(|notice| matches!(notice, Notice::DemandEnded { vm: B, .. }))
    );
}

#[test]
fn vm_that_leaves_or_is_reset_while_its_move_prepares_waits_for_the_hosts_answer_alone() {
    for is_reset in [false, true] {
        let (mut scene, id) = preparing();
        scene.take();
        let reset = match is_reset {
            true => Some(scene.ask(A, Request::Reset)),
            false => {
                scene.apply(Event::Detach { vm: A });
                None
            }
        };
        assert!(!scene.actions.iter().any(detached), "it is gone before its move");
        scene.memory_for_moves = Some(true);
        scene.apply(Event::Populated { id, done: true });
        assert_eq!(rolled_back(&scene), Some(RollBack::Leaving));
        scene.pass(200 * MS);
        match reset {
            Some(reset) => assert_eq!(scene.reply(reset), Some(&Reply::Done)),
            None => drop(scene.first("end", detached)),
        }
        assert_eq!(scene.resident(A), 0);
        assert_eq!(scene.resident(B), 2 * MIB);
    }
}

/// Two chunks of A go, one a move, and its channel takes 4 ms to get off the card.
fn first_of_two_pauses() -> Scene {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        batch_bytes: 2 * MIB,
        ..GpuConfig::default()
    });
    scene.attach(A, 32);
    scene.bind(A, 20);
    scene.run_channel(A);
    let preempt = Bar0Reg::from(PfifoReg::Preempt);
    scene.held.insert(preempt);
    let quota = Quota {
        max: 16 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.pass(4 * MS);
    scene.end_polls(preempt, true);
    scene.pass(2 * MS);
    scene
}

#[test]
fn vm_that_stood_still_runs_three_times_as_long_before_it_is_stopped_again() {
    let mut scene = first_of_two_pauses();
    let pause = scene.notices().find_map(|notice| match notice {
        Notice::Resumed { suspended_ns, .. } => Some(*suspended_ns),
        _ => None,
    });
    let pause = pause.expect("the first move is over");
    assert!((4 * MS..6 * MS).contains(&pause), "{pause}");
    assert!(scene.is_moving(), "the second one waits");
    scene.take();
    scene.pass(3 * pause - 3 * MS);
    assert!(!scene.actions.iter().any(stops), "it was stopped at once");
    // It goes on meanwhile, as before any move.
    scene.doorbell(A, 5);
    scene.first("doorbell", |action| {
        super::rings(action, u64::from(FIRST_CHANNEL))
    });
    scene.pass(3 * MS);
    scene.first("stop", stops);
    let rested = scene.notices().find_map(|notice| match notice {
        Notice::MoveStage {
            stage: MoveStage::Resting,
            took_ns,
            ..
        } => Some(*took_ns),
        _ => None,
    });
    assert!(rested.is_some_and(|ns| ns > 2 * pause), "{rested:?}");
}

#[test]
fn vm_that_goes_does_not_rest() {
    let mut scene = first_of_two_pauses();
    assert!(scene.is_moving());
    scene.held.clear();
    scene.take();
    scene.apply(Event::Detach { vm: A });
    assert_eq!(rolled_back(&scene), Some(RollBack::Leaving));
    scene.pass(MS);
    scene.first("end", detached);
}

#[test]
fn refill_that_a_new_quota_does_not_allow_is_given_up_while_it_prepares() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    let set = |max, scene: &mut Scene| {
        let quota = Quota {
            max,
            ..Quota::default()
        };
        scene.apply(Event::SetQuota { vm: A, quota });
        scene.pass(100 * MS);
    };
    set(18 * MIB, &mut scene);
    assert_eq!(scene.resident(A), 18 * MIB);
    scene.memory_for_moves = None;
    scene.take();
    set(u64::MAX, &mut scene);
    let (id, ..) = asked(&scene).expect("the chunk is to come back");
    set(18 * MIB, &mut scene);
    scene.apply(Event::Populated { id, done: true });
    assert_eq!(rolled_back(&scene), Some(RollBack::QuotaChanged));
    scene.pass(100 * MS);
    assert_eq!(scene.resident(A), 18 * MIB);
    // It says nothing about the next move.
    scene.memory_for_moves = Some(true);
    set(16 * MIB, &mut scene);
    assert_eq!(scene.resident(A), 16 * MIB);
}
