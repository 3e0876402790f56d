//! A hash join with sums, as databases on GPUs make it (He et al., "Relational Joins on Graphics Processors", 2008):
//! a table of chains is built by an atomic exchange for each row of one side, then each row of the other counts the rows
//! with its key and adds up their values.
//!
//! A key of the build side has one row on the average; half of the probes find none.

use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

pub(super) const KEYS: usize = 0;
pub(super) const VALUES: usize = 1;
pub(super) const PROBES: usize = 2;
pub(super) const HEADS: usize = 3;
pub(super) const FOLLOWING: usize = 4;
pub(super) const MATCHES: usize = 5;
pub(super) const SUMS: usize = 6;
/// Rows of the probe side for each of the build side.
const PROBES_PER_ROW: usize = 2;
/// Words for each row of the build side: key, value, head of a chain, link; its probes with two results each.
const WORDS_PER_ROW: u64 = 4 + 3 * PROBES_PER_ROW as u64;
const ROWS_MAX: u64 = 1 << 28;
const THREADS: u32 = 256;

/// A join of two relations.
#[derive(Clone, Debug)]
pub(crate) struct HashJoin {
    rows: usize,
}

impl HashJoin {
    pub(crate) const NAME: &str = "hashjoin";

    pub(crate) fn of(footprint: u64) -> Self {
        Self::with_rows((footprint / 4 / WORDS_PER_ROW).clamp(1, ROWS_MAX) as usize)
    }

    /// A join with so many rows on the build side.
    pub(super) fn with_rows(rows: usize) -> Self {
        Self { rows }
    }

    pub(super) fn probes(&self) -> usize {
        self.rows * PROBES_PER_ROW
    }

    /// Which of the keys a row of the build side has: one of as many as there are rows.
    fn build_key(&self, noise: Noise, row: usize) -> u32 {
        noise.of(KEYS).below(row, self.rows as u32)
    }

    /// Which of the keys a probe has: one of twice as many.
    fn probe_key(&self, noise: Noise, probe: usize) -> u32 {
        noise.of(PROBES).below(probe, 2 * self.rows as u32)
    }

    /// Makes the chains of the build side.
    pub(super) fn build(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let rows = self.rows;
        Self::launch(gpu, &programs::HASHJOIN_START, 14, &[HEADS], &[rows])?;
        let build = [KEYS, HEADS, FOLLOWING];
        Self::launch(gpu, &programs::HASHJOIN_BUILD, 26, &build, &[rows])
    }

    /// Launches a program whose parameters are buffers and then counts.
    pub(super) fn launch(
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        buffers: &[usize],
        counts: &[usize],
    ) -> Result<(), Stopped> {
        let mut parameters = Parameters::new();
        for buffer in buffers {
            parameters = parameters.long(gpu.address(*buffer));
        }
        for count in counts {
            parameters = parameters.word(*count as u32);
        }
        gpu.launch(&Launch {
            program,
            // A thread for each row of the side that the first count is of.
            blocks: [(counts[0] as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions,
            parameters: &parameters,
        })
    }
}

/// The key with a number: an odd factor, so that no two have the same.
fn key(number: u32) -> u32 {
    number.wrapping_mul(0x85eb_ca6b) ^ 0x5bd1_e995
}

impl Kernel for HashJoin {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("keys", self.rows, Role::Input);
        buffers.add("values", self.rows, Role::Input);
        buffers.add("probes", self.probes(), Role::Input);
        buffers.add("heads", self.rows, Role::Work);
        buffers.add("following", self.rows, Role::Work);
        buffers.add("matches", self.probes(), Role::Output);
        buffers.add("sums", self.probes(), Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = match buffer {
                KEYS => key(self.build_key(noise, index)),
                PROBES => key(self.probe_key(noise, index)),
                _ => noise.of(VALUES).word(index),
            };
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.build(gpu)?;
        let probe = [PROBES, KEYS, VALUES, HEADS, FOLLOWING, MATCHES, SUMS];
        Self::launch(
            gpu,
            &programs::HASHJOIN_PROBE,
            80,
            &probe,
            &[self.probes(), self.rows],
        )
    }

    fn reference_words(&self) -> usize {
        2 * self.rows
    }

    /// Rows and sums of each key by its number.
    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        memory.fill(0);
        let (counts, sums) = memory.split_at_mut(self.rows);
        for row in 0..self.rows {
            let number = self.build_key(noise, row) as usize;
            counts[number] += 1;
            sums[number] = sums[number].wrapping_add(noise.of(VALUES).word(row));
        }
    }

    fn expected(&self, noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        let (counts, sums) = memory.split_at(self.rows);
        let results = if buffer == MATCHES { counts } else { sums };
        for (word, index) in words.iter_mut().zip(first..) {
            let number = self.probe_key(noise, index) as usize;
            *word = results.get(number).copied().unwrap_or(0);
        }
    }
}
