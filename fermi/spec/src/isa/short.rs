//! Short forms: 4-byte words that say what some 8-byte words say.
//!
//! Compilers for compute do not emit them. Known here: control, moves, add, logic, shifts, f32 arithmetic, barriers,
//! loads and stores; other short words are illegal. Layouts by envytools' `gf100.c` as checked with its disassembler.

use core::fmt;

use super::{
    display,
    field::{self as f, Field},
    instruction::{Illegal, Instruction, Reason},
    opcode::Opcode,
    rows,
};

/// Bytes of a short form.
const SHORT_BYTES: u32 = 4;

/// A short form and the long one that does the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Short {
    long: Instruction,
}

impl Short {
    /// The long form. A relative target counts from 4 bytes behind the instruction, not 8.
    pub fn long(self) -> Instruction {
        self.long
    }

    /// The text, with branch targets as if the word were at byte `address` of the code.
    pub fn at(self, address: u32) -> ShortListing {
        ShortListing {
            long: self.long,
            address,
        }
    }
}

/// A short form at its place, to be shown.
#[derive(Clone, Copy, Debug)]
pub struct ShortListing {
    long: Instruction,
    address: u32,
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at(0).fmt(f)
    }
}

impl fmt::Display for ShortListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.long.opcode() != Opcode::Bar {
            // As if it lay where its long form leads to the same place.
            let address = self
                .address
                .wrapping_add(SHORT_BYTES)
                .wrapping_sub(super::INSTRUCTION_BYTES);
            return display::write(f, self.long, address, true);
        }
        let guard = self.long.guard();
        match (guard.predicate.0, guard.is_negated) {
            (7, false) => {}
            (number, false) => write!(f, "$p{number} ")?,
            (number, true) => write!(f, "(not $p{number}) ")?,
        }
        let mode = if self.long.get(f::BAR_MODE) == 0 {
            "sync"
        } else {
            "arrive"
        };
        match self.long.a() {
            register if register.is_zero() => write!(f, "bar {mode} 0x0"),
            register => write!(f, "bar {mode} $r{}", register.0),
        }
    }
}

const LOW5: Field = Field::new(&[(4, 0)]);
const LOW8: Field = Field::new(&[(7, 0)]);
const LOW10: Field = Field::new(&[(9, 0)]);
const HIGH5: Field = Field::new(&[(31, 27)]);
const HIGH4: Field = Field::new(&[(31, 28)]);
const HIGH2: Field = Field::new(&[(31, 30)]);
const BANK: Field = Field::new(&[(9, 8)]);
const SMALL: Field = Field::new(&[(9, 8), (31, 26)]);
const WORDS: Field = Field::new(&[(31, 26), (9, 8)]);
const ADDEND: Field = Field::new(&[(13, 8)]);
const COUNT: Field = Field::new(&[(30, 26)]);
const IMM12: Field = Field::new(&[(31, 20)]);
const BRANCH: Field = Field::new(&[(29, 14)]);
const PUSH: Field = Field::new(&[(27, 14)]);

/// Decodes a short form.
pub fn widen(word: u32) -> Result<Short, Illegal> {
    let short = u64::from(word);
    let illegal = Illegal {
        word: short,
        reason: Reason::Opcode,
    };
    let long = long_of(short).ok_or(illegal)?;
    let long = Instruction::decode(long).map_err(|_| illegal)?;
    Ok(Short { long })
}

fn long_of(short: u64) -> Option<u64> {
    control(short)
        .or_else(|| moves(short))
        .or_else(|| integer(short))
        .or_else(|| float(short))
        .or_else(|| memory(short))
}

/// The bits that select the first row of an opcode, with the guard and the operands that short forms share.
fn base(opcode: Opcode, short: u64) -> Option<u64> {
    let row = (0..8).flat_map(rows::of_class).find(|row| row.opcode == opcode)?;
    let word = [f::GUARD, f::GUARD_NOT, f::DST, f::SRC_A, f::SRC_B]
        .iter()
        .fold(row.value, |word, field| field.set(word, field.get(short)));
    Some(f::PRED_C.set(word, 7))
}

/// A constant operand: bank and word index.
fn constant(long: u64, bank: u32, index: u32) -> u64 {
    let long = f::MODE_B.set(long, 1);
    let (bank, odd) = match bank {
        1 => (0, 0),
        2 => (1, 0),
        _ => (0, 1),
    };
    f::CONST_BANK.set(f::CONST_OFFSET.set(long, index << 2 | odd), bank)
}

fn control(short: u64) -> Option<u64> {
    if LOW5.get(short) != 0x1f {
        return None;
    }
    let opcode = match (HIGH2.get(short), HIGH4.get(short), HIGH5.get(short)) {
        (0, _, _) => Opcode::Bra,
        (_, 4, _) => Opcode::Ssy,
        (_, 5, _) => Opcode::Cal,
        (_, _, 0x11) => Opcode::Exit,
        (_, _, 0x12) => Opcode::Ret,
        _ => return None,
    };
    let class = rows::of_class(7).iter().find(|row| row.opcode == opcode)?.value;
    let guarded = [f::GUARD, f::GUARD_NOT, f::CONDITION]
        .iter()
        .fold(class, |word, field| field.set(word, field.get(short)));
    Some(match opcode {
        Opcode::Bra => f::OFFSET24.set(guarded, (BRANCH.get_signed(short) as u32) << 2),
        Opcode::Ssy | Opcode::Cal => f::OFFSET24.set(class, (PUSH.get_signed(short) as u32) << 2),
        _ => guarded,
    })
}

fn moves(short: u64) -> Option<u64> {
    let all_lanes = |word| f::LANES.set(word, 15);
    let cleared = |opcode| Some(f::SRC_A.set(f::SRC_B.set(all_lanes(base(opcode, short)?), 0), 0));
    match (LOW8.get(short), LOW10.get(short), HIGH5.get(short)) {
        (0x28, _, _) => {
            let word = f::PRED_C.set(cleared(Opcode::Mov)?, 0);
            let source = f::SRC_A.get(short);
            Some(match BANK.get(short) {
                0 => f::SRC_B.set(word, source),
                bank => constant(word, bank, source),
            })
        }
        (_, 0x118, _) => Some(f::IMM32.set(cleared(Opcode::Mov32i)?, IMM12.get_signed(short) as u32)),
        (_, 0x318, _) => Some(f::IMM32.set(cleared(Opcode::Mov32i)?, IMM12.get(short) << 20)),
        (0x08, _, number @ (0x0a | 0x0b)) => {
            let mode = if number == 0x0a { 0 } else { 4 };
            let word = f::BAR_MODE.set(base(Opcode::Bar, short)?, mode);
            Some(f::PRED_BAR.set(f::DST.set(f::SRC_B.set(word, 63), 63), 7))
        }
        _ => None,
    }
}

fn integer(short: u64) -> Option<u64> {
    let small = SMALL.get_signed(short) as u32;
    let immediate = |opcode, operation: Field, number| {
        let word = f::SRC_B.set(base(opcode, short)?, 0);
        Some(operation.set(f::IMM32.set(word, small), number))
    };
    let two = |opcode, operation: Field, number| {
        let word = operation.set(f::PRED_C.set(base(opcode, short)?, 0), number);
        Some(match BANK.get(short) {
            0 => word,
            bank => constant(word, bank, f::SRC_B.get(short)),
        })
    };
    match (LOW8.get(short), LOW10.get(short)) {
        (0x2c, _) => two(Opcode::Iadd, f::ADD_OP, 0),
        (0x6c, _) => two(Opcode::Iadd, f::ADD_OP, 2),
        (0xac, _) => immediate(Opcode::Iadd32i, f::ADD_OP, 0),
        (0xec, _) => immediate(Opcode::Iadd32i, f::ADD_OP, 2),
        (low @ (0x1d | 0x3d | 0x5d | 0x7d), _) => two(Opcode::Lop, f::LOGIC_OP, (low - 0x1d) / 0x20),
        (low @ (0x9d | 0xbd | 0xdd | 0xfd), _) => immediate(Opcode::Lop32i, f::LOGIC_OP, (low - 0x9d) / 0x20),
        (_, 0x208) => {
            let is_left = HIGH5.get(short) < 0x10;
            let opcode = if is_left { Opcode::Shl } else { Opcode::Shr };
            let word = f::PRED_C.set(f::SRC_B.set(base(opcode, short)?, 0), 0);
            let word = f::IMM20.set(f::MODE_B.set(word, 3), COUNT.get(short));
            Some(if is_left { word } else { word | 1 << 5 })
        }
        _ => None,
    }
}

fn float(short: u64) -> Option<u64> {
    if short & 0xf == 0xe {
        let word = f::GUARD_NOT.set(f::GUARD.set(base(Opcode::Ffma, short)?, 7), 0);
        let word = f::SRC_C.set(word, ADDEND.get(short));
        // Bit 4 negates the product.
        return (short >> 5 & 7 == 0).then_some(word | (short >> 4 & 1) << 9);
    }
    let opcode = match LOW8.get(short) {
        0xa8 => Opcode::Fmul,
        0x49 => Opcode::Fadd,
        _ => return None,
    };
    let word = f::PRED_C.set(base(opcode, short)?, 0);
    Some(match BANK.get(short) {
        0 => word,
        bank => constant(word, bank, f::SRC_B.get(short)),
    })
}

fn memory(short: u64) -> Option<u64> {
    let low = LOW8.get(short);
    // Bit 4: a store, bit 6: shared or a wide address, bit 7: 64 bits.
    let (is_store, is_second, is_double) = (low & 0x10 != 0, low & 0x40 != 0, low & 0x80 != 0);
    let unit = if is_double { 8 } else { 4 };
    let offset = (WORDS.get_signed(short) * unit) as u32;
    let (opcode, offset_field) = match (low & 0x2f, is_store, is_second) {
        (0x0a, false, false) => (Opcode::Ldl, f::OFFSET24),
        (0x0a, false, true) => (Opcode::Lds, f::OFFSET24),
        (0x0a, true, false) => (Opcode::Stl, f::OFFSET24),
        (0x0a, true, true) => (Opcode::Sts, f::OFFSET24),
        (0x0b, false, _) => (Opcode::Ld, f::OFFSET32),
        (0x0b, true, _) => (Opcode::St, f::OFFSET32),
        _ => return None,
    };
    let word = f::PRED_C.set(f::SRC_B.set(base(opcode, short)?, 0), 0);
    let word = f::TYPE.set(offset_field.set(word, offset), if is_double { 5 } else { 4 });
    let is_wide = low & 0x0f == 0x0b && is_second;
    Some(f::WIDE_ADDRESS.set(
        word,
        if low & 0x0f == 0x0b {
            u32::from(is_wide)
        } else {
            f::WIDE_ADDRESS.get(word)
        },
    ))
}
