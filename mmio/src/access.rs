//! One access to BAR0, as the bus carries it.

use fermi_spec::board::BAR0_BYTES;

/// Width of one access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// One byte, 8 bits.
    Byte,
    /// Two bytes, 16 bits.
    Word,
    /// Four bytes: the width of registers.
    Dword,
}

impl Width {
    /// Number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
        }
    }

    /// The width with that many bytes.
    pub const fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            1 => Some(Self::Byte),
            2 => Some(Self::Word),
            4 => Some(Self::Dword),
            _ => None,
        }
    }

    /// All ones in this width: the answer to a read that has none.
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes())
    }
}

/// Direction of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A read; its answer has the access's width.
    Read,
    /// Writes this value; bits beyond the width are ignored.
    Write(u32),
}

/// One access: naturally aligned, inside of BAR0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Byte offset in BAR0, a multiple of the width.
    pub offset: u32,
    /// Number of bytes.
    pub width: Width,
    /// Read or write.
    pub kind: Kind,
}

impl Access {
    /// A read, `None` unless aligned and inside of BAR0.
    pub fn read(offset: u64, width: Width) -> Option<Self> {
        Self::new(offset, width, Kind::Read)
    }

    /// A write, `None` unless aligned and inside of BAR0.
    pub fn write(offset: u64, width: Width, value: u32) -> Option<Self> {
        Self::new(offset, width, Kind::Write(value & width.ones()))
    }

    fn new(offset: u64, width: Width, kind: Kind) -> Option<Self> {
        let inside = offset < BAR0_BYTES && offset.is_multiple_of(u64::from(width.bytes()));
        inside.then_some(Self {
            offset: offset as u32,
            width,
            kind,
        })
    }

    /// Cuts an access of any offset and length into the aligned pieces that the bus would carry, in order: the
    /// widest that fit. Bytes outside of BAR0 are left out.
    pub fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (u32, Width)> {
        let end = offset.saturating_add(bytes).min(BAR0_BYTES);
        let mut at = offset;
        std::iter::from_fn(move || {
            let width = [Width::Dword, Width::Word, Width::Byte]
                .into_iter()
                .find(|width| {
                    let bytes = u64::from(width.bytes());
                    at.is_multiple_of(bytes) && at.checked_add(bytes).is_some_and(|next| next <= end)
                })?;
            let piece = (at as u32, width);
            at += u64::from(width.bytes());
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn eight_byte_access_is_two_registers() {
        let pieces: Vec<_> = Access::pieces(0x100cb8, 8).collect();
        assert_eq!(pieces, [(0x100cb8, Width::Dword), (0x100cbc, Width::Dword)]);
    }

    #[test]
    fn access_beyond_the_end_has_no_pieces() {
        assert_eq!(Access::pieces(BAR0_BYTES, 4).count(), 0);
        assert_eq!(Access::pieces(u64::MAX, u64::MAX).count(), 0);
        assert_eq!(Access::read(BAR0_BYTES, Width::Byte), None);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_access_once(offset in BAR0_BYTES - 64..BAR0_BYTES + 8, bytes in 0u64..64) {
            let mut at = offset;
            for (piece, width) in Access::pieces(offset, bytes) {
                prop_assert_eq!(u64::from(piece), at);
                prop_assert!(Access::read(at, width).is_some());
                at += u64::from(width.bytes());
            }
            prop_assert_eq!(at, (offset + bytes).min(BAR0_BYTES).max(offset));
        }
    }
}
