//! Whose a client is.

// UNSAFETY: getsockopt for SO_PEERCRED. The safe wrapper that this crate could use otherwise, rustix's, has a process id in its result that
// cannot be 0, and 0 is what the kernel shows of a client in another PID namespace: of a VMM in a container.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// User of the process that connected, as it was when it did.
pub(crate) fn user_of(stream: impl AsFd) -> io::Result<u32> {
    let mut found = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` has as many bytes as `bytes` says, and all bit patterns are values of it. The descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut bytes,
        )
    };
    match result {
        0 => Ok(found.uid),
        _ => Err(io::Error::last_os_error()),
    }
}
