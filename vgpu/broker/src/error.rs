//! The errors that callers of the broker get.

use vgpu::{Denial, Refusal, SettingError};

use crate::mapping::MapError;

/// Failures to start a broker.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A VM's settings contradict themselves.
    #[error("vm {name}: {reason}")]
    Config {
        /// Name of the VM.
        name: String,
        /// The setting that is wrong.
        reason: SettingError,
    },
    /// A socket cannot be listened on.
    #[error("vm {name}")]
    Listen {
        /// Name of the VM.
        name: String,
        /// Error of the socket.
        #[source]
        source: vfio_user_server::ListenerError,
    },
    /// A piece of memory, a descriptor or a thread cannot be created.
    #[error("cannot set up {what}")]
    System {
        /// The missing resource: memory, a descriptor or a thread.
        what: &'static str,
        /// Error of the host.
        #[source]
        source: std::io::Error,
    },
    /// The broker's own memory cannot be set up.
    #[error("cannot set up the broker's DMA memory")]
    Memory(#[from] MapError),
    /// The event loop cannot be set up.
    #[error("cannot set up the event loop")]
    Loop(#[from] event_manager::Error),
    /// The card cannot be used.
    #[error("the card cannot be used: {reason}")]
    Card {
        /// Reason that the core gave.
        reason: String,
    },
}

/// Why a VM did not get its vGPU, or another quota.
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
        /// Reason of the broker.
        reason: String,
    },
    /// As many VMs are attached as there are numbers.
    #[error("{} VMs are attached already", crate::perform::VMS_MAX)]
    TooManyVms,
    /// The host could not give the memory that its VRAM may take.
    #[error("refused: {0}")]
    HostShort(#[from] crate::room::HostShort),
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
    /// Reason of the end, for people.
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
    /// The broker detached the VM.
    #[error("the VM was detached: {reason}")]
    Expelled {
        /// Reason of the detach, for people.
        reason: String,
    },
    /// The broker has ended.
    #[error(transparent)]
    Ended(#[from] Ended),
}
