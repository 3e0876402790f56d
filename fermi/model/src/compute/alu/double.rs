//! f64 arithmetic. Denormals are kept; neither saturation nor flushing exists.

use super::{Comparison, Round};
use rustc_apfloat::{Float as _, ieee::Double};

/// assumption: a NaN result is the first NaN operand with its quiet bit, else this.
const DEFAULT_NAN: u64 = 0xfff8_0000_0000_0000;
const QUIET: u64 = 1 << 51;
const SIGN: u64 = 1 << 63;

/// Absolute value, then negation; a NaN passes unchanged (PTX, `abs` and `neg` of f64).
#[inline(always)]
pub(crate) fn modify(bits: u64, abs: bool, neg: bool) -> u64 {
    if f64::from_bits(bits).is_nan() {
        return bits;
    }
    let bits = if abs { bits & !SIGN } else { bits };
    if neg { bits ^ SIGN } else { bits }
}

fn result(value: f64, operands: &[u64]) -> u64 {
    if !value.is_nan() {
        return value.to_bits();
    }
    operands
        .iter()
        .find(|bits| f64::from_bits(**bits).is_nan())
        .map_or(DEFAULT_NAN, |bits| bits | QUIET)
}

/// Directed roundings, which hosts have no instruction for.
#[inline(never)]
fn directed(
    round: Round,
    operands: &[u64],
    work: impl FnOnce(&[Double], rustc_apfloat::Round) -> Double,
) -> u64 {
    let round = match round {
        Round::Nearest => rustc_apfloat::Round::NearestTiesToEven,
        Round::Down => rustc_apfloat::Round::TowardNegative,
        Round::Up => rustc_apfloat::Round::TowardPositive,
        Round::Zero => rustc_apfloat::Round::TowardZero,
    };
    let mut values = [Double::ZERO; 3];
    for (value, bits) in values.iter_mut().zip(operands) {
        *value = Double::from_bits(u128::from(*bits));
    }
    result(f64::from_bits(work(&values, round).to_bits() as u64), operands)
}

pub(crate) fn add(a: u64, b: u64, round: Round) -> u64 {
    match round {
        Round::Nearest => result(f64::from_bits(a) + f64::from_bits(b), &[a, b]),
        _ => directed(round, &[a, b], |v, round| v[0].add_r(v[1], round).value),
    }
}

pub(crate) fn mul(a: u64, b: u64, round: Round) -> u64 {
    match round {
        Round::Nearest => result(f64::from_bits(a) * f64::from_bits(b), &[a, b]),
        _ => directed(round, &[a, b], |v, round| v[0].mul_r(v[1], round).value),
    }
}

pub(crate) fn fma(a: u64, b: u64, c: u64, round: Round) -> u64 {
    match round {
        Round::Nearest => result(
            f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)),
            &[a, b, c],
        ),
        _ => directed(round, &[a, b, c], |v, round| {
            v[0].mul_add_r(v[1], v[2], round).value
        }),
    }
}

/// As [`super::single::min_max`]; both NaN gives the first, quiet.
pub(crate) fn min_max(a: u64, b: u64, wants_min: bool) -> u64 {
    let (x, y) = (f64::from_bits(a), f64::from_bits(b));
    match (x.is_nan(), y.is_nan()) {
        (true, true) => a | QUIET,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let a_is_less = x < y || x == y && a & SIGN != 0;
            if a_is_less == wants_min { a } else { b }
        }
    }
}

pub(crate) fn compare(a: u64, b: u64, comparison: Comparison) -> bool {
    comparison.holds(f64::from_bits(a).partial_cmp(&f64::from_bits(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_rounds_in_the_four_directions() {
        let (one, third) = (1f64.to_bits(), (1.0f64 / 3.0).to_bits());
        let down = mul(one, third, Round::Down);
        assert_eq!(down, third);
        let tiny = 2f64.powi(-60).to_bits();
        assert_eq!(add(one, tiny, Round::Nearest), one);
        assert_eq!(add(one, tiny, Round::Up), one + 1);
        assert_eq!(add(one, tiny | SIGN, Round::Down), one - 1);
        assert_eq!(add(one | SIGN, tiny, Round::Zero), (one - 1) | SIGN);
        assert_eq!(fma(one, one, tiny, Round::Up), one + 1);
    }

    #[test]
    fn nan_operand_becomes_quiet() {
        let signalling = 0x7ff0_0000_0000_0001;
        assert_eq!(
            add(1f64.to_bits(), signalling, Round::Nearest),
            signalling | QUIET
        );
        assert_eq!(min_max(signalling, 1f64.to_bits(), true), 1f64.to_bits());
    }
}
