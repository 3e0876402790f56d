//! The units by their places in BAR0, and a description of any offset for traces.
//!
//! Sources: envytools `docs/hw/mmio.rst` (the map of GF100), `rnndb/root.xml`, `rnndb/graph/gf100_pgraph/*.xml`; the
//! sub-units of PGRAPH also from the traps that nouveau reads (`nvkm/engine/gr/gf100.c`).

use super::falcon::{FALCON_BYTES, FalconReg, falcon_at};
use super::windows::{PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END};
use super::{
    Bar0Reg, ltc, pbdma, pbus, pclock, pcopy, peephole, pffb, pfifo, pflush, pgraph, pmc, pmu, pnvio, ppci,
    pring, ptimer, punits, vga,
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
}

pub(super) const fn unit(name: &'static str, first: u32, bytes: u32) -> UnitRange {
    UnitRange {
        name,
        first,
        bytes,
        count: 1,
        parts: &[],
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
    /// One past the last byte.
    pub const fn end(&self) -> u32 {
        self.first + self.bytes * self.count
    }

    /// Its bytes, and those of its equals behind it.
    pub const fn range(&self) -> core::ops::Range<u32> {
        self.first..self.end()
    }

    /// The unit of `ranges` that `offset` lies in, which one of its kind, and how far into it.
    pub(super) fn find(ranges: &'static [Self], offset: u32) -> Option<(&'static Self, u32, u32)> {
        let unit = ranges
            .iter()
            .find(|unit| (unit.first..unit.end()).contains(&offset))?;
        let inside = offset - unit.first;
        Some((unit, inside / unit.bytes, inside % unit.bytes))
    }
}

/// The unit that `offset` lies in.
pub fn unit_at(offset: u32) -> Option<&'static UnitRange> {
    UnitRange::find(UNITS, offset).map(|(unit, _, _)| unit)
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
        if let Some((falcon, index, at)) = falcon_at(offset)
            && let Some(reg) = FalconReg::decode(at)
        {
            write_name(f, falcon, index)?;
            return write!(f, ".{reg:?}");
        }
        let Some((unit, index, mut inside)) = UnitRange::find(UNITS, offset) else {
            return write!(f, "{offset:#x}");
        };
        write_name(f, unit, index)?;
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
    use std::string::ToString;

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
