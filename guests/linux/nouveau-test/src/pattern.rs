//! Words that identify their place: a wrong one shows the place that it was meant for.

use anyhow::{Result, bail};

use crate::sys::Mapping;

/// Words of one object, by index. Two patterns differ nearly everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern(pub(crate) u32);

impl Pattern {
    /// The word at `index`.
    pub(crate) fn word(self, index: u64) -> u32 {
        let mixed = (index ^ u64::from(self.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32 ^ mixed as u32
    }

    /// The byte at `offset`.
    pub(crate) fn byte(self, offset: u64) -> u8 {
        self.word(offset / 4).to_le_bytes()[(offset % 4) as usize]
    }

    /// `count` words from the start.
    pub(crate) fn words(self, count: usize) -> Vec<u32> {
        (0..count as u64).map(|index| self.word(index)).collect()
    }

    /// Writes all of `memory`.
    pub(crate) fn fill(self, memory: &Mapping) {
        self.fill_range(memory, 0, memory.bytes());
    }

    /// Writes `bytes` (a multiple of 4) from `offset` with the pattern from its start.
    pub(crate) fn fill_range(self, memory: &Mapping, offset: usize, bytes: usize) {
        for index in 0..bytes / 4 {
            memory.write(offset + index * 4, self.word(index as u64));
        }
    }

    /// Holds all of `memory` against the pattern.
    pub(crate) fn check(self, memory: &Mapping) -> Result<()> {
        self.check_range(memory, 0, memory.bytes(), 0)
    }

    /// Holds `bytes` from `offset` against the pattern from the word `first`.
    pub(crate) fn check_range(self, memory: &Mapping, offset: usize, bytes: usize, first: u64) -> Result<()> {
        for index in 0..bytes / 4 {
            let at = offset + index * 4;
            let wanted = self.word(first + index as u64);
            let found = memory.read(at);
            if found != wanted {
                let wrong = (index..bytes / 4)
                    .filter(|i| memory.read(offset + i * 4) != self.word(first + *i as u64))
                    .count();
                bail!(
                    "word at {at:#x} is {found:#010x} instead of {wanted:#010x}; {wrong} of {} words are wrong",
                    bytes / 4
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_places_differ() {
        let words = Pattern(1).words(4096);
        let others = Pattern(2).words(4096);
        let same = words.iter().zip(&others).filter(|(a, b)| a == b).count();
        assert!(same < 8);
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert!(distinct.len() > 4000);
    }

    #[test]
    fn bytes_are_those_of_the_words() {
        let word = Pattern(3).word(7).to_le_bytes();
        assert_eq!([28, 29, 30, 31].map(|offset| Pattern(3).byte(offset)), word);
    }
}
