//! One line against one row of the table.

use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use super::Lexeme;
use crate::isa::{
    INSTRUCTION_BYTES, Register, Special,
    field::{self as f, Field},
    rows::{COMBINATIONS, CONDITIONS, Form, Kind, Row, Space, Token, Width},
};

mod text;
mod vectors;

use text::{constant, lanes_named, place, sign_extended, with_constant};

/// Most alternatives that a message lists.
const EXPECTED_MAX: usize = 12;

/// The first difference between a line and a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Mismatch {
    /// Words of the line that matched.
    pub(super) depth: usize,
    pub(super) column: u32,
    pub(super) message: String,
    expected: Vec<String>,
}

impl Mismatch {
    pub(super) fn join(&mut self, other: Self) {
        if self.message.is_empty() {
            self.message = other.message;
        }
        for word in other.expected {
            if !self.expected.contains(&word) {
                self.expected.push(word);
            }
        }
    }

    /// Makes the message of what was found and expected.
    pub(super) fn finish(&mut self, found: Option<String>) {
        if !self.message.is_empty() {
            return;
        }
        let found = found.map_or_else(|| String::from("the line ends"), |word| format!("{word:?}"));
        let more = if self.expected.len() > EXPECTED_MAX {
            ", …"
        } else {
            ""
        };
        self.expected.truncate(EXPECTED_MAX);
        self.message = if self.depth == 0 && self.expected.len() == EXPECTED_MAX {
            format!("{found} is not an instruction")
        } else {
            format!("{found} where {}{more} could stand", self.expected.join(" or "))
        };
    }
}

type Matched<T> = Result<T, Mismatch>;

/// The rest of a line.
#[derive(Clone)]
pub(super) struct Words<'a> {
    lexemes: &'a [Lexeme<'a>],
    at: usize,
    address: u32,
    labels: &'a BTreeMap<String, u32>,
}

/// A decimal or hexadecimal number, with a sign or without.
pub(super) fn number(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let is_plain = digits.starts_with(|c: char| c.is_ascii_hexdigit());
    let value = match digits.strip_prefix("0x") {
        Some(hexadecimal) if !hexadecimal.starts_with('+') => i128::from_str_radix(hexadecimal, 16),
        _ => digits.parse(),
    };
    let value = value.ok().filter(|_| is_plain)?;
    // 64-bit patterns wrap to negative numbers.
    (value <= i128::from(u64::MAX)).then_some(sign * value as i64)
}

fn fits(value: i64, bits: u32) -> bool {
    let limit = 1i64 << bits;
    (-limit / 2..limit).contains(&value)
}

impl<'a> Words<'a> {
    pub(super) fn new(lexemes: &'a [Lexeme<'a>], address: u32, labels: &'a BTreeMap<String, u32>) -> Self {
        Self {
            lexemes,
            at: 0,
            address,
            labels,
        }
    }

    fn peek(&self) -> Option<&'a str> {
        self.lexemes.get(self.at).map(|lexeme| lexeme.text)
    }

    /// Takes `word` if it is next.
    pub(super) fn accept(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn mismatch(&self, expected: impl Into<String>) -> Mismatch {
        let end = || {
            self.lexemes
                .last()
                .map_or(1, |last| last.column + last.text.chars().count() as u32)
        };
        Mismatch {
            depth: self.at,
            column: self.lexemes.get(self.at).map_or_else(end, |lexeme| lexeme.column),
            message: String::new(),
            expected: [expected.into()].into(),
        }
    }

    fn refusal(&self, message: String) -> Mismatch {
        Mismatch {
            message,
            depth: self.at + 1,
            ..self.mismatch("")
        }
    }

    fn expect(&mut self, word: &'static str) -> Matched<()> {
        if self.accept(word) {
            Ok(())
        } else {
            Err(self.mismatch(word))
        }
    }

    /// The whole line as an instruction of `row`.
    pub(super) fn row(mut self, row: &Row) -> Matched<u64> {
        let mut word = row.value;
        if row.form == Form::Plain && self.accept("join") {
            word = f::JOIN.set(word, 1);
        }
        if row.form != Form::Bare {
            word = self.guard(word)?;
        }
        for token in row.text {
            word = self.token(token, word)?;
        }
        match self.peek() {
            // A field that selects the row may have got another value from the text: another row's line.
            None if !row.selects(word) => Err(self.mismatch("another form")),
            None => Ok(word),
            Some(_) => Err(self.mismatch("the end of the line")),
        }
    }

    fn guard(&mut self, word: u64) -> Matched<u64> {
        let is_negated =
            self.peek() == Some("(") && self.lexemes.get(self.at + 1).map(|l| l.text) == Some("not");
        if is_negated {
            self.at += 2;
            let word = f::GUARD_NOT.set(f::GUARD.set(word, self.predicate()?), 1);
            self.expect(")")?;
            return Ok(word);
        }
        // In front of `$c` it is a condition code.
        let is_condition = self.lexemes.get(self.at + 1).map(|lexeme| lexeme.text) == Some("$c");
        if !is_condition && self.accept("never") {
            return Ok(f::GUARD_NOT.set(f::GUARD.set(word, 7), 1));
        }
        match self.peek() {
            Some(text) if text.starts_with("$p") && text[2..].parse::<u8>().is_ok() => {
                Ok(f::GUARD.set(word, self.predicate()?))
            }
            _ => Ok(f::GUARD.set(word, 7)),
        }
    }

    fn token(&mut self, token: &Token, word: u64) -> Matched<u64> {
        Ok(match *token {
            Token::Word(text) => {
                self.expect(text)?;
                word
            }
            Token::Open => {
                self.expect("(")?;
                word
            }
            Token::Close => {
                self.expect(")")?;
                word
            }
            Token::Flag(field, text) => field.set(word, u32::from(self.accept(text))),
            Token::Pick(field, names) => self.pick(field, names, word)?,
            Token::Register(field, width) => {
                let registers = crate::isa::display::registers(width, word);
                field.set(word, self.register(registers)?)
            }
            Token::SameDst => self.same_destination(word)?,
            Token::Vector(first, extent) => self.vector(first, extent, word)?,
            Token::Surface => self.surface(word)?,
            Token::Slot(letter, field) => field.set(word, self.slot(letter, field)?),
            Token::Predicate(field) => field.set(word, self.predicate()?),
            Token::B(kind, width) => self.operand_b(kind, width, word)?,
            Token::C(width) => self.operand_c(width, word)?,
            Token::Imm32 => f::IMM32.set(word, self.number_of(32, "a number")?),
            Token::Number(field) => field.set(word, self.small(field)?),
            Token::Special => f::SPECIAL.set(word, self.special()?),
            Token::Lanes => self.lanes(word),
            Token::Condition(field) => self.condition(field, word),
            Token::ConditionShown(field) => field.set(word, self.named(CONDITIONS)?),
            Token::Combine => self.combination(word)?,
            Token::SecondPredicate => self.second(word)?,
            Token::Memory(space, field, scale) => self.memory(space, field, scale, word)?,
            Token::Table => self.table(word)?,
            Token::Bank => {
                let here = self.clone();
                let found = self.table(word)?;
                if f::SRC_A.get(found) != Register::ZERO.0.into() {
                    return Err(here.mismatch("a place in a constant bank (c0[0x0])"));
                }
                // No register is named, and encoders write zero there.
                f::SRC_A.set(found, 0)
            }
            Token::Relative => self.relative(word)?,
            Token::Absolute => f::ABSOLUTE.set(word, self.place()?),
            Token::BarNumber => self.barrier(f::BAR_NUMBER, f::BAR_NUMBER_IMM, f::SRC_A, word)?,
            Token::BarCount => self.barrier(f::BAR_COUNT, f::BAR_COUNT_IMM, f::SRC_B, word)?,
            Token::Fixed(field, value) => field.set(word, value),
        })
    }

    fn pick(&mut self, field: Field, names: &'static [&'static str], word: u64) -> Matched<u64> {
        // A row for one value of the field shows it no other way.
        let next = self.peek();
        let found = names
            .iter()
            .position(|name| Some(*name) == next && *name != crate::isa::rows::RESERVED);
        if let Some(index) = found.filter(|_| next.is_some_and(|text| !text.is_empty())) {
            self.at += 1;
            return Ok(field.set(word, index as u32));
        }
        match names.iter().position(|name| name.is_empty()) {
            Some(index) => Ok(field.set(word, index as u32)),
            None => {
                let shown = names.iter().filter(|name| **name != crate::isa::rows::RESERVED);
                let mut mismatch = self.mismatch("");
                mismatch.expected = shown.map(|name| String::from(*name)).collect();
                Err(mismatch)
            }
        }
    }

    fn named(&mut self, names: &'static [&'static str]) -> Matched<u32> {
        let next = self.peek().unwrap_or_default();
        let index = names.iter().position(|name| *name == next);
        let index = index.ok_or_else(|| self.mismatch("a condition code"))?;
        self.at += 1;
        Ok(index as u32)
    }

    /// A register by its text: one, a pair with `d`, four with `q`; `0x0` is register 63.
    fn register(&mut self, registers: u32) -> Matched<u32> {
        let (suffix, what) = match registers {
            2 => ("d", "a register pair ($r0d)"),
            4 => ("q", "four registers ($r0q)"),
            _ => ("", "a register"),
        };
        let text = self.peek().unwrap_or_default();
        if number(text) == Some(0) || text == "$r63" {
            self.at += 1;
            return Ok(63);
        }
        let found = text
            .strip_prefix("$r")
            .and_then(|rest| rest.strip_suffix(suffix)?.parse::<u32>().ok());
        match found {
            Some(register) if register > 63 => {
                Err(self.refusal(format!("{text}: registers are $r0 to $r62")))
            }
            Some(register) if register != 63 && !register.is_multiple_of(registers) => Err(self.refusal(
                format!("{text}: the first of {registers} registers is a multiple of {registers}"),
            )),
            Some(register) => {
                self.at += 1;
                Ok(register)
            }
            None => Err(self.mismatch(what)),
        }
    }

    fn predicate(&mut self) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        let found = match text.strip_prefix("$p") {
            Some(digits) => digits.parse::<u32>().ok().filter(|predicate| *predicate <= 7),
            None => (number(text) == Some(1)).then_some(7),
        };
        let predicate = found.ok_or_else(|| self.mismatch("a predicate ($p0 to $p6, 0x1)"))?;
        self.at += 1;
        Ok(predicate)
    }

    fn same_destination(&mut self, word: u64) -> Matched<u64> {
        let mut ahead = self.clone();
        if ahead.register(1)? != f::DST.get(word) {
            return Err(self.mismatch("the destination again"));
        }
        *self = ahead;
        Ok(word)
    }

    fn operand_b(&mut self, kind: Kind, width: Width, word: u64) -> Matched<u64> {
        let registers = crate::isa::display::registers(width, word);
        let text = self.peek().unwrap_or_default();
        if let Some((bank, offset)) = constant(text) {
            self.at += 1;
            return Ok(with_constant(f::MODE_B.set(word, 1), bank, offset));
        }
        match number(text) {
            Some(value) if value != 0 => {
                let wide = kind != Kind::Integer && registers == 2;
                let (low_bits, what) = match (kind, wide) {
                    (Kind::Integer, _) => (0, "fits 20 bits with its sign"),
                    (_, true) => (44, "of 64 bits ends in 44 zero bits"),
                    (_, false) => (12, "of 32 bits ends in 12 zero bits"),
                };
                let is_right = match low_bits {
                    0 => (-(1i64 << 19)..1 << 19).contains(&sign_extended(value)),
                    12 => fits(value, 32) && value.trailing_zeros() >= 12,
                    _ => value.trailing_zeros() >= 44,
                };
                if !is_right {
                    return Err(self.refusal(format!("{text}: an immediate {what}")));
                }
                self.at += 1;
                Ok(f::IMM20.set(f::MODE_B.set(word, 3), (value >> low_bits) as u32))
            }
            _ => {
                let register = self.register(registers)?;
                Ok(f::SRC_B.set(word, register))
            }
        }
    }

    /// A constant takes B's place, and B, a register so far, goes where C was.
    fn operand_c(&mut self, width: Width, word: u64) -> Matched<u64> {
        let text = self.peek().unwrap_or_default();
        if let Some((bank, offset)) = constant(text) {
            if f::MODE_B.get(word) != 0 {
                return Err(self.refusal(format!(
                    "{text}: one operand at most is a constant or an immediate"
                )));
            }
            self.at += 1;
            let word = f::SRC_C.set(word, f::SRC_B.get(word));
            return Ok(with_constant(
                f::MODE_B.set(f::SRC_B.set(word, 0), 2),
                bank,
                offset,
            ));
        }
        let registers = crate::isa::display::registers(width, word);
        Ok(f::SRC_C.set(word, self.register(registers)?))
    }

    fn number_of(&mut self, bits: u32, what: &'static str) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        match number(text) {
            Some(value) if fits(value, bits) => {
                self.at += 1;
                Ok(value as u32)
            }
            Some(_) => Err(self.refusal(format!("{text} does not fit {bits} bits"))),
            None => Err(self.mismatch(what)),
        }
    }

    fn small(&mut self, field: Field) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        let most = (1i64 << field.bits()) - 1;
        match number(text) {
            Some(value) if (0..=most).contains(&value) => {
                self.at += 1;
                Ok(value as u32)
            }
            Some(_) => Err(self.refusal(format!("{text} is not from 0 to {most:#x}"))),
            None => Err(self.mismatch("a number")),
        }
    }

    fn special(&mut self) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        let named = Special::ALL
            .iter()
            .find(|special| special.name() == text)
            .map(|special| special.number());
        let numbered = || {
            text.strip_prefix("$sr")?
                .parse::<u32>()
                .ok()
                .filter(|number| *number < 256)
        };
        let number = named
            .or_else(numbered)
            .ok_or_else(|| self.mismatch("a special register"))?;
        self.at += 1;
        Ok(number)
    }

    fn lanes(&mut self, word: u64) -> u64 {
        let mut lanes = 0;
        if self.accept("lnone") {
            return f::LANES.set(word, 0);
        }
        while let Some(named) = self.peek().and_then(lanes_named) {
            self.at += 1;
            lanes |= named;
        }
        f::LANES.set(word, if lanes == 0 { 15 } else { lanes })
    }

    fn condition(&mut self, field: Field, word: u64) -> u64 {
        let is_shown = self.lexemes.get(self.at + 1).map(|lexeme| lexeme.text) == Some("$c");
        let mut ahead = self.clone();
        match ahead.named(CONDITIONS) {
            Ok(code) if is_shown => {
                self.at += 2;
                field.set(word, code)
            }
            _ => field.set(word, 15),
        }
    }

    fn combination_word(&mut self) -> Option<u32> {
        let next = self.peek()?;
        let index = COMBINATIONS[..3].iter().position(|name| *name == next)?;
        self.at += 1;
        Some(index as u32)
    }

    fn combination(&mut self, word: u64) -> Matched<u64> {
        let Some(operation) = self.combination_word() else {
            return Ok(f::PRED_C.set(word, 7));
        };
        let word = f::COMBINE.set(word, operation);
        let word = f::PRED_C_NOT.set(word, u32::from(self.accept("not")));
        Ok(f::PRED_C.set(word, self.predicate()?))
    }

    fn second(&mut self, word: u64) -> Matched<u64> {
        let Some(operation) = self.combination_word() else {
            return Ok(f::PRED_B.set(word, 7));
        };
        let word = f::PRED_OP.set(word, operation);
        let word = f::PRED_B_NOT.set(word, u32::from(self.accept("not")));
        Ok(f::PRED_B.set(word, self.predicate()?))
    }

    fn memory(&mut self, space: Space, field: Field, scale: u32, word: u64) -> Matched<u64> {
        let (name, what) = match space {
            Space::Global => ('g', "a place in global memory (g[$r0d+0x0])"),
            Space::Shared => ('s', "a place in shared memory (s[$r0+0x0])"),
            Space::Local => ('l', "a place in local memory (l[$r0+0x0])"),
        };
        let text = self.peek().unwrap_or_default();
        let place = text
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('[')?.strip_suffix(']'))
            .and_then(place);
        let Some(place) = place.filter(|place| !place.is_wide || space == Space::Global) else {
            return Err(self.mismatch(what));
        };
        if place.is_wide && place.register % 2 != 0 && place.register != 63 {
            return Err(self.refusal(format!(
                "{text}: a 64-bit address is in a pair, its first register is even"
            )));
        }
        let offset = place.offset / i64::from(scale);
        if place.offset % i64::from(scale) != 0 || !fits(offset, field.bits()) {
            return Err(self.refusal(format!(
                "{text}: the offset is a multiple of {scale} of {} bits with its sign",
                field.bits()
            )));
        }
        self.at += 1;
        let word = f::SRC_A.set(field.set(word, offset as u32), place.register);
        Ok(if place.is_wide {
            f::WIDE_ADDRESS.set(word, 1)
        } else {
            word
        })
    }

    fn table(&mut self, word: u64) -> Matched<u64> {
        let text = self.peek().unwrap_or_default();
        let parsed = text.strip_prefix('c').and_then(|rest| {
            let (bank, inside) = rest.strip_suffix(']')?.split_once('[')?;
            let bank = bank.parse::<u32>().ok().filter(|bank| *bank < 32)?;
            Some((
                bank,
                place(inside).filter(|place| !place.is_wide && fits(place.offset, 16))?,
            ))
        });
        let (bank, place) =
            parsed.ok_or_else(|| self.mismatch("a place in a constant bank (c0[$r0+0x0])"))?;
        self.at += 1;
        let word = f::CONST_OFFSET.set(f::TABLE_BANK.set(word, bank), place.offset as u32);
        Ok(f::SRC_A.set(word, place.register))
    }

    /// A byte offset in the code: a number or a label.
    fn place(&mut self) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        if let Some(name) = text.strip_prefix('#') {
            let Some(address) = self.labels.get(name) else {
                return Err(self.refusal(format!("there is no label {name}")));
            };
            self.at += 1;
            return Ok(*address);
        }
        self.number_of(32, "a label (#name) or an offset")
    }

    fn relative(&mut self, word: u64) -> Matched<u64> {
        let here = self.clone();
        let target = self.place()?;
        let distance = i64::from(target as i32) - i64::from(self.address) - i64::from(INSTRUCTION_BYTES);
        if !(-(1i64 << 23)..1 << 23).contains(&distance) {
            return Err(here.refusal(format!(
                "the target is {distance} bytes away; a branch reaches 8 MiB"
            )));
        }
        Ok(f::OFFSET24.set(word, distance as u32))
    }

    fn barrier(&mut self, value: Field, is_immediate: Field, register: Field, word: u64) -> Matched<u64> {
        match self.peek().and_then(number) {
            Some(0) | None => Ok(register.set(word, self.register(1)?)),
            Some(_) => Ok(is_immediate.set(value.set(word, self.small(value)?), 1)),
        }
    }
}
