//! Arithmetic of f32 values, of all lanes at once: each step for every lane, so that it becomes a few vector
//! instructions whatever the mode is.
//!
//! Hosts round to nearest. A directed rounding takes the exact sum or product as the f64 nearest to it and what that
//! leaves, rounds to the nearest f32, and takes its neighbour where the rest says that the exact value is on the other
//! side.

use fermi_spec::isa::{Opcode, field};

use super::{Comparison, Round, double};
use crate::compute::warp::{LANES, Lanes, each, mask_of};

/// The bits of every NaN result.
pub(crate) const NAN: u32 = 0x7fff_ffff;
const SIGN: u32 = 1 << 31;
const ONE: u32 = 0x3f80_0000;

/// How an operation treats denormals, zero factors and its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mode {
    pub(crate) round: Round,
    /// Denormal operands and results are zeros of their sign.
    pub(crate) ftz: bool,
    /// The same, and a product with a zero factor is +0.
    pub(crate) fmz: bool,
    /// The result is clamped to 0–1, NaN to +0.
    pub(crate) sat: bool,
}

impl Mode {
    /// Nearest, denormals kept, nothing clamped.
    pub(crate) const PLAIN: Self = Self {
        round: Round::Nearest,
        ftz: false,
        fmz: false,
        sat: false,
    };

    /// The mode of a sum, a product or both; plain for others.
    pub(crate) fn decode(opcode: Opcode, word: u64) -> Self {
        let bit = |number: u32| word >> number & 1 != 0;
        let round = Round::from_bits(field::ROUND.get(word));
        match opcode {
            Opcode::Fadd => Self {
                round,
                ftz: bit(5),
                fmz: false,
                sat: bit(49),
            },
            Opcode::Fadd32i => Self {
                ftz: bit(5),
                ..Self::PLAIN
            },
            Opcode::Ffma | Opcode::Fmul | Opcode::Ffma32i | Opcode::Fmul32i => {
                let is_short = matches!(opcode, Opcode::Ffma32i | Opcode::Fmul32i);
                Self {
                    round: if is_short { Round::Nearest } else { round },
                    ftz: bit(6),
                    fmz: bit(7),
                    sat: bit(5),
                }
            }
            _ => Self::PLAIN,
        }
    }

    #[inline(always)]
    fn flushes(self) -> bool {
        self.ftz || self.fmz
    }

    #[inline(always)]
    fn operand(self, values: &Lanes) -> Lanes {
        if self.flushes() { flushed(values) } else { *values }
    }

    /// Factors of a product.
    #[inline(always)]
    fn factors(self, a: &Lanes, b: &Lanes) -> (Lanes, Lanes) {
        let (a, b) = (self.operand(a), self.operand(b));
        if !self.fmz {
            return (a, b);
        }
        let kept = each(|lane| all_if((a[lane] & !SIGN != 0) & (b[lane] & !SIGN != 0)));
        (
            each(|lane| a[lane] & kept[lane]),
            each(|lane| b[lane] & kept[lane]),
        )
    }

    #[inline(always)]
    fn result(self, values: Lanes) -> Lanes {
        let values = if self.flushes() { flushed(&values) } else { values };
        if self.sat {
            each(|lane| saturate(values[lane]))
        } else {
            values
        }
    }
}

/// All ones where something holds.
#[inline(always)]
pub(super) fn all_if(holds: bool) -> u32 {
    0u32.wrapping_sub(holds.into())
}

/// Absolute value, then negation.
#[inline(always)]
pub(crate) fn modify(bits: u32, abs: bool, neg: bool) -> u32 {
    let bits = if abs { bits & !SIGN } else { bits };
    if neg { bits ^ SIGN } else { bits }
}

/// A denormal becomes a zero of its sign.
#[inline(always)]
pub(crate) fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 {
        bits & SIGN
    } else {
        bits
    }
}

#[inline(always)]
pub(crate) fn flushed(values: &Lanes) -> Lanes {
    each(|lane| flush(values[lane]))
}

/// Clamped to 0–1; NaN and −0 become +0.
#[inline(always)]
pub(crate) fn saturate(bits: u32) -> u32 {
    let value = f32::from_bits(bits);
    let value = if value > 0.0 { value } else { 0.0 };
    if value < 1.0 { value.to_bits() } else { ONE }
}

/// The bits of a result.
#[inline(always)]
fn bits_of(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

#[inline(always)]
fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// The sum in [`Mode::PLAIN`].
#[inline(always)]
pub(crate) fn plain_add(a: u32, b: u32) -> u32 {
    bits_of(f(a) + f(b))
}

/// The product in [`Mode::PLAIN`].
#[inline(always)]
pub(crate) fn plain_mul(a: u32, b: u32) -> u32 {
    bits_of(f(a) * f(b))
}

/// The sum of a product and `c` in [`Mode::PLAIN`].
#[inline(always)]
pub(crate) fn plain_fma(a: u32, b: u32, c: u32) -> u32 {
    bits_of(f(a).mul_add(f(b), f(c)))
}

/// Whether no product of these operands, nor its sum with one, is denormal unless it cancels. Hosts take 150 cycles for each
/// vector of products with a denormal number.
#[inline(always)]
pub(crate) fn are_large<const N: usize>(operands: [&Lanes; N]) -> bool {
    /// The bits of 2^-50, which squared is far from the least normal number.
    const LEAST: u32 = 77 << 23;
    // Zeros are as large as can be.
    let less_one = |operand: &Lanes, lane: usize| (operand[lane] & !SIGN).wrapping_sub(1);
    let mut least = [u32::MAX; LANES];
    for operand in operands {
        least = each(|lane| least[lane].min(less_one(operand, lane)));
    }
    let mut least_of_all = u32::MAX;
    for least in least {
        least_of_all = least_of_all.min(least);
    }
    least_of_all >= LEAST - 1
}

#[inline(always)]
pub(crate) fn add(a: &Lanes, b: &Lanes, mode: Mode) -> Lanes {
    let (a, b) = (mode.operand(a), mode.operand(b));
    mode.result(match mode.round {
        Round::Nearest => each(|lane| plain_add(a[lane], b[lane])),
        round => {
            let mut rounded = Rounded::new();
            for lane in 0..LANES {
                rounded.sum(lane, f(a[lane]).into(), f(b[lane]).into());
            }
            rounded.directed(round)
        }
    })
}

/// `exponent`: of the power of two that the exact product is scaled by. assumption: scaled before it is rounded.
#[inline(always)]
pub(crate) fn mul(a: &Lanes, b: &Lanes, exponent: i32, mode: Mode) -> Lanes {
    let (a, b) = mode.factors(a, b);
    let is_plain = mode.round == Round::Nearest && exponent == 0;
    if is_plain && (mode.flushes() || are_large([&a, &b])) {
        return mode.result(each(|lane| plain_mul(a[lane], b[lane])));
    }
    let factor = f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52);
    // 48 bits and any scale fit an f64.
    let product = |lane: usize| f64::from(f(a[lane])) * f64::from(f(b[lane])) * factor;
    mode.result(match mode.round {
        Round::Nearest => each(|lane| bits_of(product(lane) as f32)),
        round => narrowed(product, round),
    })
}

#[inline(always)]
pub(crate) fn fma(a: &Lanes, b: &Lanes, c: &Lanes, mode: Mode) -> Lanes {
    let ((a, b), c) = (mode.factors(a, b), mode.operand(c));
    mode.result(match mode.round {
        Round::Nearest if mode.flushes() || are_large([&a, &b, &c]) => {
            each(|lane| plain_fma(a[lane], b[lane], c[lane]))
        }
        // In f64 nothing is denormal on the way.
        Round::Nearest => each(|lane| {
            let product = f64::from(f(a[lane])) * f64::from(f(b[lane]));
            let (sum, error) = two_sum(product, f(c[lane]).into());
            bits_of(double::odd(sum, error) as f32)
        }),
        round => {
            let mut rounded = Rounded::new();
            for lane in 0..LANES {
                let product = f64::from(f(a[lane])) * f64::from(f(b[lane]));
                rounded.sum(lane, product, f(c[lane]).into());
            }
            rounded.directed(round)
        }
    })
}

/// f64 values rounded to f32; NaN becomes [`NAN`].
#[inline(always)]
pub(crate) fn narrowed(value: impl Fn(usize) -> f64, round: Round) -> Lanes {
    if round == Round::Nearest {
        return each(|lane| bits_of(value(lane) as f32));
    }
    let mut rounded = Rounded::new();
    for lane in 0..LANES {
        rounded.value(lane, value(lane));
    }
    rounded.directed(round)
}

/// The f64 nearest to a sum and what it leaves of it (Knuth's two-sum); no f32 and no product of two makes it overflow.
#[inline(always)]
fn two_sum(x: f64, y: f64) -> (f64, f64) {
    let sum = x + y;
    let part = sum - x;
    (sum, (x - (sum - part)) + (y - part))
}

/// Values that were rounded to the nearest f32, and what is left of them.
struct Rounded {
    nearest: Lanes,
    /// 1 where the exact value is above the nearest, -1 below.
    rest: [i32; LANES],
    /// All ones for a sum of 0 that a rounding towards minus infinity makes −0.
    cancelled: Lanes,
}

impl Rounded {
    #[inline(always)]
    fn new() -> Self {
        Self {
            nearest: [0; LANES],
            rest: [0; LANES],
            cancelled: [0; LANES],
        }
    }

    #[inline(always)]
    fn value(&mut self, lane: usize, value: f64) {
        let nearest = value as f32;
        self.set(lane, nearest, value - f64::from(nearest));
    }

    /// The sum of two values that are exact.
    #[inline(always)]
    fn sum(&mut self, lane: usize, x: f64, y: f64) {
        let (sum, error) = two_sum(x, y);
        let nearest = sum as f32;
        // The difference is exact, so that the sum's sign is right.
        self.set(lane, nearest, (sum - f64::from(nearest)) + error);
        let is_negative = (x.to_bits() | y.to_bits()) >> 63 != 0;
        self.cancelled[lane] = all_if((sum == 0.0) & is_negative);
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, nearest: f32, rest: f64) {
        self.nearest[lane] = nearest.to_bits();
        self.rest[lane] = i32::from(rest > 0.0).wrapping_sub(i32::from(rest < 0.0));
    }

    /// The neighbour in the direction, where the nearest is on the wrong side.
    #[inline(always)]
    fn directed(&self, round: Round) -> Lanes {
        // 1 or -1 in the direction of larger bits: away from zero.
        let away = |lane: usize| {
            let sign = (self.nearest[lane] as i32) >> 31;
            (self.rest[lane] ^ sign).wrapping_sub(sign)
        };
        let rounded = |lane: usize| {
            let bits = self.nearest[lane];
            if f(bits).is_nan() { NAN } else { bits }
        };
        match round {
            Round::Nearest => each(rounded),
            Round::Down => each(|lane| {
                let step = away(lane) & (self.rest[lane] >> 31);
                rounded(lane).wrapping_add_signed(step) | self.cancelled[lane] & SIGN
            }),
            Round::Up => each(|lane| {
                let step = away(lane) & (self.rest[lane].wrapping_neg() >> 31);
                rounded(lane).wrapping_add_signed(step)
            }),
            Round::Zero => each(|lane| rounded(lane).wrapping_add_signed(away(lane).min(0))),
        }
    }
}

/// The operand that is not NaN, the lower or higher of the two; −0 is below +0. `wants_min`: a mask of lanes.
#[inline(always)]
pub(crate) fn min_max(a: &Lanes, b: &Lanes, wants_min: u32, ftz: bool) -> Lanes {
    let (a, b) = if ftz { (flushed(a), flushed(b)) } else { (*a, *b) };
    each(|lane| {
        let (x, y) = (f(a[lane]), f(b[lane]));
        let a_is_negative = all_if(a[lane] >> 31 != 0);
        let a_is_less = all_if(x < y) | all_if(x == y) & a_is_negative;
        let wants_less = all_if(wants_min >> lane & 1 != 0);
        let (a_is_nan, b_is_nan) = (all_if(x.is_nan()), all_if(y.is_nan()));
        let takes_a = b_is_nan | !a_is_nan & !(a_is_less ^ wants_less);
        let chosen = a[lane] & takes_a | b[lane] & !takes_a;
        let both = a_is_nan & b_is_nan;
        chosen & !both | NAN & both
    })
}

/// Lanes for which a comparison holds.
#[inline(always)]
pub(crate) fn compare(a: &Lanes, b: &Lanes, comparison: Comparison, ftz: bool) -> u32 {
    let (a, b) = if ftz { (flushed(a), flushed(b)) } else { (*a, *b) };
    let [less, equal, greater, unordered] = comparison.wanted();
    mask_of(|lane| {
        let (x, y) = (f(a[lane]), f(b[lane]));
        let unordered = unordered & all_if(x.is_nan() | y.is_nan());
        let ordered = less & all_if(x < y) | equal & all_if(x == y) | greater & all_if(x > y);
        (ordered | unordered) != 0
    })
}

#[cfg(test)]
mod tests;
