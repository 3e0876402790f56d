//! Why a function in another process did not do what it was asked.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::message::CommandCode;

/// Failure of a call to a remote function. `RemoteError::is_refusal` says which of them leave the connection up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// No server listens there, or none accepts the connection.
    #[error("cannot connect to the vfio-user socket {}", path.display())]
    Connect {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The request was understood and denied; the connection stays up.
    #[error("the server refused {command:?}: {}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// Command that was sent.
        command: CommandCode,
        /// Linux error number of the answer.
        errno: i32,
    },
    /// No answer in time, or the request was not taken in time.
    #[error("the server did not answer {command:?} within {after:?}")]
    TimedOut {
        /// Command that was sent.
        command: CommandCode,
        /// Time that was waited.
        after: Duration,
    },
    /// The server closed the connection.
    #[error("the server closed the connection during {command:?}")]
    HungUp {
        /// Command that was sent.
        command: CommandCode,
    },
    /// Sending or receiving failed.
    #[error("cannot exchange {command:?} with the server")]
    Io {
        /// Command that was under way.
        command: CommandCode,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The answer does not follow the protocol.
    #[error("the server broke the protocol in its answer to {command:?}: {what}")]
    Protocol {
        /// Command that was sent.
        command: CommandCode,
        /// Rule that the answer breaks.
        what: &'static str,
    },
    /// The connection was closed, or failed earlier.
    #[error("the connection to the server is down")]
    Down,
}

impl RemoteError {
    /// Whether the connection is as good as before the call.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}
