//! Where guest tables are, and how they are read.

use crate::saved::Unsound;
use fermi_spec::addr::{Aperture, Gpa, GuestVramAddr, PHYS_BITS, PhysAddr, SMALL_PAGE};
use fermi_spec::instance::AddressSpacePointer;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a guest's table, or a page of one, is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TableAt {
    /// In the VRAM that the guest sees.
    Vram(GuestVramAddr),
    /// In the guest's RAM.
    Ram(Gpa),
}

impl TableAt {
    /// The place that an aperture and an address name, `None` for another card's memory.
    pub fn from_aperture(aperture: Aperture, address: PhysAddr) -> Option<Self> {
        match aperture {
            Aperture::Vram => Some(Self::Vram(GuestVramAddr(address.0))),
            Aperture::SysCoherent | Aperture::SysNonCoherent => Some(Self::Ram(Gpa(address.0))),
            Aperture::Peer => None,
        }
    }

    /// The place `bytes` further on, in the same memory. Addresses come from 40-bit fields and `bytes` is at most a
    /// table, so this cannot wrap.
    pub fn offset(self, bytes: u64) -> Self {
        match self {
            Self::Vram(at) => Self::Vram(at.offset(bytes)),
            Self::Ram(at) => Self::Ram(at.offset(bytes)),
        }
    }

    /// Whether a page begins there that an entry or a register can name.
    pub(crate) fn is_page(self) -> bool {
        let (Self::Vram(GuestVramAddr(at)) | Self::Ram(Gpa(at))) = self;
        at.is_multiple_of(SMALL_PAGE) && at < 1 << PHYS_BITS
    }

    /// The 4 KiB page that holds it.
    pub(crate) fn page(self) -> Self {
        match self {
            Self::Vram(at) => Self::Vram(at.align_down(SMALL_PAGE)),
            Self::Ram(at) => Self::Ram(at.align_down(SMALL_PAGE)),
        }
    }
}

impl fmt::Display for TableAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vram(at) => at.fmt(f),
            Self::Ram(at) => at.fmt(f),
        }
    }
}

/// How a read of a guest table ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableRead {
    /// The bytes were filled in.
    Done,
    /// The bytes exist but are not at hand (a table page in a data chunk): fetch the page and repeat.
    Missing,
    /// The guest has no memory there: the table reads as absent.
    Outside,
}

/// Reads guest tables. The reader never asks for bytes on two pages at once, and uses the bytes that it got: no
/// byte is read again to act on it.
pub trait TableStore {
    /// Fills `data` with the bytes at `at`. On anything but [`TableRead::Done`] the content of `data` is unspecified.
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead;
}

/// A guest's page directory, as its instance block names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GuestDirectory {
    /// First byte; a multiple of 4 KiB.
    pub at: TableAt,
    /// Last valid virtual address. A software walk honours it; shadow tables leave it to the instance block.
    pub limit: u64,
}

impl GuestDirectory {
    /// From an instance block, `None` when it names another card's memory.
    pub fn from_pointer(pointer: AddressSpacePointer) -> Option<Self> {
        let at = TableAt::from_aperture(pointer.aperture, pointer.directory)?.page();
        Some(Self {
            at,
            limit: pointer.limit,
        })
    }

    /// Checks a directory that was read from somewhere.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        Unsound::unless(self.at.is_page(), "the directory of the guest lies nowhere")
    }
}
