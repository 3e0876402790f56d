//! What happened to VMs and cards.

use serde::{Deserialize, Serialize};

use crate::gpu::GoneGpu;

/// Things that happened, and where to go on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Events {
    /// By card, and in the order in which they happened there.
    pub events: Vec<Event>,
    /// What to give as `after` to get what comes next.
    pub cursor: String,
    /// Events since the cursor that was given which are not kept any more: 256 are, of each VM and of each card.
    pub lost: u64,
    /// Whether more is there already: an answer has 256 events of a card at most.
    pub has_more: bool,
    /// Cards that are gone: what happened to them is not here.
    #[serde(default)]
    pub gone: Vec<GoneGpu>,
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Event {
    /// Time in nanoseconds since 1970 by the host's clock.
    pub at_unix_ns: u64,
    /// Name of the card.
    pub gpu: String,
    /// Name of the VM. Null: it happened to the card.
    pub vm: Option<String>,
    /// What kind of thing it was.
    pub kind: EventKind,
    /// The same for people, with its reason.
    pub text: String,
    /// Bytes of the memory that moved, or was waited for.
    pub bytes: Option<u64>,
    /// Name of the VM for which it moved.
    pub for_vm: Option<String>,
    /// Time in nanoseconds for which channels of the VM stood still, or an access of it waited.
    pub took_ns: Option<u64>,
}

/// Kinds of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum EventKind {
    /// The VM's VMM connected, and it has its vGPU.
    Attached,
    /// The VM has gone.
    Detached,
    /// It was given a place: its VMM can connect.
    Listed,
    /// Its place was taken from it.
    Unlisted,
    /// Its quota was changed, or the card's host RAM.
    QuotaChanged,
    /// The host's file and what an operator said before differ, or the file asks for what cannot be done while VMs run.
    FileConflict,
    /// It was frozen, spilled, suspended, or let go again.
    HoldChanged,
    /// Memory of it went to host RAM.
    Spilled,
    /// Memory of it came back to VRAM.
    Refilled,
    /// A move of its memory was given up.
    RolledBack,
    /// An access of it waited for memory.
    Waited,
    /// Its guest made an error that drivers do not make.
    GuestError,
    /// A channel of it was stopped.
    ChannelKilled,
    /// The card, or the way to it, failed in something.
    HostError,
}

impl EventKind {
    /// The word for it in JSON and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Listed => "listed",
            Self::Unlisted => "unlisted",
            Self::QuotaChanged => "quota_changed",
            Self::FileConflict => "file_conflict",
            Self::HoldChanged => "hold_changed",
            Self::Spilled => "spilled",
            Self::Refilled => "refilled",
            Self::RolledBack => "rolled_back",
            Self::Waited => "waited",
            Self::GuestError => "guest_error",
            Self::ChannelKilled => "channel_killed",
            Self::HostError => "host_error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_json() {
        use EventKind::{
            Attached, ChannelKilled, Detached, FileConflict, GuestError, HoldChanged, HostError, Listed,
            QuotaChanged, Refilled, RolledBack, Spilled, Unlisted, Waited,
        };
        for kind in [
            Attached,
            Detached,
            Listed,
            Unlisted,
            QuotaChanged,
            FileConflict,
            HoldChanged,
            Spilled,
            Refilled,
            RolledBack,
            Waited,
            GuestError,
            ChannelKilled,
            HostError,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
    }
}
