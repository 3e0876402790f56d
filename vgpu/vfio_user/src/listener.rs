//! The socket path of one function.
//!
//! A path on which a server answers is left alone; one that a dead process left behind is taken over. There is one
//! client at a time: while it is attached, every other connection is closed.

mod socket;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

pub use socket::{BoundSocket, SocketAccess};

use crate::Errno;
use crate::client::{Client, Helpers};
use crate::function::FunctionInfo;
use crate::reaper::{ForeignFd, Reaper};

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenerError {
    /// A server answers there.
    #[error("socket {} is in use by a running server", path.display())]
    Busy {
        /// Path of the socket.
        path: PathBuf,
    },
    /// A file that is not a socket has that name; it is not ours to remove.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// Somebody holds the lock by which a dead server's socket is taken over.
    #[error(
        "cannot take over socket {} of a server that has ended: a process holds a lock on {}, which whoever may read that folder can. End the \
         process (fuser -v {}), take its right to read the folder (chmod go-r), or remove the socket",
        path.display(), folder.display(), folder.display()
    )]
    Locked {
        /// Path of the socket.
        path: PathBuf,
        /// What is locked: the folder that it lies in.
        folder: PathBuf,
    },
    /// The socket cannot be given to whom it is to belong.
    #[error(
        "cannot give socket {} its owner, group and mode: another owner takes root, a group has to be one of this process's own",
        path.display()
    )]
    Access {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Any other failure of the system.
    #[error("cannot listen on socket {}", path.display())]
    Bind {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Held by an attached client; when it is gone the next one may come.
pub(crate) type Seat = Arc<()>;

/// The fate of a new connection.
#[derive(Debug)]
pub enum Accepted {
    /// The only client until this value is dropped.
    Client(Box<Client>),
    /// Closed at once: another client is attached.
    RefusedBusy,
    /// Closed at once: it is none of the users that may connect.
    RefusedUser {
        /// User that the client had when it connected.
        uid: u32,
    },
    /// Closed at once: this process can hold no more descriptors.
    RefusedOutOfDescriptors,
}

/// A listening socket of one function, with at most one client at a time.
#[derive(Debug)]
pub struct Listener {
    bound: BoundSocket,
    seat: Weak<()>,
    /// Given up for a moment to hang up on a client when no descriptor is left. Otherwise that client would stay in
    /// the queue and keep a level-triggered poll awake.
    reserve: Option<OwnedFd>,
    helpers: Helpers,
}

/// A descriptor to let go of: a second one of the socket, because the thread that accepts may not open files.
fn reserve(bound: &BoundSocket) -> Option<OwnedFd> {
    bound.socket.try_clone().ok().map(OwnedFd::from)
}

impl Listener {
    /// Listens on `path`, for everybody whom the umask lets.
    pub fn bind(path: &Path) -> Result<Self, ListenerError> {
        let bound = BoundSocket::bind(path, &SocketAccess::default())?;
        Self::of(bound).map_err(|source| ListenerError::Bind {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Goes on with a socket that listens. Starts the thread that closes what its clients leave.
    pub fn of(bound: BoundSocket) -> io::Result<Self> {
        Ok(Self {
            reserve: reserve(&bound),
            bound,
            seat: Weak::new(),
            helpers: Helpers::start()?,
        })
    }

    /// Lets go of what the clients of this socket leave.
    pub fn reaper(&self) -> &Reaper {
        &self.helpers.reaper
    }

    /// Whether a connection may be accepted now: nothing of the last client is left, and a second one's socket, with all
    /// that it sent, can be closed. [`Reaper::call_on_room`] tells when that changes.
    pub fn has_room(&self) -> bool {
        let reaper = &self.helpers.reaper;
        if self.is_taken() {
            reaper.has_room()
        } else {
            reaper.is_idle()
        }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        self.bound.path()
    }

    /// Removes the socket's file now, if it is still this one's: nobody finds the way here from then on.
    pub fn remove_file(&self) {
        self.bound.remove_file();
    }

    /// Whether a client is attached.
    pub(crate) fn is_taken(&self) -> bool {
        self.seat.strong_count() > 0
    }

    /// Accepts a new connection, or gives `None` if there is none. To be called when the socket is readable.
    ///
    /// An error means that the listening socket itself is of no more use.
    pub fn accept(&mut self, function: &FunctionInfo) -> io::Result<Option<Accepted>> {
        if !self.has_room() {
            return Ok(None);
        }
        if self.reserve.is_none() {
            self.reserve = reserve(&self.bound);
        }
        match self.next_stream() {
            Ok(None) => Ok(None),
            Ok(Some(stream)) => {
                if let Err(uid) = self.bound.check_user(&stream)? {
                    self.hang_up(stream);
                    return Ok(Some(Accepted::RefusedUser { uid }));
                }
                if self.is_taken() {
                    self.hang_up(stream);
                    return Ok(Some(Accepted::RefusedBusy));
                }
                let seat = Seat::default();
                self.seat = Arc::downgrade(&seat);
                let client = Client::seated(stream, function.clone(), seat, &self.helpers)?;
                Ok(Some(Accepted::Client(Box::new(client))))
            }
            Err(error) if is_out_of_descriptors(&error) => {
                self.reserve = None;
                match self.next_stream() {
                    Ok(stream) => Ok(stream.map(|stream| {
                        self.hang_up(stream);
                        Accepted::RefusedOutOfDescriptors
                    })),
                    // The reserve was missing, or another thread was faster: the client stays in the queue.
                    Err(error) if is_out_of_descriptors(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Tells a client at once that it is refused. The reaper closes its socket, and whatever it has sent with it.
    fn hang_up(&self, stream: UnixStream) {
        // An error means that the client has gone by itself.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        drop(ForeignFd::new(stream.into(), self.helpers.reaper.clone()));
    }

    fn next_stream(&self) -> io::Result<Option<UnixStream>> {
        match self.bound.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            // The second error is a client that left before it was accepted.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bound.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.bound.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
