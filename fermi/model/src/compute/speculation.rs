//! Blocks that other threads run ahead of their turn (speculative execution), with the results and the GPU time that they have without.
//!
//! ```text
//! card's thread  ── block n ───────────────────────────► plays n+1 ► block n+2 …
//!                    └► job: n+1                          ▲  loads compared, stores made, costs charged, instruction by instruction
//! worker                └► executes it, notes what it does┘
//! ```
//!
//! 1. A worker reads memory as it finds it and keeps stores to itself. Of a block it writes a *track*: which instructions, what they
//!    loaded, stored and reached.
//! 2. When the block's turn comes the card's thread *plays* the track: for each instruction it compares what was loaded with what memory has at
//!    that moment, translates and charges each access, and stores. So everything happens at the same time and in the same order as if it
//!    executed them, pieces and preempts included, and it takes a part of the time.
//! 3. Where something differs (an earlier block stored there, the host did, a page went) the block is executed again up to that instruction
//!    with what the track loaded, stores nothing until there, and goes on by itself.
//! 4. An instruction that depends on the moment (an atomic operation, CLOCK) ends a track before it. So does code that no block of
//!    the grid has executed before: all blocks execute the same.
//! 5. A block whose track is not there is executed. Only where a worker is at it is it waited for, for half the time that the card's thread would
//!    take, and no longer than a piece of a grid takes.
//!
//! Every so many blocks are the card's own, so that workers have time for those behind them.

mod feed;
mod record;
mod rows;
mod track;
mod workers;

use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    block::{Block, Slot},
    code::Code,
    launch::Launch,
    outside::Outside,
    tally::Tally,
};
use feed::block_at;
pub(crate) use record::{View, page_parts};
use track::Player;
pub(crate) use track::{Access, End, Kind, Played};
pub use workers::Worker;
pub(crate) use workers::Workers;
use workers::{Found, Job, Pool, Task};

/// Instructions that are worth a job: to hand one over takes as long as some hundreds.
const JOB_STEPS: u64 = 1 << 10;
/// Instructions of a track at most: one that differs is executed again from its beginning, while nobody else reaches the card.
const TRACK_STEPS: u64 = 1 << 13;
/// Blocks of a job at most.
const JOB_BLOCKS: u64 = 64;
/// Tracks of a grid that differ before no more are made: its blocks work on one another's results.
const DIFFERING_MAX: u32 = 2;
/// Longest time for which the card's thread waits for a block that a worker is at: about a piece of a grid.
const PATIENCE_MAX: Duration = Duration::from_micros(100);
/// Blocks that came too late, above those that did not, before no more are asked for: the worker has no processor.
const LATE_MAX: u64 = 16;
/// A block that comes to an instruction for its turn after fewer is not worth it.
const SHORT_TRACK: usize = 256;

/// Blocks that a worker has.
struct Ticket {
    blocks: Range<u64>,
    slot: Slot,
    task: Arc<Task>,
}

/// What workers do for a grid.
#[derive(Default)]
pub(super) struct Speculation {
    /// None for a grid that has nothing done any more.
    workers: Option<Arc<Workers>>,
    pool: Option<Arc<Pool>>,
    tickets: VecDeque<Ticket>,
    /// The first block that has not been thought of.
    next: u64,
    /// Jobs so far.
    sent: usize,
    /// Instructions of a block, by the last that ended. 0: none has.
    steps: u64,
    /// Instructions of the grid when the block in front began, and when that was if it is executed.
    began: u64,
    began_at: Option<Instant>,
    /// What such a block takes this host.
    time: Duration,
    /// Blocks that were executed while a worker was at them.
    late: u64,
    differing: u32,
    /// Blocks that were played, at least in part.
    pub(super) played: u64,
}

impl Speculation {
    pub(super) fn new(workers: Option<Arc<Workers>>) -> Self {
        let mut this = Self::default();
        this.pool = workers.as_ref().map(|workers| workers.pool());
        this.workers = workers;
        this
    }

    /// A block begins, alone, when the grid has come to `instructions`, to be executed or played.
    pub(super) fn begins(&mut self, instructions: u64, is_live: bool) {
        self.began = instructions;
        self.began_at = (is_live && self.workers.is_some()).then(Instant::now);
    }

    /// The block that began last has ended.
    pub(super) fn ended(&mut self, instructions: u64) {
        self.steps = (instructions - self.began).max(1);
        if let Some(began) = self.began_at.take() {
            self.time = began.elapsed();
        }
    }

    /// Sends blocks to workers that have nothing to do: `next` is the first that has not started, and nothing else runs.
    pub(super) fn send(&mut self, next: u64, ground: SendGround<'_>) {
        let Some(workers) = self.workers.as_ref().filter(|_| self.steps != 0) else {
            return;
        };
        let batch = JOB_STEPS.div_ceil(self.steps).min(JOB_BLOCKS);
        let count = workers.count();
        // The batch in front of the first job is the card's own, and so is one behind as many as there are workers.
        let mut first = self.next.max(next + batch - 1);
        let mut code = None;
        while self.tickets.len() < 2 * count && first + batch <= ground.launch.blocks() {
            let Some(view) = ground.outside.view() else { return };
            let blocks = first..first + batch;
            let keep = ground.spare.len().saturating_sub(batch as usize);
            let task = workers.send(Job {
                launch: Arc::clone(ground.launch),
                code: code.get_or_insert_with(|| Arc::new(ground.code.clone())).clone(),
                slot: ground.slot,
                view,
                blocks: blocks.clone(),
                spare: ground.spare.split_off(keep),
            });
            self.tickets.push_back(Ticket {
                blocks,
                slot: ground.slot,
                task,
            });
            self.sent += 1;
            let is_round = self.sent.is_multiple_of(count);
            first += if is_round { 2 * batch } else { batch };
            self.next = first;
        }
    }

    /// The track of block `index`, which starts now, if there is one.
    pub(super) fn take(&mut self, index: u64, slot: Slot) -> Option<Tracked> {
        while self
            .tickets
            .front()
            .is_some_and(|ticket| ticket.blocks.end <= index)
        {
            self.tickets.pop_front()?.task.give_up();
        }
        let ticket = self
            .tickets
            .front()
            .filter(|ticket| ticket.blocks.contains(&index))?;
        let track = match ticket.task.take(index, (self.time / 2).min(PATIENCE_MAX)) {
            Found::Track(track) if ticket.slot == slot => track,
            Found::Track(_) | Found::None => {
                self.tickets.pop_front()?.task.give_up();
                return None;
            }
            Found::Late => {
                self.late += 1;
                if self.late > LATE_MAX + self.played {
                    self.stop();
                }
                return None;
            }
        };
        if track.end != End::Done && track.steps.len() < SHORT_TRACK {
            self.stop();
        }
        self.played += 1;
        Some(Tracked {
            slot,
            player: Player::new(track),
        })
    }

    /// The block behind what was played of its track, which executes from there.
    pub(super) fn take_block(&self, tracked: &mut Tracked, launch: &Launch) -> Block {
        let steps = tracked.player.steps();
        let mut track = std::mem::take(&mut tracked.player.track);
        let is_behind_all = steps == track.steps.len() && track.end != End::Unsure;
        let (block, track) = match track.block.take_if(|_| is_behind_all) {
            Some(block) => (block, track),
            None => block_at(launch, tracked.slot, track, steps as u64),
        };
        if let Some(pool) = &self.pool {
            pool.keep(track);
        }
        block
    }

    /// Keeps the memory of blocks for the next grid.
    pub(super) fn keep_blocks(&self, blocks: Vec<Block>) {
        if let Some(pool) = &self.pool {
            pool.keep_blocks(blocks);
        }
    }

    /// A track differed from what memory had.
    pub(super) fn differed(&mut self) {
        self.differing += 1;
        if self.differing >= DIFFERING_MAX {
            self.stop();
        }
    }

    /// Has nothing more done for this grid.
    pub(super) fn stop(&mut self) {
        self.workers = None;
        self.tickets.drain(..).for_each(|ticket| ticket.task.give_up());
    }
}

impl Drop for Speculation {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a grid gives its workers.
pub(super) struct SendGround<'a> {
    pub(super) launch: &'a Arc<Launch>,
    pub(super) code: &'a Code,
    /// Where the block in front is, and so the next ones will be.
    pub(super) slot: Slot,
    pub(super) outside: &'a mut dyn Outside,
    pub(super) spare: &'a mut Vec<Block>,
}

/// A block that is played.
pub(super) struct Tracked {
    pub(super) slot: Slot,
    player: Player,
}

impl Tracked {
    /// Plays on for at most `budget` instructions, and reduces it by what was played.
    pub(super) fn play(&mut self, outside: &mut dyn Outside, tally: &mut Tally, budget: &mut u64) -> Played {
        self.player.play(outside, tally, budget)
    }

    /// How the track ends.
    pub(super) fn end(&self) -> End {
        self.player.track.end
    }
}
