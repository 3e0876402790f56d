//! A grid, and the order in which its blocks run.
//!
//! Blocks start in the order of their index and run in turns: a block that has not ended after [`TURN`] instructions
//! gives way to the next one, up to as many as the card holds at once. So lanes of different blocks can wait for one
//! another as far as they can on hardware, and a grid whose blocks are short runs them one after the other. What a
//! grid does depends on nothing but the launch and the memory.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use super::{
    block::{Block, Progress, SM_WARPS, Slot, Surroundings},
    code::Code,
    launch::Launch,
    outside::Outside,
    simd::{self, Common, Level},
    speculation::{End, Played, SendGround, Speculation, Tracked, Workers},
    tally::Tally,
    trap::{ShaderPlace, Stop, WarpError},
    watch::{Ahead, WarpWatcher, Watch, Watched},
};
use crate::replay::FaultBuffer;

/// Instructions of a block before the next one's turn.
const TURN: u64 = 1 << 16;
/// Blocks that an SM holds at most.
const SM_BLOCKS: u32 = 8;
/// Registers of an SM.
const SM_REGISTERS: u32 = 32 << 10;
/// Registers are given to a warp in multiples of this.
const WARP_REGISTERS_UNIT: u32 = 64;
/// Shared memory is given to a block in multiples of this.
const SHARED_UNIT: u32 = 128;
/// Shared memory of an SM.
const SM_SHARED_BYTES: u32 = 48 << 10;

/// A block that has started.
#[expect(clippy::large_enum_variant, reason = "most are of the large one")]
enum Running {
    /// It executes its instructions.
    Live(Block),
    /// A worker has executed them.
    Tracked(Box<Tracked>),
}

impl Running {
    fn slot(&self) -> Slot {
        match self {
            Self::Live(block) => block.slot(),
            Self::Tracked(tracked) => tracked.slot,
        }
    }

    /// The block, if it executes by itself.
    fn live(&self) -> Option<&Block> {
        match self {
            Self::Live(block) => Some(block),
            Self::Tracked(_) => None,
        }
    }
}

/// A grid that runs.
pub(crate) struct Grid {
    launch: Arc<Launch>,
    code: Code,
    sms: u32,
    per_sm: u32,
    next: u64,
    blocks: VecDeque<Running>,
    /// Blocks that can do nothing before a replay, in the order in which they began to wait.
    waiting: Vec<Block>,
    /// Blocks that have ended, to be started again as others: no more than the card holds.
    spare: Vec<Block>,
    free: BTreeSet<u32>,
    /// Instructions left in the turn of the block in front.
    left: u64,
    /// Blocks in a row that could not go on.
    stuck: usize,
    speculation: Speculation,
    pub(crate) tally: Tally,
    /// GPU time of the launch.
    pub(crate) started: u64,
    /// The pages that its warps wait for.
    pub(crate) faults: FaultBuffer,
}

/// How far a grid got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GridProgress {
    Paused,
    /// Nothing goes on before a replay.
    Waiting,
    Done,
}

/// Blocks of a launch that an SM holds at once (the vendor's occupancy rules of compute capability 2.0). At least one,
/// as a launch that does not fit has been refused.
pub(crate) fn blocks_per_sm(launch: &Launch) -> u32 {
    let warps = launch.warps().max(1);
    let pairs = warps.next_multiple_of(2);
    let warp_registers = (launch.registers.max(1) * 32).next_multiple_of(WARP_REGISTERS_UNIT);
    let by_registers = ((SM_REGISTERS / warp_registers) & !1) / pairs;
    let shared = launch.shared_bytes.next_multiple_of(SHARED_UNIT);
    let by_shared = SM_SHARED_BYTES.checked_div(shared).unwrap_or(SM_BLOCKS);
    SM_BLOCKS
        .min(SM_WARPS / warps)
        .min(by_registers)
        .min(by_shared)
        .max(1)
}

impl Grid {
    /// A checked launch, on a card with so many SMs, this buffer for faults, and these threads for blocks ahead of their turn.
    pub(crate) fn new(
        launch: Launch,
        sms: u32,
        started: u64,
        faults: FaultBuffer,
        workers: Option<Arc<Workers>>,
    ) -> Self {
        let per_sm = blocks_per_sm(&launch);
        let sms = sms.max(1);
        Self {
            code: Code::default(),
            launch: Arc::new(launch),
            sms,
            per_sm,
            next: 0,
            blocks: VecDeque::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
            free: (0..sms * per_sm).collect(),
            left: TURN,
            stuck: 0,
            speculation: Speculation::new(workers),
            tally: Tally::default(),
            started,
            faults,
        }
    }

    /// SMs that have blocks of the grid.
    pub(crate) fn sms(&self) -> u32 {
        u64::from(self.sms).min(self.launch.blocks()).max(1) as u32
    }

    /// Warps that such an SM holds at once.
    pub(crate) fn warps_per_sm(&self) -> u32 {
        let blocks = self.launch.blocks().div_ceil(self.sms.into());
        blocks.clamp(1, self.per_sm.into()) as u32 * self.launch.warps()
    }

    /// Place of the warp that ran last, which is the one that stopped, if one did. `None` before the first
    /// and after the last.
    pub(crate) fn place(&mut self) -> Option<ShaderPlace> {
        self.catch_up();
        let front = self.blocks.front().and_then(Running::live);
        front.or(self.waiting.first()).map(Block::place)
    }

    /// Blocks that a worker has executed, at least in part.
    pub(crate) fn played(&self) -> u64 {
        self.speculation.played
    }

    /// Has every block execute by itself from now on, and those that have yet to start, too: somebody looks at each instruction.
    fn execute_all(&mut self) {
        self.speculation.stop();
        self.catch_up();
    }

    /// Has every block that has started execute by itself.
    fn catch_up(&mut self) {
        for running in &mut self.blocks {
            go_live(running, &self.launch, &self.speculation);
        }
    }

    /// Lets all warps go on that wait for pages: each executes its instruction anew.
    pub(crate) fn replay(&mut self) {
        self.waiting.iter_mut().for_each(Block::replay);
        for running in &mut self.blocks {
            if let Running::Live(block) = running {
                block.replay();
            }
        }
        self.blocks.extend(self.waiting.drain(..).map(Running::Live));
        self.stuck = 0;
    }

    /// Runs for about `budget` instructions of warps.
    pub(crate) fn run(
        &mut self,
        outside: &mut dyn Outside,
        watcher: Option<&mut dyn WarpWatcher>,
        budget: u64,
    ) -> Result<GridProgress, Stop> {
        match watcher {
            None if !outside.looks_ahead() => simd::perform(Piece {
                grid: self,
                outside,
                budget,
            }),
            Some(watcher) if !outside.looks_ahead() => {
                self.execute_all();
                self.run_body(Common, outside, &mut Watched(watcher), budget)
            }
            watcher => {
                self.execute_all();
                self.run_body(Common, outside, &mut Ahead::new(watcher), budget)
            }
        }
    }

    /// [`Self::run`], compiled for the processor at hand by [`simd`].
    #[inline(always)]
    fn run_body<W: Watch>(
        &mut self,
        level: impl Level,
        outside: &mut dyn Outside,
        watch: &mut W,
        mut budget: u64,
    ) -> Result<GridProgress, Stop> {
        while budget != 0 {
            if self.blocks.is_empty() && !self.start_alone(outside) {
                return Ok(match self.waiting.is_empty() {
                    true => GridProgress::Done,
                    false => GridProgress::Waiting,
                });
            }
            let given = self.left.min(budget);
            let mut rest = given;
            let progress = self.run_front(level, outside, watch, &mut rest)?;
            let ran = given - rest;
            budget -= ran;
            self.left -= ran;
            match progress {
                Progress::Done => {
                    self.front_ended();
                    self.left = TURN;
                    self.stuck = 0;
                }
                Progress::Waiting => {
                    if let Some(Running::Live(block)) = self.blocks.pop_front() {
                        self.waiting.push(block);
                    }
                    self.left = TURN;
                    self.stuck = 0;
                    if self.start_block() {
                        self.blocks.rotate_right(1);
                    }
                }
                Progress::Stuck => {
                    self.stuck += 1;
                    self.give_way();
                    if self.stuck > self.blocks.len() && !self.waiting.is_empty() {
                        return Ok(GridProgress::Waiting);
                    }
                    // A stuck block stays so, and gives its place to no other: blocks that have yet to start never will.
                    if self.stuck > self.blocks.len() {
                        return Err(WarpError::TimedOut.into());
                    }
                    // Looking at a block that cannot go on costs something, or a piece would look at all of them.
                    budget = budget.saturating_sub(TURN);
                }
                Progress::Paused if self.left == 0 => {
                    self.stuck = 0;
                    self.give_way();
                }
                Progress::Paused => {}
            }
        }
        Ok(GridProgress::Paused)
    }

    /// Runs the block in front for at most `budget` instructions, and reduces it by the number that ran.
    #[inline(always)]
    fn run_front<W: Watch>(
        &mut self,
        level: impl Level,
        outside: &mut dyn Outside,
        watch: &mut W,
        budget: &mut u64,
    ) -> Result<Progress, Stop> {
        match self.blocks.front_mut() {
            Some(Running::Live(block)) => {
                let around = Surroundings {
                    launch: &self.launch,
                    outside,
                    tally: &mut self.tally,
                };
                block.run(level, &mut self.code, around, watch, budget)
            }
            Some(Running::Tracked(_)) => Ok(self.play_front(outside, budget)),
            None => Ok(Progress::Done),
        }
    }

    /// Plays the track of the block in front.
    #[inline(never)]
    fn play_front(&mut self, outside: &mut dyn Outside, budget: &mut u64) -> Progress {
        let Some(front) = self.blocks.front_mut() else {
            return Progress::Done;
        };
        let Running::Tracked(tracked) = front else {
            return Progress::Paused;
        };
        let played = tracked.play(outside, &mut self.tally, budget);
        let is_done = played == Played::Ended && tracked.end() == End::Done;
        match played {
            Played::Paused => return Progress::Paused,
            Played::Differs => self.speculation.differed(),
            Played::Ended => {}
        }
        go_live(front, &self.launch, &self.speculation);
        if is_done { Progress::Done } else { Progress::Paused }
    }

    /// The block in front is through.
    fn front_ended(&mut self) {
        let Some(ended) = self.blocks.pop_front() else {
            return;
        };
        let slot = ended.slot();
        self.free
            .insert(slot.first_warp / self.launch.warps() * self.sms + slot.sm);
        if let Running::Live(block) = ended {
            self.spare.push(block);
        }
        if self.blocks.is_empty() {
            self.speculation.ended(self.tally.instructions());
        }
    }

    /// Starts the next block when no other runs, if there is one, and has workers run those behind it.
    fn start_alone(&mut self, outside: &mut dyn Outside) -> bool {
        if !self.start_block() {
            return false;
        }
        let is_live = self.blocks.front().is_some_and(|front| front.live().is_some());
        self.speculation.begins(self.tally.instructions(), is_live);
        let (Some(front), true) = (self.blocks.front(), self.waiting.is_empty()) else {
            return true;
        };
        let ground = SendGround {
            launch: &self.launch,
            code: &self.code,
            slot: front.slot(),
            outside,
            spare: &mut self.spare,
        };
        self.speculation.send(self.next, ground);
        true
    }

    /// The block in front goes to the end; a new one comes in front if there is room.
    fn give_way(&mut self) {
        self.left = TURN;
        self.blocks.rotate_left(1);
        if self.start_block() {
            self.blocks.rotate_right(1);
        }
    }

    /// Starts the next block behind the others, if there is one and room for it.
    fn start_block(&mut self) -> bool {
        if self.next >= self.launch.blocks() {
            return false;
        }
        let Some(slot) = self.free.pop_first() else {
            return false;
        };
        let slot = Slot {
            sm: slot % self.sms,
            sms: self.sms,
            first_warp: slot / self.sms * self.launch.warps(),
        };
        let running = match self.speculation.take(self.next, slot) {
            Some(tracked) => Running::Tracked(Box::new(tracked)),
            None => {
                let mut block = self.spare.pop().unwrap_or_else(|| Block::new(&self.launch));
                block.start(&self.launch, self.next, slot);
                Running::Live(block)
            }
        };
        self.blocks.push_back(running);
        self.next += 1;
        true
    }
}

impl Drop for Grid {
    fn drop(&mut self) {
        self.speculation.keep_blocks(std::mem::take(&mut self.spare));
    }
}

/// Has a block execute by itself from where it is.
fn go_live(running: &mut Running, launch: &Launch, speculation: &Speculation) {
    if let Running::Tracked(tracked) = running {
        *running = Running::Live(speculation.take_block(tracked, launch));
    }
}

/// A piece of a grid, for the interpreter compiled for the processor at hand.
pub(super) struct Piece<'a> {
    pub(super) grid: &'a mut Grid,
    pub(super) outside: &'a mut dyn Outside,
    pub(super) budget: u64,
}

impl simd::Work for Piece<'_> {
    type Output = Result<GridProgress, Stop>;

    #[inline(always)]
    fn perform(self, level: impl Level) -> Self::Output {
        self.grid.run_body(level, self.outside, &mut (), self.budget)
    }
}
