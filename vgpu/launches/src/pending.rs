//! What work that has been found, and has not ended, will leave in memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that are kept; beyond, all memory counts as unknown.
const RANGES_MAX: usize = 4096;
/// Bytes that are kept; beyond, they count as unknown.
const BYTES_MAX: usize = 1 << 20;
/// Bytes of a patch that stores are added to: whoever cuts it copies them.
const PATCH_BYTES_MAX: usize = 4096;

/// What will be in a range.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Content {
    Known(Vec<u8>),
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Patch {
    end: u64,
    content: Content,
    /// Entry of the ring that leaves it there.
    entry: u64,
}

/// Stores to come, apart from each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    patches: BTreeMap<u64, Patch>,
    bytes: usize,
    /// Last entry whose work may store anywhere.
    anywhere: Option<u64>,
    /// Entries before this one have ended.
    first: u64,
}

impl Pending {
    /// Forgets what entries before `next` leave: memory has it.
    pub(crate) fn ended(&mut self, next: u64) {
        self.first = next;
        if self.anywhere.is_some_and(|entry| entry < next) {
            self.anywhere = None;
        }
        if self.patches.values().any(|patch| patch.entry < next) {
            self.patches.retain(|_, patch| patch.entry >= next);
            let kept = self.patches.values().map(|patch| match &patch.content {
                Content::Known(bytes) => bytes.len(),
                Content::Unknown => 0,
            });
            self.bytes = kept.sum();
        }
    }

    /// Bytes of the host's memory that it takes, about.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.bytes + self.patches.len() * size_of::<(u64, Patch)>()
    }

    /// Entries before this one have ended.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Nothing is known of any memory until `entry` has ended.
    pub(crate) fn spoil_all(&mut self, entry: u64) {
        self.patches.clear();
        self.bytes = 0;
        self.anywhere = Some(entry);
    }

    /// Nothing is known of a range until `entry` has ended.
    pub(crate) fn spoil(&mut self, range: Range<u64>, entry: u64) {
        self.put(range, Content::Unknown, entry);
    }

    /// `entry` stores these bytes.
    pub(crate) fn store(&mut self, at: u64, bytes: &[u8], entry: u64) {
        let end = at.saturating_add(bytes.len() as u64);
        let is_free = self.patches.range(at..end).next().is_none();
        // A row of stores is one patch.
        if is_free
            && let Some((_, last)) = self.patches.range_mut(..at).next_back()
            && last.end == at
            && last.entry == entry
            && let Content::Known(known) = &mut last.content
            && known.len() + bytes.len() <= PATCH_BYTES_MAX
            && self.bytes + bytes.len() <= BYTES_MAX
        {
            known.extend_from_slice(bytes);
            last.end = end;
            self.bytes += bytes.len();
            return;
        }
        let content = match self.bytes + bytes.len() <= BYTES_MAX {
            true => Content::Known(bytes.to_vec()),
            false => Content::Unknown,
        };
        self.put(at..end, content, entry);
    }

    fn put(&mut self, range: Range<u64>, content: Content, entry: u64) {
        if range.is_empty() {
            return;
        }
        self.cut(&range);
        if self.patches.len() >= RANGES_MAX {
            return self.spoil_all(entry);
        }
        if let Content::Known(bytes) = &content {
            self.bytes += bytes.len();
        }
        let patch = Patch {
            end: range.end,
            content,
            entry,
        };
        self.patches.insert(range.start, patch);
    }

    /// Takes a range out of what is there.
    fn cut(&mut self, range: &Range<u64>) {
        let touched: Vec<u64> = self
            .patches
            .range(..range.end)
            .rev()
            .take_while(|(_, patch)| patch.end > range.start)
            .map(|(start, _)| *start)
            .collect();
        for start in touched {
            let Some(patch) = self.patches.remove(&start) else {
                continue;
            };
            if let Content::Known(bytes) = &patch.content {
                self.bytes -= bytes.len();
            }
            for kept in [start..range.start.min(patch.end), range.end.max(start)..patch.end] {
                if kept.is_empty() {
                    continue;
                }
                let content = match &patch.content {
                    Content::Unknown => Content::Unknown,
                    Content::Known(bytes) => {
                        let from = (kept.start - start) as usize;
                        let to = (kept.end - start) as usize;
                        self.bytes += to - from;
                        Content::Known(bytes[from..to].to_vec())
                    }
                };
                let piece = Patch {
                    end: kept.end,
                    content,
                    entry: patch.entry,
                };
                self.patches.insert(kept.start, piece);
            }
        }
    }

    /// Whether bytes that were read there are what they will be, if what may store anywhere does not store here.
    pub(crate) fn leaves(&self, range: Range<u64>) -> bool {
        let before = self.patches.range(..range.end).next_back();
        before.is_none_or(|(_, patch)| patch.end <= range.start)
    }

    /// Lays what is to come over bytes that were read at `at`; `is_known` gets which of them are.
    pub(crate) fn lay_over(&self, at: u64, bytes: &mut [u8], is_known: &mut [bool]) {
        if self.anywhere.is_some() {
            is_known.fill(false);
        }
        self.lay_ranges_over(at, bytes, is_known);
    }

    /// The same, as if what may store anywhere did not store here.
    pub(crate) fn lay_ranges_over(&self, at: u64, bytes: &mut [u8], is_known: &mut [bool]) {
        let end = at.saturating_add(bytes.len() as u64);
        let touched = self.patches.range(..end).rev();
        for (start, patch) in touched.take_while(|(_, patch)| patch.end > at) {
            let (from, to) = ((*start).max(at), patch.end.min(end));
            let own = (from - at) as usize..(to - at) as usize;
            match &patch.content {
                Content::Unknown => is_known[own].fill(false),
                Content::Known(known) => {
                    let of_patch = (from - start) as usize..(to - start) as usize;
                    bytes[own.clone()].copy_from_slice(&known[of_patch]);
                    is_known[own].fill(true);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn later_store_wins_and_ended_entries_are_forgotten() {
        let mut pending = Pending::default();
        pending.store(0x10, &[1, 2, 3, 4], 0);
        pending.store(0x14, &[5, 6], 0);
        pending.spoil(0x12..0x13, 1);
        let look = |pending: &Pending| {
            let (mut bytes, mut is_known) = ([9; 8], [true; 8]);
            pending.lay_over(0x10, &mut bytes, &mut is_known);
            (bytes, is_known)
        };
        let (bytes, is_known) = look(&pending);
        assert_eq!((bytes[1], bytes[3], bytes[5], bytes[6]), (2, 4, 6, 9));
        assert_eq!(is_known, [true, true, false, true, true, true, true, true]);
        pending.ended(1);
        let (bytes, is_known) = look(&pending);
        assert_eq!((bytes, is_known[2]), ([9; 8], false));
        pending.ended(2);
        assert_eq!(look(&pending).1, [true; 8]);
    }

    proptest! {
        #[test]
        fn patches_are_a_memory_with_holes(
            stores in prop::collection::vec((0u64..64, 1usize..16, any::<u8>(), any::<bool>()), 0..40)
        ) {
            let mut pending = Pending::default();
            let mut slow = [(0u8, true); 96];
            for (at, count, value, is_known) in stores {
                if is_known {
                    pending.store(at, &vec![value; count], 0);
                } else {
                    pending.spoil(at..at + count as u64, 0);
                }
                for byte in &mut slow[at as usize..at as usize + count] {
                    *byte = (if is_known { value } else { byte.0 }, is_known);
                }
            }
            let (mut bytes, mut is_known) = ([0; 96], [true; 96]);
            pending.lay_over(0, &mut bytes, &mut is_known);
            for at in 0..96 {
                prop_assert_eq!(is_known[at], slow[at].1);
                prop_assert!(!is_known[at] || bytes[at] == slow[at].0);
            }
        }
    }
}
