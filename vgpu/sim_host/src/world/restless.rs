//! Memory that a VM's client changes while the core reads it: nothing that is read twice is the same for sure.

use fermi_spec::addr::SMALL_PAGE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::{Place, VmId};
use vm_memory::{MmapRegion, VolatileMemory};

use super::{VmMemory, Watch, World};

/// One read of so many finds something changed.
const CHANGE_EVERY: u32 = 4;
const WORD: usize = 8;

/// A client that stores to its memory just before the core reads there.
pub(super) struct Restless {
    rng: ChaCha8Rng,
}

impl Restless {
    /// A store to one word of what is about to be read: to what was there, a neighbour's value, or noise.
    fn disturb(&mut self, region: &MmapRegion, at: usize, bytes: usize) {
        if self.rng.random_range(0..CHANGE_EVERY) != 0 {
            return;
        }
        let words = (bytes / WORD).max(1);
        let mut place = || at + self.rng.random_range(0..words) * WORD;
        let (to, from) = (place(), place());
        let mut word = [0; WORD];
        let load = |at: usize, word: &mut [u8]| {
            let slice = region.get_slice(at, word.len()).ok();
            slice.map(|slice| slice.copy_to(word)).is_some()
        };
        let value = match self.rng.random_range(0..8u32) {
            0 => Some(0),
            1 => Some(self.rng.random()),
            // One bit, of the lowest ones more often: an entry is valid, or another page, or no page.
            2..=4 if load(to, &mut word) => {
                let bits = [4, 64][self.rng.random_range(0..2usize)];
                Some(u64::from_le_bytes(word) ^ 1 << self.rng.random_range(0..bits))
            }
            _ if load(from, &mut word) => Some(u64::from_le_bytes(word)),
            _ => None,
        };
        if let (Some(value), Ok(slice)) = (value, region.get_slice(to, WORD)) {
            slice.copy_from(&value.to_le_bytes());
        }
    }
}

impl VmMemory {
    /// The client stores to what is about to be read, if it can and likes to.
    pub(super) fn disturb(&mut self, at: Place, bytes: usize) {
        let Some(restless) = &mut self.restless else {
            return;
        };
        let windows = self.windows.as_ref();
        let found = match at {
            Place::Ram { gpa, .. } => Some((&self.ram, gpa.0)),
            Place::Image { at, .. } => windows
                .filter(|windows| windows.holds(at.0 / SMALL_PAGE * SMALL_PAGE, SMALL_PAGE))
                .map(|_| (&self.image, at.0)),
            Place::Bar1 { offset, .. } => windows.map(|windows| (windows.bar1(), offset)),
            Place::Own { .. } => None,
        };
        if let Some((region, at)) = found {
            restless.disturb(region, at as usize, bytes);
        }
    }
}

impl<W: Watch> World<W> {
    /// The VM's client changes what it has mapped just before the core reads it: RAM, pages of its window file, USERD.
    pub fn let_restless(&mut self, vm: VmId, seed: u64) {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        self.with_vm(vm, |memory| memory.restless = Some(Restless { rng }));
    }
}
