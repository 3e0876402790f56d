//! Threads of a process that serves, each of a kind.
//!
//! Whoever takes one of them over has the rights of its kind and no more, if the process confines them: this crate and those
//! above it start every thread by [`spawn`], and the program says once, by [`confine_with`], how a kind is confined.

use std::cell::RefCell;
use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::gettid;

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
    /// Runs blocks of a software card's grids ahead of their turn.
    CardWorker,
    /// Answers the operator.
    Control,
}

impl ThreadKind {
    /// For whoever does something for each kind.
    pub const ALL: [ThreadKind; 8] = [
        ThreadKind::EventLoop,
        ThreadKind::Signaller,
        ThreadKind::Reaper,
        ThreadKind::Populator,
        ThreadKind::FlightWriter,
        ThreadKind::Card,
        ThreadKind::CardWorker,
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
            ThreadKind::CardWorker => "card worker",
            ThreadKind::Control => "control",
        }
    }

    /// How far its work comes behind that of others where there is too much of it, as `nice` has it. Who may control a broker, and asks
    /// for as much as there is time for, has a tenth of a processor that others want.
    pub fn niceness(self) -> i32 {
        match self {
            ThreadKind::Control => 10,
            _ => 0,
        }
    }
}

/// Confines the calling thread to what a kind does.
pub type Confine = fn(ThreadKind) -> io::Result<()>;

static CONFINE: OnceLock<Confine> = OnceLock::new();

thread_local! {
    /// The card that the thread works for.
    static CARD: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Name of the card that the calling thread works for, if it works for one: what it says is about that one.
pub fn card() -> Option<Arc<str>> {
    CARD.with_borrow(Clone::clone)
}

/// Does `work` for the card `name`; threads that it starts by [`spawn`] work for it, too, and those that they start.
pub fn for_card<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let before = CARD.replace(Some(name.into()));
    let done = work();
    CARD.set(before);
    done
}

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
    let card = card();
    let body = move || {
        CARD.set(card);
        // Less than others needs no right, and where it is not to be had the thread works as they do.
        let this = Some(gettid());
        if kind.niceness() > 0 && getpriority_process(this).is_ok_and(|now| now < kind.niceness()) {
            let _ = setpriority_process(this, kind.niceness());
        }
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
    fn thread_works_for_the_card_of_whoever_starts_it() {
        let of_another = || {
            let (told, tells) = sync_channel(1);
            let thread = spawn(ThreadKind::Signaller, "test".into(), move || {
                told.send(card()).unwrap()
            });
            thread.unwrap().join().unwrap();
            tells.recv().unwrap()
        };
        assert_eq!(of_another(), None);
        let inside = for_card("g0", || (for_card("g1", of_another), of_another(), card()));
        let (g0, g1) = (Some("g0".into()), Some("g1".into()));
        assert_eq!(inside, (g1, g0.clone(), g0));
        assert_eq!(card(), None);
    }

    #[test]
    fn thread_that_answers_operators_gives_way() {
        for kind in [ThreadKind::Control, ThreadKind::Signaller] {
            let own = getpriority_process(None).unwrap();
            let look = || getpriority_process(Some(gettid())).unwrap();
            let (told, tells) = sync_channel(1);
            let thread = spawn(kind, "test".into(), move || told.send(look()).unwrap());
            thread.unwrap().join().unwrap();
            let is_to_be = match kind.niceness() {
                0 => own,
                niceness => own.max(niceness),
            };
            assert_eq!(tells.recv(), Ok(is_to_be), "{kind:?}");
        }
    }

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
