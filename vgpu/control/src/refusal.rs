//! Why a request was not done.

use serde::{Deserialize, Serialize};

/// The answer to a request that was not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// What kind of reason it is.
    pub error: RefusalKind,
    /// The reason, for people: what was wrong, and what would be allowed.
    pub message: String,
    /// Command that helps on, if there is one.
    pub next: Option<String>,
}

impl Refusal {
    /// A refusal without a command that helps on.
    pub fn new(error: RefusalKind, message: String) -> Self {
        Self {
            error,
            message,
            next: None,
        }
    }

    /// Names the command that helps on.
    #[must_use]
    pub fn then(mut self, command: impl Into<String>) -> Self {
        self.next = Some(command.into());
        self
    }
}

/// Kinds of reasons, each with its HTTP status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RefusalKind {
    /// 400: the body is not what the schema says.
    Malformed,
    /// 403: the client is none of those who may ask.
    NotAllowed,
    /// 404: there is nothing at this path.
    UnknownPath,
    /// 404: no card has this name.
    UnknownGpu,
    /// 404: no VM has this name.
    UnknownVm,
    /// 404: the state has nothing at this path of it.
    UnknownPart,
    /// 405: this cannot be done with what the path names.
    UnknownMethod,
    /// 408: the request did not arrive in time.
    TooSlow,
    /// 409: this is had of a VM whose VMM is connected.
    NotConnected,
    /// 409: the quota cannot hold; the VM keeps its own.
    QuotaRefused,
    /// 409: what is asked for cannot be held back from the VM as it is now; nothing is changed.
    HoldRefused,
    /// 409: the VM cannot be attached, or not be detached, as it is now; nothing is changed.
    PlaceRefused,
    /// 409: host RAM cannot be changed so; nothing is changed.
    HostRamRefused,
    /// 413: the body is longer than any request.
    TooLarge,
    /// 429: this user has asked too often.
    TooOften,
    /// 503: too many clients are connected.
    TooManyConnections,
    /// 503: the broker of the card has ended, or does not answer.
    BrokerEnded,
    /// 507: what was asked for cannot be kept in the state file.
    NotKept,
}

impl RefusalKind {
    /// Status of the answer.
    pub fn status(self) -> u16 {
        match self {
            RefusalKind::Malformed => 400,
            RefusalKind::NotAllowed => 403,
            RefusalKind::UnknownPath
            | RefusalKind::UnknownGpu
            | RefusalKind::UnknownVm
            | RefusalKind::UnknownPart => 404,
            RefusalKind::UnknownMethod => 405,
            RefusalKind::TooSlow => 408,
            RefusalKind::NotConnected
            | RefusalKind::QuotaRefused
            | RefusalKind::HoldRefused
            | RefusalKind::PlaceRefused
            | RefusalKind::HostRamRefused => 409,
            RefusalKind::TooLarge => 413,
            RefusalKind::TooOften => 429,
            RefusalKind::TooManyConnections | RefusalKind::BrokerEnded => 503,
            RefusalKind::NotKept => 507,
        }
    }
}
