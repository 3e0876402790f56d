//! Products, and their sums with a third number, of any operands: denormal ones, and such as leave the range of exponents.
//!
//! Operands become numbers around 1, of which the product and its rest are exact, and exponents that are integers. The
//! exponent of the result, and the digits that a denormal one loses, are arithmetic of integers. So no step is denormal,
//! which hosts take 150 cycles for.

use super::{Direction, Fused, SIGN, cancelled, f, settled, stepped, wide_if};
use crate::compute::warp::{LANES, Wide};

const FRACTION: u64 = (1 << 52) - 1;
const ONE: u64 = 1023 << 52;
const INFINITY: u64 = 0x7ff << 52;
/// Of a zero: below that of any product.
const EXPONENT_OF_ZERO: i64 = -5000;

/// A number from 1 to 2 and an exponent; zeros, infinities and NaN are themselves.
#[inline(always)]
fn parts(bits: u64) -> (f64, i64) {
    let magnitude = bits & !SIGN;
    let is_denormal = wide_if(magnitude < 1 << 52);
    // Units of 2^-1022.
    let normal = (f(ONE | magnitude & FRACTION) - 1.0).to_bits();
    let number = normal & is_denormal | magnitude & !is_denormal;
    let is_zero = wide_if(number == 0);
    let is_itself = is_zero | wide_if(number >= INFINITY);
    let digits = (number & FRACTION | ONE) & !is_itself | number & is_itself;
    let exponent = (number >> 52).wrapping_sub(1023 + (1022 & is_denormal));
    let exponent = exponent & !is_itself | EXPONENT_OF_ZERO as u64 & is_zero;
    (f(digits | bits & SIGN), exponent as i64)
}

/// 2^`exponent` times the sum of `nearest` and a rest that is no more than half a digit of it, rounded. Zeros, infinities
/// and NaN stay.
#[inline(always)]
fn scaled(nearest: f64, rest: f64, exponent: i64, direction: Direction) -> u64 {
    let bits = nearest.to_bits();
    let (sign, magnitude) = (bits & SIGN, bits & !SIGN);
    let is_negative = wide_if(sign != 0);
    let outward = direction.sides.above & !is_negative | direction.sides.below & is_negative;
    let result_exponent = ((magnitude >> 52) as i64).wrapping_add(exponent);

    let normal = stepped(nearest, rest, direction.sides).wrapping_add((exponent as u64).wrapping_shl(52));

    let beyond = sign | INFINITY.wrapping_sub(1 & !(outward | direction.nearest));

    // Digits down to the least denormal, and what is lost below.
    let has_rest = wide_if(rest != 0.0);
    let is_less = wide_if((bits ^ rest.to_bits()) & SIGN != 0) & has_rest;
    let digits = (magnitude & FRACTION | 1 << 52).wrapping_sub(1 & is_less);
    let lost = 1i64.wrapping_sub(result_exponent).clamp(1, 60) as u32;
    let kept = digits.wrapping_shr(lost);
    let dropped = digits & 1u64.wrapping_shl(lost).wrapping_sub(1);
    let half = 1u64.wrapping_shl(lost.wrapping_sub(1));
    let is_odd = wide_if(kept & 1 != 0);
    let is_nearer = wide_if(dropped > half) | wide_if(dropped == half) & (has_rest | is_odd);
    let goes_on = outward & (wide_if(dropped != 0) | has_rest) | direction.nearest & is_nearer;
    let denormal = sign | kept.wrapping_add(1 & goes_on);

    let is_itself = wide_if(magnitude == 0) | wide_if(magnitude >= INFINITY);
    let is_denormal = wide_if(result_exponent <= 0);
    let is_beyond = wide_if(result_exponent >= 0x7ff);
    let result = normal & !is_denormal | denormal & is_denormal;
    let result = result & !is_beyond | beyond & is_beyond;
    result & !is_itself | bits & is_itself
}

/// Products of all lanes.
//
// A loop without a closure: one of this length would be called, and what is called is compiled for any processor.
#[inline(always)]
pub(super) fn products(a: &Wide, b: &Wide, direction: Direction) -> Wide {
    let mut results = [0; LANES];
    for lane in 0..LANES {
        let result = product(a[lane], b[lane], direction);
        results[lane] = settled(result, [a[lane], b[lane]]);
    }
    results
}

/// Products of `a` and `b` and `c` at once, of all lanes.
#[inline(always)]
pub(super) fn fused(a: &Wide, b: &Wide, c: &Wide, direction: Direction) -> Wide {
    let mut results = [0; LANES];
    for lane in 0..LANES {
        let operands = [a[lane], b[lane], c[lane]];
        results[lane] = settled(fma(operands, direction), operands);
    }
    results
}

#[inline(always)]
fn product(a: u64, b: u64, direction: Direction) -> u64 {
    let ((a, exponent_a), (b, exponent_b)) = (parts(a), parts(b));
    let product = a * b;
    let rest = a.mul_add(b, -product);
    scaled(product, rest, exponent_a.wrapping_add(exponent_b), direction)
}

/// The product of the first two and the third.
#[inline(always)]
fn fma([a, b, c]: [u64; 3], direction: Direction) -> u64 {
    /// Binary digits between a product of numbers around 1 and an addend that is so large, or so small, that the other is
    /// but a rest: one that is farther rounds alike.
    const APART: i64 = 130;
    let ((a, exponent_a), (b, exponent_b), (c, exponent_c)) = (parts(a), parts(b), parts(c));
    let of_product = exponent_a.wrapping_add(exponent_b);
    let distance = exponent_c.wrapping_sub(of_product).clamp(-APART, APART);
    let scale = f(ONE.wrapping_add((distance as u64).wrapping_shl(52)));
    let sum = Fused::of(a, b, c * scale);
    let exponent = of_product.max(exponent_c.wrapping_sub(APART));
    scaled(sum.nearest, sum.rest, exponent, direction)
        | cancelled(sum.nearest, sum.rest, sum.signs, direction.sides)
}
