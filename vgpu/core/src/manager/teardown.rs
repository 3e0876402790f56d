//! Ends: a channel, a DMA map, a device reset, a VM.
//!
//! ```text
//! channel: OffList ─► Stopping ─off the engines─► Looking ─► instance block, number and space free
//! VM:      Stopping ─all channels gone, no move─► Flushing ─► frames free ─► Unmapping ─► Detach: bus addresses free, Detached
//!                                                                                   └► Reset: as after power-on, answered
//! ```
//!
//! The order is always: nothing can reach it, the TLBs have forgotten it, only then is it free.
//!
//! What a channel did wrong the card says by its number or its instance block. Whoever has those next would be blamed for it, so they are free
//! only when a look at the card that began behind the channel's end is over.

use fermi_spec::addr::Gpa;
use fermi_spec::instance::INSTANCE_BYTES;
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::TableRange;

use super::Cx;
use super::requests::Step;
use super::running::Running;
use crate::contained::contained;
use crate::device::{Blocked, Channel, Leave, LeaveStage, Queued, Remap, RemapStage, SyncCause, Vgpu};
use crate::event::{Action, Refusal, Reply, VmId};
use crate::host::card::Off;
use crate::host::{Job, PhysChannel};
use crate::memory::{ChunkPlace, Chunks};
use crate::notice::Notice;
use crate::policy::Observation;
use crate::reason::HostFault;

/// Bound on one try to see a leaving channel off the engines.
const STOP_NS: u64 = 20_000_000;
/// Tries before its engines are reset: 2 s, what nouveau gives an engine.
pub(super) const TRIES_MAX: u32 = 100;

/// A channel on its way off the card.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Leaving {
    pub(super) vm: VmId,
    pub(super) channel: Channel,
    pub(super) stage: LeavingStage,
}

/// How far it is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LeavingStage {
    /// Waits for a runlist without it.
    OffList,
    /// Waits for the engines to let go of it.
    Stopping {
        /// Tries so far.
        tries: u32,
    },
    /// Waits for that look at the card: nothing that it has to say of the channel comes behind it.
    Looking { look: u64 },
}

impl Leaving {
    /// Counts a try that failed. The number of all of them.
    fn try_again(&mut self) -> u32 {
        let tries = match self.stage {
            LeavingStage::Stopping { tries } => tries.saturating_add(1),
            LeavingStage::OffList | LeavingStage::Looking { .. } => 1,
        };
        self.stage = LeavingStage::Stopping { tries };
        tries
    }
}

impl Running {
    pub(super) fn off_list(&mut self, channel: PhysChannel) {
        if let Some(leaving) = self.leaving.get_mut(&channel) {
            leaving.stage = LeavingStage::Stopping { tries: 0 };
            self.card
                .take_off(&[channel], Off::Leave, STOP_NS, Job::Stopped(channel));
        }
    }

    pub(super) fn stopped(&mut self, channel: PhysChannel, ok: bool, cx: &mut Cx<'_>) {
        let Some(leaving) = self.leaving.get_mut(&channel) else {
            return;
        };
        if !ok {
            let tries = leaving.try_again();
            if tries.is_multiple_of(TRIES_MAX) {
                let fault = HostFault::NotLeaving { channel: channel.0 };
                cx.tell(Notice::HostError { fault });
                self.evict(channel, cx);
            }
            self.card
                .take_off(&[channel], Off::Leave, STOP_NS, Job::Stopped(channel));
            return;
        }
        let look = self.volatile.scan.next_look();
        leaving.stage = LeavingStage::Looking { look };
        if planted::is(Fault::ErrorsOfTheLastOne) {
            return self.left(channel, cx);
        }
        self.look_at_card(cx);
    }

    /// Frees what channels had on the card of which it has nothing to say any more. `true` if there was one.
    pub(super) fn check_left(&mut self, cx: &mut Cx<'_>) -> bool {
        let is_over = |stage: &LeavingStage| match stage {
            LeavingStage::Looking { look } => self.volatile.scan.has_finished(*look),
            LeavingStage::OffList | LeavingStage::Stopping { .. } => false,
        };
        let over: Vec<PhysChannel> = self
            .leaving
            .iter()
            .filter(|(_, leaving)| is_over(&leaving.stage))
            .map(|(&channel, _)| channel)
            .collect();
        for &channel in &over {
            self.left(channel, cx);
        }
        !over.is_empty()
    }

    fn left(&mut self, channel: PhysChannel, cx: &mut Cx<'_>) {
        let Some(leaving) = self.leaving.remove(&channel) else {
            return;
        };
        self.card.release_channel(channel);
        let vm = leaving.vm;
        let block = TableRange {
            at: leaving.channel.instance,
            bytes: INSTANCE_BYTES,
        };
        self.free_tables(vm, &[block]);
        let Channel {
            space,
            image,
            context,
            ..
        } = leaving.channel;
        self.leave_space(vm, space, (image, context), cx);
    }

    /// A range of guest RAM goes: out of the shadows, out of the TLBs, then out of the card's reach.
    pub(super) fn unmap_ram(&mut self, vm: VmId, request: Queued, gpa: Gpa, bytes: u64) -> Step {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Step::Done(Reply::Refused(Refusal::NotAttached));
        };
        if vgpu.ram.covering(gpa, bytes).is_none() {
            return Step::Done(Reply::Refused(Refusal::NoSuchMap));
        }
        vgpu.ram.hide(Some((gpa, bytes)));
        Step::Blocked(Blocked::Remap(Remap::new(request, (gpa, bytes), true)))
    }

    pub(super) fn begin_reset(&mut self, vm: VmId, request: Queued, cx: &mut Cx<'_>) -> Step {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.leave = Leave::Reset(LeaveStage::Stopping);
        }
        self.unbind_all(vm, cx);
        Step::Blocked(Blocked::Reset { request })
    }

    pub(super) fn detach(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            cx.actions.push(Action::Detached { vm });
            return;
        };
        vgpu.leave = match vgpu.leave {
            Leave::Detach(_) => return,
            // Its flush, if there is one under way, serves as well.
            Leave::Reset(stage) => Leave::Detach(stage),
            Leave::Stays => Leave::Detach(LeaveStage::Stopping),
        };
        vgpu.queue.clear();
        let is_access = matches!(vgpu.blocked, Some(Blocked::Move { .. } | Blocked::Demand { .. }));
        if is_access && planted::is(Fault::EndedSessionAnswered) {
            return self.unbind_all(vm, cx);
        }
        // A sync that was to bind a channel holds a use of its space. Tables that were given up are only safe to hand out
        // after a flush: the VM's last one comes before anything is reused, but other VMs allocate meanwhile, so they stay
        // charged to the VM until then.
        let half_bound = match vgpu.blocked.take() {
            Some(Blocked::Sync(sync)) => {
                vgpu.orphans.extend(sync.freed);
                match sync.cause {
                    SyncCause::Bind { space, .. } => Some(space),
                    SyncCause::Flush => None,
                }
            }
            Some(Blocked::Remap(remap)) => {
                vgpu.orphans.extend(remap.freed);
                if let RemapStage::Mapping { next } = remap.stage {
                    let end = remap.gpa.offset(remap.bytes);
                    self.forget_ram(vm, (next, end.0 - next.0));
                }
                None
            }
            _ => None,
        };
        if let Some(space) = half_bound {
            self.drop_user(vm, space);
        }
        self.drop_demand(vm, cx);
        self.unbind_all(vm, cx);
    }

    /// Resets and detaches whose channels are all gone take their next step. `true` if one did.
    pub(super) fn finish_leaving(&mut self, cx: &mut Cx<'_>) -> bool {
        let due: Vec<VmId> = self
            .vms
            .values()
            .filter(|vgpu| vgpu.leave.stage() == Some(LeaveStage::Stopping))
            .map(|vgpu| vgpu.id)
            .filter(|&vm| self.nothing_runs(vm))
            .collect();
        for &vm in &due {
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.leave = vgpu.leave.at(LeaveStage::Flushing);
            }
            self.clear_engines(cx);
            self.card.flush_tlb(None, Job::VmFlushed(vm));
        }
        !due.is_empty()
    }

    fn nothing_runs(&self, vm: VmId) -> bool {
        if planted::is(Fault::ResetDoesNotWait) {
            return !self.mover.has_move(vm);
        }
        self.card.channels_held(vm) == 0
            && self.leaving.values().all(|leaving| leaving.vm != vm)
            && self.keeping.values().all(|keeping| keeping.vm != vm)
            && self.pages_leaving.values().all(|gone| gone.vm != vm)
            && self.spaces_leaving.values().all(|gone| gone.vm != vm)
            && !self.mover.has_move(vm)
    }

    /// Frees the VM's memory, which nothing reaches any more.
    pub(super) fn vm_flushed(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        self.mover.forget_begun(vm);
        let mut orphans = std::mem::take(&mut vgpu.orphans);
        orphans.extend(std::mem::take(&mut vgpu.buffers).ranges());
        let chunks = &mut vgpu.chunks;
        let emptied = contained("emptying its chunks", || {
            let mut frames = Vec::new();
            for chunk in chunks.all() {
                let before = chunks.set_place(chunk, ChunkPlace::Unbacked);
                frames.extend(before.into_frames().into_iter().flatten());
            }
            frames
        });
        let frames = self.believe(vm, emptied).unwrap_or_default();
        self.free_tables(vm, &orphans);
        self.free_frames(vm, frames, cx);
        self.observe(&Observation::Emptied { vm });
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.leave = vgpu.leave.at(LeaveStage::Unmapping);
        }
        self.volatile.ready.insert(vm);
    }

    /// The device is as after power-on, and whoever reset it hears of that.
    pub(super) fn end_reset(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        vgpu.leave = Leave::Stays;
        if let Some(Blocked::Reset { request }) = vgpu.blocked.take() {
            let at = fermi_spec::addr::GuestVramAddr(0);
            if !planted::is(Fault::ResetKeepsImage) {
                let bytes = vgpu.config.guest_vram;
                cx.actions.push(Action::DropImage { vm, at, bytes });
            }
            if vgpu.units.pci.can_interrupt() {
                cx.actions.push(Action::LetInterrupts { vm, through: false });
            }
            if vgpu.live.is_some() {
                cx.actions.push(Action::PlaceUserd { vm, at: None });
            }
            reset(vgpu);
            cx.actions.push(Action::Reply {
                vm,
                request: request.id,
                reply: Reply::Done,
            });
            self.volatile.ready.insert(vm);
        }
    }
}

/// As after power-on. DMA maps stay: they are the VMM's, not the guest's.
fn reset(vgpu: &mut Vgpu) {
    vgpu.units.reset();
    let spare = vgpu.chunks.maps().spare;
    vgpu.chunks = Chunks::new(
        vgpu.config.guest_vram,
        vgpu.config.chunk_bytes,
        vgpu.chunks.image(),
    );
    // They are promised to the VM until it goes.
    vgpu.chunks.maps_mut().spare = spare;
    if let Some(live) = &mut vgpu.live {
        live.forget();
    }
    vgpu.userd.clear();
    vgpu.stores.forget();
    vgpu.runlist.clear();
    vgpu.synced_at = None;
    vgpu.fetched.clear();
}
