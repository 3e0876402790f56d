//! Lets go of what clients sent, where nobody waits for it.
//!
//! A descriptor that a client sends may be any file. To close it can take as long as the client wants: a FUSE server that
//! does not answer the flush, a TCP socket that lingers over unsent data; a file of memory takes its time too, as its last
//! reference frees all pages. The same holds for a client's socket, because descriptors that nobody received are
//! closed with it. So every descriptor that comes out of a client's socket, and the socket itself, is a [`ForeignFd`], and
//! the thread of a [`Reaper`] closes it.
//!
//! A reaper belongs to one socket path. If one of its closes never ends, it is that path's clients who wait: while as many
//! descriptors wait as [`bounds::CLOSING_MAX`](crate::bounds) says, nothing more is read from its client, and while any
//! waits no next client is let in. No other path has less.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bounds::CLOSING_MAX;
use crate::threads::{self, ThreadKind};

/// Time between two looks at what somebody still uses.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Something that is left of a client, and to be let go of by the reaper's thread.
pub trait Leftover: Send {
    /// Lets go of it, however long that takes. `false` if somebody else uses it still: asked again a little later.
    fn let_go(&mut self) -> bool;
}

impl Leftover for Option<OwnedFd> {
    fn let_go(&mut self) -> bool {
        *self = None;
        true
    }
}

#[derive(Default)]
struct Queue {
    left: VecDeque<Box<dyn Leftover>>,
    is_over: bool,
    on_room: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Since when something has been waiting without a pause.
    busy_since: Option<Instant>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// What is queued, being let go of, or still used by somebody else.
    waiting: AtomicUsize,
}

/// The thread that lets go, and ends with the last clone of this once it has done so.
#[derive(Clone)]
pub struct Reaper(Arc<Handle>);

struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
        self.0.changed.notify_one();
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reaper")
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

impl Reaper {
    /// Starts the thread. It is never waited for.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let worker = shared.clone();
        threads::spawn(ThreadKind::Reaper, "reaper".into(), move || worker.work())?;
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Calls `on_room` from the thread whenever nothing waits any more, or again less than too much.
    pub fn call_on_room(&self, on_room: impl Fn() + Send + Sync + 'static) {
        self.0.0.lock().on_room = Some(Arc::new(on_room));
    }

    /// Has something let go of. Never waits.
    pub fn leave(&self, left: impl Leftover + 'static) {
        let shared = &self.0.0;
        let mut queue = shared.lock();
        shared.waiting.fetch_add(1, SeqCst);
        queue.busy_since.get_or_insert_with(Instant::now);
        queue.left.push_back(Box::new(left));
        shared.changed.notify_one();
    }

    /// How much waits.
    pub fn waiting(&self) -> usize {
        self.0.0.waiting.load(SeqCst)
    }

    /// Whether nothing waits.
    pub fn is_idle(&self) -> bool {
        self.waiting() == 0
    }

    /// Whether a client may leave more.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting() < CLOSING_MAX
    }

    /// How long something has been waiting without a pause; `None` if nothing waits.
    pub fn busy_for(&self) -> Option<Duration> {
        if self.is_idle() {
            return None;
        }
        self.0.0.lock().busy_since.map(|since| since.elapsed())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Single insertions and assignments: a panic leaves nothing half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut used: Vec<Box<dyn Leftover>> = Vec::new();
        while let Some(next) = self.next(!used.is_empty()) {
            used.extend(next);
            let before = used.len();
            used.retain_mut(|left| !left.let_go());
            self.done(before - used.len());
        }
    }

    /// What to let go of next, perhaps nothing where some things are `used` and are to be looked at again. `None` at the end.
    fn next(&self, has_used: bool) -> Option<Option<Box<dyn Leftover>>> {
        let mut queue = self.lock();
        if has_used && queue.left.is_empty() {
            let waited = self.changed.wait_timeout(queue, LOOK_AGAIN);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            return Some(queue.left.pop_front());
        }
        loop {
            match queue.left.pop_front() {
                Some(left) => return Some(Some(left)),
                None if queue.is_over => return None,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn done(&self, count: usize) {
        let mut queue = self.lock();
        let before = self.waiting.fetch_sub(count, SeqCst);
        let now = before - count;
        if now == 0 {
            queue.busy_since = None;
        }
        let has_room_again = before >= CLOSING_MAX && now < CLOSING_MAX;
        let on_room = queue
            .on_room
            .clone()
            .filter(|_| count > 0 && (now == 0 || has_room_again));
        drop(queue);
        if let Some(on_room) = on_room {
            on_room();
        }
    }
}

/// A descriptor that came from a client, or its socket. Dropping it has it closed by the reaper.
#[derive(Debug)]
pub struct ForeignFd {
    descriptor: Option<OwnedFd>,
    reaper: Reaper,
}

impl ForeignFd {
    /// Takes a descriptor that `reaper` is to close.
    pub(crate) fn new(descriptor: OwnedFd, reaper: Reaper) -> Self {
        Self {
            descriptor: Some(descriptor),
            reaper,
        }
    }

    /// A second descriptor of the same file. Whoever has it closes it, so the file has to be one whose close waits for
    /// nobody.
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }
}

impl AsFd for ForeignFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor
            .as_ref()
            .expect("it is held until this is dropped")
            .as_fd()
    }
}

impl Drop for ForeignFd {
    fn drop(&mut self) {
        self.reaper.leave(self.descriptor.take());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// Waits for its owner to let it go on, and is used by somebody else for the first `used` looks.
    struct Slow {
        go: Receiver<()>,
        used: usize,
    }

    impl Leftover for Slow {
        fn let_go(&mut self) -> bool {
            if self.used > 0 {
                self.used -= 1;
                return false;
            }
            let _ = self.go.recv();
            true
        }
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(10), "still not");
            std::thread::yield_now();
        }
    }

    #[test]
    fn close_that_hangs_holds_up_nobody_and_takes_the_room() {
        let reaper = Reaper::start().unwrap();
        let (go, gone) = channel();
        reaper.leave(Slow { go: gone, used: 0 });
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        for _ in 1..CLOSING_MAX {
            assert!(reaper.has_room());
            drop(ForeignFd::new(writer.try_clone().unwrap(), reaper.clone()));
        }
        assert!(!reaper.has_room() && reaper.busy_for().is_some());
        let (told, tells) = channel();
        reaper.call_on_room(move || {
            let _ = told.send(());
        });
        go.send(()).unwrap();
        tells.recv().unwrap();
        wait_until(|| reaper.is_idle());
        drop(writer);
        // All writing ends are closed.
        assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap(), 0);
        assert_eq!(reaper.busy_for(), None);
    }

    #[test]
    fn what_somebody_uses_is_asked_again_and_holds_up_nothing_behind_it() {
        let reaper = Reaper::start().unwrap();
        let (go, gone) = channel();
        reaper.leave(Slow { go: gone, used: 3 });
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        reaper.leave(Some(writer));
        assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap(), 0);
        go.send(()).unwrap();
        wait_until(|| reaper.is_idle());
    }

    #[test]
    fn everything_is_let_go_after_the_last_handle() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(ForeignFd::new(writer, Reaper::start().unwrap()));
        assert_eq!(rustix::io::read(&reader, &mut [0]).unwrap(), 0);
    }
}
