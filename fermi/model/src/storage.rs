//! BAR0 words that drivers write and read back and that do nothing else here.
//!
//! The ranges are the units that nouveau initialises by such words (measured: 865 of the 994 registers it touches
//! at probe lie in PGRAPH's alone). A word outside reads as zero, and the caller counts the access.

use fermi_spec::board::BAR0_BYTES;
use fermi_spec::regs::pgraph::{GPCS_BASE, GPCS_BYTES, GRAPH_BYTES, PGRAPH};
use fermi_spec::regs::units::{PPDEC, PPPP, PVLD};
use fermi_spec::regs::{
    Bar0Reg, PunitsWord, ltc, pbdma, pbus, pclock, pcopy, pffb, pfifo, pmc, pmu, pnvio, pring, ptimer,
    punits, vga,
};
use std::{collections::BTreeMap, ops::Range};

const PAGE_BYTES: u32 = 0x1000;
const PAGES: usize = (BAR0_BYTES / PAGE_BYTES as u64) as usize;

/// Where words without a name are kept.
const PLAIN: &[Range<u32>] = &[
    pmc::PMC.range(),
    pbus::PBUS.range(),
    pfifo::PFIFO.range(),
    ptimer::PTIMER.range(),
    pnvio::PNVIO.range(),
    pnvio::PTHERM.range(),
    punits::PFUSE.range(),
    punits::PUNITS.range(),
    pbdma::PBDMA.range(),
    PVLD.range(),
    PPDEC.range(),
    PPPP.range(),
    pffb::PFFB.range(),
    punits::PSTRAPS.range(),
    pcopy::PCOPY.range(),
    pmu::PMU.range(),
    pffb::PBFBS.range(),
    pffb::PBFB.range(),
    pring::PRING.range(),
    pclock::PCLOCK.range(),
    ltc::LTC.range(),
    ltc::LTCS.range(),
    PGRAPH.first..PGRAPH.first + GRAPH_BYTES,
    GPCS_BASE..GPCS_BASE + GPCS_BYTES,
    vga::PRMCIO.range(),
];

/// A bit for each page of BAR0: it is one of [`PLAIN`]'s, all of which are whole pages.
static IS_PLAIN: [u64; PAGES / 64] = {
    let (mut bits, mut n) = ([0; PAGES / 64], 0);
    while n < PLAIN.len() {
        let (mut page, end) = (PLAIN[n].start / PAGE_BYTES, PLAIN[n].end / PAGE_BYTES);
        assert!(PLAIN[n].start.is_multiple_of(PAGE_BYTES) && PLAIN[n].end.is_multiple_of(PAGE_BYTES));
        while page < end {
            bits[page as usize / 64] |= 1 << (page % 64);
            page += 1;
        }
        n += 1;
    }
    bits
};

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
            storage.store(reg, value);
        }
        storage
    }

    /// The word at `offset`, a multiple of 4; `None` outside of the ranges.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        is_plain(offset).then(|| self.word(offset))
    }

    fn word(&self, offset: u32) -> u32 {
        self.pages
            .get(&(offset / PAGE_BYTES))
            .map_or(0, |page| page[(offset % PAGE_BYTES / 4) as usize])
    }

    /// What a named register reads that means nothing besides its access: what was written, or zero where nobody can
    /// write and nothing is ever pending.
    pub(crate) fn load(&self, reg: impl Into<Bar0Reg>) -> u32 {
        let reg = reg.into();
        if reg.access().keeps_writes() {
            self.word(reg.offset())
        } else {
            0
        }
    }

    /// A write to such a register.
    pub(crate) fn store(&mut self, reg: impl Into<Bar0Reg>, value: u32) {
        let reg = reg.into();
        if reg.access().keeps_writes() {
            self.keep(reg.offset(), value);
        }
    }

    /// Forgets whole pages: a reset of their unit.
    pub(crate) fn clear(&mut self, range: Range<u32>) {
        for page in range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) {
            self.pages.remove(&page);
        }
    }

    /// Keeps `value` at `offset`, a multiple of 4; `false` outside of the ranges.
    pub(crate) fn write(&mut self, offset: u32, value: u32) -> bool {
        let may = is_plain(offset);
        if may {
            self.keep(offset, value);
        }
        may
    }

    fn keep(&mut self, offset: u32, value: u32) {
        let page = self
            .pages
            .entry(offset / PAGE_BYTES)
            .or_insert_with(|| Box::new([0; (PAGE_BYTES / 4) as usize]));
        page[(offset % PAGE_BYTES / 4) as usize] = value;
    }
}

fn is_plain(offset: u32) -> bool {
    let page = offset / PAGE_BYTES;
    IS_PLAIN
        .get(page as usize / 64)
        .is_some_and(|bits| bits & 1 << (page % 64) != 0)
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
    fn page_is_plain_where_a_range_has_it() {
        for offset in (0..BAR0_BYTES as u32).step_by(PAGE_BYTES as usize) {
            let is_listed = PLAIN.iter().any(|range| range.contains(&offset));
            assert_eq!(is_plain(offset + PAGE_BYTES - 4), is_listed, "{offset:#x}");
        }
        assert!(!is_plain(u32::MAX));
    }

    #[test]
    fn word_outside_the_ranges_is_not_kept() {
        let mut storage = Storage::default();
        assert!(!storage.write(0x1ff_0000, 7));
        assert_eq!(storage.read(0x1ff_0000), None);
    }
}
