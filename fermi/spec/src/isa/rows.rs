//! The table of instructions: which bits select a row, and how its text goes.

use super::{
    field::{self as f, Field},
    opcode::Opcode,
};

mod float;
mod integer;
mod memory;
mod moves;
mod texture;

/// How many registers an operand takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    /// A single register.
    One,
    /// An aligned pair.
    Pair,
    /// As many as the TYPE field says.
    Type,
    /// A pair where this size field is 3 (64 bits), else one.
    Size(Field),
}

/// Meaning of a 20-bit immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An integer, sign-extended.
    Integer,
    /// The upper bits of an f32.
    Float,
    /// The upper bits of an f64.
    Double,
}

/// A memory space with an address register and an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Space {
    Global,
    Shared,
    Local,
}

/// How many registers stand side by side, and which of the places have a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    /// Four places; the field says which have a register.
    Masked(Field),
    /// As many as the list has for the field's number; [`NO_VECTOR`] is not an instruction.
    Counted(Field, &'static [u8]),
}

/// Entry of an [`Extent::Counted`] list for a number that no instruction has.
pub(super) const NO_VECTOR: u8 = u8::MAX;

impl Extent {
    /// Places, as a mask of those with a register, and their number; `None` for a reserved value of the field.
    pub(super) fn of(self, word: u64) -> Option<(u32, u32)> {
        match self {
            Self::Masked(field) => Some((field.get(word), 4)),
            Self::Counted(field, counts) => {
                let count = *counts.get(field.get(word) as usize)?;
                (count != NO_VECTOR).then(|| ((1 << count) - 1, u32::from(count)))
            }
        }
    }

    /// Number of registers that the word names.
    pub(super) fn registers(self, word: u64) -> u32 {
        self.of(word).map_or(0, |(mask, _)| mask.count_ones())
    }
}

/// A piece of an instruction's text, and the bits that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token {
    /// A word, always there.
    Word(&'static str),
    /// "(" and ")".
    Open,
    Close,
    /// A word that is there when the bit is set.
    Flag(Field, &'static str),
    /// One of several words by number: an empty one shows nothing, [`RESERVED`] is not an instruction.
    Pick(Field, &'static [&'static str]),
    /// A general register, or the first of several.
    Register(Field, Width),
    /// The destination once more.
    SameDst,
    /// Registers side by side, the first in the field.
    Vector(Field, Extent),
    /// A surface: number or register B.
    Surface,
    /// A texture or a sampler: the letter and the number.
    Slot(&'static str, Field),
    /// A predicate register.
    Predicate(Field),
    /// Operand B by [`f::MODE_B`].
    B(Kind, Width),
    /// Operand C, where B may be in its place.
    C(Width),
    /// The 32-bit immediate of class 2.
    Imm32,
    /// A number in decimal or hexadecimal.
    Number(Field),
    /// A special register.
    Special,
    /// Lanes of a quad, unless all.
    Lanes,
    /// Condition code, unless "always".
    Condition(Field),
    /// Condition code, always shown.
    ConditionShown(Field),
    /// Combination with the third predicate, unless it is "and true".
    Combine,
    /// Combination with the second predicate.
    SecondPredicate,
    /// A place in memory; the last value is the unit that the offset counts in, in bytes.
    Memory(Space, Field, u32),
    /// A place in a constant bank, indexed by register A.
    Table,
    /// A place in a constant bank that holds a branch target.
    Bank,
    /// Branch target, from the next instruction.
    Relative,
    /// Branch target, from the start of the code.
    Absolute,
    /// Barrier number and thread count: register or immediate.
    BarNumber,
    BarCount,
    /// Not in the text: what the assembler writes where nothing uses the field.
    Fixed(Field, u32),
}

/// A number of a [`Token::Pick`] that no instruction has.
pub(super) const RESERVED: &str = "?";

/// Text in front of the mnemonic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Join flag and guard.
    Plain,
    /// Guard alone; bit 4 is clear.
    Control,
    /// Neither join flag nor guard.
    Bare,
}

/// One form of one instruction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) opcode: Opcode,
    pub(super) form: Form,
    /// Bits that select the row, and their value.
    pub(super) mask: u64,
    pub(super) value: u64,
    pub(super) text: &'static [Token],
}

const OPCODE4: Field = Field::new(&[(63, 60)]);
const OPCODE5: Field = Field::new(&[(63, 59)]);
const OPCODE6: Field = Field::new(&[(63, 58)]);

impl Row {
    const fn new(opcode: Opcode, class: u32, selector: Field, number: u32, text: &'static [Token]) -> Self {
        let form = if class == 7 { Form::Control } else { Form::Plain };
        Self {
            opcode,
            form,
            mask: 0,
            value: 0,
            text,
        }
        .with(f::CLASS, class)
        .with(f::SHORT, 0)
        .with(selector, number)
    }

    /// A row with a four-bit opcode.
    const fn four(opcode: Opcode, class: u32, number: u32, text: &'static [Token]) -> Self {
        Self::new(opcode, class, OPCODE4, number, text)
    }

    /// A row with a five-bit opcode.
    const fn five(opcode: Opcode, class: u32, number: u32, text: &'static [Token]) -> Self {
        Self::new(opcode, class, OPCODE5, number, text)
    }

    /// A row with a six-bit opcode.
    const fn six(opcode: Opcode, class: u32, number: u32, text: &'static [Token]) -> Self {
        Self::new(opcode, class, OPCODE6, number, text)
    }

    /// Only where the field has this value.
    const fn with(mut self, field: Field, value: u32) -> Self {
        self.mask |= field.set(0, u32::MAX);
        self.value = field.set(self.value, value);
        self
    }

    /// Neither guard nor join.
    const fn bare(mut self) -> Self {
        self.form = Form::Bare;
        self
    }

    /// Whether `word` is of this row, apart from reserved values of its fields.
    pub(super) const fn selects(&self, word: u64) -> bool {
        word & self.mask == self.value
    }
}

/// Rows of a class, 0 to 7; the first that selects a word is the word's.
pub(super) const fn of_class(class: u32) -> &'static [Row] {
    match class & 7 {
        0 => float::SINGLE,
        1 => float::DOUBLE,
        2 => integer::IMMEDIATE,
        3 => integer::INTEGER,
        4 => moves::MOVES,
        5 => memory::MEMORY,
        6 => texture::TEXTURE,
        _ => moves::CONTROL,
    }
}

/// Names of the comparisons.
pub(super) const COMPARISONS: &[&str] = &[
    "false", "lt", "eq", "le", "gt", "ne", "ge", "num", "nan", "ltu", "equ", "leu", "gtu", "neu", "geu",
    "true",
];

/// Names of the condition codes; 15 is "always".
pub(super) const CONDITIONS: &[&str] = &[
    "never", "l", "e", "le", "g", "lg", "ge", "lge", "u", "lu", "eu", "leu", "gu", "lgu", "geu", "always",
    "no", "nc", "ns", "na", "a", "s", "c", "o", "csm", "csm_no", "csm_le", "csm_g", "fcsm", "fcsm_no", "rle",
    "rgt",
];

/// How predicates are combined.
pub(super) const COMBINATIONS: &[&str] = &["and", "or", "xor", RESERVED];

/// The value in a constant bank is a distance from the next instruction, not an address.
pub(super) const PC_RELATIVE: Token = Token::Word("pcrel");

const ROUNDINGS: &[&str] = &["rn", "rm", "rp", "rz"];
const ROUNDINGS_INTEGRAL: &[&str] = &["rni", "rmi", "rpi", "rzi"];
const SIGNS: &[&str] = &["u32", "s32"];
const ADDITIONS: &[&str] = &["add", "sub", "subr", "addpo"];
const LOGIC: &[&str] = &["and", "or", "xor", "mov2"];
const MASK_OR_FLOAT: &[&str] = &["b32", "f32"];

const DST: Token = Token::Register(f::DST, Width::One);
const DST2: Token = Token::Register(f::DST, Width::Pair);
const A: Token = Token::Register(f::SRC_A, Width::One);
const A2: Token = Token::Register(f::SRC_A, Width::Pair);
const B: Token = Token::B(Kind::Integer, Width::One);
const C: Token = Token::C(Width::One);
const FLAGS: Token = Token::Flag(f::SET_FLAGS, "$c");
const FLAGS32: Token = Token::Flag(f::SET_FLAGS32, "$c");
const PRED_D: Token = Token::Predicate(f::PRED_D);
const PRED_Q: Token = Token::Predicate(f::PRED_Q);
const PRED_C_NOT: Token = Token::Flag(f::PRED_C_NOT, "not");
const PRED_C: Token = Token::Predicate(f::PRED_C);
const COMPARE: Token = Token::Pick(f::COMPARE, COMPARISONS);

/// One bit of the word.
const fn bit(number: usize) -> Field {
    const BITS: [&[(u32, u32)]; 64] = {
        const RUNS: [[(u32, u32); 1]; 64] = {
            let mut runs = [[(0, 0)]; 64];
            let mut at = 0;
            while at < 64 {
                runs[at] = [(at as u32, at as u32)];
                at += 1;
            }
            runs
        };
        let mut bits: [&[(u32, u32)]; 64] = [&RUNS[0]; 64];
        let mut at = 0;
        while at < 64 {
            bits[at] = &RUNS[at];
            at += 1;
        }
        bits
    };
    Field::new(BITS[number])
}

const fn flag(number: usize, word: &'static str) -> Token {
    Token::Flag(bit(number), word)
}
