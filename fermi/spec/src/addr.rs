//! Address spaces as types: an address of one space does not compile where another is meant.
//!
//! [`PhysAddr`] is the one neutral type: a number as it stands in a register or table entry. Whose memory it names
//! depends on who wrote it, so it becomes a [`VramAddr`] on the card, and in a mediator a [`GuestVramAddr`] that is
//! checked before it becomes anything else.

use core::fmt;

/// Bytes of a small page, and of the unit in which most structures are aligned.
pub const SMALL_PAGE: u64 = 0x1000;
/// Bytes of a large page in 128 KiB mode (0x100c80 bit 0 clear), the only mode drivers use on GF100.
pub const LARGE_PAGE: u64 = 0x2_0000;
/// Bytes of a VRAM frame: the unit in which host VRAM is handed out. One large page.
pub const FRAME: u64 = LARGE_PAGE;
/// Bytes of virtual address space that one page-directory entry covers in 128 KiB mode.
pub const PDE_SPAN: u64 = 1 << 27;
/// Bits of a GPU virtual address.
pub const VA_BITS: u32 = 40;
/// Bits of a physical address in any aperture: 28 bits of 4 KiB frames.
pub const PHYS_BITS: u32 = 40;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $tag:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u64);

        impl $name {
            /// The address `bytes` further on, or `None` past the end of 64 bits.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// The address `bytes` further on. The caller has bounded both: wraps are a bug here.
            // Inlined across crates by hand: the panic keeps the compiler from doing so in loops over table entries.
            #[inline]
            #[track_caller]
            pub const fn offset(self, bytes: u64) -> Self {
                match self.0.checked_add(bytes) {
                    Some(sum) => Self(sum),
                    None => panic!("address arithmetic beyond 64 bits"),
                }
            }

            /// Rounded down to a multiple of `unit`, a power of two.
            pub const fn align_down(self, unit: u64) -> Self {
                Self(self.0 & !(unit - 1))
            }

            /// Bytes past the last multiple of `unit`, a power of two.
            pub const fn within(self, unit: u64) -> u64 {
                self.0 & (unit - 1)
            }

            /// Whether the address is a multiple of `unit`, a power of two.
            pub const fn is_aligned(self, unit: u64) -> bool {
                self.within(unit) == 0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, ":{:#x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

address!(
    /// A byte of the card's own VRAM.
    VramAddr,
    "vram"
);
address!(
    /// A byte of the VRAM that a guest sees.
    GuestVramAddr,
    "gvram"
);
address!(
    /// A byte of a guest's RAM, as the guest's CPU and its device see it.
    Gpa,
    "gpa"
);
address!(
    /// A byte of system memory as the card sees it: a bus address, below 2^40.
    Iova,
    "iova"
);
address!(
    /// A byte of a channel's 40-bit virtual address space.
    GpuVa,
    "va"
);
address!(
    /// A physical address as it stands in a register or entry, not yet attributed to anybody's memory.
    PhysAddr,
    "pa"
);

/// Number of a 128 KiB frame of the card's VRAM.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FrameNo(pub u32);

impl FrameNo {
    /// First byte of the frame.
    pub const fn base(self) -> VramAddr {
        VramAddr(self.0 as u64 * FRAME)
    }

    /// The frame that holds `at`, or `None` when the address is beyond 2^32 frames.
    pub fn of(at: VramAddr) -> Option<Self> {
        u32::try_from(at.0 / FRAME).ok().map(Self)
    }
}

/// The memory that a structure is in, as registers, instance blocks and PTEs encode it. PDEs have an encoding
/// of their own, [`crate::pte::PdeAperture`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Aperture {
    /// The card's own memory (VRAM).
    #[default]
    Vram = 0,
    /// Another card's memory in a PTE; invalid everywhere else.
    Peer = 1,
    /// System memory; the card's accesses snoop the CPU's caches.
    SysCoherent = 2,
    /// System memory; the card's accesses do not snoop the CPU's caches.
    SysNonCoherent = 3,
}

impl Aperture {
    /// Decodes the two bits of the field; every value has a meaning.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Vram,
            1 => Self::Peer,
            2 => Self::SysCoherent,
            _ => Self::SysNonCoherent,
        }
    }

    /// The two bits of the field, as [`Self::from_bits`] takes them.
    pub const fn into_bits(self) -> u8 {
        self as u8
    }

    /// Whether this is either kind of system memory.
    pub const fn is_sysram(self) -> bool {
        matches!(self, Self::SysCoherent | Self::SysNonCoherent)
    }
}

/// Bits of a register or table word that name a 4 KiB page of physical memory: address >> 12.
pub(crate) const PAGE_NUMBER_MASK: u32 = 0x0fff_ffff;

impl PhysAddr {
    /// Number of the 4 KiB page, as registers hold it; address bits beyond those are dropped.
    pub const fn page_number(self) -> u32 {
        (self.0 >> 12) as u32 & PAGE_NUMBER_MASK
    }

    /// First byte of the page with that number.
    pub const fn from_page_number(number: u32) -> Self {
        Self(((number & PAGE_NUMBER_MASK) as u64) << 12)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_of_its_base_is_itself() {
        assert_eq!(FrameNo::of(FrameNo(77).base()), Some(FrameNo(77)));
    }

    #[test]
    fn aperture_bits_round_trip() {
        assert_eq!(
            [0u8, 1, 2, 3].map(|b| Aperture::from_bits(b).into_bits()),
            [0, 1, 2, 3]
        );
    }
}
