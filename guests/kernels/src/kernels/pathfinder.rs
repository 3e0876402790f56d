//! Pathfinder of Rodinia: the cheapest way down a wall to each place of its last row, where a step goes straight down or
//! one to either side. A launch goes down several rows in shared memory, so its blocks overlap.

use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const WALL: usize = 0;
const SPARE: usize = 1;
const RESULT: usize = 2;
/// Even, so that the last launch leaves its costs in `RESULT`.
const LAUNCHES: usize = 4;
/// Rows of a launch: `STEPS` of the program.
const STEPS: usize = 16;
const ROWS: usize = 1 + LAUNCHES * STEPS;
const THREADS: u32 = 256;
/// Columns that a block writes: `WIDTH` of the program.
const WIDTH: u32 = THREADS - 2 * STEPS as u32;
const COLUMNS_MAX: u64 = 1 << 25;
/// Rodinia's weights are below it.
const WEIGHT_END: u32 = 10;

/// A wall of [`ROWS`] rows and two lines of costs.
#[derive(Clone, Debug)]
pub(crate) struct Pathfinder {
    columns: usize,
}

impl Pathfinder {
    pub(crate) const NAME: &str = "pathfinder";

    pub(crate) fn of(footprint: u64) -> Self {
        let columns = footprint / 4 / (ROWS as u64 + 2);
        Self {
            columns: columns.clamp(1, COLUMNS_MAX) as usize,
        }
    }

    fn weight(noise: Noise, index: usize) -> u32 {
        noise.of(WALL).below(index, WEIGHT_END)
    }

    /// Goes on from the costs at `from` to those of [`STEPS`] rows below, of which `row` is the first.
    fn descend(&self, gpu: &mut dyn Gpu, row: usize, from: usize, to: usize) -> Result<(), Stopped> {
        let columns = self.columns as u32;
        let parameters = Parameters::new()
            .long(gpu.address(WALL) + (row * self.columns) as u64 * 4)
            .long(gpu.address(from))
            .long(gpu.address(to))
            .word(columns);
        gpu.launch(&Launch {
            program: &programs::PATHFINDER,
            blocks: [columns.div_ceil(WIDTH), 1],
            threads: [THREADS, 1],
            instructions: 40 + 17 * STEPS as u32,
            parameters: &parameters,
        })
    }
}

impl Kernel for Pathfinder {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("wall", ROWS * self.columns, Role::Input);
        buffers.add("spare", self.columns, Role::Work);
        buffers.add("result", self.columns, Role::Output);
    }

    fn fill(&self, noise: Noise, _buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Self::weight(noise, index);
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        // The wall's first row is what it costs to begin.
        let mut from = WALL;
        for launch in 0..LAUNCHES {
            let to = if launch % 2 == 0 { SPARE } else { RESULT };
            self.descend(gpu, 1 + launch * STEPS, from, to)?;
            from = to;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        self.columns
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        self.fill(noise, WALL, 0, memory);
        for row in 1..ROWS {
            // Cost above to the west, which this row's took the place of.
            let mut west = memory[0];
            for x in 0..self.columns {
                let above = memory[x];
                let east = memory[(x + 1).min(self.columns - 1)];
                memory[x] = west.min(above).min(east) + Self::weight(noise, row * self.columns + x);
                west = above;
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
