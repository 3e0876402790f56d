//! Whose a client is.

// UNSAFETY: getsockopt for SO_PEERCRED and SO_PEERGROUPS. The safe wrapper that this crate could use otherwise, rustix's, has a process id in
// its result that cannot be 0, and 0 is what the kernel shows of a client in another PID namespace: of a VMM in a container. It has none for
// groups.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Most groups that are looked at. The kernel has an error for a process with more than there is room for.
const GROUPS_MAX: usize = 1024;

/// The process that connected to a socket, as it was when it did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its number; 0 in another PID namespace.
    pub pid: i32,
    /// User that it acted as.
    pub uid: u32,
    /// Its first group.
    gid: u32,
    /// Its other groups.
    groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel. The groups of a process with more than 1024 count as none.
    pub fn of(stream: impl AsFd) -> io::Result<Self> {
        let credentials = credentials(&stream)?;
        let mut groups = vec![0; GROUPS_MAX];
        let bytes = option(&stream, libc::SO_PEERGROUPS, &mut groups).unwrap_or(0);
        groups.truncate(bytes / size_of::<u32>());
        Ok(Self {
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
            groups,
        })
    }

    /// Whether it is in a group.
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// User of the process that connected, as it was when it did.
pub(crate) fn user_of(stream: impl AsFd) -> io::Result<u32> {
    credentials(&stream).map(|found| found.uid)
}

fn credentials(stream: &impl AsFd) -> io::Result<libc::ucred> {
    let mut found = [libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    }];
    option(stream, libc::SO_PEERCRED, &mut found)?;
    Ok(found[0])
}

/// What the kernel may write into: any bytes are values.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for libc::ucred {}

/// Reads an option of the socket, and says how many bytes it has.
fn option<T: Plain>(stream: &impl AsFd, name: libc::c_int, found: &mut [T]) -> io::Result<usize> {
    let mut bytes = size_of_val(found) as libc::socklen_t;
    // SAFETY: `found` has as many bytes as `bytes` says, and all bit patterns are values of it. The descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            found.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(bytes as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn peer_is_who_the_kernel_says_we_are() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let peer = Peer::of(&ours).unwrap();
        assert_eq!(peer.pid as u32, std::process::id());
        // Another way to ask: /proc.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace()
                .map(|word| word.parse().unwrap())
                .collect()
        };
        assert_eq!(peer.uid, numbers("Uid:")[1]);
        let groups = [vec![numbers("Gid:")[1]], numbers("Groups:")].concat();
        assert!(groups.iter().all(|group| peer.is_in(*group)), "{peer:?}");
        assert!(!peer.is_in(54_321) && !groups.contains(&54_321));
        assert_eq!(user_of(&ours).unwrap(), peer.uid);
    }
}
