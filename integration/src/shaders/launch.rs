//! A launch: the words of a program, and its parameters as methods of class 90c0 set them.

use std::collections::BTreeMap;

/// Program and parameters of a launch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Launch {
    /// Instruction words from offset 0 on.
    pub code: Vec<u64>,
    /// Where lanes start, in bytes.
    pub entry: u32,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Registers of a lane.
    pub registers: u32,
    /// Shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Barriers of a block.
    pub barriers: u32,
    /// Bytes of control stack for each warp.
    pub stack_bytes: u32,
    /// Generic address of shared memory.
    pub shared_window: u32,
    /// Generic address of local memory.
    pub local_window: u32,
    /// Bytes of local memory of a lane from address 0 up.
    pub local_positive: u32,
    /// Bytes of local memory of a lane below the end of the local addresses.
    pub local_negative: u32,
    /// Value that GRIDID reads.
    pub grid_id: u32,
    /// Operand of LAUNCH.
    pub argument: u32,
    /// Words of the constant banks.
    pub banks: BTreeMap<u32, Vec<u32>>,
}

impl Launch {
    /// A word of a constant bank; a word outside of all banks is zero.
    pub(crate) fn constant(&self, bank: u32, offset: u32) -> u32 {
        self.banks
            .get(&bank)
            .and_then(|words| words.get(offset as usize / 4))
            .map_or(0, |word| *word)
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}
