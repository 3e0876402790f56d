//! Updates at random places, as RandomAccess of the HPC Challenge makes them: a table, and numbers each of which goes
//! by xor into a word of it. Here numbers have 32 bits, and an atomic loses none of them, where HPC Challenge accepts
//! that one in a hundred is lost. There are as many as the table has words, or a few more; there four times as many.

use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const SEEDS: usize = 0;
const TABLE: usize = 1;
/// Updates from one seed: `UPDATES` of the program.
const UPDATES: usize = 16;
const THREADS: u32 = 256;
const WORDS_MAX: u64 = 1 << 30;

/// A table and the seeds of its updates.
#[derive(Clone, Debug)]
pub(crate) struct Gups {
    words: usize,
}

impl Gups {
    pub(crate) const NAME: &str = "gups";

    pub(crate) fn of(footprint: u64) -> Self {
        let words = (footprint / 4).min(2 * WORDS_MAX) * UPDATES as u64 / (UPDATES as u64 + 1);
        Self {
            words: words.clamp(1, WORDS_MAX) as usize,
        }
    }

    fn seeds(&self) -> usize {
        (self.words / UPDATES).max(1)
    }

    /// Not 0: xorshift would never leave it.
    fn seed(noise: Noise, index: usize) -> u32 {
        noise.of(SEEDS).word(index) | 1
    }

    fn launch(
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        threads: usize,
        parameters: Parameters,
    ) -> Result<(), Stopped> {
        gpu.launch(&Launch {
            program,
            blocks: [(threads as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions,
            parameters: &parameters,
        })
    }
}

/// The next number of Marsaglia's xorshift generator (2003).
fn xorshift(mut state: u32) -> u32 {
    state ^= state << 13;
    state ^= state >> 17;
    state ^ state << 5
}

impl Kernel for Gups {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("seeds", self.seeds(), Role::Input);
        buffers.add("table", self.words, Role::Output);
    }

    fn fill(&self, noise: Noise, _buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Self::seed(noise, index);
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let (table, words) = (gpu.address(TABLE), self.words as u32);
        let start = Parameters::new().long(table).word(words);
        Self::launch(gpu, &programs::GUPS_START, 14, self.words, start)?;
        let update = Parameters::new()
            .long(gpu.address(SEEDS))
            .long(table)
            .word(self.seeds() as u32)
            .word(words);
        let instructions = 16 + 14 * UPDATES as u32;
        Self::launch(gpu, &programs::GUPS_UPDATE, instructions, self.seeds(), update)
    }

    fn reference_words(&self) -> usize {
        self.words
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        for (word, index) in memory.iter_mut().zip(0..) {
            *word = index;
        }
        for index in 0..self.seeds() {
            let mut number = Self::seed(noise, index);
            for _ in 0..UPDATES {
                number = xorshift(number);
                let place = (u64::from(number) * self.words as u64) >> 32;
                memory[place as usize] ^= number;
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
