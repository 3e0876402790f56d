//! What callers of the broker can be told.

use vgpu::{Denial, Refusal, SettingError};

use crate::mapping::MapError;

/// Failures to start a broker.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A VM's settings contradict themselves.
    #[error("vm {name}: {reason}")]
    Config {
        /// Of the VM.
        name: String,
        /// Names the field and what would be right.
        reason: SettingError,
    },
    /// A socket cannot be listened on.
    #[error("vm {name}")]
    Listen {
        /// Of the VM.
        name: String,
        /// Why.
        #[source]
        source: vfio_user_server::ListenerError,
    },
    /// No memory, descriptor or thread.
    #[error("cannot set up {what}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The broker's own memory.
    #[error("cannot set up the broker's DMA memory")]
    Memory(#[from] MapError),
    /// The event loop.
    #[error("cannot set up the event loop")]
    Loop(#[from] event_manager::Error),
    /// The card cannot be used.
    #[error("the card cannot be used: {reason}")]
    Card {
        /// From the core.
        reason: String,
    },
}

/// Why a VM did not get its vGPU.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its settings contradict themselves.
    #[error(transparent)]
    Config(#[from] SettingError),
    /// The memory manager has no room for it.
    #[error("refused: {0}")]
    Denied(Denial),
    /// The broker gave the VM up while it was attaching.
    #[error("detached again: {reason}")]
    Expelled {
        /// What the broker says.
        reason: String,
    },
    /// As many VMs are attached as have numbers.
    #[error("{} VMs are attached already", crate::perform::VMS_MAX)]
    TooManyVms,
    /// No memory for the image of its VRAM.
    #[error("cannot set up the image of its VRAM")]
    Image(#[source] MapError),
    /// No answer within the bound.
    #[error("no answer within {} s", crate::link::ANSWER_SECONDS_MAX)]
    Timeout,
    /// The broker has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// The broker has ended; nothing is answered any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the broker has ended: {reason}")]
pub struct Ended {
    /// Why.
    pub reason: String,
}

/// Why a local caller's request was not done.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The core refused it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Guest RAM could not be mapped.
    #[error("cannot map guest RAM")]
    Map(#[from] MapError),
    /// No answer within the bound.
    #[error("no answer within {} s", crate::link::ANSWER_SECONDS_MAX)]
    Timeout,
    /// The VM was given up.
    #[error("the VM was detached: {reason}")]
    Expelled {
        /// Why.
        reason: String,
    },
    /// The broker has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}
