//! Registers side by side, surfaces, texture slots.

use alloc::{format, vec::Vec};

use super::{Matched, Words, number};
use crate::isa::{
    field::{self as f, Field},
    rows::Extent,
};

/// The place of a vector that has no register.
const NO_REGISTER: &str = "#";

impl Words<'_> {
    /// `$r4:#:$r5:#`, or `()` for none.
    pub(super) fn vector(&mut self, first: Field, extent: Extent, word: u64) -> Matched<u64> {
        let wanted = match extent {
            Extent::Masked(_) => 4,
            Extent::Counted(..) => extent.of(word).map_or(0, |(_, places)| places),
        };
        if wanted == 0 {
            self.expect("(")?;
            self.expect(")")?;
            return Ok(first.set(word, 63));
        }
        let text = self.peek().unwrap_or_default();
        let places: Vec<_> = text.split(':').collect();
        if places.len() != wanted as usize {
            return Err(self.mismatch(format!("{wanted} registers side by side ($r0:$r1, # for none)")));
        }
        let (mut mask, mut found): (u32, Option<u32>) = (0, None);
        for (place, text) in places.iter().enumerate() {
            if *text == NO_REGISTER {
                continue;
            }
            let register = text
                .strip_prefix("$r")
                .and_then(|digits| digits.parse::<u32>().ok());
            let next = found.map(|first| first + mask.count_ones());
            match register {
                Some(register)
                    if register < 64 + mask.count_ones() && next.is_none_or(|next| next == register) =>
                {
                    found.get_or_insert(register);
                    mask |= 1 << place;
                }
                _ => {
                    return Err(self.refusal(format!("{text}: registers of a vector follow each other")));
                }
            }
        }
        let word = match extent {
            Extent::Masked(field) => field.set(word, mask),
            Extent::Counted(..) if mask != (1 << wanted) - 1 => {
                return Err(self.refusal(format!("{text}: each place has a register")));
            }
            Extent::Counted(..) => word,
        };
        self.at += 1;
        Ok(first.set(word, found.unwrap_or(63)))
    }

    /// `img[0x3]` or `img[$r3]`.
    pub(super) fn surface(&mut self, word: u64) -> Matched<u64> {
        let text = self.peek().unwrap_or_default();
        let inside = text.strip_prefix("img[").and_then(|rest| rest.strip_suffix(']'));
        let inside = inside.ok_or_else(|| self.mismatch("a surface (img[0x0], img[$r0])"))?;
        let register = inside
            .strip_prefix("$r")
            .and_then(|digits| digits.parse::<u32>().ok());
        let word = match (register, number(inside)) {
            (Some(register), _) if register < 63 => f::SRC_B.set(word, register),
            (None, Some(value)) if (0..8).contains(&value) => {
                f::SURFACE.set(f::SURFACE_IMM.set(word, 1), value as u32)
            }
            _ => return Err(self.refusal(format!("{text}: surfaces are 0x0 to 0x7, or in a register"))),
        };
        self.at += 1;
        Ok(word)
    }

    /// Parses a slot such as `$t0` or `$s0`: its letter, then its number.
    pub(super) fn slot(&mut self, letter: &'static str, field: Field) -> Matched<u32> {
        let text = self.peek().unwrap_or_default();
        let number = text.strip_prefix('$').and_then(|rest| rest.strip_prefix(letter));
        let number = number.and_then(|digits| digits.parse::<u32>().ok());
        let number = number.filter(|number| *number < 1 << field.bits());
        let number = number.ok_or_else(|| self.mismatch(format!("a slot (${letter}0)")))?;
        self.at += 1;
        Ok(number)
    }
}
