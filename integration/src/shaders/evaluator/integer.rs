//! Classes 2 and 3: integer arithmetic.

use std::cmp::Ordering;

use super::Wrong;
use super::float::compares;
use super::lane::{Flags, Immediate, Lane, bit, bits};
use crate::shaders::Launch;

/// How an addition combines its operands.
struct Addition {
    /// 0 `a + b`, 1 `a - b`, 2 `b - a`, 3 `a + b + 1`.
    operation: u32,
    /// The carry flag takes the constant's place.
    extends: bool,
    sat: bool,
}

impl Addition {
    fn perform(&self, a: u32, b: u32, carry: bool) -> (u32, Flags) {
        let (a, b, constant) = match self.operation {
            0 => (a, b, false),
            1 => (a, !b, true),
            2 => (!a, b, true),
            _ => (a, b, true),
        };
        let add = i64::from(if self.extends { carry } else { constant });
        let unsigned = i64::from(a) + i64::from(b) + add;
        let with_sign = i64::from(a as i32) + i64::from(b as i32) + add;
        let overflow = i32::try_from(with_sign).is_err();
        let result = match (self.sat && overflow, with_sign < 0) {
            (false, _) => unsigned as u32,
            (true, false) => i32::MAX as u32,
            (true, true) => i32::MIN as u32,
        };
        let flags = Flags {
            carry: unsigned > i64::from(u32::MAX),
            overflow,
            ..Flags::of_integer(result)
        };
        (result, flags)
    }
}

fn typed(value: u32, is_signed: bool) -> i64 {
    if is_signed {
        (value as i32).into()
    } else {
        value.into()
    }
}

fn product(word: u64, a: u32, b: u32) -> u32 {
    let (x, y) = (typed(a, bit(word, 7)), typed(b, bit(word, 5)));
    let all = i128::from(x) * i128::from(y);
    if bit(word, 6) {
        (all >> 32) as u32
    } else {
        all as u32
    }
}

fn logic(operation: u32, a: u32, b: u32) -> u32 {
    match operation {
        0 => a & b,
        1 => a | b,
        2 => a ^ b,
        _ => b,
    }
}

/// The shifted value and the last bit that went out.
fn shifted_left(value: u32, count: u32, wraps: bool) -> (u32, bool) {
    let count = if wraps { count & 31 } else { count };
    match count {
        0 => (value, false),
        1..32 => (value << count, value >> (32 - count) & 1 != 0),
        _ => (0, false),
    }
}

fn shifted_right(value: u32, count: u32, wraps: bool, is_signed: bool) -> (u32, bool) {
    let count = if wraps { count & 31 } else { count };
    let all = typed(value, is_signed);
    match count {
        0 => (value, false),
        1..32 => ((all >> count) as u32, value >> (count - 1) & 1 != 0),
        _ => ((all >> 32) as u32, false),
    }
}

fn extracted(value: u32, descriptor: u32, is_signed: bool) -> u32 {
    let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
    if length == 0 {
        return 0;
    }
    let fill = is_signed && value >> (position + length - 1).min(31) & 1 != 0;
    (0..32).fold(0, |result, at| {
        let from = position + at;
        let one = if at < length && from < 32 {
            value >> from & 1 != 0
        } else {
            fill
        };
        result | u32::from(one) << at
    })
}

fn inserted(bits: u32, descriptor: u32, base: u32) -> u32 {
    let (position, length) = (descriptor & 0xff, descriptor >> 8 & 0xff);
    (0..32).fold(0, |result, at| {
        let is_inside = at >= position && at < position + length;
        let one = if is_inside {
            bits >> (at - position)
        } else {
            base >> at
        } & 1;
        result | one << at
    })
}

fn leading(value: u32, is_signed: bool, as_shift: bool) -> u32 {
    let sign = is_signed && value >> 31 != 0;
    let found = (0..32).rev().find(|at| (value >> at & 1 != 0) != sign);
    match found {
        None => u32::MAX,
        Some(at) if as_shift => 31 - at,
        Some(at) => at,
    }
}

impl Lane {
    fn set_integer(&mut self, word: u64, value: u32, flags: Flags) {
        self.set(bits(word, 19, 14), value);
        self.note(word, flags);
    }

    fn set_sum(&mut self, word: u64, addition: &Addition, a: u32, b: u32) {
        let (value, flags) = addition.perform(a, b, self.flags.carry);
        self.set_integer(word, value, flags);
    }

    /// Executes integer instructions of class 2, which have a 32-bit immediate.
    pub(super) fn immediate(&mut self, word: u64, opcode: u32, thread: u32) -> Result<(), Wrong> {
        let (a, immediate) = (self.a(word), bits(word, 57, 26));
        let addition = Addition {
            operation: bits(word, 9, 8),
            extends: bit(word, 6),
            sat: bit(word, 5),
        };
        match opcode {
            0b00000 => {
                let addition = Addition {
                    extends: false,
                    sat: false,
                    ..addition
                };
                let addend = self.get(bits(word, 19, 14));
                self.set_sum(word, &addition, product(word, a, immediate), addend);
            }
            0b00001 => self.set_sum(word, &addition, a, immediate),
            0b00010 => {
                let result = product(word, a, immediate);
                self.set_integer(word, result, Flags::of_integer(result));
            }
            0b00011 => {
                if bits(word, 8, 5) >> (thread % 4) & 1 != 0 {
                    self.set_integer(word, immediate, Flags::of_integer(immediate));
                }
            }
            0b00100..=0b00110 => self.single_immediate(word, opcode)?,
            0b00111 => {
                let not = |value: u32, number| if bit(word, number) { !value } else { value };
                let result = logic(bits(word, 7, 6), not(a, 9), not(immediate, 8));
                self.set_integer(word, result, Flags::of_integer(result));
            }
            0b01000 => {
                let addition = Addition {
                    operation: 0,
                    extends: false,
                    sat: false,
                };
                let (scaled, _) = shifted_left(a, bits(word, 9, 5), true);
                self.set_sum(word, &addition, scaled, immediate);
            }
            _ => return Err(Wrong::Unspecified("class 2")),
        }
        Ok(())
    }

    /// Executes integer instructions of class 3.
    pub(super) fn integer(&mut self, word: u64, opcode: u32, launch: &Launch) -> Result<(), Wrong> {
        let (a, b) = (self.a(word), self.b(word, Immediate::Integer, launch));
        let c = self.c(word, launch);
        let is_signed = bit(word, 5);
        match opcode {
            0b00010 | 0b00011 => {
                let order = if bit(word, 6) {
                    self.extended_order(a, b, is_signed)
                } else {
                    typed(a, is_signed).cmp(&typed(b, is_signed))
                };
                let holds = compares(Some(order), bits(word, 58, 55));
                return if opcode == 0b00010 {
                    self.set_truth(word, holds, bit(word, 7))
                } else {
                    self.set_both(word, holds)
                };
            }
            0b00100 => {
                let addition = Addition {
                    operation: bits(word, 9, 8),
                    extends: bit(word, 55),
                    sat: bit(word, 56),
                };
                self.set_sum(word, &addition, product(word, a, b), c);
                return Ok(());
            }
            0b00110 => {
                let order = typed(c, is_signed).cmp(&0);
                let holds = compares(Some(order), bits(word, 58, 55));
                self.set(bits(word, 19, 14), if holds { a } else { b });
                return Ok(());
            }
            0b01000 | 0b01001 => {
                let is_scaled = opcode == 0b01000;
                let addition = Addition {
                    operation: if is_scaled {
                        bits(word, 56, 55)
                    } else {
                        bits(word, 9, 8)
                    },
                    extends: !is_scaled && bit(word, 6),
                    sat: !is_scaled && bit(word, 5),
                };
                let a = if is_scaled {
                    shifted_left(a, bits(word, 9, 5), true).0
                } else {
                    a
                };
                self.set_sum(word, &addition, a, b);
                return Ok(());
            }
            0b00001 => return self.integer_least_or_most(word, a, b),
            _ => {}
        }
        let (result, carry) = plain(word, opcode, [a, b, c])?;
        let flags = Flags {
            carry,
            ..Flags::of_integer(result)
        };
        self.set_integer(word, result, flags);
        Ok(())
    }

    /// The upper words of a comparison whose lower words left the carry and zero flags.
    fn extended_order(&self, a: u32, b: u32, is_signed: bool) -> Ordering {
        let subtraction = Addition {
            operation: 1,
            extends: true,
            sat: false,
        };
        let (difference, flags) = subtraction.perform(a, b, self.flags.carry);
        let is_less = if is_signed {
            flags.sign != flags.overflow
        } else {
            !flags.carry
        };
        if difference == 0 && self.flags.zero {
            Ordering::Equal
        } else if is_less {
            Ordering::Less
        } else {
            Ordering::Greater
        }
    }

    fn integer_least_or_most(&mut self, word: u64, a: u32, b: u32) -> Result<(), Wrong> {
        let wants_least = self.third(word);
        let is_signed = bit(word, 5);
        let part = bits(word, 7, 6);
        let takes_a = match part {
            0 | 3 => (typed(a, is_signed) < typed(b, is_signed)) == wants_least,
            _ if self.flags.zero => (a < b) == wants_least,
            _ => self.flags.carry,
        };
        let result = if takes_a { a } else { b };
        let flags = match part {
            3 => Flags {
                zero: a == b,
                carry: takes_a,
                ..Flags::default()
            },
            _ => Flags::of_integer(result),
        };
        self.set_integer(word, result, flags);
        Ok(())
    }
}

/// Instructions of class 3 whose result depends on the operands alone; the second is the carry flag.
fn plain(word: u64, opcode: u32, [a, b, c]: [u32; 3]) -> Result<(u32, bool), Wrong> {
    let is_signed = bit(word, 5);
    let reversed = |value: u32| {
        if bit(word, 8) { value.reverse_bits() } else { value }
    };
    let not = |value: u32, number| if bit(word, number) { !value } else { value };
    Ok(match opcode {
        0b00101 => (inserted(a, b, c), false),
        0b00111 => {
            let difference = (typed(a, is_signed) - typed(b, is_signed)).unsigned_abs();
            ((difference as u32).wrapping_add(c), false)
        }
        0b01010 => (product(word, a, b), false),
        0b01011 => shifted_right(reversed(a), b, bit(word, 9), is_signed),
        0b01100 => shifted_left(a, b, bit(word, 9)),
        0b01101 => (logic(bits(word, 7, 6), not(a, 9), not(b, 8)), false),
        0b01110 => (extracted(reversed(a), b, is_signed), false),
        0b01111 => (leading(not(b, 8), is_signed, bit(word, 6)), false),
        _ => return Err(Wrong::Unspecified("class 3")),
    })
}
