//! The host-RAM image of a VM's VRAM. Pages that were never written take no memory.
//!
//! The broker itself stores to a guest's instance memory there. A page that is had from the host first cannot fail under a store: the
//! kernel would end the process for that.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use vfio_user_server::Leftover;
use vm_memory::MmapRegion;

use crate::mapping::{MapError, PAGE, map_shared, punch_hole, sealed_memfd};

/// Pages of which one word says whether they were had.
const PAGES_OF_A_WORD: u64 = u64::BITS as u64;

/// An image, and which of its pages were had from the host for stores of the broker.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) file: Arc<File>,
    pub(crate) region: Arc<MmapRegion>,
    had: Vec<u64>,
}

impl Image {
    /// All zero. The name is to be seen in the list of the process's files.
    pub(crate) fn new(name: &str, bytes: u64) -> Result<Self, MapError> {
        let file = Arc::new(sealed_memfd(name, bytes)?);
        let region = map_shared(file.clone(), 0, bytes, true)?;
        let words = bytes.div_ceil(PAGE * PAGES_OF_A_WORD);
        Ok(Self {
            file,
            region,
            had: vec![0; words as usize],
        })
    }

    fn is_had(&self, page: u64) -> bool {
        let word = self.had.get((page / PAGES_OF_A_WORD) as usize);
        word.is_some_and(|word| word >> (page % PAGES_OF_A_WORD) & 1 == 1)
    }

    fn note(&mut self, page: u64, is_had: bool) {
        if let Some(word) = self.had.get_mut((page / PAGES_OF_A_WORD) as usize) {
            let bit = 1 << (page % PAGES_OF_A_WORD);
            *word = if is_had { *word | bit } else { *word & !bit };
        }
    }

    /// Pages that a range touches, by number. Those outside of the image are nobody's.
    fn pages(&self, at: u64, bytes: u64) -> std::ops::Range<u64> {
        let end = at.saturating_add(bytes).min(self.region.size() as u64);
        at / PAGE..end.div_ceil(PAGE)
    }

    /// Bytes of pages of a range that were not had yet.
    pub(crate) fn lacks(&self, at: u64, bytes: u64) -> u64 {
        let missing = self.pages(at, bytes).filter(|page| !self.is_had(*page));
        missing.count() as u64 * PAGE
    }

    /// Has the pages of a range from the host.
    ///
    /// # Errors
    /// The host has none.
    pub(crate) fn have(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        for page in self.pages(at, bytes) {
            if !self.is_had(page) {
                rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, page * PAGE, PAGE)?;
                self.note(page, true);
            }
        }
        Ok(())
    }

    /// Pages of a range are given back, now or soon.
    pub(crate) fn forget(&mut self, at: u64, bytes: u64) {
        for page in self.pages(at, bytes) {
            self.note(page, false);
        }
    }

    /// Gives memory back; it reads as zero afterwards.
    pub(crate) fn drop_range(&self, at: u64, bytes: u64) -> io::Result<()> {
        punch_hole(&self.file, at, bytes)
    }

    /// Bytes that it may still take from the host: pages that nobody has touched.
    pub(crate) fn untouched(&self) -> u64 {
        // The kernel counts in 512 bytes, whatever the page.
        let touched = self
            .file
            .metadata()
            .map_or(0, |of| of.blocks().saturating_mul(512));
        (self.region.size() as u64).saturating_sub(touched)
    }
}

/// An image to be freed, which takes time for each of its pages.
pub(crate) struct LeftImage(pub(crate) Option<Image>);

impl Leftover for LeftImage {
    fn let_go(&mut self) -> bool {
        let is_used = |image: &Image| Arc::strong_count(&image.region) > 1;
        if self.0.as_ref().is_some_and(is_used) {
            return false;
        }
        self.0 = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_had_once_and_again_when_it_was_given_back() {
        let mut image = Image::new("image", 100 * PAGE).unwrap();
        let at = 64 * PAGE - 8;
        assert_eq!(image.lacks(at, 16), 2 * PAGE);
        image.have(at, 16).unwrap();
        assert_eq!((image.lacks(at, 16), image.lacks(at, PAGE + 16)), (0, PAGE));
        assert_eq!(image.untouched(), 98 * PAGE);
        image.forget(64 * PAGE, PAGE);
        image.drop_range(64 * PAGE, PAGE).unwrap();
        assert_eq!((image.lacks(at, 16), image.untouched()), (PAGE, 99 * PAGE));
        // Nothing is behind its end.
        assert_eq!(image.lacks(100 * PAGE, PAGE), 0);
        assert_eq!(image.lacks(u64::MAX - 8, 64), 0);
        image.have(99 * PAGE, 5 * PAGE).unwrap();
        assert_eq!(image.untouched(), 98 * PAGE);
    }
}
