//! Threads of a process that serves, each of a kind.
//!
//! Whoever takes one of them over has the rights of its kind and no more, if the process confines them: this crate and those
//! above it start every thread by [`spawn`], and the program says once, by [`confine_with`], how a kind is confined.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

/// Kinds of threads, by their work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadKind {
    /// Serves all clients: reads their messages, drives the card, answers.
    EventLoop,
    /// Signals a client's interrupt.
    Signaller,
    /// Closes, unmaps and frees what clients leave.
    Reaper,
    /// Touches pages of memory before they are needed.
    Populator,
    /// Writes to files what happened last.
    FlightWriter,
    /// Runs a software card.
    Card,
    /// Answers the operator.
    Control,
}

impl ThreadKind {
    /// For whoever does something for each kind.
    pub const ALL: [ThreadKind; 7] = [
        ThreadKind::EventLoop,
        ThreadKind::Signaller,
        ThreadKind::Reaper,
        ThreadKind::Populator,
        ThreadKind::FlightWriter,
        ThreadKind::Card,
        ThreadKind::Control,
    ];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            ThreadKind::EventLoop => "event loop",
            ThreadKind::Signaller => "signaller",
            ThreadKind::Reaper => "reaper",
            ThreadKind::Populator => "populator",
            ThreadKind::FlightWriter => "flight writer",
            ThreadKind::Card => "card",
            ThreadKind::Control => "control",
        }
    }
}

/// Confines the calling thread to what a kind does.
pub type Confine = fn(ThreadKind) -> io::Result<()>;

static CONFINE: OnceLock<Confine> = OnceLock::new();

/// Has all threads that are started from now on confined by `confine`. The first call of a process counts; without one no thread is
/// confined.
pub fn confine_with(confine: Confine) {
    CONFINE.get_or_init(|| confine);
}

/// Confines the calling thread, which goes on as one of that kind.
pub fn confine_this(kind: ThreadKind) -> io::Result<()> {
    CONFINE.get().map_or(Ok(()), |confine| confine(kind))
}

/// Starts a thread. Returns once it is confined; one that cannot be does no work.
pub fn spawn(
    kind: ThreadKind,
    name: String,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let (confined, is_confined) = sync_channel(1);
    let body = move || {
        let result = confine_this(kind);
        let is_ready = result.is_ok();
        // Whoever started it waits for this.
        let _ = confined.send(result);
        if is_ready {
            work();
        }
    };
    let thread = Builder::new().name(name).spawn(body)?;
    let ended = || io::Error::other("the thread ended as it started");
    is_confined.recv().map_err(|_| ended())??;
    Ok(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_cannot_be_confined_does_nothing() {
        // Other tests of this process start reapers only.
        confine_with(|kind| match kind {
            ThreadKind::Card => Err(io::Error::other("as the test wants it")),
            _ => Ok(()),
        });
        let refused = spawn(ThreadKind::Card, "card".into(), || panic!("it works"));
        assert_eq!(refused.unwrap_err().to_string(), "as the test wants it");
        let (told, tells) = sync_channel(1);
        let thread = spawn(ThreadKind::Signaller, "irq".into(), move || {
            told.send(()).unwrap()
        });
        thread.unwrap().join().unwrap();
        assert_eq!(tells.recv(), Ok(()));
    }
}
