//! Nearest neighbours of Rodinia: how far many places are from one, and which are the nearest of them.
//!
//! Rodinia looks for the nearest on the processor, with all distances copied there; here it is the GPU, neighbour by
//! neighbour: the least distance by an atomic minimum, then the first place that has it.

use crate::math::{fma, square_root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

const PLACES: usize = 0;
const DISTANCES: usize = 1;
const NEAREST: usize = 2;
const NEIGHBOURS: usize = 5;
/// A pair that is before all places, then those of the neighbours: distance, number of the place from 1.
const NEAREST_WORDS: usize = 2 * (NEIGHBOURS + 1);
/// The place of Rodinia's example.
const LATITUDE: f32 = 30.0;
const LONGITUDE: f32 = 90.0;
const PLACES_MAX: u64 = 1 << 28;
const THREADS: u32 = 256;
/// Distance and number of a neighbour that there is not.
const NONE: u32 = u32::MAX;

/// Places, each with latitude and longitude.
#[derive(Clone, Debug)]
pub(crate) struct Nn {
    places: usize,
}

impl Nn {
    pub(crate) const NAME: &str = "nn";

    pub(crate) fn of(footprint: u64) -> Self {
        let places = (footprint / 4).saturating_sub(NEAREST_WORDS as u64) / 3;
        Self {
            places: places.clamp(1, PLACES_MAX) as usize,
        }
    }

    /// A coordinate, of which there are two a place: those of storms on the northern hemisphere.
    fn coordinate(places: Noise, index: usize) -> f32 {
        let (least, range) = if index.is_multiple_of(2) {
            (7.0, 56.0)
        } else {
            (0.0, 358.0)
        };
        places.unit(index) * range + least
    }

    fn distance(places: Noise, place: usize) -> f32 {
        let latitude = LATITUDE - Self::coordinate(places, 2 * place);
        let longitude = LONGITUDE - Self::coordinate(places, 2 * place + 1);
        square_root(fma(latitude, latitude, longitude * longitude))
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
            blocks: [(self.places as u32).div_ceil(THREADS), 1],
            threads: [THREADS, 1],
            instructions,
            parameters,
        })
    }
}

impl Kernel for Nn {
    fn buffers(&self, buffers: &mut Buffers) {
        buffers.add("places", 2 * self.places, Role::Input);
        buffers.add("distances", self.places, Role::Output);
        buffers.add("nearest", NEAREST_WORDS, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = Self::coordinate(noise, index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let mut nearest = [NONE; NEAREST_WORDS];
        nearest[..2].fill(0);
        gpu.write(NEAREST, 0, &nearest)?;
        let parameters = Parameters::new()
            .long(gpu.address(PLACES))
            .long(gpu.address(DISTANCES))
            .word(self.places as u32)
            .float(LATITUDE)
            .float(LONGITUDE);
        self.launch(gpu, &programs::NN_DISTANCE, 35, &parameters)?;
        for neighbour in 0..NEIGHBOURS as u64 {
            let before = gpu.address(NEAREST) + neighbour * 8;
            let parameters = Parameters::new()
                .long(gpu.address(DISTANCES))
                .long(before)
                .long(before + 8)
                .word(self.places as u32);
            self.launch(gpu, &programs::NN_LEAST, 27, &parameters)?;
            self.launch(gpu, &programs::NN_WHICH, 19, &parameters)?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        NEAREST_WORDS
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let places = noise.of(PLACES);
        let (start, nearest) = memory.split_at_mut(2);
        start.fill(0);
        nearest.fill(NONE);
        let (pairs, _) = nearest.as_chunks_mut::<2>();
        for place in 0..self.places {
            let mut next = [Self::distance(places, place).to_bits(), place as u32 + 1];
            if next[0] >= pairs[NEIGHBOURS - 1][0] {
                continue;
            }
            for pair in &mut *pairs {
                if next < *pair {
                    core::mem::swap(pair, &mut next);
                }
            }
        }
    }

    fn expected(&self, noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        if buffer == NEAREST {
            words.copy_from_slice(&memory[first..first + words.len()]);
            return;
        }
        let places = noise.of(PLACES);
        for (word, place) in words.iter_mut().zip(first..) {
            *word = Self::distance(places, place).to_bits();
        }
    }
}
