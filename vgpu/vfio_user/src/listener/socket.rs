//! The file of a socket: who may connect to it, and its removal at the end.
//!
//! The file is made with no more than its owner's rights, and listens once it has the owner, group and mode that it is to have. So
//! there is no moment at which somebody can connect who may not afterwards.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid, chmod, chownat, fchmod, flock, fstat, open,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use super::ListenerError;
use crate::Errno;
use crate::peer::user_of;

/// Connections that may wait until they are accepted. The host bounds it further (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Longest wait for the lock on a dead server's folder. Another server that starts holds it for an instant only; whoever holds it
/// longer makes the start fail.
const LOCK_WAIT: Duration = Duration::from_secs(2);
/// Time between two tries to take it.
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// Whose a socket is, and who may connect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SocketAccess {
    /// Its user; this process's if `None`. To give it to another one takes root.
    pub owner: Option<u32>,
    /// Its group; this process's if `None`. It may be any group that this process is in.
    pub group: Option<u32>,
    /// Who of owner, group and others may connect, as a file's mode; what the umask leaves if `None`.
    pub mode: Option<u32>,
    /// Users whose connections are accepted; everybody whom the mode lets if `None`.
    pub users: Option<Vec<u32>>,
}

impl SocketAccess {
    fn wants_another_file(&self) -> bool {
        self.owner.is_some() || self.group.is_some() || self.mode.is_some()
    }
}

/// A socket that listens, and whose file goes with it.
#[derive(Debug)]
pub struct BoundSocket {
    pub(super) socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the path as it was bound: the file that may be removed at the end.
    identity: (u64, u64),
    users: Option<Vec<u32>>,
}

impl BoundSocket {
    /// Listens on `path`.
    pub fn bind(path: &Path, access: &SocketAccess) -> Result<Self, ListenerError> {
        let failed = |source| ListenerError::Bind {
            path: path.to_path_buf(),
            source,
        };
        let socket = match make(path, access) {
            Err(ListenerError::Bind { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                take_over(path, access)?
            }
            other => other?,
        };
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self {
            socket,
            path: path.to_path_buf(),
            identity: (metadata.dev(), metadata.ino()),
            users: access.users.clone(),
        })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listening socket once more, non-blocking, for whoever accepts its connections by other means than a
    /// [`Listener`](crate::Listener). The file goes with this value.
    pub fn try_clone_socket(&self) -> io::Result<UnixListener> {
        self.socket.try_clone()
    }

    /// `Err` with the user of a client who is none of those that may connect.
    pub(super) fn check_user(&self, stream: &UnixStream) -> io::Result<Result<(), u32>> {
        let Some(users) = &self.users else {
            return Ok(Ok(()));
        };
        let uid = user_of(stream)?;
        Ok(if users.contains(&uid) { Ok(()) } else { Err(uid) })
    }
}

impl BoundSocket {
    /// Removes the file, if it is still this one's.
    pub(super) fn remove_file(&self) {
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if is_ours {
            // There is nobody to report an error to; the next server takes over a path that stays behind.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        self.remove_file();
    }
}

/// Makes the file and listens.
fn make(path: &Path, access: &SocketAccess) -> Result<UnixListener, ListenerError> {
    let failed = |error: Errno| ListenerError::Bind {
        path: path.to_path_buf(),
        source: error.into(),
    };
    let socket = new_socket().map_err(failed)?;
    if access.wants_another_file() {
        // The file takes this mode over. Nobody's umask has to change for it, which all threads share.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    }
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    let made = give_away(&socket, path, access).map_err(|source| ListenerError::Access {
        path: path.to_path_buf(),
        source,
    });
    let made = made.and_then(|()| listen(&socket, BACKLOG).map_err(failed));
    if let Err(error) = made {
        // The error that is reported is the first one.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(socket.into())
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Gives the socket's file its owner, group and mode.
fn give_away(socket: &OwnedFd, path: &Path, access: &SocketAccess) -> io::Result<()> {
    if !access.wants_another_file() {
        return Ok(());
    }
    // Somebody who may write to the folder could have put another file there: it is held, looked at, and then changed.
    let file = open(
        path,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let found = fstat(&file)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == fstat(socket)?.st_uid
        && found.st_nlink == 1;
    if !is_ours {
        return Err(io::Error::other("somebody replaced it as it was made"));
    }
    let (owner, group) = (access.owner.map(Uid::from_raw), access.group.map(Gid::from_raw));
    if owner.is_some() || group.is_some() {
        chownat(&file, "", owner, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = access.mode {
        // The mode of what a descriptor names that is not open for reading: there is no call of its own for it.
        let held = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        chmod(held, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Removes what a dead server left and binds anew.
///
/// Two processes may get here at once. A lock on the directory makes looking and replacing one step, so that
/// neither removes what the other has just bound. Whoever may read the directory can hold that lock, so it is not waited for without end.
fn take_over(path: &Path, access: &SocketAccess) -> Result<UnixListener, ListenerError> {
    let failed = |source: io::Error| ListenerError::Bind {
        path: path.to_path_buf(),
        source,
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = fs::File::open(parent).map_err(failed)?;
    lock(&directory, path, parent)?;
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
    make(path, access)
}

/// Takes the lock of a directory, or says after [`LOCK_WAIT`] that somebody holds it.
fn lock(directory: &fs::File, path: &Path, parent: &Path) -> Result<(), ListenerError> {
    let start = Instant::now();
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if start.elapsed() < LOCK_WAIT => thread::sleep(LOCK_AGAIN),
            Err(Errno::WOULDBLOCK) => {
                return Err(ListenerError::Locked {
                    path: path.to_path_buf(),
                    folder: parent.to_path_buf(),
                });
            }
            Err(error) => {
                return Err(ListenerError::Bind {
                    path: path.to_path_buf(),
                    source: error.into(),
                });
            }
        }
    }
}

/// Checks whether a server answers on a path. Non-blocking: a server whose queue is full answers too, with AGAIN.
fn probe(path: &Path) -> Result<(), Errno> {
    connect(&new_socket()?, &SocketAddrUnix::new(path)?)
}
