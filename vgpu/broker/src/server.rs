//! One socket, through which one VM attaches, again and again.
//!
//! ```text
//!  (Free) ──client──► (Taken) ──client gone, expelled, denied──► (Leaving) ──Detached──► (Free)
//! ```
//!
//! From any of them the operator may close the socket for good ([`Seat::retire`]); the seat is over when its VM has left.
//!
//! While a VM leaves, no client is accepted: a new one waits in the socket's queue until nothing of the
//! last VM is left, the descriptors that its client sent included.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use vfio_user_server::Client;
use vfio_user_server::error::CloseReason;
use vfio_user_server::listener::{Accepted, Listener};
use vmm_sys_util::epoll::EventSet;

use crate::broker::{Shared, VmSocket};
use crate::error::StartError;
use crate::image::WindowFile;
use crate::pci_function::function;
use crate::ratelimit::RateLimit;
use crate::remote::{RemotePort, Told};
use crate::session::{Session, Tells};
use crate::sigbus::MapOwner;
use crate::signaller::Signaller;

/// Time after which an operator is told that a socket's reaper has come to no end.
const REAPING_LONG: Duration = Duration::from_secs(10);

/// One socket with its VM's session.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Name of the VM.
    name: String,
    listener: Listener,
    /// No more clients: the listening socket is about to be closed, or is.
    is_retired: bool,
    shared: Arc<Shared>,
    signaller: Arc<Signaller>,
    /// Limit of the log lines that clients can cause.
    limit: RateLimit,
    session: Option<Session>,
    /// Kept until its VM is detached.
    port: Option<Arc<RemotePort>>,
    /// Kept because the event loop may still poll its socket.
    closed: Option<Session>,
}

impl Seat {
    pub(crate) fn bind(vm: VmSocket, shared: Arc<Shared>) -> Result<Self, StartError> {
        let VmSocket { socket, config, .. } = vm;
        let name = config.name;
        let thread = |what| move |source| StartError::System { what, source };
        let listener = Listener::of(socket).map_err(thread("a thread that closes what clients leave"))?;
        let waker = shared.wake.clone();
        listener.reaper().call_on_room(move || waker.wake());
        let signaller = Signaller::start(&name).map_err(thread("a thread for interrupts"))?;
        let limit = RateLimit::new(Instant::now());
        let (session, port, closed) = (None, None, None);
        Ok(Self {
            name,
            listener,
            is_retired: false,
            shared,
            signaller,
            limit,
            session,
            port,
            closed,
        })
    }

    /// Events to poll the listening socket for: none while a VM leaves.
    pub(crate) fn listener_interest(&self) -> (RawFd, EventSet) {
        let is_leaving = self.session.is_none() && self.port.is_some();
        let events = if is_leaving || self.is_retired || !self.listener.has_room() {
            EventSet::empty()
        } else {
            EventSet::IN
        };
        (self.listener.as_raw_fd(), events)
    }

    /// Events to poll the client's socket for.
    pub(crate) fn client_interest(&self) -> Option<(RawFd, EventSet)> {
        self.session.as_ref().and_then(Session::interest)
    }

    /// Events to poll for of an eventfd of the client's.
    pub(crate) fn event_interest(&self, tells: Tells) -> Option<(RawFd, EventSet)> {
        self.session.as_ref()?.event_interest(tells)
    }

    /// That eventfd is ready.
    pub(crate) fn event_ready(&mut self, tells: Tells) {
        self.session
            .iter_mut()
            .for_each(|session| session.event_ready(tells));
    }

    /// Closes the last client's socket, and eventfds that were replaced, which the event loop no longer polls.
    pub(crate) fn drop_closed(&mut self) {
        self.closed = None;
        self.session.iter_mut().for_each(Session::drop_replaced);
    }

    /// Whether there is news that [`Seat::settle`] has not seen.
    pub(crate) fn has_news(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.has_news())
    }

    /// Accepts a new client. `false` if the socket is of no more use.
    pub(crate) fn listener_ready(&mut self) -> bool {
        // A VMM that was restarted connects while its predecessor's end is still unread: that one leaves first, and
        // the new one is not taken for a second client.
        if self.client_interest().is_some() {
            self.client_ready(EventSet::empty());
        }
        if self.is_retired || self.session.is_none() && self.port.is_some() {
            return true;
        }
        let windows = match self.window_file() {
            Ok(windows) => windows,
            Err(error) => {
                self.warn(&format!(
                    "no file for its windows, so a client cannot map them: {error}"
                ));
                None
            }
        };
        let descriptor = windows.as_ref().map(|(_, descriptor)| descriptor);
        match self.listener.accept(&function(self.shared.bars, descriptor)) {
            Ok(None) => {}
            Ok(Some(Accepted::Client(seated))) => self.seat(seated, windows.map(|(file, _)| file)),
            Ok(Some(Accepted::RefusedBusy)) => self.warn("a second client was disconnected: one is attached"),
            Ok(Some(Accepted::RefusedUser { uid })) => self.warn(&format!(
                "a client of user {uid} was disconnected: it is none of those that host.toml lets connect"
            )),
            Ok(Some(Accepted::RefusedOutOfDescriptors)) => {
                self.warn(
                    "a client was disconnected: no file descriptors are left, raise the limit (ulimit -n)",
                );
            }
            Err(error) => {
                log::error!(vm = self.name.as_str(); "the socket failed and accepts no more VMs: {error}");
                return false;
            }
        }
        true
    }

    /// A file for the next client's windows, if it may map them.
    fn window_file(&self) -> std::io::Result<Option<(WindowFile, Arc<OwnedFd>)>> {
        if !self.shared.lets_windows {
            return Ok(None);
        }
        let file = WindowFile::new(&self.name, self.shared.bars.windows())?;
        let descriptor = Arc::new(file.file.try_clone()?.into());
        Ok(Some((file, descriptor)))
    }

    fn seat(&mut self, client: Box<Client>, windows: Option<WindowFile>) {
        let port = Arc::new(RemotePort::new(self.shared.wake.clone(), self.signaller.clone()));
        let reaper = self.listener.reaper().clone();
        let Ok(mut performer) = self.shared.lock() else {
            return;
        };
        let window_bytes = windows.as_ref().map_or(0, WindowFile::untouched);
        // The quota may have changed since the last client.
        let Some(config) = performer.roster.config(&self.name).cloned() else {
            return;
        };
        match performer.attach(port.clone(), config, reaper.clone(), window_bytes) {
            Ok(attachment) => {
                drop(performer);
                self.say(log::Level::Info, "client connected");
                let (shared, signaller) = (self.shared.clone(), self.signaller.clone());
                let owner = MapOwner::new(shared.torn.clone(), reaper);
                self.session = Some(Session::new(
                    client, shared, attachment, signaller, owner, windows,
                ));
                self.port = Some(port);
            }
            Err(error) => {
                drop(performer);
                self.warn(&format!("a client was disconnected: {error}"));
            }
        }
    }

    /// Name of the VM.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a client is there, or something of the last one.
    pub(crate) fn is_taken(&self) -> bool {
        self.session.is_some() || self.port.is_some()
    }

    /// Hangs up on the client, if there is one, and lets no other in. The socket's file goes at once, so that another seat may have its
    /// path.
    pub(crate) fn retire(&mut self) {
        self.is_retired = true;
        self.listener.remove_file();
        if self.session.is_some() {
            self.say(log::Level::Info, "the operator detached the VM");
            self.close();
        }
    }

    /// Whether it lets no more clients in.
    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// Whether it was retired and nothing of its VM is left.
    pub(crate) fn is_over(&self) -> bool {
        self.is_retired && !self.is_taken() && self.closed.is_none()
    }

    /// The client's socket is ready for something.
    pub(crate) fn client_ready(&mut self, events: EventSet) {
        if let Some(reason) = self.session.as_mut().and_then(|session| session.ready(events)) {
            self.client_gone(reason);
        }
    }

    /// Passes on the core's answers since the last call.
    pub(crate) fn settle(&mut self) {
        while let Some(told) = self.port.as_ref().and_then(|port| port.take()) {
            match told {
                Told::Attached(Ok(())) => self.session.iter_mut().for_each(Session::attached),
                Told::Attached(Err(reason)) => {
                    self.warn(&format!("vGPU denied: {reason}"));
                    self.close();
                }
                Told::Reply(id, reply) => {
                    if let Some(session) = &mut self.session {
                        session.reply(id, reply);
                    }
                }
                // The broker has logged it.
                Told::Expelled => self.close(),
                Told::Detached => {
                    self.close();
                    self.port = None;
                }
            }
        }
        if let Some(reason) = self.session.as_mut().and_then(Session::due) {
            self.client_gone(reason);
        }
        if self.listener.reaper().busy_for() > Some(REAPING_LONG) {
            let count = self.listener.reaper().waiting();
            self.warn(&format!(
                "{count} descriptors or maps of a client are not gone after {} s, and no next client is let in before: \
                 a file that it sent does not close",
                REAPING_LONG.as_secs()
            ));
        }
    }

    fn client_gone(&mut self, reason: CloseReason) {
        match &reason {
            CloseReason::HungUp => self.say(log::Level::Info, "client disconnected"),
            CloseReason::Protocol(error) => self.warn(&format!("{reason}: {error}")),
            CloseReason::Socket(error) => self.warn(&format!("{reason}: {error}")),
            _ => self.warn(&reason.to_string()),
        }
        self.close();
    }

    fn close(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        self.signaller.clear();
        // A broker that has ended has released everything.
        if let Ok(mut performer) = self.shared.lock() {
            performer.detach(session.attachment());
        }
        self.closed = Some(session);
    }

    fn warn(&mut self, text: &str) {
        self.say(log::Level::Warn, text);
    }

    fn say(&mut self, level: log::Level, text: &str) {
        if let Some(suppressed) = self.limit.pass(Instant::now()) {
            log::log!(level, vm = self.name.as_str(), suppressed; "{text}");
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.signaller.stop();
    }
}

#[cfg(test)]
mod tests;
