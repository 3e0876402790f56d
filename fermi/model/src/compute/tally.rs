//! Counts of a grid's work, for its time and for reports.

use fermi_spec::isa::{Instruction, Opcode};

/// Kinds of instructions by what they cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Issue {
    /// f32 add, multiply, fused; integer add and logic; moves.
    Full,
    /// Integer multiply, shifts, bit fields, conversions, comparisons of integers.
    Half,
    /// Instructions of f64.
    Double,
    /// Special functions (MUFU).
    Special,
    /// Loads and stores, beside what the memory costs.
    Memory,
    /// Branches and the stack.
    Control,
}

/// Number of kinds.
pub(crate) const ISSUES: usize = 6;

impl Issue {
    pub(crate) fn of(instruction: Instruction) -> Self {
        const DOUBLES: u8 = 1;
        const MEMORY: u8 = 5;
        const CONSTANTS: u8 = 6;
        const CONTROL: u8 = 7;
        match (instruction.class(), instruction.opcode()) {
            (DOUBLES, _) => Self::Double,
            (MEMORY | CONSTANTS, _) => Self::Memory,
            (CONTROL, _) | (_, Opcode::Bar | Opcode::Nop) => Self::Control,
            (_, Opcode::Mufu) => Self::Special,
            (
                _,
                Opcode::Imad32i
                | Opcode::Imul32i
                | Opcode::Imad
                | Opcode::Imul
                | Opcode::Isad
                | Opcode::Shl
                | Opcode::Shr
                | Opcode::Bfe
                | Opcode::Bfi
                | Opcode::Flo
                | Opcode::Popc
                | Opcode::Imnmx
                | Opcode::Iset
                | Opcode::Isetp
                | Opcode::F2f
                | Opcode::F2i
                | Opcode::I2f
                | Opcode::I2i,
            ) => Self::Half,
            _ => Self::Full,
        }
    }
}

/// Counts of a grid or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    /// Warp instructions by [`Issue`].
    pub(crate) issued: [u64; ISSUES],
    /// Instructions of lanes.
    pub(crate) lane_instructions: u64,
    /// Passes through shared memory: one for each warp access without a conflict.
    pub(crate) shared_passes: u64,
    /// Loads and atomics of warps in global and local memory: they take their time.
    pub(crate) awaited: u64,
    /// Operations of lanes on memory that are atomic.
    pub(crate) atomics: u64,
}

impl Tally {
    #[inline(always)]
    pub(crate) fn count(&mut self, issue: Issue, lanes: u32) {
        self.issued[issue as usize] += 1;
        self.lane_instructions += u64::from(lanes.count_ones());
    }

    /// The counts since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            issued: std::array::from_fn(|issue| self.issued[issue] - before.issued[issue]),
            lane_instructions: self.lane_instructions - before.lane_instructions,
            shared_passes: self.shared_passes - before.shared_passes,
            awaited: self.awaited - before.awaited,
            atomics: self.atomics - before.atomics,
        }
    }

    /// Warp instructions so far.
    pub(crate) fn instructions(&self) -> u64 {
        self.issued.iter().sum()
    }

    /// Value of CLOCK. assumption: one tick an instruction, as the scheduler issues one in each of its clocks.
    pub(crate) fn clock(&self) -> u64 {
        self.instructions()
    }

    /// An access to global or local memory; no warp waits for a store.
    #[inline(always)]
    pub(crate) fn global(&mut self, is_store: bool) {
        self.awaited += u64::from(!is_store);
    }

    /// An access to shared memory, which takes so many passes.
    pub(crate) fn shared(&mut self, passes: u64) {
        self.shared_passes += passes;
    }

    /// Atomic operations of these lanes.
    pub(crate) fn atomic(&mut self, lanes: u32) {
        self.atomics += u64::from(lanes.count_ones());
        self.awaited += 1;
    }
}
