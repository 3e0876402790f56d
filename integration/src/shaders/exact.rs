//! Exact binary arithmetic: a number as a sign and one very long fixed-point magnitude, rounded once at the end.
//!
//! Every finite f64, the product of any two and the sum of such a product and a third fit without a rounding. It is
//! slow and has no special cases, as a reference should be.

use std::cmp::Ordering;

/// Words of the magnitude.
const LIMBS: usize = 68;
/// Number of the bit that stands for one.
const ONE: usize = 2_176;

/// A binary floating-point format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Format {
    /// Stored bits of the mantissa.
    mantissa: u32,
    /// Bits of the exponent.
    exponent: u32,
}

pub(super) const HALF: Format = Format {
    mantissa: 10,
    exponent: 5,
};
pub(super) const SINGLE: Format = Format {
    mantissa: 23,
    exponent: 8,
};
pub(super) const DOUBLE: Format = Format {
    mantissa: 52,
    exponent: 11,
};

/// Roundings, by their number in instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rounding {
    NearestEven,
    Down,
    Up,
    Zero,
}

impl Rounding {
    pub(super) fn of(number: u32) -> Self {
        match number & 3 {
            0 => Self::NearestEven,
            1 => Self::Down,
            2 => Self::Up,
            _ => Self::Zero,
        }
    }
}

/// Value of a pattern of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Nan,
    Infinite {
        is_negative: bool,
    },
    /// `mantissa` times two to the `exponent`.
    Finite {
        is_negative: bool,
        mantissa: u64,
        exponent: i32,
    },
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// Exponent of the last bit of a denormal.
    fn least(self) -> i32 {
        1 - self.bias() - self.mantissa as i32
    }

    /// The sign bit.
    pub(super) fn sign(self) -> u64 {
        1 << (self.mantissa + self.exponent)
    }

    /// Bits of positive infinity.
    pub(super) fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.mantissa
    }

    /// Bits of the number 1.0.
    pub(super) fn one(self) -> u64 {
        (self.bias() as u64) << self.mantissa
    }

    /// A quiet NaN has this bit.
    pub(super) fn quiet(self) -> u64 {
        1 << (self.mantissa - 1)
    }

    pub(super) fn is_nan(self, bits: u64) -> bool {
        bits & (self.sign() - 1) > self.infinity()
    }

    pub(super) fn is_denormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign() - 1);
        magnitude != 0 && magnitude >> self.mantissa == 0
    }

    /// A denormal becomes zero of its sign.
    pub(super) fn flushed(self, bits: u64) -> u64 {
        if self.is_denormal(bits) {
            bits & self.sign()
        } else {
            bits
        }
    }

    pub(super) fn value(self, bits: u64) -> Value {
        let is_negative = bits & self.sign() != 0;
        let magnitude = bits & (self.sign() - 1);
        if magnitude > self.infinity() {
            return Value::Nan;
        }
        if magnitude == self.infinity() {
            return Value::Infinite { is_negative };
        }
        let (field, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        if field == 0 {
            Value::Finite {
                is_negative,
                mantissa: fraction,
                exponent: self.least(),
            }
        } else {
            Value::Finite {
                is_negative,
                mantissa: fraction | 1 << self.mantissa,
                exponent: self.least() + field as i32 - 1,
            }
        }
    }

    /// How two patterns compare; `None` if one is a NaN.
    pub(super) fn order(self, a: u64, b: u64) -> Option<Ordering> {
        if self.is_nan(a) || self.is_nan(b) {
            return None;
        }
        let key = |bits: u64| {
            let magnitude = (bits & (self.sign() - 1)) as i128;
            if bits & self.sign() != 0 {
                -magnitude
            } else {
                magnitude
            }
        };
        Some(key(a).cmp(&key(b)))
    }
}

/// An exact number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exact {
    pub(super) is_negative: bool,
    limbs: [u64; LIMBS],
}

impl Exact {
    pub(super) fn zero(is_negative: bool) -> Self {
        Self {
            is_negative,
            limbs: [0; LIMBS],
        }
    }

    /// `mantissa` times two to the `exponent`.
    pub(super) fn new(is_negative: bool, mantissa: u128, exponent: i32) -> Self {
        let mut number = Self::zero(is_negative);
        let at = (ONE as i32 + exponent) as usize;
        for bit in (0..128).filter(|bit| mantissa >> bit & 1 != 0) {
            let bit = at + bit;
            number.limbs[bit / 64] |= 1 << (bit % 64);
        }
        number
    }

    pub(super) fn of_integer(value: i128) -> Self {
        Self::new(value < 0, value.unsigned_abs(), 0)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.limbs.iter().all(|limb| *limb == 0)
    }

    fn compare_magnitudes(&self, other: &Self) -> Ordering {
        self.limbs.iter().rev().cmp(other.limbs.iter().rev())
    }

    /// The sum; the caller decides the sign of a zero.
    pub(super) fn plus(&self, other: &Self) -> Self {
        if self.is_negative == other.is_negative {
            let mut sum = Self::zero(self.is_negative);
            let mut carry = 0u128;
            for (at, limb) in sum.limbs.iter_mut().enumerate() {
                let total = u128::from(self.limbs[at]) + u128::from(other.limbs[at]) + carry;
                *limb = total as u64;
                carry = total >> 64;
            }
            return sum;
        }
        let (big, small) = match self.compare_magnitudes(other) {
            Ordering::Less => (other, self),
            _ => (self, other),
        };
        let mut difference = Self::zero(big.is_negative);
        let mut borrow = 0i128;
        for (at, limb) in difference.limbs.iter_mut().enumerate() {
            let total = i128::from(big.limbs[at]) - i128::from(small.limbs[at]) - borrow;
            *limb = total as u64;
            borrow = i128::from(total < 0);
        }
        difference
    }

    fn bit(&self, at: usize) -> bool {
        self.limbs[at / 64] >> (at % 64) & 1 != 0
    }

    fn highest(&self) -> Option<usize> {
        let limb = self.limbs.iter().rposition(|limb| *limb != 0)?;
        Some(limb * 64 + 63 - self.limbs[limb].leading_zeros() as usize)
    }

    /// Whether the magnitude, of which the bits from `at` on are kept, has to grow by one there.
    fn rounds_up(&self, at: usize, rounding: Rounding) -> bool {
        let half = at > 0 && self.bit(at - 1);
        let below = (0..at.saturating_sub(1)).any(|bit| self.bit(bit));
        match rounding {
            Rounding::NearestEven => half && (below || self.bit(at)),
            Rounding::Down => self.is_negative && (half || below),
            Rounding::Up => !self.is_negative && (half || below),
            Rounding::Zero => false,
        }
    }

    /// Up to 128 bits from `at` on, all that there are.
    fn bits_from(&self, at: usize) -> u128 {
        (0..128)
            .filter(|bit| at + bit < LIMBS * 64 && self.bit(at + bit))
            .fold(0, |all, bit| all | 1 << bit)
    }

    /// The nearest number of a format, as its bits.
    pub(super) fn round(&self, format: Format, rounding: Rounding) -> u64 {
        let sign = if self.is_negative { format.sign() } else { 0 };
        let Some(highest) = self.highest() else {
            return sign;
        };
        let least = (ONE as i32 + format.least()) as usize;
        let last = least.max(highest.saturating_sub(format.mantissa as usize));
        let kept = self.bits_from(last) as u64 + u64::from(self.rounds_up(last, rounding));
        // The leading one of a normal number adds one to the exponent's field, as does a carry out of the mantissa.
        let magnitude = u128::from((last - least) as u64) << format.mantissa;
        let magnitude = magnitude + u128::from(kept);
        if magnitude >= u128::from(format.infinity()) {
            let is_towards_zero = match rounding {
                Rounding::NearestEven => false,
                Rounding::Down => !self.is_negative,
                Rounding::Up => self.is_negative,
                Rounding::Zero => true,
            };
            return sign | (format.infinity() - u64::from(is_towards_zero));
        }
        sign | magnitude as u64
    }

    /// The nearest integer; beyond 126 bits the largest that fits those.
    pub(super) fn round_to_integer(&self, rounding: Rounding) -> i128 {
        const LIMIT: i128 = 1 << 126;
        let magnitude = match self.highest() {
            Some(highest) if highest >= ONE + 126 => LIMIT,
            _ => self.bits_from(ONE) as i128 + i128::from(self.rounds_up(ONE, rounding)),
        };
        if self.is_negative { -magnitude } else { magnitude }
    }
}

/// Result of an operation that is not a number, or the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Nan,
    Bits(u64),
}

/// `a * b * 2^scale`, exactly, or what is no number; `None` for infinities that the caller handles.
fn product(a: Value, b: Value, scale: i32) -> Result<Exact, Value> {
    let is_zero = |value| matches!(value, Value::Finite { mantissa: 0, .. });
    let sign = |value| match value {
        Value::Nan => false,
        Value::Infinite { is_negative } | Value::Finite { is_negative, .. } => is_negative,
    };
    let is_negative = sign(a) != sign(b);
    match (a, b) {
        (Value::Nan, _) | (_, Value::Nan) => Err(Value::Nan),
        (Value::Infinite { .. }, other) | (other, Value::Infinite { .. }) if is_zero(other) => {
            Err(Value::Nan)
        }
        (Value::Infinite { .. }, _) | (_, Value::Infinite { .. }) => Err(Value::Infinite { is_negative }),
        (
            Value::Finite {
                mantissa: m,
                exponent: e,
                ..
            },
            Value::Finite {
                mantissa: n,
                exponent: f,
                ..
            },
        ) => Ok(Exact::new(
            is_negative,
            u128::from(m) * u128::from(n),
            e + f + scale,
        )),
    }
}

pub(super) fn multiply(format: Format, a: u64, b: u64, scale: i32, rounding: Rounding) -> Outcome {
    match product(format.value(a), format.value(b), scale) {
        Ok(exact) => Outcome::Bits(exact.round(format, rounding)),
        Err(Value::Infinite { is_negative }) => Outcome::Bits(infinite(format, is_negative)),
        Err(_) => Outcome::Nan,
    }
}

/// `a * b + c`, rounded once.
pub(super) fn fused(format: Format, a: u64, b: u64, c: u64, rounding: Rounding) -> Outcome {
    let left = product(format.value(a), format.value(b), 0);
    total(format, left, format.value(c), rounding)
}

pub(super) fn add(format: Format, a: u64, b: u64, rounding: Rounding) -> Outcome {
    let left = match format.value(a) {
        Value::Finite {
            is_negative,
            mantissa,
            exponent,
        } => Ok(Exact::new(is_negative, mantissa.into(), exponent)),
        other => Err(other),
    };
    total(format, left, format.value(b), rounding)
}

fn total(format: Format, left: Result<Exact, Value>, right: Value, rounding: Rounding) -> Outcome {
    match (left, right) {
        (Err(Value::Nan), _) | (_, Value::Nan) => Outcome::Nan,
        (Err(Value::Infinite { is_negative: x }), Value::Infinite { is_negative: y }) if x != y => {
            Outcome::Nan
        }
        (Err(Value::Infinite { is_negative }), _) | (_, Value::Infinite { is_negative }) => {
            Outcome::Bits(infinite(format, is_negative))
        }
        (
            Ok(x),
            Value::Finite {
                is_negative,
                mantissa,
                exponent,
            },
        ) => {
            let y = Exact::new(is_negative, mantissa.into(), exponent);
            let mut sum = x.plus(&y);
            if sum.is_zero() {
                let is_same_zero = x.is_zero() && y.is_zero() && x.is_negative == y.is_negative;
                sum.is_negative = if is_same_zero {
                    x.is_negative
                } else {
                    rounding == Rounding::Down
                };
            }
            Outcome::Bits(sum.round(format, rounding))
        }
        (Err(Value::Finite { .. }), Value::Finite { .. }) => Outcome::Nan,
    }
}

fn infinite(format: Format, is_negative: bool) -> u64 {
    format.infinity() | if is_negative { format.sign() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// The processor's own arithmetic is the witness of the nearest rounding.
    #[test]
    fn nearest_roundings_are_those_of_the_processor() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..2_000 {
            let [a, b, c]: [u32; 3] = rng.random();
            let [x, y, z] = [a, b, c].map(f32::from_bits);
            let near = Rounding::NearestEven;
            let found = [
                add(SINGLE, a.into(), b.into(), near),
                multiply(SINGLE, a.into(), b.into(), 0, near),
                fused(SINGLE, a.into(), b.into(), c.into(), near),
            ];
            for (found, expected) in found.into_iter().zip([x + y, x * y, x.mul_add(y, z)]) {
                match found {
                    Outcome::Nan => assert!(expected.is_nan()),
                    Outcome::Bits(bits) => assert_eq!(bits, u64::from(expected.to_bits())),
                }
            }
            let [a, b]: [u64; 2] = rng.random();
            // Near each other, so that something cancels.
            let b = if rng.random() { a ^ b >> 12 } else { b };
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            for (found, expected) in [
                (add(DOUBLE, a, b, near), x + y),
                (multiply(DOUBLE, a, b, 0, near), x * y),
                (
                    fused(DOUBLE, a, b, a ^ b, near),
                    x.mul_add(y, f64::from_bits(a ^ b)),
                ),
            ] {
                match found {
                    Outcome::Nan => assert!(expected.is_nan()),
                    Outcome::Bits(bits) => assert_eq!(bits, expected.to_bits()),
                }
            }
        }
    }

    #[test]
    fn directed_roundings_enclose_the_number() {
        let third = Exact::new(false, 0x5555_5555_5555_5555_5555, -80);
        let down = third.round(SINGLE, Rounding::Down);
        assert_eq!(third.round(SINGLE, Rounding::Up), down + 1);
        assert_eq!(third.round(SINGLE, Rounding::Zero), down);
        // The nearest number is the upper one.
        assert_eq!(down + 1, u64::from((1.0f32 / 3.0).to_bits()));
        let huge = Exact::new(true, 1, 200);
        assert_eq!(huge.round(SINGLE, Rounding::Up), 0xff7f_ffff);
        assert_eq!(huge.round(SINGLE, Rounding::NearestEven), 0xff80_0000);
    }

    #[test]
    fn integers_round_as_told() {
        let number = Exact::new(true, 5, -1);
        let found = [0, 1, 2, 3].map(|mode| number.round_to_integer(Rounding::of(mode)));
        assert_eq!(found, [-2, -3, -2, -2]);
    }
}
