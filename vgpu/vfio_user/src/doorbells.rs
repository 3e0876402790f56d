//! A region and an interrupt index by which a vGPU and its VMM agree that stores to doorbells trap while the guest is quiet.
//!
//! Both are the function's own, behind those of PCI, so a client that does not know them does not notice them. Doorbells lie in memory that
//! the client maps, and the server looks for them; where a store traps it need not.
//!
//! ```text
//!  server: the trigger of the index is signalled: the guest has been quiet for some time
//!  client: reads the region, makes the pages that it names read-only for its guest, and stores their place to the region
//!  server: looks once more. It takes the store and looks no longer, or refuses it: the client lets stores through again
//!  guest:  stores, which traps. The client makes the pages writable, signals the eventfd that unmasks the index, and has the guest try again
//! ```

use crate::function::{RegionInfo, RegionKind};

/// Type of the region: defined by the card's PCI vendor, 10DE (`VFIO_REGION_TYPE_PCI_VENDOR_TYPE`), with a number that Linux's
/// `vfio.h` does not use.
const REGION_KIND: RegionKind = RegionKind {
    kind: 1 << 31 | 0x10de,
    subtype: 0x7672,
};
/// Length of the region: two words of 64 bits, little-endian.
pub const REGION_BYTES: usize = 16;
/// The first word: bytes into BAR1 where doorbells lie, or [`NOWHERE`]. A store of the same value, whole, says that stores to them trap from now
/// on; it is refused with EAGAIN if they had better not.
pub const PLACE: u64 = 0;
/// There are no doorbells that stores could reach.
pub const NOWHERE: u64 = u64::MAX;

/// Description of the region for a [`FunctionInfo`](crate::FunctionInfo).
pub fn region_info() -> RegionInfo {
    RegionInfo {
        kind: Some(REGION_KIND),
        ..RegionInfo::read_write(REGION_BYTES as u64)
    }
}

/// What the region shows for doorbells that take `bytes` from `place` on.
pub fn region_of(place: Option<u64>, bytes: u64) -> [u8; REGION_BYTES] {
    let words = [place.unwrap_or(NOWHERE), bytes];
    let mut region = [0; REGION_BYTES];
    for (word, to) in words.iter().zip(region.chunks_exact_mut(size_of::<u64>())) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    region
}

/// Place and length in bytes of the doorbells, if there are any.
pub fn place_in(region: [u8; REGION_BYTES]) -> Option<(u64, u64)> {
    let whole = u128::from_le_bytes(region);
    let (place, bytes) = (whole as u64, (whole >> u64::BITS) as u64);
    (place != NOWHERE).then_some((place, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_says_where_doorbells_lie() {
        for place in [Some(0), Some(0x1234_5678_9000), None] {
            let region = region_of(place, 0x80000);
            assert_eq!(place_in(region), place.map(|place| (place, 0x80000)));
        }
        assert_eq!(region_of(Some(1), 2)[..9], [1, 0, 0, 0, 0, 0, 0, 0, 2]);
    }
}
