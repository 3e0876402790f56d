//! A software card that runs: a [`FermiModel`] behind a lock, with a thread that runs its engines.
//!
//! ```text
//! edge ──BAR access──► lock ──► FermiModel ◄── lock ── stepping thread: Busy ► steps on
//!      ◄── Follower, under the lock                              Waiting ► looks again after 1 ms
//!                                                                     Idle    ► sleeps until an access wakes it
//! ```
//!
//! Rules of the lock:
//! 1. A thread that wants the card adds itself to `waiting` before it locks and takes itself off when
//!    it has the lock.
//! 2. The stepping thread looks at `waiting` after each `SLICE` of work and, if a thread waits, unlocks and
//!    does not lock again before `waiting` is zero or `GIVE_WAY_MAX` is over: a mutex of the standard
//!    library is not fair. A thread with several accesses to make stays in `waiting` between them ([`Hold`]):
//!    otherwise each would wait for a slice, which beside a grid is up to 100 µs.
//! 3. A thread that wants the card does not spin on the processor that the stepping thread was on last: while it spins, that
//!    one does not run, and does not unlock.
//! 4. `sleep` says how the stepping thread sleeps; it changes under the lock only. An access that leaves the card with
//!    more to do than the sleeper expects wakes it before it unlocks.
//! 5. A frame changes its owner, and a DMA map goes, under the lock: no engine is half way through a copy then.
//!
//! The card's time while it rests is the host's: an access first tells the card what time it is. While it works it is what the timing of its
//! work says, which may be ahead of the host's or behind; one that is *paced* waits until it is not ahead.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fermi_model::{Counters, FermiModel, Stepped};
use nix::sched::sched_getcpu;
use rustix::thread::sched_getaffinity;
use vfio_user_server::threads::{self, ThreadKind};

use crate::model_gpu::CardConfig;

/// Work between two looks at `waiting`: about one piece of a copy, some 20 µs.
const SLICE: u32 = 16;
/// Longest time for which the stepping thread stands aside at once.
const GIVE_WAY_MAX: Duration = Duration::from_micros(200);
/// Turns of trying before an access sleeps on the lock: waking up costs more than most slices last.
const LOCK_TRIES: u32 = 2000;
/// Turns between two looks at where the stepping thread was: either thread may be moved.
const PLACE_TURNS: u32 = 32;
/// A paced card that is further ahead of the host's clock than so sleeps, for what is beyond it: a sleep ends late by about as much.
const PACE_SLEEP: Duration = Duration::from_micros(150);
/// Time between two looks at semaphores that the card waits for.
const WAITING_PERIOD: Duration = Duration::from_millis(1);

/// A panic of the model: its state may then be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the software card panicked")]
pub struct CardLost;

/// Follows the card's activity.
pub(crate) trait Follower: Send + 'static {
    /// Something happened that may have sent a message, changed the level of the card's interrupt pin or what its
    /// windows show. Called under the card's lock after every access, before it is answered, and after every step: it
    /// must be short and must not wait.
    fn update(&mut self, model: &mut FermiModel);
}

/// How the stepping thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sleep {
    /// It is awake.
    Awake,
    /// It sleeps for [`WAITING_PERIOD`].
    Shortly,
    /// It sleeps until an access wakes it.
    Deeply,
}

/// What the lock protects.
struct Locked<F> {
    model: FermiModel,
    follower: F,
    sleep: Sleep,
    is_stopping: bool,
    said: Said,
    /// The card's clock less the host's when it rested last. A card that was slower than its timing says does not catch up.
    rested_ns: i64,
}

impl<F: Follower> Locked<F> {
    fn step(&mut self, now_ns: u64, work: u32) -> Stepped {
        let stepped = self.model.step(now_ns, work);
        if stepped != Stepped::Busy {
            self.rested_ns = self.model.gpu_time().wrapping_sub(now_ns).cast_signed();
        }
        stepped
    }

    /// After each access and each slice of work.
    fn follow(&mut self) {
        self.follower.update(&mut self.model);
        self.said.tell(self.model.counters());
    }
}

/// What the log has been told of the card. A guest may do as much of it as it likes, so each is told once.
#[derive(Default)]
struct Said {
    undrawn: bool,
    nowhere: bool,
}

impl Said {
    fn tell(&mut self, counters: &Counters) {
        if !self.undrawn && counters.unmodelled_draws > 0 {
            self.undrawn = true;
            log::warn!(
                "a draw, or a copy or clear of a kind that the software card does not perform, has no effect"
            );
        }
        let Counters {
            dma_unmapped_reads,
            dma_unmapped_writes,
            vram_missing_reads,
            vram_missing_writes,
            ..
        } = counters;
        let accesses = [
            dma_unmapped_reads,
            dma_unmapped_writes,
            vram_missing_reads,
            vram_missing_writes,
        ];
        if !self.nowhere && accesses.into_iter().any(|count| *count > 0) {
            self.nowhere = true;
            log::warn!(
                "the card reaches where no memory is: {dma_unmapped_reads} loads and {dma_unmapped_writes} stores at bus addresses \
                 that nothing is mapped at, {vram_missing_reads} and {vram_missing_writes} of VRAM that it does not have"
            );
        }
    }
}

/// State that the stepping thread and the accesses share.
struct Shared<F> {
    state: Mutex<Locked<F>>,
    woken: Condvar,
    waiting: AtomicU32,
    /// Processor that the stepping thread was on when it looked last.
    stepping_on: AtomicUsize,
    start: Instant,
    is_paced: bool,
}

impl<F: Follower> Shared<F> {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// How long the card is to wait for the host's clock before it does what is next.
    fn ahead(&self, state: &Locked<F>) -> Duration {
        let next = state.model.next_at().filter(|_| self.is_paced);
        let waits = next.map_or(0, |at| {
            at.saturating_sub(self.now_ns().saturating_add_signed(state.rested_ns))
        });
        Duration::from_nanos(waits)
    }

    /// Takes the lock, counted as rule 1 demands.
    fn lock(&self) -> Result<MutexGuard<'_, Locked<F>>, CardLost> {
        // Both operations are ordered by the mutex itself as far as the card's state is concerned.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let state = self.lock_spinning();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        state
    }

    fn lock_spinning(&self) -> Result<MutexGuard<'_, Locked<F>>, CardLost> {
        for turn in 0..LOCK_TRIES {
            match self.state.try_lock() {
                Ok(state) => return Ok(state),
                Err(TryLockError::Poisoned(_)) => return Err(CardLost),
                Err(TryLockError::WouldBlock) if turn % PLACE_TURNS == 0 && self.is_stepping_here() => break,
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.state.lock().map_err(|_| CardLost)
    }

    /// Whether the stepping thread was on this thread's processor when it looked last.
    fn is_stepping_here(&self) -> bool {
        let there = self.stepping_on.load(Ordering::Relaxed);
        sched_getcpu().is_ok_and(|here| here == there)
    }

    /// Performs one access, and its immediate consequences.
    fn access<T>(&self, work: impl FnOnce(&mut FermiModel, &mut F) -> T) -> Result<T, CardLost> {
        let mut guard = self.lock()?;
        let state = &mut *guard;
        let is_asleep = state.sleep != Sleep::Awake;
        if is_asleep {
            state.model.step(self.now_ns(), 0);
        }
        let result = work(&mut state.model, &mut state.follower);
        if is_asleep {
            let stepped = state.model.step(self.now_ns(), 0);
            let is_to_wake = match state.sleep {
                Sleep::Awake => false,
                Sleep::Shortly => stepped == Stepped::Busy,
                Sleep::Deeply => stepped != Stepped::Idle,
            };
            if is_to_wake {
                state.sleep = Sleep::Awake;
                self.woken.notify_one();
            }
        }
        state.follow();
        Ok(result)
    }

    /// Body of the stepping thread. Ends when it is asked to, or after a panic elsewhere.
    fn run(&self) {
        let Ok(mut guard) = self.state.lock() else { return };
        // A paced card waits between any two events.
        let work = if self.is_paced { 1 } else { SLICE };
        while !guard.is_stopping {
            self.stepping_on
                .store(sched_getcpu().unwrap_or(usize::MAX), Ordering::Relaxed);
            let state = &mut *guard;
            let ahead = self.ahead(state);
            let stepped = match ahead.is_zero() {
                true => state.step(self.now_ns(), work),
                false => Stepped::Busy,
            };
            state.follow();
            let next = match stepped {
                Stepped::Busy if ahead > PACE_SLEEP => {
                    state.sleep = Sleep::Shortly;
                    self.wait_for(guard, ahead - PACE_SLEEP)
                }
                Stepped::Busy if !ahead.is_zero() => {
                    drop(guard);
                    std::thread::yield_now();
                    self.state.lock()
                }
                Stepped::Busy if self.waiting.load(Ordering::SeqCst) == 0 => Ok(guard),
                Stepped::Busy => {
                    drop(guard);
                    self.give_way();
                    self.state.lock()
                }
                Stepped::Waiting => {
                    state.sleep = Sleep::Shortly;
                    self.wait_for(guard, WAITING_PERIOD)
                }
                Stepped::Idle => {
                    state.sleep = Sleep::Deeply;
                    self.woken.wait(guard)
                }
            };
            match next {
                Ok(locked) => guard = locked,
                Err(_) => return,
            }
            guard.sleep = Sleep::Awake;
        }
    }

    fn wait_for<'a>(
        &self,
        guard: MutexGuard<'a, Locked<F>>,
        time: Duration,
    ) -> LockResult<MutexGuard<'a, Locked<F>>> {
        self.woken
            .wait_timeout(guard, time)
            .map(|(guard, _)| guard)
            .map_err(|error| PoisonError::new(error.into_inner().0))
    }

    fn give_way(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::SeqCst) != 0 && start.elapsed() < GIVE_WAY_MAX {
            std::thread::yield_now();
        }
    }
}

/// A look at a card from outside, which outlives its owner.
pub(crate) struct Watcher<F: Follower>(Arc<Shared<F>>);

impl<F: Follower> Watcher<F> {
    /// The card's counters so far.
    pub(crate) fn counters(&self) -> Result<Counters, CardLost> {
        self.0.access(|model, _| *model.counters())
    }
}

/// Keeps the stepping thread aside between two accesses, as far as it gives way.
pub(crate) struct Hold<F: Follower>(Arc<Shared<F>>);

impl<F: Follower> Drop for Hold<F> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How many of the wanted workers have a processor of their own beside the card's thread. One that has none makes the card slower: it is waited for.
fn workers_that_fit(wanted: u32) -> usize {
    let processors = sched_getaffinity(None).map_or(1, |set| set.count());
    let fit = processors.saturating_sub(1).min(wanted);
    if fit < wanted {
        log::warn!(
            "{wanted} workers and the card's own thread want {} processors, and there are {processors}: {fit} run",
            wanted.saturating_add(1)
        );
    }
    fit as usize
}

/// A running card. Dropping it stops the thread and drops card and follower.
pub(crate) struct RunningCard<F: Follower> {
    shared: Arc<Shared<F>>,
    thread: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
}

impl<F: Follower> RunningCard<F> {
    /// Starts the threads that run `model`, paced and with workers as `config` has it.
    pub(crate) fn start(mut model: FermiModel, follower: F, config: CardConfig) -> Result<Self, io::Error> {
        let workers = model.set_workers(workers_that_fit(config.workers));
        let state = Locked {
            model,
            follower,
            sleep: Sleep::Awake,
            is_stopping: false,
            said: Said::default(),
            rested_ns: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            woken: Condvar::new(),
            waiting: AtomicU32::new(0),
            stepping_on: AtomicUsize::new(usize::MAX),
            start: Instant::now(),
            is_paced: config.paced,
        });
        let stepped = shared.clone();
        let thread = threads::spawn(ThreadKind::Card, "card".to_owned(), move || stepped.run())?;
        let mut this = Self {
            shared,
            thread: Some(thread),
            workers: Vec::new(),
        };
        for worker in workers {
            let thread = threads::spawn(ThreadKind::CardWorker, "card-worker".to_owned(), || worker.run())?;
            this.workers.push(thread);
        }
        Ok(this)
    }

    /// A view of it that outlives it.
    pub(crate) fn watcher(&self) -> Watcher<F> {
        Watcher(self.shared.clone())
    }

    /// More accesses follow, until this is dropped.
    pub(crate) fn hold(&self) -> Hold<F> {
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        Hold(self.shared.clone())
    }

    /// Does something with the card at the present time, and what follows from it at once. Several accesses in one
    /// call cost one lock, one look at the clock and one look at the interrupt.
    pub(crate) fn access<T>(&self, work: impl FnOnce(&mut FermiModel, &mut F) -> T) -> Result<T, CardLost> {
        self.shared.access(work)
    }
}

impl<F: Follower> Drop for RunningCard<F> {
    fn drop(&mut self) {
        // After a panic of the model the thread is gone already.
        if let Ok(mut state) = self.shared.lock() {
            state.is_stopping = true;
            // Whoever still looks at the card keeps it, but not these threads.
            state.model.set_workers(0);
            self.shared.woken.notify_one();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the software card's thread panicked");
        }
        for worker in self.workers.drain(..) {
            if worker.join().is_err() {
                log::error!("a worker of the software card panicked");
            }
        }
    }
}
