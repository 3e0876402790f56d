//! A decoded instruction word.

use core::fmt;

use super::{
    display,
    field::{self as f, Field},
    opcode::Opcode,
    operand::{ConstAddress, DataType, Guard, Predicate, Register, Source},
    rows::{self, Form, Kind, RESERVED, Row, Token},
};

/// Why a word is not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// No instruction of this model has the opcode: reserved, of the next generation, or of graphics only.
    Opcode,
    /// A field of the instruction has a reserved value.
    Field,
    /// A short form (bit 3): see [`widen`](super::widen).
    Short,
}

/// A word that is not an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Illegal {
    /// The eight bytes, or the four of a short form.
    pub word: u64,
    /// The error in the word.
    pub reason: Reason,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Reason::Opcode => "no such opcode",
            Reason::Field => "a reserved value in a field",
            Reason::Short => "a short form",
        };
        write!(f, "{:016x} is not an instruction: {reason}", self.word)
    }
}

impl core::error::Error for Illegal {}

/// A legal instruction: its word and its opcode.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Instruction {
    word: u64,
    class: u8,
    row: u8,
}

impl Instruction {
    /// Decodes a long form; total.
    pub fn decode(word: u64) -> Result<Self, Illegal> {
        let illegal = |reason| Illegal { word, reason };
        if f::SHORT.get(word) != 0 {
            return Err(illegal(Reason::Short));
        }
        let class = f::CLASS.get(word);
        let rows = rows::of_class(class);
        let row = rows
            .iter()
            .position(|row| row.selects(word))
            .ok_or(illegal(Reason::Opcode))?;
        if !is_complete(&rows[row], word) {
            return Err(illegal(Reason::Field));
        }
        Ok(Self {
            word,
            class: class as u8,
            row: row as u8,
        })
    }

    /// The word as it stands in memory.
    pub fn word(self) -> u64 {
        self.word
    }

    pub(super) fn row(self) -> &'static Row {
        &rows::of_class(u32::from(self.class))[usize::from(self.row)]
    }

    /// The operation that the word asks for.
    pub fn opcode(self) -> Opcode {
        self.row().opcode
    }

    /// Class, 0 to 7.
    pub fn class(self) -> u8 {
        self.class
    }

    /// A field of the word.
    pub fn get(self, field: Field) -> u32 {
        field.get(self.word)
    }

    /// A bit of the word, 0 to 63.
    pub fn bit(self, number: u32) -> bool {
        self.word >> number & 1 != 0
    }

    /// Lanes that take part; instructions that ignore the field have [`Guard::ALWAYS`].
    pub fn guard(self) -> Guard {
        match self.row().form {
            Form::Bare => Guard::ALWAYS,
            Form::Plain | Form::Control => self.predicate_source(f::GUARD, f::GUARD_NOT),
        }
    }

    /// Whether the lanes that executed it then join.
    pub fn is_join(self) -> bool {
        self.row().form == Form::Plain && self.get(f::JOIN) != 0
    }

    /// A register operand.
    pub fn register(self, field: Field) -> Register {
        Register(self.get(field) as u8)
    }

    /// A predicate operand.
    pub fn predicate(self, field: Field) -> Predicate {
        Predicate(self.get(field) as u8)
    }

    /// A predicate source and its negation.
    pub fn predicate_source(self, field: Field, negation: Field) -> Guard {
        Guard {
            predicate: self.predicate(field),
            is_negated: self.get(negation) != 0,
        }
    }

    /// Destination, or data of a store.
    pub fn dst(self) -> Register {
        self.register(f::DST)
    }

    /// First source, or address register.
    pub fn a(self) -> Register {
        self.register(f::SRC_A)
    }

    /// Second source: a 32-bit immediate in class 2, else by MODE_B.
    pub fn b(self) -> Source {
        if self.class == 2 {
            return Source::Immediate(self.get(f::IMM32));
        }
        match self.get(f::MODE_B) {
            0 => Source::Register(self.register(f::SRC_B)),
            1 => Source::Constant(ConstAddress::of(self.word)),
            2 => Source::Register(self.register(f::SRC_C)),
            _ => Source::Immediate(immediate(self.kind_b(), self.word)),
        }
    }

    fn kind_b(self) -> Kind {
        let found = self.row().text.iter().find_map(|token| match token {
            Token::B(kind, _) => Some(*kind),
            _ => None,
        });
        // A conversion's immediate is of its source's size.
        match found {
            Some(Kind::Float) if self.class == 4 && self.get(f::CVT_FROM) == 3 => Kind::Double,
            Some(kind) => kind,
            None => Kind::Integer,
        }
    }

    /// Third source of a three-operand instruction; of IMAD32I and FFMA32I the destination.
    pub fn c(self) -> Source {
        if self.class == 2 {
            return Source::Register(self.dst());
        }
        match self.get(f::MODE_B) {
            2 => Source::Constant(ConstAddress::of(self.word)),
            _ => Source::Register(self.register(f::SRC_C)),
        }
    }

    /// Whether the condition flags are written.
    pub fn sets_flags(self) -> bool {
        let field = if self.class == 2 {
            f::SET_FLAGS32
        } else {
            f::SET_FLAGS
        };
        self.row().text.contains(&Token::Flag(field, "$c")) && self.get(field) != 0
    }

    /// Type of the data that a memory instruction moves; 32 bits for one that has no TYPE field.
    pub fn data_type(self) -> DataType {
        let has_type = self
            .row()
            .text
            .iter()
            .any(|token| matches!(token, Token::Pick(field, _) if *field == f::TYPE));
        has_type
            .then(|| DataType::from_bits(self.get(f::TYPE)))
            .flatten()
            .unwrap_or(DataType::B32)
    }

    /// Byte offset of a memory access.
    pub fn offset(self) -> i32 {
        let found = self.row().text.iter().find_map(|token| match token {
            Token::Memory(_, field, scale) => Some(field.get_signed(self.word).wrapping_mul(*scale as i32)),
            Token::Table | Token::Bank => Some(f::CONST_OFFSET.get_signed(self.word)),
            _ => None,
        });
        found.unwrap_or(0)
    }

    /// Whether the address is in a register pair.
    pub fn has_wide_address(self) -> bool {
        let is_global = |token: &Token| matches!(token, Token::Memory(rows::Space::Global, _, _));
        self.row().text.iter().any(is_global) && self.get(f::WIDE_ADDRESS) != 0
    }

    /// First register that it writes and how many, `None` if it writes none.
    pub fn result(self) -> Option<(Register, u32)> {
        let stores = [
            Opcode::St,
            Opcode::Stl,
            Opcode::Sts,
            Opcode::Stsul,
            Opcode::RedU32,
            Opcode::RedS32,
            Opcode::RedF32,
            Opcode::RedU64,
            Opcode::Sustb,
            Opcode::Sustp,
        ];
        if stores.contains(&self.opcode()) {
            return None;
        }
        let written = |target: Field| {
            self.row().text.iter().find_map(|token| match *token {
                Token::Register(field, width) if field == target => {
                    Some((self.register(field), display::registers(width, self.word)))
                }
                Token::Vector(field, extent) if field == target => {
                    Some((self.register(field), extent.registers(self.word)))
                }
                _ => None,
            })
        };
        // The data of an atomic operation is where others have their result.
        let result = written(f::ATOMIC_DST).or_else(|| written(f::DST));
        result.filter(|(register, _)| !register.is_zero())
    }

    /// Predicates that it writes.
    pub fn result_predicates(self) -> impl Iterator<Item = Predicate> {
        const RESULTS: [Field; 6] = [
            f::PRED_D,
            f::PRED_Q,
            f::PRED_LOCK,
            f::PRED_VOTE,
            f::PRED_BAR,
            f::PRED_SURFACE,
        ];
        self.row()
            .text
            .iter()
            .filter_map(move |token| match token {
                Token::Predicate(field) if RESULTS.contains(field) => Some(self.predicate(*field)),
                _ => None,
            })
            .filter(|predicate| predicate.0 != 7)
    }

    /// Registers that a lane must have for this instruction: one more than the highest that it names.
    pub fn registers_used(self) -> u32 {
        let end = |register: u32, registers: u32| if register == 63 { 0 } else { register + registers };
        let mode = self.get(f::MODE_B);
        let ends = self.row().text.iter().map(|token| match *token {
            Token::Register(field, width) => end(self.get(field), display::registers(width, self.word)),
            Token::B(_, width) => match mode {
                0 => end(self.get(f::SRC_B), display::registers(width, self.word)),
                2 => end(self.get(f::SRC_C), display::registers(width, self.word)),
                _ => 0,
            },
            Token::C(width) if mode != 2 => end(self.get(f::SRC_C), display::registers(width, self.word)),
            Token::Memory(..) => end(self.get(f::SRC_A), if self.has_wide_address() { 2 } else { 1 }),
            Token::Table => end(self.get(f::SRC_A), 1),
            Token::Vector(field, extent) => end(self.get(field), extent.registers(self.word)),
            Token::Surface if self.get(f::SURFACE_IMM) == 0 => end(self.get(f::SRC_B), 1),
            Token::BarNumber if self.get(f::BAR_NUMBER_IMM) == 0 => end(self.get(f::SRC_A), 1),
            Token::BarCount if self.get(f::BAR_COUNT_IMM) == 0 => end(self.get(f::SRC_B), 1),
            _ => 0,
        });
        ends.max().unwrap_or(0)
    }

    /// Whether pairs begin in an even register and groups of four in a multiple of four.
    pub fn is_aligned(self) -> bool {
        let mode = self.get(f::MODE_B);
        let of = |field: Field, registers: u32| {
            let register = self.get(field);
            register == 63 || register.is_multiple_of(registers)
        };
        self.row().text.iter().all(|token| match *token {
            Token::Register(field, width) => of(field, display::registers(width, self.word)),
            Token::B(_, width) if mode == 0 => of(f::SRC_B, display::registers(width, self.word)),
            Token::B(_, width) if mode == 2 => of(f::SRC_C, display::registers(width, self.word)),
            Token::C(width) if mode != 2 => of(f::SRC_C, display::registers(width, self.word)),
            Token::Memory(..) if self.has_wide_address() => of(f::SRC_A, 2),
            _ => true,
        })
    }

    /// Whether a constant operand is at a multiple of its size.
    pub fn has_aligned_constant(self) -> bool {
        let mode = self.get(f::MODE_B);
        let offset = u32::from(ConstAddress::of(self.word).offset);
        self.row().text.iter().all(|token| match *token {
            Token::B(_, width) if mode == 1 => {
                offset.is_multiple_of(4 * display::registers(width, self.word))
            }
            Token::C(width) if mode == 2 => offset.is_multiple_of(4 * display::registers(width, self.word)),
            Token::Bank => f::CONST_OFFSET.get(self.word).is_multiple_of(4),
            _ => true,
        })
    }

    /// Where a branch or a push at byte `address` of the code leads, `None` if it has no target.
    pub fn target(self, address: u32) -> Option<u32> {
        self.row().text.iter().find_map(|token| match token {
            Token::Relative => Some(relative_target(self.word, address)),
            Token::Absolute => Some(self.get(f::ABSOLUTE)),
            _ => None,
        })
    }

    /// The place in a constant bank that holds the target of a branch or a push, and whether it counts from the next
    /// instruction; `None` if the target is in no bank.
    pub fn target_in_bank(self) -> Option<(ConstAddress, bool)> {
        let text = self.row().text;
        text.contains(&Token::Bank).then(|| {
            let place = ConstAddress {
                bank: self.get(f::TABLE_BANK) as u8,
                offset: self.get(f::CONST_OFFSET) as u16,
            };
            (place, text.contains(&rows::PC_RELATIVE))
        })
    }

    /// The text, with branch targets as if the word were at byte `address` of the code.
    pub fn at(self, address: u32) -> Listing {
        Listing {
            instruction: self,
            address,
        }
    }
}

/// Whether no field has a reserved value.
fn is_complete(row: &Row, word: u64) -> bool {
    let mut has_third = false;
    let mut has_second = false;
    for token in row.text {
        match token {
            Token::Pick(field, words)
                if words
                    .get(field.get(word) as usize)
                    .is_none_or(|name| *name == RESERVED) =>
            {
                return false;
            }
            Token::Vector(_, extent) if extent.of(word).is_none() => return false,
            Token::Combine if f::COMBINE.get(word) == 3 => return false,
            Token::SecondPredicate if f::PRED_OP.get(word) == 3 => return false,
            Token::B(..) => has_second = true,
            Token::C(_) => has_third = true,
            _ => {}
        }
    }
    // Operand C is in the constant's place: only where there is an operand C.
    !has_second || has_third || f::MODE_B.get(word) != 2
}

/// Target of a relative branch at `address`.
pub(super) fn relative_target(word: u64, address: u32) -> u32 {
    address
        .wrapping_add(super::INSTRUCTION_BYTES)
        .wrapping_add(f::OFFSET24.get_signed(word) as u32)
}

/// The 20-bit immediate, as its kind is used; of an f64 the high word.
pub(super) fn immediate(kind: Kind, word: u64) -> u32 {
    match kind {
        Kind::Integer => f::IMM20.get_signed(word) as u32,
        Kind::Float | Kind::Double => f::IMM20.get(word) << 12,
    }
}

impl fmt::Debug for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {self}", self.word)
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at(0).fmt(f)
    }
}

/// An instruction at its place, to be shown.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    instruction: Instruction,
    address: u32,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display::write(f, self.instruction, self.address, false)
    }
}
