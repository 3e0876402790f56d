//! The memory that PRAMIN shows.

use fermi_spec::addr::{Aperture, GuestVramAddr};
use fermi_spec::regs::{PRAMIN_BYTES, windows::PraminBase};

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
}
