//! Watching warps while they run.
//!
//! The interpreter is compiled four times: for runs without a watcher, where [`Watch`] is `()` and costs nothing, for runs
//! with one, for cards that look at each instruction before it is executed ([`Ahead`]), with a watcher or without, and for blocks that
//! run ahead of their turn (`speculation::record`).

use fermi_spec::isa::{Instruction, Predicate, Register};

use super::{code::Op, reach::Reach, tally::Tally, warp::Warp};

/// Sees every instruction of every warp, in the order in which they are executed.
///
/// A watcher changes nothing: neither results nor GPU time depend on there being one. It runs within
/// [`FermiModel::step`](crate::FermiModel::step), which waits for it.
pub trait WarpWatcher: Send {
    /// A grid is about to start; steps are its own until the next one starts.
    fn start(&mut self, grid: &GridStart) {
        let _ = grid;
    }

    /// A warp has executed an instruction, or stopped at it for good.
    fn see(&mut self, step: &WarpStep<'_>);
}

/// A grid that starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GridStart {
    /// Virtual address of the code.
    pub code: u64,
    /// First instruction, bytes from the start of the code.
    pub entry: u32,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
}

/// An instruction that a warp has executed.
#[derive(Clone, Copy)]
pub struct WarpStep<'a> {
    /// Block index in x, y, z.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// Where the instruction is, bytes from the start of the code.
    pub pc: u32,
    /// The decoded instruction.
    pub instruction: Instruction,
    /// Lanes that were active.
    pub active: u32,
    /// Those of them that the guard let through.
    pub executed: u32,
    /// The grid ends here: the instruction made an error.
    pub is_stop: bool,
    /// What of global memory the lanes asked for, if it is an access with an address.
    pub global: Option<GlobalAccess>,
    after: &'a Warp,
}

/// Loads, stores or atomics of one instruction in global memory: lanes that reached shared or local memory are left out.
///
/// An instruction that stopped may have moved nothing, or a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GlobalAccess {
    /// Virtual addresses by lane; those of other lanes mean nothing.
    pub addresses: [u64; 32],
    /// Lanes that reached global memory.
    pub lanes: u32,
    /// Bytes of each lane.
    pub bytes: u32,
    /// It loads; an atomic does both.
    pub is_load: bool,
    /// It stores, perhaps after a load.
    pub is_store: bool,
}

impl WarpStep<'_> {
    /// A register of all lanes, as the instruction left it.
    pub fn register(&self, register: Register) -> &[u32; 32] {
        self.after.register(register.0)
    }

    /// Lanes where a predicate holds, as the instruction left it.
    pub fn predicate(&self, predicate: Predicate) -> u32 {
        self.after.predicate(predicate.0.into(), false)
    }

    /// Predicates in bits 6:0 and condition flags (zero, sign, carry, overflow) in 15:12 of a lane, 0 to 31.
    pub fn flags(&self, lane: usize) -> u32 {
        self.after.packed_flags(lane & 31)
    }

    /// Where the warp goes on, and which lanes: none if it has ended.
    pub fn next(&self) -> (u32, u32) {
        (self.after.pc, self.after.active)
    }
}

impl std::fmt::Debug for WarpStep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WarpStep")
            .field("block", &self.block)
            .field("warp", &self.warp)
            .field("pc", &self.pc)
            .field("instruction", &self.instruction)
            .finish_non_exhaustive()
    }
}

/// State of an instruction before it is executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) block: [u32; 3],
    pub(super) op: Op,
    pub(super) active: u32,
    pub(super) executed: u32,
    pub(super) pc: u32,
    /// A load may overwrite the register with its address.
    pub(super) global: Option<GlobalAccess>,
}

/// What sees instructions before and after they are executed.
pub(super) trait Watch {
    /// Room for what an instruction is about to reach, if the card is asked before each one. A constant where there is none.
    #[inline(always)]
    fn ahead(&mut self) -> Option<&mut Reach> {
        None
    }

    /// Whether an instruction may begin; where not, [`Self::is_over`] and nothing further does.
    #[inline(always)]
    fn lets_begin(&mut self, op: &Op) -> bool {
        let _ = op;
        true
    }

    /// Whether the block is to stop before its next instruction.
    #[inline(always)]
    fn is_over(&self) -> bool {
        false
    }

    /// Called after each instruction that did not stop, with the counts since the beginning.
    #[inline(always)]
    fn count(&mut self, op: &Op, tally: &Tally) {
        let _ = (op, tally);
    }

    /// Whether there is a watcher.
    fn is_on(&self) -> bool;

    /// Called after each instruction, if there is a watcher.
    fn see(&mut self, before: &Before, after: &Warp, is_stop: bool);
}

impl Watch for () {
    #[inline(always)]
    fn is_on(&self) -> bool {
        false
    }

    #[inline(always)]
    fn see(&mut self, _: &Before, _: &Warp, _: bool) {}
}

/// Passes instructions on to a watcher.
pub(super) struct Watched<'a>(pub(super) &'a mut dyn WarpWatcher);

impl Watch for Watched<'_> {
    #[inline(always)]
    fn is_on(&self) -> bool {
        true
    }

    fn see(&mut self, before: &Before, after: &Warp, is_stop: bool) {
        // It was decoded before, so it decodes again.
        let Ok(instruction) = Instruction::decode(before.op.word()) else {
            return;
        };
        self.0.see(&WarpStep {
            block: before.block,
            warp: after.index,
            pc: before.pc,
            instruction,
            active: before.active,
            executed: before.executed,
            is_stop,
            global: before.global,
            after,
        });
    }
}

/// Looks at instructions before they are executed, and passes them on to a watcher if there is one.
pub(super) struct Ahead<'a> {
    watched: Option<Watched<'a>>,
    reach: Reach,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(watcher: Option<&'a mut dyn WarpWatcher>) -> Self {
        Self {
            watched: watcher.map(Watched),
            reach: Reach::default(),
        }
    }
}

impl Watch for Ahead<'_> {
    fn ahead(&mut self) -> Option<&mut Reach> {
        Some(&mut self.reach)
    }

    fn is_on(&self) -> bool {
        self.watched.is_some()
    }

    fn see(&mut self, before: &Before, after: &Warp, is_stop: bool) {
        if let Some(watched) = &mut self.watched {
            watched.see(before, after, is_stop);
        }
    }
}
