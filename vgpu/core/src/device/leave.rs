//! A VM's memory on its way out.

use serde::{Deserialize, Serialize};

/// Whether a VM's memory is on its way out, why, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Leave {
    /// It stays where it is.
    Stays,
    /// The device is reset: the VM goes on afterwards, with nothing in its VRAM.
    Reset(LeaveStage),
    /// The VM goes. No request of it is answered any more.
    Detach(LeaveStage),
}

/// How far a VM's memory is on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum LeaveStage {
    /// Its channels leave the card, its address spaces the TLB, and a move of its memory ends.
    Stopping,
    /// Nothing of it runs: the card drops its translations, and then its memory is free.
    Flushing,
    /// It is free: maps of its image go off the bus, and those of RAM if the VM goes.
    Unmapping,
}

impl Leave {
    /// How far it is; `None` if nothing leaves.
    pub(crate) fn stage(self) -> Option<LeaveStage> {
        match self {
            Self::Stays => None,
            Self::Reset(stage) | Self::Detach(stage) => Some(stage),
        }
    }

    /// The same in another stage, if memory leaves.
    pub(crate) fn at(self, stage: LeaveStage) -> Self {
        match self {
            Self::Stays => Self::Stays,
            Self::Reset(_) => Self::Reset(stage),
            Self::Detach(_) => Self::Detach(stage),
        }
    }
}
