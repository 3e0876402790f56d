//! SRAD v2 of Rodinia: speckle is taken out of an ultrasound image by diffusion that stops at edges, in two launches an
//! iteration. How strong it is follows from the mean and variance of a region, which the host reads and sums.
//!
//! The image is positive, as if it were Rodinia's exponential of numbers from 0 to 1. Its five quotients a cell are
//! those of the macro `divide`.

use crate::math::{fma, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const IMAGE: usize = 0;
const RESULT: usize = 1;
const COEFFICIENT: usize = 2;
const NORTH: usize = 3;
const SOUTH: usize = 4;
const WEST: usize = 5;
const EAST: usize = 6;
const GRIDS: u64 = 7;
/// Iterations in Rodinia's examples.
const ITERATIONS: usize = 2;
/// Rodinia's lambda, 0.5, by 4.
const STEP: f32 = 0.125;
const BLOCK: [u32; 2] = [32, 8];
const SIDE_MIN: u64 = 4;
const SIDE_MAX: u64 = 1 << 15;
/// Side of the region, which is in the corner, at most.
const REGION: usize = 16;

/// Seven grids of `side` × `side` cells.
#[derive(Clone, Debug)]
pub(crate) struct Srad2 {
    side: usize,
}

/// The buffers of an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grids {
    /// The image before it, and after it: they may be one.
    pub(super) from: usize,
    pub(super) to: usize,
    /// Coefficients, and differences to the north, south, west and east.
    pub(super) work: [usize; 5],
}

/// Figures of the region for the first launch of an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speckle {
    /// Variance by squared mean.
    ratio: f32,
    scale: f32,
}

/// Sums over the region, cell by cell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    values: f32,
    squares: f32,
    count: u32,
}

impl Sums {
    pub(super) fn add(&mut self, row: &[u32]) {
        for word in row {
            let value = f32::from_bits(*word);
            self.values += value;
            self.squares += value * value;
            self.count += 1;
        }
    }

    pub(super) fn speckle(self) -> Speckle {
        let mean = self.values / self.count as f32;
        let variance = self.squares / self.count as f32 - mean * mean;
        // That of a region of one colour is 0, by which nothing can be divided.
        let ratio = (variance / (mean * mean)).max(1.0 / 1024.0);
        Speckle {
            ratio,
            scale: ratio * (1.0 + ratio),
        }
    }
}

/// A cell's differences to its neighbours in the north, south, west and east.
fn differences(center: f32, around: [f32; 4]) -> [f32; 4] {
    around.map(|value| value - center)
}

/// As the first program computes it.
fn coefficient(center: f32, [north, south, west, east]: [f32; 4], speckle: Speckle) -> f32 {
    let squares = north * north;
    let squares = fma(east, east, fma(west, west, fma(south, south, squares)));
    let gradient = squares / (center * center);
    let laplacian = (north + south + west + east) / center;
    let above = fma(gradient, 0.5, laplacian * laplacian * -0.0625);
    let below = fma(laplacian, 0.25, 1.0);
    let ratio = above / (below * below);
    let difference = (ratio - speckle.ratio) / speckle.scale;
    (1.0 / (difference + 1.0)).clamp(0.0, 1.0)
}

/// As the second program computes it: coefficients are those of the cell, of the one below and of the one to the right.
fn updated(center: f32, [north, south, west, east]: [f32; 4], [own, below, right]: [f32; 3]) -> f32 {
    let flow = fma(own, west, fma(below, south, own * north));
    fma(fma(right, east, flow), STEP, center)
}

impl Srad2 {
    pub(crate) const NAME: &str = "srad2";

    pub(crate) fn of(footprint: u64) -> Self {
        Self::with_side(root(footprint / (4 * GRIDS)) as usize)
    }

    /// One with a side as near to the wanted as its shape allows.
    pub(super) fn with_side(side: usize) -> Self {
        Self {
            side: side.clamp(SIDE_MIN as usize, SIDE_MAX as usize),
        }
    }

    pub(super) fn side(&self) -> usize {
        self.side
    }

    fn region(&self) -> usize {
        self.side.min(REGION)
    }

    pub(super) fn cell(image: Noise, index: usize) -> f32 {
        image.unit(index) * 1.75 + 1.0
    }

    fn launch(
        &self,
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        parameters: &Parameters,
    ) -> Result<(), Stopped> {
        gpu.launch(&Launch {
            program,
            blocks: BLOCK.map(|threads| (self.side as u32).div_ceil(threads)),
            threads: BLOCK,
            instructions,
            parameters,
        })
    }

    fn iterate(&self, gpu: &mut dyn Gpu, from: usize) -> Result<(), Stopped> {
        let mut sums = Sums::default();
        let mut row = [0; REGION];
        let row = &mut row[..self.region()];
        for y in 0..self.region() {
            gpu.read(from, y * self.side, row)?;
            sums.add(row);
        }
        let grids = Grids {
            from,
            to: RESULT,
            work: [COEFFICIENT, NORTH, SOUTH, WEST, EAST],
        };
        self.diffuse(gpu, grids, sums.speckle())
    }

    /// The two launches of an iteration.
    pub(super) fn diffuse(&self, gpu: &mut dyn Gpu, grids: Grids, speckle: Speckle) -> Result<(), Stopped> {
        let Grids { from, to, work } = grids;
        let mut parameters = Parameters::new().long(gpu.address(from));
        for buffer in work {
            parameters = parameters.long(gpu.address(buffer));
        }
        let parameters = parameters
            .word(self.side as u32)
            .float(speckle.ratio)
            .float(speckle.scale);
        self.launch(gpu, &programs::SRAD2_COEFFICIENT, 165, &parameters)?;
        let mut parameters = Parameters::new().long(gpu.address(from)).long(gpu.address(to));
        for buffer in work {
            parameters = parameters.long(gpu.address(buffer));
        }
        let parameters = parameters.word(self.side as u32).float(STEP);
        self.launch(gpu, &programs::SRAD2_UPDATE, 70, &parameters)
    }

    /// The neighbours of the cell at (`x`, `y`), given the rows above and below.
    fn around(&self, x: usize, [above, here, below]: [&[u32]; 3]) -> [f32; 4] {
        let around = [
            above[x],
            below[x],
            here[x.saturating_sub(1)],
            here[(x + 1).min(self.side - 1)],
        ];
        around.map(f32::from_bits)
    }

    pub(super) fn coefficients(&self, grid: &[u32], coefficients: &mut [u32], speckle: Speckle) {
        let row = |y: usize| &grid[y * self.side..][..self.side];
        for (y, line) in coefficients.chunks_exact_mut(self.side).enumerate() {
            let rows = [y.saturating_sub(1), y, (y + 1).min(self.side - 1)].map(row);
            for (x, word) in line.iter_mut().enumerate() {
                let center = f32::from_bits(rows[1][x]);
                let differences = differences(center, self.around(x, rows));
                *word = coefficient(center, differences, speckle).to_bits();
            }
        }
    }

    /// In place: `rows` holds two rows as they were before.
    pub(super) fn update(&self, grid: &mut [u32], coefficients: &[u32], rows: &mut [u32]) {
        let side = self.side;
        let (mut above, mut here) = rows.split_at_mut(side);
        let coefficient = |x: usize, y: usize| f32::from_bits(coefficients[y * side + x]);
        above.copy_from_slice(&grid[..side]);
        for y in 0..side {
            let (row, rest) = grid[y * side..].split_at_mut(side);
            here.copy_from_slice(row);
            let below = if rest.is_empty() { &*here } else { &rest[..side] };
            for (x, word) in row.iter_mut().enumerate() {
                let center = f32::from_bits(here[x]);
                let differences = differences(center, self.around(x, [&*above, &*here, below]));
                let coefficients = [
                    coefficient(x, y),
                    coefficient(x, (y + 1).min(side - 1)),
                    coefficient((x + 1).min(side - 1), y),
                ];
                *word = updated(center, differences, coefficients).to_bits();
            }
            core::mem::swap(&mut above, &mut here);
        }
    }
}

impl Kernel for Srad2 {
    fn buffers(&self, buffers: &mut Buffers) {
        let cells = self.side * self.side;
        buffers.add("image", cells, Role::Input);
        buffers.add("result", cells, Role::Output);
        for name in ["coefficient", "north", "south", "west", "east"] {
            buffers.add(name, cells, Role::Work);
        }
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Self::cell(noise, index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.iterate(gpu, IMAGE)?;
        for _ in 1..ITERATIONS {
            self.iterate(gpu, RESULT)?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        // The grid, the coefficients, and the old cells of two rows.
        2 * self.side * self.side + 2 * self.side
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let cells = self.side * self.side;
        let (grid, rest) = memory.split_at_mut(cells);
        let (coefficients, rows) = rest.split_at_mut(cells);
        self.fill(noise, IMAGE, 0, grid);
        for _ in 0..ITERATIONS {
            let mut sums = Sums::default();
            for row in grid.chunks_exact(self.side).take(self.region()) {
                sums.add(&row[..self.region()]);
            }
            self.coefficients(grid, coefficients, sums.speckle());
            self.update(grid, coefficients, rows);
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
