//! Hotspot of Rodinia: heat in a chip of square cells, one launch a step. Each cell takes part of its neighbours' heat,
//! of the power it consumes and of the cool around it.
//!
//! Constants are Rodinia's for cells of 1/1024 of 16 mm; a larger grid is a larger chip. The first step reads the
//! input and the others go to and fro between two grids, so a run does not change its input.

use crate::math::{fma, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const HEAT: usize = 0;
const POWER: usize = 1;
const SPARE: usize = 2;
const RESULT: usize = 3;
/// Even, so that the last step leaves its grid in `RESULT`.
const STEPS: usize = 4;
const BLOCK: [u32; 2] = [32, 8];
const SIDE_MAX: u64 = 1 << 15;

const CELL: f32 = 0.016 / 1024.0;
const THICKNESS: f32 = 0.0005;
const CONDUCTIVITY: f32 = 100.0;
const HEAT_CAPACITY: f32 = 1.75e6 * 0.5 * THICKNESS;
/// Precision by the steepest slope that the most power density makes.
const STEP: f32 = 0.001 / (3.0e6 / HEAT_CAPACITY);
const RATE: f32 = STEP / (HEAT_CAPACITY * CELL * CELL);
/// 1 / (cell / (2 · conductivity · thickness · cell)).
const X: f32 = 2.0 * CONDUCTIVITY * THICKNESS;
const Y: f32 = X;
const Z: f32 = CONDUCTIVITY * CELL * CELL / THICKNESS;
const AMBIENT: f32 = 80.0;

/// Four grids of `side` × `side` cells.
#[derive(Clone, Debug)]
pub(crate) struct Hotspot {
    side: usize,
}

impl Hotspot {
    pub(crate) const NAME: &str = "hotspot";

    pub(crate) fn of(footprint: u64) -> Self {
        let side = root(footprint / 16).clamp(1, SIDE_MAX) as usize;
        Self { side }
    }

    fn step(&self, gpu: &mut dyn Gpu, from: usize, to: usize) -> Result<(), Stopped> {
        let parameters = Parameters::new()
            .long(gpu.address(from))
            .long(gpu.address(POWER))
            .long(gpu.address(to))
            .word(self.side as u32)
            .float(RATE)
            .float(X)
            .float(Y)
            .float(Z)
            .float(AMBIENT);
        gpu.launch(&Launch {
            program: &programs::HOTSPOT,
            blocks: BLOCK.map(|threads| (self.side as u32).div_ceil(threads)),
            threads: BLOCK,
            instructions: 68,
            parameters: &parameters,
        })
    }
}

/// As the program computes it.
fn next(own: f32, [west, east, north, south]: [f32; 4], power: f32) -> f32 {
    let vertical = fma(own, -2.0, north + south);
    let horizontal = fma(own, -2.0, east + west);
    let sum = fma(horizontal, X, fma(vertical, Y, power));
    fma(fma(AMBIENT - own, Z, sum), RATE, own)
}

impl Kernel for Hotspot {
    fn buffers(&self, buffers: &mut Buffers) {
        let cells = self.side * self.side;
        buffers.add("heat", cells, Role::Input);
        buffers.add("power", cells, Role::Input);
        buffers.add("spare", cells, Role::Work);
        buffers.add("result", cells, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let (least, range) = if buffer == HEAT {
            (320.0, 20.0)
        } else {
            (0.0, 0.001)
        };
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = (noise.unit(index) * range + least).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        gpu.copy_in(HEAT)?;
        gpu.copy_in(POWER)?;
        self.step(gpu, HEAT, SPARE)?;
        for step in 1..STEPS {
            let (from, to) = if step % 2 == 1 {
                (SPARE, RESULT)
            } else {
                (RESULT, SPARE)
            };
            self.step(gpu, from, to)?;
        }
        gpu.copy_out(RESULT)
    }

    fn is_copied_by_hand(&self) -> bool {
        true
    }

    fn reference_words(&self) -> usize {
        // The grid, and the old cells of two rows.
        self.side * self.side + 2 * self.side
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let side = self.side;
        let (grid, rows) = memory.split_at_mut(side * side);
        let (mut above, mut here) = rows.split_at_mut(side);
        self.fill(noise, HEAT, 0, grid);
        let power_noise = noise.of(POWER);
        for _ in 0..STEPS {
            above.copy_from_slice(&grid[..side]);
            for y in 0..side {
                here.copy_from_slice(&grid[y * side..(y + 1) * side]);
                for x in 0..side {
                    let around = [
                        here[x.saturating_sub(1)],
                        here[(x + 1).min(side - 1)],
                        above[x],
                        // Below the last row is the row itself, of which some cells are new already.
                        if y + 1 < side {
                            grid[(y + 1) * side + x]
                        } else {
                            here[x]
                        },
                    ];
                    let power = power_noise.unit(y * side + x) * 0.001;
                    let heat = next(f32::from_bits(here[x]), around.map(f32::from_bits), power);
                    grid[y * side + x] = heat.to_bits();
                }
                core::mem::swap(&mut above, &mut here);
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
