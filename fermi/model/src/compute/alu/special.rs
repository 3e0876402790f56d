//! The special-function unit. assumption: denormals are flushed on both sides, as it has no bit for it; results are
//! those of f64 functions rounded once, which is within every documented bound; range reduction hands its operand on.

use super::single::{NAN, flush, modify, saturate};
use crate::compute::warp::{LANES, Lanes, each, lanes_of};

/// Functions of MUFU by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Function {
    Cos,
    Sin,
    Exp2,
    Log2,
    Reciprocal,
    ReciprocalRoot,
    /// Upper word of an f64's reciprocal, of its upper word.
    Reciprocal64,
    ReciprocalRoot64,
}

impl Function {
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits & 7 {
            0 => Self::Cos,
            1 => Self::Sin,
            2 => Self::Exp2,
            3 => Self::Log2,
            4 => Self::Reciprocal,
            5 => Self::ReciprocalRoot,
            6 => Self::Reciprocal64,
            _ => Self::ReciprocalRoot64,
        }
    }
}

/// The function of `values`, after `abs` and `neg`, clamped to 0–1 if `sat`. Lanes that do not take part may be left out.
#[inline(always)]
pub(crate) fn evaluate(function: Function, values: &Lanes, [abs, neg, sat]: [bool; 3], lanes: u32) -> Lanes {
    let values = each(|lane| modify(values[lane], abs, neg));
    let x = |lane: usize| f64::from(f32::from_bits(flush(values[lane])));
    let result = match function {
        Function::Reciprocal64 => return each(|lane| upper(values[lane], |x| 1.0 / x)),
        Function::ReciprocalRoot64 => return each(|lane| upper(values[lane], |x| 1.0 / x.sqrt())),
        Function::Reciprocal => each(|lane| rounded(1.0 / x(lane))),
        // Of −0 it is minus infinity.
        Function::ReciprocalRoot => each(|lane| rounded(1.0 / x(lane).sqrt())),
        _ => {
            let mut result = [0; LANES];
            for lane in lanes_of(lanes) {
                result[lane] = rounded(transcendental(function, x(lane)));
            }
            result
        }
    };
    if sat {
        each(|lane| saturate(result[lane]))
    } else {
        result
    }
}

/// A result as f32: NaN is one pattern, and denormals are zeros.
#[inline(always)]
fn rounded(value: f64) -> u32 {
    let result = value as f32;
    let bits = flush(result.to_bits());
    if result.is_nan() { NAN } else { bits }
}

/// Sine, cosine, exponent and logarithm.
#[inline(never)]
fn transcendental(function: Function, x: f64) -> f64 {
    match function {
        Function::Cos | Function::Sin if x.is_infinite() => f64::NAN,
        Function::Cos => libm::cos(x),
        Function::Sin => libm::sin(x),
        Function::Exp2 => libm::exp2(x),
        _ => libm::log2(x),
    }
}

/// On the upper word of an f64 whose lower word counts as zero; denormals are flushed.
#[inline(always)]
fn upper(bits: u32, function: impl FnOnce(f64) -> f64) -> u32 {
    const SIGN: u64 = 1 << 63;
    let is_denormal = |bits: u64| bits & 0x7ff0_0000_0000_0000 == 0;
    let wide = u64::from(bits) << 32;
    let operand = if is_denormal(wide) { wide & SIGN } else { wide };
    let x = f64::from_bits(operand);
    let result = function(x).to_bits();
    let result = if f64::from_bits(result).is_infinite() {
        f64::INFINITY.copysign(x).to_bits()
    } else {
        result
    };
    let result = if is_denormal(result) {
        result & SIGN
    } else {
        result
    };
    (result >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits_of(function: Function, bits: u32, sat: bool) -> u32 {
        evaluate(function, &[bits; LANES], [false, false, sat], 1 << 3)[3]
    }

    fn of(function: Function, x: f32) -> f32 {
        f32::from_bits(bits_of(function, x.to_bits(), false))
    }

    #[test]
    fn edges_are_as_documented() {
        assert_eq!(of(Function::Exp2, f32::NEG_INFINITY), 0.0);
        assert_eq!(of(Function::Log2, -0.0), f32::NEG_INFINITY);
        assert!(of(Function::Log2, -1.0).is_nan());
        assert_eq!(of(Function::Reciprocal, -0.0), f32::NEG_INFINITY);
        assert_eq!(
            of(Function::Reciprocal, f32::NEG_INFINITY).to_bits(),
            (-0.0f32).to_bits()
        );
        assert_eq!(of(Function::ReciprocalRoot, -0.0), f32::NEG_INFINITY);
        assert!(of(Function::ReciprocalRoot, -1.0).is_nan());
        assert!(of(Function::Sin, f32::INFINITY).is_nan());
        assert_eq!(of(Function::Reciprocal, 3.0), 1.0 / 3.0);
        assert_eq!(bits_of(Function::Cos, 0, true), 1f32.to_bits());
    }

    #[test]
    fn upper_words_approximate_doubles() {
        let high = |x: f64| (x.to_bits() >> 32) as u32;
        let reciprocal = bits_of(Function::Reciprocal64, high(3.0), false);
        let found = f64::from_bits(u64::from(reciprocal) << 32);
        assert!((found * 3.0 - 1.0).abs() < 1e-6);
        assert_eq!(bits_of(Function::Reciprocal64, 0x8000_0000, false), 0xfff0_0000);
    }

    #[test]
    fn results_stay_within_the_documented_error() {
        for step in -2000..2000 {
            let x = step as f32 * 0.00314;
            assert!((f64::from(of(Function::Sin, x)) - f64::from(x).sin()).abs() < 2f64.powf(-20.5));
            assert!((f64::from(of(Function::Cos, x)) - f64::from(x).cos()).abs() < 2f64.powf(-20.5));
        }
    }
}
