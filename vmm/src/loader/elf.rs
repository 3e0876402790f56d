//! ELF files: recognising them, and loading them within bounds.
//!
//! A file may name the same bytes in each of its 65,535 program headers, so the sum of their sizes is bounded
//! before anything is copied.

use linux_loader::loader::KernelLoaderResult;
use linux_loader::loader::elf::Elf;
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
const PROGRAM_HEADERS_OFFSET: u64 = 32;
const PROGRAM_HEADER_COUNT_OFFSET: u64 = 56;
/// Fields of a program header: size, type, place in the file and size there.
const PROGRAM_HEADER_BYTES: usize = 56;
const SEGMENT_TYPE: usize = 0;
const SEGMENT_OFFSET: usize = 8;
const SEGMENT_BYTES: usize = 32;
const TYPE_NOTE: u32 = 4;
/// Most program headers that a kernel has.
const PROGRAM_HEADERS_MAX: u64 = 64;
/// Longest segment of notes that is searched, and the name of Xen's notes in it.
const NOTES_BYTES_MAX: u64 = 1 << 16;
const XEN_NOTE_NAME: &[u8] = b"Xen\0";

/// Whether the file begins as a 64-bit ELF file for x86 does.
pub(super) fn is_elf(kernel: &Kernel) -> bool {
    kernel.array::<HEADER_BYTES>(0).is_some_and(|header| {
        header.starts_with(&MAGIC)
            && header[CLASS_OFFSET] == CLASS_64
            && header[MACHINE_OFFSET..MACHINE_OFFSET + 2] == MACHINE_X86_64.to_le_bytes()
    })
}

struct Segment {
    kind: u32,
    offset: u64,
    bytes: u64,
}

/// The first [`PROGRAM_HEADERS_MAX`] and one more segments, as far as the file has them.
fn segments(kernel: &Kernel) -> impl Iterator<Item = Segment> + '_ {
    let start = kernel
        .array(PROGRAM_HEADERS_OFFSET)
        .map_or(u64::MAX, u64::from_le_bytes);
    let count = kernel
        .array(PROGRAM_HEADER_COUNT_OFFSET)
        .map_or(0, u16::from_le_bytes);
    (0..u64::from(count).min(PROGRAM_HEADERS_MAX + 1)).map_while(move |index| {
        let at = start.checked_add(index * PROGRAM_HEADER_BYTES as u64)?;
        let header: [u8; PROGRAM_HEADER_BYTES] = kernel.array(at)?;
        let long = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let kind = &header[SEGMENT_TYPE..SEGMENT_TYPE + 4];
        Some(Segment {
            kind: kind.try_into().map_or(0, u32::from_le_bytes),
            offset: long(SEGMENT_OFFSET),
            bytes: long(SEGMENT_BYTES),
        })
    })
}

/// Whether it has notes of Xen's, as kernels have that boot by PVH.
pub(super) fn has_xen_notes(kernel: &Kernel) -> bool {
    segments(kernel)
        .filter(|segment| segment.kind == TYPE_NOTE)
        .any(|segment| {
            let bytes_max = segment.bytes.min(NOTES_BYTES_MAX) as usize;
            kernel
                .part(segment.offset, bytes_max)
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
    let (name, bytes) = (kernel.name().to_owned(), kernel.bytes());
    let (mut count, mut named) = (0, 0u64);
    for segment in segments(kernel) {
        count += 1;
        named = named.saturating_add(segment.bytes);
    }
    // Notes lie within loaded segments, so bytes may be named twice.
    if count > PROGRAM_HEADERS_MAX || named > 2 * bytes as u64 {
        return Err(LoadError::KernelTruncated {
            name,
            bytes,
            needed: named,
        });
    }
    let loaded = kernel.load::<Elf>(ram, None, Some(GuestAddress(PROGRAM_START)));
    let loaded = loaded.map_err(|source| LoadError::BadKernel {
        name: name.clone(),
        bytes,
        ram_bytes,
        source,
    })?;
    let end = loaded.kernel_end;
    if end > ram_bytes {
        return Err(LoadError::KernelTooLarge { name, end, ram_bytes });
    }
    Ok(loaded)
}
