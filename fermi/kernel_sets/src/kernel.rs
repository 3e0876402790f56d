//! A kernel and the parameters of its launch.

use crate::fixpoint;
use crate::graph::Program;
use crate::sets::Sets;

/// What is known of a constant bank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bank<'a> {
    /// Its words from offset 0 on, `None` where one is not known. Words beyond are not known either.
    pub words: &'a [Option<u32>],
}

/// A launch, as far as addresses depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernel<'a> {
    /// First instruction, in bytes from the start of the code.
    pub entry: u32,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Constant banks by number; those beyond are not known.
    pub banks: &'a [Bank<'a>],
    /// Generic addresses of the windows of shared and local memory, 16 MiB each: what lies in them is private.
    pub windows: [u64; 2],
}

impl Kernel<'_> {
    /// A word of a bank, if it is known.
    pub(crate) fn constant(&self, bank: u8, offset: u32) -> Option<u32> {
        if !offset.is_multiple_of(4) {
            return None;
        }
        let words = self.banks.get(usize::from(bank))?.words;
        *words.get(offset as usize / 4)?
    }
}

/// How much is done for one kernel at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Instructions of the code, each counted once for every control stack that it is reached with.
    pub instructions: usize,
    /// Instructions interpreted, each counted every time.
    pub work: u64,
}

impl Default for Limits {
    /// Enough for any kernel of ours and of Mesa's tests; some tens of milliseconds at most.
    fn default() -> Self {
        Self {
            instructions: 8 << 10,
            work: 64 << 10,
        }
    }
}

/// Finds out what a kernel may reach. `code` gives the instruction word at an offset from the start of the code, `None` where
/// there is none; it is asked once for each place.
pub fn analyse(kernel: &Kernel<'_>, code: &mut dyn FnMut(u32) -> Option<u64>, limits: Limits) -> Sets {
    match Program::explore(kernel, code, limits.instructions) {
        Ok(program) => fixpoint::run(kernel, &program, limits.work),
        Err(reason) => Sets::unknown(reason, 0),
    }
}
