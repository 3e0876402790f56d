//! Code as it is executed: decoded once, checked against the launch once.

use std::{collections::BTreeMap, sync::Arc};

use fermi_spec::isa::{
    DataType, INSTRUCTION_BYTES, Instruction, Opcode, Source,
    field::{self, Field},
};

use super::{
    alu::{convert::Conversion, single::Mode},
    launch::Launch,
    tally::Issue,
    trap::{Stop, WarpError},
    warp::{LANES, Lanes},
};
use crate::mmu::Refusal;

/// Instructions that are decoded together.
const PAGE_INSTRUCTIONS: usize = 64;
const PAGE_BYTES: u32 = PAGE_INSTRUCTIONS as u32 * INSTRUCTION_BYTES;
/// Pages of code kept: 1 MiB. A launch that jumps about in more decodes again.
const PAGES_MAX: usize = 2048;

/// An operand of one register's width, or the first of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operand {
    Register(u8),
    Constant { bank: u8, offset: u16 },
    Immediate(u32),
}

impl Operand {
    fn of(source: Source) -> Self {
        match source {
            Source::Register(register) => Self::Register(register.0),
            Source::Constant(at) => Self::Constant {
                bank: at.bank,
                offset: at.offset,
            },
            Source::Immediate(value) => Self::Immediate(value),
        }
    }
}

/// An instruction, ready to be executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    pub(crate) opcode: Opcode,
    pub(crate) issue: Issue,
    /// Predicate of the guard, and whether it is negated.
    pub(crate) guard: u8,
    pub(crate) guard_not: bool,
    pub(crate) join: bool,
    pub(crate) sets_flags: bool,
    pub(crate) dst: u8,
    pub(crate) a: u8,
    pub(crate) b: Operand,
    pub(crate) c: Operand,
    /// Value of B or C in every lane where it is not a register: a launch's constants do not change.
    pub(crate) value: Lanes,
    /// The same of an operand of 64 bits.
    pub(crate) wide_value: u64,
    /// Of f32 arithmetic.
    pub(crate) mode: Mode,
    /// Types and options of a conversion.
    pub(crate) conversion: Conversion,
    pub(crate) data: DataType,
    /// Address is a register pair.
    pub(crate) wide: bool,
    pub(crate) offset: i32,
    /// Target of a branch or a push; the next instruction of others.
    pub(crate) target: u32,
    word: u64,
}

impl Op {
    /// Decodes the word at byte `pc` of the code of a launch.
    pub(crate) fn decode(word: u64, pc: u32, launch: &Launch) -> Result<Self, WarpError> {
        let instruction = Instruction::decode(word).map_err(|_| WarpError::InvalidOpcode)?;
        if !instruction.is_aligned() {
            return Err(WarpError::MisalignedRegister);
        }
        if !instruction.has_aligned_constant() {
            return Err(WarpError::MisalignedConstant);
        }
        if instruction.registers_used() > launch.registers {
            return Err(WarpError::RegisterOutOfBounds);
        }
        let guard = instruction.guard();
        let (b, c) = (Operand::of(instruction.b()), Operand::of(instruction.c()));
        let value = match (b, c) {
            (Operand::Immediate(value), _) => value,
            (Operand::Constant { bank, offset }, _) | (_, Operand::Constant { bank, offset }) => {
                launch.constant(bank, offset.into())
            }
            _ => 0,
        };
        let wide_value = wide_value(instruction.opcode(), b, c, launch);
        let next = pc.wrapping_add(INSTRUCTION_BYTES);
        let target = match instruction.target_in_bank() {
            Some((at, is_relative)) => {
                let value = launch.constant(at.bank, at.offset.into());
                if is_relative {
                    next.wrapping_add(value)
                } else {
                    value
                }
            }
            None => instruction.target(pc).unwrap_or(next),
        };
        Ok(Self {
            opcode: instruction.opcode(),
            issue: Issue::of(instruction),
            guard: guard.predicate.0,
            guard_not: guard.is_negated,
            join: instruction.is_join(),
            sets_flags: instruction.sets_flags(),
            dst: instruction.dst().0,
            a: instruction.a().0,
            b,
            c,
            value: [value; LANES],
            wide_value,
            mode: Mode::decode(instruction.opcode(), word),
            conversion: Conversion::decode(instruction.opcode(), word),
            data: instruction.data_type(),
            wide: instruction.has_wide_address(),
            offset: instruction.offset(),
            target,
            word,
        })
    }

    /// The instruction word.
    pub(crate) fn word(&self) -> u64 {
        self.word
    }

    /// A field of the word.
    pub(crate) fn get(&self, field: Field) -> u32 {
        field.get(self.word)
    }

    /// A bit of the word.
    pub(crate) fn bit(&self, number: u32) -> bool {
        self.word >> number & 1 != 0
    }

    /// Whether the condition code, where there is one, is "always".
    pub(crate) fn is_unconditional(&self) -> bool {
        self.get(field::CONDITION) == 15
    }
}

/// The 64 bits of B or C where it is not a register: an immediate is an f64's upper word, or an integer.
fn wide_value(opcode: Opcode, b: Operand, c: Operand, launch: &Launch) -> u64 {
    match (b, c) {
        (Operand::Immediate(value), _) if matches!(opcode, Opcode::I2f | Opcode::I2i) => {
            i64::from(value as i32) as u64
        }
        (Operand::Immediate(value), _) => u64::from(value) << 32,
        (Operand::Constant { bank, offset }, _) | (_, Operand::Constant { bank, offset }) => {
            let word = |at: u32| u64::from(launch.constant(bank, at));
            word(u32::from(offset) + 4) << 32 | word(offset.into())
        }
        _ => 0,
    }
}

/// Instructions that were decoded together.
pub(crate) struct Page {
    first: u32,
    ops: Box<[Result<Op, WarpError>; PAGE_INSTRUCTIONS]>,
}

impl Page {
    /// The instruction at `pc`, `None` if it is on another page.
    #[inline(always)]
    pub(crate) fn op(&self, pc: u32) -> Option<&Result<Op, WarpError>> {
        const MISALIGNED: &Result<Op, WarpError> = &Err(WarpError::MisalignedPc);
        let inside = pc.wrapping_sub(self.first);
        let op = self.ops.get((inside / INSTRUCTION_BYTES) as usize)?;
        Some(if inside.is_multiple_of(INSTRUCTION_BYTES) {
            op
        } else {
            MISALIGNED
        })
    }
}

/// The code of a launch. A clone has what was decoded by then.
#[derive(Clone, Default)]
pub(crate) struct Code {
    pages: BTreeMap<u32, Arc<Page>>,
}

impl Code {
    /// The page with the instruction at `pc`; `read` fills its bytes from an offset of the code.
    pub(crate) fn page(
        &mut self,
        pc: u32,
        launch: &Launch,
        mut read: impl FnMut(u32, &mut [u8]) -> Result<(), Refusal>,
    ) -> Result<&Page, Stop> {
        let first = pc / PAGE_BYTES * PAGE_BYTES;
        if !self.pages.contains_key(&first) {
            let mut bytes = [0; PAGE_BYTES as usize];
            read(first, &mut bytes)?;
            if self.pages.len() >= PAGES_MAX {
                self.pages.clear();
            }
            let mut ops = Box::new([Err(WarpError::InvalidOpcode); PAGE_INSTRUCTIONS]);
            for (index, (op, word)) in ops.iter_mut().zip(bytes.as_chunks().0).enumerate() {
                let at = first + index as u32 * INSTRUCTION_BYTES;
                *op = Op::decode(u64::from_le_bytes(*word), at, launch);
            }
            self.pages.insert(first, Arc::new(Page { first, ops }));
        }
        Ok(&self.pages[&first])
    }
}
