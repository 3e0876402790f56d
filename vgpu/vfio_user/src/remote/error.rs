//! Why a function in another process did not do what was asked.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::message::CommandCode;

/// See the module. [`RemoteError::is_refusal`] tells which of them leave the connection up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// Nobody listens there, or nobody takes the connection.
    #[error("cannot connect to the vfio-user socket {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// The request was understood and denied; the connection stays up.
    #[error("the server refused {command:?}: {}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// What was asked.
        command: CommandCode,
        /// Linux error number of the answer.
        errno: i32,
    },
    /// No answer in time, or the request was not taken in time.
    #[error("the server did not answer {command:?} within {after:?}")]
    TimedOut {
        /// What was asked.
        command: CommandCode,
        /// How long was waited.
        after: Duration,
    },
    /// The server closed the connection.
    #[error("the server closed the connection during {command:?}")]
    HungUp {
        /// What was asked.
        command: CommandCode,
    },
    /// Sending or receiving failed.
    #[error("cannot exchange {command:?} with the server")]
    Io {
        /// What was asked.
        command: CommandCode,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// The answer does not follow the protocol.
    #[error("the server broke the protocol in its answer to {command:?}: {what}")]
    Protocol {
        /// What was asked.
        command: CommandCode,
        /// Which rule.
        what: &'static str,
    },
    /// The connection was closed, or failed earlier.
    #[error("the connection to the server is down")]
    Down,
}

impl RemoteError {
    /// Whether the connection is as good as before.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}
