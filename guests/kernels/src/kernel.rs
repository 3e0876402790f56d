//! The parts of a kernel, for a guest and for a host thread.

use crate::{Gpu, Noise, Stopped};

/// Most buffers of a kernel.
const BUFFERS_MAX: usize = 16;

/// Purpose of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Filled before the first run; no run changes it.
    Input,
    /// Has undefined contents before a run, and meaningless ones afterwards.
    Work,
    /// Has the expected words after each run, whatever it held before.
    Output,
}

/// A buffer of a kernel in GPU memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Its name in reports.
    pub name: &'static str,
    /// Its length in words of 32 bits, not 0.
    pub words: usize,
    /// Purpose of the buffer.
    pub role: Role,
}

/// The buffers of a kernel; their numbers count from 0 in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub struct Buffers {
    list: [Option<Buffer>; BUFFERS_MAX],
    count: usize,
}

impl Buffers {
    /// Those of `kernel`.
    pub fn of(kernel: &dyn Kernel) -> Self {
        let mut buffers = Self::default();
        kernel.buffers(&mut buffers);
        buffers
    }

    /// Adds a buffer of `words` 32-bit words.
    pub(crate) fn add(&mut self, name: &'static str, words: usize, role: Role) {
        assert!(
            self.count < BUFFERS_MAX,
            "a kernel has at most {BUFFERS_MAX} buffers"
        );
        assert_ne!(words, 0, "buffer {name} is empty");
        self.list[self.count] = Some(Buffer { name, words, role });
        self.count += 1;
    }

    /// All of them with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Buffer)> {
        self.list.into_iter().flatten().enumerate()
    }

    /// One by its number.
    pub fn get(&self, number: usize) -> Option<Buffer> {
        self.list.get(number).copied().flatten()
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(_, buffer)| buffer.words as u64 * 4).sum()
    }
}

/// How near a word of an output has to be to the reference's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match {
    /// Equal in every bit.
    Exact,
    /// As `f32` with the same sign at most so many representable numbers away: results of the special-function unit,
    /// of which the hardware promises no last bits.
    Ulps(u32),
}

impl Match {
    /// Whether `got` passes for `want`.
    pub fn holds(self, want: u32, got: u32) -> bool {
        match self {
            Self::Exact => want == got,
            // Patterns of floats with one sign are in the order of their values; infinities and NaNs have neighbours
            // that they must not pass for.
            Self::Ulps(ulps) => {
                let is_finite = |bits| f32::from_bits(bits).is_finite();
                want == got
                    || is_finite(want)
                        && is_finite(got)
                        && want >> 31 == got >> 31
                        && want.abs_diff(got) <= ulps
            }
        }
    }
}

/// A problem of a certain size: buffers, inputs, a plan of launches, a reference.
///
/// The same seed gives the same inputs and outputs everywhere. A run starts from the inputs alone, so it may be
/// repeated any number of times.
pub trait Kernel {
    /// Adds the buffers.
    fn buffers(&self, buffers: &mut Buffers);

    /// The words from `first` on of input `buffer`.
    fn fill(&self, noise: Noise, buffer: usize, first: usize, words: &mut [u32]);

    /// The plan: launches, and decisions between them where the algorithm needs any.
    fn run(&self, gpu: &mut dyn Gpu) -> Result<(), Stopped>;

    /// Whether the plan says everywhere where a buffer is to be copied ([`Gpu::copy_in`], [`Gpu::copy_out`]), so that it
    /// is right though nobody else moves data.
    fn is_copied_by_hand(&self) -> bool {
        false
    }

    /// Words of memory that [`Self::reference`] needs.
    fn reference_words(&self) -> usize;

    /// Prepares [`Self::expected`] in `memory` of [`Self::reference_words`], whose content is undefined.
    fn reference(&self, noise: Noise, memory: &mut [u32]);

    /// The words from `first` on that output `buffer` has to have; `memory` is as [`Self::reference`] left it.
    fn expected(&self, noise: Noise, memory: &[u32], buffer: usize, first: usize, words: &mut [u32]);

    /// How near words of an output have to be. Says why where it is not [`Match::Exact`].
    fn matching(&self, buffer: usize) -> Match {
        let _ = buffer;
        Match::Exact
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_match_within_their_distance_and_sign() {
        let two = Match::Ulps(2);
        let one = 1.0f32.to_bits();
        assert!(two.holds(one, one + 2) && two.holds(one, one - 2) && !two.holds(one, one + 3));
        assert!(!two.holds(0, 1 << 31) && !two.holds(f32::MAX.to_bits(), f32::INFINITY.to_bits()));
        assert!(two.holds(f32::NAN.to_bits(), f32::NAN.to_bits()));
        assert!(!Match::Exact.holds(one, one + 1));
    }
}
