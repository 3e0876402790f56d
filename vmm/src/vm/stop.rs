//! How a VM comes to a halt: the first reason counts, every thread is stopped, and `wait` returns the reason.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use super::VmExit;
use crate::bus::BusError;
use crate::link::{LinkError, VgpuLink};
use crate::pci::DoorbellTrap;
use crate::vcpu::kick;

/// Events of the thread that watches the link.
const STOPPED: u64 = 0;
const LINK_HUNG_UP: u64 = 1;
const QUIET: u64 = 2;

/// The stop of one VM.
pub(crate) struct Stop {
    is_requested: AtomicBool,
    exit: Mutex<Option<Arc<VmExit>>>,
    has_exit: Condvar,
    /// Readable from the request on, for threads that wait in the VMM.
    eventfd: EventFd,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Stop {
    pub(crate) fn new(eventfd: EventFd) -> Stop {
        Stop {
            is_requested: AtomicBool::new(false),
            exit: Mutex::new(None),
            has_exit: Condvar::new(),
            eventfd,
            threads: Mutex::default(),
        }
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::SeqCst)
    }

    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.eventfd
    }

    /// The VM's threads, none of which ends before its handle is in the list.
    pub(super) fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops every thread. Only the first request's reason is kept.
    pub(crate) fn request(&self, exit: VmExit) {
        // The flag comes first, so that a thread that sees the exit can rely on it.
        self.is_requested.store(true, Ordering::SeqCst);
        self.lock_exit().get_or_insert_with(|| Arc::new(exit));
        self.has_exit.notify_all();
        // The counter cannot overflow: each thread and caller adds one.
        let _ = self.eventfd.write(1);
        self.threads().iter().for_each(kick);
    }

    pub(super) fn wait(&self) -> Arc<VmExit> {
        loop {
            if let Some(exit) = self.wait_for(Duration::MAX) {
                return exit;
            }
        }
    }

    pub(super) fn wait_for(&self, limit: Duration) -> Option<Arc<VmExit>> {
        let exit = self.known_exit(limit)?;
        self.join();
        Some(exit)
    }

    fn known_exit(&self, limit: Duration) -> Option<Arc<VmExit>> {
        let exit = self.lock_exit();
        let waited = self
            .has_exit
            .wait_timeout_while(exit, limit, |exit| exit.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Body of the thread that notices what the other side of the link does while no vCPU talks to it: it goes away, or says that the guest is
    /// quiet.
    pub(super) fn watch(&self, link: &dyn VgpuLink, trap: Option<&DoorbellTrap>) -> Option<VmExit> {
        match self.follow(link, trap) {
            Ok(Some(error)) if !self.is_requested() => Some(VmExit::Bus(error)),
            // A host that cannot poll: the link's end is noticed when a vCPU uses it.
            Ok(_) | Err(_) => None,
        }
    }

    /// Follows the link to its end, which is why the VM ends, or to a stop.
    fn follow(&self, link: &dyn VgpuLink, trap: Option<&DoorbellTrap>) -> io::Result<Option<BusError>> {
        let hangup = link.hangup_fd();
        if hangup.is_none() && trap.is_none() {
            return Ok(None);
        }
        let events = Epoll::new()?;
        let add = |fd: RawFd, events_of: EventSet, data: u64| {
            events.ctl(ControlOperation::Add, fd, EpollEvent::new(events_of, data))
        };
        add(self.eventfd.as_raw_fd(), EventSet::IN, STOPPED)?;
        if let Some(hangup) = hangup {
            let gone = EventSet::READ_HANG_UP | EventSet::HANG_UP;
            add(hangup.as_raw_fd(), gone, LINK_HUNG_UP)?;
        }
        if let Some(trap) = trap {
            add(trap.quiet().as_raw_fd(), EventSet::IN, QUIET)?;
        }
        let mut ready = [EpollEvent::default()];
        loop {
            match events.wait(-1, &mut ready) {
                Ok(_) if ready[0].data() == QUIET => {
                    if let Some(Err(error)) = trap.map(DoorbellTrap::arm) {
                        return Ok(Some(error));
                    }
                }
                Ok(_) if ready[0].data() == LINK_HUNG_UP => {
                    return Ok(Some(BusError::Link(LinkError::Gone)));
                }
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn lock_exit(&self) -> MutexGuard<'_, Option<Arc<VmExit>>> {
        self.exit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends and joins every thread; called once there is an exit, with no lock held that a thread may want.
    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        // The request that brought the exit may not have come to its kicks, and no longer finds the threads.
        threads.iter().for_each(kick);
        for thread in threads {
            // Threads catch their own panics and make them the VM's exit.
            let _ = thread.join();
        }
    }
}
