//! The L2 cache's registers that come once for each slice of each partition (LTC), and the table of clear values.
//!
//! Source: nouveau `nvkm/subdev/ltc/gf100.c`, envytools `rnndb/memory/gf100_pmfb.xml`.

/// First byte of LTC 0's slice 0.
pub const SLICES_BASE: u32 = 0x14_1000;
/// Bytes from one LTC to the next.
pub const LTC_STRIDE: u32 = 0x2000;
/// Bytes from one slice to the next.
pub const SLICE_STRIDE: u32 = 0x400;
/// Slices that an LTC has room for.
pub const SLICES_MAX: u32 = 4;

/// A register of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SliceReg {
    /// Pending interrupts; written back to acknowledge.
    Intr,
    /// Compression tags are being cleared.
    TagClearBusy,
}

impl SliceReg {
    /// The register at a BAR0 offset, whatever LTC and slice it belongs to.
    pub const fn decode(offset: u32) -> Option<Self> {
        if offset < SLICES_BASE {
            return None;
        }
        let inside = (offset - SLICES_BASE) % LTC_STRIDE;
        if inside >= SLICE_STRIDE * SLICES_MAX {
            return None;
        }
        match inside % SLICE_STRIDE {
            0x020 => Some(Self::Intr),
            0x0c8 => Some(Self::TagClearBusy),
            _ => None,
        }
    }
}

/// Entries of the table of clear values.
pub const ZBC_ENTRIES: usize = 16;
/// ZBC_INDEX (17ea44): the entry.
pub const ZBC_INDEX_MASK: u32 = 0xf;
/// LTC_CONFIG2 (17e8dc): slices of an LTC, from this bit up.
pub const SLICES_SHIFT: u32 = 28;
