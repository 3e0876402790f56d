//! The VRAM of a served card: one sparse memory file, the *home* of every page, and one mapping.
//!
//! A page can be *lent*: it then lives in another file, and the mapping shows it from there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use fermi_model::{Backing, FermiModel, ModelError};
use fermi_spec::addr::{FRAME, FrameNo};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion};

use super::remap::{PAGE, show};

/// Bytes moved at once.
const MOVE_BYTES: usize = 128 << 10;

/// Why the VRAM could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VramError {
    /// The memory file cannot be made.
    #[error("cannot make a memory file of {bytes:#x} bytes for VRAM")]
    File {
        /// Length of the file in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// The file cannot be mapped.
    #[error("cannot map {bytes:#x} bytes of VRAM")]
    Map {
        /// Length of the mapping in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: MmapRegionError,
    },
    /// The card refuses the memory.
    #[error("cannot place VRAM")]
    Place(#[from] ModelError),
    /// Pages cannot be moved between the files.
    #[error("cannot move {bytes:#x} bytes of VRAM at {at:#x}")]
    Move {
        /// First VRAM address of the pages.
        at: u64,
        /// Length in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
}

/// A memory file of zeros that cannot be resized, not even by a process that is given its descriptor.
pub(super) fn sealed_file(name: &str, bytes: u64) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.set_len(bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A run of whole pages and the place that they are lent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loan {
    /// First VRAM address.
    pub(super) at: u64,
    /// First byte in the other file.
    pub(super) offset: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
}

/// The VRAM of one card.
#[derive(Debug)]
pub(super) struct Vram {
    file: Arc<File>,
    bytes: u64,
    region: Arc<MmapRegion>,
}

impl Vram {
    /// All zero; pages that are never written take no memory.
    pub(super) fn new(bytes: u64) -> Result<Self, VramError> {
        let file = sealed_file("vramd-vram", bytes).map_err(|source| VramError::File { bytes, source })?;
        let file = Arc::new(file);
        let region = MmapRegion::build(
            Some(FileOffset::from_arc(file.clone(), 0)),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
        )
        .map_err(|source| VramError::Map { bytes, source })?;
        Ok(Self {
            file,
            bytes,
            region: Arc::new(region),
        })
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives every frame of a card its bytes.
    pub(super) fn place(&self, model: &mut FermiModel) -> Result<(), VramError> {
        for frame in 0..model.frames() {
            let offset = u64::from(frame) * FRAME;
            let backing = Backing::new(self.region.clone(), offset as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing)?;
        }
        Ok(())
    }

    /// All zero again and all at home; the memory is given back, that of lent pages excepted.
    pub(super) fn clear(&self) -> Result<(), VramError> {
        let failed = |source: io::Error| VramError::Move {
            at: 0,
            bytes: self.bytes,
            source,
        };
        show(&self.region, 0, self.bytes, &self.file, 0).map_err(failed)?;
        punch(&self.file, 0, self.bytes).map_err(failed)
    }

    /// Lets a run that is at home live in `file` from now on. To be called under the card's lock.
    pub(super) fn lend(&self, loan: Loan, file: &File) -> Result<(), VramError> {
        let Loan { at, offset, bytes } = loan;
        let lend = || {
            punch(file, offset, bytes)?;
            move_bytes(&self.file, at, file, offset, bytes)?;
            show(&self.region, at, bytes, file, offset)?;
            punch(&self.file, at, bytes)
        };
        lend().map_err(|source| VramError::Move { at, bytes, source })
    }

    /// Takes a run back that lives in `file`; there it reads as zero then. To be called under the card's lock.
    pub(super) fn take_back(&self, loan: Loan, file: &File) -> Result<(), VramError> {
        let Loan { at, offset, bytes } = loan;
        let take_back = || {
            move_bytes(file, offset, &self.file, at, bytes)?;
            show(&self.region, at, bytes, &self.file, at)?;
            punch(file, offset, bytes)
        };
        take_back().map_err(|source| VramError::Move { at, bytes, source })
    }
}

/// The range reads as zero and takes no memory.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, bytes)?)
}

/// Copies the parts of the source that are not holes; the target is one hole.
fn move_bytes(source: &File, from: u64, target: &File, to: u64, bytes: u64) -> io::Result<()> {
    let end = from + bytes;
    let mut at = from;
    let mut buffer = vec![0; MOVE_BYTES.min(bytes as usize)];
    while at < end {
        at = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            // The rest is a hole.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        // Holes within a piece are copied as zeros, which costs less than to look for them.
        let part = buffer.len().min((end - at) as usize);
        source.read_exact_at(&mut buffer[..part], at)?;
        target.write_all_at(&buffer[..part], to + (at - from))?;
        at += part as u64;
    }
    debug_assert!(at.is_multiple_of(PAGE) || at >= end, "runs are whole pages");
    Ok(())
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes as _, VolatileMemory as _};

    use super::*;

    const VRAM: u64 = 1 << 20;

    fn write(vram: &Vram, at: u64, bytes: &[u8]) {
        vram.region
            .as_volatile_slice()
            .write_slice(bytes, at as usize)
            .unwrap();
    }

    fn read(vram: &Vram, at: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        vram.region
            .as_volatile_slice()
            .read_slice(&mut bytes, at as usize)
            .unwrap();
        bytes
    }

    fn read_file(file: &File, at: u64) -> [u8; 4] {
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    const LOAN: Loan = Loan {
        at: 0x5000,
        offset: 0x2000,
        bytes: 0x3000,
    };

    #[test]
    fn lent_pages_are_the_same_bytes_in_both_places() {
        let vram = Vram::new(VRAM).unwrap();
        let file = sealed_file("window", 0x10000).unwrap();
        write(&vram, 0x6ffc, &[1, 2, 3, 4]);
        vram.lend(LOAN, &file).unwrap();
        assert_eq!(read_file(&file, 0x3ffc), [1, 2, 3, 4]);
        file.write_all_at(&[5; 4], 0x4000).unwrap();
        write(&vram, 0x7004, &[6; 4]);
        assert_eq!((read(&vram, 0x7000), read_file(&file, 0x4004)), ([5; 4], [6; 4]));
    }

    #[test]
    fn pages_taken_back_keep_their_bytes_and_leave_zeros() {
        let vram = Vram::new(VRAM).unwrap();
        let file = sealed_file("window", 0x10000).unwrap();
        vram.lend(LOAN, &file).unwrap();
        file.write_all_at(&[7; 4], 0x2000).unwrap();
        vram.take_back(LOAN, &file).unwrap();
        file.write_all_at(&[8; 4], 0x3000).unwrap();
        assert_eq!(read(&vram, 0x5000), [7; 4]);
        assert_eq!(read_file(&file, 0x2000), [0; 4]);
        assert_eq!(
            read(&vram, 0x6000),
            [0; 4],
            "no store to the file arrives any more"
        );
    }

    #[test]
    fn what_stood_in_the_file_before_does_not_reach_vram() {
        let vram = Vram::new(VRAM).unwrap();
        let file = sealed_file("window", 0x10000).unwrap();
        file.write_all_at(&[9; 0x3000], 0x2000).unwrap();
        vram.lend(LOAN, &file).unwrap();
        assert_eq!(read(&vram, 0x6000), [0; 4]);
    }

    #[test]
    fn cleared_vram_is_zero_and_at_home() {
        let vram = Vram::new(VRAM).unwrap();
        let file = sealed_file("window", 0x10000).unwrap();
        write(&vram, 0, &[1; 4]);
        vram.lend(LOAN, &file).unwrap();
        write(&vram, 0x5000, &[2; 4]);
        vram.clear().unwrap();
        assert_eq!((read(&vram, 0), read(&vram, 0x5000)), ([0; 4], [0; 4]));
    }

    #[test]
    fn file_of_a_window_cannot_be_resized_or_sealed_by_its_client() {
        let file = sealed_file("window", 0x10000).unwrap();
        assert!(file.set_len(0).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    }
}
