//! What always holds, whatever a policy says, an operator sets or a guest does:
//!
//! * a VM is not brought below its `min` by a move, but for an idle chunk that makes room for one that it wants; not
//!   above its `high` by a refill; and not above its `max` by anything;
//! * what is promised at a VM's start can be kept: all `min` in VRAM, all guest VRAM in VRAM and host RAM together;
//! * host RAM holds `host_ram` of spilled chunks and what one exchange carries ([`Limits::host_ram_max`]), but for chunks that windows show, and old copies
//!   only within `host_ram`;
//! * a move carries no more than a batch, and takes its frames from the free ones;
//! * nothing moves of a VM that leaves or is passed over, no chunk that is moving, and none back that left for a window before that shows it;
//! * only what is demanded is met.
//!
//! That one move is under way at a time is `pressure::relieve`'s part, which asks nobody during one; that a frame has one
//! owner, the part of `Frames` and `Chunks`.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::SMALL_PAGE;
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::Cx;
use super::demands::{Demand, Demands};
use super::mover::Head;
use super::running::Running;
use super::window_copy::BATCH_BYTES_BY_WINDOW;
use crate::config::Quota;
use crate::device::Vgpu;
use crate::device::work::ChannelWork;
use crate::event::{Action, Tick, VmId};
use crate::host::copy::{RUNS_MAX, WINDOW_BYTES};
use crate::memory::{ChunkNo, ChunkPlace};
use crate::notice::Direction;
use crate::policy::{DemandView, LastUse, Occasion, Proposal, Snapshot, VmView, WorkView};
use crate::reason::MoveCause;

/// The first limit that a proposal would have broken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Breach {
    /// It is no answer to the question, or names no chunk.
    NotAsked,
    /// There is no such VM.
    NoSuchVm,
    /// The VM is about to go, or its device to be reset.
    Leaving,
    /// The VM's last move was rolled back or could not start, just now.
    PassedOver,
    /// The chunk is not there to be moved that way, moves already, or was named twice.
    NotMovable,
    /// The VM would hold less than its `min`, or the move is larger than a batch.
    MinOrBatch,
    /// The VM would hold more than its `max`, or after a refill more than its `high`; or the move is larger than a batch.
    MaxOrBatch,
    /// There are not that many free frames.
    NoFrames,
    /// Spilled chunks would take more host RAM than they may.
    HostRam,
    /// Nobody demands the chunk.
    NotDemanded,
}

/// The limits that proposals are measured against.
pub(super) struct Limits<'a> {
    pub(super) vms: &'a BTreeMap<VmId, Vgpu>,
    pub(super) demands: &'a Demands,
    pub(super) figures: Figures,
}

/// The plain numbers among the limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Bytes of VRAM that nobody holds.
    pub(super) free: u64,
    /// Most bytes in one move of several chunks.
    pub(super) batch_bytes: u64,
    /// Host RAM for all VMs' images in bytes, see [`crate::GpuConfig::host_ram`].
    pub(super) host_ram: u64,
    /// Bytes that were taken from others for a VM's chunk, which are free, and the VM.
    pub(super) claim: Option<(VmId, u64)>,
    /// The VM whose move stands aside.
    pub(super) aside: Option<VmId>,
    pub(super) now: Tick,
}

impl Vgpu {
    /// The quota by which its memory goes and comes now.
    pub(crate) fn quota(&self) -> Quota {
        self.hold.in_force(self.config.quota)
    }
}

/// Bytes that the VM may still get in VRAM.
pub(super) fn below_max(vgpu: &Vgpu) -> u64 {
    let slack = if planted::is(Fault::MaxOneChunkOff) {
        vgpu.config.chunk_bytes
    } else {
        0
    };
    let quota = match planted::is(Fault::HoldForgotten) {
        true => vgpu.config.quota,
        false => vgpu.quota(),
    };
    let max = quota.max.saturating_add(slack);
    max.saturating_sub(vgpu.chunks.resident())
}

/// Bytes that a refill may bring the VM.
fn below_high(vgpu: &Vgpu) -> u64 {
    let high = match planted::is(Fault::HoldForgotten) {
        true => vgpu.config.quota.high,
        false => vgpu.quota().high,
    };
    match planted::is(Fault::RefillsAboveHigh) {
        true => u64::MAX,
        false => high.saturating_sub(vgpu.chunks.resident()),
    }
}

/// Bytes that the VM may lose from VRAM.
fn above_min(vgpu: &Vgpu) -> u64 {
    let slack = if planted::is(Fault::MinOneChunkOff) {
        vgpu.config.chunk_bytes
    } else {
        0
    };
    let min = vgpu.quota().min.saturating_sub(slack);
    vgpu.chunks.resident().saturating_sub(min)
}

/// Whether the VM holds more than its `max` and keeps its `min` without one of its chunks. `min` goes before `max`.
pub(super) fn has_to_lose(vgpu: &Vgpu) -> bool {
    vgpu.chunks.resident() > vgpu.quota().max && above_min(vgpu) >= vgpu.config.chunk_bytes
}

impl<'a> Limits<'a> {
    /// Whether the VM's chunks may move now.
    pub(super) fn may_move(&self, vgpu: &Vgpu) -> bool {
        let is_aside = self.figures.aside == Some(vgpu.id);
        !vgpu.leaves() && !is_aside && self.figures.now >= vgpu.passed_over_until
    }

    /// Most chunks of the VM that one spill may take: a batch, or one that is larger; and what host RAM has room for. Above its `min` may be
    /// room for its short last chunk alone.
    fn spill_chunks_max(&self, vgpu: &Vgpu) -> usize {
        let (spare, chunk) = (above_min(vgpu), vgpu.config.chunk_bytes);
        let is_short = |no: &ChunkNo| vgpu.chunks.bytes(*no) <= spare && vgpu.chunks.place(*no).is_in_vram();
        let fits = spare >= chunk || vgpu.chunks.all().last().is_some_and(|last| is_short(&last));
        let count = (self.figures.batch_bytes.min(spare) / chunk).max(u64::from(fits));
        // The host refused to map the images of several.
        let most = if vgpu.was_refused { 1 } else { u64::MAX };
        count.min(most).min(self.host_ram_left(vgpu) / chunk) as usize
    }

    /// Bytes of host RAM that a spill of the VM may take. `max` goes before `host_ram`.
    fn host_ram_left(&self, vgpu: &Vgpu) -> u64 {
        if vgpu.chunks.resident() > vgpu.quota().max || planted::is(Fault::HostRamIgnored) {
            return u64::MAX;
        }
        let out = |vgpu: &Vgpu| vgpu.chunks.spilled() + vgpu.chunks.sums().split;
        let out: u64 = self.vms.values().map(out).sum();
        self.host_ram_max().saturating_sub(out)
    }

    /// Most bytes that one refill may bring the VM: a batch, or a chunk that is larger; nothing above its `high` or `max`.
    fn refill_bytes_max(&self, vgpu: &Vgpu) -> u64 {
        let below_high = below_high(vgpu);
        self.figures
            .batch_bytes
            .max(vgpu.config.chunk_bytes)
            .min(below_max(vgpu).min(below_high))
    }

    /// Bytes of host RAM that spilled chunks may take while a spill is under way: what is set, and beyond it what an
    /// exchange of full memory needs: the chunk that waits for frames, which are too few for it, and the chunks that give
    /// theirs up.
    fn host_ram_max(&self) -> u64 {
        let chunks = self.vms.values().map(|vgpu| vgpu.config.chunk_bytes);
        let largest = chunks.max().unwrap_or(0);
        self.figures
            .host_ram
            .saturating_add(largest)
            .saturating_add(self.figures.batch_bytes.max(largest))
    }

    /// The snapshot that a policy sees: of all VMs, or of the one whose own doorbell is what it is asked for.
    pub(super) fn snapshot(&self, occasion: Occasion) -> Snapshot<'a> {
        let of_one = |vm: VmId| self.vms.range(vm..=vm);
        let (vms, demands) = match occasion {
            Occasion::Due { vm } => (of_one(vm), None),
            _ => (self.vms.range(..), Some(self.demands)),
        };
        let demand_view = |demand: &'a Demand| DemandView {
            vm: demand.vm,
            chunks: &demand.chunks,
            bytes: self
                .vms
                .get(&demand.vm)
                .map_or(0, |vgpu| vgpu.chunks.bytes_of(&demand.chunks)),
            deadline: demand.deadline,
            waits_for_own: demand
                .chunks
                .last()
                .is_some_and(|&chunk| self.waits_for_own(demand.vm, chunk)),
        };
        Snapshot {
            now: self.figures.now,
            free: self.figures.free,
            claim: self.figures.claim,
            demands: demands
                .into_iter()
                .flat_map(|demands| demands.iter().map(demand_view))
                .collect(),
            vms: vms.filter_map(|(_, vgpu)| self.view(vgpu)).collect(),
        }
    }

    /// One VM of it; `None` if the VM leaves.
    pub(super) fn view(&self, vgpu: &'a Vgpu) -> Option<VmView<'a>> {
        let asked = |demand: &Demand| vgpu.chunks.bytes_of(&demand.chunks);
        (!vgpu.leaves()).then(|| VmView {
            asked: self.demands.of(vgpu.id).map_or(0, asked),
            may_move: self.may_move(vgpu),
            spare: above_min(vgpu),
            spill_chunks_max: self.spill_chunks_max(vgpu),
            may_exchange: self.exchange_room(vgpu) >= vgpu.config.chunk_bytes,
            exchange_chunks_max: self.exchange_chunks_max(vgpu),
            refill_bytes_max: self.refill_bytes_max(vgpu),
            synced_at: vgpu.synced_at,
            doorbells: vgpu.activity.doorbells,
            rang_at: vgpu.activity.rang_at,
            lends: vgpu.activity.lends,
            work: work_view(vgpu),
            last_use: LastUse::of(&vgpu.spaces),
            ..VmView::of(vgpu.id, &vgpu.chunks, vgpu.config.chunk_bytes, vgpu.quota())
        })
    }

    /// Whether memory for the chunk would bring the VM above its `max`, and an idle chunk of the VM can go for it: `max`
    /// bounds what is in use, and idle memory goes first.
    pub(super) fn waits_for_own(&self, vm: VmId, chunk: ChunkNo) -> bool {
        let Some(vgpu) = self.vms.get(&vm) else {
            return false;
        };
        let bytes = vgpu.chunks.bytes(chunk);
        let idle = |chunk: &ChunkNo| vgpu.chunks.is_idle(*chunk) && vgpu.chunks.place(*chunk).is_in_vram();
        bytes > below_max(vgpu)
            && bytes <= vgpu.quota().max
            && self.may_move(vgpu)
            && vgpu.chunks.all().any(|chunk| idle(&chunk))
    }

    /// The first VM whose chunks have to go for its `max`, and may.
    pub(super) fn above_max(&self) -> Option<VmId> {
        let above = |vgpu: &&Vgpu| self.may_move(vgpu) && has_to_lose(vgpu);
        if planted::is(Fault::LoweredMaxIgnored) {
            return None;
        }
        self.vms.values().find(above).map(|vgpu| vgpu.id)
    }

    /// The part of a proposal that may be done, and the limit that excluded the rest.
    pub(super) fn admit(&self, occasion: Occasion, proposal: Proposal) -> (Proposal, Option<Breach>) {
        if let Occasion::AboveMax { vm: asked } = occasion
            && !matches!(proposal, Proposal::Spill { vm, .. } if vm == asked)
        {
            let breach = (proposal != Proposal::Nothing).then_some(Breach::NotAsked);
            return (Proposal::Nothing, breach);
        }
        let (rest, breach) = match proposal {
            Proposal::Nothing => return (Proposal::Nothing, None),
            Proposal::Release { vm, .. } => {
                match [Occasion::Held { vm }, Occasion::Due { vm }].contains(&occasion) {
                    true => return (proposal, None),
                    false => (None, None),
                }
            }
            _ if matches!(occasion, Occasion::Due { .. }) => (None, None),
            Proposal::Spill { vm, chunks, cause } => {
                let (chunks, breach) = self.admit_spill(vm, chunks, cause);
                let any = !chunks.is_empty();
                (any.then_some(Proposal::Spill { vm, chunks, cause }), breach)
            }
            Proposal::Refill { vm, chunks, cause } => {
                let (chunks, breach) = self.admit_refill(vm, chunks);
                let any = !chunks.is_empty();
                (any.then_some(Proposal::Refill { vm, chunks, cause }), breach)
            }
            Proposal::Exchange {
                vm,
                leave,
                come,
                cause,
            } => {
                let (leave, come, breach) = self.admit_exchange(vm, leave, come);
                let any = !come.is_empty();
                let rest = Proposal::Exchange {
                    vm,
                    leave,
                    come,
                    cause,
                };
                (any.then_some(rest), breach)
            }
            Proposal::HostRam { chunks } => {
                let (chunks, breach) = self.admit_host_ram(chunks);
                let any = !chunks.is_empty();
                (any.then_some(Proposal::HostRam { chunks }), breach)
            }
        };
        let breach = breach.or_else(|| rest.is_none().then_some(Breach::NotAsked));
        (rest.unwrap_or(Proposal::Nothing), breach)
    }

    fn mover(&self, vm: VmId) -> Result<&'a Vgpu, Breach> {
        let vgpu = self.vms.get(&vm).ok_or(Breach::NoSuchVm)?;
        match (vgpu.leaves(), self.may_move(vgpu)) {
            (true, _) => Err(Breach::Leaving),
            (false, false) => Err(Breach::PassedOver),
            (false, true) => Ok(vgpu),
        }
    }

    fn admit_spill(
        &self,
        vm: VmId,
        chunks: Vec<ChunkNo>,
        cause: MoveCause,
    ) -> (Vec<ChunkNo>, Option<Breach>) {
        let vgpu = match self.mover(vm) {
            Ok(vgpu) => vgpu,
            Err(breach) => return (Vec::new(), Some(breach)),
        };
        let mut room = self.host_ram_left(vgpu);
        let (mut most, mut spare) = (self.spill_chunks_max(vgpu), above_min(vgpu));
        if self.exchanges_own(vgpu, &chunks, cause) {
            room = self.exchange_room(vgpu);
            (most, spare) = (most.max(1), spare.max(vgpu.config.chunk_bytes));
        }
        cut(vgpu, chunks, ChunkPlace::is_in_vram, |count, bytes| match () {
            () if bytes > room => Some(Breach::HostRam),
            () if count > most || bytes > spare => Some(Breach::MinOrBatch),
            () => None,
        })
    }

    /// What comes needs no more frames than what leaves has, and all of that is needed: the VM holds as much as before, and less by no more than
    /// parts of a chunk.
    fn admit_exchange(
        &self,
        vm: VmId,
        leave: Vec<ChunkNo>,
        come: Vec<ChunkNo>,
    ) -> (Vec<ChunkNo>, Vec<ChunkNo>, Option<Breach>) {
        let vgpu = match self.mover(vm) {
            Ok(vgpu) => vgpu,
            Err(breach) => return (Vec::new(), Vec::new(), Some(breach)),
        };
        let most = self.exchange_chunks_max(vgpu);
        let room = self.exchange_room(vgpu);
        let (mut leave, breach) = cut(vgpu, leave, ChunkPlace::is_in_vram, |count, bytes| match () {
            () if count > most => Some(Breach::MinOrBatch),
            () if bytes > room => Some(Breach::HostRam),
            () => None,
        });
        let left = vgpu.chunks.bytes_of(&leave);
        let is_there = |place: &ChunkPlace| *place == ChunkPlace::Spilled;
        let (come, too_much) = cut(vgpu, come, is_there, |count, bytes| match () {
            () if count > most => Some(Breach::MaxOrBatch),
            () if bytes > left => Some(Breach::NoFrames),
            () => None,
        });
        let breach = breach.or(too_much);
        let comes = vgpu.chunks.bytes_of(&come);
        while let Some(last) = leave.pop() {
            if vgpu.chunks.bytes_of(&leave) < comes {
                leave.push(last);
                break;
            }
        }
        match vgpu.chunks.bytes_of(&leave) - comes <= above_min(vgpu) {
            true => (leave, come, breach),
            false => (Vec::new(), Vec::new(), breach.or(Some(Breach::MinOrBatch))),
        }
    }

    /// Most chunks of the VM that one exchange may take away, and as many that it may bring: half a batch each, or one. None where host RAM has no
    /// room for it, and none while the VM holds more than its `high`, above which nothing comes.
    fn exchange_chunks_max(&self, vgpu: &Vgpu) -> usize {
        let chunk = vgpu.config.chunk_bytes;
        let quota = vgpu.quota();
        let most = match () {
            () if vgpu.chunks.resident() > quota.high.min(quota.max) => 0,
            () if vgpu.was_refused => 1,
            () => (self.figures.batch_bytes / 2 / chunk).max(1),
        };
        most.min(self.exchange_room(vgpu) / chunk) as usize
    }

    /// Whether a move that has stopped nothing yet may go on: quotas may have changed since it was admitted.
    pub(super) fn still_allow(&self, head: &Head) -> bool {
        let Some(vgpu) = self.vms.get(&head.vm) else {
            return false;
        };
        let has_frames = |chunk: &ChunkNo| vgpu.chunks.is_split(*chunk);
        match head.direction {
            Direction::Spill => self.may_leave(vgpu, &head.chunks, head.bytes_then(vgpu), head.cause),
            Direction::Refill if head.chunks.iter().all(has_frames) => true,
            Direction::Refill => vgpu.chunks.bytes_of(&head.chunks) <= below_max(vgpu).min(below_high(vgpu)),
        }
    }

    /// Whether the VM may lose chunks from VRAM, for which so many bytes of others come.
    pub(super) fn may_leave(&self, vgpu: &'a Vgpu, chunks: &[ChunkNo], comes: u64, cause: MoveCause) -> bool {
        cause == MoveCause::Shown
            || vgpu.chunks.bytes_of(chunks).saturating_sub(comes) <= above_min(vgpu)
            || self.exchanges_own(vgpu, chunks, cause)
    }

    /// Whether what comes in an exchange may come, now that what leaves has left.
    pub(super) fn allow_second_half(&self, vgpu: &Vgpu, head: &Head) -> bool {
        head.bytes_then(vgpu) <= below_max(vgpu).min(below_high(vgpu))
    }

    /// Bytes of host RAM for an idle chunk that goes for the sake of another of the VM's: at its `high` or `max` there is always room for one,
    /// because in the end host RAM holds no more than before.
    fn exchange_room(&self, vgpu: &Vgpu) -> u64 {
        let (left, chunk) = (self.host_ram_left(vgpu), vgpu.config.chunk_bytes);
        match below_max(vgpu).min(below_high(vgpu)) < chunk {
            true => left.max(chunk),
            false => left,
        }
    }

    /// An idle chunk goes so that one that the VM wants gets its frames: `min` protects what others could take.
    fn exchanges_own(&self, vgpu: &'a Vgpu, chunks: &[ChunkNo], cause: MoveCause) -> bool {
        let own = MoveCause::Idle { taken_for: vgpu.id };
        let idle = |&chunk: &ChunkNo| vgpu.chunks.contains(chunk) && vgpu.chunks.is_idle(chunk);
        cause == own
            && chunks.iter().all(idle)
            && self.view(vgpu).is_some_and(|view| view.wanted + view.asked > 0)
    }

    fn admit_refill(&self, vm: VmId, chunks: Vec<ChunkNo>) -> (Vec<ChunkNo>, Option<Breach>) {
        let vgpu = match self.mover(vm) {
            Ok(vgpu) => vgpu,
            Err(breach) => return (Vec::new(), Some(breach)),
        };
        let most = self.refill_bytes_max(vgpu);
        let is_there = |place: &ChunkPlace| *place == ChunkPlace::Spilled;
        cut(vgpu, chunks, is_there, |_, bytes| match () {
            () if bytes > most => Some(Breach::MaxOrBatch),
            () if bytes > self.figures.free => Some(Breach::NoFrames),
            () => None,
        })
    }

    /// Demanded chunks may have host RAM whatever `host_ram` says: it was promised when the VM started.
    fn admit_host_ram(
        &self,
        chunks: Vec<(VmId, Vec<ChunkNo>)>,
    ) -> (Vec<(VmId, Vec<ChunkNo>)>, Option<Breach>) {
        let mut breach = None;
        let mut admitted: Vec<(VmId, Vec<ChunkNo>)> = Vec::new();
        for (vm, wanted) in chunks {
            let known = admitted.iter().any(|(other, _)| *other == vm);
            let demanded = self.demands.of(vm).map_or(&[][..], |demand| &demand.chunks);
            let wanted = match (known, wanted == demanded) {
                (false, true) => wanted,
                (true, _) => Vec::new(),
                (false, false) => {
                    let mut left: BTreeSet<ChunkNo> = demanded.iter().copied().collect();
                    let before = wanted.len();
                    let kept: Vec<_> = wanted.into_iter().filter(|chunk| left.remove(chunk)).collect();
                    breach = breach.or((kept.len() < before).then_some(Breach::NotDemanded));
                    kept
                }
            };
            match wanted.is_empty() {
                true => breach = breach.or(Some(Breach::NotDemanded)),
                false => admitted.push((vm, wanted)),
            }
        }
        (admitted, breach)
    }
}

/// The chunks of a move up to the first that would break a limit, without those that cannot move. `limit` is asked with
/// the number of chunks and their bytes, the chunk in question among them.
fn cut(
    vgpu: &Vgpu,
    chunks: Vec<ChunkNo>,
    is_there: impl Fn(&ChunkPlace) -> bool,
    limit: impl Fn(usize, u64) -> Option<Breach>,
) -> (Vec<ChunkNo>, Option<Breach>) {
    let mut breach = None;
    let mut admitted = Vec::new();
    let mut seen = BTreeSet::new();
    let mut sum = 0;
    for chunk in chunks {
        let can_move = vgpu.chunks.contains(chunk)
            && is_there(vgpu.chunks.place(chunk))
            && vgpu.chunks.can_move(chunk)
            && seen.insert(chunk);
        if !can_move {
            breach = breach.or(Some(Breach::NotMovable));
            continue;
        }
        sum += vgpu.chunks.bytes(chunk);
        if let Some(broken) = limit(admitted.len() + 1, sum) {
            breach = breach.or(Some(broken));
            break;
        }
        admitted.push(chunk);
    }
    (admitted, breach)
}

/// The work of the VM that waits for memory, if some does.
fn work_view(vgpu: &Vgpu) -> Option<WorkView<'_>> {
    let (v, since) = vgpu.held_work()?;
    let work = vgpu.work.channels.get(&v)?;
    Some(WorkView {
        next: work.next()?,
        later: work.later().collect(),
        running: vgpu.work.channels.values().map(ChannelWork::running).collect(),
        since,
    })
}

impl Running {
    pub(super) fn limits(&self, now: Tick) -> Limits<'_> {
        Limits {
            vms: &self.vms,
            demands: &self.demands,
            figures: self.figures(now),
        }
    }

    pub(super) fn figures(&self, now: Tick) -> Figures {
        Figures {
            free: self.free_bytes(),
            batch_bytes: self.batch_bytes_max(),
            host_ram: self.config.host_ram,
            claim: self.claim.map(|claim| (claim.vm, claim.bytes)),
            aside: self.mover.aside.as_ref().map(|moving| moving.head.vm),
            now,
        }
    }

    /// Most bytes in one move, whatever the configuration says: the copy window, and the pushbuffer at a run for each
    /// second page; less where the CPU copies. And no more than is copied in the time of one suspension.
    pub(super) fn batch_bytes_max(&self) -> u64 {
        let in_time = self.forecast.bytes_within(self.config.copy_budget_ns);
        let configured = self.config.batch_bytes.min(in_time);
        match self.card.copies_by_window {
            true => configured.min(BATCH_BYTES_BY_WINDOW),
            false => configured.min(WINDOW_BYTES).min(RUNS_MAX as u64 * SMALL_PAGE),
        }
    }

    /// Old copies in images go as soon as all images together hold more than `host_ram`.
    pub(super) fn trim_images(&mut self, cx: &mut Cx<'_>) {
        let total =
            |vms: &BTreeMap<VmId, Vgpu>| -> u64 { vms.values().map(|vgpu| vgpu.chunks.image_bytes()).sum() };
        while total(&self.vms) > self.config.host_ram {
            let Some((vgpu, chunk)) = self
                .vms
                .values_mut()
                .find_map(|vgpu| vgpu.chunks.take_stale().map(|chunk| (vgpu, chunk)))
            else {
                return;
            };
            let base = vgpu.chunks.base(chunk);
            for (start, bytes) in vgpu.chunks.data_runs(chunk) {
                cx.actions.push(Action::DropImage {
                    vm: vgpu.id,
                    at: base.offset(start),
                    bytes,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
