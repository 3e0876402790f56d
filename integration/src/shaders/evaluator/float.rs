//! Classes 0 and 1: f32 and f64.

use std::cmp::Ordering;

use super::Wrong;
use super::lane::{Flags, Immediate, Lane, bit, bits};
use crate::shaders::Launch;
use crate::shaders::exact::{self, DOUBLE, Outcome, Rounding, SINGLE};

/// The only NaN that f32 arithmetic makes.
const NAN: u32 = 0x7fff_ffff;
const SIGN: u32 = 1 << 31;
const WIDE_SIGN: u64 = 1 << 63;
/// The NaN of f64 arithmetic where no operand is one.
const WIDE_NAN: u64 = 0xfff8_0000_0000_0000;

/// Treatment of operands and result besides the arithmetic.
#[derive(Clone, Copy, Default)]
struct Options {
    /// Denormals become zero.
    ftz: bool,
    /// The same, and a zero factor makes a product +0.
    fmz: bool,
    sat: bool,
}

fn changed(value: u32, abs: bool, neg: bool) -> u32 {
    let value = if abs { value & !SIGN } else { value };
    if neg { value ^ SIGN } else { value }
}

fn flushed(value: u32, is_on: bool) -> u32 {
    if is_on {
        SINGLE.flushed(value.into()) as u32
    } else {
        value
    }
}

fn is_nan(value: u32) -> bool {
    SINGLE.is_nan(value.into())
}

pub(super) fn clamped(value: u32) -> u32 {
    let one = SINGLE.one();
    match SINGLE.order(value.into(), 0) {
        None | Some(Ordering::Less | Ordering::Equal) => 0,
        Some(Ordering::Greater) if SINGLE.order(value.into(), one) == Some(Ordering::Greater) => one as u32,
        Some(Ordering::Greater) => value,
    }
}

fn finished(outcome: Outcome, options: Options) -> u32 {
    let result = match outcome {
        Outcome::Nan => NAN,
        Outcome::Bits(bits) => flushed(bits as u32, options.ftz || options.fmz),
    };
    if options.sat { clamped(result) } else { result }
}

fn add(a: u32, b: u32, rounding: Rounding, options: Options) -> u32 {
    let [a, b] = [a, b].map(|value| u64::from(flushed(value, options.ftz)));
    finished(exact::add(SINGLE, a, b, rounding), options)
}

/// f32 addition as atomics do it.
pub(super) fn atomic_add(a: u32, b: u32) -> u32 {
    let options = Options {
        ftz: true,
        ..Options::default()
    };
    add(a, b, Rounding::NearestEven, options)
}

fn is_zero_product(a: u32, b: u32, options: Options) -> bool {
    options.fmz && (a & !SIGN == 0 || b & !SIGN == 0)
}

fn multiply(a: u32, b: u32, scale: i32, rounding: Rounding, options: Options) -> u32 {
    let [a, b] = [a, b].map(|value| flushed(value, options.ftz || options.fmz));
    if is_zero_product(a, b, options) {
        return 0;
    }
    finished(
        exact::multiply(SINGLE, a.into(), b.into(), scale, rounding),
        options,
    )
}

fn fused([a, b, c]: [u32; 3], rounding: Rounding, options: Options) -> u32 {
    let [a, b, c] = [a, b, c].map(|value| flushed(value, options.ftz || options.fmz));
    if is_zero_product(a, b, options) {
        return finished(exact::add(SINGLE, 0, c.into(), rounding), options);
    }
    finished(
        exact::fused(SINGLE, a.into(), b.into(), c.into(), rounding),
        options,
    )
}

/// A NaN loses; of two zeros the negative one is less.
fn least_or_most(a: u32, b: u32, wants_least: bool) -> u32 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let a_is_less = match SINGLE.order(a.into(), b.into()) {
                Some(Ordering::Equal) => a & SIGN > b & SIGN,
                order => order == Some(Ordering::Less),
            };
            if a_is_less == wants_least { a } else { b }
        }
    }
}

/// Whether a comparison by four bits holds: less, equal, greater, unordered.
pub(super) fn compares(order: Option<Ordering>, code: u32) -> bool {
    let number = match order {
        Some(Ordering::Less) => 0,
        Some(Ordering::Equal) => 1,
        Some(Ordering::Greater) => 2,
        None => 3,
    };
    code >> number & 1 != 0
}

/// Powers of two of FMUL's scale.
fn scale(number: u32) -> Result<i32, Wrong> {
    match number {
        0 => Ok(0),
        1 => Ok(-1),
        2 => Ok(-2),
        3 => Ok(-3),
        4 => Ok(3),
        5 => Ok(2),
        6 => Ok(1),
        _ => Err(Wrong::Unspecified("scale")),
    }
}

impl Lane {
    fn set_single(&mut self, word: u64, value: u32) {
        self.set(bits(word, 19, 14), value);
        let flags = Flags::of_float(is_nan(value), value & !SIGN == 0, value & SIGN != 0);
        self.note(word, flags);
    }

    pub(super) fn single(&mut self, word: u64, opcode: u32, launch: &Launch) -> Result<(), Wrong> {
        let (a, b) = (self.a(word), self.b(word, Immediate::Single, launch));
        let (x, y) = (
            changed(a, bit(word, 7), bit(word, 9)),
            changed(b, bit(word, 6), bit(word, 8)),
        );
        let rounding = Rounding::of(bits(word, 56, 55));
        let product = Options {
            ftz: bit(word, 6),
            fmz: bit(word, 7),
            sat: bit(word, 5),
        };
        match opcode {
            0b00001 => {
                let [x, y] = [x, y].map(|value| flushed(value, bit(word, 5)));
                self.set_single(word, least_or_most(x, y, self.third(word)));
            }
            0b00010..=0b00101 => {
                let [x, y] = [x, y].map(|value| flushed(value, bit(word, 59)));
                let holds = compares(SINGLE.order(x.into(), y.into()), bits(word, 58, 55));
                if opcode < 0b00100 {
                    self.set_truth(word, holds, bit(word, 5))?;
                } else {
                    self.set_both(word, holds)?;
                }
            }
            0b00110 => {
                let c = changed(self.c(word, launch), false, bit(word, 8));
                let a = changed(a, false, bit(word, 9));
                self.set_single(word, fused([a, b, c], rounding, product));
            }
            0b00111 => {
                let c = flushed(self.c(word, launch), bit(word, 5));
                let holds = compares(SINGLE.order(c.into(), 0), bits(word, 58, 55));
                self.set(bits(word, 19, 14), if holds { a } else { b });
            }
            0b01010 => {
                let options = Options {
                    ftz: bit(word, 5),
                    fmz: false,
                    sat: bit(word, 49),
                };
                self.set_single(word, add(x, y, rounding, options));
            }
            0b01011 => {
                let a = changed(a, false, bit(word, 57));
                let scale = scale(bits(word, 51, 49))?;
                self.set_single(word, multiply(a, b, scale, rounding, product));
            }
            0b01100 => self.set(bits(word, 19, 14), y),
            0b11001 => {
                let result = special(bits(word, 28, 26), x);
                let result = if bit(word, 5) { clamped(result) } else { result };
                self.set(bits(word, 19, 14), result);
            }
            _ => return Err(Wrong::Unspecified("class 0")),
        }
        Ok(())
    }

    /// Executes the f32 instructions of class 2.
    pub(super) fn single_immediate(&mut self, word: u64, opcode: u32) -> Result<(), Wrong> {
        let (a, immediate) = (self.a(word), bits(word, 57, 26));
        let near = Rounding::NearestEven;
        let product = Options {
            ftz: bit(word, 6),
            fmz: bit(word, 7),
            sat: bit(word, 5),
        };
        let result = match opcode {
            0b00100 => {
                let c = changed(self.get(bits(word, 19, 14)), false, bit(word, 8));
                fused([changed(a, false, bit(word, 9)), immediate, c], near, product)
            }
            0b00101 => {
                let options = Options {
                    ftz: bit(word, 5),
                    ..Options::default()
                };
                let a = changed(a, bit(word, 7), bit(word, 9));
                add(a, immediate, near, options)
            }
            _ => multiply(a, immediate, 0, near, product),
        };
        self.set_single(word, result);
        Ok(())
    }

    pub(super) fn double(&mut self, word: u64, opcode: u32, launch: &Launch) -> Result<(), Wrong> {
        let a = self.get_wide(bits(word, 25, 20));
        let b = self.wide_b(word, Immediate::Double, launch);
        let (x, y) = (
            changed_wide(a, bit(word, 7), bit(word, 9)),
            changed_wide(b, bit(word, 6), bit(word, 8)),
        );
        let rounding = Rounding::of(bits(word, 56, 55));
        let result = match opcode {
            0b00001 => wide_least_or_most(x, y, self.third(word)),
            0b00010 | 0b00011 => {
                let holds = compares(DOUBLE.order(x, y), bits(word, 58, 55));
                return if opcode == 0b00010 {
                    self.set_truth(word, holds, bit(word, 5))
                } else {
                    self.set_both(word, holds)
                };
            }
            0b00100 => {
                let a = changed_wide(a, false, bit(word, 9));
                let c = changed_wide(self.wide_c(word, launch), false, bit(word, 8));
                wide_finished(exact::fused(DOUBLE, a, b, c, rounding), &[a, b, c])
            }
            0b01001 => wide_finished(exact::add(DOUBLE, x, y, rounding), &[x, y]),
            0b01010 => {
                let a = changed_wide(a, false, bit(word, 9));
                wide_finished(exact::multiply(DOUBLE, a, b, 0, rounding), &[a, b])
            }
            _ => return Err(Wrong::Unspecified("class 1")),
        };
        self.set_wide(bits(word, 19, 14), result);
        let (is_nan, is_zero) = (DOUBLE.is_nan(result), result & !WIDE_SIGN == 0);
        self.note(word, Flags::of_float(is_nan, is_zero, result & WIDE_SIGN != 0));
        Ok(())
    }
}

/// A NaN passes unchanged.
fn changed_wide(value: u64, abs: bool, neg: bool) -> u64 {
    if DOUBLE.is_nan(value) {
        return value;
    }
    let value = if abs { value & !WIDE_SIGN } else { value };
    if neg { value ^ WIDE_SIGN } else { value }
}

/// The bits of an outcome; for a NaN those of the first operand that is one, made quiet.
fn wide_finished(outcome: Outcome, operands: &[u64]) -> u64 {
    match outcome {
        Outcome::Bits(bits) => bits,
        Outcome::Nan => operands
            .iter()
            .find(|operand| DOUBLE.is_nan(**operand))
            .map_or(WIDE_NAN, |operand| operand | DOUBLE.quiet()),
    }
}

fn wide_least_or_most(a: u64, b: u64, wants_least: bool) -> u64 {
    match (DOUBLE.is_nan(a), DOUBLE.is_nan(b)) {
        (true, true) => a | DOUBLE.quiet(),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let a_is_less = match DOUBLE.order(a, b) {
                Some(Ordering::Equal) => a & WIDE_SIGN > b & WIDE_SIGN,
                order => order == Some(Ordering::Less),
            };
            if a_is_less == wants_least { a } else { b }
        }
    }
}

/// MUFU, by the standard library's f64 functions.
fn special(function: u32, operand: u32) -> u32 {
    let x = f64::from(f32::from_bits(flushed(operand, true)));
    let result = match function {
        0 => x.cos(),
        1 => x.sin(),
        2 => x.exp2(),
        3 => x.log2(),
        4 => 1.0 / x,
        5 if x == 0.0 => f64::INFINITY.copysign(x),
        5 => 1.0 / x.sqrt(),
        _ => {
            // The upper word of an f64 whose lower word is zero.
            let wide = DOUBLE.flushed(u64::from(operand) << 32);
            let x = f64::from_bits(wide);
            let result = match function {
                6 => 1.0 / x,
                _ if x == 0.0 => f64::INFINITY.copysign(x),
                _ => 1.0 / x.sqrt(),
            };
            return (DOUBLE.flushed(result.to_bits()) >> 32) as u32;
        }
    };
    let result = result as f32;
    if result.is_nan() {
        NAN
    } else {
        flushed(result.to_bits(), true)
    }
}
