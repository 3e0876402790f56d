//! The special-function unit. assumption: denormals are flushed on both sides, as it has no bit for it; results are
//! those of f64 functions rounded once, which is within every documented bound; range reduction hands its operand on.

use super::{
    convert::Values,
    single::{NAN, flush, flushed, modify, saturate},
    transcendental,
};
use crate::compute::warp::{Lanes, each, lanes_of};

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

/// The function of `values`, after `abs` and `neg`, clamped to 0–1 if `sat`.
#[inline(always)]
pub(crate) fn evaluate(function: Function, values: &Lanes, [abs, neg, sat]: [bool; 3]) -> Lanes {
    let values = each(|lane| modify(values[lane], abs, neg));
    let operands = flushed(&values);
    let result = match function {
        Function::Reciprocal64 => return each(|lane| upper(values[lane], |x| 1.0 / x)),
        Function::ReciprocalRoot64 => return each(|lane| upper(values[lane], |x| 1.0 / x.sqrt())),
        Function::Reciprocal => each(|lane| reciprocal(operands[lane])),
        // Of −0 it is minus infinity.
        Function::ReciprocalRoot => {
            each(|lane| rounded(1.0 / f64::from(f32::from_bits(operands[lane])).sqrt()))
        }
        Function::Cos => decided(function, &operands, &transcendental::sine(&operands, 1)),
        Function::Sin => decided(function, &operands, &transcendental::sine(&operands, 0)),
        Function::Exp2 => decided(function, &operands, &transcendental::exponential(&operands)),
        Function::Log2 => decided(function, &operands, &transcendental::logarithm(&operands)),
    };
    if sat {
        each(|lane| saturate(result[lane]))
    } else {
        result
    }
}

/// Of numbers that are not denormal. One whose reciprocal would be denormal counts as infinite, because hosts are slow
/// with such results.
#[inline(always)]
fn reciprocal(bits: u32) -> u32 {
    /// The largest number whose reciprocal is not denormal: 2^126.
    const LARGEST: f32 = 8.507_059e37;
    let x = f32::from_bits(bits);
    let x = if x.abs() > LARGEST {
        f32::INFINITY.copysign(x)
    } else {
        x
    };
    rounded(f64::from(1.0 / x))
}

/// The values rounded to f32, of which those too near to the middle between two are libm's.
#[inline(always)]
fn decided(function: Function, operands: &Lanes, values: &Values) -> Lanes {
    let mut result = each(|lane| rounded(values[lane]));
    let undecided = transcendental::undecided(values);
    if undecided != 0 {
        for lane in lanes_of(undecided) {
            result[lane] = rounded(by_library(function, f32::from_bits(operands[lane]).into()));
        }
    }
    result
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
fn by_library(function: Function, x: f64) -> f64 {
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
    use crate::compute::warp::LANES;

    fn bits_of(function: Function, bits: u32, sat: bool) -> u32 {
        evaluate(function, &[bits; LANES], [false, false, sat])[3]
    }

    /// libm's f64 of each of 32 patterns side by side, rounded.
    fn check(function: Function, first: u32) {
        let operands = each(|lane| first.wrapping_add(lane as u32));
        let found = evaluate(function, &operands, [false; 3]);
        for (bits, found) in operands.into_iter().zip(found) {
            let x = f64::from(f32::from_bits(flush(bits)));
            let expected = match function {
                Function::Reciprocal => 1.0 / x,
                Function::ReciprocalRoot => 1.0 / x.sqrt(),
                _ => by_library(function, x),
            };
            assert_eq!(found, rounded(expected), "{function:?} of {bits:#010x}");
        }
    }

    const OF_SINGLES: [Function; 6] = [
        Function::Cos,
        Function::Sin,
        Function::Exp2,
        Function::Log2,
        Function::Reciprocal,
        Function::ReciprocalRoot,
    ];

    #[test]
    fn every_result_is_that_of_f64_rounded_once() {
        for function in OF_SINGLES {
            // A prime, so that all lower digits occur; and both sides of each power of two.
            for first in (0..=u32::MAX).step_by(1_000_003) {
                check(function, first);
            }
            for exponent in 0..512u32 {
                check(function, (exponent << 23).wrapping_sub(16));
            }
            // The bounds of 2^x: -126 and 128.
            for first in [0xc2fb_fff0, 0xc2fc_fff0, 0xc300_fff0, 0x42ff_fff0] {
                check(function, first);
            }
        }
    }

    #[test]
    fn values_near_the_middle_between_two_are_left_to_the_library() {
        let middle = f64::from_bits(1f64.to_bits() | 1 << 28);
        let values = std::array::from_fn(|lane| match lane {
            0..16 => f64::from_bits(middle.to_bits() + 64 * lane as u64 - 512),
            _ => lane as f64,
        });
        assert_eq!(transcendental::undecided(&values), 0xffff);
    }

    /// Takes minutes with optimisation: `cargo test -p fermi_model --release -- --ignored every_pattern`.
    #[test]
    #[ignore = "takes minutes"]
    fn every_pattern_is_that_of_f64_rounded_once() {
        for function in OF_SINGLES {
            for first in (0..=u32::MAX).step_by(LANES) {
                check(function, first);
            }
        }
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
