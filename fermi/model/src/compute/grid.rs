//! A grid, and the order in which its blocks run.
//!
//! Blocks start in the order of their index and run in turns: a block that has not ended after [`TURN`] instructions
//! gives way to the next one, up to as many as the card holds at once. So lanes of different blocks can wait for one
//! another as far as they can on hardware, and a grid whose blocks are short runs them one after the other. What a
//! grid does depends on nothing but the launch and the memory.

use std::collections::{BTreeSet, VecDeque};

use super::{
    block::{Block, Progress, SM_WARPS, Slot, Surroundings},
    code::Code,
    launch::Launch,
    outside::Outside,
    simd::{self, Common, Level},
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

/// A grid that runs.
pub(crate) struct Grid {
    launch: Box<Launch>,
    code: Code,
    sms: u32,
    per_sm: u32,
    next: u64,
    blocks: VecDeque<Block>,
    /// Blocks that can do nothing before a replay, in the order in which they began to wait.
    waiting: Vec<Block>,
    /// Blocks that have ended, to be started again as others: no more than the card holds.
    spare: Vec<Block>,
    free: BTreeSet<u32>,
    /// Instructions left in the turn of the block in front.
    left: u64,
    /// Blocks in a row that could not go on.
    stuck: usize,
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
    /// A checked launch, on a card with so many SMs and this buffer for faults.
    pub(crate) fn new(launch: Launch, sms: u32, started: u64, faults: FaultBuffer) -> Self {
        let per_sm = blocks_per_sm(&launch);
        let sms = sms.max(1);
        Self {
            code: Code::default(),
            launch: Box::new(launch),
            sms,
            per_sm,
            next: 0,
            blocks: VecDeque::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
            free: (0..sms * per_sm).collect(),
            left: TURN,
            stuck: 0,
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
    pub(crate) fn place(&self) -> Option<ShaderPlace> {
        self.blocks.front().or(self.waiting.first()).map(Block::place)
    }

    /// Lets all warps go on that wait for pages: each executes its instruction anew.
    pub(crate) fn replay(&mut self) {
        self.blocks.extend(self.waiting.drain(..));
        self.blocks.iter_mut().for_each(Block::replay);
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
            watcher if outside.looks_ahead() => {
                self.run_body(Common, outside, &mut Ahead::new(watcher), budget)
            }
            None => simd::perform(Piece {
                grid: self,
                outside,
                budget,
            }),
            Some(watcher) => self.run_body(Common, outside, &mut Watched(watcher), budget),
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
            if self.blocks.is_empty() && !self.start_block() {
                return Ok(match self.waiting.is_empty() {
                    true => GridProgress::Done,
                    false => GridProgress::Waiting,
                });
            }
            let Some(block) = self.blocks.front_mut() else {
                continue;
            };
            let given = self.left.min(budget);
            let mut rest = given;
            let around = Surroundings {
                launch: &self.launch,
                outside: &mut *outside,
                tally: &mut self.tally,
            };
            let progress = block.run(level, &mut self.code, around, watch, &mut rest)?;
            let ran = given - rest;
            budget -= ran;
            self.left -= ran;
            match progress {
                Progress::Done => {
                    let slot = block.slot();
                    self.free
                        .insert(slot.first_warp / self.launch.warps() * self.sms + slot.sm);
                    self.spare.extend(self.blocks.pop_front());
                    self.left = TURN;
                    self.stuck = 0;
                }
                Progress::Waiting => {
                    self.waiting.extend(self.blocks.pop_front());
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
        let mut block = self.spare.pop().unwrap_or_else(|| Block::new(&self.launch));
        block.start(&self.launch, self.next, slot);
        self.blocks.push_back(block);
        self.next += 1;
        true
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
