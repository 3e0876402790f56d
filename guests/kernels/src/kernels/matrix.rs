//! A·B + C·D in three launches with both products kept: between them the working set changes from one half of the
//! matrices to the other.
//!
//! A and C have `side` rows and `inner` columns, B and D the reverse; products are square. `inner` does not grow with
//! the footprint beyond [`INNER_MAX`], else the time would by its power of 3/2.

use crate::math::{fma_short, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;
const FIRST: usize = 4;
const SECOND: usize = 5;
const SUM: usize = 6;
const INNER_MAX: u64 = 32;
const SIDE_MAX: u64 = 1 << 15;
const TILE: u32 = 16;
const ADD_THREADS: u32 = 256;
/// Elements of a row that the reference computes together.
const STRIP: usize = 256;

/// The seven matrices and their side.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    side: usize,
    inner: usize,
}

impl Matrix {
    pub(crate) const NAME: &str = "matrix";

    pub(crate) fn of(footprint: u64) -> Self {
        // 3 side² + 4 side · inner words: solved for the largest inner first, then for a square.
        let words = footprint / 4;
        let half = 2 * INNER_MAX;
        let side = (root(half * half + 3 * words.min(1 << 40)) - half) / 3;
        let side = if side < INNER_MAX { root(words / 7) } else { side };
        let side = side.clamp(1, SIDE_MAX);
        Self {
            side: side as usize,
            inner: side.min(INNER_MAX) as usize,
        }
    }

    fn factors(&self) -> usize {
        self.side * self.inner
    }

    fn multiply(&self, gpu: &mut dyn Gpu, left: usize, right: usize, product: usize) -> Result<(), Stopped> {
        let (side, inner) = (self.side as u32, self.inner as u32);
        let parameters = Parameters::new()
            .long(gpu.address(left))
            .long(gpu.address(right))
            .long(gpu.address(product))
            .word(side)
            .word(inner)
            .word(side);
        gpu.launch(&Launch {
            program: &programs::MATRIX_MULTIPLY,
            blocks: [side.div_ceil(TILE); 2],
            threads: [TILE; 2],
            instructions: 40 + inner.div_ceil(TILE) * 60,
            parameters: &parameters,
        })
    }

    /// Elements of `row` from `column` on of the product of the factors at `left` and `right` of `memory`, as chains of
    /// multiply-adds over the inner index.
    fn product(
        &self,
        memory: &[u32],
        [left, right]: [usize; 2],
        row: usize,
        column: usize,
        sums: &mut [f32],
    ) {
        sums.fill(0.0);
        let left = &memory[left * self.factors() + row * self.inner..][..self.inner];
        for (inner, factor) in left.iter().enumerate() {
            let factor = f32::from_bits(*factor);
            let right = &memory[right * self.factors() + inner * self.side + column..][..sums.len()];
            for (sum, other) in sums.iter_mut().zip(right) {
                *sum = fma_short(factor, f32::from_bits(*other), *sum);
            }
        }
    }
}

impl Kernel for Matrix {
    fn buffers(&self, buffers: &mut Buffers) {
        for name in ["a", "b", "c", "d"] {
            buffers.add(name, self.factors(), Role::Input);
        }
        let elements = self.side * self.side;
        buffers.add("ab", elements, Role::Work);
        buffers.add("cd", elements, Role::Work);
        buffers.add("sum", elements, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = noise.short(index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        self.multiply(gpu, A, B, FIRST)?;
        self.multiply(gpu, C, D, SECOND)?;
        let elements = (self.side * self.side) as u32;
        let parameters = Parameters::new()
            .long(gpu.address(FIRST))
            .long(gpu.address(SECOND))
            .long(gpu.address(SUM))
            .word(elements);
        gpu.launch(&Launch {
            program: &programs::MATRIX_ADD,
            blocks: [elements.div_ceil(ADD_THREADS), 1],
            threads: [ADD_THREADS, 1],
            instructions: 22,
            parameters: &parameters,
        })
    }

    fn reference_words(&self) -> usize {
        4 * self.factors()
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        for (number, factors) in memory.chunks_exact_mut(self.factors()).enumerate() {
            self.fill(noise, number, 0, factors);
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        let mut done = 0;
        while done < words.len() {
            let (row, column) = ((first + done) / self.side, (first + done) % self.side);
            let count = (words.len() - done).min(self.side - column).min(STRIP);
            let (mut ab, mut cd) = ([0.0; STRIP], [0.0; STRIP]);
            self.product(memory, [A, B], row, column, &mut ab[..count]);
            self.product(memory, [C, D], row, column, &mut cd[..count]);
            for (word, (ab, cd)) in words[done..done + count].iter_mut().zip(ab.iter().zip(&cd)) {
                *word = (ab + cd).to_bits();
            }
            done += count;
        }
    }
}
