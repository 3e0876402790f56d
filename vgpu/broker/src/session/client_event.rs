//! An eventfd by which a client tells the broker something.
//!
//! It is polled while it is awaited and not else, and what it says ends that. So a client that signals without end causes no more than what
//! the broker has begun to wait for.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use vfio_user_server::irq::IrqEvent;
use vmm_sys_util::epoll::EventSet;

/// One such eventfd, if the client has sent one.
#[derive(Debug, Default)]
pub(super) struct ClientEvent {
    event: Option<IrqEvent>,
    is_awaited: bool,
    /// Eventfds that the event loop may still poll.
    replaced: Vec<IrqEvent>,
}

impl ClientEvent {
    pub(super) fn is_connected(&self) -> bool {
        self.event.is_some()
    }

    /// Another eventfd takes its place, or none. It is not awaited.
    pub(super) fn connect(&mut self, event: Option<IrqEvent>) {
        self.is_awaited = false;
        let old = std::mem::replace(&mut self.event, event);
        self.replaced.extend(old);
    }

    /// Events to poll it for; `None` for none.
    pub(super) fn interest(&self) -> Option<(RawFd, EventSet)> {
        let polled = self.event.as_ref().filter(|_| self.is_awaited);
        polled.map(|event| (event.as_fd().as_raw_fd(), EventSet::IN))
    }

    /// Its next signal counts.
    pub(super) fn wait(&mut self) {
        self.is_awaited = self.is_connected();
    }

    /// What was signalled before now does not count.
    pub(super) fn clear(&self) {
        if let Some(event) = &self.event {
            // Whatever it says, it was signalled.
            let _ = event.take();
        }
    }

    /// Takes what was signalled. `false` if nothing was awaited.
    pub(super) fn take(&mut self) -> bool {
        self.clear();
        std::mem::take(&mut self.is_awaited)
    }

    /// Closes eventfds that the event loop no longer polls.
    pub(super) fn drop_replaced(&mut self) {
        self.replaced.clear();
    }
}
