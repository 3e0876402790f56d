//! SRAD v2 of Rodinia as its host code has it: the image is changed in place, and before each iteration the processor sums
//! all of it. Of its six arrays five are only for what the two launches tell each other.
//!
//! The launches are those of `srad2`, which sums a region and keeps its input. This one is for whoever studies how data
//! moves between processor and GPU (Pai, Govindarajan, Thazhuthaveetil, PACT'12, listings 1 and 2), and is not among
//! [`NAMES`](crate::NAMES): a run is a hundred iterations.

use super::srad2::{Grids, Srad2, Sums};
use crate::{Buffers, Checked, CpuAccess, Gpu, Kernel, Noise, Role, Stopped};

/// Rodinia's `J`, changed in place.
const IMAGE: usize = 0;
/// Rodinia's `E_C`, `E_N`, `E_S`, `E_W`, `E_E` by the names of listing 1.
const WORK: [usize; 5] = [1, 2, 3, 4, 5];
/// Words that the processor loads or stores at a time.
const PART_WORDS: usize = 64;

/// A square image and how often it is smoothed.
#[derive(Clone, Debug)]
pub struct Srad {
    grid: Srad2,
    iterations: u32,
    noise: Noise,
}

impl Srad {
    /// An image with so many cells a side, 4 at least, made from `noise`.
    pub fn new(side: usize, iterations: u32, noise: Noise) -> Self {
        Self {
            grid: Srad2::with_side(side),
            iterations,
            noise,
        }
    }

    fn cells(&self) -> usize {
        self.grid.side() * self.grid.side()
    }

    fn initial(&self, first: usize, words: &mut [u32]) {
        let noise = self.noise.of(IMAGE);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Srad2::cell(noise, index).to_bits();
        }
    }

    /// Parts of the image: first word and count.
    fn parts(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let cells = self.cells();
        let starts = (0..cells).step_by(PART_WORDS);
        starts.map(move |first| (first, PART_WORDS.min(cells - first)))
    }

    fn start(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let mut image = Checked::new(gpu, IMAGE, CpuAccess::Overwrite)?;
        let mut words = [0; PART_WORDS];
        for (first, count) in self.parts() {
            let words = &mut words[..count];
            self.initial(first, words);
            image.store(first, words)?;
        }
        Ok(())
    }

    fn sums(&self, gpu: &mut dyn Gpu) -> Result<Sums, Stopped> {
        let mut image = Checked::new(gpu, IMAGE, CpuAccess::Read)?;
        let mut sums = Sums::default();
        let mut words = [0; PART_WORDS];
        for (first, count) in self.parts() {
            let words = &mut words[..count];
            image.load(first, words)?;
            sums.add(words);
        }
        Ok(sums)
    }
}

impl Kernel for Srad {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("J", self.cells(), Role::Output);
        for name in ["E_c", "E_n", "E_s", "E_w", "E_e"] {
            buffers.add(name, self.cells(), Role::Work);
        }
    }

    /// There are no inputs: a run makes its image itself.
    fn fill(&self, _noise: Noise, _buffer: usize, _first: usize, _words: &mut [u32]) {}

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let grids = Grids {
            from: IMAGE,
            to: IMAGE,
            work: WORK,
        };
        self.start(gpu)?;
        for _ in 0..self.iterations {
            let sums = self.sums(gpu)?;
            gpu.copy_in(IMAGE)?;
            self.grid.diffuse(gpu, grids, sums.speckle())?;
            gpu.copy_out(IMAGE)?;
        }
        Ok(())
    }

    fn is_copied_by_hand(&self) -> bool {
        true
    }

    fn reference_words(&self) -> usize {
        // The image, the coefficients, and the old cells of two rows.
        2 * self.cells() + 2 * self.grid.side()
    }

    fn reference(&self, _noise: Noise, memory: &mut [u32]) {
        let (image, rest) = memory.split_at_mut(self.cells());
        let (coefficients, rows) = rest.split_at_mut(self.cells());
        self.initial(0, image);
        for _ in 0..self.iterations {
            let mut sums = Sums::default();
            sums.add(image);
            self.grid.coefficients(image, coefficients, sums.speckle());
            self.grid.update(image, coefficients, rows);
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], _buffer: usize, first: usize, words: &mut [u32]) {
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
