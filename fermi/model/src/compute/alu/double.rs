//! f64 arithmetic of all lanes at once. Denormals are kept; neither saturation nor flushing exists.
//!
//! Directed roundings take the neighbour of the nearest f64 where what that leaves has the other sign. The rest of a sum,
//! a product or both together is a sum of f64 values, exactly (Knuth, Dekker; Boldo and Muller, "Exact and approximated
//! error of the FMA"), as long as nothing overflows or is lost below the least denormal.

use super::{Comparison, Round, double, single::all_if};
use crate::compute::warp::{LANES, Wide, lanes_of, mask_of, union_of, wide_each};
use rustc_apfloat::{Float as _, ieee::Double};

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

/// Gives NaN results their bits.
#[inline(always)]
fn settled<const N: usize>(results: Wide, operands: [&Wide; N]) -> Wide {
    if union_of(|lane| wide_if(f(results[lane]).is_nan())) == 0 {
        return results;
    }
    wide_each(|lane| {
        let mut chosen = DEFAULT_NAN;
        for number in (0..N).rev() {
            let operand = operands[number][lane];
            let is_nan = wide_if(f(operand).is_nan());
            chosen = (operand | QUIET) & is_nan | chosen & !is_nan;
        }
        let is_nan = wide_if(f(results[lane]).is_nan());
        chosen & is_nan | results[lane] & !is_nan
    })
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
    let results = match round {
        Round::Nearest => wide_each(|lane| (f(a[lane]) + f(b[lane])).to_bits()),
        round => directed!(round, |lane, sides| directed_sum(a[lane], b[lane], sides)),
    };
    settled(results, [a, b])
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

#[inline(always)]
pub(crate) fn mul(a: &Wide, b: &Wide, round: Round) -> Wide {
    let results = match round {
        Round::Nearest => wide_each(|lane| (f(a[lane]) * f(b[lane])).to_bits()),
        round if has_inexact([a, b, &[0; LANES]]) => {
            directed!(round, |lane, sides| directed_product(
                f(a[lane]),
                f(b[lane]),
                sides
            ))
        }
        round => directed!(round, |lane, sides| exact_product(f(a[lane]), f(b[lane]), sides)),
    };
    settled(results, [a, b])
}

/// A product whose rest is no smaller than a denormal.
#[inline(always)]
fn exact_product(a: f64, b: f64, sides: Sides) -> u64 {
    let product = a * b;
    stepped(product, a.mul_add(b, -product), sides)
}

/// Factors are scaled to where the product's rest is exact, and the nearest product back. Two roundings instead of one
/// still give a neighbour of the exact value.
#[inline(always)]
fn directed_product(a: f64, b: f64, sides: Sides) -> u64 {
    // The factor's scale, and half of it that is taken back.
    let scale = |value: f64| {
        let (small, large) = (value.abs() < power(-450), value.abs() >= power(450));
        let (small, large) = (wide_if(small), wide_if(large));
        let chosen = |down: f64, up: f64| {
            let bits = up.to_bits() & small | down.to_bits() & large;
            f(bits | 1f64.to_bits() & !(small | large))
        };
        (chosen(power(-600), power(600)), chosen(power(300), power(-300)))
    };
    let ((scale_a, half_a), (scale_b, half_b)) = (scale(a), scale(b));
    let (a, b) = (a * scale_a, b * scale_b);
    let product = a * b;
    let error = a.mul_add(b, -product);
    let half = half_a * half_b;
    let nearest = product * half * half;
    // Powers of two are divided by exactly: their exponents turn.
    let back = f64::from_bits((2046u64 << 52).wrapping_sub(half.to_bits()));
    let rest = (product - nearest * back * back) + error;
    stepped(nearest, rest, sides)
}

#[inline(always)]
pub(crate) fn fma(a: &Wide, b: &Wide, c: &Wide, round: Round) -> Wide {
    let results = match round {
        Round::Nearest => wide_each(|lane| f(a[lane]).mul_add(f(b[lane]), f(c[lane])).to_bits()),
        round => directed_fma(a, b, c, round),
    };
    settled(results, [a, b, c])
}

#[inline(always)]
fn directed_fma(a: &Wide, b: &Wide, c: &Wide, round: Round) -> Wide {
    let mut results = directed!(round, |lane, sides| exact_fma(
        f(a[lane]),
        f(b[lane]),
        f(c[lane]),
        sides
    ));
    if has_inexact([a, b, c]) {
        let lanes = mask_of(|lane| !is_exact(f(a[lane]), f(b[lane]), f(c[lane])));
        for lane in lanes_of(lanes) {
            results[lane] = slow_fma([a[lane], b[lane], c[lane]], round);
        }
    }
    results
}

/// Whether there is a lane of which [`exact_fma`] would lose something.
#[inline(always)]
fn has_inexact([a, b, c]: [&Wide; 3]) -> bool {
    union_of(|lane| wide_if(!is_exact(f(a[lane]), f(b[lane]), f(c[lane])))) != 0
}

/// Whether [`exact_fma`] loses nothing: the product's rest is no smaller than a denormal, and no step overflows.
#[inline(always)]
fn is_exact(a: f64, b: f64, c: f64) -> bool {
    let product = (a * b).abs();
    let has_room = (product >= power(-960)) & (product < power(1020)) & (c.abs() < power(1020));
    let is_zero = ((a == 0.0) | (b == 0.0)) & (c.abs() < power(1020));
    // A NaN, or an infinity as it should be.
    let is_special = !a.is_finite() | !b.is_finite() | !c.is_finite();
    has_room | is_zero | is_special
}

#[inline(always)]
fn exact_fma(a: f64, b: f64, c: f64, sides: Sides) -> u64 {
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
    let rest = ((high - nearest) + middle) + lowest;
    let signs = product.to_bits() | c.to_bits();
    stepped(nearest, rest, sides) | cancelled(nearest, rest, signs, sides)
}

/// For exponents near the ends of the range: digit by digit.
#[inline(never)]
fn slow_fma(operands: [u64; 3], round: Round) -> u64 {
    let round = match round {
        Round::Nearest => rustc_apfloat::Round::NearestTiesToEven,
        Round::Down => rustc_apfloat::Round::TowardNegative,
        Round::Up => rustc_apfloat::Round::TowardPositive,
        Round::Zero => rustc_apfloat::Round::TowardZero,
    };
    let [a, b, c] = operands.map(|bits| Double::from_bits(u128::from(bits)));
    a.mul_add_r(b, c, round).value.to_bits() as u64
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

/// An integer as the f64 nearest to it, and the rest.
#[inline(always)]
pub(super) fn of_integer(high: f64, low: u32) -> (f64, f64) {
    let (high, low) = (high * power(32), f64::from(low));
    let sum = high + low;
    (sum, low - (sum - high))
}

#[cfg(test)]
mod tests;
