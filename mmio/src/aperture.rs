//! Windows onto memory: cutting accesses at page ends, and the memory that PRAMIN shows.

use fermi_spec::addr::{Aperture, GuestVramAddr, SMALL_PAGE};
use fermi_spec::regs::{PRAMIN_BYTES, windows::PraminBase};

/// The part of an access that falls on one 4 KiB page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagePiece {
    /// Window offset of the page, a multiple of 4 KiB.
    pub page: u64,
    /// First byte on the page.
    pub within: u32,
    /// Bytes on the page, at least one.
    pub bytes: u32,
    /// The piece's bytes within the access.
    pub done: u64,
}

/// Cuts an access to a window of `window_bytes` at page ends, in order. Bytes behind the window are left out.
pub fn pages(offset: u64, bytes: u64, window_bytes: u64) -> impl Iterator<Item = PagePiece> {
    let end = offset.saturating_add(bytes).min(window_bytes);
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let within = at % SMALL_PAGE;
            let bytes = (SMALL_PAGE - within).min(end - at);
            let piece = PagePiece {
                page: at - within,
                within: within as u32,
                bytes: bytes as u32,
                done: at - offset,
            };
            at += bytes;
            piece
        })
    })
}

/// Guest VRAM behind an offset in the PRAMIN window; not yet checked against the VRAM's size.
///
/// `None` when the window shows system memory, which a guest must not reach this way (it would be a physical address
/// of the host's), or the offset is behind the window: reads are all ones, writes are dropped.
pub fn pramin_address(base: PraminBase, offset: u32) -> Option<GuestVramAddr> {
    if base.aperture() != Aperture::Vram || offset >= PRAMIN_BYTES {
        return None;
    }
    Some(GuestVramAddr(base.address().0 + u64::from(offset)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pramin_onto_system_memory_is_nowhere() {
        let base = PraminBase::new()
            .with_base(0x12)
            .with_aperture(Aperture::SysCoherent);
        assert_eq!(pramin_address(base, 0), None);
        assert_eq!(
            pramin_address(base.with_aperture(Aperture::Vram), 0x34),
            Some(GuestVramAddr(0x12_0034))
        );
    }

    proptest! {
        #[test]
        fn pieces_stay_on_their_page_and_cover_the_access(
            offset in 0u64..0x10000, bytes in 0u64..0x5000, window in 0u64..0x12000
        ) {
            let mut covered = 0;
            for piece in pages(offset, bytes, window) {
                prop_assert!(piece.bytes > 0 && u64::from(piece.within + piece.bytes) <= SMALL_PAGE);
                prop_assert_eq!(piece.done, covered);
                prop_assert_eq!(piece.page + u64::from(piece.within), offset + covered);
                covered += u64::from(piece.bytes);
            }
            prop_assert_eq!(covered, (offset + bytes).min(window).saturating_sub(offset));
        }

        #[test]
        fn access_at_the_end_of_64_bits_ends(offset in u64::MAX - 8.., bytes: u64) {
            prop_assert!(pages(offset, bytes, u64::MAX).count() <= 1);
        }
    }
}
