//! BAR0 words that drivers write and read back and that do nothing else here.
//!
//! The ranges are the units that nouveau initialises by such words (measured: 865 of the 994 registers it touches
//! at probe lie in PGRAPH's alone). A word outside reads as zero, and the caller counts the access.

use fermi_spec::regs::PunitsWord;
use fermi_spec::regs::punits;
use std::collections::BTreeMap;

const PAGE_BYTES: u32 = 0x1000;

/// Half-open ranges of BAR0 offsets, whole pages.
const PLAIN: &[(u32, u32)] = &[
    (0x00_0000, 0x00_4000), // PMC, PBUS, PFIFO: what has no name in the register table
    (0x00_9000, 0x00_a000), // PTIMER
    (0x00_e000, 0x00_f000), // GPIO, I2C
    (0x02_0000, 0x02_3000), // thermal, fuses, units present
    (0x04_0000, 0x04_6000), // PBDMAs
    (0x08_4000, 0x08_7000), // video falcons
    (0x10_0000, 0x10_2000), // memory controller, straps
    (0x10_4000, 0x10_6000), // copy-engine falcons
    (0x10_a000, 0x10_b000), // PMU
    (0x10_f000, 0x11_8000), // memory partitions
    (0x12_0000, 0x13_0000), // register ring
    (0x13_0000, 0x14_0000), // clocks
    (0x14_0000, 0x17_e000), // L2 slices
    (0x17_e000, 0x17_f000), // L2, all slices
    (0x40_0000, 0x42_0000), // PGRAPH
    (0x50_0000, 0x52_0000), // GPCs
    (0x60_1000, 0x60_2000), // VGA
];

/// The words, by page; a page exists once it was written.
#[derive(Default)]
pub(crate) struct Storage {
    pages: BTreeMap<u32, Box<[u32; (PAGE_BYTES / 4) as usize]>>,
}

impl Storage {
    /// The words that the VBIOS leaves behind.
    pub(crate) fn after_vbios() -> Self {
        let mut storage = Self::default();
        for (reg, value) in [
            (PunitsWord::Post0, punits::POST0_AFTER_VBIOS),
            (PunitsWord::PciVersion, punits::PCI_VERSION_2_FULL_SPEED),
        ] {
            storage.write(reg.offset(), value);
        }
        storage
    }

    /// The word at `offset`, a multiple of 4; `None` outside of the ranges.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        is_plain(offset).then(|| {
            self.pages
                .get(&(offset / PAGE_BYTES))
                .map_or(0, |page| page[(offset % PAGE_BYTES / 4) as usize])
        })
    }

    /// Forgets whole pages: a reset of their unit.
    pub(crate) fn clear(&mut self, first: u32, bytes: u32) {
        for page in first / PAGE_BYTES..(first + bytes).div_ceil(PAGE_BYTES) {
            self.pages.remove(&page);
        }
    }

    /// Keeps `value` at `offset`, a multiple of 4; `false` outside of the ranges.
    pub(crate) fn write(&mut self, offset: u32, value: u32) -> bool {
        if !is_plain(offset) {
            return false;
        }
        let page = self
            .pages
            .entry(offset / PAGE_BYTES)
            .or_insert_with(|| Box::new([0; (PAGE_BYTES / 4) as usize]));
        page[(offset % PAGE_BYTES / 4) as usize] = value;
        true
    }
}

fn is_plain(offset: u32) -> bool {
    PLAIN.iter().any(|&(first, end)| (first..end).contains(&offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_word_reads_back_and_starts_at_zero() {
        let mut storage = Storage::default();
        assert_eq!(storage.read(0x40_4000), Some(0));
        assert!(storage.write(0x40_4000, 7));
        assert_eq!(storage.read(0x40_4000), Some(7));
    }

    #[test]
    fn word_outside_the_ranges_is_not_kept() {
        let mut storage = Storage::default();
        assert!(!storage.write(0x1ff_0000, 7));
        assert_eq!(storage.read(0x1ff_0000), None);
    }
}
