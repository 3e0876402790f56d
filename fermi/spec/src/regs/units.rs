//! The units by their places in BAR0, and a description of any offset for traces.
//!
//! Sources: envytools `docs/hw/mmio.rst` (the map of GF100), `rnndb/root.xml`, `rnndb/graph/gf100_pgraph/*.xml`; the
//! sub-units of PGRAPH also from the traps that nouveau reads (`nvkm/engine/gr/gf100.c`).

use super::{
    Bar0Reg, PCI_MIRROR_BASE, PRAMIN_BASE, PRAMIN_BYTES, PROM_BASE, PROM_END,
    falcon::{FALCON_BYTES, FalconReg, falcon_at},
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
    /// What it consists of; gaps are its own.
    pub parts: &'static [UnitRange],
}

const fn unit(name: &'static str, first: u32, bytes: u32) -> UnitRange {
    UnitRange {
        name,
        first,
        bytes,
        count: 1,
        parts: &[],
    }
}

const fn units(
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

/// Parts of a TPC: texture unit, L1, the SM ("MP").
const TPC: &[UnitRange] = &[
    unit("POLY", 0x000, 0x100),
    unit("TEX", 0x200, 0x100),
    unit("L1", 0x400, 0x100),
    unit("MP", 0x600, 0x200),
];

/// Parts of a GPC.
const GPC: &[UnitRange] = &[
    unit("PROP", 0x0400, 0x100),
    unit("ESETUP", 0x0800, 0x100),
    unit("ZCULL", 0x0900, 0x100),
    unit("CRSTR", 0x0b00, 0x100),
    unit("GPM", 0x0c00, 0x100),
    unit("GPCCS", 0x2000, 0x1000),
    units("TPC", 0x4000, 0x800, 4, TPC),
];

/// Parts of PGRAPH.
const PGRAPH: &[UnitRange] = &[
    unit("DISPATCH", 0x0_4000, 0x400),
    unit("MACRO", 0x0_4400, 0x200),
    unit("M2MF", 0x0_4600, 0x200),
    unit("SHADER", 0x0_5800, 0x200),
    unit("UNK6000", 0x0_6000, 0x1000),
    unit("SKED", 0x0_7000, 0x1000),
    unit("CCACHE", 0x0_8000, 0x800),
    unit("ROPS", 0x0_8800, 0x800),
    unit("FECS", 0x0_9000, 0x1000),
    units("ROP", 0x1_0000, 0x400, 32, &[]),
    unit("GPCS", 0x1_8000, 0x1000),
    unit("TPCS", 0x1_9000, 0x1000),
    unit("GPCCS", 0x1_a000, 0x1000),
    units("GPC", 0x10_0000, 0x8000, 32, GPC),
];

/// Slices of an L2 partition.
const LTC: &[UnitRange] = &[units("SLICE", 0x1000, 0x400, 4, &[])];

/// All units, by offset and disjoint.
pub const UNITS: &[UnitRange] = &[
    unit("PMC", 0x00_0000, 0x1000),
    unit("PBUS", 0x00_1000, 0x1000),
    unit("PFIFO", 0x00_2000, 0x3000),
    unit("PFIFO_BYPASS", 0x00_5000, 0x1000),
    unit("PTIMER", 0x00_9000, 0x1000),
    unit("PCOUNTER", 0x00_a000, 0x1000),
    unit("PNVIO", 0x00_e000, 0x1000),
    unit("PTHERM", 0x02_0000, 0x1000),
    unit("PFUSE", 0x02_1000, 0x1000),
    unit("PUNITS", 0x02_2000, 0x1000),
    units("PBDMA", 0x04_0000, 0x2000, 3, &[]),
    unit("PEEPHOLE", 0x06_0000, 0x1000),
    unit("PFLUSH", 0x07_0000, 0x1000),
    unit("PVLD", 0x08_4000, 0x1000),
    unit("PPDEC", 0x08_5000, 0x1000),
    unit("PPPP", 0x08_6000, 0x1000),
    unit("PPCI", PCI_MIRROR_BASE, 0x1000),
    unit("PPCI_HDA", 0x08_a000, 0x1000),
    unit("PFFB", 0x10_0000, 0x1000),
    unit("PSTRAPS", 0x10_1000, 0x1000),
    units("PCOPY", 0x10_4000, 0x1000, 2, &[]),
    unit("PMU", 0x10_a000, 0x1000),
    unit("PBFBS", 0x10_f000, 0x1000),
    units("PBFB", 0x11_0000, 0x1000, 8, &[]),
    unit("PRING", 0x12_0000, 0x1_0000),
    unit("PCLOCK", 0x13_0000, 0x1_0000),
    units("LTC", 0x14_0000, 0x2000, 31, LTC),
    unit("LTCS", 0x17_e000, 0x2000),
    unit("PCOUNTER", 0x18_0000, 0x4_0000),
    unit("PMEDIA", 0x20_0000, 0x1000),
    unit("PROM", PROM_BASE, PROM_END - PROM_BASE),
    units("PGRAPH", 0x40_0000, 0x20_0000, 1, PGRAPH),
    unit("PRMCIO", 0x60_1000, 0x1000),
    unit("PDISPLAY", 0x61_0000, 0x1_0000),
    unit("PRAMIN", PRAMIN_BASE, PRAMIN_BYTES),
];

impl UnitRange {
    /// One past the last byte.
    pub const fn end(&self) -> u32 {
        self.first + self.bytes * self.count
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

/// The unit that `offset` lies in.
pub fn unit_at(offset: u32) -> Option<&'static UnitRange> {
    UnitRange::find(UNITS, offset).map(|(unit, _, _)| unit)
}

/// See [`describe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Description(u32);

/// What is at a BAR0 offset, for traces and messages: a register's name, a falcon and its register, or the unit and
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
        if let Some((falcon, at)) = falcon_at(offset)
            && let Some(reg) = FalconReg::decode(at % FALCON_BYTES)
        {
            return write!(f, "{falcon}.{reg:?}");
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
