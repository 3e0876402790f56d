//! One guest directory entry: a snapshot of its tables, and the slots that changed since they were built.
//!
//! A snapshot entry beyond the end of its table (SIZE) or of a table that does not exist is zero, so that nothing
//! behind this module has to ask.

use crate::saved::{self, Unsound};
use crate::shadow::{Changes, MISSING_MAX};
use crate::store::{TableAt, TableRead, TableStore};
use crate::work::{PAGE_ASKED, PAGE_COMPARED, Work};
use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::pte::{LARGE_PT_ENTRIES, Pde, SMALL_PER_LARGE, SMALL_PT_ENTRIES};
use serde::{Deserialize, Serialize};
use zerocopy::IntoBytes;

/// Entries on a 4 KiB page.
pub(crate) const PAGE_ENTRIES: usize = 512;
/// Slots of a directory entry.
pub(crate) const SLOTS: usize = LARGE_PT_ENTRIES;
const SLOTS_PER_SMALL_PAGE: usize = PAGE_ENTRIES / SMALL_PER_LARGE;
const SMALL_PAGES: usize = SMALL_PT_ENTRIES / PAGE_ENTRIES;

// Entries are read as they lie in memory; they are little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// One 4 KiB page of entries.
pub(crate) type EntryPage = [u64; PAGE_ENTRIES];

/// A set of slots of one directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotSet([u64; SLOTS / 64]);

impl SlotSet {
    pub(crate) const EMPTY: Self = Self([0; SLOTS / 64]);
    const ALL: Self = Self([!0; SLOTS / 64]);

    #[inline]
    pub(crate) fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    #[inline]
    pub(crate) fn contains(&self, slot: usize) -> bool {
        self.0[slot / 64] >> (slot % 64) & 1 != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The first members from `slot` on, at most `count`.
    pub(crate) fn from(&self, slot: usize, count: usize) -> Self {
        let mut some = Self::EMPTY;
        self.iter()
            .skip_while(|&member| member < slot)
            .take(count)
            .for_each(|member| some.insert(member));
        some
    }

    /// Takes the members of `other` out.
    pub(crate) fn remove_all(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(word, other)| *word &= !other);
    }

    /// Takes the members of `other` in.
    pub(crate) fn insert_all(&mut self, other: &Self) {
        self.0
            .iter_mut()
            .zip(other.0)
            .for_each(|(word, other)| *word |= other);
    }

    pub(crate) fn runs(&self) -> SlotRuns<'_> {
        SlotRuns {
            words: &self.0,
            at: 0,
        }
    }

    /// Takes in the slots from a multiple of 64 on that a word's bits name.
    #[inline]
    fn insert_word(&mut self, first: usize, bits: u64) {
        self.0[first / 64] |= bits;
    }

    pub(crate) fn iter(&self) -> SlotIter<'_> {
        SlotIter {
            words: &self.0,
            next_word: 0,
            rest: 0,
        }
    }
}

/// Lists a [`SlotSet`] in order, as runs of neighbours: first and number.
pub(crate) struct SlotRuns<'a> {
    words: &'a [u64; SLOTS / 64],
    at: usize,
}

impl SlotRuns<'_> {
    /// Neighbours from `self.at` on that are (or are not) members, to the end of a word.
    fn ahead(&self, members: bool) -> usize {
        let Some(&word) = self.words.get(self.at / 64) else {
            return 0;
        };
        let word = if members { word } else { !word };
        (word >> (self.at % 64)).trailing_ones() as usize
    }
}

impl Iterator for SlotRuns<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        // Each step ends at a change or at the end of a word, where the next word goes on.
        loop {
            match self.ahead(false) {
                0 => break,
                skipped => self.at += skipped,
            }
        }
        let first = self.at;
        loop {
            match self.ahead(true) {
                0 => break,
                taken => self.at += taken,
            }
        }
        (self.at != first).then_some((first, self.at - first))
    }
}

/// Lists a [`SlotSet`] in order.
pub(crate) struct SlotIter<'a> {
    words: &'a [u64; SLOTS / 64],
    next_word: usize,
    rest: u64,
}

impl Iterator for SlotIter<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        while self.rest == 0 {
            self.rest = *self.words.get(self.next_word)?;
            self.next_word += 1;
        }
        let bit = self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some((self.next_word - 1) * 64 + bit)
    }
}

/// The guest entries that decide a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GuestSlot<'a> {
    /// No entry is there.
    Empty,
    /// A valid large entry, whatever the small ones say.
    Large(u64),
    /// The small entries.
    Small(&'a [u64; SMALL_PER_LARGE]),
}

/// Which of the two tables under a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    Large,
    Small,
}

/// Where a guest's table is and how many of its entries exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct TableSpan {
    at: Option<TableAt>,
    entries: usize,
}

impl TableSpan {
    fn of(pde: Pde, size: Size) -> Self {
        let (table, entries) = match size {
            Size::Large => (pde.large_table(), pde.large_entries()),
            Size::Small => (pde.small_table(), pde.small_entries()),
        };
        let at = table.and_then(|(aperture, address)| TableAt::from_aperture(aperture, address));
        Self {
            at,
            entries: if at.is_some() { entries } else { 0 },
        }
    }

    fn pages(self) -> usize {
        self.entries.div_ceil(PAGE_ENTRIES)
    }

    fn page(self, page: usize) -> Option<(TableAt, usize)> {
        let at = self.at?.offset(page as u64 * SMALL_PAGE);
        let entries = self.entries.checked_sub(page * PAGE_ENTRIES)?;
        Some((at, entries.min(PAGE_ENTRIES)))
    }
}

/// Whether a directory entry has any table.
pub(crate) fn has_table(pde: u64) -> bool {
    let pde = Pde::from_bits(pde);
    pde.large_table().is_some() || pde.small_table().is_some()
}

/// The snapshot of one directory entry's tables.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Region {
    large_span: TableSpan,
    small_span: TableSpan,
    #[serde(with = "saved::runs")]
    large: Box<[u64; LARGE_PT_ENTRIES]>,
    /// Pages without any entry take no memory.
    #[serde(with = "saved::pages")]
    small: Vec<Option<Box<EntryPage>>>,
    /// Bit n: page n has to be read.
    large_unread: u64,
    small_unread: u64,
    /// Slots that differ from what was last built.
    pub(crate) changed: SlotSet,
}

impl Region {
    pub(crate) fn new() -> Self {
        Self {
            large_span: TableSpan::default(),
            small_span: TableSpan::default(),
            large: Box::new([0; LARGE_PT_ENTRIES]),
            small: vec![None; SMALL_PAGES],
            large_unread: 0,
            small_unread: 0,
            changed: SlotSet::EMPTY,
        }
    }

    /// Checks a snapshot that was read from somewhere.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        let fits = |span: &TableSpan, most: usize| match span.at {
            Some(at) => at.is_page() && span.entries <= most,
            None => span.entries == 0,
        };
        Unsound::unless(
            fits(&self.large_span, LARGE_PT_ENTRIES) && fits(&self.small_span, SMALL_PT_ENTRIES),
            "a table of the guest's lies nowhere",
        )?;
        let names = |unread: u64, span: &TableSpan| u64::BITS - unread.leading_zeros() <= span.pages() as u32;
        Unsound::unless(
            names(self.large_unread, &self.large_span) && names(self.small_unread, &self.small_span),
            "a page that no table has is to be read",
        )?;
        Unsound::unless(
            self.small.len() == SMALL_PAGES,
            "a small-page table has another number of pages",
        )
    }

    /// Whether the guest's entry has a table.
    pub(crate) fn is_live(&self) -> bool {
        self.large_span.at.is_some() || self.small_span.at.is_some()
    }

    /// Takes over a new value of the guest's directory entry. Tables at another place are read whole by the next
    /// refresh; what no longer exists is gone at once.
    pub(crate) fn set_pde(&mut self, pde: Pde, changes: &mut Changes) {
        let large = TableSpan::of(pde, Size::Large);
        if large != self.large_span {
            self.large_span = large;
            self.large_unread = (1 << large.pages()) - 1;
            for slot in large.entries..SLOTS {
                if std::mem::take(&mut self.large[slot]) != 0 {
                    changes.changed += 1;
                    self.changed.insert(slot);
                }
            }
        }
        let small = TableSpan::of(pde, Size::Small);
        if small != self.small_span {
            self.small_span = small;
            self.small_unread = u64::MAX.checked_shr(64 - small.pages() as u32).unwrap_or(0);
            for page in small.pages()..SMALL_PAGES {
                self.store_small(page, &[0; PAGE_ENTRIES], changes);
            }
        }
    }

    /// Every slot counts as changed.
    pub(crate) fn change_all(&mut self) {
        self.changed = SlotSet::ALL;
    }

    /// Notes which pages may have changed: they have to be read.
    pub(crate) fn mark(&mut self, is_dirty: impl Fn(TableAt) -> bool, work: &mut Work) {
        for (span, unread) in [
            (self.large_span, &mut self.large_unread),
            (self.small_span, &mut self.small_unread),
        ] {
            for (page, (at, _)) in (0..span.pages()).map_while(|page| Some((page, span.page(page)?))) {
                if *unread & 1 << page == 0 && is_dirty(at) {
                    *unread |= 1 << page;
                }
            }
            work.add(span.pages() as u64 * PAGE_ASKED);
        }
    }

    /// Reads the pages that have to be read, as far as the work goes, and marks the slots that changed.
    pub(crate) fn read(
        &mut self,
        store: &mut dyn TableStore,
        changes: &mut Changes,
        missing: &mut Vec<TableAt>,
        work: &mut Work,
    ) {
        for size in [Size::Large, Size::Small] {
            let (span, mut unread) = match size {
                Size::Large => (self.large_span, self.large_unread),
                Size::Small => (self.small_span, self.small_unread),
            };
            let mut ahead = unread;
            while ahead != 0 && !work.is_used_up() && missing.len() < MISSING_MAX {
                let page = ahead.trailing_zeros() as usize;
                ahead &= ahead - 1;
                let Some((at, entries)) = span.page(page) else {
                    break;
                };
                let mut fresh = [0; PAGE_ENTRIES];
                match read_entries(store, at, &mut fresh[..entries]) {
                    TableRead::Done | TableRead::Outside => {
                        unread &= !(1 << page);
                        work.add(PAGE_COMPARED);
                        changes.compared += entries as u64;
                        match size {
                            Size::Large => self.store_large(page, &fresh[..entries], changes),
                            Size::Small => self.store_small(page, &fresh, changes),
                        }
                    }
                    TableRead::Missing => {
                        work.add(PAGE_ASKED);
                        missing.push(at);
                    }
                }
            }
            match size {
                Size::Large => self.large_unread = unread,
                Size::Small => self.small_unread = unread,
            }
        }
    }

    /// Whether pages have still to be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.large_unread | self.small_unread != 0
    }

    /// Bytes of host memory that the snapshot takes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let pages = self.small.iter().flatten().count();
        let lists = size_of_val(&*self.large) + size_of_val(self.small.as_slice());
        (lists + pages * size_of::<EntryPage>()) as u64
    }

    fn store_large(&mut self, page: usize, fresh: &[u64], changes: &mut Changes) {
        let first = page * PAGE_ENTRIES;
        let known = &mut self.large[first..first + fresh.len()];
        if known == fresh {
            return;
        }
        for (index, (known, fresh)) in known.chunks_mut(64).zip(fresh.chunks(64)).enumerate() {
            let bits = (0..)
                .zip(known.iter().zip(fresh))
                .fold(0, |bits, (bit, (known, fresh))| {
                    bits | u64::from(known != fresh) << bit
                });
            known.copy_from_slice(fresh);
            changes.changed += u64::from(bits.count_ones());
            self.changed.insert_word(first + index * 64, bits);
        }
    }

    fn store_small(&mut self, page: usize, fresh: &EntryPage, changes: &mut Changes) {
        let first = page * SLOTS_PER_SMALL_PAGE;
        match &mut self.small[page] {
            Some(known) => {
                if **known == *fresh {
                    return;
                }
                let slots = known
                    .as_chunks::<SMALL_PER_LARGE>()
                    .0
                    .iter()
                    .zip(fresh.as_chunks::<SMALL_PER_LARGE>().0);
                for (index, (known, fresh)) in slots.enumerate() {
                    let differing = known
                        .iter()
                        .zip(fresh)
                        .filter(|(known, fresh)| known != fresh)
                        .count();
                    if differing != 0 {
                        changes.changed += differing as u64;
                        self.changed.insert(first + index);
                    }
                }
                if *fresh == [0; PAGE_ENTRIES] {
                    self.small[page] = None;
                } else {
                    **known = *fresh;
                }
            }
            None => {
                if *fresh == [0; PAGE_ENTRIES] {
                    return;
                }
                for (index, fresh) in fresh.as_chunks::<SMALL_PER_LARGE>().0.iter().enumerate() {
                    let present = fresh.iter().filter(|&&entry| entry != 0).count();
                    if present != 0 {
                        changes.changed += present as u64;
                        self.changed.insert(first + index);
                    }
                }
                self.small[page] = Some(Box::new(*fresh));
            }
        }
    }

    /// The entries that decide a slot: the large entry if it is valid, else the small ones.
    #[inline]
    pub(crate) fn slot(&self, slot: usize) -> GuestSlot<'_> {
        let large = self.large[slot];
        if crate::entry::is_valid(large) {
            return GuestSlot::Large(large);
        }
        match &self.small[slot / SLOTS_PER_SMALL_PAGE] {
            Some(page) => {
                GuestSlot::Small(&page.as_chunks::<SMALL_PER_LARGE>().0[slot % SLOTS_PER_SMALL_PAGE])
            }
            None => GuestSlot::Empty,
        }
    }

    /// The guest pages that hold the tables.
    #[cfg(test)]
    pub(crate) fn table_pages(&self) -> impl Iterator<Item = TableAt> {
        [self.large_span, self.small_span]
            .into_iter()
            .flat_map(|span| (0..span.pages()).filter_map(move |page| span.page(page)))
            .map(|(at, _)| at)
    }
}

/// Reads entries that lie on one page. What is outside of the guest's memory reads as zero.
pub(crate) fn read_entries(store: &mut dyn TableStore, at: TableAt, entries: &mut [u64]) -> TableRead {
    let read = store.read(at, entries.as_mut_bytes());
    if read == TableRead::Outside {
        entries.fill(0);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slot_set_lists_what_was_inserted(slots in prop::collection::btree_set(0usize..SLOTS, 0..80)) {
            let mut set = SlotSet::EMPTY;
            slots.iter().for_each(|&slot| set.insert(slot));
            prop_assert_eq!(set.len(), slots.len() as u64);
            prop_assert!(set.iter().eq(slots.iter().copied()));
            let runs: Vec<_> = set.runs().collect();
            prop_assert!(runs.iter().all(|run| run.1 > 0 && !slots.contains(&(run.0 + run.1))));
            prop_assert!(runs.iter().flat_map(|run| run.0..run.0 + run.1).eq(slots.iter().copied()));
            let mut copy = SlotSet::EMPTY;
            copy.insert_all(&set);
            prop_assert_eq!(&copy, &set);
            copy.remove_all(&set);
            prop_assert!(copy.is_empty());
        }
    }
}
