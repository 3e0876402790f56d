//! What of a VM's image the card has maps of, where maps pin memory: pieces that do not overlap, each of one chunk.
//!
//! A map cannot be cut, only taken away and made anew. So what changes is mapped apart from what does not.

use std::collections::BTreeMap;
use std::ops::Range;

use fermi_spec::addr::{GuestVramAddr, SMALL_PAGE};
use serde::{Deserialize, Serialize};

use super::GuestPage;

/// A run of pages of an image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) first: GuestPage,
    pub(crate) pages: u32,
}

impl Piece {
    pub(crate) fn at(self) -> GuestVramAddr {
        self.first.base()
    }

    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.pages) * SMALL_PAGE
    }

    /// Its pages, in order.
    pub(crate) fn all(self) -> impl Iterator<Item = GuestPage> {
        self.range().map(GuestPage)
    }

    fn range(self) -> Range<u32> {
        self.first.0..self.first.0 + self.pages
    }

    fn of(range: Range<u32>) -> Option<Self> {
        let pages = range.end.saturating_sub(range.start);
        (pages > 0).then_some(Self {
            first: GuestPage(range.start),
            pages,
        })
    }

    /// Pages in ascending order, as runs.
    pub(crate) fn runs(pages: impl IntoIterator<Item = GuestPage>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for page in pages {
            match runs.last_mut() {
                Some(run) if run.range().end == page.0 => run.pages += 1,
                _ => runs.push(Self {
                    first: page,
                    pages: 1,
                }),
            }
        }
        runs
    }
}

/// The pieces that are mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ImageMaps {
    /// Length by first page, in pages.
    #[serde(with = "crate::saved::pairs")]
    pieces: BTreeMap<u32, u32>,
    /// Maps that the VM may have beyond one for each chunk.
    pub(crate) spare: u32,
}

impl ImageMaps {
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether so many further pieces may be apart from others. What is in VRAM now may go to host RAM later, where what lies between pieces is
    /// mapped too: a piece stands for two, and each chunk for one.
    pub(crate) fn may_be_apart(&self, further: usize) -> bool {
        2 * (self.len() + further) <= self.spare as usize
    }

    /// The first piece.
    pub(crate) fn first(&self) -> Option<Piece> {
        let (&first, &pages) = self.pieces.first_key_value()?;
        Piece::of(first..first + pages)
    }

    /// The piece that a page lies in.
    pub(crate) fn of(&self, page: GuestPage) -> Option<Piece> {
        let (&first, &pages) = self.pieces.range(..=page.0).next_back()?;
        Piece::of(first..first + pages).filter(|piece| piece.range().contains(&page.0))
    }

    /// Pieces that begin in a run of pages, in order.
    pub(crate) fn within(&self, run: Piece) -> impl Iterator<Item = Piece> {
        let pieces = self.pieces.range(run.range());
        pieces.filter_map(|(&first, &pages)| Piece::of(first..first + pages))
    }

    /// Parts of a run of pages that are in no piece. No piece that lies in it ends outside.
    pub(crate) fn gaps(&self, run: Piece) -> Vec<Piece> {
        let mut at = match self.of(run.first) {
            Some(piece) => piece.range().end,
            None => run.range().start,
        };
        let mut gaps = Vec::new();
        for piece in self.within(run) {
            gaps.extend(Piece::of(at..piece.range().start));
            at = at.max(piece.range().end);
        }
        gaps.extend(Piece::of(at..run.range().end));
        gaps
    }

    /// A piece is mapped that overlaps none.
    pub(crate) fn insert(&mut self, piece: Piece) {
        debug_assert_eq!(self.gaps(piece), [piece], "mapped twice");
        self.pieces.insert(piece.first.0, piece.pages);
    }

    /// A piece is mapped no more.
    pub(crate) fn remove(&mut self, piece: Piece) {
        self.pieces.remove(&piece.first.0);
    }

    /// Whether no piece overlaps another, or crosses a border of `chunk_pages`.
    pub(crate) fn is_sound(&self, pages: u32, chunk_pages: u32) -> bool {
        let mut end = 0;
        self.pieces.iter().all(|(&first, &length)| {
            let last = first
                .checked_add(length)
                .filter(|last| *last <= pages && length > 0);
            let fits =
                last.is_some_and(|last| first >= end && first / chunk_pages == (last - 1) / chunk_pages);
            end = last.unwrap_or(u32::MAX);
            fits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(first: u32, pages: u32) -> Piece {
        Piece {
            first: GuestPage(first),
            pages,
        }
    }

    #[test]
    fn gaps_are_what_lies_between_pieces() {
        let mut maps = ImageMaps::default();
        assert_eq!(maps.gaps(piece(0, 512)), [piece(0, 512)]);
        maps.insert(piece(3, 2));
        maps.insert(piece(500, 12));
        maps.insert(piece(512, 512));
        assert_eq!(maps.gaps(piece(0, 512)), [piece(0, 3), piece(5, 495)]);
        assert_eq!(maps.gaps(piece(4, 4)), [piece(5, 3)]);
        assert_eq!(maps.gaps(piece(512, 512)), []);
        assert_eq!(maps.of(GuestPage(4)), Some(piece(3, 2)));
        assert_eq!(maps.of(GuestPage(5)), None);
        assert!(maps.is_sound(1024, 512) && !maps.is_sound(1024, 256));
        maps.remove(piece(3, 2));
        assert_eq!(maps.gaps(piece(0, 8)), [piece(0, 8)]);
        assert_eq!(maps.len(), 2);
    }

    #[test]
    fn neighbours_are_one_run() {
        let pages = [1, 2, 3, 7, 9, 10].map(GuestPage);
        assert_eq!(Piece::runs(pages), [piece(1, 3), piece(7, 1), piece(9, 2)]);
    }
}
