//! What is known of when a VM's address spaces had work.

use fermi_spec::regs::{Bar0Reg, PfifoReg, pfifo::ChannelState};

use super::scene::{MS, Scene};
use crate::event::{Action, Tick, VmId};

const A: VmId = VmId(0);

/// When the space of the first VM had work, as milliseconds ago.
fn had_work_before(scene: &mut Scene) -> Option<u64> {
    let now = Tick(scene.now);
    let space = scene.running().vms[&A].spaces.values().next();
    let at = space.expect("a channel is bound").worked_at;
    at.map(|at| now.since(at) / MS)
}

/// The first VM has chunks in host RAM, and its channel rang once.
fn rung() -> Scene {
    let (mut scene, _) = Scene::up().contended();
    scene.pass(200 * MS);
    assert!(scene.chunks_of(A).spilled() > 0);
    assert_eq!(had_work_before(&mut scene), None);
    scene.doorbell(A, 1);
    assert_eq!(had_work_before(&mut scene), Some(0));
    scene
}

fn says(scene: &mut Scene, state: ChannelState) {
    let channel = scene.running().vms[&A].channels[&0].physical;
    let reg = Bar0Reg::from(PfifoReg::ChannelState(channel.0.into()));
    scene.registers.insert(reg, state.into_bits());
}

#[test]
fn space_is_in_use_while_its_channel_has_work_and_waits_for_nobody() {
    let mut scene = rung();
    let busy = ChannelState::new().with_pending(true).with_runnable(true);
    for (state, is_busy) in [
        (ChannelState::new().with_runnable(true), false),
        (busy, true),
        (busy.with_acquire_pending(true), false),
    ] {
        says(&mut scene, state);
        scene.pass(300 * MS);
        let before = had_work_before(&mut scene).expect("it rang");
        assert_eq!(before <= 100, is_busy, "{before} ms ago by {state:?}");
    }
}

#[test]
fn only_a_doorbell_that_brings_work_counts() {
    let mut scene = rung();
    scene.pass(40 * MS);
    scene.doorbell(A, 1);
    assert_eq!(scene.running().vms[&A].doorbells.count, 1);
    assert_eq!(had_work_before(&mut scene), Some(40));
    scene.doorbell(A, 2);
    assert_eq!(scene.running().vms[&A].doorbells.count, 2);
    assert_eq!(had_work_before(&mut scene), Some(0));
}

/// With enough VRAM there is nothing to choose among, and no load for it.
#[test]
fn nothing_is_asked_while_nothing_is_spilled() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 2);
    scene.run_channel(A);
    scene.doorbell(A, 1);
    let asks = |action: &Action| {
        let state = Bar0Reg::from(PfifoReg::ChannelState(1)).offset();
        matches!(action, Action::HostRead { offset, .. } if *offset == u64::from(state))
    };
    scene.take();
    scene.pass(500 * MS);
    assert!(!scene.take().iter().any(asks));
}
