//! Gathers shadow entries into few writes, small ones before large ones.

use crate::placement::ShadowWriter;
use crate::region::{PAGE_ENTRIES, SLOTS, SlotSet};
use fermi_spec::addr::{SMALL_PAGE, VramAddr};
use fermi_spec::pte::SMALL_PER_LARGE;

/// Collects neighbouring small entries into one write.
#[derive(Debug)]
struct Run {
    at: VramAddr,
    len: usize,
    entries: [u64; PAGE_ENTRIES],
}

impl Run {
    const EMPTY: Self = Self {
        at: VramAddr(0),
        len: 0,
        entries: [0; PAGE_ENTRIES],
    };

    #[inline]
    fn push(&mut self, writer: &mut dyn ShadowWriter, at: VramAddr, entries: &[u64; SMALL_PER_LARGE]) {
        let follows = self.len < PAGE_ENTRIES && self.at.offset(self.len as u64 * 8) == at;
        if !follows {
            self.flush(writer);
            self.at = at;
        }
        self.entries[self.len..self.len + SMALL_PER_LARGE].copy_from_slice(entries);
        self.len += SMALL_PER_LARGE;
    }

    fn flush(&mut self, writer: &mut dyn ShadowWriter) {
        if self.len != 0 {
            writer.write(self.at, &self.entries[..self.len]);
            self.len = 0;
        }
    }
}

/// The large entries that a build writes, gathered so that they follow the small ones.
#[derive(Debug)]
struct LargeEntries {
    entries: [u64; SLOTS],
    slots: SlotSet,
}

/// Buffers of builds, empty between them. Kept, because clearing them costs more than the redirect of one page.
#[derive(Debug)]
pub(crate) struct Scratch {
    small: Run,
    large: LargeEntries,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            small: Run::EMPTY,
            large: LargeEntries {
                entries: [0; SLOTS],
                slots: SlotSet::EMPTY,
            },
        }
    }
}

impl Scratch {
    /// Takes a slot's small entries; [`Self::flush_small`] writes them at the latest.
    #[inline]
    pub(crate) fn small(
        &mut self,
        writer: &mut dyn ShadowWriter,
        table: VramAddr,
        slot: usize,
        entries: &[u64; SMALL_PER_LARGE],
    ) {
        let at = table.offset((slot * SMALL_PER_LARGE) as u64 * 8);
        self.small.push(writer, at, entries);
    }

    /// Writes the small entries that are still held.
    pub(crate) fn flush_small(&mut self, writer: &mut dyn ShadowWriter) {
        self.small.flush(writer);
    }

    /// Takes a slot's large entry; [`Self::flush_large`] writes it.
    #[inline]
    pub(crate) fn large(&mut self, slot: usize, entry: u64) {
        self.large.entries[slot] = entry;
        self.large.slots.insert(slot);
    }

    /// Writes the large entries. Returns how many.
    pub(crate) fn flush_large(&mut self, writer: &mut dyn ShadowWriter, table: VramAddr) -> u64 {
        self.large.write(writer, table);
        std::mem::replace(&mut self.large.slots, SlotSet::EMPTY).len()
    }
}

impl LargeEntries {
    fn write(&self, writer: &mut dyn ShadowWriter, table: VramAddr) {
        for (first, count) in self.slots.runs() {
            for piece in (first..first + count).step_by(PAGE_ENTRIES) {
                let end = (piece + PAGE_ENTRIES).min(first + count);
                writer.write(table.offset(piece as u64 * 8), &self.entries[piece..end]);
            }
        }
    }
}

/// Writes zeros over `bytes`, a multiple of 8.
pub(crate) fn write_zeros(writer: &mut dyn ShadowWriter, at: VramAddr, bytes: u64) {
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(SMALL_PAGE);
        writer.write(at.offset(done), &[0; PAGE_ENTRIES][..(piece / 8) as usize]);
        done += piece;
    }
}
