//! How an access to BAR0 is cut: into naturally aligned words and parts of words, as a bus carries them.
//!
//! Everybody who takes, answers or sends an access cuts it here, so an access of 8 bytes to registers is two registers
//! for all of them. Whoever shows memory through PRAMIN takes what falls on it in one go ([`Piece::Pramin`]); whoever
//! puts an access on a bus cuts that too ([`bus_pieces`]).

use super::{PRAMIN_BASE, PRAMIN_BYTES};
use crate::board::BAR0_BYTES;
use core::ops::Range;

/// Width of one access on the bus.
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
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
        }
    }

    /// All ones in this width: the answer to a read that has none.
    pub const fn ones(self) -> u32 {
        u32::MAX >> (32 - 8 * self.bytes())
    }

    /// The widest access at `offset` that is naturally aligned and not longer than `left` bytes.
    pub(crate) const fn widest(offset: u64, left: usize) -> Self {
        if offset.is_multiple_of(4) && left >= 4 {
            Self::Dword
        } else if offset.is_multiple_of(2) && left >= 2 {
            Self::Word
        } else {
            Self::Byte
        }
    }
}

/// The first piece of an access to BAR0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A register or a part of one; a part of PROM or of the mirror of the configuration space.
    Register {
        /// Byte offset in BAR0, a multiple of the width.
        offset: u32,
        /// Number of bytes.
        width: Width,
    },
    /// Memory that the PRAMIN window shows.
    Pramin {
        /// First byte in the window.
        offset: u32,
        /// Number of bytes.
        bytes: usize,
    },
    /// What lies behind the end of BAR0.
    Outside {
        /// Number of bytes.
        bytes: usize,
    },
}

impl Piece {
    /// The first piece of an access of `left` bytes at `offset`; `left` is not zero.
    pub const fn first(offset: u64, left: usize) -> Self {
        if offset >= BAR0_BYTES {
            return Self::Outside { bytes: left };
        }
        let inside = BAR0_BYTES - offset;
        let left = if left as u64 > inside {
            inside as usize
        } else {
            left
        };
        let offset = offset as u32;
        if offset >= PRAMIN_BASE && offset - PRAMIN_BASE < PRAMIN_BYTES {
            let offset = offset - PRAMIN_BASE;
            let shown = (PRAMIN_BYTES - offset) as usize;
            let bytes = if left > shown { shown } else { left };
            return Self::Pramin { offset, bytes };
        }
        // A window begins where a register could, so no width reaches into one.
        let width = Width::widest(offset as u64, left);
        Self::Register { offset, width }
    }

    /// Number of bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Register { width, .. } => width.bytes(),
            Self::Pramin { bytes, .. } | Self::Outside { bytes } => bytes,
        }
    }
}

/// Cuts an access to BAR0 into pieces, in order, each with its bytes of the access.
pub fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (Range<usize>, Piece)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        (done < bytes).then(|| {
            let piece = Piece::first(offset.saturating_add(done as u64), bytes - done);
            let range = done..done + piece.bytes();
            done = range.end;
            (range, piece)
        })
    })
}

/// Cuts an access to BAR0 into what a bus carries, PRAMIN included: the offset of each piece, and its bytes of the access.
pub fn bus_pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        (done < bytes).then(|| {
            let at = offset.wrapping_add(done as u64);
            let range = done..done + Width::widest(at, bytes - done).bytes();
            done = range.end;
            (at, range)
        })
    })
}

/// Cuts an access to any BAR into runs of at most `max` bytes, as many as one message or event carries: the offset of each
/// and its bytes of the access. Only what is too long is cut, at multiples of `max`, so that no register is torn.
pub fn runs(offset: u64, bytes: usize, max: usize) -> impl ExactSizeIterator<Item = (u64, Range<usize>)> {
    // Bytes of `max` that lie before the first run, if there are several.
    let skipped = if bytes > max {
        (offset % max as u64) as usize
    } else {
        0
    };
    let count = (skipped + bytes).div_ceil(max);
    (0..count).map(move |n| {
        let start = (n * max).saturating_sub(skipped);
        let range = start..bytes.min((n + 1) * max - skipped);
        (offset.wrapping_add(start as u64), range)
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::PffbReg;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn eight_byte_access_is_two_registers() {
        let [directory, invalidate] = [PffbReg::TlbDirectory, PffbReg::TlbInvalidate].map(PffbReg::offset);
        let found: Vec<Piece> = pieces(directory.into(), 8).map(|(_, piece)| piece).collect();
        let whole = |offset| Piece::Register {
            offset,
            width: Width::Dword,
        };
        assert_eq!(found, [whole(directory), whole(invalidate)]);
    }

    #[test]
    fn unaligned_access_is_cut_into_aligned_pieces() {
        let widths: Vec<usize> = pieces(3, 8).map(|(range, _)| range.len()).collect();
        assert_eq!(widths, [1, 4, 2, 1]);
    }

    #[test]
    fn what_falls_on_pramin_is_one_piece() {
        let base = u64::from(PRAMIN_BASE);
        let found: Vec<_> = pieces(base - 4, PRAMIN_BYTES as usize + 8).collect();
        let bytes = PRAMIN_BYTES as usize;
        assert_eq!(found.len(), 3);
        assert_eq!(found[1], (4..4 + bytes, Piece::Pramin { offset: 0, bytes }));
    }

    #[test]
    fn bytes_behind_the_end_are_outside() {
        let found: Vec<_> = pieces(BAR0_BYTES - 4, 12).map(|(_, piece)| piece).collect();
        assert_eq!(found[1..], [Piece::Outside { bytes: 8 }]);
        assert_eq!(pieces(u64::MAX, usize::MAX).count(), 1);
        assert_eq!(pieces(0, 0).count(), 0);
    }

    #[test]
    fn run_is_cut_only_if_it_is_too_long_and_no_register_is_torn() {
        let found = |offset, bytes| runs(offset, bytes, 0x1000).collect::<Vec<_>>();
        assert_eq!(found(0xffc, 0x1000), [(0xffc, 0..0x1000)]);
        assert_eq!(
            found(0xffc, 0x1008),
            [(0xffc, 0..4), (0x1000, 4..0x1004), (0x2000, 0x1004..0x1008)]
        );
    }

    proptest! {
        #[test]
        fn pieces_cover_the_access_once(
            start in prop::sample::select(&[0, PRAMIN_BASE - 64, PRAMIN_BASE + PRAMIN_BYTES - 64, 0x1ff_ffc0]),
            offset in 0u64..128, bytes in 0usize..200, max in 4usize..64,
        ) {
            let offset = u64::from(start) + offset;
            let mut done = 0;
            for (range, piece) in pieces(offset, bytes) {
                prop_assert_eq!((range.start, range.len()), (done, piece.bytes()));
                if let Piece::Register { offset: at, width } = piece {
                    prop_assert_eq!(u64::from(at), offset + done as u64);
                    prop_assert!((at as usize).is_multiple_of(width.bytes()));
                }
                done = range.end;
            }
            prop_assert_eq!(done, bytes);
            for cut in [bus_pieces(offset, bytes).collect::<Vec<_>>(), runs(offset, bytes, max).collect()] {
                let mut done = 0;
                for (at, range) in cut {
                    prop_assert_eq!((range.start, at), (done, offset + done as u64));
                    prop_assert!(!range.is_empty() && range.len() <= max);
                    done = range.end;
                }
                prop_assert_eq!(done, bytes);
            }
        }
    }
}
