//! From a word to its text.

use core::fmt::{self, Write};

use super::{
    field::{self as f, Field},
    instruction::{Instruction, immediate, relative_target},
    operand::{ConstAddress, DataType, Register},
    rows::{COMBINATIONS, CONDITIONS, Extent, Form, Kind, Space, Token, Width},
    special::Special,
};

/// Words with single spaces between them, none inside brackets.
struct Words<'a, 'b> {
    out: &'a mut fmt::Formatter<'b>,
    needs_space: bool,
}

impl Words<'_, '_> {
    fn word(&mut self, word: impl fmt::Display) -> fmt::Result {
        if self.needs_space {
            self.out.write_char(' ')?;
        }
        self.needs_space = true;
        write!(self.out, "{word}")
    }

    fn open(&mut self) -> fmt::Result {
        self.word('(')?;
        self.needs_space = false;
        Ok(())
    }

    fn close(&mut self) -> fmt::Result {
        self.needs_space = true;
        self.out.write_char(')')
    }

    fn register(&mut self, number: u32, registers: u32) -> fmt::Result {
        let suffix = match registers {
            2 => "d",
            4 => "q",
            _ => "",
        };
        if number == 63 {
            self.word("0x0")
        } else {
            self.word(format_args!("$r{number}{suffix}"))
        }
    }

    fn predicate(&mut self, number: u32) -> fmt::Result {
        if number == 7 {
            self.word("0x1")
        } else {
            self.word(format_args!("$p{number}"))
        }
    }

    fn number(&mut self, number: u64) -> fmt::Result {
        self.word(format_args!("{number:#x}"))
    }
}

/// Fields that short forms do not have, and whose names their text leaves out.
const LONG_ONLY: [Field; 2] = [f::ROUND, f::SHIFT_WRAP];

/// Writes the text of a word; with `is_short`, as the text of the short form.
pub(super) fn write(
    out: &mut fmt::Formatter<'_>,
    instruction: Instruction,
    address: u32,
    is_short: bool,
) -> fmt::Result {
    let word = instruction.word();
    let row = instruction.row();
    let mut words = Words {
        out,
        needs_space: false,
    };
    if instruction.is_join() {
        words.word("join")?;
    }
    if row.form != Form::Bare {
        match (f::GUARD.get(word), f::GUARD_NOT.get(word)) {
            (7, 0) => {}
            (7, _) => words.word("never")?,
            (number, 0) => words.predicate(number)?,
            (number, _) => {
                words.open()?;
                words.word("not")?;
                words.predicate(number)?;
                words.close()?;
            }
        }
    }
    for token in row.text {
        if is_short && is_long_only(token, instruction.class()) {
            continue;
        }
        write_token(&mut words, token, word, address)?;
    }
    Ok(())
}

fn is_long_only(token: &Token, class: u8) -> bool {
    const MEMORY: u8 = 5;
    matches!(token, Token::Pick(field, _) if LONG_ONLY.contains(field) || class == MEMORY && *field == f::CACHE)
}

fn write_token(words: &mut Words<'_, '_>, token: &Token, word: u64, address: u32) -> fmt::Result {
    match *token {
        Token::Word(text) => words.word(text),
        Token::Open => words.open(),
        Token::Close => words.close(),
        Token::Flag(field, text) if field.get(word) != 0 => words.word(text),
        Token::Pick(field, names) => match names.get(field.get(word) as usize) {
            Some(name) if !name.is_empty() => words.word(name),
            _ => Ok(()),
        },
        Token::Register(field, width) => words.register(field.get(word), registers(width, word)),
        Token::SameDst => words.register(f::DST.get(word), 1),
        Token::Vector(first, extent) => write_vector(words, first.get(word), extent, word),
        Token::Surface => write_surface(words, word),
        Token::Slot(letter, field) => words.word(format_args!("${letter}{}", field.get(word))),
        Token::Predicate(field) => words.predicate(field.get(word)),
        Token::B(kind, width) => write_b(words, kind, width, word),
        Token::C(width) => match f::MODE_B.get(word) {
            2 => write_constant(words, word),
            _ => words.register(f::SRC_C.get(word), registers(width, word)),
        },
        Token::Imm32 => words.number(f::IMM32.get(word).into()),
        Token::Number(field) => words.number(field.get(word).into()),
        Token::Special => {
            let number = f::SPECIAL.get(word);
            match Special::from_number(number) {
                Some(special) => words.word(special.name()),
                None => words.word(format_args!("$sr{number}")),
            }
        }
        Token::Lanes => write_lanes(words, f::LANES.get(word)),
        Token::Condition(field) if field.get(word) != 15 => {
            words.word(CONDITIONS[field.get(word) as usize & 31])?;
            words.word("$c")
        }
        Token::ConditionShown(field) => words.word(CONDITIONS[field.get(word) as usize & 31]),
        Token::Combine => write_combination(words, word),
        Token::SecondPredicate => write_second(words, word),
        Token::Memory(space, field, scale) => {
            let offset = i64::from(field.get_signed(word)) * i64::from(scale);
            write_memory(words, space, offset, word)
        }
        Token::Table => write_table(words, f::SRC_A.get(word), word),
        Token::Bank => write_table(words, Register::ZERO.0.into(), word),
        Token::Relative => words.number(relative_target(word, address).into()),
        Token::Absolute => words.number(f::ABSOLUTE.get(word).into()),
        Token::BarNumber if f::BAR_NUMBER_IMM.get(word) != 0 => words.number(f::BAR_NUMBER.get(word).into()),
        Token::BarNumber => words.register(f::SRC_A.get(word), 1),
        Token::BarCount if f::BAR_COUNT_IMM.get(word) != 0 => words.number(f::BAR_COUNT.get(word).into()),
        Token::BarCount => words.register(f::SRC_B.get(word), 1),
        Token::Flag(..) | Token::Condition(_) | Token::Fixed(..) => Ok(()),
    }
}

/// Registers that an operand of this width takes.
pub(super) fn registers(width: Width, word: u64) -> u32 {
    match width {
        Width::One => 1,
        Width::Pair => 2,
        Width::Type => DataType::from_bits(f::TYPE.get(word)).map_or(1, DataType::registers),
        Width::Size(field) => {
            if field.get(word) == 3 {
                2
            } else {
                1
            }
        }
    }
}

/// `$r4:#:$r5:#`: a place without a register is `#`, no places are `()`.
fn write_vector(words: &mut Words<'_, '_>, first: u32, extent: Extent, word: u64) -> fmt::Result {
    let (mask, places) = extent.of(word).unwrap_or_default();
    if places == 0 {
        return words.word("()");
    }
    let mut register = first;
    for place in 0..places {
        let needs_space = words.needs_space && place == 0;
        if place > 0 {
            words.out.write_char(':')?;
        }
        words.needs_space = needs_space;
        if mask >> place & 1 != 0 {
            words.word(format_args!("$r{register}"))?;
            register += 1;
        } else {
            words.word('#')?;
        }
    }
    Ok(())
}

fn write_surface(words: &mut Words<'_, '_>, word: u64) -> fmt::Result {
    match (f::SURFACE_IMM.get(word), f::SRC_B.get(word)) {
        (0, 63) => words.word("img[0x0]"),
        (0, register) => words.word(format_args!("img[$r{register}]")),
        _ => words.word(format_args!("img[{:#x}]", f::SURFACE.get(word))),
    }
}

fn write_b(words: &mut Words<'_, '_>, kind: Kind, width: Width, word: u64) -> fmt::Result {
    let registers = registers(width, word);
    match f::MODE_B.get(word) {
        0 => words.register(f::SRC_B.get(word), registers),
        1 => write_constant(words, word),
        2 => words.register(f::SRC_C.get(word), registers),
        _ if kind != Kind::Integer && registers == 2 => {
            words.number(u64::from(immediate(Kind::Double, word)) << 32)
        }
        _ => words.number(immediate(kind, word).into()),
    }
}

fn write_constant(words: &mut Words<'_, '_>, word: u64) -> fmt::Result {
    let place = ConstAddress::of(word);
    words.word(format_args!("c{}[{:#x}]", place.bank, place.offset))
}

fn write_lanes(words: &mut Words<'_, '_>, lanes: u32) -> fmt::Result {
    match lanes {
        15 => Ok(()),
        0 => words.word("lnone"),
        _ => {
            words.word('l')?;
            (0..4)
                .filter(|lane| lanes >> lane & 1 != 0)
                .try_for_each(|lane| write!(words.out, "{lane}"))
        }
    }
}

fn write_combination(words: &mut Words<'_, '_>, word: u64) -> fmt::Result {
    let combination = (f::COMBINE.get(word), f::PRED_C.get(word), f::PRED_C_NOT.get(word));
    if combination == (0, 7, 0) {
        return Ok(());
    }
    words.word(COMBINATIONS[combination.0 as usize & 3])?;
    if combination.2 != 0 {
        words.word("not")?;
    }
    words.predicate(combination.1)
}

/// An "and P0" is hidden, as envytools' disassembler hides it, unless the text would then say something else.
fn write_second(words: &mut Words<'_, '_>, word: u64) -> fmt::Result {
    let second = (f::PRED_OP.get(word), f::PRED_B.get(word), f::PRED_B_NOT.get(word));
    let is_combined = (f::COMBINE.get(word), f::PRED_C.get(word), f::PRED_C_NOT.get(word)) != (0, 7, 0);
    if second == (0, 0, 0) && !is_combined {
        return Ok(());
    }
    words.word(COMBINATIONS[second.0 as usize & 3])?;
    if second.2 != 0 {
        words.word("not")?;
    }
    words.predicate(second.1)
}

fn write_memory(words: &mut Words<'_, '_>, space: Space, offset: i64, word: u64) -> fmt::Result {
    let name = match space {
        Space::Global => 'g',
        Space::Shared => 's',
        Space::Local => 'l',
    };
    let is_wide = space == Space::Global && f::WIDE_ADDRESS.get(word) != 0;
    let width = if is_wide { "d" } else { "" };
    let sign = if offset < 0 { "-" } else { "+" };
    let distance = offset.unsigned_abs();
    match (f::SRC_A.get(word), distance) {
        (63, _) if offset < 0 => words.word(format_args!("{name}[-{distance:#x}]")),
        (63, _) => words.word(format_args!("{name}[{distance:#x}]")),
        (register, 0) => words.word(format_args!("{name}[$r{register}{width}]")),
        (register, _) => words.word(format_args!("{name}[$r{register}{width}{sign}{distance:#x}]")),
    }
}

fn write_table(words: &mut Words<'_, '_>, index: u32, word: u64) -> fmt::Result {
    let bank = f::TABLE_BANK.get(word);
    let offset = f::CONST_OFFSET.get_signed(word);
    let sign = if offset < 0 { "-" } else { "+" };
    let distance = offset.unsigned_abs();
    match (index, distance) {
        (63, _) => words.word(format_args!("c{bank}[{:#x}]", offset as u16)),
        (register, 0) => words.word(format_args!("c{bank}[$r{register}]")),
        (register, _) => words.word(format_args!("c{bank}[$r{register}{sign}{distance:#x}]")),
    }
}
