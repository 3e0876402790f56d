//! The software card in this process: [`vgpu::HostGpu`] over [`fermi_model::FermiModel`], with a thread that runs its
//! engines.
//!
//! ```text
//! broker ──BAR access──► lock ──► FermiModel ◄── lock ── stepping thread: Busy ► steps on
//!        ◄── eventfd ── interrupt                                  Waiting ► looks again after 1 ms
//!                                                                  Idle    ► sleeps until an access wakes it
//! ```
//!
//! Rules of the lock:
//! 1. Whoever wants the card adds itself to `waiting` before it locks and takes itself off when it has the lock.
//! 2. The stepping thread looks at `waiting` after each `SLICE` of work and, if somebody waits, unlocks and does not
//!    lock again before `waiting` is zero or `GIVE_WAY_MAX` is over: a mutex of the standard library is not fair.
//! 3. `sleep` says how the stepping thread sleeps; it changes under the lock only. An access that leaves the card with
//!    more to do than the sleeper expects wakes it before it unlocks.
//! 4. A frame changes its owner, and a DMA map goes, under the lock: no engine is half way through a copy then.
//!
//! The card's time while it rests is the host's: an access first tells the card what time it is.

mod frames;
mod maps;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fermi_model::{FermiModel, ModelConfig, ModelError, Stepped, Timing};
use fermi_spec::addr::{FrameNo, Iova};
use fermi_spec::board::{BAR1_BYTES, BAR3_BYTES, Board};
use vgpu::{Bar, Capabilities, DmaMemory, FrameOwner, HostGpu, HostGpuError};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use frames::Frames;
use maps::DmaMaps;

/// Work between two looks at who waits: about one piece of a copy, some 20 µs.
const SLICE: u32 = 16;
/// Longest time for which the stepping thread stands aside for one access.
const GIVE_WAY_MAX: Duration = Duration::from_micros(200);
/// Turns of trying before an access sleeps on the lock: waking up costs more than most slices last.
const LOCK_TRIES: u32 = 2000;
/// Time between two looks at semaphores that the card waits for.
const WAITING_PERIOD: Duration = Duration::from_millis(1);

/// What card to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CardConfig {
    /// Identity and speeds.
    pub board: Board,
    /// VRAM, a multiple of 1 MiB; need not be the board's own.
    pub vram_bytes: u64,
}

/// Why there is no card.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// Its settings.
    #[error("cannot make the software card")]
    Model(#[from] ModelError),
    /// No descriptor or thread.
    #[error("cannot create {what} of the software card")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the host said.
        #[source]
        source: io::Error,
    },
}

/// How the stepping thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sleep {
    /// It does not.
    Awake,
    /// For [`WAITING_PERIOD`].
    Shortly,
    /// Until woken.
    Deeply,
}

/// Under the lock.
struct State {
    model: FermiModel,
    sleep: Sleep,
    is_stopping: bool,
}

/// What the stepping thread and the accesses share.
struct Shared {
    state: Mutex<State>,
    woken: Condvar,
    waiting: AtomicU32,
    is_interrupted: AtomicBool,
    interrupt: EventFd,
    start: Instant,
}

impl Shared {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Rule 1. `Err` after a panic of the model: what it holds may then be wrong.
    fn lock(&self) -> Result<MutexGuard<'_, State>, HostGpuError> {
        // Both operations are ordered by the mutex itself as far as the card's state is concerned.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let state = self.lock_spinning();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        state
    }

    fn lock_spinning(&self) -> Result<MutexGuard<'_, State>, HostGpuError> {
        let lost = || HostGpuError::Lost {
            reason: "the software card panicked".to_owned(),
        };
        for _ in 0..LOCK_TRIES {
            match self.state.try_lock() {
                Ok(state) => return Ok(state),
                Err(TryLockError::Poisoned(_)) => return Err(lost()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.state.lock().map_err(|_| lost())
    }

    /// One access, and what follows from it at once.
    fn access<T>(&self, work: impl FnOnce(&mut FermiModel) -> T) -> Result<T, HostGpuError> {
        let mut state = self.lock()?;
        let is_asleep = state.sleep != Sleep::Awake;
        if is_asleep {
            state.model.step(self.now_ns(), 0);
        }
        let result = work(&mut state.model);
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
        self.pass_interrupt(&mut state);
        Ok(result)
    }

    fn pass_interrupt(&self, state: &mut State) {
        if state.model.take_interrupt() {
            self.is_interrupted.store(true, Ordering::SeqCst);
            // A full counter means that interrupts wait to be fetched already.
            let _ = self.interrupt.write(1);
        }
    }

    /// The stepping thread. Ends when it is told to, or after a panic elsewhere.
    fn run(&self) {
        let Ok(mut state) = self.state.lock() else { return };
        while !state.is_stopping {
            let stepped = state.model.step(self.now_ns(), SLICE);
            self.pass_interrupt(&mut state);
            let next = match stepped {
                Stepped::Busy if self.waiting.load(Ordering::SeqCst) == 0 => Ok(state),
                Stepped::Busy => {
                    drop(state);
                    self.give_way();
                    self.state.lock()
                }
                Stepped::Waiting => {
                    state.sleep = Sleep::Shortly;
                    self.woken
                        .wait_timeout(state, WAITING_PERIOD)
                        .map(|(state, _)| state)
                        .map_err(|error| PoisonError::new(error.into_inner().0))
                }
                Stepped::Idle => {
                    state.sleep = Sleep::Deeply;
                    self.woken.wait(state)
                }
            };
            match next {
                Ok(locked) => state = locked,
                Err(_) => return,
            }
            state.sleep = Sleep::Awake;
        }
    }

    fn give_way(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::SeqCst) != 0 && start.elapsed() < GIVE_WAY_MAX {
            thread::yield_now();
        }
    }
}

/// A software card that runs. Dropping it stops its thread and gives all memory back.
pub struct ModelGpu {
    shared: Arc<Shared>,
    maps: Arc<DmaMaps>,
    frames: Frames,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for ModelGpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelGpu")
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

impl ModelGpu {
    /// Powers a card on. None of its frames is anywhere yet.
    pub fn new(config: CardConfig) -> Result<Self, CardError> {
        let maps = Arc::new(DmaMaps::default());
        let model = FermiModel::new(
            ModelConfig {
                board: config.board,
                vram_bytes: config.vram_bytes,
                timing: Timing::of(config.board),
            },
            maps.clone(),
        )?;
        let frames = Frames::new(model.frames());
        let failed = |what| move |source| CardError::System { what, source };
        let state = State {
            model,
            sleep: Sleep::Awake,
            is_stopping: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            woken: Condvar::new(),
            waiting: AtomicU32::new(0),
            is_interrupted: AtomicBool::new(false),
            interrupt: EventFd::new(EFD_NONBLOCK).map_err(failed("the interrupt"))?,
            start: Instant::now(),
        });
        let stepped = shared.clone();
        let thread = thread::Builder::new()
            .name("card".to_owned())
            .spawn(move || stepped.run())
            .map_err(failed("the thread"))?;
        Ok(Self {
            shared,
            maps,
            frames,
            thread: Some(thread),
        })
    }

    /// Signalled whenever the card raises its interrupt.
    pub fn interrupt(&self) -> Result<EventFd, CardError> {
        self.shared
            .interrupt
            .try_clone()
            .map_err(|source| CardError::System {
                what: "a descriptor for the interrupt",
                source,
            })
    }
}

fn model_bar(bar: Bar) -> fermi_model::Bar {
    match bar {
        Bar::Bar0 => fermi_model::Bar::Bar0,
        Bar::Bar1 => fermi_model::Bar::Bar1,
        Bar::Bar3 => fermi_model::Bar::Bar3,
    }
}

/// Bytes of the first naturally aligned piece of an access of `left` bytes at `offset`, at most 4.
fn piece_bytes(offset: u64, left: usize) -> usize {
    [4, 2]
        .into_iter()
        .find(|bytes| offset.is_multiple_of(*bytes as u64) && left >= *bytes)
        .unwrap_or(1)
}

impl HostGpu for ModelGpu {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            bar1_bytes: BAR1_BYTES,
            bar3_bytes: BAR3_BYTES,
            frames_arrive_zeroed: true,
        }
    }

    fn read(&mut self, bar: Bar, offset: u64, data: &mut [u8]) -> Result<(), HostGpuError> {
        self.shared.access(|model| {
            if bar != Bar::Bar0 {
                return model.bar_read(model_bar(bar), offset, data);
            }
            let (mut rest, mut offset) = (data, offset);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at_mut(piece_bytes(offset, rest.len()));
                model.bar_read(fermi_model::Bar::Bar0, offset, piece);
                offset = offset.wrapping_add(piece.len() as u64);
                rest = after;
            }
        })
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) -> Result<(), HostGpuError> {
        self.shared.access(|model| {
            if bar != Bar::Bar0 {
                return model.bar_write(model_bar(bar), offset, data);
            }
            let (mut rest, mut offset) = (data, offset);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(piece_bytes(offset, rest.len()));
                model.bar_write(fermi_model::Bar::Bar0, offset, piece);
                offset = offset.wrapping_add(piece.len() as u64);
                rest = after;
            }
        })
    }

    fn map_dma(&mut self, iova: Iova, memory: DmaMemory, writable: bool) -> Result<(), HostGpuError> {
        self.maps.insert(iova, memory, writable)
    }

    fn unmap_dma(&mut self, iova: Iova, bytes: u64) -> Result<(), HostGpuError> {
        // Rule 4.
        let maps = self.maps.clone();
        self.shared.access(|_| maps.remove(iova, bytes))?
    }

    fn place_frame(&mut self, frame: FrameNo, owner: FrameOwner) -> Result<(), HostGpuError> {
        let failed = |reason: String| HostGpuError::Place { frame, reason };
        let place = |backing| {
            self.shared
                .access(|model| model.place_frame(frame, backing))?
                .map_err(|error| failed(error.to_string()))
        };
        // No engine reaches the old owner's memory any more when it is given back.
        place(None)?;
        self.frames
            .release(frame)
            .map_err(|error| failed(error.to_string()))?;
        match self.frames.claim(frame, owner) {
            Ok(None) => Ok(()),
            Ok(backing) => place(backing),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    fn take_interrupt(&mut self) -> bool {
        self.shared.is_interrupted.swap(false, Ordering::SeqCst)
    }
}

impl Drop for ModelGpu {
    fn drop(&mut self) {
        // After a panic of the model the thread is gone already.
        if let Ok(mut state) = self.shared.lock() {
            state.is_stopping = true;
            self.shared.woken.notify_one();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the software card's thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;
