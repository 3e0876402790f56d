//! The socket path of one function.
//!
//! A path on which a server answers is left alone; one that a dead process left behind is taken over. There is one
//! client at a time: while it is attached, every other connection is closed.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use rustix::fs::{FlockOperation, flock};

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
    /// Closed at once: this process can hold no more descriptors.
    RefusedOutOfDescriptors,
}

/// A listening socket of one function, with at most one client at a time.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the path as it was bound: the file that may be removed at the end.
    identity: (u64, u64),
    seat: Weak<()>,
    /// Given up for a moment to hang up on a client when no descriptor is left. Otherwise that client would stay in
    /// the queue and keep a level-triggered poll awake.
    reserve: Option<OwnedFd>,
    helpers: Helpers,
}

impl Listener {
    /// Listens on `path`.
    pub fn bind(path: &Path) -> Result<Self, ListenerError> {
        let failed = |source| ListenerError::Bind {
            path: path.to_path_buf(),
            source,
        };
        let socket = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Self::take_over(path)?,
            other => other.map_err(failed)?,
        };
        socket.set_nonblocking(true).map_err(failed)?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_path_buf(),
            identity: (metadata.dev(), metadata.ino()),
            seat: Weak::new(),
            reserve: fs::File::open("/dev/null").ok().map(OwnedFd::from),
            helpers: Helpers::start().map_err(failed)?,
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

    /// Removes what a dead server left and binds anew.
    ///
    /// Two processes may get here at once. A lock on the directory makes looking and replacing one step, so that
    /// neither removes what the other has just bound.
    fn take_over(path: &Path) -> Result<UnixListener, ListenerError> {
        let failed = |source: io::Error| ListenerError::Bind {
            path: path.to_path_buf(),
            source,
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = fs::File::open(parent).map_err(failed)?;
        flock(&directory, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                return Err(ListenerError::NotASocket {
                    path: path.to_path_buf(),
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        match probe(path) {
            Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed)?,
            Err(Errno::NOENT) => {}
            Ok(()) | Err(Errno::AGAIN) => {
                return Err(ListenerError::Busy {
                    path: path.to_path_buf(),
                });
            }
            Err(error) => return Err(failed(error.into())),
        }
        UnixListener::bind(path).map_err(failed)
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
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
            self.reserve = fs::File::open("/dev/null").ok().map(OwnedFd::from);
        }
        match self.next_stream() {
            Ok(None) => Ok(None),
            Ok(Some(stream)) if self.is_taken() => {
                self.hang_up(stream);
                Ok(Some(Accepted::RefusedBusy))
            }
            Ok(Some(stream)) => {
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
        match self.socket.accept() {
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

/// Checks whether a server answers on a path. Non-blocking: a server whose queue is full answers too, with AGAIN.
fn probe(path: &Path) -> Result<(), Errno> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if is_ours {
            // There is nobody to report an error to; the next server takes over a path that stays behind.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
