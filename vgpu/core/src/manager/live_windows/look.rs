//! What BAR3 or BAR1 shows, by its tables as they are.

use std::collections::BTreeMap;
use std::ops::Range;

use fermi_spec::addr::{Aperture, FRAME, PDE_SPAN, SMALL_PAGE};
use fermi_spec::instance::{AddressSpacePointer, offset};
use fermi_spec::pte::{Pde, Pte};
use fermi_spec::regs::windows::WindowBlock;
use shadow_pt::{GuestDirectory, TableAt, TableRead, TableStore};

use crate::device::tables::Reader;

/// Small pages in a large one.
const SMALL_PER_LARGE: usize = (FRAME / SMALL_PAGE) as usize;

/// The directory of a window that translates. `Err`: its instance block lies in VRAM.
pub(super) fn directory_of(
    block: WindowBlock,
    tables: &mut Reader<'_>,
) -> Result<Option<GuestDirectory>, ()> {
    let Some(at) = TableAt::from_aperture(block.aperture(), block.instance()) else {
        return Ok(None);
    };
    let mut bytes = [0; 16];
    match tables.read(at.offset(offset::PD_LO), &mut bytes) {
        TableRead::Done => {}
        TableRead::Missing => return Err(()),
        TableRead::Outside => return Ok(None),
    }
    let (words, _) = bytes.as_chunks::<4>();
    let word = |i: usize| words.get(i).map_or(0, |word| u32::from_le_bytes(*word));
    let pointer = AddressSpacePointer::from_words([word(0), word(1), word(2), word(3)]);
    Ok(GuestDirectory::from_pointer(pointer))
}

/// A look at the tables of a window that translates.
pub(super) struct Look<'a> {
    pub(super) shown: &'a mut BTreeMap<u32, u32>,
    pub(super) guest_pages: u64,
    /// The window's places in the window file, in pages.
    pub(super) places: Range<u32>,
    /// Places of it that show what no table says.
    pub(super) skipped: Range<u32>,
    /// Entries that were read.
    pub(super) entries: u64,
}

impl Look<'_> {
    /// Adds what the window shows to what is shown. Pages of its tables that lie in VRAM are among the reader's missing ones.
    pub(super) fn follow(&mut self, block: WindowBlock, tables: &mut Reader<'_>) {
        let Ok(Some(directory)) = directory_of(block, tables) else {
            return;
        };
        let reachable = directory.limit.saturating_add(1) / SMALL_PAGE;
        let window_pages = self.places.len();
        let reachable = usize::try_from(reachable).map_or(window_pages, |count| count.min(window_pages));
        let per_entry = (PDE_SPAN / SMALL_PAGE) as usize;
        for (index, first) in (0..reachable).step_by(per_entry).enumerate() {
            let mut bits = [0; 8];
            match tables.read(directory.at.offset(index as u64 * 8), &mut bits) {
                TableRead::Done => {}
                TableRead::Missing => continue,
                TableRead::Outside => return,
            }
            let pde = Pde::from_bits(u64::from_le_bytes(bits));
            self.directory_entry(pde, first, (reachable - first).min(per_entry), tables);
        }
    }

    /// `count` pages of the window from `first` on are those of one directory entry.
    fn directory_entry(&mut self, pde: Pde, first: usize, count: usize, tables: &mut Reader<'_>) {
        let count = count.min(pde.small_entries());
        let table = |of: Option<_>| of.and_then(|(aperture, at)| TableAt::from_aperture(aperture, at));
        if let Some(table) = table(pde.small_table()) {
            for (index, pte) in self.entries(table, count, tables) {
                if let Some(page) = self.page_of(pte) {
                    self.show(first + index, Some(page));
                }
            }
        }
        if let Some(table) = table(pde.large_table()) {
            for (index, pte) in self.entries(table, count.div_ceil(SMALL_PER_LARGE), tables) {
                // A large page hides small ones, whatever it shows.
                let page = self.page_of(pte).map(|page| page & !(SMALL_PER_LARGE as u32 - 1));
                let places = (index * SMALL_PER_LARGE..count).take(SMALL_PER_LARGE);
                for (number, place) in (0..).zip(places) {
                    let page = page.map(|page| page + number);
                    self.show(
                        first + place,
                        page.filter(|page| u64::from(*page) < self.guest_pages),
                    );
                }
            }
        }
    }

    /// The window shows this page, or nothing, at one of its pages.
    fn show(&mut self, at: usize, page: Option<u32>) {
        let place = self.places.start + at as u32;
        match page.filter(|_| !self.skipped.contains(&place)) {
            Some(page) => self.shown.insert(place, page),
            None => self.shown.remove(&place),
        };
    }

    fn page_of(&self, pte: Pte) -> Option<u32> {
        let is_shown = pte.aperture() == Aperture::Vram;
        Some(pte.frame()).filter(|page| is_shown && u64::from(*page) < self.guest_pages)
    }

    /// The valid ones among the first `count` entries of a table, by their index. Pages of it that lie in VRAM are among the reader's
    /// missing ones.
    fn entries(&mut self, table: TableAt, count: usize, tables: &mut Reader<'_>) -> Vec<(usize, Pte)> {
        let mut valid = Vec::new();
        let mut page = [0; SMALL_PAGE as usize];
        let per_page = page.len() / 8;
        for first in (0..count).step_by(per_page) {
            let bytes = &mut page[..(count - first).min(per_page) * 8];
            if tables.read(table.offset(first as u64 * 8), bytes) != TableRead::Done {
                continue;
            }
            let entries = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|entry| Pte::from_bits(u64::from_le_bytes(*entry)));
            valid.extend((first..).zip(entries).filter(|(_, pte)| pte.valid()));
            self.entries += bytes.len() as u64 / 8;
        }
        valid
    }
}
