//! STREAM's triad (McCalpin), a = b + q·c, with one rounding as compilers contract it: bandwidth and nothing else.

use crate::math::fma;
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const THREADS: u32 = 256;
/// The factor q of STREAM.
const Q: f32 = 3.0;
const WORDS_MAX: u64 = 1 << 30;

/// The triad of three vectors.
#[derive(Clone, Debug)]
pub(crate) struct Triad {
    words: usize,
}

impl Triad {
    pub(crate) const NAME: &str = "triad";

    pub(crate) fn of(footprint: u64) -> Self {
        let words = (footprint / 12).clamp(1, WORDS_MAX) as usize;
        Self { words }
    }
}

impl Kernel for Triad {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("a", self.words, Role::Output);
        buffers.add("b", self.words, Role::Input);
        buffers.add("c", self.words, Role::Input);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = noise.unit(index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let parameters = Parameters::new()
            .long(gpu.address(A))
            .long(gpu.address(B))
            .long(gpu.address(C))
            .float(Q)
            .word(self.words as u32);
        gpu.launch(&Launch {
            program: &programs::TRIAD,
            blocks: [(self.words as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions: 22,
            parameters: &parameters,
        })
    }

    fn reference_words(&self) -> usize {
        0
    }

    fn reference(&self, _noise: Noise, _memory: &mut [u32]) {}

    fn expected(&self, noise: Noise, _memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        let (b, c) = (noise.of(B), noise.of(C));
        for (word, index) in words.iter_mut().zip(first..) {
            *word = fma(c.unit(index), Q, b.unit(index)).to_bits();
        }
    }
}
