//! Memory that the embedder lends: VRAM frames and the system memory that DMA reaches.

use fermi_spec::addr::Iova;
use std::{fmt, sync::Arc};
use vm_memory::{MmapRegion, VolatileMemory, VolatileSlice};

/// A run of host memory that stays mapped as long as a value of this type exists.
///
/// Others may write it at any time: the model reads each byte once and works on the copy.
#[derive(Clone)]
pub struct Backing {
    region: Arc<MmapRegion>,
    offset: usize,
    bytes: usize,
}

impl Backing {
    /// `bytes` bytes at `offset` of `region`; `None` when they do not lie in it or are none.
    pub fn new(region: Arc<MmapRegion>, offset: usize, bytes: usize) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (bytes != 0 && end <= region.size()).then_some(Self {
            region,
            offset,
            bytes,
        })
    }

    /// Bytes of the run, never zero.
    #[expect(clippy::len_without_is_empty, reason = "an empty run cannot be made")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// The memory itself.
    pub fn slice(&self) -> VolatileSlice<'_> {
        self.region
            .get_slice(self.offset, self.bytes)
            .expect("the bounds were checked when the run was made")
    }

    /// The `bytes` bytes at `offset` of this run; `None` when they do not lie in it or are none.
    pub fn part(&self, offset: usize, bytes: usize) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (bytes != 0 && end <= self.bytes).then(|| Self {
            region: Arc::clone(&self.region),
            offset: self.offset + offset,
            bytes,
        })
    }
}

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Backing({:p}+{:#x}, {:#x} bytes)",
            self.region.as_ptr(),
            self.offset,
            self.bytes
        )
    }
}

/// System memory as the card sees it.
pub trait SystemBus: Send + Sync {
    /// The memory at `at`, at least 1 and at most `bytes` bytes long, or `None` where no map covers `at`.
    ///
    /// Called for every access: a map that the embedder takes away is gone for the next one.
    fn resolve(&self, at: Iova, bytes: u64) -> Option<Backing>;

    /// Reports a store where no map covers `at`, within a page. A card does not know that no memory is there: the
    /// store leaves it, and the guard of the memory may want to see it. Loads from such places read ones.
    fn store_nowhere(&self, _at: Iova, _data: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_beyond_the_run_is_none() {
        let region = Arc::new(MmapRegion::new(0x2000).unwrap());
        let backing = Backing::new(region, 0x1000, 0x1000).unwrap();
        assert_eq!(backing.part(0x800, 0x800).map(|part| part.len()), Some(0x800));
        assert!(backing.part(0x800, 0x801).is_none());
        assert!(backing.part(usize::MAX, 2).is_none());
    }
}
