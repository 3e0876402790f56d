//! The broker's side of a VM behind a socket: messages for it wait in an outbox for the event loop, which owns the
//! socket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu::{Denial, InterruptKind, Reply, RequestId};
use vmm_sys_util::eventfd::EventFd;

use crate::port::VmPort;
use crate::signaller::{Signalled, Signaller};

/// Wakes the event loop, unless it is awake.
///
/// The loop sets a flag while it works; after clearing it, it looks at all outboxes once more. A thread that puts a
/// message into an outbox does so before it reads the flag. So one of them sees the other.
#[derive(Debug)]
pub(crate) struct Waker {
    event: EventFd,
    is_awake: AtomicBool,
}

impl Waker {
    /// `event` is polled by the loop.
    pub(crate) fn new(event: EventFd) -> Self {
        Self {
            event,
            is_awake: AtomicBool::new(false),
        }
    }

    pub(crate) fn event(&self) -> &EventFd {
        &self.event
    }

    pub(crate) fn wake(&self) {
        // The counter is only ever full of wake-ups.
        let _ = self.event.write(1);
    }

    fn wake_if_asleep(&self) {
        if !self.is_awake.load(SeqCst) {
            self.wake();
        }
    }

    pub(crate) fn set_awake(&self, is_awake: bool) {
        self.is_awake.store(is_awake, SeqCst);
    }
}

/// A message for a VM's session.
#[derive(Debug)]
pub(crate) enum Told {
    Attached(Result<(), Denial>),
    Reply(RequestId, Reply),
    Expelled,
    Detached,
}

/// The outbox of one VM. As many replies can wait as requests were accepted.
#[derive(Debug)]
pub(crate) struct RemotePort {
    outbox: Mutex<VecDeque<Told>>,
    /// Whether something is in it. Changed under its lock.
    has_news: AtomicBool,
    waker: Arc<Waker>,
    signaller: Arc<Signaller>,
}

impl RemotePort {
    pub(crate) fn new(waker: Arc<Waker>, signaller: Arc<Signaller>) -> Self {
        Self {
            outbox: Mutex::new(VecDeque::new()),
            has_news: AtomicBool::new(false),
            waker,
            signaller,
        }
    }

    fn outbox(&self) -> MutexGuard<'_, VecDeque<Told>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the oldest message.
    pub(crate) fn take(&self) -> Option<Told> {
        if !self.has_news() {
            return None;
        }
        let mut outbox = self.outbox();
        let told = outbox.pop_front();
        self.has_news.store(!outbox.is_empty(), SeqCst);
        told
    }

    /// Whether there is a message.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news.load(SeqCst)
    }

    fn tell(&self, told: Told) {
        let mut outbox = self.outbox();
        outbox.push_back(told);
        self.has_news.store(true, SeqCst);
        drop(outbox);
        self.waker.wake_if_asleep();
    }
}

impl VmPort for RemotePort {
    fn attached(&self, outcome: Result<(), Denial>) {
        self.tell(Told::Attached(outcome));
    }

    fn reply(&self, request: RequestId, reply: Reply) {
        self.tell(Told::Reply(request, reply));
    }

    fn interrupt(&self, kind: InterruptKind) {
        self.signaller.raise(kind.into());
    }

    fn quiet(&self) {
        self.signaller.raise(Signalled::Quiet);
    }

    fn let_interrupts(&self, through: bool) {
        self.signaller.enable(through);
    }

    fn expelled(&self, _reason: &str) {
        self.tell(Told::Expelled);
    }

    fn detached(&self) {
        self.tell(Told::Detached);
    }
}
