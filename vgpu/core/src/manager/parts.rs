//! Chunks whose copy takes longer than a suspension may: they move part by part, and their VM runs in between.
//!
//! ```text
//!                ┌──────────────────────────────────┐
//!                ▼                                  │ passed over, aside
//! in VRAM ─► a part: suspended, copied, redirected, resumed ─► the next one ─► … ─► in host RAM
//! ```
//!
//! * Each part is a move of its own, with its own pause, and its VM has its run time behind it. Its first 128 KiB go first; they come back
//!   last. In between the chunk is [`ChunkPlace::Split`], and each entry of it leads where that page is.
//! * It holds all of its frames until the end, and counts as VRAM of its VM. Policies see a chunk that moves.
//! * What has begun is ended before anything else moves, but for pages of windows, chunks of others while the VM may not move, and what somebody
//!   demands: for that a chunk that leaves goes on without a rest, and one that comes waits.
//! * A spill that the VM's quota does not allow any more goes back, which nothing can forbid: the frames are there.
//! * An exchange goes on in the suspension of the last part of what leaves, with the first part of what comes: each of the two is half of what a
//!   suspension may move.

use std::ops::Range;

use fermi_spec::addr::{FRAME, GuestVramAddr};
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::GuestFrame;

use super::Cx;
use super::mover::{Head, Mover};
use super::preparing::What;
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Tick, VmId};
use crate::inspect::{Inspect, Tree};
use crate::memory::{ChunkNo, ChunkPlace, Chunks};
use crate::notice::Direction;
use crate::reason::MoveCause;
use crate::saved::Unsound;

/// A chunk of which a part has been moved, and where the rest of it goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) vm: VmId,
    pub(super) chunk: ChunkNo,
    pub(super) direction: Direction,
    pub(super) cause: MoveCause,
    /// What comes into its frames behind it, see [`Head::then`].
    then: Vec<ChunkNo>,
}

impl Head {
    /// Those 128 KiB of one of its chunks that this move brings elsewhere.
    pub(super) fn frames_within(&self, chunks: &Chunks, chunk: ChunkNo) -> Range<u32> {
        self.part.clone().unwrap_or(0..chunks.frames_of(chunk))
    }

    /// The same in guest VRAM.
    pub(super) fn guest_frames(&self, chunks: &Chunks, chunk: ChunkNo) -> impl Iterator<Item = GuestFrame> {
        let first = (chunks.base(chunk).0 / FRAME) as u32;
        self.frames_within(chunks, chunk)
            .map(move |frame| GuestFrame(first + frame))
    }

    /// All that it brings elsewhere, in guest VRAM.
    pub(super) fn redirected(&self, chunks: &Chunks) -> Vec<GuestFrame> {
        let moved = self.moved().iter();
        let mut frames: Vec<GuestFrame> = moved
            .flat_map(|&chunk| self.guest_frames(chunks, chunk))
            .collect();
        if self.part.is_some() && planted::is(Fault::PartLeftBehind) {
            frames.pop();
        }
        frames
    }

    /// Runs of it that a copy has to do with: (offset in the chunk, bytes).
    pub(super) fn data_runs(
        &self,
        chunks: &Chunks,
        chunk: ChunkNo,
    ) -> impl Iterator<Item = (u64, u64)> + use<> {
        let frames = self.frames_within(chunks, chunk);
        let part = u64::from(frames.start) * FRAME..u64::from(frames.end) * FRAME;
        let runs = chunks.data_runs(chunk).into_iter();
        runs.filter_map(move |(start, bytes)| {
            let (from, to) = (start.max(part.start), (start + bytes).min(part.end));
            (from < to).then(|| (from, to - from))
        })
    }

    /// The same as places of guest VRAM.
    pub(super) fn data_places(
        &self,
        vgpu: &Vgpu,
        chunk: ChunkNo,
    ) -> impl Iterator<Item = (GuestVramAddr, u64)> + use<> {
        let base = vgpu.chunks.base(chunk);
        let runs = self.data_runs(&vgpu.chunks, chunk);
        runs.map(move |(start, bytes)| (base.offset(start), bytes))
    }

    /// Whether a part of its chunk is still to come when it is over.
    pub(super) fn leaves_a_rest(&self, chunks: &Chunks) -> bool {
        let (Some(part), Some(&chunk)) = (&self.part, self.chunks.first()) else {
            return false;
        };
        match self.direction {
            Direction::Spill => part.end < chunks.frames_of(chunk),
            Direction::Refill => part.start > 0,
        }
    }
}

impl Mover {
    /// A VM's memory is free: nothing of it is on its way.
    pub(super) fn forget_begun(&mut self, vm: VmId) {
        self.begun.retain(|begun| begun.vm != vm);
    }

    /// A move has placed its chunks anew: a part of one is on its way, or none any more.
    pub(super) fn note_placed(&mut self, placed: &Begun, is_split: bool) {
        self.begun
            .retain(|begun| (begun.vm, begun.chunk) != (placed.vm, placed.chunk));
        self.begun.extend(is_split.then(|| placed.clone()));
    }

    /// Checks that exactly those chunks of a VM are split of which a rest is to come.
    pub(super) fn check_begun(&self, vm: VmId, chunks: &Chunks) -> Result<(), Unsound> {
        let mut named: Vec<ChunkNo> = self.of(vm).map(|begun| begun.chunk).collect();
        named.sort_unstable();
        let split = chunks.all().filter(|&chunk| chunks.is_split(chunk));
        Unsound::unless(split.eq(named), "chunks that are moved in part, and others named")?;
        let mut then = self.of(vm).flat_map(|begun| &begun.then);
        Unsound::unless(
            then.all(|&chunk| chunks.contains(chunk)),
            "chunks that are to come",
        )
    }

    fn of(&self, vm: VmId) -> impl Iterator<Item = &Begun> {
        self.begun.iter().filter(move |begun| begun.vm == vm)
    }
}

impl Begun {
    /// What is to be known of a move's chunk, if it is one alone.
    pub(super) fn of(head: &Head) -> Option<Self> {
        let &[chunk] = head.moved() else { return None };
        Some(Self {
            vm: head.vm,
            chunk,
            direction: head.direction,
            cause: head.cause,
            then: head.then.clone(),
        })
    }
}

impl Running {
    /// Those 128 KiB of a chunk that the next suspension moves; `None` for all of it, or of several chunks. With `is_exchange` another chunk
    /// moves the other way in the suspension of its last part if it leaves, and of its first one if it comes.
    pub(super) fn next_part(
        &self,
        vgpu: &Vgpu,
        direction: Direction,
        chunks: &[ChunkNo],
        is_exchange: bool,
    ) -> Option<Range<u32>> {
        let &[chunk] = chunks else { return None };
        let all = vgpu.chunks.frames_of(chunk);
        let out = match vgpu.chunks.place(chunk) {
            ChunkPlace::Resident(_) => 0,
            ChunkPlace::Split(split) => split.out,
            ChunkPlace::Spilled => all,
            // Nothing is copied.
            ChunkPlace::Both(_) | ChunkPlace::Unbacked => return None,
        };
        let left = match direction {
            Direction::Spill => all - out,
            Direction::Refill => out,
        };
        let frames =
            |bytes: u64| u32::try_from(bytes.max(self.config.part_bytes) / FRAME).unwrap_or(u32::MAX);
        let most = frames(self.batch_bytes_max()).max(1);
        let shared = match is_exchange && !planted::is(Fault::HalvesNotHalved) {
            true => frames(self.batch_bytes_max() / 2).max(1).min(left),
            false => 0,
        };
        // Parts of one length, but for the one that shares its suspension.
        let alone = left - shared;
        let length = alone.div_ceil(alone.div_ceil(most).max(1));
        let part = match direction {
            Direction::Spill if alone > 0 => length,
            Direction::Refill if shared == 0 => length,
            Direction::Spill | Direction::Refill => shared,
        };
        (part < all).then(|| match direction {
            Direction::Spill => out..out + part,
            Direction::Refill => out - part..out,
        })
    }

    /// Chunks on their way that may go on: while somebody demands memory those alone whose frames he could have.
    fn on_their_way(&self) -> impl Iterator<Item = &Begun> {
        let is_demanded = !self.demands.is_empty();
        let frees = |begun: &Begun| begun.direction == Direction::Spill && begun.then.is_empty();
        let all = self.mover.begun.iter();
        all.filter(move |begun| (!is_demanded || frees(begun)) && !planted::is(Fault::RestForgotten))
    }

    /// The one of them that goes on now.
    fn next_begun(&self, now: Tick) -> Option<Begun> {
        let limits = self.limits(now);
        let may_move = |begun: &&Begun| {
            let vgpu = limits.vms.get(&begun.vm);
            vgpu.is_some_and(|vgpu| limits.may_move(vgpu))
        };
        let begun = self.on_their_way().find(may_move)?.clone();
        let cause = match (begun.cause, self.demands.iter().next()) {
            // For these more may leave than for a demand.
            (cause @ (MoveCause::Idle { .. } | MoveCause::Shown), _) => cause,
            (_, Some(demand)) => MoveCause::Demand { of: demand.vm },
            (cause, None) => cause,
        };
        Some(Begun { cause, ..begun })
    }

    /// Starts the next part of a chunk that is on its way. `true`: something changed.
    pub(super) fn move_next_part(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(begun) = self.next_begun(cx.now) else {
            return false;
        };
        let Begun {
            vm,
            chunk,
            cause,
            mut then,
            ..
        } = begun;
        let limits = self.limits(cx.now);
        let may_leave = limits.vms.get(&vm).is_some_and(|vgpu| {
            then.retain(|&chunk| vgpu.chunks.is_out(chunk));
            limits.may_leave(vgpu, &[chunk], vgpu.chunks.bytes_of(&then), cause)
        });
        let rest = match (begun.direction, may_leave) {
            (Direction::Spill, true) => What::Exchange {
                leave: vec![chunk],
                come: then,
            },
            (Direction::Spill, false) | (Direction::Refill, _) => What::Rest(chunk),
        };
        if !self.start_move(vm, cause, rest, cx) {
            self.pass_over(vm, cx.now);
        }
        true
    }

    /// When such a part may be moved, if nothing moves now.
    pub(super) fn next_part_at(&self) -> Option<Tick> {
        let vms = self.on_their_way().map(|begun| begun.vm);
        let can_move = vms.filter(|&vm| self.mover.is_idle() && !self.mover.is_aside(vm));
        let vms = can_move
            .filter_map(|vm| self.vms.get(&vm))
            .filter(|vgpu| !vgpu.leaves());
        vms.map(|vgpu| vgpu.passed_over_until).min()
    }
}

impl Inspect for Begun {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.name("vm", self.vm);
        tree.number("chunk", self.chunk.0);
        tree.name("direction", format_args!("{:?}", self.direction));
        tree.name("cause", self.cause);
    }
}
