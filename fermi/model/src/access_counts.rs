//! Access counters, a capability: how often blocks of address spaces were used.
//!
//! Rules:
//! 1. The MMU counts where pages are translated. An instruction of a warp counts once for each page of 4 KiB that its lanes reach,
//!    however many lanes; a load as a load, a store as a store, an atomic operation as both. It counts when it is executed: not when
//!    it is refused, and once when it has waited for a page.
//! 2. A transfer (copy engines, M2MF, fills) counts where it has pages translated, what it reads as loads and what it writes as stores:
//!    each page of a piece (64 KiB at most) once, and once more for each further line of the piece that is longer than the rest of its page.
//!    Physical addresses, fetches of code and pushbuffers, semaphores, contexts and the windows of the BARs do not count.
//! 3. The card counts and interprets nothing. A number that has reached its end stays there; who reads them clears them.
//!
//! Granularity and place are those of Ganguly's thesis (section 5.2.3): blocks of 64 KiB, counted by the MMU at the lookup of a page,
//! whether the block is in VRAM or in system memory. The 27 and 5 bits of its registers belong to the policy (crate `adaptive`).

use std::collections::BTreeMap;

use fermi_spec::addr::{Aperture, GpuVa, PhysAddr, SMALL_PAGE};

use crate::{memory::Place, model::FermiModel};

/// Bytes of a block.
const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks that are counted: 4 GiB of what is used. Accesses to others are told by [`Counters`](crate::Counters) alone.
const BLOCKS_MAX: usize = 1 << 16;

/// Accesses to a block since the counters were cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessCount {
    /// Memory and address of the page directory.
    pub directory: (Aperture, PhysAddr),
    /// First byte of the block, a multiple of 64 KiB.
    pub va: GpuVa,
    /// Loads, by page and instruction of a warp, or by page and piece of a transfer.
    pub loads: u32,
    /// Stores, counted in the same way; an atomic operation is a load and a store.
    pub stores: u32,
}

/// The counters of all address spaces.
#[derive(Debug, Default)]
pub(crate) struct AccessCounts {
    blocks: BTreeMap<(Place, u64), [u32; 2]>,
}

impl AccessCounts {
    /// Counts accesses to the page with the byte at `va`; `false` if there is no room for its block.
    #[must_use]
    pub(crate) fn count(&mut self, directory: Place, va: u64, [loads, stores]: [bool; 2]) -> bool {
        let is_full = self.blocks.len() >= BLOCKS_MAX;
        let key = (directory, va / BLOCK_BYTES);
        if is_full && !self.blocks.contains_key(&key) {
            return false;
        }
        let counts = self.blocks.entry(key).or_default();
        for (count, is_so) in counts.iter_mut().zip([loads, stores]) {
            *count = count.saturating_add(u32::from(is_so));
        }
        true
    }

    /// Counts an access to each page of a range; how many found no room.
    #[must_use]
    pub(crate) fn count_range(&mut self, directory: Place, va: GpuVa, bytes: u64, is_store: bool) -> u64 {
        let pages = va.0 / SMALL_PAGE..va.0.saturating_add(bytes).div_ceil(SMALL_PAGE);
        let missed = pages.filter(|page| !self.count(directory, page * SMALL_PAGE, [!is_store, is_store]));
        missed.count() as u64
    }
}

impl FermiModel {
    /// What was counted since the last [`Self::clear_access_counts`], by address space and address; nothing without the
    /// capability.
    pub fn access_counts(&self) -> impl Iterator<Item = AccessCount> {
        let blocks = self.mmu.counts.iter().flat_map(|counts| &counts.blocks);
        blocks.map(|((directory, block), [loads, stores])| AccessCount {
            directory: (directory.aperture, directory.at),
            va: GpuVa(block * BLOCK_BYTES),
            loads: *loads,
            stores: *stores,
        })
    }

    /// Sets all counters to zero.
    pub fn clear_access_counts(&mut self) {
        if let Some(counts) = &mut self.mmu.counts {
            counts.blocks.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(number: u64) -> Place {
        Place {
            aperture: Aperture::Vram,
            at: PhysAddr(number << 12),
        }
    }

    #[test]
    fn numbers_stay_at_their_end_and_blocks_without_room_are_told() {
        let mut counts = AccessCounts::default();
        counts.blocks.insert((directory(1), 3), [u32::MAX, 7]);
        assert!(counts.count(directory(1), 3 * BLOCK_BYTES + 5, [true, true]));
        assert_eq!(counts.blocks[&(directory(1), 3)], [u32::MAX, 8]);
        for block in 0..BLOCKS_MAX as u64 - 1 {
            assert!(counts.count(directory(2), block * BLOCK_BYTES, [true, false]));
        }
        assert!(!counts.count(directory(3), 0, [true, false]));
        assert!(counts.count(directory(2), 0, [true, false]));
        assert_eq!(counts.blocks[&(directory(2), 0)], [2, 0]);
    }

    #[test]
    fn range_counts_each_page_that_it_touches() {
        let mut counts = AccessCounts::default();
        assert_eq!(counts.count_range(directory(1), GpuVa(0xfff), 2, true), 0);
        assert_eq!(counts.count_range(directory(1), GpuVa(0xf000), 0x2000, false), 0);
        assert_eq!(counts.count_range(directory(1), GpuVa(0x5000), 0, false), 0);
        assert_eq!(counts.blocks[&(directory(1), 0)], [1, 2]);
        assert_eq!(counts.blocks[&(directory(1), 1)], [1, 0]);
    }
}
