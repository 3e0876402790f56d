//! The VRAM of a served card: one sparse memory file, the *home* of every page, and one mapping.
//!
//! A page can be *lent*: it then lives in another file, and the mapping shows it from there.

use std::fs::File;
use std::io;
use std::sync::Arc;

use broker::{Loan, punch_hole, sealed_memfd, show};
use fermi_model::{Backing, FermiModel, ModelError};
use fermi_spec::addr::{FRAME, FrameNo};
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion};

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
        let file = sealed_memfd("vramd-vram", bytes).map_err(|source| VramError::File { bytes, source })?;
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
        punch_hole(&self.file, 0, self.bytes).map_err(failed)
    }

    /// Lets a run that is at home live in `file` from now on. To be called under the card's lock.
    pub(super) fn lend(&self, loan: Loan, file: &File) -> Result<(), VramError> {
        let lent = loan.lend(&self.file, &self.region, file);
        lent.map_err(failed(loan))
    }

    /// Takes a run back that lives in `file`; there it reads as zero then. To be called under the card's lock.
    pub(super) fn take_back(&self, loan: Loan, file: &File) -> Result<(), VramError> {
        let taken = loan.take_back(&self.file, &self.region, file);
        taken.map_err(failed(loan))
    }
}

fn failed(Loan { at, bytes, .. }: Loan) -> impl FnOnce(io::Error) -> VramError {
    move |source| VramError::Move { at, bytes, source }
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

    const LOAN: Loan = Loan {
        at: 0x5000,
        offset: 0x2000,
        bytes: 0x3000,
    };

    #[test]
    fn cleared_vram_is_zero_and_at_home() {
        let vram = Vram::new(VRAM).unwrap();
        let file = sealed_memfd("window", 0x10000).unwrap();
        write(&vram, 0, &[1; 4]);
        vram.lend(LOAN, &file).unwrap();
        write(&vram, 0x5000, &[2; 4]);
        vram.clear().unwrap();
        assert_eq!((read(&vram, 0), read(&vram, 0x5000)), ([0; 4], [0; 4]));
    }
}
