//! Conversions between floats and integers of all sizes.

use super::{
    Round,
    single::{NAN, flush, modify, narrow, saturate},
};

/// Size of a float.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Float {
    Half,
    Single,
    Double,
}

impl Float {
    /// Decodes its number in an instruction; the reserved one is a single.
    pub(crate) fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            1 => Self::Half,
            3 => Self::Double,
            _ => Self::Single,
        }
    }
}

/// Size and sign of an integer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Integer {
    /// 8, 16, 32 or 64.
    pub(crate) bits: u32,
    pub(crate) signed: bool,
}

impl Integer {
    /// Decodes its number in an instruction: size in bits 1:0, sign in bit 2.
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self {
            bits: 8 << (bits & 3),
            signed: bits & 4 != 0,
        }
    }

    fn least(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn most(self) -> i128 {
        let magnitude = self.bits - u32::from(self.signed);
        (1 << magnitude) - 1
    }

    /// The low bits of `value` as a number of this type.
    pub(crate) fn of(self, value: u64) -> i128 {
        let unused = 64 - self.bits;
        if self.signed {
            i128::from((value << unused) as i64 >> unused)
        } else {
            i128::from(value << unused >> unused)
        }
    }
}

/// The value of a float; bit patterns of halves are in the low 16 bits.
fn value_of(format: Float, bits: u64) -> f64 {
    match format {
        Float::Half => half_value(bits as u16),
        Float::Single => f64::from(f32::from_bits(bits as u32)),
        Float::Double => f64::from_bits(bits),
    }
}

/// Absolute value and negation of a float of any size.
fn modified(format: Float, bits: u64, abs: bool, neg: bool) -> u64 {
    match format {
        Float::Half => {
            let bits = if abs { bits & 0x7fff } else { bits & 0xffff };
            if neg { bits ^ 0x8000 } else { bits }
        }
        Float::Single => u64::from(modify(bits as u32, abs, neg)),
        Float::Double => super::double::modify(bits, abs, neg),
    }
}

/// Modifiers and rounding of a float conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FloatOptions {
    pub(crate) abs: bool,
    pub(crate) neg: bool,
    pub(crate) ftz: bool,
    pub(crate) sat: bool,
    pub(crate) round: Round,
    /// Rounded to a whole number.
    pub(crate) integral: bool,
}

/// Float to float.
pub(crate) fn float_to_float(bits: u64, from: Float, to: Float, options: FloatOptions) -> u64 {
    let bits = modified(from, bits, options.abs, options.neg);
    let bits = if options.ftz && from == Float::Single {
        u64::from(flush(bits as u32))
    } else {
        bits
    };
    let value = value_of(from, bits);
    if value.is_nan() {
        return match to {
            _ if options.sat => 0,
            Float::Half => 0x7fff,
            Float::Single => u64::from(NAN),
            // assumption: the same payload as a quiet NaN.
            Float::Double if from == Float::Double => bits | 1 << 51,
            Float::Double => 0x7fff_ffff_e000_0000,
        };
    }
    let value = if options.integral {
        whole(value, options.round)
    } else {
        value
    };
    match to {
        Float::Half => {
            let value = if options.sat { saturated(value) } else { value };
            u64::from(half_bits(value, options.round))
        }
        Float::Single => {
            let bits = narrow(value, options.round).to_bits();
            let bits = if options.ftz { flush(bits) } else { bits };
            u64::from(if options.sat { saturate(bits) } else { bits })
        }
        Float::Double if options.sat => saturated(value).to_bits(),
        Float::Double => value.to_bits(),
    }
}

/// Clamped to 0 to 1; a negative zero becomes positive, as in arithmetic.
fn saturated(value: f64) -> f64 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// Float to integer: rounded to a whole number, then clamped; 16-bit results are extended as typed.
pub(crate) fn float_to_integer(bits: u64, from: Float, to: Integer, options: FloatOptions) -> u64 {
    let bits = modified(from, bits, options.abs, options.neg);
    let bits = if options.ftz && from == Float::Single {
        u64::from(flush(bits as u32))
    } else {
        bits
    };
    let value = value_of(from, bits);
    if value.is_nan() {
        let is_wide = from == Float::Double || to.bits == 64;
        return if is_wide {
            to.of(1 << (to.bits - 1)) as u64
        } else {
            0
        };
    }
    // The cast clamps what no i128 holds.
    let whole = whole(value, options.round) as i128;
    whole.clamp(to.least(), to.most()) as u64
}

/// Integer to float, rounded once.
pub(crate) fn integer_to_float(value: i128, to: Float, round: Round) -> u64 {
    match to {
        Float::Half => u64::from(half_bits(value as f64, round)),
        Float::Single => {
            let nearest = value as f32;
            u64::from(towards(nearest, (nearest as i128).cmp(&value), value < 0, round).to_bits())
        }
        Float::Double => {
            let nearest = value as f64;
            towards64(nearest, (nearest as i128).cmp(&value), value < 0, round).to_bits()
        }
    }
}

/// Integer to integer: absolute value and negation, then cut or clamped, and extended as typed.
pub(crate) fn integer_to_integer(value: i128, to: Integer, abs: bool, neg: bool, sat: bool) -> u64 {
    let value = signs(value, abs, neg);
    let value = if sat {
        value.clamp(to.least(), to.most())
    } else {
        to.of(value as u64)
    };
    value as u64
}

/// Absolute value and negation of an integer.
pub(crate) fn signs(value: i128, abs: bool, neg: bool) -> i128 {
    let value = if abs { value.abs() } else { value };
    if neg { -value } else { value }
}

/// Whether the nearest float, which compares so with the exact value, is on the wrong side.
fn step(order: std::cmp::Ordering, is_negative: bool, round: Round) -> std::cmp::Ordering {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let wants_below = match round {
        Round::Nearest => return Equal,
        Round::Down => true,
        Round::Up => false,
        Round::Zero => !is_negative,
    };
    match (order, wants_below) {
        (Greater, true) => Less,
        (Less, false) => Greater,
        _ => Equal,
    }
}

fn towards(nearest: f32, order: std::cmp::Ordering, is_negative: bool, round: Round) -> f32 {
    match step(order, is_negative, round) {
        std::cmp::Ordering::Less => nearest.next_down(),
        std::cmp::Ordering::Equal => nearest,
        std::cmp::Ordering::Greater => nearest.next_up(),
    }
}

fn towards64(nearest: f64, order: std::cmp::Ordering, is_negative: bool, round: Round) -> f64 {
    match step(order, is_negative, round) {
        std::cmp::Ordering::Less => nearest.next_down(),
        std::cmp::Ordering::Equal => nearest,
        std::cmp::Ordering::Greater => nearest.next_up(),
    }
}

/// The whole number that `value` rounds to.
fn whole(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
        Round::Zero => value.trunc(),
    }
}

/// Value of a binary16.
pub(crate) fn half_value(bits: u16) -> f64 {
    let sign = if bits >> 15 != 0 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

/// The binary16 that a number rounds to.
pub(crate) fn half_bits(value: f64, round: Round) -> u16 {
    const LARGEST: f64 = 65504.0;
    let sign = u16::from(value.is_sign_negative()) << 15;
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        return sign | 0x7c00;
    }
    // 11 bits from the leading one down, no finer than 2^-24.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(-14);
    let quantum = 2f64.powi(exponent - 10);
    let round = match (round, sign != 0) {
        (Round::Down, true) => Round::Up,
        (Round::Up, true) => Round::Down,
        (round, _) => round,
    };
    let rounded = whole(magnitude / quantum, round) * quantum;
    if rounded > LARGEST {
        let stays = matches!(round, Round::Down | Round::Zero);
        return sign | if stays { 0x7bff } else { 0x7c00 };
    }
    if rounded < 2f64.powi(-14) {
        return sign | (rounded * 2f64.powi(24)) as u16;
    }
    let exponent = (rounded.to_bits() >> 52) as i32 - 1023;
    let fraction = (rounded / 2f64.powi(exponent) - 1.0) * 1024.0;
    sign | ((exponent + 15) as u16) << 10 | fraction as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: FloatOptions = FloatOptions {
        abs: false,
        neg: false,
        ftz: false,
        sat: false,
        round: Round::Nearest,
        integral: false,
    };
    const S32: Integer = Integer {
        bits: 32,
        signed: true,
    };
    const U32: Integer = Integer {
        bits: 32,
        signed: false,
    };

    #[test]
    fn nan_of_f64_is_the_least_integer_as_typed() {
        let s16 = Integer {
            bits: 16,
            signed: true,
        };
        let nan = f64::NAN.to_bits();
        assert_eq!(
            float_to_integer(nan, Float::Double, s16, PLAIN) as u32,
            0xffff_8000
        );
        assert_eq!(
            float_to_integer(nan, Float::Double, U32, PLAIN) as u32,
            0x8000_0000
        );
    }

    #[test]
    fn saturated_half_is_no_nan_and_has_no_sign() {
        let sat = FloatOptions { sat: true, ..PLAIN };
        let half = |bits: u64| float_to_float(bits, Float::Half, Float::Half, sat);
        assert_eq!([0x7e00, 0x8000, 0x4000, 0x3800].map(half), [0, 0, 0x3c00, 0x3800]);
    }

    fn to_integer(bits: u32, to: Integer, round: Round) -> u32 {
        float_to_integer(
            u64::from(bits),
            Float::Single,
            to,
            FloatOptions { round, ..PLAIN },
        ) as u32
    }

    #[test]
    fn vectors_of_the_instruction_set_page() {
        assert_eq!(to_integer(0xc020_0000, S32, Round::Zero), 0xffff_fffe);
        assert_eq!(to_integer(0xc020_0000, S32, Round::Down), 0xffff_fffd);
        assert_eq!(to_integer(0x4020_0000, S32, Round::Nearest), 2);
        assert_eq!(to_integer(0xbf80_0000, U32, Round::Zero), 0);
        assert_eq!(to_integer(0x7f80_0000, S32, Round::Zero), 0x7fff_ffff);
        assert_eq!(to_integer(0x7fc0_0000, S32, Round::Zero), 0);
        assert_eq!(
            integer_to_float(U32.of(0xffff_ffff), Float::Single, Round::Nearest),
            0x4f80_0000
        );
        assert_eq!(
            integer_to_float(S32.of(0xffff_ffff), Float::Single, Round::Nearest),
            0xbf80_0000
        );
        assert_eq!(integer_to_float(0xc8, Float::Single, Round::Nearest), 0x4348_0000);
        let u8 = Integer {
            bits: 8,
            signed: false,
        };
        assert_eq!(integer_to_integer(0x12c, u8, false, false, true), 0xff);
        let s16 = Integer {
            bits: 16,
            signed: true,
        };
        assert_eq!(
            integer_to_integer(s16.of(0x8001), S32, false, false, false) as u32,
            0xffff_8001
        );
    }

    #[test]
    fn integer_rounds_in_the_direction_asked() {
        let to = |value: i128, round| f32::from_bits(integer_to_float(value, Float::Single, round) as u32);
        let exact = (1 << 24) + 1;
        assert_eq!(to(exact, Round::Zero), 16_777_216.0);
        assert_eq!(to(exact, Round::Up), 16_777_218.0);
        assert_eq!(to(-exact, Round::Zero), -16_777_216.0);
        assert_eq!(to(-exact, Round::Down), -16_777_218.0);
    }

    #[test]
    fn halves_round_trip_and_overflow() {
        for bits in 0..=u16::MAX {
            let value = half_value(bits);
            if !value.is_nan() {
                assert_eq!(half_bits(value, Round::Nearest), bits);
            }
        }
        assert_eq!(half_bits(65520.0, Round::Nearest), 0x7c00);
        assert_eq!(half_bits(65519.0, Round::Nearest), 0x7bff);
        assert_eq!(half_bits(1e9, Round::Zero), 0x7bff);
        assert_eq!(half_bits(-1e9, Round::Down), 0xfc00);
        assert_eq!(half_bits(2f64.powi(-30), Round::Up), 1);
    }

    proptest! {
        #[test]
        fn narrowing_agrees_with_an_independent_library(bits in any::<u64>(), which in 0u32..4) {
            use rustc_apfloat::{Float as _, FloatConvert as _, Round as R, ieee};
            let round = Round::from_bits(which);
            let theirs = [R::NearestTiesToEven, R::TowardNegative, R::TowardPositive, R::TowardZero][which as usize];
            let double = ieee::Double::from_bits(u128::from(bits));
            prop_assume!(!double.is_nan());
            let mut loses = false;
            let single: ieee::Single = double.convert_r(theirs, &mut loses).value;
            let ours = float_to_float(bits, Float::Double, Float::Single, FloatOptions { round, ..PLAIN });
            prop_assert_eq!(ours, single.to_bits() as u64);
            let half: ieee::Half = double.convert_r(theirs, &mut loses).value;
            let ours = float_to_float(bits, Float::Double, Float::Half, FloatOptions { round, ..PLAIN });
            prop_assert_eq!(ours, half.to_bits() as u64);
        }

        #[test]
        fn integers_survive_the_way_through_a_double(value in any::<i32>()) {
            let bits = integer_to_float(i128::from(value), Float::Double, Round::Nearest);
            prop_assert_eq!(float_to_integer(bits, Float::Double, S32, PLAIN) as u32, value as u32);
        }
    }
}
