//! The core's news for logs, metrics and the flight recorder. Every counted figure of a report starts as one of these.

use fermi_spec::engine::Engine;
use serde::{Deserialize, Serialize};

use crate::event::VmId;
use crate::reason::{ChannelFault, HostFault, MoveCause, RollBack, StartFailure};

/// Which way chunks move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Direction {
    /// VRAM to host RAM.
    Spill,
    /// Host RAM to VRAM.
    Refill,
}

/// One move of chunks, from its start to its end or roll-back. Counted from 1 as long as the card is up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct MoveId(pub u64);

/// The stages of a move, in their order. `manager::mover` draws them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum MoveStage {
    /// Tables that its entries will need and the host's memory that will be written are made ready. Nothing stands still.
    Preparing,
    /// The VM runs for some time before it is stopped again.
    Resting,
    /// None of the VM's channels that can write the chunks is to be at work on an engine. It runs meanwhile.
    Awaiting,
    /// Channels that can write the chunks are taken off the card.
    Suspending,
    /// They were not off in time: they end what they have under way, are not scheduled again, and other moves go on.
    Draining,
    /// The card is shown what it copies from and to.
    Mapping,
    /// Bytes are copied.
    Copying,
    /// The card is asked whether the copy went wrong.
    Verifying,
    /// Shadow entries point to the new place; the card forgets the old one.
    Redirecting,
    /// Channels are put back and their doorbells rung; the old place is freed behind them.
    Resuming,
    /// Rolled back, and the broker's own channel is taken off the card.
    Abandoned,
}

/// What a sync point waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SyncWait {
    /// The end of a move of this VM's memory.
    Move,
    /// Memory behind chunks that the guest maps for the first time.
    Memory,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The card is up.
    Started {
        /// Bytes of VRAM on it.
        vram_bytes: u64,
        /// Bytes that guests may hold.
        usable_bytes: u64,
    },
    /// The card's copy engines have no microcode: memory moves through a BAR window, by the CPU.
    CopiesByWindow,
    /// The card cannot be used.
    StartFailed {
        /// Reason why the bring-up failed.
        reason: StartFailure,
    },
    /// A chunk was backed for the first time.
    Backed {
        /// VM that owns the chunk.
        vm: VmId,
        /// Bytes of the chunk.
        bytes: u64,
        /// Whether it is in VRAM; otherwise it is in host RAM from the start.
        resident: bool,
    },
    /// Chunks of one VM begin to move. [`Notice::Moved`] or [`Notice::RolledBack`] follows, or the VM goes. Each half of an exchange tells its own,
    /// under one number; each part of a chunk that takes several suspensions is a move with a number of its own.
    MoveStarted {
        /// VM that owns the chunks.
        vm: VmId,
        /// Number of the move, as in all later notices of it.
        id: MoveId,
        /// Direction of the move.
        direction: Direction,
        /// Cause of the move.
        cause: MoveCause,
        /// Number of chunks that go elsewhere: none, if what reaches them only stands still for pages of windows.
        chunks: u32,
        /// Bytes of all chunks together, those of a chunk whole though this be a part of it.
        bytes: u64,
        /// Bytes of other chunks of the VM that come into the frames of these in the same move: an exchange. Otherwise 0.
        comes: u64,
    },
    /// A stage of a move ended.
    MoveStage {
        /// VM that owns the chunks.
        vm: VmId,
        /// Number of the move, as in its [`Notice::MoveStarted`].
        id: MoveId,
        /// The stage that ended.
        stage: MoveStage,
        /// Time that the stage took, in nanoseconds.
        took_ns: u64,
    },
    /// Channels of a VM are taken off the card for a move. [`Notice::Resumed`] follows, or the VM goes.
    Suspended {
        /// VM that owns the channels.
        vm: VmId,
        /// Number of the move, as in its [`Notice::MoveStarted`].
        id: MoveId,
        /// Number of channels taken off.
        channels: u32,
        /// How long it will be until they run again, by the pauses before: nanoseconds. [`Notice::Resumed`] has what it was.
        predicted_ns: u64,
    },
    /// The channels that were suspended for a move run again: their doorbells are written.
    Resumed {
        /// VM that owns the channels.
        vm: VmId,
        /// Number of the move, as in its [`Notice::MoveStarted`].
        id: MoveId,
        /// Time from when they were taken off the card to their doorbells, in nanoseconds.
        suspended_ns: u64,
        /// How much of it was the wait for what they had under way; all of it, if that did not end.
        drained_ns: u64,
        /// The move was given up, or the second half of an exchange: the suspension was for nothing, or for half.
        is_rolled_back: bool,
    },
    /// An access of a VM waits for memory behind chunks: there is not enough VRAM free. [`Notice::DemandEnded`] follows.
    DemandWaits {
        /// VM whose access waits.
        vm: VmId,
        /// How many chunks it waits for.
        chunks: u32,
        /// Bytes of all these chunks together.
        bytes: u64,
    },
    /// The memory is there, or the VM goes.
    DemandEnded {
        /// VM whose access waited.
        vm: VmId,
        /// Time that it waited, in nanoseconds.
        waited_ns: u64,
        /// Chunks that got host RAM, because VRAM was not to be had, or not in time.
        in_host_ram: u32,
        /// VMs whose chunks were moved out for it, or should have been.
        waited_for: Vec<VmId>,
    },
    /// A sync point of a VM had to wait, other than for the card.
    SyncWaited {
        /// VM that owns the sync point.
        vm: VmId,
        /// Cause of the wait.
        wait: SyncWait,
        /// Time that it waited, in nanoseconds.
        waited_ns: u64,
    },
    /// Chunks of one VM were moved.
    Moved {
        /// VM that owns the chunks.
        vm: VmId,
        /// Number of the move, as in its [`Notice::MoveStarted`].
        id: MoveId,
        /// Direction of the move.
        direction: Direction,
        /// Cause of the move.
        cause: MoveCause,
        /// Number of chunks that are there as a whole: none, if this was a part of one and others are to come.
        chunks: u32,
        /// Bytes that went elsewhere.
        bytes: u64,
        /// Bytes that were copied: less than the chunks have where instance memory or an equal copy needs none.
        copied: u64,
        /// Time for which channels of the VM were suspended; `None` if none had to be, and in the first half of an exchange: the second has it.
        pause_ns: Option<u64>,
    },
    /// A move was rolled back.
    RolledBack {
        /// VM that owns the chunks.
        vm: VmId,
        /// Number of the move, as in its [`Notice::MoveStarted`].
        id: MoveId,
        /// Which way it would have gone.
        direction: Direction,
        /// Cause of the move.
        cause: MoveCause,
        /// Stage in which it was given up.
        stage: MoveStage,
        /// Reason of the roll-back.
        reason: RollBack,
    },
    /// VRAM that a VM holds changed.
    Usage {
        /// VM that holds the memory.
        vm: VmId,
        /// Bytes in VRAM.
        resident: u64,
        /// Bytes in host RAM, instance memory not counted.
        spilled: u64,
        /// Bytes in VRAM of all VMs, shadows and the broker's own.
        card: u64,
    },
    /// A VM's work was seen on an engine. The sum of these times is how long it was there, as far as samples tell.
    EngineTime {
        /// VM whose channel was on the engine.
        vm: VmId,
        /// Where its work was.
        engine: Engine,
        /// Time of the host that the sample stands for, in nanoseconds.
        ns: u64,
    },
    /// Work of the VM waited for memory that its launches use, under a policy that goes by launches.
    WorkWaited {
        /// VM whose work it was.
        vm: VmId,
        /// Time that it waited, in nanoseconds.
        waited_ns: u64,
        /// It was given when its time was up, with part of its memory in host RAM.
        in_vain: bool,
    },
    /// The guest made an error that drivers do not make; harmless to others.
    GuestError {
        /// VM of the guest.
        vm: VmId,
        /// The guest's error.
        what: String,
    },
    /// Pages of a VM's tables, or pages that it stores to as instance memory, are loaded from VRAM, across the link to the card.
    TablesFetched {
        /// VM whose access waits for them.
        vm: VmId,
        /// Pages of 4 KiB.
        pages: u32,
    },
    /// A channel of the VM made an error that a card survives: the guest was told, and the channel goes on when it has taken note.
    ChannelError {
        /// VM that owns the channel.
        vm: VmId,
        /// The guest's channel id.
        channel: u8,
        /// What the card reported of it.
        cause: ChannelFault,
    },
    /// A channel of the VM was stopped for good after a fault or error.
    ChannelKilled {
        /// VM that owns the channel.
        vm: VmId,
        /// The guest's channel id.
        channel: u8,
        /// What the card reported of it.
        cause: ChannelFault,
    },
    /// The card did not perform an operation; the core went on in another way.
    HostError {
        /// What it did not do, or what it reports.
        fault: HostFault,
    },
}

impl Notice {
    /// The VM that it is about; `None` if it is about the card.
    pub fn vm(&self) -> Option<VmId> {
        match self {
            Self::Started { .. }
            | Self::CopiesByWindow
            | Self::StartFailed { .. }
            | Self::HostError { .. } => None,
            Self::Backed { vm, .. }
            | Self::MoveStarted { vm, .. }
            | Self::MoveStage { vm, .. }
            | Self::Suspended { vm, .. }
            | Self::Resumed { vm, .. }
            | Self::DemandWaits { vm, .. }
            | Self::DemandEnded { vm, .. }
            | Self::SyncWaited { vm, .. }
            | Self::Moved { vm, .. }
            | Self::RolledBack { vm, .. }
            | Self::Usage { vm, .. }
            | Self::EngineTime { vm, .. }
            | Self::GuestError { vm, .. }
            | Self::WorkWaited { vm, .. }
            | Self::TablesFetched { vm, .. }
            | Self::ChannelError { vm, .. }
            | Self::ChannelKilled { vm, .. } => Some(*vm),
        }
    }
}
