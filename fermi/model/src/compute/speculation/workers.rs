//! Threads that run blocks ahead of their turn, and what they are given.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    super::{
        block::{Block, Slot},
        code::Code,
        launch::Launch,
    },
    TRACK_STEPS,
    record::{Ground, Scratch, View, record},
    track::{End, Track},
};

/// Time for which a worker without a job looks for one before it sleeps: to wake it takes the card's thread tens of microseconds, so it does not sleep
/// between the grids of a guest that launches one behind the other.
const AWAKE: Duration = Duration::from_micros(500);
/// Bytes of a job's tracks and blocks at which it ends: a guest decides what its blocks do.
const JOB_BYTES_MAX: usize = 4 << 20;
/// About what the state of a warp takes: its registers.
const WARP_BYTES: usize = 8 << 10;
/// Jobs that wait for each worker at most. Where no worker comes to them they are dropped.
const WAITING_MAX: usize = 8;
/// Tracks and blocks whose memory is kept for the next ones: to get it from the host each time takes longer than a small block.
const SPARE_MAX: usize = 64;
/// Bytes of the tracks that are kept, at most: what guests' blocks did decides how much one has.
const SPARE_BYTES_MAX: usize = 32 << 20;

/// Blocks of a grid for a worker.
pub(super) struct Job {
    pub(super) launch: Arc<Launch>,
    pub(super) code: Arc<Code>,
    pub(super) slot: Slot,
    pub(super) view: View,
    pub(super) blocks: Range<u64>,
    /// Blocks of the launch that have ended, to become these.
    pub(super) spare: Vec<Block>,
}

/// How far a job is.
#[derive(Default)]
struct State {
    /// Until a worker takes it.
    job: Option<Box<Job>>,
    /// Of blocks that are through, in their order.
    tracks: VecDeque<Track>,
    /// No worker is at it any more, or ever will be.
    has_ended: bool,
}

/// A job, and what comes of it.
pub(super) struct Task {
    pool: Arc<Pool>,
    state: Mutex<State>,
    /// The block that a worker is at, or the first one.
    at: AtomicU64,
    is_dropped: AtomicBool,
}

/// Whether there is a track.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Found {
    Track(Track),
    /// A worker is not through with the block.
    Late,
    /// There will never be one.
    None,
}

/// Whether something comes to be while a thread stays awake for it, for so long.
fn look_for(time: Duration, is_so: impl Fn() -> bool) -> bool {
    const LOOKS: u32 = 64;
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if is_so() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() > time {
            return false;
        }
    }
}

/// Nothing is half done where one of these threads panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Task {
    fn new(job: Job, pool: Arc<Pool>) -> Self {
        Self {
            pool,
            at: AtomicU64::new(job.blocks.start),
            state: Mutex::new(State {
                job: Some(Box::new(job)),
                ..State::default()
            }),
            is_dropped: AtomicBool::new(false),
        }
    }

    /// The track of block `index`, waited for so long if a worker is at that block. A job that nobody has begun never will be.
    pub(super) fn take(&self, index: u64, patience: Duration) -> Found {
        let mut state = lock(&self.state);
        if state.job.take().is_some() {
            state.has_ended = true;
        }
        if !state.has_ended && self.at.load(Ordering::Acquire) == index {
            drop(state);
            look_for(patience, || self.at.load(Ordering::Acquire) != index);
            state = lock(&self.state);
        }
        while let Some(track) = state.tracks.pop_front() {
            if track.index == index {
                return Found::Track(track);
            }
            // Its block was executed, as it came too late.
            self.pool.keep(track);
        }
        if state.has_ended { Found::None } else { Found::Late }
    }

    /// Says that nobody wants the tracks.
    pub(super) fn give_up(&self) {
        self.is_dropped.store(true, Ordering::Relaxed);
        let mut state = lock(&self.state);
        state.job = None;
        let tracks = std::mem::take(&mut state.tracks);
        drop(state);
        tracks.into_iter().for_each(|track| self.pool.keep(track));
    }

    /// Does the job, if nobody has begun.
    fn perform(&self, scratch: &mut Scratch) {
        // Whoever waits is told also where this panics.
        let _told = Told(self);
        let Some(job) = lock(&self.state).job.take() else {
            return;
        };
        let Job {
            launch,
            code,
            slot,
            mut view,
            blocks,
            mut spare,
        } = *job;
        // A copy that nothing is added to: a block that wants other code ends its track.
        let mut own_code = Code::clone(&code);
        let mut bytes = 0;
        for index in blocks {
            if self.is_dropped.load(Ordering::Relaxed) {
                break;
            }
            let mut track = self.pool.spare_track();
            track.block = spare.pop().or_else(|| self.pool.spare_block(&launch));
            let ground = Ground {
                launch: &launch,
                code: &mut own_code,
                slot,
                view: &mut view,
                scratch,
            };
            let mut track = record(ground, index, TRACK_STEPS, track);
            track.code = Some(Arc::clone(&code));
            bytes += track.bytes() + launch.warps() as usize * WARP_BYTES;
            // Nobody knows what comes behind one that stops.
            let is_last = track.end == End::Unsure || bytes > JOB_BYTES_MAX;
            let mut state = lock(&self.state);
            state.tracks.push_back(track);
            state.has_ended = is_last;
            self.at.store(index + 1, Ordering::Release);
            if is_last {
                break;
            }
        }
    }
}

struct Told<'a>(&'a Task);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).has_ended = true;
        self.0.at.store(u64::MAX, Ordering::Release);
        // Nobody may come for them any more.
        if self.0.is_dropped.load(Ordering::Relaxed) {
            self.0.give_up();
        }
    }
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<Task>>,
    /// Workers that sleep.
    asleep: usize,
    is_closed: bool,
}

/// What the card's thread and the workers share.
pub(super) struct Pool {
    queue: Mutex<Queue>,
    woken: Condvar,
    /// Jobs so far, for workers that are awake.
    sent: AtomicUsize,
    spare: Mutex<Vec<Track>>,
    blocks: Mutex<Vec<Block>>,
}

impl Pool {
    fn spare_track(&self) -> Track {
        lock(&self.spare).pop().unwrap_or_default()
    }

    /// A block that can be one of this launch.
    fn spare_block(&self, launch: &Launch) -> Option<Block> {
        let mut blocks = lock(&self.blocks);
        while let Some(block) = blocks.pop() {
            if block.fits(launch) {
                return Some(block);
            }
        }
        None
    }

    /// Keeps blocks that have ended.
    pub(super) fn keep_blocks(&self, ended: impl IntoIterator<Item = Block>) {
        let mut blocks = lock(&self.blocks);
        for block in ended {
            if blocks.len() < SPARE_MAX {
                blocks.push(block);
            }
        }
    }

    /// Keeps the memory of a track.
    pub(super) fn keep(&self, mut track: Track) {
        self.keep_blocks(track.block.take());
        track.clear();
        let mut spare = lock(&self.spare);
        let bytes: usize = spare.iter().map(Track::capacity).sum();
        if spare.len() < SPARE_MAX && bytes + track.capacity() <= SPARE_BYTES_MAX {
            spare.push(track);
        }
    }
}

/// A card's threads for blocks ahead of their turn. When this is closed or dropped they end.
pub(crate) struct Workers {
    pool: Arc<Pool>,
    count: usize,
    /// Jobs are done when they are sent.
    #[cfg(test)]
    is_at_once: bool,
}

impl Workers {
    /// For so many workers; the embedder gives each of them a thread.
    pub(crate) fn new(count: usize) -> (Self, Vec<Worker>) {
        let pool = Arc::new(Pool {
            queue: Mutex::default(),
            woken: Condvar::new(),
            sent: AtomicUsize::new(0),
            spare: Mutex::default(),
            blocks: Mutex::default(),
        });
        let workers = (0..count).map(|_| Worker {
            pool: Arc::clone(&pool),
        });
        let workers = workers.collect();
        let this = Self {
            pool,
            count,
            #[cfg(test)]
            is_at_once: false,
        };
        (this, workers)
    }

    /// One worker, which does each job at once, in the thread that sends it.
    #[cfg(test)]
    pub(crate) fn at_once() -> Self {
        let (mut this, _) = Self::new(1);
        this.is_at_once = true;
        this
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool)
    }

    pub(super) fn send(&self, job: Job) -> Arc<Task> {
        let task = Arc::new(Task::new(job, Arc::clone(&self.pool)));
        #[cfg(test)]
        if self.is_at_once {
            task.perform(&mut Scratch::default());
            return task;
        }
        let mut queue = lock(&self.pool.queue);
        if queue.is_closed || queue.tasks.len() >= self.count * WAITING_MAX {
            return task;
        }
        queue.tasks.push_back(Arc::clone(&task));
        let sleeps = queue.asleep > 0;
        drop(queue);
        self.pool.sent.fetch_add(1, Ordering::Release);
        if sleeps {
            self.pool.woken.notify_one();
        }
        task
    }

    /// Has the threads end, each behind the job that it is at.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.pool.queue);
        queue.is_closed = true;
        // They have the pool, which would have them.
        let tasks = std::mem::take(&mut queue.tasks);
        drop(queue);
        drop(tasks);
        self.pool.woken.notify_all();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.close();
    }
}

/// One of a card's workers.
pub struct Worker {
    pool: Arc<Pool>,
}

impl Worker {
    /// Works until the card is gone. Reads memory that the card reaches, and writes none.
    pub fn run(self) {
        let mut scratch = Scratch::default();
        while let Some(task) = self.next() {
            task.perform(&mut scratch);
        }
    }

    fn next(&self) -> Option<Arc<Task>> {
        let mut sent = self.pool.sent.load(Ordering::Acquire);
        let mut queue = lock(&self.pool.queue);
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(task) = queue.tasks.pop_front() {
                return Some(task);
            }
            drop(queue);
            let is_there = look_for(AWAKE, || self.pool.sent.load(Ordering::Acquire) != sent);
            queue = lock(&self.pool.queue);
            if !is_there && queue.tasks.is_empty() && !queue.is_closed {
                queue.asleep += 1;
                queue = self
                    .pool
                    .woken
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
                queue.asleep -= 1;
            }
            sent = self.pool.sent.load(Ordering::Acquire);
        }
    }
}
