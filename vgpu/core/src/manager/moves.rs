//! What each step of a move does to the card, the VM and its memory. The machine itself is [`mover`](super::mover), its beginning
//! [`preparing`](super::preparing).
//!
//! * Stores by the CPU wait while a chunk moves; loads are served from the old place until Redirecting.
//! * The old copy dies only after the flush that follows the redirect, and after the channels run again: to free it takes time.
//! * Where maps pin memory, the chunks' images are mapped first; if the host refuses one, the move is rolled back.

use fermi_spec::addr::{FRAME, FrameNo, GpuVa, SMALL_PAGE};
use fermi_spec::engine::Engine;
use planted::Fault;
use std::collections::BTreeMap;

use super::Cx;
use super::images::check_image;
use super::live_windows::give_back_to;
use super::mover::{ChunkFrames, CopyWork, Head, Move, Stage};
use super::parts::Begun;
use super::running::Running;
use super::window_copy::WindowCopy;
use crate::contained::contained;
use crate::device::{Blocked, Pointing, Vgpu};
use crate::event::{Action, Actions, VmId};
use crate::host::Job;
use crate::host::card::OWN_CHANNEL;
use crate::host::copy::{WINDOW_VA, add_runs, sysram_pte};
use crate::memory::{ChunkNo, ChunkPlace, Reach, Split};
use crate::notice::{Direction, MoveId, Notice};
use crate::policy::{Observation, Worth};
use crate::reason::{ChannelFault, HostFault, Inconsistency, MoveCause, RollBack};

/// A copy that takes longer than this is given up: the engine is somebody else's for too long, or stuck. Less than what
/// a guest's access may be held.
const COPY_BUDGET_NS: u64 = 80_000_000;
/// Tries to see the broker's own channel off the card before the engine is asked whether it is stuck: 1 s.
const OWN_TRIES: u32 = 50;
/// How long a VM whose move was rolled back is passed over; and where a window is to show a page, for which its guest waits.
const PASS_OVER_NS: u64 = 100_000_000;
const SHOWN_AGAIN_NS: u64 = 10_000_000;

impl Running {
    /// A move that was rolled back and that no engine has a part in any more.
    pub(super) fn forget_move(&mut self, cx: &mut Cx<'_>) {
        let Some(Move { head, .. }) = self.mover.current.take() else {
            return;
        };
        let standing: Vec<ChunkNo> = head.standing().collect();
        let targets = head.targets.into_values().flatten();
        match head.first_half {
            Some(first) => self.undo_second_half((head.vm, head.cause), first, targets, cx),
            None => self.free_frames(head.vm, targets, cx),
        }
        self.unmap_images(head.vm, standing, cx);
    }

    /// Gives a move up that no engine has a part in.
    pub(super) fn give_up(&mut self, reason: RollBack, cx: &mut Cx<'_>) {
        self.roll_back(reason, cx);
        self.forget_move(cx);
    }

    /// The chunks stay where they are; the VM goes on and is passed over for a while.
    pub(super) fn roll_back(&mut self, reason: RollBack, cx: &mut Cx<'_>) {
        let Some(moving) = &self.mover.current else { return };
        moving.tell_stage(cx);
        cx.tell(moving.rolled_back(reason));
        let vm = moving.head.vm;
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            for chunk in moving.head.standing() {
                vgpu.chunks.set_moving(chunk, false);
                give_back_to(vgpu, chunk);
            }
            // A move that its new quota does not allow says nothing about the next one.
            if reason != RollBack::QuotaChanged {
                let is_shown = moving.head.cause == MoveCause::Shown;
                let over_ns = if is_shown { SHOWN_AGAIN_NS } else { PASS_OVER_NS };
                vgpu.passed_over_until = cx.now.after(over_ns);
            }
        }
        if !moving.head.stays() {
            let what = Observation::RolledBack {
                vm,
                direction: moving.head.direction,
                chunks: &moving.head.chunks,
            };
            self.pass_wanted |= self.policy.observe(&what) == Worth::Pass;
        }
        if !planted::is(Fault::RollBackForgetsResume) {
            self.resume(true, cx.now);
        }
        self.wake_after_move(vm);
    }

    /// Shows both ends of the copies to whoever copies, and lists them.
    pub(super) fn map_copy(&mut self, mut head: Head, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get(&head.vm) else {
            return;
        };
        let (frames, bus) = (&self.frames, &self.iova);
        let by_window = self.card.copies_by_window;
        let planned = contained("listing what is copied", || {
            let foreign = |frame: &&FrameNo| !frames.is_held(**frame, head.vm);
            let mut all = copied_chunks(&head, vgpu).flat_map(|(_, frames)| frames);
            check_image(vgpu, bus)?;
            match all.find(foreign) {
                Some(frame) => Err(Inconsistency::frame(*frame)),
                None if by_window => Ok((Vec::new(), CopyWork::Window(WindowCopy::plan(&head, vgpu)))),
                None => Ok(plan_copy(&head, vgpu)),
            }
        });
        let Some((ptes, mut work)) = self.believe(head.vm, planned.flatten()) else {
            let work = CopyWork::default();
            self.mover.current = Some(Move::new(head, Stage::Mapping { work }, cx.now));
            return self.give_up(RollBack::Inconsistent, cx);
        };
        match &mut work {
            CopyWork::Window(copy) => {
                head.copied = copy.bytes_left();
                copy.show_next_frames(head.id, &mut self.card, cx);
            }
            CopyWork::Engine(runs) => {
                head.copied = runs.iter().map(|run| run.bytes).sum();
                self.card.map_window(&ptes, cx.actions);
                let directory = self.card.own.directory;
                self.card.flush_tlb(Some(directory), Job::WindowFlushed(head.id));
                if head.copied > 0 {
                    self.ask_engines(head.id, &[Engine::Copy0, Engine::Copy1], cx);
                }
            }
        }
        self.mover.current = Some(Move::new(head, Stage::Mapping { work }, cx.now));
    }

    /// The card sees what it copies from and to: go.
    pub(super) fn window_flushed(&mut self, id: MoveId, cx: &mut Cx<'_>) {
        let Some(moving) = self.mover.get(id) else { return };
        if moving.head.is_refused {
            let vm = moving.head.vm;
            self.give_up(RollBack::MapRefused, cx);
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.was_refused = true;
            }
            return;
        }
        if let Stage::Mapping { work } = &mut moving.stage {
            let work = std::mem::take(work);
            moving.head.copy_began = cx.now;
            moving.enter(Stage::Copying { work }, cx);
        }
        match &mut moving.stage {
            Stage::Copying {
                work: CopyWork::Window(_),
            } => self.go_on_by_window(cx),
            Stage::Copying {
                work: CopyWork::Engine(runs),
            } => {
                let runs = std::mem::take(runs);
                if runs.is_empty() {
                    return self.redirect(cx);
                }
                self.card.start_copy(&runs, cx.memory, cx.actions);
                if planted::is(Fault::ResumeBeforeCopied) {
                    self.resume(false, cx.now);
                }
            }
            _ => {}
        }
    }

    /// Looks whether the copy has ended. `true` if that changed something.
    pub(super) fn check_copy(&mut self, cx: &mut Cx<'_>) -> bool {
        if self.verify_copy(cx) {
            return true;
        }
        let Some(moving) = &mut self.mover.current else {
            return false;
        };
        match &moving.stage {
            Stage::Copying {
                work: CopyWork::Window(_),
            } => self.check_window_copy(cx),
            Stage::Verifying { look } if self.volatile.scan.has_finished(*look) => {
                self.redirect(cx);
                true
            }
            Stage::Copying { .. } if cx.now.since(moving.since) > COPY_BUDGET_NS => {
                self.copy_failed(None, None, cx);
                true
            }
            _ => false,
        }
    }

    /// Begins the look at the card behind the end of an engine's copy, by which the copy is believed. `false` if none has ended: the card was
    /// not looked at.
    pub(super) fn verify_copy(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(moving) = &mut self.mover.current else {
            return false;
        };
        let is_copied = matches!(
            moving.stage,
            Stage::Copying {
                work: CopyWork::Engine(_)
            }
        );
        if !is_copied || !self.card.copy_done(cx.memory) {
            return false;
        }
        if planted::is(Fault::CopyNotVerified) {
            self.redirect(cx);
            return true;
        }
        let look = self.volatile.scan.next_look();
        moving.enter(Stage::Verifying { look }, cx);
        self.look_at_card(cx);
        true
    }

    /// The broker's own channel is in trouble: it did wrong, or took too long. What it was copying stays where it is;
    /// nothing else moves until the channel is off the card, because until then the engine may still write the targets.
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
        cx.tell(Notice::HostError { fault });
        let is_copied =
            |moving: &Move| matches!(moving.stage, Stage::Copying { .. } | Stage::Verifying { .. });
        if !self.mover.current.as_ref().is_some_and(is_copied) {
            return;
        }
        self.roll_back(reason, cx);
        if let Some(moving) = &mut self.mover.current {
            moving.since = cx.now;
            moving.stage = Stage::Abandoned;
        }
        self.restore_engine(OWN_CHANNEL, engine, cx);
        self.stop_channel(OWN_CHANNEL, Job::OwnReset);
        if planted::is(Fault::AbandonedNotAwaited) {
            self.own_reset(true, cx);
        }
    }

    /// The broker's channel is off the card: nobody writes the targets any more. If it does not go by itself, its
    /// engine is stuck and is reset.
    pub(super) fn own_reset(&mut self, ok: bool, cx: &mut Cx<'_>) {
        if !ok {
            self.mover.own_tries += 1;
            if self.mover.own_tries.is_multiple_of(OWN_TRIES) {
                self.evict(OWN_CHANNEL, cx);
            }
            return self.stop_channel(OWN_CHANNEL, Job::OwnReset);
        }
        self.mover.own_tries = 0;
        let Some(moving) = &self.mover.current else { return };
        if matches!(moving.stage, Stage::Abandoned) {
            let vm = moving.head.vm;
            moving.tell_stage(cx);
            self.forget_move(cx);
            self.card.restart_own_channel();
            self.wake_after_move(vm);
        }
    }

    /// The copies are equal: everything that reaches the chunks is pointed to the new ones.
    pub(super) fn redirect(&mut self, cx: &mut Cx<'_>) {
        let Some(moving) = &mut self.mover.current else {
            return;
        };
        let head = &mut moving.head;
        let Some(vgpu) = self.vms.get_mut(&head.vm) else {
            return;
        };
        head.copying_ns = cx.now.since(head.copy_began);
        self.forecast.note_copy(head.copied, head.copying_ns);
        let vm = head.vm;
        let actions = &mut *cx.actions;
        let placed = contained("placing its chunks anew", || place_anew(head, vgpu, actions));
        if let Some(placed) = Begun::of(head) {
            let is_split = vgpu.chunks.is_split(placed.chunk);
            self.mover.note_placed(&placed, is_split);
        }
        let Some(moving) = &self.mover.current else { return };
        let standing = moving.head.stands.clone();
        let mut emptied = self.believe(vm, placed).unwrap_or_default();
        if !standing.is_empty() {
            self.show_while_standing(vm, &standing, cx);
        }
        let early = planted::is(Fault::FramesFreeBeforeFlush).then(|| std::mem::take(&mut emptied));
        if let Some(moving) = &mut self.mover.current {
            let stage = Stage::Redirecting {
                rest: Some(Pointing::default()),
                freed: Vec::new(),
                emptied,
            };
            moving.enter(stage, cx);
        }
        self.point_to_new_place(cx);
        self.free_frames(
            vm,
            early.into_iter().flat_map(BTreeMap::into_values).flatten(),
            cx,
        );
    }

    /// Nothing reaches the old copies any more: the second half of an exchange follows, or the channels go on.
    pub(super) fn move_flushed(&mut self, id: MoveId, cx: &mut Cx<'_>) {
        let is_flushed =
            |moving: &mut Move| moving.head.id == id && matches!(moving.stage, Stage::Redirecting { .. });
        let Some(moving) = self.mover.current.take_if(is_flushed) else {
            return;
        };
        moving.tell_stage(cx);
        let Move { head, stage, .. } = moving;
        let Stage::Redirecting { freed, emptied, .. } = stage else {
            return;
        };
        if self.turns_round(&head, cx.now) {
            return self.turn_round(head, freed, emptied, cx);
        }
        let stage = Stage::Resuming { freed, emptied };
        self.mover.current = Some(Move::new(head, stage, cx.now));
        if !self.resume(false, cx.now) {
            self.finish_move(id, None, cx);
        }
    }

    /// Ends a move whose channels run again, or that had none to suspend: the old place is free.
    pub(super) fn finish_move(&mut self, id: MoveId, pause_ns: Option<u64>, cx: &mut Cx<'_>) {
        let is_over =
            |moving: &mut Move| moving.head.id == id && matches!(moving.stage, Stage::Resuming { .. });
        let Some(moving) = self.mover.current.take_if(is_over) else {
            return;
        };
        moving.tell_stage(cx);
        let Move { head, stage, .. } = moving;
        let Stage::Resuming { freed, emptied } = stage else {
            return;
        };
        let Some(bytes) = self.arrived(&head, pause_ns, cx) else {
            return;
        };
        self.free_tables(head.vm, &freed);
        self.unmap_images(head.vm, head.chunks, cx);
        self.free_frames(head.vm, emptied.into_values().flatten(), cx);
        if head.direction == Direction::Spill && bytes > 0 {
            self.note_collected(head.cause, bytes);
        }
        if let Some(first) = head.first_half {
            self.free_tables(head.vm, &first.freed);
            self.free_frames(head.vm, first.frames, cx);
        }
        self.wake_after_move(head.vm);
    }

    /// The chunks are in their new place: they may be stored to, and it is told. Returns the bytes of those that are there as a whole.
    pub(super) fn arrived(&mut self, head: &Head, pause_ns: Option<u64>, cx: &mut Cx<'_>) -> Option<u64> {
        let vgpu = self.vms.get_mut(&head.vm)?;
        for chunk in head.standing() {
            vgpu.chunks.set_moving(chunk, planted::is(Fault::MoveNeverEnds));
            give_back_to(vgpu, chunk);
        }
        let bytes = head.bytes(vgpu);
        let arrived = match head.leaves_a_rest(&vgpu.chunks) {
            true => &[],
            false => head.moved(),
        };
        let whole = vgpu.chunks.bytes_of(arrived);
        for &chunk in arrived {
            vgpu.chunks.note_moved(chunk, cx.now);
            if matches!(vgpu.chunks.place(chunk), ChunkPlace::Resident(_)) {
                vgpu.chunks.keep_stale(chunk);
            }
        }
        cx.tell(Notice::Moved {
            vm: head.vm,
            id: head.id,
            direction: head.direction,
            cause: head.cause,
            chunks: arrived.len() as u32,
            bytes,
            copied: head.copied,
            pause_ns,
        });
        if !arrived.is_empty() {
            self.observe(&Observation::Moved {
                vm: head.vm,
                direction: head.direction,
                chunks: arrived,
            });
        }
        Some(whole)
    }

    /// Requests that waited for the move try again.
    pub(super) fn wake_after_move(&mut self, vm: VmId) {
        let waits = self.vms.get(&vm).is_some_and(|vgpu| {
            matches!(
                vgpu.blocked,
                Some(Blocked::Move { .. } | Blocked::Sync(_) | Blocked::Reset { .. })
            )
        });
        if waits {
            self.volatile.ready.insert(vm);
        }
    }
}

/// Entries of the window for a move's image, and the copies between it and the frames.
fn plan_copy(head: &Head, vgpu: &Vgpu) -> (Vec<u64>, CopyWork) {
    let (mut ptes, mut runs) = (Vec::new(), Vec::new());
    for (chunk, frames) in copied_chunks(head, vgpu) {
        let image = vgpu.chunks.image().offset(vgpu.chunks.base(chunk).0);
        let frames_shown = head.frames_within(&vgpu.chunks, chunk);
        let [from, to] = [frames_shown.start, frames_shown.end].map(|frame| u64::from(frame) * FRAME);
        let shown_at = WINDOW_VA.offset(ptes.len() as u64 * SMALL_PAGE);
        // Where the chunk would begin.
        let window = GpuVa(shown_at.0 - from);
        for page in from / SMALL_PAGE..to / SMALL_PAGE {
            ptes.push(sysram_pte(image.offset(page * SMALL_PAGE)).into_bits());
        }
        for (start, mut bytes) in head.data_runs(&vgpu.chunks, chunk) {
            if planted::is(Fault::CopyShort) && bytes > SMALL_PAGE {
                bytes -= SMALL_PAGE;
            }
            add_runs(&mut runs, frames, window, start, bytes, head.direction);
        }
    }
    (ptes, CopyWork::Engine(runs))
}

/// The chunks of a move are where it brought them. Returns the frames that are left.
fn place_anew(head: &mut Head, vgpu: &mut Vgpu, actions: &mut Actions) -> ChunkFrames {
    let mut emptied = ChunkFrames::new();
    let rest = head.part.clone().filter(|_| head.leaves_a_rest(&vgpu.chunks));
    for chunk in head.moved().to_vec() {
        match head.direction {
            Direction::Spill => {
                let before = vgpu.chunks.set_place(chunk, ChunkPlace::Spilled);
                match (before.into_frames(), &rest) {
                    (Some(frames), Some(part)) => {
                        let out = part.end;
                        vgpu.chunks
                            .set_place(chunk, ChunkPlace::Split(Split { frames, out }));
                    }
                    (Some(frames), None) => drop(emptied.insert(chunk, frames)),
                    (None, _) => {}
                }
                if planted::is(Fault::ImagePageDropped) {
                    let (vm, at, bytes) = (head.vm, vgpu.chunks.base(chunk), SMALL_PAGE);
                    actions.push(Action::DropImage { vm, at, bytes });
                }
                vgpu.was_refused = false;
            }
            Direction::Refill => {
                let comes = head.targets.remove(&chunk);
                let Some(frames) = comes.or_else(|| vgpu.chunks.place(chunk).frames().map(Into::into)) else {
                    continue;
                };
                let place = match (&rest, vgpu.chunks.reach(chunk)) {
                    (Some(part), _) => {
                        let out = part.start;
                        ChunkPlace::Split(Split { frames, out })
                    }
                    // Of what came before it nobody knows whether it was stored to since.
                    (None, _) if head.part.is_some() => ChunkPlace::Resident(frames),
                    (None, Reach::Writable) => ChunkPlace::Resident(frames),
                    (None, Reach::None | Reach::ReadOnly) => ChunkPlace::Both(frames),
                };
                vgpu.chunks.set_place(chunk, place);
            }
        }
    }
    emptied
}

/// Chunks of a move that have to be copied, with their frames. One that is in both places already needs no copy.
pub(super) fn copied_chunks<'a>(
    head: &'a Head,
    vgpu: &'a Vgpu,
) -> impl Iterator<Item = (ChunkNo, &'a [FrameNo])> {
    head.moved().iter().filter_map(|&chunk| {
        let frames = match (head.direction, vgpu.chunks.place(chunk)) {
            (Direction::Spill, ChunkPlace::Resident(frames)) => frames,
            (_, ChunkPlace::Split(split)) => &split.frames,
            (Direction::Refill, ChunkPlace::Spilled) => head.targets.get(&chunk)?,
            _ => return None,
        };
        Some((chunk, frames.as_ref()))
    })
}
