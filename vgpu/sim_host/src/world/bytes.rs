//! Memory of the world as it is cleared, or left full.

use vm_memory::{MmapRegion, VolatileMemory};

/// What the last owner of a frame left in it, where frames do not arrive zeroed.
pub(super) const LEFT_BEHIND: u8 = 0xd1;

/// Clears a range.
pub(super) fn zero(region: &MmapRegion, at: u64, bytes: u64) {
    fill(region, at, bytes, 0);
}

/// Fills a range with a byte.
pub(super) fn fill(region: &MmapRegion, at: u64, bytes: u64, byte: u8) {
    let page = [byte; 4096];
    let slice = region
        .get_slice(at as usize, bytes as usize)
        .expect("inside of the VM's memory");
    let mut offset = 0;
    while offset < bytes as usize {
        let length = page.len().min(bytes as usize - offset);
        slice
            .subslice(offset, length)
            .expect("inside")
            .copy_from(&page[..length]);
        offset += length;
    }
}
