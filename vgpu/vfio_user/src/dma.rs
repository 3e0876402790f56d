//! The memory that a client offers for DMA.
//!
//! The table keeps descriptors and maps nothing: whether, where and how to map is the embedder's business.
//! Invariants: maps never overlap and never wrap; their number, files and bytes are bounded; every file is ordinary
//! memory that was large enough when it arrived. (A client may still cut its file afterwards unless it is sealed,
//! see [`DmaFile::is_shrink_sealed`]: a process that maps it must survive SIGBUS.)

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rustix::fs::{FileType, OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat, fstatfs};

use crate::bounds::{DMA_BYTES_MAX, DMA_FILES_MAX, DMA_MAPS_MAX, DMA_PAGE_BYTES};
use crate::error::{DmaError, ProtocolError};
use crate::message::{CommandCode, DmaMapWire, DmaUnmapWire};
use crate::reaper::ForeignFd;

const FLAG_READ: u32 = 1;
const FLAG_WRITE: u32 = 1 << 1;
/// libvfio-user's header has two more bits (mappable, file I/O): hints that change nothing here.
const FLAGS_IGNORED: u32 = 0b1100;

/// `VFIO_DMA_UNMAP_FLAG_ALL` of `<linux/vfio.h>`.
const UNMAP_ALL: u32 = 1 << 1;

/// `TMPFS_MAGIC` and `HUGETLBFS_MAGIC` of `<linux/magic.h>`: the file systems of memfds and shared-memory files.
///
/// Touching a page of any other file may wait for a disk, or for a FUSE server in the client's hands; and so may asking
/// it anything, its size included. Therefore its seals are asked for first: the kernel answers that by itself for the
/// files of these two, and refuses it for all others.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x9584_58f6];

/// A file of a client's memory.
#[derive(Debug, Clone)]
pub struct DmaFile {
    /// Shared between maps of the same file.
    pub descriptor: Arc<ForeignFd>,
    /// Where the map begins in the file. Bytes.
    pub offset: u64,
    /// The client can no longer make the file shorter.
    pub is_shrink_sealed: bool,
}

/// A range of DMA addresses that a client has offered.
#[derive(Debug, Clone)]
pub struct DmaMap {
    /// First DMA address; for a VMM without vIOMMU the guest-physical address.
    pub iova: u64,
    /// Length, never 0. Bytes.
    pub bytes: u64,
    /// The device may read.
    pub is_readable: bool,
    /// The device may write.
    pub is_writeable: bool,
    /// `None` for memory that the client keeps to itself (device BARs, ROMs): it exists and cannot be reached.
    pub file: Option<DmaFile>,
}

impl DmaMap {
    /// The last address, inclusive: a map may end at the end of the address space.
    pub fn last(&self) -> u64 {
        // `checked_range` made sure of both.
        self.iova.wrapping_add(self.bytes.wrapping_sub(1))
    }
}

/// Device, inode and access mode: the same memory, usable in the same way.
type FileKey = (u64, u64, u32);

/// All maps of one client, by address.
#[derive(Debug)]
pub struct DmaTable {
    maps_max: usize,
    maps: BTreeMap<u64, Arc<DmaMap>>,
    mapped_bytes: u64,
    files: Vec<(FileKey, Weak<ForeignFd>)>,
}

/// Last address of a range that is not empty, aligned, and within the address space.
fn checked_range(iova: u64, bytes: u64) -> Result<u64, DmaError> {
    if bytes == 0 {
        return Err(DmaError::Empty);
    }
    if !iova.is_multiple_of(DMA_PAGE_BYTES) || !bytes.is_multiple_of(DMA_PAGE_BYTES) {
        return Err(DmaError::Misaligned { iova, bytes });
    }
    iova.checked_add(bytes - 1)
        .ok_or(DmaError::WrapsAround { iova, bytes })
}

impl Default for DmaTable {
    /// A table with room for [`DMA_MAPS_MAX`] maps.
    fn default() -> Self {
        Self::with_room_for(DMA_MAPS_MAX)
    }
}

impl DmaTable {
    /// An empty table that takes up to `maps_max` maps.
    pub(crate) fn with_room_for(maps_max: usize) -> Self {
        Self {
            maps_max,
            maps: BTreeMap::new(),
            mapped_bytes: 0,
            files: Vec::new(),
        }
    }

    /// All maps, in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DmaMap>> {
        self.maps.values()
    }

    /// Number of maps.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// Bytes of all maps together.
    pub fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// The map that `iova` lies in; `None` outside of all maps.
    pub fn find(&self, iova: u64) -> Option<&Arc<DmaMap>> {
        let (_, map) = self.maps.range(..=iova).next_back()?;
        (map.last() >= iova).then_some(map)
    }

    /// Adds a map, with the descriptor that came along.
    pub(crate) fn map(
        &mut self,
        wire: &DmaMapWire,
        descriptors: Vec<ForeignFd>,
    ) -> Result<Arc<DmaMap>, ProtocolError> {
        let code = CommandCode::DmaMap;
        let is_readable = wire.flags & FLAG_READ != 0;
        let is_writeable = wire.flags & FLAG_WRITE != 0;
        let is_known = wire.flags & !(FLAG_READ | FLAG_WRITE | FLAGS_IGNORED) == 0;
        if !is_known || !(is_readable || is_writeable) {
            return Err(ProtocolError::Flags {
                command: code,
                flags: wire.flags,
            });
        }
        let count = descriptors.len();
        let mut descriptors = descriptors.into_iter();
        let (descriptor, None) = (descriptors.next(), descriptors.next()) else {
            return Err(ProtocolError::DescriptorCount { command: code, count });
        };
        let (iova, bytes) = (wire.iova, wire.bytes);
        let last = checked_range(iova, bytes)?;
        let is_free = self
            .maps
            .range(..=last)
            .next_back()
            .is_none_or(|(_, below)| below.last() < iova);
        if !is_free {
            return Err(DmaError::Overlaps { iova, bytes }.into());
        }
        if self.maps.len() >= self.maps_max {
            return Err(DmaError::TooManyMaps.into());
        }
        let mapped_bytes = self
            .mapped_bytes
            .checked_add(bytes)
            .filter(|sum| *sum <= DMA_BYTES_MAX)
            .ok_or(DmaError::TooManyBytes)?;
        let file = match descriptor {
            Some(descriptor) => Some(self.file(descriptor, wire, is_writeable)?),
            None => None,
        };
        let map = Arc::new(DmaMap {
            iova,
            bytes,
            is_readable,
            is_writeable,
            file,
        });
        self.maps.insert(iova, Arc::clone(&map));
        self.mapped_bytes = mapped_bytes;
        Ok(map)
    }

    /// Checks that a descriptor is memory that can be mapped as requested, and finds it among those held already.
    fn file(
        &mut self,
        descriptor: ForeignFd,
        wire: &DmaMapWire,
        is_writeable: bool,
    ) -> Result<DmaFile, DmaError> {
        let (offset, bytes) = (wire.offset, wire.bytes);
        if !offset.is_multiple_of(DMA_PAGE_BYTES) {
            return Err(DmaError::Misaligned {
                iova: wire.iova,
                bytes,
            });
        }
        let end = offset.checked_add(bytes).ok_or(DmaError::WrapsAround {
            iova: wire.iova,
            bytes,
        })?;
        let seals = fcntl_get_seals(&descriptor).map_err(|_| DmaError::NotMemory)?;
        let status = fstat(&descriptor).map_err(|_| DmaError::NotMemory)?;
        let system = fstatfs(&descriptor).map_err(|_| DmaError::NotMemory)?;
        let flags = fcntl_getfl(&descriptor).map_err(|_| DmaError::NotMemory)?;
        let is_memory = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && MEMORY_FILE_SYSTEMS.contains(&(system.f_type as u64));
        if !is_memory || flags.contains(OFlags::PATH) {
            return Err(DmaError::NotMemory);
        }
        let mode = flags & OFlags::RWMODE;
        if mode == OFlags::WRONLY || (is_writeable && mode != OFlags::RDWR) {
            return Err(DmaError::Access);
        }
        let file_bytes = u64::try_from(status.st_size).unwrap_or(0);
        if end > file_bytes {
            return Err(DmaError::BeyondFile { file_bytes, end });
        }
        let is_shrink_sealed = seals.contains(SealFlags::SHRINK);
        let key = (status.st_dev, status.st_ino, mode.bits());
        self.files.retain(|(_, held)| held.strong_count() > 0);
        let known = self
            .files
            .iter()
            .find(|(held, _)| *held == key)
            .and_then(|(_, file)| file.upgrade());
        let descriptor = match known {
            Some(known) => known,
            None if self.files.len() >= DMA_FILES_MAX => return Err(DmaError::TooManyFiles),
            None => {
                let descriptor = Arc::new(descriptor);
                self.files.push((key, Arc::downgrade(&descriptor)));
                descriptor
            }
        };
        Ok(DmaFile {
            descriptor,
            offset,
            is_shrink_sealed,
        })
    }

    /// Removes one map, or all maps that lie wholly in the range, or all maps of the client.
    ///
    /// The specification asks for an exact match only; VMMs that merge ranges before they unmap need the second.
    pub(crate) fn unmap(&mut self, wire: &DmaUnmapWire) -> Result<Vec<Arc<DmaMap>>, ProtocolError> {
        let (iova, bytes) = (wire.iova, wire.bytes);
        if wire.flags == UNMAP_ALL {
            self.mapped_bytes = 0;
            return Ok(std::mem::take(&mut self.maps).into_values().collect());
        }
        if wire.flags != 0 {
            return Err(ProtocolError::Flags {
                command: CommandCode::DmaUnmap,
                flags: wire.flags,
            });
        }
        let last = checked_range(iova, bytes)?;
        let reaches_in = self
            .maps
            .range(..iova)
            .next_back()
            .is_some_and(|(_, map)| map.last() >= iova);
        let reaches_out = self
            .maps
            .range(iova..=last)
            .next_back()
            .is_none_or(|(_, map)| map.last() > last);
        if reaches_in || reaches_out {
            return Err(DmaError::NotMapped { iova, bytes }.into());
        }
        let removed: Vec<_> = self
            .maps
            .extract_if(iova..=last, |_, _| true)
            .map(|(_, map)| map)
            .collect();
        let removed_bytes: u64 = removed.iter().map(|map| map.bytes).sum();
        self.mapped_bytes -= removed_bytes;
        Ok(removed)
    }

    /// Removes exactly this map again, if it is still there: the embedder could not use it.
    pub(crate) fn forget(&mut self, map: &Arc<DmaMap>) {
        if self
            .maps
            .get(&map.iova)
            .is_some_and(|held| Arc::ptr_eq(held, map))
        {
            self.maps.remove(&map.iova);
            self.mapped_bytes -= map.bytes;
        }
    }
}

#[cfg(test)]
mod tests;
