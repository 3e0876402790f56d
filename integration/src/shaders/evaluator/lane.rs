//! One lane: its state, its operands, and the rule that an instruction word follows.

use super::{Shared, Wrong};
use crate::shaders::Launch;
use crate::shaders::memory::Memory;

/// The condition flags of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flags {
    pub(super) zero: bool,
    pub(super) sign: bool,
    pub(super) carry: bool,
    pub(super) overflow: bool,
}

impl Flags {
    pub(super) fn of_integer(value: u32) -> Self {
        Self {
            zero: value == 0,
            sign: value >> 31 != 0,
            ..Self::default()
        }
    }

    /// Flags of a float's magnitude and sign; a NaN has both.
    pub(super) fn of_float(is_nan: bool, is_zero: bool, is_negative: bool) -> Self {
        Self {
            zero: is_zero || is_nan,
            sign: is_negative && !is_zero || is_nan,
            ..Self::default()
        }
    }

    /// Whether a condition code holds: the formulas of envytools' Tesla CUDA ISA, "Predicates".
    fn holds(self, code: u32) -> Result<bool, Wrong> {
        let Self {
            zero: z,
            sign: s,
            carry: c,
            overflow: o,
        } = self;
        Ok(match code {
            0 => false,
            1 => (s & !z) ^ o,
            2 => z & !s,
            3 => s ^ (z | o),
            4 => !z & !(s ^ o),
            5 => !z,
            6 => !(s ^ o),
            7 => !z | !s,
            8 => z & s,
            9 => s ^ o,
            10 => z,
            11 => z | (s ^ o),
            12 => !s ^ (z | o),
            13 => !z | s,
            14 => (!s | z) ^ o,
            15 => true,
            16 => !o,
            17 => !c,
            18 => !s,
            19 => !(c & !z),
            20 => c & !z,
            21 => s,
            22 => c,
            23 => o,
            _ => return Err(Wrong::Unspecified("condition code")),
        })
    }
}

/// Bits `high..=low` of a word.
pub(super) fn bits(word: u64, high: u32, low: u32) -> u32 {
    (word >> low & ((1 << (high - low + 1)) - 1)) as u32
}

pub(super) fn bit(word: u64, number: u32) -> bool {
    word >> number & 1 != 0
}

/// The same bits as a two's complement number.
pub(super) fn signed(word: u64, high: u32, low: u32) -> i32 {
    let width = high - low + 1;
    let value = i64::from(bits(word, high, low));
    (value - if value >> (width - 1) != 0 { 1 << width } else { 0 }) as i32
}

/// Meaning of a 20-bit immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Immediate {
    Integer,
    Single,
    Double,
}

/// Position of a lane in the grid.
pub(super) struct Surroundings<'a> {
    pub(super) launch: &'a Launch,
    pub(super) memory: &'a mut Memory,
    pub(super) shared: &'a mut Shared,
    /// Block index in x, y, z.
    pub(super) block: [u32; 3],
    /// Thread index in the block, of this lane.
    pub(super) thread: u32,
    /// Address of the instruction.
    pub(super) pc: u32,
}

/// The state of a lane.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    registers: [u32; 63],
    predicates: [bool; 7],
    pub(super) flags: Flags,
    pub(super) local: Vec<u8>,
}

impl Lane {
    pub(super) fn new(local_bytes: usize) -> Self {
        Self {
            registers: [0; 63],
            predicates: [false; 7],
            flags: Flags::default(),
            local: vec![0; local_bytes],
        }
    }

    pub(super) fn get(&self, register: u32) -> u32 {
        self.registers.get(register as usize).map_or(0, |value| *value)
    }

    pub(super) fn set(&mut self, register: u32, value: u32) {
        if let Some(target) = self.registers.get_mut(register as usize) {
            *target = value;
        }
    }

    /// An aligned pair, low word first; that of the zero register is zero.
    pub(super) fn get_wide(&self, register: u32) -> u64 {
        match register {
            63 => 0,
            _ => u64::from(self.get(register + 1)) << 32 | u64::from(self.get(register)),
        }
    }

    pub(super) fn set_wide(&mut self, register: u32, value: u64) {
        if register != 63 {
            self.set(register, value as u32);
            self.set(register + 1, (value >> 32) as u32);
        }
    }

    pub(super) fn predicate(&self, number: u32) -> bool {
        self.predicates.get(number as usize).is_none_or(|value| *value)
    }

    pub(super) fn set_predicate(&mut self, number: u32, value: bool) {
        if let Some(target) = self.predicates.get_mut(number as usize) {
            *target = value;
        }
    }

    /// A predicate source with its negation.
    pub(super) fn source(&self, number: u32, is_negated: bool) -> bool {
        self.predicate(number) != is_negated
    }

    /// The predicate source in 51:49, negated by 52.
    pub(super) fn third(&self, word: u64) -> bool {
        self.source(bits(word, 51, 49), bit(word, 52))
    }

    /// Whether the guard lets the lane execute.
    pub(super) fn is_let_through(&self, word: u64) -> bool {
        self.source(bits(word, 12, 10), bit(word, 13))
    }

    pub(super) fn meets(&self, code: u32) -> Result<bool, Wrong> {
        self.flags.holds(code)
    }

    /// P0 to P6 and the flags, as `$flags` shows them.
    pub(super) fn packed(&self) -> u32 {
        let flags = [
            self.flags.zero,
            self.flags.sign,
            self.flags.carry,
            self.flags.overflow,
        ];
        let predicates = (0..7).map(|number| u32::from(self.predicates[number]) << number);
        let flags = (0..4).map(|number| u32::from(flags[number]) << (12 + number));
        predicates.chain(flags).sum()
    }

    pub(super) fn set_packed(&mut self, value: u32, mask: u32) {
        let merged = self.packed() & !mask | value & mask;
        for number in 0..7 {
            self.predicates[number] = merged >> number & 1 != 0;
        }
        self.flags = Flags {
            zero: merged >> 12 & 1 != 0,
            sign: merged >> 13 & 1 != 0,
            carry: merged >> 14 & 1 != 0,
            overflow: merged >> 15 & 1 != 0,
        };
    }

    /// Writes the flags if the word says so, by bit 48 or in class 2 by bit 58.
    pub(super) fn note(&mut self, word: u64, flags: Flags) {
        let number = if word & 7 == 2 { 58 } else { 48 };
        if bit(word, number) {
            self.flags = flags;
        }
    }

    /// Value of operand A.
    pub(super) fn a(&self, word: u64) -> u32 {
        self.get(bits(word, 25, 20))
    }

    fn constant(word: u64, launch: &Launch) -> u32 {
        let offset = bits(word, 41, 26);
        let bank = bits(word, 45, 42) + if offset & 1 != 0 { 16 } else { 0 };
        launch.constant(bank, offset & !3)
    }

    fn wide_constant(word: u64, launch: &Launch) -> u64 {
        let offset = bits(word, 41, 26);
        let bank = bits(word, 45, 42) + if offset & 1 != 0 { 16 } else { 0 };
        let [low, high] = [0, 4].map(|more| launch.constant(bank, (offset & !3) + more));
        u64::from(high) << 32 | u64::from(low)
    }

    /// Operand B of 32 bits.
    pub(super) fn b(&self, word: u64, kind: Immediate, launch: &Launch) -> u32 {
        match bits(word, 47, 46) {
            0 => self.get(bits(word, 31, 26)),
            1 => Self::constant(word, launch),
            2 => self.get(bits(word, 54, 49)),
            _ if kind == Immediate::Integer => signed(word, 45, 26) as u32,
            _ => bits(word, 45, 26) << 12,
        }
    }

    /// Operand C of 32 bits.
    pub(super) fn c(&self, word: u64, launch: &Launch) -> u32 {
        match bits(word, 47, 46) {
            2 => Self::constant(word, launch),
            _ => self.get(bits(word, 54, 49)),
        }
    }

    /// Operand B of 64 bits.
    pub(super) fn wide_b(&self, word: u64, kind: Immediate, launch: &Launch) -> u64 {
        match bits(word, 47, 46) {
            0 => self.get_wide(bits(word, 31, 26)),
            1 => Self::wide_constant(word, launch),
            2 => self.get_wide(bits(word, 54, 49)),
            _ if kind == Immediate::Double => u64::from(bits(word, 45, 26)) << 44,
            _ => i64::from(signed(word, 45, 26)) as u64,
        }
    }

    /// Operand C of 64 bits.
    pub(super) fn wide_c(&self, word: u64, launch: &Launch) -> u64 {
        match bits(word, 47, 46) {
            2 => Self::wide_constant(word, launch),
            _ => self.get_wide(bits(word, 54, 49)),
        }
    }

    /// A comparison's result combined with the third predicate by 54:53.
    pub(super) fn combined(&self, word: u64, holds: bool) -> Result<bool, Wrong> {
        combine(bits(word, 54, 53), holds, self.third(word))
    }

    /// Stores both results of a comparison into predicates.
    pub(super) fn set_both(&mut self, word: u64, holds: bool) -> Result<(), Wrong> {
        let (is, is_not) = (self.combined(word, holds)?, self.combined(word, !holds)?);
        self.set_predicate(bits(word, 16, 14), is_not);
        self.set_predicate(bits(word, 19, 17), is);
        Ok(())
    }

    /// Stores the result of a comparison as all ones or 1.0.
    pub(super) fn set_truth(&mut self, word: u64, holds: bool, is_float: bool) -> Result<(), Wrong> {
        let result = match (self.combined(word, holds)?, is_float) {
            (false, _) => 0,
            (true, false) => u32::MAX,
            (true, true) => 0x3f80_0000,
        };
        self.set(bits(word, 19, 14), result);
        self.note(word, Flags::of_integer(result));
        Ok(())
    }

    /// Executes an instruction of the classes 0 to 6 that concerns this lane alone.
    pub(super) fn execute(&mut self, word: u64, around: &mut Surroundings<'_>) -> Result<(), Wrong> {
        if bit(word, 3) {
            return Err(Wrong::Unspecified("short form"));
        }
        let five = bits(word, 63, 59);
        match word & 7 {
            0 => self.single(word, five, around.launch),
            1 => self.double(word, five, around.launch),
            2 => self.immediate(word, five, around.thread),
            3 => self.integer(word, five, around.launch),
            4 => self.moves(word, bits(word, 63, 58), around),
            5 => self.memory(word, five, around),
            6 => self.indexed_constant(word, around.launch),
            _ => Err(Wrong::Unspecified("control")),
        }
    }
}

/// And, or, xor of two predicates.
pub(super) fn combine(operation: u32, a: bool, b: bool) -> Result<bool, Wrong> {
    match operation {
        0 => Ok(a && b),
        1 => Ok(a || b),
        2 => Ok(a != b),
        _ => Err(Wrong::Unspecified("predicate operation")),
    }
}
