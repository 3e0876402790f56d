//! The client's memory: one mapping for each of its files, and DMA maps as parts of them.
//!
//! A VMM with an IOMMU maps and unmaps single pages of the same file all the time. The file is therefore mapped
//! whole when it first comes, and a DMA map is an entry in a table that costs no system call. The table bounds the
//! memory that the card reaches, not the mapping.

use std::sync::Arc;

use broker::{ClientFiles, MapOwner};
use fermi_spec::addr::Iova;
use vfio_user_server::{DmaMap, Errno};

use crate::maps::DmaMaps;

/// The mapped files of one client, and the card's table of DMA maps.
#[derive(Debug)]
pub(super) struct ClientMemory {
    files: ClientFiles,
    maps: Arc<DmaMaps>,
    owner: MapOwner,
}

impl ClientMemory {
    /// A table without files; the card sees `maps`.
    pub(super) fn new(maps: Arc<DmaMaps>, owner: MapOwner) -> Self {
        Self {
            files: ClientFiles::default(),
            maps,
            owner,
        }
    }

    /// Whether the client took memory away that it had offered.
    pub(super) fn is_torn(&self) -> bool {
        self.files.is_torn()
    }

    /// Lets the card reach a map. One without a file exists for the client alone: DMA does not find it.
    pub(super) fn insert(&mut self, map: &DmaMap) -> Result<(), Errno> {
        let Some(file) = &map.file else { return Ok(()) };
        let mapped = self.files.map(file, map.bytes, map.is_writeable, &self.owner);
        let mapped = mapped.map_err(|error| {
            log::warn!("cannot map the client's memory: {error}");
            Errno::NOMEM
        })?;
        let memory = mapped.part(file.offset, map.bytes).ok_or(Errno::INVAL)?;
        let is_writable = map.is_writeable && mapped.is_writable();
        // The protocol's table has checked that maps do not overlap and that the file is long enough.
        self.maps
            .insert(Iova(map.iova), memory, is_writable)
            .map_err(|_| Errno::INVAL)
    }

    /// Takes a map from the card. To be called under the card's lock: no engine is half way through a copy then.
    pub(super) fn remove(maps: &DmaMaps, map: &DmaMap) {
        // A map without a file was never entered.
        let _ = maps.remove(Iova(map.iova), map.bytes);
    }
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.maps.clear();
    }
}
