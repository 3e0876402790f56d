//! The calls of a plan to the GPU that runs it.

use crate::programs::Program;

/// Most instructions of lanes of one launch, as far as blocks can be cut apart: about two milliseconds of a software
/// card. A grid cannot be preempted, so a VM keeps the card to itself for this long, and a broker waits at most
/// 20 ms for its channel.
pub(crate) const INSTRUCTIONS_MAX: u64 = 1 << 20;
/// Most blocks of a launch in a direction.
const BLOCKS_MAX: u32 = 0xffff;
/// Most words of parameters.
const PARAMETERS_MAX: usize = 48;
/// Words of constant bank 0 in front of the parameters.
const HEADER_WORDS: usize = 8;
/// The words that hold the number of a piece's first block.
const FIRST_BLOCK: usize = 6;

/// The GPU failed. Its owner knows how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped;

/// Constant bank 0 of a launch: parameters from 0x20 on, aligned as `.param` aligns them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    words: [u32; HEADER_WORDS + PARAMETERS_MAX],
    count: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self::new()
    }
}

impl Parameters {
    /// An empty list of parameters.
    pub const fn new() -> Self {
        Self {
            words: [0; HEADER_WORDS + PARAMETERS_MAX],
            count: HEADER_WORDS,
        }
    }

    /// Appends a `u32` parameter.
    #[must_use]
    pub fn word(mut self, word: u32) -> Self {
        self.words[self.count] = word;
        self.count += 1;
        self
    }

    /// Appends an `f32` parameter.
    #[must_use]
    pub(crate) fn float(self, value: f32) -> Self {
        self.word(value.to_bits())
    }

    /// Appends a `u64` parameter, aligned to 8 bytes.
    #[must_use]
    pub fn long(mut self, value: u64) -> Self {
        self.count = self.count.next_multiple_of(2);
        self.word(value as u32).word((value >> 32) as u32)
    }

    /// Bytes of the parameters.
    pub fn bytes(&self) -> u32 {
        (self.count - HEADER_WORDS) as u32 * 4
    }

    /// The `u64` parameter at `offset` of the bank, in bytes.
    pub fn long_at(&self, offset: u32) -> Option<u64> {
        let at = offset as usize / 4;
        let words = self.words.get(at..at + 2)?;
        (at + 2 <= self.count).then(|| u64::from(words[1]) << 32 | u64::from(words[0]))
    }

    /// The bank for a piece of the grid.
    pub fn bank(&self, piece: Piece) -> ([u32; HEADER_WORDS + PARAMETERS_MAX], usize) {
        let mut words = self.words;
        words[FIRST_BLOCK..HEADER_WORDS].copy_from_slice(&piece.first);
        (words, self.count)
    }
}

/// A grid to be run, in one launch or in several.
///
/// Programs add c0\[0x18\] and c0\[0x1c\] to their block numbers in x and y (macros `thread_x` and `thread_y`), so a
/// grid may be cut, and have more blocks than a launch can.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The program that each thread runs.
    pub program: &'static Program,
    /// Blocks in x and y, not 0.
    pub blocks: [u32; 2],
    /// Threads of a block in x and y.
    pub threads: [u32; 2],
    /// About how many instructions a thread executes.
    pub instructions: u32,
    /// Parameters of the program.
    pub parameters: &'a Parameters,
}

/// A part of a grid that is one launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its first block in x and y.
    pub first: [u32; 2],
    /// Its blocks in x and y.
    pub blocks: [u32; 2],
}

impl Launch<'_> {
    /// Cuts the grid: whole rows of blocks as far as possible, in their order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + use<> {
        let [columns, rows] = self.blocks;
        let threads = u64::from(self.threads[0]) * u64::from(self.threads[1]);
        let most = (INSTRUCTIONS_MAX / (threads * u64::from(self.instructions)).max(1)).max(1);
        let width = columns
            .min(BLOCKS_MAX)
            .min(u32::try_from(most).unwrap_or(u32::MAX))
            .max(1);
        let height = if width < columns {
            1
        } else {
            (most / u64::from(width)).clamp(1, BLOCKS_MAX.into()) as u32
        };
        (0..rows).step_by(height as usize).flat_map(move |y| {
            (0..columns).step_by(width as usize).map(move |x| Piece {
                first: [x, y],
                blocks: [width.min(columns - x), height.min(rows - y)],
            })
        })
    }
}

/// What the processor is about to do with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuAccess {
    /// Load some words, or all.
    Read,
    /// Store some words; the others stay as they are.
    Write,
    /// Store all words.
    Overwrite,
}

/// Runs launches in the order in which they were given; each sees the writes of those before.
///
/// Buffers may be in the GPU's memory alone, or have a copy on the processor's side that somebody keeps up to date. A
/// plan is the same for both: it says what it does ([`Self::check`]), and where its author would move the data by hand.
pub trait Gpu {
    /// Where a buffer of the kernel is in the GPU's address space.
    fn address(&self, buffer: usize) -> u64;

    /// Starts a grid.
    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped>;

    /// Waits for the launches, then loads words of a buffer that was checked since the last launch.
    fn load(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped>;

    /// Waits for the launches, then stores words into a buffer that was checked since the last launch.
    fn store(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped>;

    /// Says what the processor is about to do, so that its copy of a buffer can be brought up to date. Holds until the
    /// next launch.
    fn check(&mut self, buffer: usize, access: CpuAccess) -> Result<(), Stopped> {
        let _ = (buffer, access);
        Ok(())
    }

    /// Here the author of a program that moves data by hand copies a buffer to the GPU. Says nothing to anybody else.
    fn copy_in(&mut self, buffer: usize) -> Result<(), Stopped> {
        let _ = buffer;
        Ok(())
    }

    /// Here such an author copies a buffer from the GPU.
    fn copy_out(&mut self, buffer: usize) -> Result<(), Stopped> {
        let _ = buffer;
        Ok(())
    }

    /// Checks, then loads a few words of a buffer: a flag, a count.
    fn read(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        self.check(buffer, CpuAccess::Read)?;
        self.load(buffer, first, words)
    }

    /// Checks, then stores a few words into a buffer.
    fn write(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped> {
        self.check(buffer, CpuAccess::Write)?;
        self.store(buffer, first, words)
    }
}

/// A buffer that was checked once for any number of loads or stores: a check that is hoisted out of a loop.
///
/// A check holds as long as nothing is launched. While this lives nothing can be, since it has the GPU to itself:
///
/// ```compile_fail,E0499
/// # use kernels::{Checked, CpuAccess, Gpu, Launch, Stopped};
/// fn sum(gpu: &mut dyn Gpu, launch: &Launch<'_>) -> Result<(), Stopped> {
///     let mut image = Checked::new(gpu, 0, CpuAccess::Read)?;
///     for row in 0..16 {
///         image.load(row * 16, &mut [0; 16])?;
///         gpu.launch(launch)?;
///     }
///     Ok(())
/// }
/// ```
pub struct Checked<'a> {
    gpu: &'a mut dyn Gpu,
    buffer: usize,
}

impl<'a> Checked<'a> {
    /// Checks a buffer for what is to come.
    pub fn new(gpu: &'a mut dyn Gpu, buffer: usize, access: CpuAccess) -> Result<Self, Stopped> {
        gpu.check(buffer, access)?;
        Ok(Self { gpu, buffer })
    }

    /// Loads words from `first` on.
    pub fn load(&mut self, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        self.gpu.load(self.buffer, first, words)
    }

    /// Stores words from `first` on.
    pub fn store(&mut self, first: usize, words: &[u32]) -> Result<(), Stopped> {
        self.gpu.store(self.buffer, first, words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_grid_once(
            columns in 1u32..200_000, rows in 1u32..50, threads in 1u32..1024, instructions in 1u32..20_000,
        ) {
            let launch = Launch {
                program: &programs::TRIAD,
                blocks: [columns, rows],
                threads: [threads, 1],
                instructions,
                parameters: &Parameters::new(),
            };
            let mut covered = 0;
            let mut next = [0, 0];
            for piece in launch.pieces() {
                prop_assert_eq!(piece.first, next);
                prop_assert!(piece.blocks.iter().all(|blocks| (1..=BLOCKS_MAX).contains(blocks)));
                let blocks = u64::from(piece.blocks[0]) * u64::from(piece.blocks[1]);
                prop_assert!(blocks == 1 || blocks * u64::from(threads * instructions) <= INSTRUCTIONS_MAX);
                covered += blocks;
                next = match piece.first[0] + piece.blocks[0] {
                    end if end == columns => [0, piece.first[1] + piece.blocks[1]],
                    end => [end, piece.first[1]],
                };
            }
            prop_assert_eq!(covered, u64::from(columns) * u64::from(rows));
        }
    }

    #[test]
    fn parameters_lie_where_the_assembler_puts_them() {
        let parameters = Parameters::new().word(1).long(2 << 32 | 3).float(1.0);
        let piece = Piece {
            first: [8, 9],
            blocks: [1, 1],
        };
        let (words, count) = parameters.bank(piece);
        assert_eq!(words[..count], [0, 0, 0, 0, 0, 0, 8, 9, 1, 0, 3, 2, 0x3f80_0000]);
        assert_eq!(parameters.bytes(), 20);
        assert_eq!(parameters.long_at(0x28), Some(2 << 32 | 3));
        assert_eq!(parameters.long_at(0x30), None);
    }
}
