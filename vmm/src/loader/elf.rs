//! ELF files: telling them from others, and loading them within bounds.
//!
//! A file may name the same bytes in each of its 65,535 program headers, so what they name together is bounded before
//! anything is copied.

use std::io::Cursor;

use linux_loader::loader::elf::Elf;
use linux_loader::loader::{KernelLoader, KernelLoaderResult};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{Kernel, LoadError, PROGRAM_START};

/// Offsets of class and machine, and their values (System V ABI, ELF-64 object file format).
const MAGIC: [u8; 4] = *b"\x7fELF";
pub(super) const CLASS_OFFSET: usize = 4;
const CLASS_64: u8 = 2;
const MACHINE_OFFSET: usize = 18;
const MACHINE_X86_64: u16 = 62;
const HEADER_BYTES: usize = 64;
/// Where the program headers are, and how many.
const PROGRAM_HEADERS_OFFSET: usize = 32;
const PROGRAM_HEADER_COUNT_OFFSET: usize = 56;
/// Of a program header: size, type, place in the file and size there.
const PROGRAM_HEADER_BYTES: usize = 56;
const SEGMENT_TYPE: usize = 0;
const SEGMENT_OFFSET: usize = 8;
const SEGMENT_BYTES: usize = 32;
const TYPE_NOTE: u32 = 4;
/// Most program headers that a kernel has.
const PROGRAM_HEADERS_MAX: usize = 64;
/// Longest segment of notes that is searched, and what the name of Xen's notes is there.
const NOTES_BYTES_MAX: usize = 1 << 16;
const XEN_NOTE_NAME: &[u8] = b"Xen\0";

fn array<const BYTES: usize>(image: &[u8], offset: usize) -> Option<[u8; BYTES]> {
    image.get(offset..offset.checked_add(BYTES)?)?.try_into().ok()
}

/// Whether it begins as a 64-bit ELF file for x86 does.
pub(super) fn is_elf(image: &[u8]) -> bool {
    image.len() >= HEADER_BYTES
        && image.starts_with(&MAGIC)
        && image.get(CLASS_OFFSET) == Some(&CLASS_64)
        && array(image, MACHINE_OFFSET).map(u16::from_le_bytes) == Some(MACHINE_X86_64)
}

struct Segment {
    kind: u32,
    offset: u64,
    bytes: u64,
}

/// The first [`PROGRAM_HEADERS_MAX`] and one more segments, as far as the file has them.
fn segments(image: &[u8]) -> impl Iterator<Item = Segment> + '_ {
    let start = array(image, PROGRAM_HEADERS_OFFSET).map_or(u64::MAX, u64::from_le_bytes);
    let count = array(image, PROGRAM_HEADER_COUNT_OFFSET).map_or(0, u16::from_le_bytes);
    (0..usize::from(count).min(PROGRAM_HEADERS_MAX + 1)).map_while(move |index| {
        let at = usize::try_from(start)
            .ok()?
            .checked_add(index * PROGRAM_HEADER_BYTES)?;
        let header: [u8; PROGRAM_HEADER_BYTES] = array(image, at)?;
        Some(Segment {
            kind: array(&header, SEGMENT_TYPE).map_or(0, u32::from_le_bytes),
            offset: array(&header, SEGMENT_OFFSET).map_or(0, u64::from_le_bytes),
            bytes: array(&header, SEGMENT_BYTES).map_or(0, u64::from_le_bytes),
        })
    })
}

/// Whether it has notes of Xen's, as kernels have that boot by PVH.
pub(super) fn has_xen_notes(image: &[u8]) -> bool {
    segments(image)
        .filter(|segment| segment.kind == TYPE_NOTE)
        .any(|segment| {
            let rest = usize::try_from(segment.offset)
                .ok()
                .and_then(|offset| image.get(offset..))
                .unwrap_or_default();
            let bytes = rest.len().min(segment.bytes as usize).min(NOTES_BYTES_MAX);
            rest[..bytes]
                .windows(XEN_NOTE_NAME.len())
                .any(|name| name == XEN_NOTE_NAME)
        })
}

/// Puts the segments where their headers say, none of it outside `ram_bytes`.
pub(super) fn load(
    ram: &GuestMemoryMmap,
    ram_bytes: u64,
    kernel: &Kernel,
) -> Result<KernelLoaderResult, LoadError> {
    let (name, bytes) = (&kernel.name, kernel.image.len());
    let named = segments(&kernel.image).fold(0u64, |sum, segment| sum.saturating_add(segment.bytes));
    // Notes lie within loaded segments, so bytes may be named twice.
    if segments(&kernel.image).count() > PROGRAM_HEADERS_MAX || named > 2 * bytes as u64 {
        return Err(LoadError::KernelTruncated {
            name: name.clone(),
            bytes,
            needed: named,
        });
    }
    let mut image = Cursor::new(kernel.image.as_ref());
    let loaded = Elf::load(ram, None, &mut image, Some(GuestAddress(PROGRAM_START))).map_err(|source| {
        LoadError::BadKernel {
            name: name.clone(),
            bytes,
            ram_bytes,
            source,
        }
    })?;
    let end = loaded.kernel_end;
    if end > ram_bytes {
        return Err(LoadError::KernelTooLarge {
            name: name.clone(),
            end,
            ram_bytes,
        });
    }
    Ok(loaded)
}
