//! Page tables that a program is entered with: the low 4 GiB, one to one, by large pages.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::PAGE_BYTES;

/// Page-table entry bits (Intel SDM vol. 3 §5.5.4).
pub(super) const PRESENT_WRITABLE: u64 = 0b011;
pub(super) const USER: u64 = 0b100;
pub(super) const LARGE_PAGE: u64 = 1 << 7;
const TABLE_ENTRIES: u64 = 512;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// Page directories, of 1 GiB each: RAM and the PCI window below 4 GiB.
const DIRECTORIES: u64 = 4;
/// Root, pointers, directories, and the table of the first large page.
pub(super) const PAGES: u64 = 3 + DIRECTORIES;

/// The rings that may use the pages, and whether a null pointer faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// Any ring; page 0 is left out, so that a null pointer, or a stack run over its end, faults.
    AllRingsButPageZero,
    /// Ring 0, with page 0: Linux looks at the BIOS data area there before it has tables of its own.
    Ring0,
}

/// Writes [`PAGES`] pages of tables at `root`, which is the value for CR3.
pub(super) fn write(ram: &GuestMemoryMmap, root: u64, access: Access) -> Result<(), GuestMemoryError> {
    let table = |index: u64| root + index * PAGE_BYTES;
    let (pointers, directories, first_pages) = (table(1), table(2), table(2 + DIRECTORIES));
    let bits = match access {
        Access::AllRingsButPageZero => PRESENT_WRITABLE | USER,
        Access::Ring0 => PRESENT_WRITABLE,
    };
    let write =
        |at: u64, index: u64, entry: u64| ram.write_obj((entry | bits).to_le(), GuestAddress(at + 8 * index));
    write(root, 0, pointers)?;
    for index in 0..DIRECTORIES {
        write(pointers, index, directories + index * PAGE_BYTES)?;
    }
    for index in 0..DIRECTORIES * TABLE_ENTRIES {
        write(directories, index, (index * LARGE_PAGE_BYTES) | LARGE_PAGE)?;
    }
    if access == Access::Ring0 {
        return Ok(());
    }
    for index in 1..TABLE_ENTRIES {
        write(first_pages, index, index * PAGE_BYTES)?;
    }
    write(directories, 0, first_pages)
}
