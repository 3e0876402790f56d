//! LUD of Rodinia: matrices become products of a lower and an upper triangular one, tile by tile without pivoting. A step
//! is the tile on the diagonal, then the tiles right of it and below it, then those in the rest.
//!
//! Rodinia does one large matrix, whose time grows faster than its footprint; here are many of at most [`SIDE_MAX`].
//! Each term is subtracted by itself, in ascending order of the inner index, so that results are those of the algorithm
//! without tiles; Rodinia subtracts sums of 16. The first step reads the input, so a run does not change it.

use crate::math::{fma, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const IN: usize = 0;
const OUT: usize = 1;
const TILE: usize = 16;
const SIDE_MAX: u64 = 128;
/// Words of all matrices together.
const WORDS_MAX: u64 = 1 << 30;

/// `count` matrices of `side` × `side`, a multiple of the tile's, each word twice.
#[derive(Clone, Debug)]
pub(crate) struct Lud {
    side: usize,
    count: usize,
}

/// So that (`x` · `divisor(n)`) >> 16 = `x` / `n` for the few tiles there are.
fn divisor(n: u32) -> u32 {
    0x1_0000 / n + 1
}

impl Lud {
    pub(crate) const NAME: &str = "lud";

    pub(crate) fn of(footprint: u64) -> Self {
        let words = (footprint / 8).min(WORDS_MAX);
        let tile = TILE as u64;
        let side = (root(words) / tile * tile).clamp(tile, SIDE_MAX);
        Self {
            side: side as usize,
            count: (words / (side * side)).max(1) as usize,
        }
    }

    fn words(&self) -> usize {
        self.count * self.side * self.side
    }

    /// Its diagonal outweighs the rest of a row: pivots stay positive and far from 0.
    fn element(&self, noise: Noise, index: usize) -> f32 {
        let (row, column) = (index / self.side % self.side, index % self.side);
        let weight = if row == column { 2 * self.side } else { 0 };
        noise.short(index) + weight as f32
    }

    fn step(&self, gpu: &mut dyn Gpu, step: usize) -> Result<(), Stopped> {
        let from = if step == 0 { IN } else { OUT };
        let parameters = Parameters::new()
            .long(gpu.address(from))
            .long(gpu.address(OUT))
            .word(self.side as u32)
            .word((step * TILE * (self.side + 1)) as u32);
        let count = self.count as u32;
        gpu.launch(&Launch {
            program: &programs::LUD_DIAGONAL,
            blocks: [1, count],
            threads: [TILE as u32, 1],
            instructions: 1650,
            parameters: &parameters,
        })?;
        let rest = (self.side / TILE - 1 - step) as u32;
        if rest == 0 {
            return Ok(());
        }
        gpu.launch(&Launch {
            program: &programs::LUD_PERIMETER,
            blocks: [rest, count],
            threads: [2 * TILE as u32, 1],
            instructions: 1750,
            parameters: &parameters,
        })?;
        gpu.launch(&Launch {
            program: &programs::LUD_INTERNAL,
            blocks: [rest * rest, count],
            threads: [TILE as u32; 2],
            instructions: 120,
            parameters: &parameters.word(rest).word(divisor(rest)),
        })
    }

    fn factorise(&self, matrix: &mut [u32]) {
        let side = self.side;
        for pivot in 0..side {
            let (done, below) = matrix.split_at_mut((pivot + 1) * side);
            let row = &done[pivot * side + pivot..];
            for other in below.chunks_exact_mut(side) {
                let other = &mut other[pivot..];
                let factor = f32::from_bits(other[0]) / f32::from_bits(row[0]);
                other[0] = factor.to_bits();
                for (value, above) in other.iter_mut().zip(row).skip(1) {
                    *value = fma(-factor, f32::from_bits(*above), f32::from_bits(*value)).to_bits();
                }
            }
        }
    }
}

impl Kernel for Lud {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("in", self.words(), Role::Input);
        buffers.add("out", self.words(), Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = self.element(noise, index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        for step in 0..self.side / TILE {
            self.step(gpu, step)?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        self.words()
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        self.fill(noise, IN, 0, memory);
        for matrix in memory.chunks_exact_mut(self.side * self.side) {
            self.factorise(matrix);
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn tiles_are_divided_into_rows_without_a_division() {
        for rest in 1..=SIDE_MAX as u32 / TILE as u32 {
            let quotients = (0..rest * rest).map(|x| (x * divisor(rest)) >> 16);
            assert!(quotients.eq((0..rest * rest).map(|x| x / rest)), "{rest}");
        }
    }

    #[test]
    fn factors_multiply_to_the_matrix() {
        let lud = Lud { side: 32, count: 2 };
        let noise = Noise::new(7);
        let mut factors = vec![0; lud.reference_words()];
        lud.reference(noise, &mut factors);
        let matrix = &factors[32 * 32..];
        let value = |row: usize, column: usize| f64::from(f32::from_bits(matrix[row * 32 + column]));
        for (row, column) in (0..32).flat_map(|row| (0..32).map(move |column| (row, column))) {
            let terms = (0..=row.min(column)).map(|inner| {
                let lower = if inner == row { 1.0 } else { value(row, inner) };
                lower * value(inner, column)
            });
            let want = f64::from(lud.element(noise.of(IN), 32 * 32 + row * 32 + column));
            assert!((terms.sum::<f64>() - want).abs() < 1e-4, "{row}, {column}");
        }
    }
}
