//! GPFIFO entries (`cl906f.h` GP_ENTRY).

use crate::addr::GpuVa;

/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 8;
/// Largest log2 of the number of entries that a driver may ask for (nouveau writes 10, pscnv up to 29).
pub const ENTRIES_LOG2_MAX: u32 = 29;

/// One decoded entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpEntry {
    /// Fetch `words` method words at `at`.
    Fetch(Segment),
    /// Length zero: a control entry.
    Control(ControlOp),
}

/// A run of pushbuffer words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// First word; a multiple of 4.
    pub at: GpuVa,
    /// Number of 32-bit words, 1 to 2^21 − 1.
    pub words: u32,
    /// Fetched only if the condition of the channel holds.
    pub conditional: bool,
    /// No context switch inside.
    pub no_context_switch: bool,
    /// Methods run with privilege.
    pub privileged: bool,
    /// A subroutine: GET is not shown.
    pub subroutine: bool,
    /// Wait for this fetch before the next.
    pub sync: bool,
}

/// Operation of a control entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlOp {
    /// Does nothing; the next entry follows.
    Nop,
    /// Raises the GPFIFO interrupt.
    Illegal,
    /// Compare the GPFIFO's checksum.
    GpCrc,
    /// Compare the pushbuffer's checksum.
    PbCrc,
    /// No such operation.
    Invalid(u8),
}

impl GpEntry {
    /// Decodes eight bytes; total.
    pub fn from_bits(raw: u64) -> Self {
        let (low, high) = (raw as u32, (raw >> 32) as u32);
        let words = (high >> 10) & 0x1f_ffff;
        if words == 0 {
            return Self::Control(match high as u8 {
                0 => ControlOp::Nop,
                1 => ControlOp::Illegal,
                2 => ControlOp::GpCrc,
                3 => ControlOp::PbCrc,
                other => ControlOp::Invalid(other),
            });
        }
        Self::Fetch(Segment {
            at: GpuVa(u64::from(low & !3) | u64::from(high & 0xff) << 32),
            words,
            conditional: low & 1 != 0,
            no_context_switch: low & 2 != 0,
            privileged: high & 1 << 8 != 0,
            subroutine: high & 1 << 9 != 0,
            sync: high & 1 << 31 != 0,
        })
    }

    /// A plain entry for `words` words at `at`.
    #[track_caller]
    pub fn fetch(at: GpuVa, words: u32) -> u64 {
        assert!(
            words != 0 && words < 1 << 21 && at.is_aligned(4) && at.0 >> 40 == 0,
            "{words} words at {at}"
        );
        (at.0 & 0xffff_fffc) | (at.0 >> 32 | u64::from(words) << 10) << 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_entry_decodes_to_what_was_encoded() {
        let GpEntry::Fetch(segment) = GpEntry::from_bits(GpEntry::fetch(GpuVa(0x12_3456_7890), 77)) else {
            panic!("control entry");
        };
        assert_eq!(
            (segment.at, segment.words, segment.sync),
            (GpuVa(0x12_3456_7890), 77, false)
        );
    }

    #[test]
    fn zero_length_is_a_control_entry() {
        assert_eq!(
            GpEntry::from_bits(0x1_0000_0000),
            GpEntry::Control(ControlOp::Illegal)
        );
    }
}
