//! Memory as the evaluator sees it: a few ranges of bytes, each at one or more virtual addresses.

/// A range of bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Virtual addresses at which it is seen.
    pub addresses: Vec<u64>,
    /// Bytes of the range.
    pub bytes: Vec<u8>,
}

/// All ranges; an address outside of them is not mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// In any order; none overlaps another.
    pub regions: Vec<Region>,
}

impl Memory {
    /// The bytes at a virtual address, if all are in one range.
    pub fn at(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        self.regions.iter_mut().find_map(|region| {
            let start = region.addresses.iter().find_map(|base| {
                let inside = usize::try_from(address.checked_sub(*base)?).ok()?;
                (inside < region.bytes.len()).then_some(inside)
            })?;
            region.bytes.get_mut(start..start.checked_add(bytes)?)
        })
    }
}
