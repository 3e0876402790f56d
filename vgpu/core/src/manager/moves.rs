//! Moving chunks: spill and refill are one machine run in two directions.
//!
//! ```text
//! start ──no writers──────────────► Mapping ─► Copying ─► Verifying ─► Redirecting ─► done
//!   └─ Suspending ─all off the card─►┘            │ failed or over-long       (channels resume, frames or images freed)
//!           └ not in time ─► rolled back          └► Abandoned: channels resume, the chunk stays; nothing else moves
//!                                                     until the broker's own channel has been reset
//! ```
//!
//! * Stores by the CPU wait while a chunk moves; loads are served from the old place until Redirecting.
//! * The old copy dies only after the flush that follows the redirect.
//! * Where maps pin memory, the chunks' images are mapped first; if the host refuses one, the move is rolled back.
//! * One move at a time, so at most one VM is suspended for copying.

use std::collections::BTreeMap;

use fermi_spec::addr::{FrameNo, GuestVramAddr, SMALL_PAGE};
use fermi_spec::engine::Engine;
use shadow_pt::TableRange;

use super::Cx;
use super::running::Running;
use super::window_copy::WindowCopy;
use crate::device::tables::{ArenaWriter, Whereabouts};
use crate::device::{Blocked, Vgpu};
use crate::event::{Action, FrameOwner, Tick, VmId};
use crate::host::card::OWN_CHANNEL;
use crate::host::copy::{WINDOW_VA, add_runs, sysram_pte};
use crate::host::{CopyRun, Job, PhysChannel};
use crate::inspect::{Inspect, Tree};
use crate::memory::{ChunkNo, ChunkPlace, Reach};
use crate::notice::{Direction, MoveId, Notice};
use crate::policy::{Observation, Worth};
use crate::reason::{ChannelFault, HostFault, MoveCause, RollBack};

/// A copy that takes longer than this is given up: the engine is somebody else's for too long, or stuck. Less than what
/// a guest's access may be held.
const COPY_BUDGET_NS: u64 = 80_000_000;
/// Tries to see the broker's own channel off the card before the engine is asked whether it is stuck: 1 s.
const OWN_TRIES: u32 = 50;
/// How long a VM whose move was rolled back is passed over.
const PASS_OVER_NS: u64 = 100_000_000;
/// Interval at which a copy is looked at should its interrupt be lost.
pub(super) const COPY_CHECK_NS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Suspending,
    Mapping,
    Copying,
    /// The copy's end was seen; the card is asked whether it reports an error, for that does not keep the end away.
    Verifying {
        look: u64,
    },
    Redirecting,
    Abandoned,
}

/// Chunks of one VM on their way.
#[derive(Debug)]
pub(super) struct Move {
    id: MoveId,
    pub(super) vm: VmId,
    pub(super) direction: Direction,
    cause: MoveCause,
    pub(super) chunks: Vec<ChunkNo>,
    /// Frames that a refill fills, by chunk; frames that a spill empties, once it has redirected.
    pub(super) frames: BTreeMap<ChunkNo, Box<[FrameNo]>>,
    pub(super) stage: Stage,
    /// Channels taken off the card for it.
    suspended: Vec<(u8, PhysChannel)>,
    suspended_at: Option<Tick>,
    pub(super) copying_since: Tick,
    runs: Vec<CopyRun>,
    /// What the CPU copies, where engines cannot.
    pub(super) by_window: WindowCopy,
    freed: Vec<TableRange>,
    /// The host did not map one of the images.
    pub(super) refused: bool,
}

impl Move {
    /// What to tell of a move that is given up.
    pub(super) fn rolled_back(&self, reason: RollBack) -> Notice {
        Notice::RolledBack {
            vm: self.vm,
            id: self.id,
            direction: self.direction,
            cause: self.cause,
            reason,
        }
    }
}

impl Running {
    /// Starts a move. `frames` holds the target of each chunk of a refill. `false`: it could not be started, and
    /// nothing changed.
    pub(super) fn start_move(
        &mut self,
        vm: VmId,
        (direction, cause): (Direction, MoveCause),
        chunks: Vec<ChunkNo>,
        frames: BTreeMap<ChunkNo, Box<[FrameNo]>>,
        cx: &mut Cx<'_>,
    ) -> bool {
        assert!(self.moving.is_none(), "one move at a time");
        if direction == Direction::Spill && !self.reserve_tables(vm, &chunks, cx) {
            return false;
        }
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        assert!(
            !vgpu.leaves(),
            "{vm} is leaving: its frames may be another's before the move ends"
        );
        self.moves += 1;
        let id = MoveId(self.moves);
        cx.actions.notice(Notice::MoveStarted {
            vm,
            id,
            direction,
            cause,
            chunks: chunks.len() as u32,
            bytes: chunks.iter().map(|&chunk| vgpu.chunks.bytes(chunk)).sum(),
        });
        let writers = writers(vgpu, &chunks);
        for &chunk in &chunks {
            vgpu.chunks.set_moving(chunk, true);
        }
        for (v, _) in &writers {
            if let Some(channel) = vgpu.channels.get_mut(v) {
                channel.suspended = true;
            }
        }
        let stage = if writers.is_empty() {
            Stage::Mapping
        } else {
            Stage::Suspending
        };
        let mapped = chunks.clone();
        let physical: Vec<PhysChannel> = writers.iter().map(|(_, physical)| *physical).collect();
        self.moving = Some(Move {
            id,
            vm,
            direction,
            cause,
            chunks,
            frames,
            stage,
            suspended: writers,
            suspended_at: (stage == Stage::Suspending).then_some(cx.now),
            copying_since: cx.now,
            runs: Vec::new(),
            by_window: WindowCopy::default(),
            freed: Vec::new(),
            refused: false,
        });
        self.map_images(vm, &mapped, true, cx);
        if stage == Stage::Suspending {
            self.card
                .stop(&physical, false, self.config.suspend_budget_ns, Job::Suspended);
        } else {
            self.map_copy(cx);
        }
        true
    }

    /// A spilled large page needs a small-page table: have it before anything is stopped.
    fn reserve_tables(&mut self, vm: VmId, chunks: &[ChunkNo], cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        let places = Whereabouts {
            chunks: &vgpu.chunks,
            ram: &vgpu.ram,
            leaving: None,
        };
        let mut writer = ArenaWriter::new();
        let mut complete = true;
        for space in vgpu.spaces.values_mut() {
            let mut budget = vgpu.shadow.pages(&mut self.card.arena);
            for frame in chunks.iter().flat_map(|&chunk| vgpu.chunks.guest_frames(chunk)) {
                complete &= space.shadow.reserve(frame, &places, &mut budget, &mut writer);
            }
        }
        writer.emit(&self.card.arena, cx.actions);
        complete
    }

    /// The channels are off the card, or one of them was not in time.
    pub(super) fn suspended(&mut self, ok: bool, cx: &mut Cx<'_>) {
        let Some(moving) = &self.moving else { return };
        if moving.stage != Stage::Suspending {
            return;
        }
        if ok {
            self.commit_host_runlist(Job::Nothing);
            self.map_copy(cx);
            return;
        }
        cx.actions.notice(moving.rolled_back(RollBack::NotIdle));
        self.roll_back(cx);
        self.forget_move(cx);
    }

    /// A move that was rolled back and that no engine has a part in any more.
    pub(super) fn forget_move(&mut self, cx: &mut Cx<'_>) {
        self.release_targets(cx);
        if let Some(moving) = self.moving.take() {
            self.unmap_images(moving.vm, moving.chunks, cx);
        }
    }

    /// The chunks stay where they are; the VM goes on and is passed over for a while.
    pub(super) fn roll_back(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &self.moving else { return };
        let vm = moving.vm;
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            for &chunk in &moving.chunks {
                vgpu.chunks.set_moving(chunk, false);
            }
            vgpu.passed_over_until = cx.now.after(PASS_OVER_NS);
        }
        let what = Observation::RolledBack {
            vm,
            direction: moving.direction,
            chunks: &moving.chunks,
        };
        self.pass_wanted |= self.policy.observe(&what) == Worth::Pass;
        self.resume(cx);
        self.wake_after_move(vm);
    }

    fn release_targets(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &mut self.moving else { return };
        let frames = std::mem::take(&mut moving.frames);
        self.free_frames(frames.into_values().flatten(), cx);
    }

    /// Maps the images of the chunks into the copy window and lists the copies.
    fn map_copy(&mut self, cx: &mut Cx<'_>) {
        if self.card.copies_by_window {
            return self.plan_window_copy(cx);
        }
        let Some(moving) = &mut self.moving else { return };
        let Some(vgpu) = self.vms.get(&moving.vm) else {
            return;
        };
        moving.stage = Stage::Mapping;
        let mut ptes = Vec::new();
        let mut runs = Vec::new();
        for &chunk in &moving.chunks {
            let frames = match (moving.direction, vgpu.chunks.place(chunk)) {
                (Direction::Spill, ChunkPlace::Resident(frames)) => frames,
                (Direction::Refill, ChunkPlace::Spilled) => &moving.frames[&chunk],
                // In both places already: nothing to copy.
                _ => continue,
            };
            let image = vgpu.chunks.image().offset(vgpu.chunks.base(chunk).0);
            let window = WINDOW_VA.offset(ptes.len() as u64 * SMALL_PAGE);
            for page in 0..vgpu.chunks.bytes(chunk) / SMALL_PAGE {
                ptes.push(sysram_pte(image.offset(page * SMALL_PAGE)).into_bits());
            }
            for (start, bytes) in vgpu.chunks.data_runs(chunk) {
                add_runs(&mut runs, frames, window, start, bytes, moving.direction);
            }
        }
        moving.runs = runs;
        self.card.map_window(&ptes, cx.actions);
        let directory = self.card.own.directory;
        self.card.flush_tlb(Some(directory), Job::WindowFlushed);
    }

    pub(super) fn window_flushed(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &mut self.moving else { return };
        if moving.refused {
            cx.actions.notice(moving.rolled_back(RollBack::MapRefused));
            let vm = moving.vm;
            self.roll_back(cx);
            self.forget_move(cx);
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.was_refused = true;
            }
            return;
        }
        if moving.stage == Stage::Mapping {
            moving.stage = Stage::Copying;
            moving.copying_since = cx.now;
        }
        if self.card.copies_by_window {
            return self.go_on_by_window(cx);
        }
        if moving.runs.is_empty() {
            return self.redirect(cx);
        }
        self.card.start_copy(&moving.runs, cx.memory, cx.actions);
    }

    /// Looks whether the copy has ended. `true` if that changed something.
    pub(super) fn check_copy(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(moving) = &mut self.moving else {
            return false;
        };
        match moving.stage {
            Stage::Copying if self.card.copies_by_window => self.check_window_copy(cx),
            Stage::Copying if self.card.copy_done(cx.memory) => {
                moving.stage = Stage::Verifying {
                    look: self.scan.next_look(),
                };
                self.look_at_card(cx);
                true
            }
            Stage::Verifying { look } if self.scan.has_finished(look) => {
                self.redirect(cx);
                true
            }
            Stage::Copying if cx.now.since(moving.copying_since) > COPY_BUDGET_NS => {
                self.copy_failed(None, None, cx);
                true
            }
            _ => false,
        }
    }

    /// The broker's own channel is in trouble: it did wrong, or took too long. What it was copying stays where it is; nothing else moves until the
    /// channel is off the card, because until then the engine may still write the targets.
    pub(super) fn copy_failed(
        &mut self,
        fault: Option<ChannelFault>,
        engine: Option<Engine>,
        cx: &mut Cx<'_>,
    ) {
        let channel = Some(OWN_CHANNEL.0);
        let (fault, reason) = match fault {
            Some(fault) => (HostFault::Channel { channel, fault }, RollBack::CopyFailed(fault)),
            None => (HostFault::CopyOverTime, RollBack::CopyOverTime),
        };
        cx.actions.notice(Notice::HostError { fault });
        let Some(moving) = &self.moving else { return };
        if !matches!(moving.stage, Stage::Copying | Stage::Verifying { .. }) {
            return;
        }
        cx.actions.notice(moving.rolled_back(reason));
        self.roll_back(cx);
        if let Some(moving) = &mut self.moving {
            moving.stage = Stage::Abandoned;
        }
        self.reset_engine(OWN_CHANNEL, engine, Job::OwnReset);
    }

    /// The broker's channel is off the card: nobody writes the targets any more. If it does not go by itself, its
    /// engine is stuck and is reset.
    pub(super) fn own_reset(&mut self, ok: bool, cx: &mut Cx<'_>) {
        if !ok {
            self.own_tries += 1;
            if self.own_tries.is_multiple_of(OWN_TRIES) {
                self.ask_holders(OWN_CHANNEL, cx);
            }
            return self.reset_engine(OWN_CHANNEL, None, Job::OwnReset);
        }
        self.own_tries = 0;
        if self
            .moving
            .as_ref()
            .is_some_and(|moving| moving.stage == Stage::Abandoned)
        {
            let vm = self.moving.as_ref().map(|moving| moving.vm);
            self.forget_move(cx);
            self.card.restart_own_channel();
            if let Some(vm) = vm {
                self.wake_after_move(vm);
            }
        }
    }

    /// The copies are equal: everything that reaches the chunks is pointed to the new ones.
    pub(super) fn redirect(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &mut self.moving else { return };
        moving.stage = Stage::Redirecting;
        let Some(vgpu) = self.vms.get_mut(&moving.vm) else {
            return;
        };
        for &chunk in &moving.chunks {
            match moving.direction {
                Direction::Spill => {
                    if let ChunkPlace::Resident(frames) | ChunkPlace::Both(frames) =
                        vgpu.chunks.set_place(chunk, ChunkPlace::Spilled)
                    {
                        moving.frames.insert(chunk, frames);
                    }
                    vgpu.was_refused = false;
                }
                Direction::Refill => {
                    let Some(frames) = moving.frames.remove(&chunk) else {
                        continue;
                    };
                    let place = match vgpu.chunks.reach(chunk) {
                        Reach::Writable => ChunkPlace::Resident(frames),
                        Reach::None | Reach::ReadOnly => ChunkPlace::Both(frames),
                    };
                    vgpu.chunks.set_place(chunk, place);
                }
            }
        }
        let places = Whereabouts {
            chunks: &vgpu.chunks,
            ram: &vgpu.ram,
            leaving: None,
        };
        let mut writer = ArenaWriter::new();
        for space in vgpu.spaces.values_mut() {
            let mut budget = vgpu.shadow.pages(&mut self.card.arena);
            for frame in moving
                .chunks
                .iter()
                .flat_map(|&chunk| vgpu.chunks.guest_frames(chunk))
            {
                let mut built = space.shadow.redirect(frame, &places, &mut budget, &mut writer);
                moving.freed.append(&mut built.freed);
            }
        }
        writer.emit(&self.card.arena, cx.actions);
        self.card.flush_tlb(None, Job::MoveFlushed);
    }

    /// Nothing reaches the old copies any more.
    pub(super) fn move_flushed(&mut self, cx: &mut Cx<'_>) {
        self.resume(cx);
        let Some(moving) = self.moving.take() else { return };
        let Some(vgpu) = self.vms.get_mut(&moving.vm) else {
            return;
        };
        let mut bytes = 0;
        for &chunk in &moving.chunks {
            vgpu.chunks.set_moving(chunk, false);
            bytes += vgpu.chunks.bytes(chunk);
            vgpu.chunks.note_moved(chunk, cx.now);
            if matches!(vgpu.chunks.place(chunk), ChunkPlace::Resident(_)) {
                vgpu.chunks.keep_stale(chunk);
            }
        }
        cx.actions.notice(Notice::Moved {
            vm: moving.vm,
            id: moving.id,
            direction: moving.direction,
            cause: moving.cause,
            chunks: moving.chunks.len() as u32,
            bytes,
            pause_ns: moving.suspended_at.map(|at| cx.now.since(at)),
        });
        self.observe(&Observation::Moved {
            vm: moving.vm,
            direction: moving.direction,
            chunks: &moving.chunks,
        });
        self.free_tables(moving.vm, &moving.freed);
        self.unmap_images(moving.vm, moving.chunks, cx);
        self.free_frames(moving.frames.into_values().flatten(), cx);
        self.wake_after_move(moving.vm);
    }

    /// Puts the suspended channels back; what was submitted meanwhile runs now.
    fn resume(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &mut self.moving else { return };
        let suspended = std::mem::take(&mut moving.suspended);
        if suspended.is_empty() {
            return;
        }
        let vm = moving.vm;
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let mut ring = Vec::new();
        for (v, physical) in suspended {
            // A channel that the guest unbound meanwhile, or bound anew, is not the one that was suspended.
            if let Some(channel) = vgpu
                .channels
                .get_mut(&v)
                .filter(|channel| channel.physical == physical)
            {
                channel.suspended = false;
                if !channel.killed {
                    ring.push((physical, channel.runnable, channel.gp_put));
                }
            }
        }
        let _ = cx;
        for (physical, runnable, _) in &ring {
            if *runnable {
                self.card.start(*physical);
            }
        }
        self.commit_host_runlist(Job::Nothing);
        for (physical, _, gp_put) in ring {
            if let Some(gp_put) = gp_put {
                self.card.ring_later(physical, gp_put);
            }
        }
    }

    /// Requests that waited for the move try again.
    fn wake_after_move(&mut self, vm: VmId) {
        let waits = self.vms.get(&vm).is_some_and(|vgpu| {
            matches!(
                vgpu.blocked,
                Some(Blocked::Move { .. } | Blocked::Sync(_) | Blocked::Reset { .. })
            )
        });
        if waits {
            self.ready.insert(vm);
        }
    }

    /// Frames that nothing reaches any more go back.
    pub(super) fn free_frames(&mut self, frames: impl IntoIterator<Item = FrameNo>, cx: &mut Cx<'_>) {
        for frame in frames {
            cx.actions.push(Action::PlaceFrame {
                frame,
                owner: FrameOwner::Free,
            });
            self.frames.release(frame);
        }
    }

    /// Takes frames for a chunk, all or none.
    pub(super) fn take_frames(
        &mut self,
        vm: VmId,
        at: GuestVramAddr,
        count: u32,
        cx: &mut Cx<'_>,
    ) -> Option<Box<[FrameNo]>> {
        if self.frames.free_count() < count {
            return None;
        }
        // Each VM searches from a place of its own.
        let start = u32::from(vm.0).wrapping_mul(self.layout.frames / 8);
        let frames: Box<[FrameNo]> = (0..count)
            .map(|i| {
                self.frames
                    .allocate(start.wrapping_add(i))
                    .expect("the count was checked; one caller")
            })
            .collect();
        for (i, &frame) in (0..).zip(&frames) {
            let owner = FrameOwner::Vm {
                vm,
                at: at.offset(i * fermi_spec::addr::FRAME),
            };
            cx.actions.push(Action::PlaceFrame { frame, owner });
        }
        Some(frames)
    }
}

/// Channels that can write any of the chunks: those whose address space maps one for stores.
fn writers(vgpu: &Vgpu, chunks: &[ChunkNo]) -> Vec<(u8, PhysChannel)> {
    let writable: Vec<_> = vgpu
        .spaces
        .iter()
        .filter(|(_, space)| {
            chunks
                .iter()
                .flat_map(|&chunk| vgpu.chunks.guest_frames(chunk))
                .any(|frame| space.shadow.reaches(frame).is_some_and(|reach| reach.writable))
        })
        .map(|(&id, _)| id)
        .collect();
    vgpu.channels
        .iter()
        .filter(|(_, channel)| writable.contains(&channel.space) && !channel.killed && !channel.suspended)
        .map(|(&v, channel)| (v, channel.physical))
        .collect()
}

impl Inspect for Move {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.number("number", self.id.0);
        tree.name("vm", self.vm);
        tree.name("direction", format_args!("{:?}", self.direction));
        tree.name("cause", self.cause);
        tree.name("stage", format_args!("{:?}", self.stage));
        tree.count("chunks", self.chunks.len());
        tree.count("channels_suspended", self.suspended.len());
        if let Some(at) = self.suspended_at {
            tree.age("suspended_since", at);
        }
        if self.copying_since != Tick::default() {
            tree.age("copying_since", self.copying_since);
        }
        tree.count("copies_left", self.runs.len());
    }
}
