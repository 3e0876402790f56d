//! The beginning of a move: everything that can be done before anything stands still.
//!
//! ```text
//! start_move ─► Reserving: tables ─► Preparing: the edge has pages ready ─► Resting: the VM has run its time ─► Awaiting (`moments`) ─┐
//!                 ▲                    └► given up: no memory                                                                         │
//!                 └── the guest has mapped them by more tables since ◄────────────────────────────────────────────────────────────────┤
//!                                        channels off the card, or the copy at once ◄── given up: no memory for a table, the VM goes ◄┘
//! ```
//!
//! Memory in VRAM is mapped by large entries, memory elsewhere by small ones. So a spill wants a table of 256 KiB, cleared, for each
//! directory entry that names its chunks, and the guest decides how many those are. They are cleared in steps, between which others' events come.
//!
//! A page that is touched first costs several times its copy: the host finds one and clears it. So the pages that the copy
//! will write are asked for first. The VM goes on meanwhile: it builds tables, submits work, stores through windows. What the move
//! relies on is looked at when it is about to stop something.
//!
//! Moves can come one behind the other: a `max` that was lowered by 40 chunks, a pass that brings back what fits. A VM that stood still
//! for one of them runs three times as long before the next one stops it, so that it stands for a quarter of its time. A move for a demand
//! or a window does not wait: the guest that made it stands still too.

use std::collections::BTreeSet;

use fermi_spec::addr::FRAME;
use planted::Fault;
use shadow_pt::{GuestFrame, Reserved, Work};

use super::Cx;
use super::isolation::Shadows;
use super::mover::{ChunkFrames, Head, Move, Stage};
use super::pauses::{LOOK_WORK, to_stop};
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Action, Tick, VmId};
use crate::memory::{ChunkNo, ChunkPlace, Piece};
use crate::notice::{Direction, MoveId};
use crate::reason::{Inconsistency, MoveCause, RollBack};

/// A VM runs so many times as long as its last pause was before it is stopped again: it stands still for a quarter of its time.
const RUNS_FOR: u64 = 3;
/// But no longer than that, because nothing else moves meanwhile.
const REST_MAX_NS: u64 = 20_000_000;
/// A move is sent back for tables that its guest has made meanwhile so many times at most.
const LACKED_MAX: u32 = 4;
/// Work of having what reaches images stand still: looks at who that is, some five times, and what the card is told.
const STAND_WORK: u64 = 5 * LOOK_WORK + 100_000;

/// What a move brings where.
pub(super) enum What {
    /// These chunks to host RAM.
    Spill(Vec<ChunkNo>),
    /// Chunks to VRAM, each into its frames.
    Refill(ChunkFrames),
    /// The rest of a chunk that is on its way into the frames that it holds.
    Rest(ChunkNo),
    /// Chunks to host RAM, and others of the VM into their frames.
    Exchange { leave: Vec<ChunkNo>, come: Vec<ChunkNo> },
}

impl Running {
    /// Starts a move. `false`: it could not be started, and nothing changed.
    pub(super) fn start_move(&mut self, vm: VmId, cause: MoveCause, what: What, cx: &mut Cx<'_>) -> bool {
        assert!(self.mover.is_idle(), "one move at a time");
        let (direction, chunks, targets, then) = match what {
            What::Spill(chunks) => (Direction::Spill, chunks, ChunkFrames::new(), Vec::new()),
            What::Rest(chunk) => (Direction::Refill, vec![chunk], ChunkFrames::new(), Vec::new()),
            What::Exchange { leave, come } => (Direction::Spill, leave, ChunkFrames::new(), come),
            What::Refill(frames) => {
                let chunks = frames.keys().copied().collect();
                (Direction::Refill, chunks, frames, Vec::new())
            }
        };
        let reserved = match direction {
            Direction::Spill => self.reserve_tables(vm, &chunks, cx),
            Direction::Refill => Reserved::All,
        };
        if reserved == Reserved::NoMemory {
            return false;
        }
        self.demands.note_waited_for(vm, cause);
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        if vgpu.leaves() {
            // Its frames may be another's before the move ends.
            let what = "it leaves, and its memory is to be moved".to_owned();
            self.inconsistent(vm, Inconsistency::Stage { what });
            return false;
        }
        debug_assert!(
            chunks.iter().all(|&chunk| match vgpu.chunks.place(chunk) {
                ChunkPlace::Unbacked => false,
                ChunkPlace::Spilled => direction == Direction::Refill,
                ChunkPlace::Resident(_) | ChunkPlace::Both(_) => direction == Direction::Spill,
                ChunkPlace::Split(_) => true,
            }),
            "{direction:?} of chunks that are there already: {chunks:?} of {vm}"
        );
        let mut head = Head::new(self.mover.next_id(), vm, (direction, cause), chunks, cx.now);
        (head.targets, head.then) = (targets, then);
        if let Some(vgpu) = self.vms.get(&vm) {
            head.part = self.next_part(vgpu, direction, &head.chunks, !head.then.is_empty());
            cx.tell(head.started(vgpu));
        }
        if reserved == Reserved::All {
            self.populate(head, cx.now, cx);
        } else {
            let due = cx.now.after(1);
            self.mover.current = Some(Move::new(head, Stage::Reserving { due }, cx.now));
        }
        true
    }

    /// Makes some more tables ready, if it is time. `true`: it did.
    pub(super) fn go_on_reserving(&mut self, cx: &mut Cx<'_>) -> bool {
        let is_due = |moving: &mut Move| match moving.stage {
            Stage::Reserving { due } => due <= cx.now,
            _ => false,
        };
        let Some(mut moving) = self.mover.current.take_if(is_due) else {
            return false;
        };
        let vm = moving.head.vm;
        let reserved = match self.vms.get(&vm).is_none_or(|vgpu| vgpu.leaves()) {
            // The move is given up before it stops anything.
            true => Reserved::All,
            false => self.reserve_tables(vm, &moving.head.chunks, cx),
        };
        match reserved {
            Reserved::All => self.populate(moving.head, moving.since, cx),
            Reserved::Some => {
                moving.stage = Stage::Reserving { due: cx.now.after(1) };
                self.mover.current = Some(moving);
            }
            Reserved::NoMemory => {
                self.mover.current = Some(moving);
                self.give_up(RollBack::NoTables, cx);
            }
        }
        true
    }

    /// Asks for the host's memory that the copy will write, for a move that has been prepared since.
    fn populate(&mut self, head: Head, since: Tick, cx: &mut Cx<'_>) {
        let populate = self.to_populate(&head);
        let moving = Move::new(head, Stage::Preparing, since);
        match populate {
            Some(populate) => {
                cx.actions.push(populate);
                self.mover.current = Some(moving);
            }
            None => {
                // One that had nothing to prepare has no such stage.
                if since < cx.now {
                    moving.tell_stage(cx);
                }
                self.rest(moving.head, cx);
            }
        }
    }

    /// Has what reaches these pieces of a VM's image stand still, for pages of a window. `false`: nothing changed.
    pub(super) fn start_standing(&mut self, vm: VmId, pieces: Vec<Piece>, cx: &mut Cx<'_>) -> bool {
        assert!(self.mover.is_idle(), "one move at a time");
        let Some(vgpu) = self.vms.get_mut(&vm).filter(|vgpu| !vgpu.leaves()) else {
            return false;
        };
        vgpu.share.charge(STAND_WORK);
        let what = (Direction::Spill, MoveCause::Shown);
        let chunks: BTreeSet<ChunkNo> = pieces
            .iter()
            .filter_map(|piece| vgpu.chunks.of(piece.at()))
            .collect();
        let chunks = chunks.into_iter().collect();
        let mut head = Head::new(self.mover.next_id(), vm, what, chunks, cx.now);
        head.stands = pieces;
        cx.tell(head.started(vgpu));
        self.rest(head, cx);
        true
    }

    /// The host's memory that the copy will write and that may not be there yet.
    fn to_populate(&self, head: &Head) -> Option<Action> {
        let vgpu = self.vms.get(&head.vm)?;
        let chunks = &vgpu.chunks;
        let (mut images, mut frames) = (Vec::new(), Vec::new());
        match head.direction {
            Direction::Spill => {
                let is_cold = |chunk: &&ChunkNo| {
                    let is_copied = matches!(
                        chunks.place(**chunk),
                        ChunkPlace::Resident(_) | ChunkPlace::Split(_)
                    );
                    is_copied && !chunks.is_stale(**chunk)
                };
                let cold = head.chunks.iter().filter(is_cold);
                images.extend(cold.flat_map(|&chunk| head.data_places(vgpu, chunk)));
            }
            Direction::Refill => {}
        }
        // Elsewhere VRAM is the card's own.
        if self.config.frames_arrive_zeroed {
            let then = head.then.iter().filter(|_| !head.leaves_a_rest(chunks));
            for chunk in head.targets.keys().chain(then) {
                let base = chunks.base(*chunk);
                let all = 0..u64::from(chunks.frames_of(*chunk));
                frames.extend(all.map(|frame| base.offset(frame * FRAME)));
            }
        }
        let any = !images.is_empty() || !frames.is_empty();
        any.then_some(Action::Populate {
            id: head.id,
            vm: head.vm,
            images,
            frames,
        })
    }

    /// The memory that a move asked for is there, or cannot be had.
    pub(super) fn populated(&mut self, id: MoveId, done: bool, cx: &mut Cx<'_>) {
        let prepares = |moving: &mut Move| moving.head.id == id && matches!(moving.stage, Stage::Preparing);
        let Some(moving) = self.mover.current.take_if(prepares) else {
            return;
        };
        if !done {
            self.mover.current = Some(moving);
            return self.give_up(RollBack::HostMemory, cx);
        }
        moving.tell_stage(cx);
        self.rest(moving.head, cx);
    }

    /// Lets the VM run its time, if the move will stop it and nobody waits for it.
    fn rest(&mut self, head: Head, cx: &mut Cx<'_>) {
        let is_for_somebody = head.is_waited_for();
        let rests = |vgpu: &Vgpu| !is_for_somebody && !to_stop(vgpu, &head).is_empty();
        let last = self.vms.get(&head.vm).filter(|vgpu| rests(vgpu));
        let until = last
            .and_then(|vgpu| vgpu.last_pause)
            .map_or(cx.now, |(ended, pause_ns)| {
                ended.after(pause_ns.saturating_mul(RUNS_FOR).min(REST_MAX_NS))
            });
        self.mover.current = Some(Move::new(head, Stage::Resting { until }, cx.now));
        self.check_rest(cx);
    }

    /// Goes on with a move whose VM has run its time: to the moment at which it is stopped. `true` if that changed something.
    pub(super) fn check_rest(&mut self, cx: &mut Cx<'_>) -> bool {
        let vms = &self.vms;
        let is_over = |moving: &mut Move| match moving.stage {
            Stage::Resting { until } => {
                until <= cx.now || vms.get(&moving.head.vm).is_none_or(|vgpu| vgpu.leaves())
            }
            _ => false,
        };
        let Some(moving) = self.mover.current.take_if(is_over) else {
            return false;
        };
        // One that did not rest has no such stage.
        if moving.since < cx.now {
            moving.tell_stage(cx);
        }
        self.await_moment(moving.head, cx);
        true
    }

    /// Stops what has to be stopped, unless what the move relies on is not so any more.
    pub(super) fn stop_for(&mut self, mut moving: Move, is_at_work: bool, cx: &mut Cx<'_>) {
        let head = &moving.head;
        let vm = head.vm;
        let mut reason = match () {
            () if self.vms.get(&vm).is_none_or(|vgpu| vgpu.leaves()) => Some(RollBack::Leaving),
            // A channel that the guest unbound, and that has not left the card. It was waited for.
            () if self.is_written_by_leaving(head) => Some(RollBack::NotIdle),
            () if !self.limits(cx.now).still_allow(head) => Some(RollBack::QuotaChanged),
            () => None,
        };
        if reason.is_none() {
            // The guest may have mapped the chunks elsewhere since.
            match self.reserve_again(&mut moving.head, cx) {
                Reserved::All => {}
                Reserved::NoMemory => reason = Some(RollBack::NoTables),
                Reserved::Some => {
                    let due = cx.now.after(1);
                    moving.enter(Stage::Reserving { due }, cx);
                    self.mover.current = Some(moving);
                    return;
                }
            }
        }
        match reason {
            Some(reason) => {
                self.mover.current = Some(moving);
                self.give_up(reason, cx);
            }
            None => {
                // The first look found it, or there was nothing to wait for.
                if moving.since < cx.now {
                    moving.tell_stage(cx);
                }
                self.begin_move(moving.head, is_at_work, cx);
            }
        }
    }

    /// From here on the chunks stand still: nothing stores to them, and nothing begins to reach them.
    fn begin_move(&mut self, head: Head, is_at_work: bool, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&head.vm) else {
            return;
        };
        let mut writers = to_stop(vgpu, &head);
        if planted::is(Fault::WriterNotSuspended) {
            writers.truncate(1);
        }
        for chunk in head.standing() {
            vgpu.chunks.set_moving(chunk, true);
        }
        for (v, _) in &writers {
            if let Some(channel) = vgpu.channels.get_mut(v) {
                channel.suspended = true;
            }
        }
        self.map_images(head.vm, head.moved(), true, cx);
        if writers.is_empty() && head.suspension.is_none() {
            self.map_copy(head, cx);
        } else {
            self.suspend(head, writers, is_at_work, cx);
        }
    }

    /// Tables that are missing as a move is about to stop something. One that was sent back for them often enough, or whose channels stand still
    /// already, has all of them made at once: a guest that makes tables all the time would keep its memory otherwise.
    fn reserve_again(&mut self, head: &mut Head, cx: &mut Cx<'_>) -> Reserved {
        if head.direction != Direction::Spill || head.stays() {
            return Reserved::All;
        }
        let mut reserved = self.reserve_tables(head.vm, &head.chunks, cx);
        let is_last = head.lacked_tables == LACKED_MAX || head.suspension.is_some();
        while reserved == Reserved::Some && is_last {
            reserved = self.reserve_tables(head.vm, &head.chunks, cx);
        }
        head.lacked_tables += u32::from(reserved == Reserved::Some);
        reserved
    }

    /// Has some of the tables that a spill needs, of a slice of work or a little more. The VM pays for it.
    fn reserve_tables(&mut self, vm: VmId, chunks: &[ChunkNo], cx: &mut Cx<'_>) -> Reserved {
        let mut work = Work::limited(self.config.step_work);
        let reserved = self.on_shadows(vm, "reserving its tables", cx, |shadows| {
            let Shadows {
                chunks: known,
                spaces,
                places,
                budget,
                writer,
                ..
            } = shadows;
            let frames = chunks.iter().flat_map(|&chunk| known.guest_frames(chunk));
            let frames: Vec<GuestFrame> = frames.collect();
            let mut spaces = spaces.values_mut();
            let some = spaces.find_map(|space| {
                let reserved = space
                    .shadow
                    .reserve(&frames, *places, *budget, *writer, &mut work);
                (reserved != Reserved::All).then_some(reserved)
            });
            some.unwrap_or(Reserved::All)
        });
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.share.charge(work.done());
        }
        reserved.map_or(Reserved::NoMemory, |(reserved, _)| reserved)
    }
}
