//! 2DCONV of PolyBench/GPU: a 3 × 3 convolution of a square picture. Its border, which PolyBench leaves alone, is zero.

use crate::math::{fma, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const IN: usize = 0;
const OUT: usize = 1;
const BLOCK: [u32; 2] = [32, 8];
const SIDE_MAX: u64 = 1 << 15;
/// The factors of PolyBench, row by row.
const FACTORS: [[f32; 3]; 3] = [[0.2, -0.3, 0.4], [0.5, 0.6, 0.7], [-0.8, -0.9, 0.1]];

/// The convolution of one picture into another.
#[derive(Clone, Debug)]
pub(crate) struct Conv2d {
    side: usize,
}

impl Conv2d {
    pub(crate) const NAME: &str = "2dconv";

    pub(crate) fn of(footprint: u64) -> Self {
        let side = root(footprint / 8).clamp(3, SIDE_MAX) as usize;
        Self { side }
    }

    fn pixel(&self, input: Noise, x: usize, y: usize) -> f32 {
        let last = self.side - 1;
        if x == 0 || y == 0 || x == last || y == last {
            return 0.0;
        }
        let mut sum = 0.0;
        for (row, factors) in FACTORS.iter().enumerate() {
            for (column, factor) in factors.iter().enumerate() {
                sum = fma(
                    input.unit((y + row - 1) * self.side + x + column - 1),
                    *factor,
                    sum,
                );
            }
        }
        sum
    }
}

impl Kernel for Conv2d {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("in", self.side * self.side, Role::Input);
        buffers.add("out", self.side * self.side, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = noise.unit(index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let mut parameters = Parameters::new()
            .long(gpu.address(IN))
            .long(gpu.address(OUT))
            .word(self.side as u32);
        for factor in FACTORS.as_flattened() {
            parameters = parameters.float(*factor);
        }
        gpu.launch(&Launch {
            program: &programs::CONV2D,
            blocks: BLOCK.map(|threads| (self.side as u32).div_ceil(threads)),
            threads: BLOCK,
            instructions: 58,
            parameters: &parameters,
        })
    }

    fn reference_words(&self) -> usize {
        0
    }

    fn reference(&self, _noise: Noise, _memory: &mut [u32]) {}

    fn expected(&self, noise: Noise, _memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        let input = noise.of(IN);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = self.pixel(input, index % self.side, index / self.side).to_bits();
        }
    }
}
