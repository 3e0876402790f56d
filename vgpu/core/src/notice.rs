//! The core's news for logs, metrics and the flight recorder. Every counted figure of a report starts as one of these.

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
    /// Chunks of one VM begin to move. [`Notice::Moved`] or [`Notice::RolledBack`] follows, or the VM goes.
    MoveStarted {
        /// Whose chunks they are.
        vm: VmId,
        /// Number of the move, as in all later notices of it.
        id: MoveId,
        /// Direction of the move.
        direction: Direction,
        /// Cause of the move.
        cause: MoveCause,
        /// How many chunks.
        chunks: u32,
        /// Bytes of all chunks together.
        bytes: u64,
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
        /// Number of chunks.
        chunks: u32,
        /// Bytes of all chunks together.
        bytes: u64,
        /// Time for which channels of the VM were suspended; `None` if none had to be.
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
        /// What it was for.
        cause: MoveCause,
        /// Why.
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
    /// The guest made an error that drivers do not make; harmless to others.
    GuestError {
        /// VM of the guest.
        vm: VmId,
        /// The guest's error.
        what: String,
    },
    /// A channel of the VM was stopped after a fault or error.
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
            Notice::Backed { vm, .. }
            | Notice::MoveStarted { vm, .. }
            | Notice::Moved { vm, .. }
            | Notice::RolledBack { vm, .. }
            | Notice::Usage { vm, .. }
            | Notice::GuestError { vm, .. }
            | Notice::ChannelKilled { vm, .. } => Some(*vm),
            Notice::Started { .. }
            | Notice::CopiesByWindow
            | Notice::StartFailed { .. }
            | Notice::HostError { .. } => None,
        }
    }
}
