//! Back-propagation of Rodinia: one step of training of a network of many inputs, 16 hidden units and one output.
//!
//! Sums over the inputs are trees of 16, whose results Rodinia adds up on the processor, as it computes the few units
//! behind; here all of that is the GPU's. Weights are positive and shrink with the number of inputs, so that no unit is
//! saturated and nothing cancels.
//!
//! Only `ex2` is not exact to the last bit on hardware: results that follow from it may differ by [`ULPS`].

use crate::math::{exp2, fma};
use crate::{Buffers, Gpu, Kernel, Launch, Match, Noise, Parameters, Role, Stopped, programs};

const INPUTS: usize = 0;
const WEIGHTS: usize = 1;
const PREVIOUS: usize = 2;
const HIDDEN_WEIGHTS: usize = 3;
const PARTIAL: usize = 4;
const SPARE: usize = 5;
const UNITS: usize = 6;
const HIDDEN_UPDATED: usize = 7;
const CHANGES: usize = 8;
const UPDATED: usize = 9;
/// Units of the hidden layer; blocks have as many threads in both directions.
const HIDDEN: usize = 16;
/// Rows that a block of the sum adds up.
const GROUP: usize = 256;
/// Words of a hidden unit's weights, the bias' included.
const HIDDEN_WEIGHT_WORDS: usize = HIDDEN + 1;
/// Activations and errors of the hidden units, the output and its error.
const UNIT_WORDS: usize = 2 * HIDDEN + 2;
/// Rodinia's learning rate.
const RATE: f32 = 0.3;
const MOMENTUM: f32 = 0.3;
/// The number of a weight, of which a row has 16, fits 32 bits.
const ROWS_MAX: u64 = 1 << 26;
/// assumption: `ex2` is right to a relative error of 2^-22, which is 4 units of the last place. An activation h, 0.5 to
/// 0.75, takes (1 - h) of that error, the output the same again; (1 - o)² of an output up to 0.75 has 6 times its error,
/// and h (1 - h) at most 3 times that of h. With the roundings in between, it stays below this.
const ULPS: u32 = 64;

/// A network with `rows` inputs, of which the first is the bias'.
#[derive(Clone, Debug)]
pub(crate) struct Backprop {
    rows: usize,
}

/// Rows with a sum of 16 rows each, or of `group`.
fn groups(rows: usize, group: usize) -> usize {
    rows.div_ceil(group)
}

/// The sum as the programs' trees make it.
fn tree(mut values: [f32; HIDDEN]) -> f32 {
    let mut distance = 1;
    while distance < HIDDEN {
        for index in (0..HIDDEN).step_by(2 * distance) {
            values[index] += values[index + distance];
        }
        distance *= 2;
    }
    values[0]
}

fn sigmoid(x: f32, exp2: fn(f32) -> f32) -> f32 {
    1.0 / (exp2(x * -core::f32::consts::LOG2_E) + 1.0)
}

/// Results of the output's program from the sums of the hidden units.
struct Head {
    units: [f32; UNIT_WORDS],
    weights: [f32; HIDDEN_WEIGHT_WORDS],
}

impl Head {
    fn new(sums: [f32; HIDDEN], weights: [f32; HIDDEN_WEIGHT_WORDS], exp2: fn(f32) -> f32) -> Self {
        let hidden = sums.map(|sum| sigmoid(sum, exp2));
        let mut sum = weights[0];
        for (activation, weight) in hidden.iter().zip(&weights[1..]) {
            sum = fma(*activation, *weight, sum);
        }
        let output = sigmoid(sum, exp2);
        let error = output * (1.0 - output) * (1.0 - output);
        let step = error * RATE;
        let mut head = Self {
            units: [0.0; UNIT_WORDS],
            weights,
        };
        head.weights[0] += step;
        for (unit, activation) in hidden.into_iter().enumerate() {
            let weight = weights[unit + 1];
            head.units[unit] = activation;
            head.units[HIDDEN + unit] = activation * (1.0 - activation) * (error * weight);
            head.weights[unit + 1] = fma(step, activation, weight);
        }
        head.units[2 * HIDDEN..].copy_from_slice(&[output, error]);
        head
    }
}

impl Backprop {
    pub(crate) const NAME: &str = "backprop";

    pub(crate) fn of(footprint: u64) -> Self {
        // A row is its input, 16 weights four times, and a 16th of 16 + 1 partial sums; 128 words are the other units.
        let words = (footprint / 4).min(1 << 40).saturating_sub(128);
        let rows = words * 16 / (16 + 4 * 256 + 17);
        Self {
            rows: rows.clamp(2, ROWS_MAX) as usize,
        }
    }

    fn input(noise: Noise, row: usize) -> f32 {
        if row == 0 { 1.0 } else { noise.of(INPUTS).unit(row) }
    }

    fn weight(&self, noise: Noise, buffer: usize, index: usize) -> f32 {
        let count = if buffer == HIDDEN_WEIGHTS {
            HIDDEN
        } else {
            self.rows
        };
        noise.of(buffer).unit(index) * (1.0 / count as f32)
    }

    /// Adds partial sums up until there is one of each unit, and says in which buffer.
    fn sum(&self, gpu: &mut dyn Gpu) -> Result<usize, Stopped> {
        let mut rows = groups(self.rows, HIDDEN);
        let (mut from, mut to) = (PARTIAL, SPARE);
        while rows > 1 {
            let parameters = Parameters::new()
                .long(gpu.address(from))
                .long(gpu.address(to))
                .word(rows as u32);
            rows = groups(rows, GROUP);
            gpu.launch(&Launch {
                program: &programs::BACKPROP_SUM,
                blocks: [1, rows as u32],
                threads: [HIDDEN as u32; 2],
                instructions: 300,
                parameters: &parameters,
            })?;
            core::mem::swap(&mut from, &mut to);
        }
        Ok(from)
    }

    /// A launch with a thread for each weight of an input.
    fn launch(
        &self,
        gpu: &mut dyn Gpu,
        program: &'static programs::Program,
        instructions: u32,
        parameters: &Parameters,
    ) -> Result<(), Stopped> {
        gpu.launch(&Launch {
            program,
            blocks: [1, groups(self.rows, HIDDEN) as u32],
            threads: [HIDDEN as u32; 2],
            instructions,
            parameters,
        })
    }

    /// The sum of a block of the first launch for each hidden unit.
    fn partial(&self, noise: Noise, block: usize) -> [f32; HIDDEN] {
        core::array::from_fn(|unit| {
            tree(core::array::from_fn(|index| {
                let row = block * HIDDEN + index;
                if row < self.rows {
                    self.weight(noise, WEIGHTS, row * HIDDEN + unit) * Self::input(noise, row)
                } else {
                    0.0
                }
            }))
        })
    }

    fn change(&self, noise: Noise, error: f32, index: usize) -> f32 {
        let previous = self.weight(noise, PREVIOUS, index) * MOMENTUM;
        fma(error * RATE, Self::input(noise, index / HIDDEN), previous)
    }
}

/// Adds up rows of sums in place as the launches do, until there is one.
fn add_up(sums: &mut [u32]) {
    let mut rows = sums.len() / HIDDEN;
    while rows > 1 {
        for group in 0..groups(rows, GROUP) {
            let totals: [f32; HIDDEN] = core::array::from_fn(|unit| {
                tree(core::array::from_fn(|thread| {
                    let first = group * GROUP + thread;
                    let end = rows.min((group + 1) * GROUP);
                    (first..end)
                        .step_by(HIDDEN)
                        .fold(0.0, |sum, row| sum + f32::from_bits(sums[row * HIDDEN + unit]))
                }))
            });
            sums[group * HIDDEN..][..HIDDEN].copy_from_slice(&totals.map(f32::to_bits));
        }
        rows = groups(rows, GROUP);
    }
}

impl Kernel for Backprop {
    fn buffers(&self, buffers: &mut Buffers) {
        let blocks = groups(self.rows, HIDDEN);
        buffers.add("inputs", self.rows, Role::Input);
        buffers.add("weights", self.rows * HIDDEN, Role::Input);
        buffers.add("previous", self.rows * HIDDEN, Role::Input);
        buffers.add("hidden weights", HIDDEN_WEIGHT_WORDS, Role::Input);
        buffers.add("partial", blocks * HIDDEN, Role::Work);
        buffers.add("spare", groups(blocks, GROUP) * HIDDEN, Role::Work);
        buffers.add("units", UNIT_WORDS, Role::Output);
        buffers.add("hidden updated", HIDDEN_WEIGHT_WORDS, Role::Output);
        buffers.add("changes", self.rows * HIDDEN, Role::Output);
        buffers.add("updated", self.rows * HIDDEN, Role::Output);
    }

    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]) {
        for (word, index) in words.iter_mut().zip(first..) {
            let value = if buffer == INPUTS {
                Self::input(noise, index)
            } else {
                self.weight(noise, buffer, index)
            };
            *word = value.to_bits();
        }
    }

    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped> {
        let rows = self.rows as u32;
        let parameters = Parameters::new()
            .long(gpu.address(INPUTS))
            .long(gpu.address(WEIGHTS))
            .long(gpu.address(PARTIAL))
            .word(rows);
        self.launch(gpu, &programs::BACKPROP_FORWARD, 95, &parameters)?;
        let sums = self.sum(gpu)?;
        let parameters = Parameters::new()
            .long(gpu.address(sums))
            .long(gpu.address(HIDDEN_WEIGHTS))
            .long(gpu.address(UNITS))
            .long(gpu.address(HIDDEN_UPDATED))
            .float(RATE);
        gpu.launch(&Launch {
            program: &programs::BACKPROP_OUTPUT,
            blocks: [1, 1],
            threads: [HIDDEN as u32, 1],
            instructions: 220,
            parameters: &parameters,
        })?;
        let errors = gpu.address(UNITS) + HIDDEN as u64 * 4;
        let parameters = Parameters::new()
            .long(gpu.address(INPUTS))
            .long(gpu.address(WEIGHTS))
            .long(gpu.address(PREVIOUS))
            .long(errors)
            .long(gpu.address(CHANGES))
            .long(gpu.address(UPDATED))
            .word(rows)
            .float(RATE)
            .float(MOMENTUM);
        self.launch(gpu, &programs::BACKPROP_ADJUST, 45, &parameters)
    }

    fn reference_words(&self) -> usize {
        UNIT_WORDS + HIDDEN_WEIGHT_WORDS + groups(self.rows, HIDDEN) * HIDDEN
    }

    fn reference(&self, noise: Noise, memory: &mut [u32]) {
        let (head, sums) = memory.split_at_mut(UNIT_WORDS + HIDDEN_WEIGHT_WORDS);
        for (block, words) in sums.chunks_exact_mut(HIDDEN).enumerate() {
            words.copy_from_slice(&self.partial(noise, block).map(f32::to_bits));
        }
        add_up(sums);
        let sums = core::array::from_fn(|unit| f32::from_bits(sums[unit]));
        let weights = core::array::from_fn(|index| self.weight(noise, HIDDEN_WEIGHTS, index));
        let Head { units, weights } = Head::new(sums, weights, exp2);
        for (word, value) in head.iter_mut().zip(units.iter().chain(&weights)) {
            *word = value.to_bits();
        }
    }

    fn expected(&self, noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]) {
        let (units, rest) = memory.split_at(UNIT_WORDS);
        for (word, index) in words.iter_mut().zip(first..) {
            *word = match buffer {
                UNITS => units[index],
                HIDDEN_UPDATED => rest[index],
                _ => {
                    let error = f32::from_bits(units[HIDDEN + index % HIDDEN]);
                    let change = self.change(noise, error, index);
                    let before = self.weight(noise, WEIGHTS, index);
                    let value = if buffer == CHANGES {
                        change
                    } else {
                        before + change
                    };
                    value.to_bits()
                }
            };
        }
    }

    /// All of it follows from `ex2`: see [`ULPS`].
    fn matching(&self, _buffer: usize) -> Match {
        Match::Ulps(ULPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exp2_above(x: f32) -> f32 {
        f32::from_bits(exp2(x).to_bits() + 4)
    }

    fn exp2_below(x: f32) -> f32 {
        f32::from_bits(exp2(x).to_bits() - 4)
    }

    /// Range of the programs' inputs: sums up to 1, weights up to 1/16.
    #[test]
    fn results_stay_within_their_distance_with_any_card_s_ex2() {
        let noise = Noise::new(11);
        let mut furthest = 0;
        for case in 0..1000 {
            let noise = noise.of(case);
            let sums = core::array::from_fn(|unit| noise.of(0).unit(unit));
            let weights = core::array::from_fn(|index| noise.of(1).unit(index) / 16.0);
            let want = Head::new(sums, weights, exp2);
            for exp2 in [exp2_above, exp2_below] {
                let got = Head::new(sums, weights, exp2);
                let pairs = want.units.iter().zip(&got.units);
                for (want, got) in pairs.chain(want.weights.iter().zip(&got.weights)) {
                    let (want, got) = (want.to_bits(), got.to_bits());
                    assert!(
                        Match::Ulps(ULPS).holds(want, got),
                        "case {case}: {want:#x} {got:#x}"
                    );
                    furthest = furthest.max(want.abs_diff(got));
                }
            }
        }
        // Nor is the distance much larger than it has to be.
        assert!(furthest > ULPS / 8, "{furthest}");
    }
}
