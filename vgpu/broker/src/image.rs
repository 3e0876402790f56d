//! The host-RAM image of a VM's VRAM. Pages that were never written take no memory.
//!
//! The broker itself stores to a guest's instance memory there. A page that is had from the host first cannot fail under a store: the
//! kernel would end the process for that.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use fermi_spec::bar::Bar;
use rustix::fs::FallocateFlags;
use vfio_user_server::Leftover;
use vgpu::WindowLayout;
use vm_memory::MmapRegion;

use crate::lending::Loan;
use crate::mapping::{MapError, PAGE, map_shared, punch_hole, sealed_memfd};
use crate::remap::show;
use crate::sigbus::{Guard, MapOwner};

/// Pages of which one word says whether they were had.
const PAGES_OF_A_WORD: u64 = u64::BITS as u64;

/// An image, and which of its pages were had from the host for stores of the broker.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) file: Arc<File>,
    pub(crate) region: Arc<MmapRegion>,
    had: Vec<u64>,
    /// The file that its client maps as windows, and what of the image lives there.
    windows: Option<Lent>,
}

/// Pages of an image that live in a window file.
#[derive(Debug)]
struct Lent {
    file: WindowFile,
    /// The place of each page, both in pages.
    places: BTreeMap<u64, u64>,
    /// The client has the window file too, and may take pages away.
    guard: Guard,
    /// BAR1 as the client maps it, and its guard.
    bar1: Arc<MmapRegion>,
    bar1_guard: Guard,
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
            windows: None,
        })
    }

    /// Pages may live in a window file from now on. `owner` is told if the client takes memory away.
    pub(crate) fn set_windows(&mut self, file: WindowFile, owner: &MapOwner) -> Result<(), MapError> {
        let part = file.layout.part(Bar::Bar1);
        let bar1 = map_shared(file.file.clone(), part.file_offset, part.bytes, true)?;
        self.windows = Some(Lent {
            places: BTreeMap::new(),
            guard: Guard::new(self.region.clone(), owner)?,
            bar1_guard: Guard::new(bar1.clone(), owner)?,
            bar1,
            file,
        });
        Ok(())
    }

    /// Whether its client has a window file.
    pub(crate) fn has_windows(&self) -> bool {
        self.windows.is_some()
    }

    /// Whether the client took memory of the window file away.
    pub(crate) fn is_torn(&self) -> bool {
        let is_torn = |lent: &Lent| lent.guard.is_torn() || lent.bar1_guard.is_torn();
        self.windows.as_ref().is_some_and(is_torn)
    }

    /// BAR1 as its client maps it.
    pub(crate) fn bar1(&self) -> Option<&Arc<MmapRegion>> {
        self.windows.as_ref().map(|lent| &lent.bar1)
    }

    /// Lets pages live in the window file, or takes them back from there.
    ///
    /// # Errors
    /// There is no window file, or those of the host.
    pub(crate) fn change_place(&mut self, loan: Loan, is_lent: bool) -> io::Result<()> {
        let Some(lent) = &mut self.windows else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let (first, place) = (loan.at / PAGE, loan.offset / PAGE);
        let pages = 0..loan.bytes / PAGE;
        match is_lent {
            true => {
                loan.lend(&self.file, &self.region, &lent.file.file)?;
                lent.places.extend(pages.map(|page| (first + page, place + page)));
            }
            false => {
                loan.take_back(&self.file, &self.region, &lent.file.file)?;
                for page in pages {
                    lent.places.remove(&(first + page));
                }
            }
        }
        self.forget(loan.at, loan.bytes);
        Ok(())
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
                let lent = self.windows.as_ref();
                let (file, page_there) = match lent.and_then(|lent| Some((lent, lent.places.get(&page)?))) {
                    Some((lent, place)) => (&*lent.file.file, *place),
                    None => (&*self.file, page),
                };
                rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, page_there * PAGE, PAGE)?;
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

    /// Nothing lives in the window file any more: all of the image is given back, now or soon.
    ///
    /// # Errors
    /// Those of the host.
    pub(crate) fn leave_windows(&mut self) -> io::Result<()> {
        let Some(lent) = &mut self.windows else {
            return Ok(());
        };
        lent.places.clear();
        show(&self.region, 0, self.region.size() as u64, &self.file, 0)?;
        punch_hole(&lent.file.file, 0, lent.file.layout.bytes())
    }

    /// Gives memory back; it reads as zero afterwards.
    pub(crate) fn drop_range(&self, at: u64, bytes: u64) -> io::Result<()> {
        punch_hole(&self.file, at, bytes)
    }

    /// Bytes that it may still take from the host, its window file included: pages that nobody has touched.
    pub(crate) fn untouched(&self) -> u64 {
        let windows = self.windows.as_ref().map_or(0, |lent| lent.file.untouched());
        windows + untouched(&self.file)
    }
}

/// Bytes of a file that are holes.
fn untouched(file: &File) -> u64 {
    // The kernel counts in 512 bytes, whatever the page.
    let holes = |of: std::fs::Metadata| of.len().saturating_sub(of.blocks().saturating_mul(512));
    file.metadata().map_or(0, holes)
}

/// The file that the client of a VM maps in the place of its windows.
#[derive(Clone, Debug)]
pub(crate) struct WindowFile {
    pub(crate) file: Arc<File>,
    layout: WindowLayout,
}

impl WindowFile {
    /// A file of zeros, whose name is to be seen in the list of the process's files.
    pub(crate) fn new(name: &str, layout: WindowLayout) -> io::Result<Self> {
        let name = format!("vramd-windows-{}", plain(name));
        Ok(Self {
            file: Arc::new(sealed_memfd(&name, layout.bytes())?),
            layout,
        })
    }

    /// Bytes that it may take from the host: whatever its client stores to.
    pub(crate) fn untouched(&self) -> u64 {
        untouched(&self.file)
    }
}

/// Characters of a VM's name in the name of a memory file.
const NAME_CHARS_MAX: usize = 64;

/// What of a VM's name may stand in the name of a memory file, to be seen in the list of the process's files.
pub(crate) fn plain(name: &str) -> String {
    let plain = name.chars().filter(char::is_ascii_alphanumeric);
    plain.take(NAME_CHARS_MAX).collect()
}

/// An image to be freed, which takes time for each of its pages.
pub(crate) struct LeftImage(pub(crate) Option<Image>);

impl Leftover for LeftImage {
    fn let_go(&mut self) -> bool {
        // A guard holds it until it is dropped.
        let own = |image: &Image| 1 + usize::from(image.has_windows());
        let is_used = |image: &Image| Arc::strong_count(&image.region) > own(image);
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

    #[test]
    fn image_that_is_given_back_whole_lives_in_no_window() {
        use std::os::unix::fs::FileExt as _;
        use vm_memory::{Bytes as _, VolatileMemory as _};

        let torn = vmm_sys_util::eventfd::EventFd::new(vmm_sys_util::eventfd::EFD_NONBLOCK).unwrap();
        let owner = MapOwner::new(Arc::new(torn), vfio_user_server::Reaper::start().unwrap());
        let mut image = Image::new("image", 100 * PAGE).unwrap();
        let windows = WindowFile::new("image", WindowLayout::new(64 * PAGE, 64 * PAGE)).unwrap();
        image.set_windows(windows.clone(), &owner).unwrap();
        let (at, offset, bytes) = (3 * PAGE, 9 * PAGE, 2 * PAGE);
        image.have(at, bytes).unwrap();
        image
            .region
            .as_volatile_slice()
            .write_slice(&[7; 8], at as usize)
            .unwrap();
        image.change_place(Loan { at, offset, bytes }, true).unwrap();
        let in_window = || {
            let mut byte = [0];
            windows
                .file
                .read_exact_at(&mut byte, offset)
                .map(|()| byte[0])
                .unwrap()
        };
        assert_eq!(in_window(), 7);
        // A store of the broker's needs a page there, and not at home.
        assert_eq!(image.lacks(at, bytes), 2 * PAGE);
        image.have(at, bytes).unwrap();
        image.forget(0, 100 * PAGE);
        image.leave_windows().unwrap();
        image.drop_range(0, 100 * PAGE).unwrap();
        image
            .region
            .as_volatile_slice()
            .write_slice(&[9; 8], at as usize)
            .unwrap();
        assert_eq!(in_window(), 0, "no store arrives there any more");
        assert!(!image.is_torn());
    }
}
