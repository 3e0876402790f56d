//! ATAX of PolyBench/GPU: Aᵀ·(A·x). Each thread of the first launch goes along a row of A, so that the lanes of a warp are
//! a row apart; those of the second go down its columns side by side.

use crate::math::{fma, fma_short, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const A: usize = 0;
const X: usize = 1;
const AX: usize = 2;
const Y: usize = 3;
/// Few, as a thread has many instructions: a block of the longest rows is just within a launch's.
const THREADS: u32 = 64;
const SIDE_MAX: u64 = 1 << 15;

/// A square matrix and three vectors.
#[derive(Clone, Debug)]
pub(crate) struct Atax {
    side: usize,
}

impl Atax {
    pub(crate) const NAME: &str = "atax";

    pub(crate) fn of(footprint: u64) -> Self {
        // side² + 3 side words.
        let words = (footprint / 4).min(1 << 40);
        let side = root(9 + 4 * words).saturating_sub(3) / 2;
        Self {
            side: side.clamp(1, SIDE_MAX) as usize,
        }
    }

    /// One product with `vector`; places of the matrix are `across` words apart from thread to thread, and `along`
    /// from term to term.
    fn multiply(
        &self,
        gpu: &mut dyn Gpu,
        [vector, out]: [usize; 2],
        [across, along]: [u32; 2],
    ) -> Result<(), Stopped> {
        let side = self.side as u32;
        let parameters = Parameters::new()
            .long(gpu.address(A))
            .long(gpu.address(vector))
            .long(gpu.address(out))
            .word(side)
            .word(across)
            .word(along);
        gpu.launch(&Launch {
            program: &programs::ATAX,
            blocks: [side.div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions: 24 + 10 * side,
            parameters: &parameters,
        })
    }
}

impl Kernel for Atax {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("a", self.side * self.side, Role::Input);
        buffers.add("x", self.side, Role::Input);
        buffers.add("ax", self.side, Role::Work);
        buffers.add("y", self.side, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = noise.short(index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let side = self.side as u32;
        self.multiply(gpu, [X, AX], [side, 1])?;
        self.multiply(gpu, [AX, Y], [1, side])
    }

    fn reference_words(&self) -> usize {
        2 * self.side
    }

    /// Row by row: an element of A·x is complete when its row's part of all results is added.
    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (y, x) = memory.split_at_mut(self.side);
        y.fill(0);
        self.fill(noise, X, 0, x);
        let a = noise.of(A);
        for row in 0..self.side {
            let place = row * self.side;
            let mut ax = 0.0;
            for (x, index) in x.iter().zip(place..) {
                ax = fma_short(a.short(index), f32::from_bits(*x), ax);
            }
            for (y, index) in y.iter_mut().zip(place..) {
                *y = fma(a.short(index), ax, f32::from_bits(*y)).to_bits();
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
