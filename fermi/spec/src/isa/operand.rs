//! Operands of an instruction.

use super::field;

/// A general register of a lane, 0 to 63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Register(pub u8);

impl Register {
    /// Register 63: reads as zero, writes vanish.
    pub const ZERO: Self = Self(63);

    /// Whether this is the zero register.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
}

/// A predicate register of a lane, 0 to 7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Predicate(pub u8);

impl Predicate {
    /// Predicate 7: reads as true, writes vanish.
    pub(crate) const TRUE: Self = Self(7);
}

/// A predicate as a source: lanes where it holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guard {
    /// Register whose value is used.
    pub predicate: Predicate,
    /// The complement of the register's value counts.
    pub is_negated: bool,
}

impl Guard {
    /// Holds in all lanes.
    pub const ALWAYS: Self = Self {
        predicate: Predicate::TRUE,
        is_negated: false,
    };
}

/// A place in a constant bank.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConstAddress {
    /// Bank, 0 to 31; 0 to 17 can be bound.
    pub bank: u8,
    /// Offset in the bank, in bytes.
    pub offset: u16,
}

impl ConstAddress {
    /// The place that a constant operand in `word` names.
    pub(super) fn of(word: u64) -> Self {
        let offset = field::CONST_OFFSET.get(word) as u16;
        Self {
            bank: field::CONST_BANK.get(word) as u8 + if offset & 1 != 0 { 16 } else { 0 },
            offset: offset & !1,
        }
    }
}

/// A source that need not be a register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// A register, or the first of several.
    Register(Register),
    /// A constant in a bank.
    Constant(ConstAddress),
    /// The value itself, as the instruction uses it; of a 64-bit float the high word, the low one being zero.
    Immediate(u32),
}

/// Type of the data that a memory instruction moves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataType {
    /// One byte, zero-extended.
    U8,
    /// One byte, sign-extended.
    S8,
    /// Two bytes, zero-extended.
    U16,
    /// Two bytes, sign-extended.
    S16,
    /// One register, 32 bits.
    B32,
    /// Two registers, 64 bits.
    B64,
    /// Four registers, 128 bits.
    B128,
}

impl DataType {
    /// Decodes the TYPE field; `None` for its reserved value.
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        Some(match bits {
            0 => Self::U8,
            1 => Self::S8,
            2 => Self::U16,
            3 => Self::S16,
            4 => Self::B32,
            5 => Self::B64,
            6 => Self::B128,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub fn bytes(self) -> u32 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 => 2,
            Self::B32 => 4,
            Self::B64 => 8,
            Self::B128 => 16,
        }
    }

    /// Registers that hold it.
    pub fn registers(self) -> u32 {
        self.bytes().div_ceil(4)
    }
}

/// Form of an integer addition: `a + b`, `a − b`, `b − a`, `a + b + 1` (fields [`ADD_OP`](super::field::ADD_OP) and
/// [`ADD_OP_SCALED`](super::field::ADD_OP_SCALED)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addition {
    /// `a + b`.
    Add,
    /// `a − b`.
    Subtract,
    /// `b − a`.
    Reverse,
    /// `a + b + 1`.
    PlusOne,
}

impl Addition {
    /// Decodes its number in an instruction, of which the lower two bits count.
    #[inline(always)]
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::Add,
            1 => Self::Subtract,
            2 => Self::Reverse,
            _ => Self::PlusOne,
        }
    }
}
