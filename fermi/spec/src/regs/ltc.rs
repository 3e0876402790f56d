//! The L2 cache: registers of all slices, those that come once for each slice of each partition (LTC), and the table
//! of clear values.
//!
//! Source: nouveau `nvkm/subdev/ltc/gf100.c`, envytools `rnndb/memory/gf100_pmfb.xml`.

use super::units::{UnitRange, unit, units};

/// Where the LTCs are.
pub const LTC: UnitRange = units("LTC", 0x14_0000, 0x2000, 31, &[SLICE]);
/// Where the slices of an LTC are, within it.
pub const SLICE: UnitRange = units("SLICE", 0x1000, 0x400, 4, &[]);
/// Where all slices of all LTCs are reached at once.
pub const LTCS: UnitRange = unit("LTCS", 0x17_e000, 0x1000);

registers! {
    /// Words of the L2 cache that nothing else depends on.
    pub enum LtcWord {
        /// Which interrupts of the slices are on (bit 20 is cleared by nouveau).
        LtcIntrControl = 0x17e820, ReadWrite;
        /// Bit 1: large pages have 128 KiB.
        LtcConfig = 0x17e8c0, ReadWrite;
        /// Bit 2 clears compression tags.
        LtcTagClear = 0x17e8c8, WriteOnly;
        /// First tag to clear.
        LtcTagFirst = 0x17e8cc, ReadWrite;
        /// Last tag to clear.
        LtcTagLast = 0x17e8d0, ReadWrite;
        /// Where in VRAM compression tags are kept.
        LtcTagBase = 0x17e8d4, ReadWrite;
        /// Number of LTCs.
        LtcCount = 0x17e8d8, ReadWrite;
    }
}

registers! {
    /// Registers of the L2 cache that reach all slices at once.
    pub enum LtcReg: LtcWord {
        /// \[31:28\] slices of an LTC.
        LtcSlices = 0x17e8dc, ReadOnly;
        /// Clear values: entry that the next five registers are of.
        ZbcIndex = 0x17ea44, ReadWrite;
        /// Colour of the clear-value entry, a component each.
        ZbcColour[4, 4] = 0x17ea48, ReadWrite;
        /// Depth of the clear-value entry.
        ZbcDepth = 0x17ea58, ReadWrite;
    }
}

registers! {
    /// A register of a slice, with its offset in the slice.
    pub enum SliceReg {
        /// Pending interrupts; written back to acknowledge.
        SliceIntr = 0x020, WriteOneClears;
        /// Compression tags are being cleared.
        TagClearBusy = 0x0c8, ReadOnly;
    }
}

decoded_in_a_page!(SliceReg);

impl SliceReg {
    /// The register at a BAR0 offset, in any LTC and slice.
    pub fn at(offset: u32) -> Option<Self> {
        let inside = offset.checked_sub(LTC.first).filter(|_| offset < LTC.end())? % LTC.bytes;
        let in_slices = inside.checked_sub(SLICE.first).filter(|_| inside < SLICE.end())?;
        Self::decode(in_slices % SLICE.bytes)
    }
}

/// Entries of the table of clear values.
pub const ZBC_ENTRIES: usize = 16;
/// ZBC_INDEX (17ea44): the entry.
pub const ZBC_INDEX_MASK: u32 = 0xf;
/// LTC_CONFIG2 (17e8dc): slices of an LTC, from this bit up.
pub const SLICES_SHIFT: u32 = 28;
/// Slices of an LTC. unverified: 2 of 64 KiB make the 768 KiB of the data sheet.
pub const SLICES_OF_AN_LTC: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_is_found_in_every_slice_and_nowhere_else() {
        let found = (0..crate::board::BAR0_BYTES as u32)
            .step_by(4)
            .filter(|offset| SliceReg::at(*offset).is_some());
        assert_eq!(
            found.count(),
            (LTC.count * SLICE.count) as usize * SliceReg::COUNT
        );
        assert_eq!(SliceReg::at(0x14_34c8), Some(SliceReg::TagClearBusy));
        assert_eq!(SliceReg::at(0x14_00c8), None);
    }
}
