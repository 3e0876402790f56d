//! What a grid did, counted for its time and for reports.

use fermi_spec::isa::{Instruction, Opcode};

use super::warp::{Lanes, lanes_of};

/// Bytes of a segment that an access to memory moves.
const SEGMENT_BYTES: u64 = 128;
/// Banks of shared memory, of 4 bytes.
const BANKS: u32 = 32;

/// Kinds of instructions by what they cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Issue {
    /// f32 add, multiply, fused; integer add and logic; moves.
    Full,
    /// Integer multiply, shifts, bit fields, conversions, comparisons of integers.
    Half,
    /// f64.
    Double,
    /// Special functions.
    Special,
    /// Loads and stores, beside what the memory costs.
    Memory,
    /// Branches and the stack.
    Control,
}

/// Kinds there are.
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
    /// Accesses of warps to global and local memory.
    pub(crate) global_accesses: u64,
    /// 128-byte segments read and written, local memory included.
    pub(crate) segments_read: u64,
    pub(crate) segments_written: u64,
    /// Operations of lanes on memory that are atomic.
    pub(crate) atomics: u64,
}

impl Tally {
    #[inline(always)]
    pub(crate) fn count(&mut self, issue: Issue, lanes: u32) {
        self.issued[issue as usize] += 1;
        self.lane_instructions += u64::from(lanes.count_ones());
    }

    /// What was done since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            issued: std::array::from_fn(|issue| self.issued[issue] - before.issued[issue]),
            lane_instructions: self.lane_instructions - before.lane_instructions,
            shared_passes: self.shared_passes - before.shared_passes,
            global_accesses: self.global_accesses - before.global_accesses,
            segments_read: self.segments_read - before.segments_read,
            segments_written: self.segments_written - before.segments_written,
            atomics: self.atomics - before.atomics,
        }
    }

    /// Warp instructions so far.
    pub(crate) fn instructions(&self) -> u64 {
        self.issued.iter().sum()
    }

    /// What CLOCK shows. assumption: one tick an instruction, as the scheduler issues one in each of its clocks.
    pub(crate) fn clock(&self) -> u64 {
        self.instructions()
    }

    /// An access to global memory: one segment for each that lanes touch.
    pub(crate) fn global(&mut self, addresses: &[u64; 32], lanes: u32, bytes: u32, is_store: bool) {
        self.global_accesses += 1;
        let segments = segments_of(addresses, lanes, bytes);
        if is_store {
            self.segments_written += segments;
        } else {
            self.segments_read += segments;
        }
    }

    /// A read of texels, told one by one by [`Self::texel`].
    pub(crate) fn texture(&mut self) {
        self.global_accesses += 1;
    }

    /// A texel at `va`; `last` is the segment of the one before.
    pub(crate) fn texel(&mut self, va: u64, last: &mut u64) {
        let segment = va / SEGMENT_BYTES;
        self.segments_read += u64::from(segment != *last);
        *last = segment;
    }

    /// An access to local memory: equal offsets of all lanes lie side by side.
    pub(crate) fn local(&mut self, offsets: &Lanes, lanes: u32, bytes: u32, is_store: bool) {
        self.global_accesses += 1;
        let mut last = u32::MAX;
        let mut segments = 0;
        for lane in lanes_of(lanes) {
            segments += u64::from(offsets[lane] / 4 != last);
            last = offsets[lane] / 4;
        }
        let segments = segments * u64::from(bytes.div_ceil(4));
        if is_store {
            self.segments_written += segments;
        } else {
            self.segments_read += segments;
        }
    }

    /// An access to shared memory: as many passes as the busiest bank has different words.
    pub(crate) fn shared(&mut self, offsets: &Lanes, lanes: u32, bytes: u32) {
        let first = offsets[0];
        let is_row = (0..BANKS)
            .zip(offsets)
            .all(|(lane, at)| *at == first.wrapping_add(4 * lane));
        if is_row || offsets.iter().all(|at| *at == first) {
            // A word of each bank, or one word for all.
            self.shared_passes += u64::from(bytes.div_ceil(4));
            return;
        }
        let mut words = [u32::MAX; BANKS as usize];
        let mut passes = [0u64; BANKS as usize];
        for lane in lanes_of(lanes) {
            let word = offsets[lane] / 4;
            let bank = (word % BANKS) as usize;
            if words[bank] != word {
                words[bank] = word;
                passes[bank] += 1;
            }
        }
        let busiest = passes.iter().max().copied().unwrap_or(0);
        self.shared_passes += busiest * u64::from(bytes.div_ceil(4));
    }

    /// Atomic operations.
    pub(crate) fn atomic(&mut self, addresses: &[u64; 32], lanes: u32) {
        self.atomics += u64::from(lanes.count_ones());
        self.global(addresses, lanes, 4, true);
    }
}

/// Segments that an access moves.
fn segments_of(addresses: &[u64; 32], lanes: u32, bytes: u32) -> u64 {
    let (first, bytes) = (addresses[0], u64::from(bytes));
    let is_row = (0u64..)
        .zip(addresses)
        .all(|(lane, at)| *at == first.wrapping_add(lane * bytes));
    if is_row && lanes == u32::MAX {
        return (addresses[31] + bytes - 1) / SEGMENT_BYTES - first / SEGMENT_BYTES + 1;
    }
    let mut last = u64::MAX;
    let mut segments = 0;
    // Lanes mostly ascend; a segment that comes back costs another transfer.
    for lane in lanes_of(lanes) {
        for at in [addresses[lane], addresses[lane] + bytes - 1] {
            let segment = at / SEGMENT_BYTES;
            segments += u64::from(segment != last);
            last = segment;
        }
    }
    segments
}
