//! Operands in a line's text: lanes, places in memory, constants, signs.

use super::number;
use crate::isa::field as f;

/// Lanes of a quad as a mask: `l0`, `l13`.
pub(super) fn lanes_named(text: &str) -> Option<u32> {
    let lanes = text.strip_prefix('l').filter(|lanes| !lanes.is_empty())?;
    lanes.bytes().try_fold(0, |mask, lane| {
        (b'0'..=b'3').contains(&lane).then(|| mask | 1 << (lane - b'0'))
    })
}

/// Register, width and offset inside the brackets of a memory operand.
pub(super) struct MemoryOperand {
    pub(super) register: u32,
    pub(super) is_wide: bool,
    pub(super) offset: i64,
}

pub(super) fn place(inside: &str) -> Option<MemoryOperand> {
    let Some(rest) = inside.strip_prefix("$r") else {
        return Some(MemoryOperand {
            register: 63,
            is_wide: false,
            offset: number(inside)?,
        });
    };
    let end = rest.find(['+', '-']).unwrap_or(rest.len());
    let (register, offset) = rest.split_at(end);
    let (register, is_wide) = match register.strip_suffix('d') {
        Some(register) => (register, true),
        None => (register, false),
    };
    let offset = match offset.strip_prefix('+') {
        Some(digits) => number(digits)?,
        None if offset.is_empty() => 0,
        None => number(offset)?,
    };
    Some(MemoryOperand {
        register: register.parse().ok().filter(|register| *register <= 63)?,
        is_wide,
        offset,
    })
}

/// Bank and offset of `c0[0x20]`.
pub(super) fn constant(text: &str) -> Option<(u32, u32)> {
    let (bank, offset) = text.strip_prefix('c')?.strip_suffix(']')?.split_once('[')?;
    let bank = bank.parse::<u32>().ok().filter(|bank| *bank < 32)?;
    let offset = number(offset).filter(|offset| (0..0x1_0000).contains(offset) && offset % 2 == 0)?;
    Some((bank, offset as u32))
}

pub(super) fn with_constant(word: u64, bank: u32, offset: u32) -> u64 {
    f::CONST_BANK.set(f::CONST_OFFSET.set(word, offset | bank >> 4), bank & 15)
}

/// A 32-bit pattern as the signed number it is.
pub(super) fn sign_extended(value: i64) -> i64 {
    if (1 << 31..1 << 32).contains(&value) {
        value - (1 << 32)
    } else {
        value
    }
}
