// UNSAFETY: registers are reached through a mapping of the device, and the IOMMU is given addresses of memory.
#![expect(unsafe_code)]

//! Mapped BARs, and maps of memory for the card.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use fermi_spec::addr::Iova;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use vfio_bindings::bindings::vfio::VFIO_REGION_INFO_FLAG_MMAP;
use vfio_ioctls::{VfioDevice, VfioError, VfioOps, VfioRegionInfoCap};
use vgpu::DmaMemory;

/// A BAR in this process's memory.
#[derive(Debug)]
pub(super) struct MappedBar {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access is atomic.
unsafe impl Send for MappedBar {}
// SAFETY: as above.
unsafe impl Sync for MappedBar {}

impl MappedBar {
    /// Maps region `index`, if the kernel allows it for the whole region.
    pub(super) fn new(device: &VfioDevice, index: u32) -> io::Result<Option<Self>> {
        let may_map = device.get_region_flags(index) & VFIO_REGION_INFO_FLAG_MMAP != 0;
        let is_sparse = device
            .get_region_caps(index)
            .iter()
            .any(|cap| matches!(cap, VfioRegionInfoCap::SparseMmap(_)));
        if !may_map || is_sparse {
            return Ok(None);
        }
        let bytes = device.get_region_size(index) as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the device outlives this call, and its descriptor is open as long as it lives. The mapping is a
        // new one at an address that the kernel chooses.
        let start = unsafe {
            let file = BorrowedFd::borrow_raw(device.as_raw_fd());
            let offset = device.get_region_offset(index);
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Some(Self { start, bytes }))
    }

    /// Address of `bytes` at `offset`. They must lie within the BAR.
    fn place(&self, offset: u64, bytes: usize) -> *mut u8 {
        let end = (offset as usize).checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "access outside a BAR");
        // SAFETY: just checked.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }

    /// Loads in naturally aligned pieces of at most 8 bytes, in ascending order. The range must lie within the BAR.
    pub(super) fn load(&self, mut offset: u64, data: &mut [u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at_mut(piece_bytes(offset, rest.len()));
            let at = self.place(offset, piece.len());
            // SAFETY: `at` is mapped, aligned to the piece's length, and only reached atomically.
            unsafe {
                match piece.len() {
                    8 => piece.copy_from_slice(
                        &AtomicU64::from_ptr(at.cast())
                            .load(Ordering::Relaxed)
                            .to_le_bytes(),
                    ),
                    4 => piece.copy_from_slice(
                        &AtomicU32::from_ptr(at.cast())
                            .load(Ordering::Relaxed)
                            .to_le_bytes(),
                    ),
                    2 => piece.copy_from_slice(
                        &AtomicU16::from_ptr(at.cast())
                            .load(Ordering::Relaxed)
                            .to_le_bytes(),
                    ),
                    _ => piece.copy_from_slice(&[AtomicU8::from_ptr(at).load(Ordering::Relaxed)]),
                }
            }
            offset += piece.len() as u64;
            rest = after;
        }
    }

    /// Stores in pieces as loads do. The range must lie within the BAR.
    pub(super) fn store(&self, mut offset: u64, data: &[u8]) {
        let mut rest = data;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(piece_bytes(offset, rest.len()));
            let at = self.place(offset, piece.len());
            // SAFETY: as for loads.
            unsafe {
                match *piece {
                    [a, b, c, d, e, f, g, h] => AtomicU64::from_ptr(at.cast())
                        .store(u64::from_le_bytes([a, b, c, d, e, f, g, h]), Ordering::Relaxed),
                    [a, b, c, d] => {
                        AtomicU32::from_ptr(at.cast())
                            .store(u32::from_le_bytes([a, b, c, d]), Ordering::Relaxed);
                    }
                    [a, b] => {
                        AtomicU16::from_ptr(at.cast()).store(u16::from_le_bytes([a, b]), Ordering::Relaxed)
                    }
                    [a, ..] => AtomicU8::from_ptr(at).store(a, Ordering::Relaxed),
                    [] => {}
                }
            }
            offset += piece.len() as u64;
            rest = after;
        }
    }
}

impl Drop for MappedBar {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and nobody has a pointer into it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
        if let Err(error) = unmapped {
            log::warn!("cannot unmap a BAR: {error}");
        }
    }
}

/// Bytes of the first piece of an access: naturally aligned, at most 8.
fn piece_bytes(offset: u64, left: usize) -> usize {
    [8, 4, 2]
        .into_iter()
        .find(|bytes| offset.is_multiple_of(*bytes as u64) && left >= *bytes)
        .unwrap_or(1)
}

/// Lets the card reach `memory` at `iova`.
pub(super) fn map_dma(iommu: &dyn VfioOps, iova: Iova, memory: &DmaMemory) -> Result<(), VfioError> {
    let is_inside = memory
        .offset
        .checked_add(memory.bytes)
        .is_some_and(|end| end <= memory.region.size() as u64);
    if !is_inside {
        return Err(VfioError::InvalidDmaUnmapSize);
    }
    let bytes = memory.bytes as usize;
    // SAFETY: the range lies within the region, which the caller keeps until it has unmapped the range. Nobody makes
    // references into memory that guests and the card share. The advice does not change what the memory holds.
    unsafe {
        let start = memory.region.as_ptr();
        // Large pages need fewer entries in the IOMMU. Small ones work as well, so a host without them is no error.
        // The advice is for the whole region, so that pages that are touched before they are mapped are large too.
        let _ = rustix::mm::madvise(start.cast(), memory.region.size(), Advice::LinuxHugepage);
        let at = start.add(memory.offset as usize);
        iommu.vfio_dma_map(iova.0, bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BAR that is plain memory.
    fn bar(bytes: usize) -> MappedBar {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) };
        let start = NonNull::new(start.unwrap().cast()).unwrap();
        MappedBar { start, bytes }
    }

    #[test]
    fn pieces_are_aligned_and_cover_everything() {
        let bar = bar(4096);
        let data: Vec<u8> = (1..=29).collect();
        for offset in 0..9 {
            bar.store(offset, &data);
            let mut seen = [0; 29];
            bar.load(offset, &mut seen);
            assert_eq!(seen, *data);
        }
        assert_eq!(
            [(0, 9), (4, 9), (6, 9), (7, 9), (8, 3)].map(|(at, left)| piece_bytes(at, left)),
            [8, 4, 2, 1, 2]
        );
    }

    #[test]
    #[should_panic(expected = "outside a BAR")]
    fn access_behind_the_end_is_stopped() {
        bar(4096).store(4092, &[0; 8]);
    }
}
