//! The VRAM of a served card: one sparse memory file.

use std::fs::File;
use std::io;
use std::sync::Arc;

use fermi_model::{Backing, FermiModel, ModelError};
use fermi_spec::addr::{FRAME, FrameNo};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use vm_memory::mmap::MmapRegionError;
use vm_memory::{FileOffset, MmapRegion};

/// Why there is no VRAM.
#[derive(Debug, thiserror::Error)]
pub enum VramError {
    /// The file.
    #[error("cannot make a memory file of {bytes:#x} bytes for VRAM")]
    File {
        /// Its length.
        bytes: u64,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// Its mapping.
    #[error("cannot map {bytes:#x} bytes of VRAM")]
    Map {
        /// Its length.
        bytes: u64,
        /// What the host said.
        #[source]
        source: MmapRegionError,
    },
    /// The card takes it not.
    #[error("cannot place VRAM")]
    Place(#[from] ModelError),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Vram {
    file: Arc<File>,
    bytes: u64,
    region: Arc<MmapRegion>,
}

impl Vram {
    /// All zero; pages that are never written take no memory.
    pub(super) fn new(bytes: u64) -> Result<Self, VramError> {
        let create = || -> io::Result<File> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(rustix::fs::memfd_create("vramd-vram", flags)?);
            file.set_len(bytes)?;
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
            Ok(file)
        };
        let file = create().map_err(|source| VramError::File { bytes, source })?;
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

    /// Gives every frame of a card its bytes.
    pub(super) fn place(&self, model: &mut FermiModel) -> Result<(), VramError> {
        for frame in 0..model.frames() {
            let offset = u64::from(frame) * FRAME;
            let backing = Backing::new(self.region.clone(), offset as usize, FRAME as usize);
            model.place_frame(FrameNo(frame), backing)?;
        }
        Ok(())
    }

    /// All zero again, and all memory is given back.
    pub(super) fn clear(&self) -> Result<(), VramError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, 0, self.bytes).map_err(|error| VramError::File {
            bytes: self.bytes,
            source: error.into(),
        })
    }
}
