//! Page-directory and page-table entries of the GMMU (two levels, 40-bit addresses).
//!
//! Layouts: nouveau `mmu/vmmgf100.c`, NVIDIA `dev_mmu.h` (one format from Fermi to Maxwell), envytools
//! `memory/gf100_vm.xml`.

use crate::addr::{Aperture, GpuVa, LARGE_PAGE, PDE_SPAN, PhysAddr, SMALL_PAGE, VA_BITS};
use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of a page directory (64 KiB) in 128 KiB mode.
pub const PD_ENTRIES: usize = 8192;
/// Bytes of a page directory.
pub const PD_BYTES: u64 = PD_ENTRIES as u64 * 8;
/// Entries of a large-page table (8 KiB).
pub const LARGE_PT_ENTRIES: usize = (PDE_SPAN / LARGE_PAGE) as usize;
/// Bytes of a large-page table.
pub const LARGE_PT_BYTES: u64 = LARGE_PT_ENTRIES as u64 * 8;
/// Entries of a small-page table (256 KiB).
pub const SMALL_PT_ENTRIES: usize = (PDE_SPAN / SMALL_PAGE) as usize;
/// Bytes of a small-page table.
pub const SMALL_PT_BYTES: u64 = SMALL_PT_ENTRIES as u64 * 8;
/// Small pages under one large page.
pub const SMALL_PER_LARGE: usize = (LARGE_PAGE / SMALL_PAGE) as usize;

/// Where a PDE's table is. The codes differ from [`Aperture`]'s: 1, not 0, is VRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PdeAperture {
    /// There is no table.
    #[default]
    None = 0,
    /// The card's own memory (VRAM).
    Vram = 1,
    /// System memory, snooped.
    SysCoherent = 2,
    /// System memory, not snooped.
    SysNonCoherent = 3,
}

impl PdeAperture {
    /// Decodes two bits; total.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::None,
            1 => Self::Vram,
            2 => Self::SysCoherent,
            _ => Self::SysNonCoherent,
        }
    }

    /// The two bits.
    pub const fn into_bits(self) -> u8 {
        self as u8
    }

    /// The same place in the other encoding, `None` where there is no table.
    pub const fn aperture(self) -> Option<Aperture> {
        match self {
            Self::None => None,
            Self::Vram => Some(Aperture::Vram),
            Self::SysCoherent => Some(Aperture::SysCoherent),
            Self::SysNonCoherent => Some(Aperture::SysNonCoherent),
        }
    }
}

/// Page-directory entry: a large-page table and a small-page table for the same 128 MiB.
#[bitfield(u64)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Pde {
    /// Where the large-page table is.
    #[bits(2)]
    pub large_aperture: PdeAperture,
    /// How much of the tables exists: 0 all, 1 half, 2 a quarter, 3 an eighth. unverified: whether it limits the large
    /// table, the small one or both; both here.
    #[bits(2)]
    pub size: u8,
    /// Large-page table address >> 12.
    #[bits(28)]
    pub large_frame: u32,
    /// Where the small-page table is.
    #[bits(2)]
    pub small_aperture: PdeAperture,
    /// The small-page table is volatile (system memory).
    pub small_volatile: bool,
    /// The large-page table is volatile (system memory).
    pub large_volatile: bool,
    /// Small-page table address >> 12.
    #[bits(28)]
    pub small_frame: u32,
}

impl Pde {
    /// Address of the large-page table and its aperture, `None` if there is none.
    pub fn large_table(self) -> Option<(Aperture, PhysAddr)> {
        let aperture = self.large_aperture().aperture()?;
        Some((aperture, PhysAddr(u64::from(self.large_frame()) << 12)))
    }

    /// Address of the small-page table and its aperture, `None` if there is none.
    pub fn small_table(self) -> Option<(Aperture, PhysAddr)> {
        let aperture = self.small_aperture().aperture()?;
        Some((aperture, PhysAddr(u64::from(self.small_frame()) << 12)))
    }

    /// Entries of the large-page table that exist, by SIZE.
    pub fn large_entries(self) -> usize {
        LARGE_PT_ENTRIES >> self.size()
    }

    /// Entries of the small-page table that exist, by SIZE.
    pub fn small_entries(self) -> usize {
        SMALL_PT_ENTRIES >> self.size()
    }
}

/// Page-table entry, the same for both page sizes.
#[bitfield(u64)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Pte {
    /// The page exists.
    pub valid: bool,
    /// Supervisor only: access without privilege is fault reason 5.
    pub privileged: bool,
    /// A write is fault reason 6.
    pub read_only: bool,
    /// System memory only; never set by open drivers.
    pub encrypted: bool,
    /// Address >> 12. VRAM uses the low 25 bits; the low five are zero in a large page.
    #[bits(28)]
    pub frame: u32,
    /// The GPU's L2 does not keep lines of this page.
    pub volatile: bool,
    /// Memory that [`Self::frame`] is in.
    #[bits(2)]
    pub aperture: Aperture,
    /// Ordering hint for atomics; unused by drivers.
    pub lock: bool,
    /// Storage type (kind).
    pub kind: u8,
    /// Compression tag line, one for each 128 KiB.
    #[bits(17)]
    pub comptag: u32,
    #[bits(3)]
    __: u8,
}

const _: () = assert!(size_of::<Pde>() == 8 && size_of::<Pte>() == 8);

impl Pte {
    /// The page's address in its aperture.
    pub fn address(self) -> PhysAddr {
        PhysAddr(u64::from(self.frame()) << 12)
    }

    /// The same entry pointing to `address` (a multiple of 4 KiB below 2^40).
    #[track_caller]
    pub fn with_address(self, address: PhysAddr) -> Self {
        assert!(
            address.is_aligned(SMALL_PAGE) && address.0 >> crate::addr::PHYS_BITS == 0,
            "PTE address {address}"
        );
        self.with_frame((address.0 >> 12) as u32)
    }
}

/// Size of large pages, by which addresses are split: MMU_CONFIG (100c80), bit 0. All drivers for GF100 use 128 KiB,
/// which the constants and the free functions of this module are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LargePages {
    /// A directory entry covers 128 MiB.
    #[default]
    Kib128,
    /// A directory entry covers 64 MiB: twice as many entries, and half of the small ones under each.
    Kib64,
}

impl LargePages {
    /// Bytes of a large page.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Kib128 => LARGE_PAGE,
            Self::Kib64 => LARGE_PAGE / 2,
        }
    }

    /// Bytes of address space under a directory entry.
    pub const fn pde_span(self) -> u64 {
        self.bytes() * LARGE_PT_ENTRIES as u64
    }

    /// Index in the directory.
    pub const fn pde_index(self, va: GpuVa) -> usize {
        ((va.0 % (1 << VA_BITS)) / self.pde_span()) as usize
    }

    /// Index in the large-page table.
    pub const fn large_index(self, va: GpuVa) -> usize {
        ((va.0 % self.pde_span()) / self.bytes()) as usize
    }

    /// Index in the small-page table.
    pub const fn small_index(self, va: GpuVa) -> usize {
        ((va.0 % self.pde_span()) / SMALL_PAGE) as usize
    }
}

/// Splits a virtual address: index in the directory.
pub const fn pde_index(va: GpuVa) -> usize {
    LargePages::Kib128.pde_index(va)
}

/// Index in the large-page table.
pub const fn large_index(va: GpuVa) -> usize {
    LargePages::Kib128.large_index(va)
}

/// Index in the small-page table.
pub const fn small_index(va: GpuVa) -> usize {
    LargePages::Kib128.small_index(va)
}

/// The uncompressed partner of a kind (nouveau `mmu/gf100.c`, `gf100_mmu_kind`), `None` for a kind that does not
/// exist. A kind is compressed if it differs from its partner.
pub const fn uncompressed_kind(kind: u8) -> Option<u8> {
    Some(match kind {
        0x00 => 0x00,
        0x01..=0x05 | 0x07..=0x0a => 0x01,
        0x11 | 0x17..=0x1a => 0x11,
        0x26..=0x29 => kind,
        0x3a..=0x3d => kind - 0x3a + 0x26,
        0x3e..=0x41 => kind - 0x3e + 0x26,
        0x46 | 0x51..=0x54 => 0x46,
        0x7b | 0x86..=0x89 => 0x7b,
        0x8b..=0x8e => kind,
        0xa3..=0xa6 => kind - 0xa3 + 0x8b,
        0xa7..=0xaa => kind,
        0xbf..=0xc2 => kind - 0xbf + 0xa7,
        0xc3 | 0xce..=0xd1 => 0xc3,
        0xcc | 0xcd | 0xd8 | 0xdb | 0xdd | 0xdf | 0xe0 | 0xe2..=0xe6 => 0xfe,
        0xe9 | 0xeb | 0xed | 0xee | 0xf0..=0xfb | 0xfe => 0xfe,
        0xfd => 0xfd,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn va_splits_as_documented() {
        let va = GpuVa(0x12_3456_7890);
        assert_eq!(
            (pde_index(va), large_index(va), small_index(va)),
            (
                (va.0 >> 27) as usize,
                ((va.0 >> 17) & 0x3ff) as usize,
                ((va.0 >> 12) & 0x7fff) as usize
            )
        );
    }

    #[test]
    fn va_splits_as_documented_with_pages_of_64_kib() {
        let va = GpuVa(0xfe_dcba_9876);
        let pages = LargePages::Kib64;
        assert_eq!(
            (pages.pde_index(va), pages.large_index(va), pages.small_index(va)),
            (
                (va.0 >> 26) as usize,
                ((va.0 >> 16) & 0x3ff) as usize,
                ((va.0 >> 12) & 0x3fff) as usize
            )
        );
    }

    #[test]
    fn compressed_colour_kind_has_generic_partner() {
        assert_eq!(uncompressed_kind(0xdb), Some(0xfe));
        // The kind that faults with reason 0xc.
        assert_eq!(uncompressed_kind(0xff), None);
    }

    proptest! {
        #[test]
        fn pte_fields_lose_only_the_three_unused_bits(raw: u64) {
            let pte = Pte::from_bits(raw);
            let rebuilt = Pte::new()
                .with_valid(pte.valid()).with_privileged(pte.privileged()).with_read_only(pte.read_only())
                .with_encrypted(pte.encrypted()).with_frame(pte.frame()).with_volatile(pte.volatile())
                .with_aperture(pte.aperture()).with_lock(pte.lock()).with_kind(pte.kind())
                .with_comptag(pte.comptag());
            prop_assert_eq!(rebuilt.into_bits(), raw & (u64::MAX >> 3));
        }

        #[test]
        fn pde_fields_lose_nothing(raw: u64) {
            let pde = Pde::from_bits(raw);
            let rebuilt = Pde::new()
                .with_large_aperture(pde.large_aperture()).with_size(pde.size()).with_large_frame(pde.large_frame())
                .with_small_aperture(pde.small_aperture()).with_small_volatile(pde.small_volatile())
                .with_large_volatile(pde.large_volatile()).with_small_frame(pde.small_frame());
            prop_assert_eq!(rebuilt.into_bits(), raw);
        }

        #[test]
        fn partner_of_a_partner_is_itself(kind: u8) {
            if let Some(partner) = uncompressed_kind(kind) {
                prop_assert_eq!(uncompressed_kind(partner), Some(partner));
            }
        }
    }
}
