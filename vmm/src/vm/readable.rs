//! Waiting until one of several descriptors can be read.

// UNSAFETY: ppoll is called through libc, for the standard library has no poll, and safe wrappers borrow descriptors in a
// way that an eventfd of rust-vmm does not offer.
#![expect(unsafe_code)]

use std::os::fd::AsRawFd;
use std::time::Duration;

/// Sleeps until one of `sources` is readable or at its end, a signal comes, or `limit` is over; which of them are.
/// Epoll would count in milliseconds, which is long for a guest that polls its GPU, and takes no regular files.
pub(crate) fn wait_readable<const COUNT: usize>(
    sources: [&dyn AsRawFd; COUNT],
    limit: Option<Duration>,
) -> [bool; COUNT] {
    let mut polled = sources.map(|source| libc::pollfd {
        fd: source.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    });
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `polled` is an array of `COUNT` that lives through the call; `limit` is null or points to a value that
    // does, too; no signal mask is given. `sources` keeps the descriptors open.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            COUNT as libc::nfds_t,
            limit,
            std::ptr::null(),
        )
    };
    // After a failure `revents` say nothing. The only ones possible are a signal and want of kernel memory.
    polled.map(|polled| ready > 0 && polled.revents != 0)
}
