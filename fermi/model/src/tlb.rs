//! A TLB that keeps its entries until they are flushed, as the hardware's does.
//!
//! Entries are found by page directory and page. It is set-associative and bounded; in a full set the ways are
//! replaced in turn, so that the same accesses always leave the same entries. Invalid entries are never kept
//! (assumption: no driver relies on either).

use crate::memory::Place;
use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr, SMALL_PAGE},
    pte::{LargePages, Pte},
};

/// Sets × ways × 128 KiB is 128 MiB: the reach measured on a GF114's second-level TLB is about 130 MiB (Mei & Chu).
const SETS: usize = 256;
const WAYS: usize = 4;

/// A translation: the entry, the bytes of its page, and the table that the entry was found in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page {
    pub(crate) pte: Pte,
    pub(crate) bytes: u64,
    pub(crate) table: Place,
}

/// A translation that a TLB keeps, for checkers: a card uses it until a flush, whatever the tables say by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    /// First byte of the page.
    pub va: GpuVa,
    /// Memory and address of the page directory.
    pub directory: (Aperture, PhysAddr),
    /// Memory and address of the table that had the entry.
    pub table: (Aperture, PhysAddr),
    /// The entry as it was read then.
    pub entry: Pte,
    /// Bytes of the page.
    pub bytes: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    directory: Place,
    page: Page,
}

/// One set-associative TLB.
pub(crate) struct Tlb {
    /// What the entries are found by, apart from them: those of a set are half a line of the host's caches. Zero is none.
    tags: Vec<[u64; WAYS]>,
    entries: Vec<[Option<Entry>; WAYS]>,
    replace_next: Vec<u8>,
}

impl Tlb {
    pub(crate) fn new() -> Self {
        Self {
            tags: vec![[0; WAYS]; SETS],
            entries: vec![[None; WAYS]; SETS],
            replace_next: vec![0; SETS],
        }
    }

    /// The translation of `va` under `directory`, if it is kept; a large page hides small ones.
    pub(crate) fn find(&self, directory: Place, va: GpuVa, large: LargePages) -> Option<Page> {
        [large.bytes(), SMALL_PAGE].into_iter().find_map(|bytes| {
            let first = va.align_down(bytes);
            let (set, tag) = (set_of(directory, first), tag_of(first, bytes));
            let mut ways = self.tags[set].iter().zip(&self.entries[set]);
            ways.find_map(|(kept, entry)| {
                let entry = entry.as_ref().filter(|_| *kept == tag)?;
                (entry.directory == directory).then_some(entry.page)
            })
        })
    }

    /// Keeps the translation of `va`.
    pub(crate) fn insert(&mut self, directory: Place, va: GpuVa, page: Page) {
        let first = va.align_down(page.bytes);
        let set = set_of(directory, first);
        let tags = &mut self.tags[set];
        let way = tags.iter().position(|tag| *tag == 0).unwrap_or_else(|| {
            let way = usize::from(self.replace_next[set]) % WAYS;
            self.replace_next[set] = (way as u8 + 1) % WAYS as u8;
            way
        });
        tags[way] = tag_of(first, page.bytes);
        self.entries[set][way] = Some(Entry { directory, page });
    }

    /// Forgets everything under `directory`.
    pub(crate) fn flush_directory(&mut self, directory: Place) {
        let tags = self.tags.iter_mut().flatten();
        for (tag, entry) in tags.zip(self.entries.iter().flatten()) {
            if entry.is_some_and(|entry| entry.directory == directory) {
                *tag = 0;
            }
        }
    }

    /// Everything that is kept.
    pub(crate) fn translations(&self) -> impl Iterator<Item = Translation> {
        let slots = self.tags.iter().flatten().zip(self.entries.iter().flatten());
        let kept = slots.filter_map(|(tag, entry)| Some((*tag, (*entry).filter(|_| *tag != 0)?)));
        kept.map(|(tag, entry)| Translation {
            va: GpuVa(tag).align_down(SMALL_PAGE),
            directory: (entry.directory.aperture, entry.directory.at),
            table: (entry.page.table.aperture, entry.page.table.at),
            entry: entry.page.pte,
            bytes: entry.page.bytes,
        })
    }

    /// Removes all translations.
    pub(crate) fn flush(&mut self) {
        self.tags.fill([0; WAYS]);
    }
}

/// The first byte of a page, and the power of two that is its length where the address has zeros.
fn tag_of(first: GpuVa, bytes: u64) -> u64 {
    first.0 | u64::from(bytes.trailing_zeros())
}

/// Neighbouring pages go to neighbouring sets; directories start at different ones.
fn set_of(directory: Place, first: GpuVa) -> usize {
    let page = first.0 / SMALL_PAGE;
    let start = (directory.at.0 / SMALL_PAGE).wrapping_mul(0x9e37_79b9);
    ((page ^ page >> 5 ^ page >> 10 ^ start >> 8) % SETS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermi_spec::addr::LARGE_PAGE;

    const HERE: Place = Place {
        aperture: Aperture::Vram,
        at: PhysAddr(0x10_0000),
    };
    const THERE: Place = Place {
        aperture: Aperture::SysCoherent,
        at: PhysAddr(0x10_0000),
    };

    fn page(frame: u32, large: bool) -> Page {
        Page {
            pte: Pte::new().with_valid(true).with_frame(frame),
            bytes: if large { LARGE_PAGE } else { SMALL_PAGE },
            table: THERE,
        }
    }

    #[test]
    fn directories_in_different_memories_are_different() {
        let mut tlb = Tlb::new();
        tlb.insert(HERE, GpuVa(0x5000), page(7, false));
        assert_eq!(
            tlb.find(HERE, GpuVa(0x5fff), LargePages::Kib128),
            Some(page(7, false))
        );
        assert_eq!(tlb.find(THERE, GpuVa(0x5fff), LargePages::Kib128), None);
    }

    #[test]
    fn flush_of_a_directory_leaves_the_others() {
        let mut tlb = Tlb::new();
        tlb.insert(HERE, GpuVa(0), page(7, true));
        tlb.insert(THERE, GpuVa(0), page(8, true));
        tlb.flush_directory(HERE);
        assert_eq!(tlb.find(HERE, GpuVa(0x1_0000), LargePages::Kib128), None);
        assert_eq!(
            tlb.find(THERE, GpuVa(0x1_0000), LargePages::Kib128),
            Some(page(8, true))
        );
    }

    #[test]
    fn full_set_replaces_its_ways_in_turn() {
        let mut tlb = Tlb::new();
        let vas: Vec<GpuVa> = (0u64..1 << 24)
            .map(|index| GpuVa(index * SMALL_PAGE))
            .filter(|va| set_of(HERE, *va) == 0)
            .take(WAYS + 1)
            .collect();
        for va in &vas {
            tlb.insert(HERE, *va, page(1, false));
        }
        let kept: Vec<bool> = vas
            .iter()
            .map(|va| tlb.find(HERE, *va, LargePages::Kib128).is_some())
            .collect();
        assert_eq!(kept, [false, true, true, true, true]);
    }
}
