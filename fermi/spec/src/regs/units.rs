//! The units by their places in BAR0, and a description of any offset for traces.
//!
//! Sources: envytools `docs/hw/mmio.rst` (the map of GF100), `rnndb/root.xml`, `rnndb/graph/gf100_pgraph/*.xml`; the
//! sub-units of PGRAPH also from the traps that nouveau reads (`nvkm/engine/gr/gf100.c`).

use super::decoder::PAGE_BYTES;
use super::falcon::{FALCON_BYTES, Falcon};
use super::windows::{PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END};
use super::{
    Bar0Reg, PAGES, ltc, pbdma, pbus, pclock, pcopy, peephole, pffb, pfifo, pflush, pgraph, pmc, pmu, pnvio,
    ppci, pring, ptimer, punits, vga,
};
use core::fmt;

/// A unit's registers, or those of several equal ones that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitRange {
    /// Name in envytools.
    pub name: &'static str,
    /// First byte, within what it is a part of.
    pub first: u32,
    /// Bytes of one such unit.
    pub bytes: u32,
    /// How many there are.
    pub count: u32,
    /// Parts of the unit; bytes between them belong to the unit itself.
    pub parts: &'static [UnitRange],
    /// Bit of PMC_ENABLE that switches the unit on: one for all of its kind, or one for each. None if it is always on.
    pub enable: &'static [u32],
}

pub(super) const fn unit(name: &'static str, first: u32, bytes: u32) -> UnitRange {
    UnitRange {
        name,
        first,
        bytes,
        count: 1,
        parts: &[],
        enable: &[],
    }
}

pub(super) const fn units(
    name: &'static str,
    first: u32,
    bytes: u32,
    count: u32,
    parts: &'static [UnitRange],
) -> UnitRange {
    UnitRange {
        name,
        first,
        bytes,
        count,
        parts,
        enable: &[],
    }
}

/// Where the video engines' falcons are.
pub const PVLD: UnitRange = unit("PVLD", 0x08_4000, FALCON_BYTES);
/// Where PPDEC is, the unit that decodes pictures.
pub const PPDEC: UnitRange = unit("PPDEC", 0x08_5000, FALCON_BYTES);
/// Where PPPP is, the unit that processes decoded pictures.
pub const PPPP: UnitRange = unit("PPPP", 0x08_6000, FALCON_BYTES);

/// All units, by offset and disjoint.
pub const UNITS: &[UnitRange] = &[
    pmc::PMC,
    pbus::PBUS,
    pfifo::PFIFO,
    pfifo::PFIFO_BYPASS,
    ptimer::PTIMER,
    unit("PCOUNTER", 0x00_a000, 0x1000),
    pnvio::PNVIO,
    pnvio::PTHERM,
    punits::PFUSE,
    punits::PUNITS,
    pbdma::PBDMA,
    peephole::PEEPHOLE,
    pflush::PFLUSH,
    PVLD,
    PPDEC,
    PPPP,
    ppci::PPCI,
    unit("PPCI_HDA", 0x08_a000, 0x1000),
    pffb::PFFB,
    punits::PSTRAPS,
    pcopy::PCOPY,
    pmu::PMU,
    pffb::PBFBS,
    pffb::PBFB,
    pring::PRING,
    pclock::PCLOCK,
    ltc::LTC,
    ltc::LTCS,
    unit("PCOUNTER", 0x18_0000, 0x4_0000),
    unit("PMEDIA", 0x20_0000, 0x1000),
    unit("PROM", PROM_BASE, PROM_END - PROM_BASE),
    pgraph::PGRAPH,
    vga::PRMCIO,
    unit("PDISPLAY", 0x61_0000, 0x1_0000),
    unit("PRAMIN", PRAMIN_BASE, PRAMIN_BYTES),
];

impl UnitRange {
    /// The same unit, which answers only while PMC_ENABLE has its bit.
    pub(super) const fn enabled_by(self, enable: &'static [u32]) -> Self {
        Self { enable, ..self }
    }

    /// One past the last byte.
    pub const fn end(&self) -> u32 {
        self.first + self.bytes * self.count
    }

    /// The bytes of one of its kind.
    pub const fn nth(&self, n: u32) -> core::ops::Range<u32> {
        let first = self.first + n * self.bytes;
        first..first + self.bytes
    }

    /// Its bytes, and those of its equals behind it.
    pub const fn range(&self) -> core::ops::Range<u32> {
        self.first..self.end()
    }

    /// The unit of `ranges` that `offset` lies in, which one of its kind, and how far into it.
    fn find(ranges: &'static [Self], offset: u32) -> Option<(&'static Self, u32, u32)> {
        let unit = ranges
            .iter()
            .find(|unit| (unit.first..unit.end()).contains(&offset))?;
        let inside = offset - unit.first;
        Some((unit, inside / unit.bytes, inside % unit.bytes))
    }
}

/// Unit of each page of BAR0: one more than its index in [`UNITS`], zero for none.
static UNIT_OF_PAGE: [u8; PAGES] = {
    let (mut units, mut n) = ([0; PAGES], 0);
    while n < UNITS.len() {
        let (first, end) = (UNITS[n].first, UNITS[n].end());
        assert!(
            first.is_multiple_of(PAGE_BYTES) && end.is_multiple_of(PAGE_BYTES),
            "a unit of parts of pages"
        );
        let mut page = first / PAGE_BYTES;
        while page < end / PAGE_BYTES {
            units[page as usize] = n as u8 + 1;
            page += 1;
        }
        n += 1;
    }
    units
};

/// The unit that `offset` lies in.
pub fn unit_at(offset: u32) -> Option<&'static UnitRange> {
    let index = UNIT_OF_PAGE.get((offset / PAGE_BYTES) as usize)?;
    UNITS.get(usize::from(index.checked_sub(1)?))
}

/// The bit of PMC_ENABLE without which a word of BAR0 is not answered; zero where none is needed.
pub fn enable_bit(offset: u32) -> u32 {
    match unit_at(offset) {
        None => 0,
        Some(unit) => match unit.enable {
            [] => 0,
            [all] => *all,
            each => each[((offset - unit.first) / unit.bytes) as usize],
        },
    }
}

/// Text for an offset in BAR0, made by [`describe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description(u32);

/// Name of a BAR0 offset, for traces and messages: a register's name, a falcon and its register, or the unit and
/// the distance into it, as in `PGRAPH.GPC0.TPC1.MP+0x44`. What lies in no unit is the offset alone.
pub fn describe(offset: u32) -> Description {
    Description(offset)
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(offset) = *self;
        if let Some(reg) = Bar0Reg::decode(offset) {
            return write!(f, "{reg}");
        }
        if let Some((falcon, reg)) = Falcon::decode(offset) {
            return write!(f, "{falcon}.{reg:?}");
        }
        let Some(unit) = unit_at(offset) else {
            return write!(f, "{offset:#x}");
        };
        let mut inside = (offset - unit.first) % unit.bytes;
        write_name(f, unit, (offset - unit.first) / unit.bytes)?;
        let mut parts = unit.parts;
        while let Some((part, index, within)) = UnitRange::find(parts, inside) {
            f.write_str(".")?;
            write_name(f, part, index)?;
            (parts, inside) = (part.parts, within);
        }
        write!(f, "+{inside:#x}")
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, unit: &UnitRange, index: u32) -> fmt::Result {
    match unit.count {
        1 => f.write_str(unit.name),
        _ => write!(f, "{}{index}", unit.name),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::engine::Engine;
    use std::string::ToString;

    const PCOPY_1: u32 = pcopy::PCOPY.first + pcopy::PCOPY.bytes;

    fn assert_disjoint(ranges: &[UnitRange], bytes: u32) {
        assert!(ranges.is_sorted_by(|one, next| one.end() <= next.first));
        for unit in ranges {
            assert!(unit.count > 0 && unit.end() <= bytes, "{}", unit.name);
            assert_disjoint(unit.parts, unit.bytes);
        }
    }

    #[test]
    fn units_and_their_parts_are_disjoint() {
        assert_disjoint(UNITS, crate::board::BAR0_BYTES as u32);
    }

    #[test]
    fn every_named_register_lies_in_a_unit() {
        for reg in Bar0Reg::all() {
            assert!(unit_at(reg.offset()).is_some(), "{reg}");
        }
    }

    #[test]
    fn page_has_the_unit_that_a_search_finds() {
        for page in (0..crate::board::BAR0_BYTES as u32).step_by(PAGE_BYTES as usize) {
            let found = UnitRange::find(UNITS, page).map(|(unit, _, _)| unit);
            assert_eq!(unit_at(page + PAGE_BYTES - 4), found, "{page:#x}");
        }
    }

    #[test]
    fn unit_has_one_enable_bit_or_one_for_each_of_its_kind() {
        for unit in UNITS {
            assert!(
                unit.enable.len() <= 1 || unit.enable.len() == unit.count as usize,
                "{}",
                unit.name
            );
            assert!(
                unit.enable.iter().all(|bit| bit.is_power_of_two()),
                "{}",
                unit.name
            );
        }
        assert_eq!(enable_bit(PCOPY_1), 1 << Engine::Copy1.enable_bit());
        assert_eq!(enable_bit(0x10_0c80), 0);
    }

    #[test]
    fn offset_is_described_as_precisely_as_is_known() {
        assert_eq!(describe(0x2270).to_string(), "RunlistBase");
        assert_eq!(describe(0x300c).to_string(), "ChannelState(1)");
        assert_eq!(describe(0x10_5188).to_string(), "PCOPY1.CodeTag(0)");
        assert_eq!(describe(0x10_a580).to_string(), "PMU+0x580");
        assert_eq!(describe(0x51_2888).to_string(), "PGRAPH.GPC2.GPCCS+0x888");
        assert_eq!(describe(0x50_cc8c).to_string(), "PGRAPH.GPC1.TPC1.L1+0x8c");
        assert_eq!(describe(0x14_34c8).to_string(), "LTC1.SLICE1+0xc8");
        assert_eq!(describe(0x30_0010).to_string(), "PROM+0x10");
        assert_eq!(describe(0x1ff_0000).to_string(), "0x1ff0000");
    }
}
