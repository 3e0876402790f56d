//! The pages that BAR3 and PRAMIN show, for an embedder that lets its client map the windows instead of
//! asking for each word.
//!
//! Such an embedder puts the VRAM pages of a window where its client sees them. It needs to know which pages these
//! are and when that may have changed. For BAR3 that is at a write of the window's block and at a flush of the
//! window's page directory, which is when a driver may rely on a changed translation. An entry that becomes valid
//! takes effect in the model without a flush; drivers flush all the same (measured for nouveau).

use crate::{memory::Place, mmu::Flushed, model::FermiModel};
use fermi_spec::{
    addr::{Aperture, PDE_SPAN, PhysAddr, SMALL_PAGE, VramAddr},
    pte::{LargePages, Pde, Pte, SMALL_PER_LARGE},
};

impl FermiModel {
    /// Grows whenever BAR3 may show other pages.
    pub fn bar3_changes(&self) -> u64 {
        self.windows.bar3_changes
    }

    /// The first byte of VRAM that PRAMIN shows, `None` while it shows other memory.
    pub fn pramin_address(&self) -> Option<VramAddr> {
        let base = self.windows.pramin;
        (base.aperture() == Aperture::Vram).then(|| VramAddr(base.address().0))
    }

    pub(crate) fn note_flush(&mut self, flushed: Flushed) {
        if !self.windows.bar3.block.enable() {
            return;
        }
        let is_concerned = match flushed {
            Flushed::Nothing => false,
            Flushed::All => true,
            Flushed::Directory(directory) => self.windows.bar3.space(&mut self.mem).directory == directory,
        };
        if is_concerned {
            self.windows.bar3_changes += 1;
        }
    }

    /// For each 4 KiB of BAR3 the 4 KiB of VRAM that a driver's store goes to (an address / 4096), `None` where none
    /// does: nothing is mapped there, or something that is not VRAM of this card.
    ///
    /// Reads the tables as they are at this moment; a window that is switched off, or whose large pages have 64 KiB,
    /// shows nothing here.
    pub fn bar3_pages(&mut self, pages: &mut Vec<Option<u32>>) {
        let window_pages = (self.windows.bar3.bytes / SMALL_PAGE) as usize;
        pages.clear();
        pages.resize(window_pages, None);
        if !self.windows.bar3.block.enable() || self.mmu.large_pages() != LargePages::Kib128 {
            return;
        }
        let space = self.windows.bar3.space(&mut self.mem);
        if space.directory.aperture == Aperture::Peer {
            return;
        }
        let reachable = space.limit.saturating_add(1) / SMALL_PAGE;
        let reachable = usize::try_from(reachable).map_or(window_pages, |count| count.min(window_pages));
        let per_directory_entry = (PDE_SPAN / SMALL_PAGE) as usize;
        for (index, part) in pages[..reachable].chunks_mut(per_directory_entry).enumerate() {
            let pde = Pde::from_bits(self.mem.read_u64(space.directory.offset(index as u64 * 8)));
            self.directory_entry_pages(pde, part);
        }
    }

    /// `pages` are those of one directory entry, as far as the window has them.
    fn directory_entry_pages(&mut self, pde: Pde, pages: &mut [Option<u32>]) {
        let reachable = pages.len().min(pde.small_entries());
        let pages = &mut pages[..reachable];
        let vram_pages = self.vram_bytes / SMALL_PAGE;
        let page_of = |pte: Pte| {
            let is_shown = pte.valid() && pte.aperture() == Aperture::Vram;
            Some(pte.frame()).filter(|page| is_shown && u64::from(*page) < vram_pages)
        };
        if let Some(table) = pde.small_table() {
            for (page, pte) in pages.iter_mut().zip(self.entries(table, reachable)) {
                *page = page_of(pte);
            }
        }
        if let Some(table) = pde.large_table() {
            let large = self.entries(table, reachable.div_ceil(SMALL_PER_LARGE));
            for (part, pte) in pages.chunks_mut(SMALL_PER_LARGE).zip(large) {
                // A large page hides small ones, whatever it shows.
                if pte.valid() {
                    let first = page_of(pte).map(|page| page & !(SMALL_PER_LARGE as u32 - 1));
                    for (page, number) in part.iter_mut().zip(0..) {
                        *page = first
                            .map(|first| first + number)
                            .filter(|page| u64::from(*page) < vram_pages);
                    }
                }
            }
        }
    }

    /// The first `count` entries of a table.
    fn entries(&mut self, (aperture, at): (Aperture, PhysAddr), count: usize) -> Vec<Pte> {
        let mut bytes = vec![0; count * 8];
        self.mem.read(Place { aperture, at }, &mut bytes);
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|entry| Pte::from_bits(u64::from_le_bytes(*entry)))
            .collect()
    }
}
