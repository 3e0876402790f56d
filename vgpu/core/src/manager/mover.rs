//! The move under way, as a machine: spill and refill are one machine run in two directions, an exchange is the one behind the other.
//!
//! ```text
//! Reserving, Preparing, Resting, Awaiting: nothing has stopped yet
//!       ├─ no writers ──────────────────► Mapping ─► Copying ─► Verifying ─► Redirecting ─► done
//!       └─ Suspending ─all off the card─►┘ ▲          │ failed or over-long          │ (Resuming: channels first,
//!                                          └──────────┼── an exchange: what comes in ┤  then frames or images are freed)
//!            ▲  └ not in time ─► Draining, aside      └► Abandoned: channels resume, the chunk stays; nothing else moves
//!            └ their work is over ─┘ └► rolled back          until the broker's own channel has been reset
//! ```
//!
//! * Each stage holds what only it needs; what the whole move needs is its [`Head`].
//! * A move may have its chunks stay where they are: what reaches their images stands still while pages of these change their place
//!   (`live_windows::pinned`). It goes through the same stages and copies nothing.
//! * A chunk whose copy takes too long for one suspension is several moves (`parts`).
//! * An exchange spills chunks and brings others of the VM into their frames, in one suspension (`exchanging`).
//! * One move at a time, so at most one VM is suspended for copying. One beside it may be aside, see `aside`.
//! * What the card answers names the move that asked: an answer to one that was given up finds nobody.
//! * Each stage that ends leaves a notice with its time.
//!
//! The effects of each step are in `moves` and `window_copy`.

use std::collections::BTreeMap;
use std::ops::Range;

use fermi_spec::addr::{FRAME, FrameNo};
use serde::{Deserialize, Serialize};
use shadow_pt::TableRange;

use super::Cx;
use super::parts::Begun;
use super::window_copy::WindowCopy;
use crate::device::{Pointing, Vgpu};
use crate::event::{Tick, VmId};
use crate::host::{CopyRun, PhysChannel};
use crate::inspect::{Inspect, Tree};
use crate::memory::{ChunkNo, Piece};
use crate::notice::{Direction, MoveId, MoveStage, Notice};
use crate::reason::{MoveCause, RollBack};

/// Interval at which a copy is looked at should its interrupt be lost.
const COPY_CHECK_NS: u64 = 1_000_000;

/// Frames of chunks, in the order of the chunks.
pub(super) type ChunkFrames = BTreeMap<ChunkNo, Box<[FrameNo]>>;

/// The card's moves: at most one is under way.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Mover {
    pub(super) current: Option<Move>,
    /// A move whose channels are still at work, and the VM off the runlist.
    #[serde(default)]
    pub(super) aside: Option<Move>,
    /// Chunks of which a part has been moved and the rest is to come, see `parts`.
    #[serde(default)]
    pub(super) begun: Vec<Begun>,
    /// Moves that were started so far.
    started: u64,
    /// Tries so far to see the broker's own channel off the card.
    pub(super) own_tries: u32,
    /// The last move was one for a window.
    #[serde(default)]
    pub(super) was_for_window: bool,
    /// The VM that the last such move was for.
    #[serde(default)]
    pub(super) window_of: Option<VmId>,
}

/// Who copies, and what.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum CopyWork {
    /// The broker's own channel, in one batch. The runs are handed over when copying starts.
    Engine(Vec<CopyRun>),
    /// The CPU, through a window of BAR1.
    Window(WindowCopy),
}

impl Default for CopyWork {
    /// Nothing to copy.
    fn default() -> Self {
        Self::Engine(Vec::new())
    }
}

/// Where a move stands, with what it needs there.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Makes tables ready that its entries will need, some in a step. The VM goes on as if nothing moved.
    Reserving {
        /// When the next step is taken.
        due: Tick,
    },
    /// Waits for the host's memory that will be written. The VM goes on as if nothing moved.
    Preparing,
    /// Waits until the VM has run for some time since it was stopped last. It goes on as if nothing moved.
    Resting { until: Tick },
    /// Waits for a moment at which none of the channels that can write the chunks is at work. They run meanwhile.
    Awaiting {
        /// They are stopped then in any case.
        until: Tick,
        /// When the engines are looked at next.
        look_at: Tick,
    },
    /// Waits for the channels that can write the chunks to be off the card.
    Suspending,
    /// Waits aside for their work to end.
    Draining {
        /// The move is given up then.
        until: Tick,
        /// When the engines are looked at next.
        look_at: Tick,
        /// None of them is at work any more.
        is_over: bool,
    },
    /// Waits for the card to see what it copies from and to.
    Mapping { work: CopyWork },
    /// Waits for the end of the copy.
    Copying { work: CopyWork },
    /// The copy's end was seen; the card is asked whether it reports an error, for that does not keep the end away.
    Verifying { look: u64 },
    /// Everything is pointed to the new place; then it waits for the card to forget the old one.
    Redirecting {
        /// What is still to be pointed there.
        #[serde(default)]
        rest: Option<Pointing>,
        /// Shadow tables that nothing points to any more.
        freed: Vec<TableRange>,
        /// Frames that a spill empties.
        emptied: ChunkFrames,
    },
    /// The channels were told to go on; waits for their doorbells, which may stand behind what else the card was told. To
    /// free what is left takes time for each page, which nobody is to stand still for.
    Resuming {
        /// Shadow tables that nothing points to any more.
        freed: Vec<TableRange>,
        /// Frames that a spill empties. Nobody else gets one before it is scrubbed.
        emptied: ChunkFrames,
    },
    /// Rolled back; waits until the broker's own channel is off the card and writes the targets no more.
    Abandoned,
}

/// Data that a move needs in every stage.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) id: MoveId,
    pub(super) vm: VmId,
    pub(super) direction: Direction,
    pub(super) cause: MoveCause,
    pub(super) chunks: Vec<ChunkNo>,
    /// Those 128 KiB of its one chunk that this suspension moves; `None`: all of each.
    #[serde(default)]
    pub(super) part: Option<Range<u32>>,
    /// Frames that a refill fills, until it redirects.
    pub(super) targets: ChunkFrames,
    /// Chunks of the VM that come into the frames of those that a spill takes away, before the channels go on: the second half of an exchange.
    #[serde(default)]
    pub(super) then: Vec<ChunkNo>,
    /// What the first half of an exchange left to be done at the end of the second.
    #[serde(default)]
    pub(super) first_half: Option<FirstHalf>,
    /// Channels taken off the card for it, and since when; `None` if nothing can write the chunks.
    pub(super) suspension: Option<Suspension>,
    /// Its channels were not off the card in time once.
    #[serde(default)]
    pub(super) was_aside: bool,
    /// How often tables were missing when it was about to stop something.
    #[serde(default)]
    pub(super) lacked_tables: u32,
    /// The host did not map one of the images.
    pub(super) is_refused: bool,
    /// Nothing is copied: the chunks stay where they are, and what reaches these pieces of their images stands still, so that pages of them can change
    /// their place. None for a move that goes elsewhere.
    #[serde(default)]
    pub(super) stands: Vec<Piece>,
    /// Bytes that are copied; less than the chunks have where instance memory or an equal copy needs none.
    pub(super) copied: u64,
    /// When the copy began, and how long it took.
    pub(super) copy_began: Tick,
    pub(super) copying_ns: u64,
}

/// What is left of the first half of an exchange while the second is under way.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct FirstHalf {
    /// Shadow tables that nothing points to any more.
    pub(super) freed: Vec<TableRange>,
    /// Frames that the second half does not need.
    pub(super) frames: Vec<FrameNo>,
    /// How long its copy took.
    pub(super) copying_ns: u64,
}

/// Channels that are off the card for a move.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Suspension {
    /// The guest's number and the card's.
    pub(super) channels: Vec<(u8, PhysChannel)>,
    pub(super) since: Tick,
    /// How long it took until all were off; `None` as long as they are not.
    pub(super) drained_ns: Option<u64>,
    /// One of them was at work when they were taken off.
    #[serde(default)]
    pub(super) was_at_work: bool,
}

/// Chunks of one VM on their way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Move {
    pub(super) head: Head,
    /// When the stage began.
    pub(super) since: Tick,
    pub(super) stage: Stage,
}

impl Mover {
    /// A number for the next move.
    pub(super) fn next_id(&mut self) -> MoveId {
        self.started += 1;
        MoveId(self.started)
    }

    /// Whether no move is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// The moves that there are: the one under way and the one aside.
    pub(super) fn all(&self) -> impl Iterator<Item = &Move> {
        self.current.iter().chain(&self.aside)
    }

    /// Bytes of frames that the VM has for chunks on their way to VRAM, and that are not among what it holds yet.
    pub(super) fn coming(&self, vm: VmId) -> u64 {
        let moves = self.all().filter(|moving| moving.head.vm == vm);
        let targets = moves.flat_map(|moving| moving.head.targets.values());
        targets.map(|frames| frames.len() as u64 * FRAME).sum()
    }

    /// Whether memory of this VM moves, or is about to.
    pub(super) fn has_move(&self, vm: VmId) -> bool {
        self.all().any(|moving| moving.head.vm == vm)
    }

    /// Whether the VM is off the runlist for a move that is aside.
    pub(super) fn is_aside(&self, vm: VmId) -> bool {
        self.aside.as_ref().is_some_and(|moving| moving.head.vm == vm)
    }

    /// Whether memory of this VM moves: what reaches it must not change.
    pub(super) fn moves(&self, vm: VmId) -> bool {
        self.all()
            .any(|moving| moving.head.vm == vm && moving.stage.has_begun())
    }

    /// The move that an answer is for, if it is still under way.
    pub(super) fn get(&mut self, id: MoveId) -> Option<&mut Move> {
        self.current.as_mut().filter(|moving| moving.head.id == id)
    }

    /// When the engines are looked at next for the move aside, or it goes on or is given up: as soon as it can.
    pub(super) fn next_check_aside(&self) -> Option<Tick> {
        match self.aside.as_ref()?.stage {
            Stage::Draining {
                is_over: true, until, ..
            } => Some(until),
            Stage::Draining { until, look_at, .. } => Some(look_at.min(until)),
            _ => None,
        }
    }

    /// When the copy or the engines are looked at next, or a rest is over.
    pub(super) fn next_check(&self, now: Tick) -> Option<Tick> {
        let moving = self.current.as_ref()?;
        if let Stage::Reserving { due: at }
        | Stage::Resting { until: at }
        | Stage::Awaiting { look_at: at, .. } = moving.stage
        {
            return Some(at);
        }
        if let Stage::Redirecting { rest: Some(rest), .. } = &moving.stage {
            return Some(rest.due);
        }
        matches!(moving.stage, Stage::Copying { .. } | Stage::Abandoned)
            .then(|| Tick(now.0.max(moving.since.0) / COPY_CHECK_NS * COPY_CHECK_NS).after(COPY_CHECK_NS))
    }

    /// The move under way, if it is being copied by the CPU.
    pub(super) fn window_copy(&mut self) -> Option<(&Head, &mut WindowCopy)> {
        let Move { head, stage, .. } = self.current.as_mut()?;
        match stage {
            Stage::Copying {
                work: CopyWork::Window(copy),
            } => Some((head, copy)),
            _ => None,
        }
    }
}

impl Head {
    /// A move that begins now.
    pub(super) fn new(
        id: MoveId,
        vm: VmId,
        (direction, cause): (Direction, MoveCause),
        chunks: Vec<ChunkNo>,
        now: Tick,
    ) -> Self {
        Self {
            id,
            vm,
            direction,
            cause,
            chunks,
            part: None,
            targets: ChunkFrames::new(),
            then: Vec::new(),
            first_half: None,
            suspension: None,
            was_aside: false,
            lacked_tables: 0,
            is_refused: false,
            stands: Vec::new(),
            copied: 0,
            copy_began: now,
            copying_ns: 0,
        }
    }

    /// The notice of its beginning.
    pub(super) fn started(&self, vgpu: &Vgpu) -> Notice {
        Notice::MoveStarted {
            vm: self.vm,
            id: self.id,
            direction: self.direction,
            cause: self.cause,
            chunks: self.moved().len() as u32,
            bytes: vgpu.chunks.bytes_of(self.moved()),
            comes: self.bytes_then(vgpu),
        }
    }

    /// Whether an access of a guest waits for it.
    pub(super) fn is_waited_for(&self) -> bool {
        matches!(self.cause, MoveCause::Demand { .. } | MoveCause::Shown)
    }

    /// Whether its chunks stay where they are.
    pub(super) fn stays(&self) -> bool {
        !self.stands.is_empty()
    }

    /// Chunks that nothing may store to while it is under way: those of both halves of an exchange.
    pub(super) fn standing(&self) -> impl Iterator<Item = ChunkNo> {
        self.chunks.iter().chain(&self.then).copied()
    }

    /// The chunks that go elsewhere, in this half of an exchange.
    pub(super) fn moved(&self) -> &[ChunkNo] {
        match self.stays() {
            true => &[],
            false => &self.chunks,
        }
    }

    /// Bytes that go elsewhere in this half of an exchange, copied or not.
    pub(super) fn bytes(&self, vgpu: &Vgpu) -> u64 {
        match &self.part {
            Some(part) if !self.stays() => u64::from(part.end.saturating_sub(part.start)) * FRAME,
            _ => vgpu.chunks.bytes_of(self.moved()),
        }
    }

    /// Bytes that come in the second half.
    pub(super) fn bytes_then(&self, vgpu: &Vgpu) -> u64 {
        vgpu.chunks.bytes_of(&self.then)
    }

    /// Halves that are to come, this one included.
    pub(super) fn halves(&self) -> u64 {
        1 + u64::from(!self.then.is_empty())
    }
}

impl Move {
    pub(super) fn new(head: Head, stage: Stage, now: Tick) -> Self {
        Self {
            head,
            since: now,
            stage,
        }
    }

    /// Goes on to the next stage.
    pub(super) fn enter(&mut self, next: Stage, cx: &mut Cx<'_>) {
        self.tell_stage(cx);
        self.since = cx.now;
        self.stage = next;
    }

    /// Tells how long the stage that ends took.
    pub(super) fn tell_stage(&self, cx: &mut Cx<'_>) {
        cx.tell(Notice::MoveStage {
            vm: self.head.vm,
            id: self.head.id,
            stage: self.stage.name(),
            took_ns: cx.now.since(self.since),
        });
    }

    /// The notice of a move that is given up.
    pub(super) fn rolled_back(&self, reason: RollBack) -> Notice {
        Notice::RolledBack {
            vm: self.head.vm,
            id: self.head.id,
            direction: self.head.direction,
            cause: self.head.cause,
            stage: self.stage.name(),
            reason,
        }
    }
}

impl Stage {
    /// Whether entries are still to be pointed to the new place.
    pub(super) fn points(&self) -> bool {
        matches!(self, Self::Redirecting { rest: Some(_), .. })
    }

    /// Whether the chunks stand still. Before that the VM goes on as if nothing moved.
    fn has_begun(&self) -> bool {
        !matches!(
            self,
            Self::Reserving { .. }
                | Self::Preparing
                | Self::Resting { .. }
                | Self::Awaiting { .. }
                | Self::Draining { .. }
        )
    }

    fn name(&self) -> MoveStage {
        match self {
            Self::Reserving { .. } | Self::Preparing => MoveStage::Preparing,
            Self::Resting { .. } => MoveStage::Resting,
            Self::Awaiting { .. } => MoveStage::Awaiting,
            Self::Suspending => MoveStage::Suspending,
            Self::Draining { .. } => MoveStage::Draining,
            Self::Mapping { .. } => MoveStage::Mapping,
            Self::Copying { .. } => MoveStage::Copying,
            Self::Verifying { .. } => MoveStage::Verifying,
            Self::Redirecting { .. } => MoveStage::Redirecting,
            Self::Resuming { .. } => MoveStage::Resuming,
            Self::Abandoned => MoveStage::Abandoned,
        }
    }
}

impl Inspect for Move {
    fn inspect(&self, tree: &mut Tree<'_>) {
        let Self { head, since, stage } = self;
        tree.number("number", head.id.0);
        tree.name("vm", head.vm);
        tree.name("direction", format_args!("{:?}", head.direction));
        tree.name("cause", head.cause);
        tree.name("stage", format_args!("{:?}", stage.name()));
        tree.age("stage_since", *since);
        tree.count("chunks", head.chunks.len());
        if let Some(part) = &head.part {
            tree.name("part", format_args!("{}-{}", part.start, part.end));
        }
        tree.count("chunks_that_come_then", head.then.len());
        tree.bytes("bytes_to_copy", head.copied);
        let channels = head.suspension.as_ref().map_or(0, |held| held.channels.len());
        tree.count("channels_suspended", channels);
        if let Some(suspension) = &head.suspension {
            tree.age("suspended_since", suspension.since);
        }
        if let Stage::Mapping { work } | Stage::Copying { work } = stage {
            match work {
                CopyWork::Engine(runs) => tree.count("copies_left", runs.len()),
                CopyWork::Window(copy) => tree.bytes("bytes_left", copy.bytes_left()),
            }
        }
    }
}
