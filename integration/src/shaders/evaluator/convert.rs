//! Class 4: moves, conversions, predicates.

use std::cmp::Ordering;

use fermi_spec::isa::Special;

use super::Wrong;
use super::lane::{Flags, Immediate, Lane, Surroundings, bit, bits, combine};
use crate::shaders::Launch;
use crate::shaders::exact::{DOUBLE, Exact, Format, HALF, Rounding, SINGLE, Value};

/// Float formats by the number of a size field.
fn format(size: u32) -> Result<Format, Wrong> {
    match size {
        1 => Ok(HALF),
        2 => Ok(SINGLE),
        3 => Ok(DOUBLE),
        _ => Err(Wrong::Unspecified("float of 8 bits")),
    }
}

/// The NaN that a conversion makes of one. For f64 no source says: the operand's own, quiet, or
/// the other formats' widened.
fn resulting_nan(to: Format, from: Format, value: u64) -> u64 {
    match (to, from) {
        (DOUBLE, DOUBLE) => value | DOUBLE.quiet(),
        (DOUBLE, _) => 0x7fff_ffff_e000_0000,
        _ => to.sign() - 1,
    }
}

/// An integer type: 8, 16, 32 or 64 bits.
#[derive(Clone, Copy)]
struct Integer {
    width: u32,
    is_signed: bool,
}

impl Integer {
    fn of(size: u32, is_signed: bool) -> Self {
        Self {
            width: 8 << size,
            is_signed,
        }
    }

    fn read(self, value: u64) -> i128 {
        let value = i128::from(value) & ((1 << self.width) - 1);
        let is_negative = self.is_signed && value >> (self.width - 1) != 0;
        if is_negative {
            value - (1 << self.width)
        } else {
            value
        }
    }

    fn clamp(self, value: i128) -> i128 {
        let (low, high) = if self.is_signed {
            (-(1 << (self.width - 1)), (1 << (self.width - 1)) - 1)
        } else {
            (0, (1 << self.width) - 1)
        };
        value.clamp(low, high)
    }

    /// As a register, or two, hold it: extended as typed.
    fn stored(self, value: i128) -> u64 {
        self.read(value as u64) as u64
    }
}

fn is_negative(format: Format, value: u64) -> bool {
    value & format.sign() != 0
}

fn changed(format: Format, value: u64, word: u64) -> u64 {
    if format == DOUBLE && DOUBLE.is_nan(value) {
        return value;
    }
    let value = if bit(word, 6) {
        value & (format.sign() - 1)
    } else {
        value
    };
    if bit(word, 8) {
        value ^ format.sign()
    } else {
        value
    }
}

fn exact(format: Format, value: u64) -> Option<Exact> {
    match format.value(value) {
        Value::Finite {
            is_negative,
            mantissa,
            exponent,
        } => Some(Exact::new(is_negative, mantissa.into(), exponent)),
        _ => None,
    }
}

fn float_to_float(word: u64, value: u64) -> Result<u64, Wrong> {
    let (to, from) = (format(bits(word, 21, 20))?, format(bits(word, 24, 23))?);
    let ftz = bit(word, 55);
    let flushed = |format: Format, value| match ftz && format == SINGLE {
        true => format.flushed(value),
        false => value,
    };
    let rounding = Rounding::of(bits(word, 50, 49));
    let value = changed(from, flushed(from, value), word);
    let result = match (from.value(value), exact(from, value)) {
        (Value::Nan, _) => resulting_nan(to, from, value),
        (_, None) => to.infinity() | if is_negative(from, value) { to.sign() } else { 0 },
        (_, Some(number)) if bit(word, 7) => {
            let mut whole = Exact::of_integer(number.round_to_integer(rounding));
            // Beyond the range of an integer here, every float is a whole number.
            if number.round_to_integer(Rounding::Zero).unsigned_abs() >= 1 << 120 {
                whole = number;
            }
            whole.is_negative = is_negative(from, value);
            whole.round(to, rounding)
        }
        (_, Some(number)) => number.round(to, rounding),
    };
    let result = flushed(to, result);
    if !bit(word, 5) {
        return Ok(result);
    }
    Ok(match to.order(result, 0) {
        None | Some(Ordering::Less | Ordering::Equal) => 0,
        Some(Ordering::Greater) if to.order(result, to.one()) == Some(Ordering::Greater) => to.one(),
        Some(Ordering::Greater) => result,
    })
}

fn float_to_integer(word: u64, value: u64) -> Result<u64, Wrong> {
    let from = format(bits(word, 24, 23))?;
    let to = Integer::of(bits(word, 21, 20), bit(word, 7));
    let value = match bit(word, 55) && from == SINGLE {
        true => from.flushed(value),
        false => value,
    };
    let value = changed(from, value, word);
    let result = match (from.value(value), exact(from, value)) {
        (Value::Nan, _) if from == DOUBLE || to.width == 64 => 1 << (to.width - 1),
        (Value::Nan, _) => 0,
        (_, Some(number)) => to.clamp(number.round_to_integer(Rounding::of(bits(word, 50, 49)))),
        (_, None) => to.clamp(if is_negative(from, value) {
            -(1 << 100)
        } else {
            1 << 100
        }),
    };
    Ok(to.stored(result))
}

/// The integer that a conversion is given: a byte or half of a register, or all of it.
fn integer_source(word: u64, value: u64) -> i128 {
    let size = bits(word, 24, 23);
    let value = match size {
        0 => value >> (8 * bits(word, 56, 55)),
        1 => value >> (16 * bits(word, 56, 56)),
        _ => value,
    };
    let value = Integer::of(size, bit(word, 9)).read(value);
    let value = if bit(word, 6) { value.abs() } else { value };
    if bit(word, 8) { -value } else { value }
}

fn permuted(mode: u32, a: u32, selector: u32, c: u32) -> Result<u32, Wrong> {
    let bytes = u64::from(c) << 32 | u64::from(a);
    let k = selector & 3;
    let byte = |number: u32| (bytes >> (8 * (number & 7))) as u32 & 0xff;
    let made = |numbers: [u32; 4]| {
        numbers
            .iter()
            .fold(0, |result, number| result << 8 | byte(*number))
    };
    Ok(match mode {
        0 => (0..4).fold(0, |result, at| {
            let choice = selector >> (4 * at) & 15;
            let found = byte(choice & 7);
            let found = match choice >> 3 {
                0 => found,
                _ => 0xff * (found >> 7),
            };
            result | found << (8 * at)
        }),
        1 => made([k + 3, k + 2, k + 1, k]),
        2 => made([k + 5, k + 6, k + 7, k]),
        3 => made([k; 4]),
        4 => made([3, k.max(2), k.max(1), k]),
        5 => made([k, k.min(2), k.min(1), 0]),
        6 if k & 1 == 0 => made([1, 0, 1, 0]),
        6 => made([3, 2, 3, 2]),
        _ => return Err(Wrong::Unspecified("permutation")),
    })
}

impl Lane {
    /// Executes class 4, except votes and barriers.
    pub(super) fn moves(
        &mut self,
        word: u64,
        opcode: u32,
        around: &mut Surroundings<'_>,
    ) -> Result<(), Wrong> {
        let dst = bits(word, 19, 14);
        let launch = around.launch;
        let (a, b) = (self.a(word), self.b(word, Immediate::Integer, launch));
        match opcode {
            0b000000 | 0b000001 => {
                let holds = self.meets(bits(word, 24, 20))?;
                return self.set_result(word, opcode, holds);
            }
            0b000010 | 0b000011 => {
                let first = self.source(bits(word, 22, 20), bit(word, 23));
                let second = self.source(bits(word, 28, 26), bit(word, 29));
                let holds = combine(bits(word, 31, 30), first, second)?;
                return self.set_result(word, opcode, holds);
            }
            0b000100..=0b000111 => return self.convert(word, opcode, launch),
            0b001000 => {
                let result = if self.third(word) { a } else { b };
                self.set(dst, result);
            }
            0b001001 => {
                let result = permuted(bits(word, 7, 5), a, b, self.c(word, launch))?;
                self.set(dst, result);
            }
            0b001010 => {
                if bits(word, 8, 5) >> (around.thread % 4) & 1 != 0 {
                    self.set(dst, b);
                    self.note(word, Flags::of_integer(b));
                }
            }
            0b001011 => {
                let result = special(bits(word, 33, 26), around)?;
                self.set(dst, result);
            }
            0b001100 if !bit(word, 5) => {
                let result = self.packed() & b | a & !b;
                self.set(dst, result);
            }
            0b001101 if !bit(word, 5) => self.set_packed(a, b),
            0b010000 => {}
            0b010001 => self.set(dst, around.pc),
            0b010101 => {
                let not = |value: u32, number| if bit(word, number) { !value } else { value };
                let result = (not(a, 9) & not(b, 8)).count_ones();
                self.set(dst, result);
            }
            _ => return Err(Wrong::Unspecified("class 4")),
        }
        Ok(())
    }

    fn set_result(&mut self, word: u64, opcode: u32, holds: bool) -> Result<(), Wrong> {
        if opcode & 1 == 0 {
            self.set_truth(word & !(1 << 48), holds, bit(word, 5))
        } else {
            self.set_both(word, holds)
        }
    }

    fn convert(&mut self, word: u64, opcode: u32, launch: &Launch) -> Result<(), Wrong> {
        let is_from_float = opcode & 2 == 0;
        let is_wide = bits(word, 24, 23) == 3;
        let kind = match (is_from_float, is_wide) {
            (true, true) => Immediate::Double,
            (true, false) => Immediate::Single,
            (false, _) => Immediate::Integer,
        };
        let source = match is_wide {
            true => self.wide_b(word, kind, launch),
            false => self.b(word, kind, launch).into(),
        };
        // The upper half of an f16 source.
        let source = match is_from_float && bits(word, 24, 23) == 1 {
            true => source >> (16 * bits(word, 56, 56)) & 0xffff,
            false => source,
        };
        let to = bits(word, 21, 20);
        let result = match opcode {
            0b000100 => float_to_float(word, source)?,
            0b000101 => float_to_integer(word, source)?,
            0b000110 => {
                let number = Exact::of_integer(integer_source(word, source));
                number.round(format(to)?, Rounding::of(bits(word, 50, 49)))
            }
            _ => {
                let to = Integer::of(to, bit(word, 7));
                let value = integer_source(word, source);
                to.stored(if bit(word, 5) { to.clamp(value) } else { value })
            }
        };
        if to == 3 {
            self.set_wide(bits(word, 19, 14), result);
        } else {
            self.set(bits(word, 19, 14), result as u32);
        }
        if bit(word, 48) {
            self.flags = match (opcode & 1 == 0, to) {
                (false, 0..=2) => Flags::of_integer(result as u32),
                (true, 2) => Flags::of_float(
                    SINGLE.is_nan(result),
                    result & (SINGLE.sign() - 1) == 0,
                    is_negative(SINGLE, result),
                ),
                _ => return Err(Wrong::Unspecified("flags of a wide or half result")),
            };
        }
        Ok(())
    }
}

/// Special registers that are the same on every run.
fn special(number: u32, around: &Surroundings<'_>) -> Result<u32, Wrong> {
    let launch = around.launch;
    let [nx, ny, nz] = launch.block;
    let [x, y, z] = [
        around.thread % nx,
        around.thread / nx % ny,
        around.thread / (nx * ny),
    ];
    let lane = around.thread % 32;
    let below = (1u32 << lane) - 1;
    let special = Special::from_number(number).ok_or(Wrong::Unspecified("special register"))?;
    Ok(match special {
        Special::LaneId => lane,
        Special::Thread => x | y << 16 | z << 26,
        Special::ThreadX => x,
        Special::ThreadY => y,
        Special::ThreadZ => z,
        Special::LaunchArgument => launch.argument,
        Special::BlockX => around.block[0],
        Special::BlockY => around.block[1],
        Special::BlockZ => around.block[2],
        Special::Threads => nx | ny << 16 | nz << 26,
        Special::ThreadsX => nx,
        Special::ThreadsY => ny,
        Special::ThreadsZ => nz,
        Special::GridId => launch.grid_id,
        Special::BlocksX => launch.grid[0],
        Special::BlocksY => launch.grid[1],
        Special::BlocksZ => launch.grid[2],
        Special::SharedWindow => launch.shared_window,
        Special::SharedBytes => launch.shared_bytes,
        Special::SharedBanks => 32,
        Special::LocalWindow => launch.local_window,
        Special::LocalPositive => launch.local_positive,
        Special::LocalNegativeStart => (1 << 24) - launch.local_negative,
        Special::MaskEqual => 1 << lane,
        Special::MaskBelow => below,
        Special::MaskUpTo => below | 1 << lane,
        Special::MaskAbove => !(below | 1 << lane),
        Special::MaskFrom => !below,
        _ => return Err(Wrong::Unspecified("special register")),
    })
}
