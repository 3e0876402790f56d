//! What of the chunks' images the card has maps of, or should have, where maps pin memory.

use fermi_spec::addr::SMALL_PAGE;

use super::{ChunkNo, ChunkPlace, Chunks, GuestPage};
use crate::memory::{ImageMaps, Piece};

impl Chunks {
    /// What of the image the card has maps of.
    pub(crate) fn maps(&self) -> &ImageMaps {
        &self.maps
    }

    pub(crate) fn maps_mut(&mut self) -> &mut ImageMaps {
        &mut self.maps
    }

    /// All of the chunk's pages.
    pub(crate) fn whole(&self, chunk: ChunkNo) -> Piece {
        Piece {
            first: GuestPage::of(self.base(chunk)),
            pages: (self.bytes(chunk) / SMALL_PAGE) as u32,
        }
    }

    /// Whether a shadow entry may name a page's place in the image: instance memory, and what is in host RAM.
    pub(crate) fn wants_map(&self, page: GuestPage) -> bool {
        self.of(page.base()).is_some_and(|chunk| match self.place(chunk) {
            ChunkPlace::Unbacked => false,
            ChunkPlace::Spilled => true,
            ChunkPlace::Split(split) if self.frame_within(chunk, page.base()) < split.out => true,
            ChunkPlace::Resident(_) | ChunkPlace::Both(_) | ChunkPlace::Split(_) => self.is_instance(page),
        })
    }

    /// Runs of the chunk's pages that want a map and have none.
    pub(crate) fn unmapped(&self, chunk: ChunkNo) -> Vec<Piece> {
        match self.place(chunk) {
            ChunkPlace::Unbacked => Vec::new(),
            ChunkPlace::Spilled => self.maps.gaps(self.whole(chunk)),
            ChunkPlace::Split(_) => {
                let pages = self.whole(chunk).all();
                Piece::runs(pages.filter(|page| self.wants_map(*page) && self.maps.of(*page).is_none()))
            }
            ChunkPlace::Resident(_) | ChunkPlace::Both(_) => {
                let pages = self.instance_pages(chunk);
                Piece::runs(pages.filter(|page| self.maps.of(*page).is_none()))
            }
        }
    }

    /// Pieces of the chunk's image that are mapped, and none of whose pages wants that.
    pub(crate) fn mapped_in_vain(&self, chunk: ChunkNo) -> Vec<Piece> {
        let pieces = self.maps.within(self.whole(chunk));
        let in_vain = pieces.filter(|piece| !piece.all().any(|page| self.wants_map(page)));
        in_vain.collect()
    }
}
