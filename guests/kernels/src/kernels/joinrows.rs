//! The hash join of [`super::hashjoin`] with rows as its result: each probe gets memory for its rows from RW_malloc
//! ([`crate::allocators`]) while the grid runs, as Pham et al. (section 5.2.3) have it, instead of one output of a size that is
//! known beforehand. A program behind it reads the rows back to counts and sums, and all memory is given back.
//!
//! A key of the build side has one row on the average, so that a probe's rows need 8 bytes in most cases, and a warp's share
//! units of 64 bytes.

use super::hashjoin::{FOLLOWING, HEADS, HashJoin, KEYS, MATCHES, PROBES, SUMS, VALUES};
use crate::allocators::{Lanes, Units};
use crate::{Buffers, Gpu, Kernel, Noise, Role, Stopped, programs};

const SIZES: usize = 7;
const GIVEN: usize = 8;
const STEPS: usize = 9;
const BITMAP: usize = 10;
const TAGS: usize = 11;
const FAULTS: usize = 12;
const ROWS_OUT: usize = 13;
const UNIT_SHIFT: u32 = 6;
/// Rows of the build side for each word of the bitmap: 32 bytes of output for a row. Rows of its two probes need 11 on the
/// average, with what is lost by rounding up.
const ROWS_PER_WORD: usize = 64;
/// Words for each word of the bitmap: itself, the tags, the units.
const WORDS_PER_WORD: usize = 1 + 32 + (32 << UNIT_SHIFT) / 4;
/// Words for each row: those of the join, and three for each probe.
const WORDS_PER_ROW: usize = 10 + 2 * 3;
/// The output has less than 4 GiB.
const ROWS_MAX: u64 = 1 << 26;
/// Draws of a warp: two thirds of the units are free.
const TRIES: u32 = 16;

/// A join of two relations into rows.
#[derive(Clone, Debug)]
pub(crate) struct JoinRows {
    join: HashJoin,
    rows: usize,
}

impl JoinRows {
    pub(crate) const NAME: &str = "joinrows";

    pub(crate) fn of(footprint: u64) -> Self {
        let words = (footprint / 4).min(ROWS_MAX * 2 * WORDS_PER_ROW as u64) as usize;
        let group = ROWS_PER_WORD * WORDS_PER_ROW + WORDS_PER_WORD;
        let (groups, rest) = (words.saturating_sub(1) / group, words.saturating_sub(1) % group);
        let rows = groups * ROWS_PER_WORD + rest.saturating_sub(WORDS_PER_WORD) / WORDS_PER_ROW;
        let rows = rows.clamp(1, ROWS_MAX as usize);
        Self {
            join: HashJoin::with_rows(rows),
            rows,
        }
    }

    fn bitmap_words(&self) -> usize {
        self.rows.div_ceil(ROWS_PER_WORD)
    }

    fn units(&self, gpu: &dyn Gpu) -> Units {
        Units {
            bitmap: gpu.address(BITMAP),
            tags: gpu.address(TAGS),
            words: self.bitmap_words() as u32,
            unit_shift: UNIT_SHIFT,
        }
    }

    fn lanes(&self, gpu: &dyn Gpu) -> Lanes {
        Lanes {
            count: self.join.probes() as u32,
            given: gpu.address(GIVEN),
            steps: gpu.address(STEPS),
            faults: gpu.address(FAULTS),
            seed: 1,
            tries: TRIES,
        }
    }

    /// Makes bitmap and tags those of an empty pool; words that were others are counted.
    fn clear(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let words = self.bitmap_words();
        for (buffer, count) in [(BITMAP, words), (TAGS, 32 * words)] {
            HashJoin::launch(gpu, &programs::JOINROWS_CLEAR, 20, &[buffer, FAULTS], &[count])?;
        }
        Ok(())
    }

    /// Goes through the chains: `writes` is 0 for sizes, 1 for rows.
    fn probe(&self, gpu: &mut dyn Gpu, writes: usize) -> Result<(), Stopped> {
        let buffers = [PROBES, KEYS, HEADS, FOLLOWING, SIZES, GIVEN, ROWS_OUT];
        let counts = [self.join.probes(), self.rows, writes];
        HashJoin::launch(gpu, &programs::JOINROWS_PROBE, 90, &buffers, &counts)
    }
}

impl Kernel for JoinRows {
    fn buffers(&self, buffers: &mut Buffers) {
        self.join.buffers(buffers);
        buffers.add("sizes", self.join.probes(), Role::Work);
        buffers.add("given", self.join.probes(), Role::Work);
        buffers.add("steps", self.join.probes(), Role::Work);
        buffers.add("bitmap", self.bitmap_words(), Role::Work);
        buffers.add("tags", 32 * self.bitmap_words(), Role::Work);
        // Pieces that could not be given back, and words of bitmap and tags that say of any that they were not.
        buffers.add("faults", 1, Role::Output);
        buffers.add("rows", self.bitmap_words() * (32 << UNIT_SHIFT) / 4, Role::Work);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        self.join.fill(noise, buffer, first, words);
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.clear(gpu)?;
        // What an earlier run left there does not count.
        gpu.write(FAULTS, 0, &[0])?;
        self.join.build(gpu)?;
        self.probe(gpu, 0)?;
        let (units, lanes, sizes) = (self.units(gpu), self.lanes(gpu), gpu.address(SIZES));
        gpu.launch(&units.take(sizes, &lanes).launch())?;
        self.probe(gpu, 1)?;
        let sum = [SIZES, GIVEN, ROWS_OUT, VALUES, MATCHES, SUMS];
        HashJoin::launch(gpu, &programs::JOINROWS_SUM, 60, &sum, &[self.join.probes()])?;
        gpu.launch(&units.give(&lanes).launch())?;
        self.clear(gpu)
    }

    fn reference_words(&self) -> usize {
        self.join.reference_words()
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        self.join.reference(noise, memory);
    }

    fn expected(&self, noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        match buffer {
            FAULTS => words.fill(0),
            _ => self.join.expected(noise, memory, buffer, first, words),
        }
    }
}
