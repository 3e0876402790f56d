//! FDTD-2D of PolyBench: an electric and a magnetic field in the plane, step by step, three launches a step.
//!
//! The first step reads the inputs and writes the outputs, the others change the outputs in place: each launch reads of
//! the field it changes only the cell it writes.

use crate::math::{fma, root};
use crate::{Buffers, Gpu, Kernel, Launch, Noise, Parameters, Role, Stopped, programs};

/// The fields as they are at first; [`FIELDS`] further on, as they are at last.
const EX: usize = 0;
const EY: usize = 1;
const HZ: usize = 2;
const FIELDS: usize = 3;
const STEPS: usize = 4;
const BLOCK: [u32; 2] = [32, 8];
const SIDE_MAX: u64 = 1 << 15;
/// PolyBench's factors: of the magnetic field in the electric, and the reverse. The first is in the programs, too.
const ELECTRIC: f32 = -0.5;
const MAGNETIC: f32 = -0.7;

/// Three fields of `side` × `side` cells, twice.
#[derive(Clone, Debug)]
pub(crate) struct Fdtd2d {
    side: usize,
}

impl Fdtd2d {
    pub(crate) const NAME: &str = "fdtd2d";

    pub(crate) fn of(footprint: u64) -> Self {
        let side = root(footprint / (4 * 2 * FIELDS as u64)).clamp(1, SIDE_MAX) as usize;
        Self { side }
    }

    /// A launch over all cells that reads the fields of `buffers` but the last, which it writes.
    fn launch(
        &self,
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        buffers: &[usize],
        factor: Option<f32>,
    ) -> Result<(), Stopped> {
        let mut parameters = Parameters::new();
        for buffer in buffers {
            parameters = parameters.long(gpu.address(*buffer));
        }
        parameters = parameters.word(self.side as u32);
        if let Some(factor) = factor {
            parameters = parameters.float(factor);
        }
        gpu.launch(&Launch {
            program,
            blocks: BLOCK.map(|threads| (self.side as u32).div_ceil(threads)),
            threads: BLOCK,
            instructions: 45,
            parameters: &parameters,
        })
    }
}

/// The field that drives the first row in a step: PolyBench's.
fn source(step: usize) -> f32 {
    step as f32
}

/// An electric field's cell from the magnetic field on its two sides.
fn electric(own: f32, here: f32, before: f32) -> f32 {
    fma(here - before, ELECTRIC, own)
}

/// A magnetic field's cell from the electric field around it.
fn magnetic(own: f32, [west, east, north, south]: [f32; 4]) -> f32 {
    fma((east - west) + south - north, MAGNETIC, own)
}

impl Kernel for Fdtd2d {
    fn buffers(&self, buffers: &mut Buffers) {
        let cells = self.side * self.side;
        for name in ["first ex", "first ey", "first hz"] {
            buffers.add(name, cells, Role::Input);
        }
        for name in ["ex", "ey", "hz"] {
            buffers.add(name, cells, Role::Output);
        }
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        let noise = noise.of(buffer);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = noise.unit(index).to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let [ex, ey, hz] = [EX, EY, HZ].map(|field| field + FIELDS);
        for step in 0..STEPS {
            let from = if step == 0 { 0 } else { FIELDS };
            let old = [EX, EY, HZ].map(|field| field + from);
            let driven = Some(source(step));
            self.launch(gpu, &programs::FDTD2D_EY, &[old[EY], old[HZ], ey], driven)?;
            self.launch(gpu, &programs::FDTD2D_EX, &[old[EX], old[HZ], ex], None)?;
            let all = [old[HZ], ex, ey, hz];
            self.launch(gpu, &programs::FDTD2D_HZ, &all, Some(MAGNETIC))?;
        }
        Ok(())
    }

    fn reference_words(&self) -> usize {
        FIELDS * self.side * self.side
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let side = self.side;
        for (field, words) in memory.chunks_exact_mut(side * side).enumerate() {
            self.fill(noise, field, 0, words);
        }
        let (ex, rest) = memory.split_at_mut(side * side);
        let (ey, hz) = rest.split_at_mut(side * side);
        let at = |field: &[u32], index: usize| f32::from_bits(field[index]);
        for step in 0..STEPS {
            ey[..side].fill(source(step).to_bits());
            for index in side..side * side {
                let new = electric(at(ey, index), at(hz, index), at(hz, index - side));
                ey[index] = new.to_bits();
            }
            for index in (0..side * side).filter(|index| index % side != 0) {
                let new = electric(at(ex, index), at(hz, index), at(hz, index - 1));
                ex[index] = new.to_bits();
            }
            for index in (0..side * side - side).filter(|index| index % side != side - 1) {
                let around = [
                    at(ex, index),
                    at(ex, index + 1),
                    at(ey, index),
                    at(ey, index + side),
                ];
                hz[index] = magnetic(at(hz, index), around).to_bits();
            }
        }
    }

    fn expected(&self, _noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        let first = (buffer - FIELDS) * self.side * self.side + first;
        words.copy_from_slice(&memory[first..first + words.len()]);
    }
}
