// UNSAFETY: ioctls and mappings are foreign calls and memory that somebody else writes; everything unsafe is here.
//! System calls: ioctls, mappings of GEM objects, the monotonic clock.
#![expect(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::Duration;

use crate::uapi::Request;

/// Makes an ioctl, again when it was interrupted.
pub(crate) fn ioctl<T>(fd: BorrowedFd<'_>, request: &Request<T>, message: &mut T) -> io::Result<()> {
    let code = libc::c_ulong::from(request.code(size_of::<T>()));
    loop {
        // SAFETY: `message` is a live, exclusively borrowed `repr(C)` value of the size that `code` names; the kernel
        // touches no more of it. Addresses inside of it belong to slices that the caller keeps alive for the call.
        let answer = unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(message)) };
        if answer >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
            return Err(error);
        }
    }
}

/// Time since some moment before; the one that syncobj waits are measured by.
pub(crate) fn monotonic() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a live timespec. The clock always exists, so there is no error to look at.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Memory of a GEM object in this process. The GPU may change it at any time, so every access is volatile.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only unmapped by the owner.
unsafe impl Send for Mapping {}
// SAFETY: accesses are volatile and aligned; that others change the memory meanwhile is its nature.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of the file at `offset`, shared.
    pub(crate) fn new(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        match NonNull::new(at.cast()) {
            Some(start) if at != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Length of the mapping in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[track_caller]
    fn at<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        assert!(
            offset.is_multiple_of(size) && offset.checked_add(size).is_some_and(|end| end <= self.bytes),
            "access of {size} bytes at {offset:#x} of a mapping of {:#x}",
            self.bytes
        );
        self.start.as_ptr().wrapping_add(offset).cast()
    }

    /// The word at byte `offset`.
    #[track_caller]
    pub(crate) fn read(&self, offset: usize) -> u32 {
        // SAFETY: `at` checked that the aligned word lies in the mapping, which lives as long as `self`.
        unsafe { self.at::<u32>(offset).read_volatile() }
    }

    /// Writes the word at byte `offset`.
    #[track_caller]
    pub(crate) fn write(&self, offset: usize, value: u32) {
        // SAFETY: as in `read`.
        unsafe { self.at::<u32>(offset).write_volatile(value) }
    }

    /// The double word at byte `offset`.
    #[track_caller]
    pub(crate) fn read_wide(&self, offset: usize) -> u64 {
        // SAFETY: as in `read`.
        unsafe { self.at::<u64>(offset).read_volatile() }
    }

    /// Writes the double word at byte `offset`.
    #[track_caller]
    pub(crate) fn write_wide(&self, offset: usize, value: u64) {
        // SAFETY: as in `read`.
        unsafe { self.at::<u64>(offset).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that `new` mapped, and no pointer into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
