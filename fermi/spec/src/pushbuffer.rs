//! Pushbuffer method headers, decoded and built (`cl906f.h` DMA_*; envytools `docs/hw/fifo/dma-pusher.rst`).

/// Which method register a header's data words go to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// Subchannel, 0 to 7.
    pub subchannel: u8,
    /// Byte address of the method, a multiple of 4 below 0x4000.
    pub method: u16,
}

/// Operation of a header on the mask of linked boards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubdeviceOp {
    /// This mask counts from now on.
    Set(u16),
    /// This mask is kept for [`Self::Use`].
    Store(u16),
    /// The kept mask counts from now on.
    Use,
}

/// A decoded header word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// Nothing follows: padding.
    Nop,
    /// `count` words to `method`, `method + 4`, …
    Incrementing(Target, u16),
    /// `count` words, all to `method`.
    NonIncrementing(Target, u16),
    /// The first word to `method`, the others to `method + 4`.
    IncrementOnce(Target, u16),
    /// The 13-bit operand itself; no words follow.
    Immediate(Target, u16),
    /// Which linked boards execute what follows (old form).
    Subdevice(SubdeviceOp),
    /// The rest of the segment is not executed.
    EndSegment,
    /// Not a header: PBDMA error.
    Invalid(u32),
}

impl Header {
    /// Decodes a word; total.
    pub fn from_bits(word: u32) -> Self {
        let count = (word >> 16 & 0x1fff) as u16;
        let target = Target {
            subchannel: (word >> 13 & 7) as u8,
            method: (word as u16 & 0xfff) << 2,
        };
        match word >> 29 {
            0 | 2 => Self::old_form(word),
            1 if count == 0 => Self::Nop,
            1 => Self::Incrementing(target, count),
            3 if count == 0 => Self::Nop,
            3 => Self::NonIncrementing(target, count),
            4 => Self::Immediate(target, count),
            5 if count == 0 => Self::Nop,
            5 => Self::IncrementOnce(target, count),
            7 => Self::EndSegment,
            _ => Self::Invalid(word),
        }
    }

    fn old_form(word: u32) -> Self {
        let count = (word >> 18 & 0x7ff) as u16;
        let target = Target {
            subchannel: (word >> 13 & 7) as u8,
            method: word as u16 & 0x1ffc,
        };
        let mask = word as u16 >> 4;
        // A mask operation is the whole upper half: with a count or in the non-incrementing group it is none.
        match (word >> 16, word >> 16 & 3, count) {
            (1, _, _) => Self::Subdevice(SubdeviceOp::Set(mask)),
            (2, _, _) => Self::Subdevice(SubdeviceOp::Store(mask)),
            (3, _, _) => Self::Subdevice(SubdeviceOp::Use),
            (_, 0, 0) => Self::Nop,
            (_, 0, _) if word >> 29 == 0 => Self::Incrementing(target, count),
            (_, 0, _) => Self::NonIncrementing(target, count),
            _ => Self::Invalid(word),
        }
    }
}

/// Header of `count` words to consecutive methods from `method`. Panics beyond the fields' ranges.
#[track_caller]
pub const fn incrementing(subchannel: u8, method: u16, count: u16) -> u32 {
    assert!(subchannel < 8 && method & 3 == 0 && method < 0x4000 && count < 0x2000);
    1 << 29 | (count as u32) << 16 | (subchannel as u32) << 13 | (method >> 2) as u32
}

/// Header of `count` words to the one `method`.
#[track_caller]
pub const fn non_incrementing(subchannel: u8, method: u16, count: u16) -> u32 {
    incrementing(subchannel, method, count) & 0x1fff_ffff | 3 << 29
}

/// Header that carries its 13-bit operand.
#[track_caller]
pub const fn immediate(subchannel: u8, method: u16, operand: u16) -> u32 {
    incrementing(subchannel, method, operand) & 0x1fff_ffff | 4 << 29
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zero_word_is_padding() {
        assert_eq!(Header::from_bits(0), Header::Nop);
    }

    #[test]
    fn mask_operations_of_the_old_form_decode() {
        let decoded =
            [0x0001_0120, 0x0002_fff0, 0x0003_0000, 0x0005_0010, 0x4001_0010].map(Header::from_bits);
        assert_eq!(
            decoded,
            [
                Header::Subdevice(SubdeviceOp::Set(0x12)),
                Header::Subdevice(SubdeviceOp::Store(0xfff)),
                Header::Subdevice(SubdeviceOp::Use),
                Header::Invalid(0x0005_0010),
                Header::Invalid(0x4001_0010),
            ]
        );
    }

    proptest! {
        #[test]
        fn built_headers_decode(subchannel in 0u8..8, method in 0u16..0x1000, count in 1u16..0x2000) {
            let target = Target { subchannel, method: method << 2 };
            prop_assert_eq!(
                Header::from_bits(incrementing(subchannel, method << 2, count)), Header::Incrementing(target, count));
            prop_assert_eq!(
                Header::from_bits(non_incrementing(subchannel, method << 2, count)),
                Header::NonIncrementing(target, count));
            prop_assert_eq!(
                Header::from_bits(immediate(subchannel, method << 2, count)), Header::Immediate(target, count));
        }
    }
}
