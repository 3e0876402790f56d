//! Arithmetic of f32 values.

use super::{Comparison, Round, odd_sum};

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

    #[inline(always)]
    fn flushes(self) -> bool {
        self.ftz || self.fmz
    }

    #[inline(always)]
    fn operand(self, bits: u32) -> u32 {
        if self.flushes() { flush(bits) } else { bits }
    }

    #[inline(always)]
    fn result(self, value: f32) -> u32 {
        let bits = if value.is_nan() { NAN } else { value.to_bits() };
        let bits = if self.flushes() { flush(bits) } else { bits };
        if self.sat { saturate(bits) } else { bits }
    }
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

/// Clamped to 0–1; NaN and −0 become +0.
#[inline(always)]
pub(crate) fn saturate(bits: u32) -> u32 {
    let value = f32::from_bits(bits);
    if value >= 1.0 {
        ONE
    } else if value > 0.0 {
        bits
    } else {
        0
    }
}

#[inline(always)]
pub(crate) fn add(a: u32, b: u32, mode: Mode) -> u32 {
    let (a, b) = (f32::from_bits(mode.operand(a)), f32::from_bits(mode.operand(b)));
    mode.result(match mode.round {
        Round::Nearest => a + b,
        round => directed_sum(f64::from(a), f64::from(b), round),
    })
}

/// `exponent`: of the power of two that the exact product is scaled by. assumption: scaled before it is rounded.
#[inline(always)]
pub(crate) fn mul(a: u32, b: u32, exponent: i32, mode: Mode) -> u32 {
    let (a, b) = (f32::from_bits(mode.operand(a)), f32::from_bits(mode.operand(b)));
    if mode.fmz && (a == 0.0 || b == 0.0) {
        return mode.result(0.0);
    }
    if mode.round == Round::Nearest && exponent == 0 {
        return mode.result(a * b);
    }
    // 48 bits and any scale fit an f64.
    let product = f64::from(a) * f64::from(b) * f64::from(exponent).exp2();
    mode.result(narrow(product, mode.round))
}

#[inline(always)]
pub(crate) fn fma(a: u32, b: u32, c: u32, mode: Mode) -> u32 {
    let operand = |bits| f32::from_bits(mode.operand(bits));
    let (a, b, c) = (operand(a), operand(b), operand(c));
    if mode.fmz && (a == 0.0 || b == 0.0) {
        return add(0, c.to_bits(), mode);
    }
    mode.result(match mode.round {
        Round::Nearest => a.mul_add(b, c),
        round => directed_sum(f64::from(a) * f64::from(b), f64::from(c), round),
    })
}

/// The sum of two exact values, rounded in a direction other than to nearest.
#[inline(never)]
fn directed_sum(x: f64, y: f64, round: Round) -> f32 {
    let sum = odd_sum(x, y);
    let is_cancelled = sum == 0.0 && (x.is_sign_negative() != y.is_sign_negative());
    if is_cancelled {
        return if round == Round::Down { -0.0 } else { 0.0 };
    }
    narrow(sum, round)
}

/// An f64 rounded to f32.
pub(crate) fn narrow(value: f64, round: Round) -> f32 {
    let nearest = value as f32;
    let widened = f64::from(nearest);
    if round == Round::Nearest || widened == value || value.is_nan() || value.is_infinite() {
        return nearest;
    }
    let is_above = widened > value;
    let wants_below = match round {
        Round::Down => true,
        Round::Up | Round::Nearest => false,
        Round::Zero => value > 0.0,
    };
    match (is_above, wants_below) {
        (true, true) => nearest.next_down(),
        (false, false) => nearest.next_up(),
        _ => nearest,
    }
}

/// The operand that is not NaN, the lower or higher of the two; −0 is below +0.
#[inline(always)]
pub(crate) fn min_max(a: u32, b: u32, wants_min: bool, ftz: bool) -> u32 {
    let (a, b) = if ftz { (flush(a), flush(b)) } else { (a, b) };
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let a_is_less = x < y || x == y && a & SIGN != 0;
            if a_is_less == wants_min { a } else { b }
        }
    }
}

#[inline(always)]
pub(crate) fn compare(a: u32, b: u32, comparison: Comparison, ftz: bool) -> bool {
    let (a, b) = if ftz { (flush(a), flush(b)) } else { (a, b) };
    comparison.holds(f32::from_bits(a).partial_cmp(&f32::from_bits(b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn f(value: f32) -> u32 {
        value.to_bits()
    }

    #[test]
    fn vectors_of_the_instruction_set_page() {
        assert_eq!(add(0x3f80_0000, 0x3380_0000, Mode::PLAIN), 0x3f80_0000);
        assert_eq!(
            fma(0x3f80_0001, 0x3f80_0001, 0xbf80_0002, Mode::PLAIN),
            0x2880_0000
        );
        assert_eq!(mul(0x4040_0000, 0x4000_0000, -2, Mode::PLAIN), 0x3fc0_0000);
        assert!(compare(0x7fc0_0000, 0, Comparison(9), false));
        assert!(!compare(0x7fc0_0000, 0, Comparison(1), false));
    }

    #[test]
    fn nan_results_are_one_pattern_and_saturate_to_zero() {
        assert_eq!(add(f(f32::INFINITY), f(f32::NEG_INFINITY), Mode::PLAIN), NAN);
        let sat = Mode {
            sat: true,
            ..Mode::PLAIN
        };
        assert_eq!(add(0xffc0_0001, f(1.0), sat), 0);
        assert_eq!(add(f(0.75), f(0.75), sat), ONE);
    }

    #[test]
    fn flush_and_zero_factor_modes() {
        let ftz = Mode {
            ftz: true,
            ..Mode::PLAIN
        };
        let fmz = Mode {
            fmz: true,
            ..Mode::PLAIN
        };
        assert_eq!(add(0x8000_0001, 0x8000_0000, ftz), 0x8000_0000);
        assert_eq!(mul(f(0.0), f(f32::INFINITY), 0, fmz), 0);
        assert_eq!(mul(f(-0.0), f(1.0), 0, fmz), 0);
        assert_eq!(fma(f(0.0), f(f32::NAN), f(2.0), fmz), f(2.0));
    }

    #[test]
    fn minimum_prefers_numbers_and_negative_zero() {
        assert_eq!(min_max(NAN, f(1.0), true, false), f(1.0));
        assert_eq!(min_max(f(0.0), f(-0.0), true, false), f(-0.0));
        assert_eq!(min_max(f(-0.0), f(0.0), false, false), f(0.0));
        assert_eq!(min_max(0x7fc0_0001, 0xffff_ffff, false, false), NAN);
    }

    #[test]
    fn cancelled_sum_has_the_sign_of_the_direction() {
        let mode = |round| Mode { round, ..Mode::PLAIN };
        assert_eq!(add(f(1.5), f(-1.5), mode(Round::Down)), f(-0.0));
        assert_eq!(add(f(1.5), f(-1.5), mode(Round::Up)), f(0.0));
        assert_eq!(add(f(-0.0), f(-0.0), mode(Round::Up)), f(-0.0));
    }

    #[test]
    fn overflow_stops_at_the_largest_number_on_the_near_side() {
        let mode = |round| Mode { round, ..Mode::PLAIN };
        assert_eq!(mul(f(f32::MAX), f(2.0), 0, mode(Round::Zero)), f(f32::MAX));
        assert_eq!(mul(f(f32::MAX), f(2.0), 0, mode(Round::Up)), f(f32::INFINITY));
        assert_eq!(
            mul(f(f32::MIN), f(2.0), 0, mode(Round::Down)),
            f(f32::NEG_INFINITY)
        );
    }

    fn apfloat(a: u32, b: u32, c: Option<u32>, round: Round, times: bool) -> u32 {
        use rustc_apfloat::{Float as _, Round as R, ieee::Single};
        let single = |bits: u32| Single::from_bits(u128::from(bits));
        let round = match round {
            Round::Nearest => R::NearestTiesToEven,
            Round::Down => R::TowardNegative,
            Round::Up => R::TowardPositive,
            Round::Zero => R::TowardZero,
        };
        let value = match c {
            Some(c) => single(a).mul_add_r(single(b), single(c), round).value,
            None if times => single(a).mul_r(single(b), round).value,
            None => single(a).add_r(single(b), round).value,
        };
        if value.is_nan() {
            NAN
        } else {
            value.to_bits() as u32
        }
    }

    fn rounds() -> impl Strategy<Value = Round> {
        prop_oneof![
            Just(Round::Nearest),
            Just(Round::Down),
            Just(Round::Up),
            Just(Round::Zero)
        ]
    }

    /// Values near each other, so that sums cancel and round in interesting places.
    fn floats() -> impl Strategy<Value = u32> {
        prop_oneof![
            any::<u32>(),
            (0x3f00_0000u32..0x4100_0000, any::<bool>()).prop_map(|(bits, neg)| bits | u32::from(neg) << 31),
            (0u32..0x0180_0000, any::<bool>()).prop_map(|(bits, neg)| bits | u32::from(neg) << 31),
        ]
    }

    proptest! {
        #[test]
        fn arithmetic_agrees_with_an_independent_library(
            a in floats(), b in floats(), c in floats(), round in rounds()
        ) {
            let mode = Mode { round, ..Mode::PLAIN };
            prop_assert_eq!(add(a, b, mode), apfloat(a, b, None, round, false));
            prop_assert_eq!(mul(a, b, 0, mode), apfloat(a, b, None, round, true));
            prop_assert_eq!(fma(a, b, c, mode), apfloat(a, b, Some(c), round, true));
        }
    }
}
