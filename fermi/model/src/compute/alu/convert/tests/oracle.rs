//! Conversions of one value, straightforwardly: whole numbers are i128, and nothing is shared with the lanes' code but
//! the types.

use super::super::{Float, Integer, Options};
use crate::compute::alu::{
    Round, double,
    single::{NAN, flush, modify, saturate},
};

fn least(of: Integer) -> i128 {
    if of.signed { -(1 << (of.bits - 1)) } else { 0 }
}

fn most(of: Integer) -> i128 {
    let magnitude = of.bits - u32::from(of.signed);
    (1 << magnitude) - 1
}

/// The low bits of `value` as a number of a type.
pub(super) fn of(integer: Integer, value: u64) -> i128 {
    let unused = 64 - integer.bits;
    if integer.signed {
        i128::from((value << unused) as i64 >> unused)
    } else {
        i128::from(value << unused >> unused)
    }
}

/// An f64 rounded to f32.
fn narrow(value: f64, round: Round) -> f32 {
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
        Float::Double => double::modify(bits, abs, neg),
    }
}

/// Float to float.
pub(super) fn float_to_float(bits: u64, from: Float, to: Float, options: Options) -> u64 {
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
pub(super) fn float_to_integer(bits: u64, from: Float, to: Integer, options: Options) -> u64 {
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
            of(to, 1 << (to.bits - 1)) as u64
        } else {
            0
        };
    }
    // The cast clamps what no i128 holds.
    let whole = whole(value, options.round) as i128;
    whole.clamp(least(to), most(to)) as u64
}

/// Integer to float, rounded once.
pub(super) fn integer_to_float(value: i128, to: Float, round: Round) -> u64 {
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
pub(super) fn integer_to_integer(value: i128, to: Integer, abs: bool, neg: bool, sat: bool) -> u64 {
    let value = signs(value, abs, neg);
    let value = if sat {
        value.clamp(least(to), most(to))
    } else {
        of(to, value as u64)
    };
    value as u64
}

/// Absolute value and negation of an integer.
pub(super) fn signs(value: i128, abs: bool, neg: bool) -> i128 {
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
pub(super) fn half_value(bits: u16) -> f64 {
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
pub(super) fn half_bits(value: f64, round: Round) -> u16 {
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
