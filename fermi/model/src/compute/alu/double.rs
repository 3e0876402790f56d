//! f64 arithmetic of all lanes at once. Denormals are kept; neither saturation nor flushing exists.
//!
//! Directed roundings take the neighbour of the nearest f64 where what that leaves has the other sign. The rest of a sum,
//! a product or both together is a sum of f64 values, exactly (Knuth, Dekker; Boldo and Muller, "Exact and approximated
//! error of the FMA"), as long as nothing overflows or is lost below the least denormal. Products and their sums with
//! operands that could come there, or that hosts are slow with, are [`extremes`].

use super::{Comparison, Round, double, single::all_if};
use crate::compute::warp::{Wide, mask_of, union_of, wide_each};

mod extremes;

/// assumption: a NaN result is the first NaN operand with its quiet bit, else this.
const DEFAULT_NAN: u64 = 0xfff8_0000_0000_0000;
const QUIET: u64 = 1 << 51;
const SIGN: u64 = 1 << 63;

/// All ones where something holds.
#[inline(always)]
fn wide_if(holds: bool) -> u64 {
    0u64.wrapping_sub(holds.into())
}

#[inline(always)]
fn f(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// Power of two as an f64.
const fn power(exponent: i64) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// Absolute value, then negation; a NaN passes unchanged (PTX, `abs` and `neg` of f64).
#[inline(always)]
pub(crate) fn modify(bits: u64, abs: bool, neg: bool) -> u64 {
    let number = wide_if(!f(bits).is_nan());
    let cleared = if abs { SIGN & number } else { 0 };
    let turned = if neg { SIGN & number } else { 0 };
    bits & !cleared ^ turned
}

#[inline(always)]
pub(crate) fn modified(values: &Wide, abs: bool, neg: bool) -> Wide {
    if abs || neg {
        wide_each(|lane| modify(values[lane], abs, neg))
    } else {
        *values
    }
}

/// Gives a NaN result its bits.
//
// In the loop that makes the results: one that only adds or multiplies is unrolled before it could become vectors.
#[inline(always)]
fn settled<const N: usize>(result: u64, operands: [u64; N]) -> u64 {
    let mut chosen = DEFAULT_NAN;
    for operand in operands.into_iter().rev() {
        let is_nan = wide_if(f(operand).is_nan());
        chosen = (operand | QUIET) & is_nan | chosen & !is_nan;
    }
    let is_nan = wide_if(f(result).is_nan());
    chosen & is_nan | result & !is_nan
}

/// On which side of the exact value its rounding may be, as masks that hold for all lanes.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    /// All ones towards plus infinity.
    above: u64,
    below: u64,
    /// Towards zero: the side depends on the sign.
    inner: u64,
}

impl Sides {
    #[inline(always)]
    pub(super) fn of(round: Round) -> Self {
        Self {
            above: wide_if(round == Round::Up),
            below: wide_if(round == Round::Down),
            inner: wide_if(round == Round::Zero),
        }
    }
}

/// A rounding as masks that hold for all lanes.
#[derive(Clone, Copy)]
struct Direction {
    sides: Sides,
    /// All ones for the nearest, ties to even.
    nearest: u64,
}

impl Direction {
    #[inline(always)]
    fn of(round: Round) -> Self {
        Self {
            sides: Sides::of(round),
            nearest: wide_if(round == Round::Nearest),
        }
    }
}

/// `nearest`, or its neighbour where the exact value is on the other side: `rest` has the sign of what is left of it.
/// The nearest f64 itself if no side is asked for.
#[inline(always)]
pub(super) fn stepped(nearest: f64, rest: f64, sides: Sides) -> u64 {
    let bits = nearest.to_bits();
    let sign = wide_if(bits >> 63 != 0);
    // 1 or -1: towards larger values is away from zero for positive ones.
    let up = (1 ^ sign).wrapping_sub(sign);
    let goes_up = wide_if(rest > 0.0) & (sides.above | sides.inner & sign);
    let goes_down = wide_if(rest < 0.0) & (sides.below | sides.inner & !sign);
    bits.wrapping_add(up & goes_up).wrapping_sub(up & goes_down)
}

/// The f64 nearest to a sum, made odd where there is a rest: rounding it once more to a shorter format is then rounding the
/// sum (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
#[inline(always)]
pub(super) fn odd(nearest: f64, rest: f64) -> f64 {
    let bits = nearest.to_bits();
    // No NaN, which an infinity leaves.
    let has_rest = u64::from((rest < 0.0) | (rest > 0.0));
    // The one of the two f64 around the sum that is nearer to zero, and then the odd one of them.
    let is_beyond = (bits ^ rest.to_bits()) >> 63 & has_rest;
    f(bits.wrapping_sub(is_beyond) | has_rest)
}

/// An expression of a lane and its [`Sides`] for each lane, compiled for each direction. (A function with a closure would
/// call it where it is used more than once, and what is called is compiled for any processor.)
macro_rules! directed {
    ($round:expr, |$lane:ident, $sides:ident| $result:expr) => {
        match $round {
            Round::Nearest => wide_each(|$lane| {
                let $sides = double::Sides::of(Round::Nearest);
                $result
            }),
            Round::Down => wide_each(|$lane| {
                let $sides = double::Sides::of(Round::Down);
                $result
            }),
            Round::Up => wide_each(|$lane| {
                let $sides = double::Sides::of(Round::Up);
                $result
            }),
            Round::Zero => wide_each(|$lane| {
                let $sides = double::Sides::of(Round::Zero);
                $result
            }),
        }
    };
}
pub(super) use directed;

/// The sign of a sum of 0 of values that are not both positive: −0 towards minus infinity.
#[inline(always)]
fn cancelled(sum: f64, rest: f64, signs: u64, sides: Sides) -> u64 {
    SIGN & signs & sides.below & wide_if((sum == 0.0) & (rest == 0.0))
}

#[inline(always)]
pub(crate) fn add(a: &Wide, b: &Wide, round: Round) -> Wide {
    match round {
        Round::Nearest => wide_each(|lane| {
            let sum = f(a[lane]) + f(b[lane]);
            settled(sum.to_bits(), [a[lane], b[lane]])
        }),
        round => directed!(round, |lane, sides| {
            settled(directed_sum(a[lane], b[lane], sides), [a[lane], b[lane]])
        }),
    }
}

#[inline(always)]
fn directed_sum(a: u64, b: u64, sides: Sides) -> u64 {
    // Dekker's two-sum, which no overflow of a step disturbs, wants the larger one first.
    let turned = wide_if((a & !SIGN) < (b & !SIGN));
    let (x, y) = (a & !turned | b & turned, b & !turned | a & turned);
    let (x, y) = (f(x), f(y));
    let sum = x + y;
    let rest = y - (sum - x);
    stepped(sum, rest, sides) | cancelled(sum, rest, a | b, sides)
}

/// All ones where a value is neither zero nor from 2^-exponent to 2^exponent.
#[inline(always)]
fn immoderate(bits: u64, exponent: i64) -> u64 {
    let (least, end) = (power(-exponent).to_bits(), power(exponent).to_bits());
    let magnitude = bits & !SIGN;
    wide_if(magnitude.wrapping_sub(least) >= end - least) & wide_if(magnitude != 0)
}

/// Exponents of factors of which no product overflows, and none's rest is denormal.
const FACTORS: i64 = 450;
/// Exponents of what may be added to their product.
const ADDENDS: i64 = 900;

#[inline(always)]
pub(crate) fn mul(a: &Wide, b: &Wide, round: Round) -> Wide {
    let outside = wide_each(|lane| immoderate(a[lane], FACTORS) | immoderate(b[lane], FACTORS));
    if union_of(|lane| outside[lane]) != 0 {
        return extremes::products(a, b, Direction::of(round));
    }
    match round {
        Round::Nearest => wide_each(|lane| {
            let product = f(a[lane]) * f(b[lane]);
            settled(product.to_bits(), [a[lane], b[lane]])
        }),
        // No NaN comes of these.
        round => directed!(round, |lane, sides| {
            let (a, b) = (f(a[lane]), f(b[lane]));
            let product = a * b;
            stepped(product, a.mul_add(b, -product), sides)
        }),
    }
}

#[inline(always)]
pub(crate) fn fma(a: &Wide, b: &Wide, c: &Wide, round: Round) -> Wide {
    let outside = wide_each(|lane| {
        immoderate(a[lane], FACTORS) | immoderate(b[lane], FACTORS) | immoderate(c[lane], ADDENDS)
    });
    if union_of(|lane| outside[lane]) != 0 {
        return extremes::fused(a, b, c, Direction::of(round));
    }
    match round {
        Round::Nearest => wide_each(|lane| {
            let sum = f(a[lane]).mul_add(f(b[lane]), f(c[lane]));
            settled(sum.to_bits(), [a[lane], b[lane], c[lane]])
        }),
        round => directed!(round, |lane, sides| {
            let sum = Fused::of(f(a[lane]), f(b[lane]), f(c[lane]));
            stepped(sum.nearest, sum.rest, sides) | cancelled(sum.nearest, sum.rest, sum.signs, sides)
        }),
    }
}

/// A product and a sum at once.
struct Fused {
    nearest: f64,
    /// It has the sign of what is left of the exact value.
    rest: f64,
    /// The sign of those of the product and the addend.
    signs: u64,
}

impl Fused {
    #[inline(always)]
    fn of(a: f64, b: f64, c: f64) -> Self {
        let two_sum = |x: f64, y: f64| {
            let sum = x + y;
            let part = sum - x;
            (sum, (x - (sum - part)) + (y - part))
        };
        let nearest = a.mul_add(b, c);
        let product = a * b;
        let product_rest = a.mul_add(b, -product);
        let (low, lowest) = two_sum(c, product_rest);
        let (high, middle) = two_sum(product, low);
        Self {
            nearest,
            rest: ((high - nearest) + middle) + lowest,
            signs: product.to_bits() | c.to_bits(),
        }
    }
}

/// As [`super::single::min_max`]; both NaN gives the first, quiet.
#[inline(always)]
pub(crate) fn min_max(a: &Wide, b: &Wide, wants_min: u32) -> Wide {
    wide_each(|lane| {
        let (x, y) = (f(a[lane]), f(b[lane]));
        let a_is_negative = wide_if(a[lane] >> 63 != 0);
        let a_is_less = wide_if(x < y) | wide_if(x == y) & a_is_negative;
        let wants_less = wide_if(wants_min >> lane & 1 != 0);
        let (a_is_nan, b_is_nan) = (wide_if(x.is_nan()), wide_if(y.is_nan()));
        let takes_a = b_is_nan | !a_is_nan & !(a_is_less ^ wants_less);
        (a[lane] | QUIET & a_is_nan & b_is_nan) & takes_a | b[lane] & !takes_a
    })
}

/// Lanes for which a comparison holds.
#[inline(always)]
pub(crate) fn compare(a: &Wide, b: &Wide, comparison: Comparison) -> u32 {
    let [less, equal, greater, unordered] = comparison.wanted();
    mask_of(|lane| {
        let (x, y) = (f(a[lane]), f(b[lane]));
        let unordered = unordered & all_if(x.is_nan() | y.is_nan());
        let ordered = less & all_if(x < y) | equal & all_if(x == y) | greater & all_if(x > y);
        (ordered | unordered) != 0
    })
}

/// Masks of the flags of results: zero, sign, carry, overflow. assumption: NaN is zero and negative.
#[inline(always)]
pub(crate) fn flags(results: &Wide) -> [u32; 4] {
    let nan = mask_of(|lane| f(results[lane]).is_nan());
    [
        mask_of(|lane| f(results[lane]) == 0.0) | nan,
        mask_of(|lane| f(results[lane]) < 0.0) | nan,
        0,
        0,
    ]
}

/// A number that is as far from any f16, and of which hosts take no 150 cycles for a product: no denormal one.
#[inline(always)]
pub(super) fn without_denormal(value: f64) -> f64 {
    const LEAST: u64 = 1 << 52;
    let bits = value.to_bits();
    let is_denormal = wide_if((bits & !SIGN).wrapping_sub(1) < LEAST - 1);
    f(bits | LEAST & is_denormal)
}

/// An integer as the f64 nearest to it, and the rest.
#[inline(always)]
pub(super) fn of_integer(high: f64, low: u32) -> (f64, f64) {
    let (high, low) = (high * power(32), f64::from(low));
    let sum = high + low;
    (sum, low - (sum - high))
}

#[cfg(test)]
mod tests;
