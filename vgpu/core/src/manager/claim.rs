//! Frames that were taken from others so that a VM's chunk fits: they are that VM's until it does.
//!
//! A chunk may need the frames of several smaller ones, which come free one move after another. Between two of them a
//! demand of another VM would take them, again and again, and the VM would never get to its share. One claim at a time:
//! a pass collects for one VM.

use fermi_spec::addr::FRAME;
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::running::Running;
use crate::event::{Tick, VmId};
use crate::inspect::{Inspect, Tree};
use crate::policy::Proposal;
use crate::reason::MoveCause;

/// Free bytes that only one VM gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) vm: VmId,
    pub(super) bytes: u64,
}

impl Running {
    /// Free frames that the VM may have.
    pub(super) fn free_frames_for(&self, vm: VmId) -> u32 {
        let claimed = match self.claim {
            Some(claim) if claim.vm != vm && !planted::is(Fault::ClaimNotKept) => claim.bytes,
            _ => 0,
        };
        let frames = u32::try_from(claimed.div_ceil(FRAME)).unwrap_or(u32::MAX);
        self.frames.free_count().saturating_sub(frames)
    }

    /// A spill has set bytes free. A VM that demands memory needs no claim: who came first is met first.
    pub(super) fn note_collected(&mut self, cause: MoveCause, bytes: u64) {
        let Some(vm) = cause.beneficiary().filter(|&vm| self.demands.of(vm).is_none()) else {
            return;
        };
        let before = self
            .claim
            .filter(|claim| claim.vm == vm)
            .map_or(0, |claim| claim.bytes);
        self.claim = Some(Claim {
            vm,
            bytes: before + bytes,
        });
    }

    /// The VM has got bytes of VRAM.
    pub(super) fn note_taken(&mut self, vm: VmId, bytes: u64) {
        if let Some(claim) = self.claim.filter(|claim| claim.vm == vm) {
            let left = claim.bytes.saturating_sub(bytes);
            self.claim = (left > 0).then_some(Claim { vm, bytes: left });
        }
    }

    /// A pass has another VM in mind, or none: what was collected is everybody's.
    pub(super) fn note_intent(&mut self, proposal: &Proposal) {
        let goes_to = match proposal {
            Proposal::Spill { cause, .. } | Proposal::Exchange { cause, .. } => cause.beneficiary(),
            Proposal::Refill { vm, .. } => Some(*vm),
            Proposal::Nothing | Proposal::Release { .. } | Proposal::HostRam { .. } => None,
        };
        self.claim = self.claim.filter(|claim| goes_to == Some(claim.vm));
    }

    /// A VM that cannot take its chunk now, or wants none any more, claims nothing.
    pub(super) fn drop_void_claim(&mut self, now: Tick) {
        let Some(claim) = self.claim else { return };
        let limits = self.limits(now);
        let view = limits.vms.get(&claim.vm).and_then(|vgpu| limits.view(vgpu));
        if !view.is_some_and(|view| view.may_move && view.wanted + view.asked > 0) {
            self.claim = None;
        }
    }
}

impl Inspect for Claim {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("vm", self.vm);
        tree.bytes("bytes", self.bytes);
    }
}
