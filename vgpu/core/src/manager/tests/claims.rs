//! Frames that a pass collected for a VM are that VM's.

use fermi_spec::addr::FRAME;

use super::scene::Scene;
use super::{A, B};
use crate::manager::claim::Claim;
use crate::memory::ChunkNo;
use crate::policy::Proposal;
use crate::reason::MoveCause;

#[test]
fn collected_frames_are_given_to_nobody_else() {
    let mut scene = Scene::up();
    let running = scene.running();
    let free = running.frames.free_count();
    running.note_collected(MoveCause::Fairness { toward: A }, 2 * FRAME);
    running.note_collected(MoveCause::Idle { taken_for: A }, FRAME);
    assert_eq!(
        (running.free_frames_for(A), running.free_frames_for(B)),
        (free, free - 3)
    );
    running.note_taken(A, 2 * FRAME);
    assert_eq!(running.free_frames_for(B), free - 1);
    running.note_taken(A, 2 * FRAME);
    assert_eq!(running.claim, None);
}

#[test]
fn claim_ends_when_another_vm_is_meant_or_nobody() {
    let mut scene = Scene::up();
    let running = scene.running();
    let refill = |vm| Proposal::Refill {
        vm,
        chunks: vec![ChunkNo(0)],
        cause: MoveCause::FreeRoom,
    };
    for (proposal, stays) in [(refill(A), true), (refill(B), false), (Proposal::Nothing, false)] {
        running.claim = Some(Claim { vm: A, bytes: FRAME });
        running.note_intent(&proposal);
        assert_eq!(running.claim.is_some(), stays, "{proposal:?}");
    }
}

#[test]
fn who_is_not_there_claims_nothing() {
    let mut scene = Scene::up();
    let running = scene.running();
    running.claim = Some(Claim { vm: A, bytes: FRAME });
    running.drop_void_claim(crate::event::Tick(1));
    assert_eq!(running.claim, None);
}
