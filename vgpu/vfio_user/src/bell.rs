//! Signals an eventfd without ever waiting.
//!
//! A write to an eventfd waits while its counter is full, unless the file is set not to; the client holds the other end of
//! the file, fills its counter and sets what it likes, between any two calls of ours. The kernel itself signals
//! eventfds by another way that has no wait in it: when an asynchronous request ends that names one. So a [`Bell`]
//! reads nothing from a file of its own and has the end of that told to the client.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use vmm_sys_util::aio::{IOCB_CMD_PREAD, IOCB_FLAG_RESFD, IoContext, IoControlBlock, IoEvent};

use crate::Errno;

/// Signals the eventfds of one socket's clients.
#[derive(Debug)]
pub(crate) struct Bell {
    /// One request at a time.
    requests: Mutex<IoContext>,
    file: File,
}

impl Bell {
    /// Takes one of the host's asynchronous requests (`fs.aio-max-nr`). To be made before there are clients, who could use
    /// all of them up.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            requests: Mutex::new(IoContext::new(1)?),
            file: memfd_create("bell", MemfdFlags::CLOEXEC)?.into(),
        })
    }

    /// Adds 1 to the counter of an eventfd; one that is full stays so. Anything but an eventfd is refused.
    pub(crate) fn ring(&self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut request = IoControlBlock {
            aio_lio_opcode: IOCB_CMD_PREAD as u16,
            aio_fildes: self.file.as_raw_fd() as u32,
            // No bytes to no place: the end is all that is wanted.
            aio_buf: 0,
            aio_nbytes: 0,
            aio_flags: IOCB_FLAG_RESFD,
            aio_resfd: event.as_raw_fd() as u32,
            ..IoControlBlock::default()
        };
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.submit(&[&mut request]).map_err(errno)?;
        // A read from memory has ended when its submission returns. Its note is taken out, for the next one to have room.
        requests
            .get_events(0, &mut [IoEvent::default()], None)
            .map_err(errno)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::testing::memory;

    fn count(event: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        rustix::io::read(event, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn every_ring_counts() {
        let (bell, event) = (Bell::new().unwrap(), eventfd(0, EventfdFlags::empty()).unwrap());
        (0..1000).for_each(|_| bell.ring(event.as_fd()).unwrap());
        assert_eq!(count(&event), 1000);
    }

    #[test]
    fn full_counter_that_blocks_is_not_waited_for() {
        let (bell, event) = (Bell::new().unwrap(), eventfd(0, EventfdFlags::empty()).unwrap());
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..10).for_each(|_| bell.ring(event.as_fd()).unwrap());
        let other = eventfd(0, EventfdFlags::empty()).unwrap();
        bell.ring(other.as_fd()).unwrap();
        assert_eq!(count(&other), 1);
    }

    #[test]
    fn other_files_are_refused_and_cost_no_room() {
        let (bell, event) = (Bell::new().unwrap(), eventfd(0, EventfdFlags::empty()).unwrap());
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        for file in [memory(4096), reader, writer].iter().cycle().take(300) {
            assert_eq!(bell.ring(file.as_fd()), Err(Errno::INVAL));
        }
        bell.ring(event.as_fd()).unwrap();
        assert_eq!(count(&event), 1);
    }
}
