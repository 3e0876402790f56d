//! Accesses to words of BAR0 without a name, to find out what a driver expects of them.
//!
//! A long run of reads of one such word is a poll that the model does not answer. Reads of PTIMER in between do not end
//! a run, as a driver looks at the time while it waits.

use std::collections::BTreeMap;

/// Number of unknown words that are counted one by one. A guest decides how many it touches; the rest
/// is counted in sum.
const REGISTERS_MAX: usize = 512;

/// Counts of accesses to a word that is neither named nor plain storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct UnknownAccesses {
    /// Reads, which gave zero.
    pub reads: u64,
    /// Writes, which were dropped.
    pub writes: u64,
}

/// A run of reads of the same word without a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Poll {
    /// The word's BAR0 offset.
    pub offset: u32,
    /// Reads in a row.
    pub reads: u64,
}

/// The counts of all unknown words, and the longest run of reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnknownRegisters {
    by_offset: BTreeMap<u32, UnknownAccesses>,
    current: Poll,
    longest: Poll,
}

impl UnknownRegisters {
    fn entry(&mut self, offset: u32) -> Option<&mut UnknownAccesses> {
        if self.by_offset.len() >= REGISTERS_MAX && !self.by_offset.contains_key(&offset) {
            return None;
        }
        Some(self.by_offset.entry(offset).or_default())
    }

    pub(crate) fn note_read(&mut self, offset: u32) {
        if let Some(entry) = self.entry(offset) {
            entry.reads += 1;
        }
    }

    pub(crate) fn note_write(&mut self, offset: u32) {
        if let Some(entry) = self.entry(offset) {
            entry.writes += 1;
        }
    }

    /// A word without a name was read, be it unknown or plain.
    pub(crate) fn note_unnamed_read(&mut self, offset: u32) {
        if self.current.offset != offset {
            self.current = Poll { offset, reads: 0 };
        }
        self.current.reads += 1;
        if self.current.reads > self.longest.reads {
            self.longest = self.current;
        }
    }

    /// Whether a read of `offset` would go on with the run.
    pub(crate) fn is_run_of(&self, offset: u32) -> bool {
        self.current.offset == offset
    }

    /// Another access happened: a run is over.
    pub(crate) fn end_run(&mut self) {
        self.current.reads = 0;
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, UnknownAccesses)> {
        self.by_offset
            .iter()
            .map(|(offset, accesses)| (*offset, *accesses))
    }

    #[cfg(test)]
    pub(crate) fn longest_poll(&self) -> Poll {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_ended_by_another_access() {
        let mut unknown = UnknownRegisters::default();
        for offset in [4, 4, 8, 4, 4, 4] {
            unknown.note_unnamed_read(offset);
        }
        unknown.end_run();
        unknown.note_unnamed_read(4);
        assert_eq!(unknown.longest_poll(), Poll { offset: 4, reads: 3 });
    }

    #[test]
    fn words_beyond_the_bound_are_not_listed() {
        let mut unknown = UnknownRegisters::default();
        for word in 0..REGISTERS_MAX as u32 + 5 {
            unknown.note_read(4 * word);
        }
        unknown.note_write(0);
        assert_eq!(unknown.iter().count(), REGISTERS_MAX);
        assert_eq!(
            unknown.iter().next(),
            Some((0, UnknownAccesses { reads: 1, writes: 1 }))
        );
    }
}
