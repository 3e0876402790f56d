//! Initramfs images: the checks that are possible before a kernel unpacks one.
//!
//! Linux takes any number of cpio archives (format newc), plain or compressed, one after another
//! (Documentation/driver-api/early-userspace/buffer-format.rst). A plain archive at the start is walked to its trailer,
//! so one that was cut off is found; a compressed one can only be checked by the kernel.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use vm_memory::GuestMemoryMmap;

use super::{Input, InputSource, LoadError, PAGE_BYTES, regular_file};

/// First bytes of an archive: newc, and newc with checksums.
const CPIO: [&[u8]; 2] = [b"070701", b"070702"];
/// First bytes of the formats that Linux decompresses (Linux lib/decompress.c): gzip in two ways, bzip2, LZMA,
/// xz, LZO, LZ4, zstd.
const COMPRESSED: [&[u8]; 8] = [
    b"\x1f\x8b",
    b"\x1f\x9e",
    b"BZh",
    b"\x5d\x00",
    b"\xfd7zXZ\0",
    b"\x89LZO",
    b"\x02\x21\x4c\x18",
    b"\x28\xb5\x2f\xfd",
];
const MAGIC_BYTES: usize = 6;
/// A header is 13 fields of 8 hexadecimal digits after the magic; these are two of them.
const CPIO_HEADER_BYTES: u64 = 110;
const FILE_BYTES_FIELD: usize = 6;
const NAME_BYTES_FIELD: usize = 11;
const TRAILER: &[u8] = b"TRAILER!!!\0";
/// Longest archive, in files, that is walked.
const FILES_MAX: u64 = 1 << 20;

/// The first root of a Linux guest.
#[derive(Debug)]
pub struct Initramfs(Input);

impl Initramfs {
    /// The regular file at `path`. It is read when the VM is built.
    pub fn open(path: &Path) -> Result<Initramfs, LoadError> {
        let name = path.display().to_string();
        let (file, bytes) = regular_file(path, |source| LoadError::ReadInitramfs {
            name: name.clone(),
            source,
        })?;
        check(&name, &file, bytes)?;
        Ok(Initramfs(Input {
            name,
            bytes,
            source: InputSource::File(file),
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.0.name
    }

    /// Copies it as high as possible: into whole pages from `above` to `end`. Returns its address and size.
    pub(super) fn copy_below(
        self,
        ram: &GuestMemoryMmap,
        above: u64,
        end: u64,
    ) -> Result<(u64, u64), LoadError> {
        let Initramfs(input) = self;
        let bytes = input.bytes;
        let start = end
            .checked_sub(bytes)
            .map_or(0, |start| start / PAGE_BYTES * PAGE_BYTES);
        if start < above {
            return Err(LoadError::InitramfsTooLarge {
                name: input.name,
                bytes,
                room: end.saturating_sub(above),
            });
        }
        input.copy_to(ram, start)?;
        Ok((start, bytes))
    }
}

fn check(name: &str, file: &File, bytes: u64) -> Result<(), LoadError> {
    let mut magic = [0; MAGIC_BYTES];
    let head = &mut magic[..bytes.min(MAGIC_BYTES as u64) as usize];
    let failed = |source| LoadError::ReadInitramfs {
        name: name.to_owned(),
        source,
    };
    file.read_exact_at(head, 0).map_err(failed)?;
    if COMPRESSED.iter().any(|known| head.starts_with(known)) {
        return Ok(());
    }
    if !CPIO.contains(&&*head) {
        return Err(LoadError::UnknownInitramfs {
            name: name.to_owned(),
        });
    }
    match walk(file, bytes).map_err(failed)? {
        Walk::Whole => Ok(()),
        Walk::CutOff => Err(LoadError::InitramfsTruncated {
            name: name.to_owned(),
            bytes,
        }),
        Walk::Damaged => Err(LoadError::UnknownInitramfs {
            name: name.to_owned(),
        }),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Walk {
    Whole,
    CutOff,
    Damaged,
}

/// Goes through an archive's headers up to its trailer.
fn walk(file: &File, bytes: u64) -> io::Result<Walk> {
    let mut at = 0u64;
    for _ in 0..FILES_MAX {
        let mut header = [0; CPIO_HEADER_BYTES as usize];
        let name_at = at + CPIO_HEADER_BYTES;
        if name_at > bytes {
            return Ok(Walk::CutOff);
        }
        file.read_exact_at(&mut header, at)?;
        let sizes = (field(&header, NAME_BYTES_FIELD), field(&header, FILE_BYTES_FIELD));
        let (true, (Some(name_bytes), Some(file_bytes))) = (CPIO.contains(&&header[..MAGIC_BYTES]), sizes)
        else {
            return Ok(Walk::Damaged);
        };
        let name_end = name_at + u64::from(name_bytes);
        if name_end > bytes {
            return Ok(Walk::CutOff);
        }
        if name_bytes as usize == TRAILER.len() {
            let mut name = [0; TRAILER.len()];
            file.read_exact_at(&mut name, name_at)?;
            if name == *TRAILER {
                return Ok(Walk::Whole);
            }
        }
        at = name_end.next_multiple_of(4) + u64::from(file_bytes);
        if at > bytes {
            return Ok(Walk::CutOff);
        }
        at = at.next_multiple_of(4);
    }
    // An archive with more files than are counted here: the kernel decides.
    Ok(Walk::Whole)
}

fn field(header: &[u8; CPIO_HEADER_BYTES as usize], index: usize) -> Option<u32> {
    let start = MAGIC_BYTES + 8 * index;
    let digits = std::str::from_utf8(&header[start..start + 8]).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn member(name: &str, content: &[u8]) -> Vec<u8> {
        let mut fields = [0u32; 13];
        fields[FILE_BYTES_FIELD] = content.len() as u32;
        fields[NAME_BYTES_FIELD] = name.len() as u32 + 1;
        let mut bytes = b"070701".to_vec();
        for field in fields {
            bytes.extend(format!("{field:08x}").bytes());
        }
        bytes.extend(name.bytes().chain([0]));
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn archive() -> Vec<u8> {
        [
            member("init", &[7; 1001]),
            member("a/b", &[]),
            member("TRAILER!!!", &[]),
        ]
        .concat()
    }

    fn opened(content: &[u8]) -> Result<Initramfs, LoadError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        Initramfs::open(file.path())
    }

    #[test]
    fn archive_alone_or_with_more_behind_it_is_taken() {
        assert!(opened(&archive()).is_ok());
        assert!(opened(&[archive(), vec![0; 512], b"\x1f\x8b...".to_vec()].concat()).is_ok());
        assert!(opened(b"\x28\xb5\x2f\xfd compressed").is_ok());
    }

    #[test]
    fn archive_that_is_cut_off_anywhere_is_refused() {
        let whole = archive();
        let trailer = whole.len() - 124;
        for bytes in [6, 109, 113, 500, 1116, 1120, trailer, trailer + 115] {
            let outcome = opened(&whole[..bytes]);
            assert!(
                matches!(outcome, Err(LoadError::InitramfsTruncated { .. })),
                "{bytes}: {outcome:?}"
            );
        }
    }

    #[test]
    fn other_files_are_no_initramfs() {
        let outcomes = [b"".as_slice(), b"0707", b"\x7fELF\x02\x01", &[0; 4096]].map(opened);
        assert!(
            outcomes
                .iter()
                .all(|outcome| matches!(outcome, Err(LoadError::UnknownInitramfs { .. }))),
            "{outcomes:?}"
        );
    }

    #[test]
    fn missing_initramfs_names_itself() {
        let error = Initramfs::open(Path::new("/nonexistent/root.cpio")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read initramfs /nonexistent/root.cpio");
    }

    proptest! {
        #[test]
        fn damaged_archives_are_walked_within_bounds(
            at in 0usize..1400,
            noise in prop::collection::vec(any::<u8>(), 1..16),
        ) {
            let mut content = archive();
            for (byte, new) in content.iter_mut().skip(at).zip(noise) {
                *byte = new;
            }
            // Any answer will do, so long as there is one.
            let _ = opened(&content);
        }
    }
}
