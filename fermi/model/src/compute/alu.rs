//! The effect of an instruction on one lane's operands: pure functions of bits, as the hardware
//! rounds and flags them.
//!
//! Registers are 32 bits and have no type, so everything here takes and gives bit patterns. f32 arithmetic is IEEE
//! binary32 with one rounding; a NaN result is always `7fffffff`. Sources: PTX manual and CUDA guide for rounding, NaN,
//! clamping and bit-field rules, envytools and Mesa for what compilers rely on; where no source settles a case the
//! rule is marked `assumption:`.

pub(crate) mod convert;
pub(crate) mod double;
pub(crate) mod integer;
pub(crate) mod lanes;
pub(crate) mod single;
pub(crate) mod special;
mod transcendental;

/// Direction of a rounding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Round {
    /// To the nearest, ties to even.
    Nearest,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
    /// Towards zero (truncation).
    Zero,
}

impl Round {
    /// The direction with this number in an instruction.
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Nearest,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }
}

/// A comparison: bits less, equal, greater, unordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Comparison(pub(crate) u32);

impl Comparison {
    const LESS: u32 = 1;
    const EQUAL: u32 = 2;
    const GREATER: u32 = 4;
    const UNORDERED: u32 = 8;

    /// All ones for each relation that it holds for: less, equal, greater, unordered.
    #[inline(always)]
    pub(crate) fn wanted(self) -> [u32; 4] {
        [Self::LESS, Self::EQUAL, Self::GREATER, Self::UNORDERED]
            .map(|bit| 0u32.wrapping_sub(u32::from(self.0 & bit != 0)))
    }

    /// Whether the comparison holds for two values in this order; `None` where one is NaN.
    #[cfg(test)]
    pub(crate) fn holds(self, order: Option<std::cmp::Ordering>) -> bool {
        let bit = match order {
            Some(std::cmp::Ordering::Less) => Self::LESS,
            Some(std::cmp::Ordering::Equal) => Self::EQUAL,
            Some(std::cmp::Ordering::Greater) => Self::GREATER,
            None => Self::UNORDERED,
        };
        self.0 & bit != 0
    }
}
