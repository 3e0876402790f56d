//! A VM that is not off the card in time: its move stands aside, what is wanted is taken elsewhere, and it goes on when its work is over.

use fermi_spec::bar::Bar;
use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo};

use super::moments::{rests, stops, works};
use super::scene::{DATA, MIB, MS, Scene, frees, is_store};
use super::{A, B, FIRST_CHANNEL, moved, rolled_back};
use crate::event::{Action, Event, Reply, Request, RequestId, VmId};
use crate::notice::{MoveStage, Notice};
use crate::reason::RollBack;

const C: VmId = VmId(2);

fn preempt() -> Bar0Reg {
    PfifoReg::Preempt.into()
}

fn starts(action: &Action) -> bool {
    let state = Bar0Reg::from(PfifoReg::ChannelState(FIRST_CHANNEL));
    is_store(action, state, pfifo::CHANNEL_START)
}

/// A's grid outlasts the budget of the suspension for B's demand.
fn late(mut scene: Scene) -> (Scene, RequestId) {
    scene.held.insert(preempt());
    let (mut scene, request) = scene.contended();
    late_preempt(&mut scene);
    assert!(!scene.is_moving(), "nobody else has memory to give");
    (scene, request)
}

fn late_preempt(scene: &mut Scene) {
    scene.first("stop", stops);
    works(scene, FIRST_CHANNEL);
    scene.pass(20 * MS);
    scene.take();
    scene.held.clear();
    scene.end_polls(preempt(), false);
    assert!(scene.is_aside());
}

fn resumed(scene: &Scene) -> Vec<(u64, u64, bool)> {
    let resumed = scene.notices().filter_map(|notice| match notice {
        Notice::Resumed {
            suspended_ns,
            drained_ns,
            is_rolled_back,
            ..
        } => Some((*suspended_ns, *drained_ns, *is_rolled_back)),
        _ => None,
    });
    resumed.collect()
}

#[test]
fn move_goes_on_when_the_work_is_over_and_the_pause_is_told_as_one() {
    let (mut scene, request) = late(Scene::up());
    assert_eq!(rolled_back(&scene), None);
    scene.pass(10 * MS);
    assert!(
        !scene.actions.iter().any(starts),
        "it runs though its memory is about to move"
    );
    assert!(!scene.actions.iter().any(frees));
    rests(&mut scene);
    scene.pass(3 * MS);
    assert!(scene.notices().any(moved) && !scene.is_aside());
    assert!(scene.reply(request).is_some(), "the demand is met");
    let (suspended, drained, is_rolled_back) = resumed(&scene)[0];
    assert!((30 * MS..32 * MS).contains(&drained), "{drained}");
    assert!(suspended >= drained && !is_rolled_back);
    let first = scene
        .notices()
        .find(|notice| matches!(notice, Notice::Suspended { .. } | Notice::Resumed { .. }));
    assert!(
        matches!(first, Some(Notice::Resumed { .. })),
        "it was stopped twice: {first:?}"
    );
    let aside = scene.notices().find_map(|notice| match notice {
        Notice::MoveStage {
            stage: MoveStage::Draining,
            took_ns,
            ..
        } => Some(*took_ns),
        _ => None,
    });
    assert!(aside.is_some_and(|ns| ns >= 10 * MS), "{aside:?}");
}

#[test]
fn vm_whose_move_stands_aside_goes_on_otherwise() {
    let (mut scene, _) = late(Scene::up());
    for chunk in 0..27 {
        let store = scene.store(A, Bar::Bar1, DATA + chunk * 2 * MIB, &[1, 2, 3, 4]);
        assert!(scene.reply(store).is_some(), "a store to chunk {chunk} waits");
    }
    let flush = scene.flush(A);
    assert!(scene.reply(flush).is_some(), "a sync waits");
}

#[test]
fn demand_is_met_elsewhere_meanwhile() {
    let mut scene = Scene::up();
    scene.held.insert(preempt());
    scene.attach(A, 40);
    scene.bind(A, 32);
    scene.run_channel(A);
    scene.attach(C, 32);
    scene.bind(C, 20);
    scene.run_channel(C);
    scene.attach(B, 32);
    scene.take();
    let request = scene.bind(B, 8);
    late_preempt(&mut scene);
    scene.pass(5 * MS);
    assert!(scene.is_aside(), "A is at work still");
    let from: Vec<VmId> = scene
        .notices()
        .filter_map(|notice| match notice {
            Notice::Moved { vm, .. } => Some(*vm),
            _ => None,
        })
        .collect();
    assert!(!from.is_empty() && from.iter().all(|vm| *vm == C), "{from:?}");
    rests(&mut scene);
    scene.pass(20 * MS);
    assert!(scene.reply(request).is_some(), "the demand is met");
}

#[test]
fn work_that_does_not_end_gives_the_move_up() {
    let (mut scene, _) = late(Scene::up());
    scene.pass(19 * MS);
    assert_eq!(rolled_back(&scene), None);
    scene.pass(2 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle));
    scene.first("start", starts);
    assert!(!scene.actions.iter().any(frees), "a frame was freed");
    let [(suspended, _, true)] = resumed(&scene)[..] else {
        panic!("{:?}", resumed(&scene));
    };
    assert!((40 * MS..42 * MS).contains(&suspended), "{suspended}");
    assert!(!scene.is_aside() && !scene.is_moving());
}

/// Grids of 70 ms, one behind the other, would keep memory from everybody for ever.
#[test]
fn vm_whose_work_outlasts_every_budget_is_waited_for_to_its_end() {
    let mut scene = Scene::up();
    scene.held.insert(preempt());
    scene.attach(A, 40);
    scene.bind(A, 32);
    scene.run_channel(A);
    works(&mut scene, FIRST_CHANNEL);
    let quota = crate::config::Quota {
        max: 8 * MIB,
        ..Default::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    let mut tries = 0;
    while tries < 4 {
        // Until it is stopped; then its grid outlasts the first budget.
        while !scene.actions.iter().any(stops) {
            scene.pass(MS);
        }
        tries += 1;
        scene.take();
        scene.pass(20 * MS);
        scene.held.clear();
        scene.end_polls(preempt(), false);
        scene.held.insert(preempt());
        assert!(scene.is_aside());
        scene.pass(50 * MS);
        match tries {
            4 => assert!(scene.is_aside(), "it is stopped in vain for ever"),
            _ => assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle)),
        }
        scene.take();
    }
    // It ends as the watchdog of the card's driver would have it.
    scene.held.clear();
    rests(&mut scene);
    scene.pass(3 * MS);
    assert!(scene.notices().any(moved));
    let (suspended, drained, is_rolled_back) = resumed(&scene)[0];
    assert!(
        !is_rolled_back && drained >= 70 * MS && suspended >= drained,
        "{suspended} {drained}"
    );
}

/// A grid without an end is not waited for without one.
#[test]
fn end_of_work_is_waited_for_a_second_at_most() {
    let (mut scene, _) = late(Scene::up());
    let vgpu = scene.running().vms.get_mut(&A).expect("it is attached");
    (0..3).for_each(|_| vgpu.drains.was_late());
    scene.pass(21 * MS);
    assert_eq!(
        rolled_back(&scene),
        Some(RollBack::NotIdle),
        "it was put aside before"
    );
    scene.take();
    scene.held.insert(preempt());
    while !scene.actions.iter().any(stops) {
        scene.pass(MS);
    }
    late_preempt(&mut scene);
    scene.pass(900 * MS);
    assert!(scene.is_aside());
    scene.pass(100 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::NotIdle));
}

#[test]
fn vm_that_leaves_takes_its_move_with_it() {
    for is_reset in [false, true] {
        let (mut scene, _) = late(Scene::up());
        let reset = match is_reset {
            true => Some(scene.ask(A, Request::Reset)),
            false => {
                scene.apply(Event::Detach { vm: A });
                None
            }
        };
        assert_eq!(rolled_back(&scene), Some(RollBack::Leaving));
        assert!(!scene.is_aside());
        scene.pass(200 * MS);
        match reset {
            Some(reset) => assert_eq!(scene.reply(reset), Some(&Reply::Done)),
            None => drop(scene.first("end", super::detached)),
        }
        assert_eq!(scene.resident(A), 0);
    }
}

/// It is off the card when the card says so, and its number may be another VM's then.
#[test]
fn channel_that_is_unbound_meanwhile_is_waited_for_and_not_stopped_again() {
    let (mut scene, _) = late(Scene::up());
    scene.held.insert(preempt());
    let unbound = scene.register(A, PfifoReg::ChannelInstance(0).into(), 0);
    assert!(scene.reply(unbound).is_some());
    // Nobody is at work as far as 2640 says; the channel has not let go of the card yet.
    rests(&mut scene);
    scene.take();
    scene.pass(5 * MS);
    assert!(scene.is_aside(), "its memory moves under a writer");
    scene.held.clear();
    scene.end_polls(preempt(), true);
    scene.take();
    scene.pass(5 * MS);
    assert!(scene.notices().any(moved) && !scene.is_aside());
    assert!(!scene.actions.iter().any(stops), "it is nobody's any more");
    assert!(matches!(resumed(&scene)[0], (_, _, false)));
}
