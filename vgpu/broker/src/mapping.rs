//! Memory files and their mappings.
//!
//! Files of this process are sealed against shrinking, so a mapping of one can always be touched. A client's file
//! is sealed too if it allows that; if not, [`crate::sigbus`] protects the mapping.
//!
//! A client's file may consist of huge pages (`MFD_HUGETLB`, hugetlbfs). The kernel maps, replaces and unmaps such a file by
//! whole huge pages only, so a mapping reaches from one boundary of huge pages to another, and [`Mapped::lead`] says how
//! far into it the range begins that was asked for. A mapping that is not whole could neither be repaired nor unmapped.

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vm_memory::{FileOffset, MmapRegion};

/// Unit of host memory and of DMA maps. Bytes.
pub const PAGE: u64 = 4096;

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The range in the file is empty, misaligned, or does not end within the file.
    #[error("{bytes:#x} bytes at {offset:#x} are not whole pages of a file of {file_bytes:#x} bytes")]
    BadRange {
        /// First byte in the file.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Size of the file.
        file_bytes: u64,
    },
    /// The kernel refused the mapping.
    #[error("cannot map {bytes:#x} bytes")]
    Mmap {
        /// Length in bytes.
        bytes: u64,
        /// Error of the kernel.
        #[source]
        source: vm_memory::mmap::MmapRegionError,
    },
    /// A memory file could not be created, sized, sealed or asked for its size.
    #[error("cannot set up a memory file")]
    File(#[from] io::Error),
    /// The bound on guarded maps of this process is reached.
    #[error("more than {} maps of client memory", crate::sigbus::GUARDS_MAX)]
    TooManyGuards,
    /// The bound on guarded maps of one VM is reached.
    #[error(
        "more than {} maps of one VM's memory, those included that were given up just now",
        crate::sigbus::MAPPINGS_MAX
    )]
    TooManyMaps,
    /// The bound on bytes that are mapped for one VM is reached.
    #[error(
        "more than {}G of one VM's files mapped, those included that were given up just now",
        crate::sigbus::MAPPED_BYTES_MAX >> 30
    )]
    TooManyBytes,
}

/// A memory file of `bytes` zero bytes that cannot be resized, nor sealed further by a process that is given its descriptor.
///
/// # Errors
/// Those of the host.
pub fn sealed_memfd(name: &str, bytes: u64) -> io::Result<File> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(io::Error::from)?;
    let file = File::from(fd);
    file.set_len(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(io::Error::from)?;
    Ok(file)
}

/// Tries to keep a client's file from shrinking. Returns whether that worked.
///
/// A file without `MFD_ALLOW_SEALING` refuses, and so does one that is no memfd.
pub(crate) fn seal_against_shrinking(file: &File) -> bool {
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK).is_ok()
}

/// Part of a file of memory that is mapped.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// The mapping, whole pages of its file.
    pub(crate) region: Arc<MmapRegion>,
    /// Bytes of the mapping before the range that was asked for.
    pub(crate) lead: u64,
}

/// `HUGETLBFS_MAGIC` of `<linux/magic.h>`.
const HUGE_PAGES: u64 = 0x9584_58f6;

/// Bytes of a page of a client's memory file, as far as mappings are concerned: [`PAGE`] unless it consists of huge pages.
///
/// The file is known to be one of tmpfs or hugetlbfs, so that asking its file system waits for nobody.
fn page_bytes(file: &File) -> io::Result<u64> {
    let system = rustix::fs::fstatfs(file)?;
    let is_huge = system.f_type as u64 == HUGE_PAGES;
    // The block size of hugetlbfs is its page size. That of tmpfs is not what it can be mapped by.
    Ok(if is_huge {
        (system.f_bsize as u64).max(PAGE)
    } else {
        PAGE
    })
}

/// Maps part of a client's memory file, of small pages or of huge ones.
pub(crate) fn map_client(
    file: Arc<File>,
    offset: u64,
    bytes: u64,
    writable: bool,
) -> Result<Mapped, MapError> {
    let page = page_bytes(&file)?;
    let lead = offset % page;
    let whole = lead
        .checked_add(bytes)
        .and_then(|sum| sum.checked_next_multiple_of(page));
    // A sum that overflows ends beyond every file.
    let whole = if bytes == 0 { 0 } else { whole.unwrap_or(u64::MAX) };
    if !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) {
        let file_bytes = file.metadata()?.len();
        return Err(MapError::BadRange {
            offset,
            bytes,
            file_bytes,
        });
    }
    let region = map_shared(file, offset - lead, whole, writable)?;
    Ok(Mapped { region, lead })
}

/// Maps part of a file, shared with its other users.
pub(crate) fn map_shared(
    file: Arc<File>,
    offset: u64,
    bytes: u64,
    writable: bool,
) -> Result<Arc<MmapRegion>, MapError> {
    let file_bytes = file.metadata()?.len();
    let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= file_bytes);
    if bytes == 0 || !offset.is_multiple_of(PAGE) || !bytes.is_multiple_of(PAGE) || !is_inside {
        return Err(MapError::BadRange {
            offset,
            bytes,
            file_bytes,
        });
    }
    let prot = if writable {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    let place = FileOffset::from_arc(file, offset);
    MmapRegion::build(
        Some(place),
        bytes as usize,
        prot,
        libc::MAP_SHARED | libc::MAP_NORESERVE,
    )
    .map(Arc::new)
    .map_err(|source| MapError::Mmap { bytes, source })
}

/// Gives the memory behind a range of a file back; it reads as zero afterwards.
///
/// # Errors
/// Those of the host.
pub fn punch_hole(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, bytes)?)
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, VolatileMemory};

    use super::*;

    #[test]
    fn sealed_file_cannot_shrink_or_grow() {
        let file = sealed_memfd("test", 2 * PAGE).unwrap();
        assert!(file.set_len(PAGE).is_err());
        assert!(file.set_len(3 * PAGE).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    }

    #[test]
    fn range_beyond_the_file_is_refused() {
        let file = Arc::new(sealed_memfd("test", 2 * PAGE).unwrap());
        let beyond = map_shared(file.clone(), PAGE, 2 * PAGE, true);
        assert!(matches!(beyond, Err(MapError::BadRange { .. })));
        let wrapping = map_shared(file.clone(), u64::MAX - PAGE + 1, PAGE, true);
        assert!(matches!(wrapping, Err(MapError::BadRange { .. })));
        assert!(matches!(
            map_shared(file, 0, 0, true),
            Err(MapError::BadRange { .. })
        ));
    }

    #[test]
    fn punched_range_reads_as_zero() {
        let file = Arc::new(sealed_memfd("test", 2 * PAGE).unwrap());
        let region = map_shared(file.clone(), 0, 2 * PAGE, true).unwrap();
        let slice = region.as_volatile_slice();
        slice.write_slice(&[7; 2 * PAGE as usize], 0).unwrap();
        punch_hole(&file, PAGE, PAGE).unwrap();
        let mut kept = [0];
        slice.read_slice(&mut kept, PAGE as usize - 1).unwrap();
        let mut dropped = [0];
        slice.read_slice(&mut dropped, PAGE as usize).unwrap();
        assert_eq!((kept, dropped), ([7], [0]));
    }
}
