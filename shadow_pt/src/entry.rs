//! The entry policy: which attributes of a guest's entry survive in the shadow.
//!
//! Kept: valid, privileged, read-only, the storage kind without compression, volatile for VRAM. Cleared: encrypted,
//! lock, the compression tag, which indexes a table that all guests share (envytools `memory/gf100_vm.xml`, nouveau
//! `mmu/gf100.c`). System memory is always mapped coherent and volatile, as nouveau does. Dropped, hence not present:
//! another card's memory, kinds that do not exist.

use fermi_spec::addr::Aperture;
use fermi_spec::pte::{Pte, uncompressed_kind};
use planted::Fault;

/// Bits that vary from page to page and do not change the class: frame, compression tag, unused.
const PLACE_BITS: u64 = 0xfff_ffff << 4 | IGNORED_BITS;

/// Bits that say which page of a 128 KiB frame an entry names.
pub(crate) const IN_FRAME_BITS: u64 = 0x1f << 4;
/// Compression tag and unused bits, which have no influence.
const IGNORED_BITS: u64 = 0xffff_f000_0000_0000;

/// Whether two entries differ in nothing but the page of one frame and the bits without influence.
#[inline]
pub(crate) fn same_frame(one: u64, other: u64) -> bool {
    (one ^ other) & !(IN_FRAME_BITS | IGNORED_BITS) == 0
}

/// Why a valid entry is not translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    Peer,
    Kind,
}

/// Meaning of an entry's attributes, without its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    /// Attributes of the shadow entry if the page is in VRAM.
    to_vram: u64,
    /// Attributes if it is in system memory.
    to_sysram: u64,
    /// Whether the entry names guest RAM rather than guest VRAM.
    pub(crate) is_ram: bool,
    pub(crate) writable: bool,
}

impl Class {
    fn of(pte: Pte) -> Result<Self, Refusal> {
        if pte.aperture() == Aperture::Peer {
            return Err(Refusal::Peer);
        }
        let kind = uncompressed_kind(pte.kind()).ok_or(Refusal::Kind)?;
        let kept = Pte::new()
            .with_valid(true)
            .with_privileged(pte.privileged())
            .with_read_only(pte.read_only())
            .with_kind(if planted::is(Fault::WrongKind) { 0xfe } else { kind });
        Ok(Self {
            to_vram: kept.with_volatile(pte.volatile()).into_bits(),
            to_sysram: kept
                .with_volatile(true)
                .with_aperture(Aperture::SysCoherent)
                .with_read_only(kept.read_only() && !planted::is(Fault::ReadOnlyBitLost))
                .into_bits(),
            is_ram: pte.aperture().is_sysram(),
            writable: !pte.read_only(),
        })
    }

    /// The shadow entry for a page in VRAM.
    #[inline]
    pub(crate) fn vram_entry(self, address: u64) -> u64 {
        self.to_vram | frame_bits(address)
    }

    /// The shadow entry for a page in system memory.
    #[inline]
    pub(crate) fn sysram_entry(self, address: u64) -> u64 {
        self.to_sysram | frame_bits(address)
    }
}

#[inline]
fn frame_bits(address: u64) -> u64 {
    // An address that does not fit would be cut to one that belongs to another VM.
    assert!(
        address & 0xfff == 0 && address >> 40 == 0,
        "placement {address:#x} cannot stand in a table entry"
    );
    address >> 12 << 4
}

/// Frame (address >> 12) in a raw entry.
#[inline]
pub(crate) fn page_of(raw: u64) -> u32 {
    (raw >> 4) as u32 & 0xfff_ffff
}

/// Whether a raw entry is valid.
#[inline]
pub(crate) fn is_valid(raw: u64) -> bool {
    raw & 1 != 0
}

/// Classifies entries; neighbours mostly share their attributes, so the last answer is kept.
pub(crate) struct Classifier {
    attributes: u64,
    class: Result<Class, Refusal>,
}

impl Classifier {
    pub(crate) fn new() -> Self {
        let attributes = Pte::new().with_valid(true);
        Self {
            attributes: attributes.into_bits(),
            class: Class::of(attributes),
        }
    }

    /// The class of a valid entry.
    #[inline]
    pub(crate) fn classify(&mut self, raw: u64) -> Result<Class, Refusal> {
        let attributes = raw & !PLACE_BITS;
        if attributes != self.attributes {
            self.attributes = attributes;
            self.class = Class::of(Pte::from_bits(attributes));
        }
        self.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn classify(pte: Pte) -> Result<Class, Refusal> {
        Classifier::new().classify(pte.into_bits())
    }

    #[test]
    fn peer_memory_is_refused() {
        let peer = Pte::new().with_valid(true).with_aperture(Aperture::Peer);
        assert_eq!(classify(peer).err(), Some(Refusal::Peer));
    }

    #[test]
    fn compressed_kind_loses_compression_and_tag() {
        let guest = Pte::new().with_valid(true).with_kind(0xdb).with_comptag(77);
        let entry = Pte::from_bits(classify(guest).expect("valid kind").vram_entry(0x4_0000));
        assert_eq!((entry.kind(), entry.comptag(), entry.frame()), (0xfe, 0, 0x40));
    }

    proptest! {
        #[test]
        fn shadow_keeps_only_what_the_policy_names(raw: u64, address in 0u64..1 << 28) {
            let guest = Pte::from_bits(raw | 1);
            if let Ok(class) = classify(guest) {
                for entry in [class.vram_entry(address << 12), class.sysram_entry(address << 12)] {
                    let entry = Pte::from_bits(entry);
                    prop_assert!(entry.valid() && !entry.encrypted() && !entry.lock());
                    prop_assert_eq!(entry.comptag(), 0);
                    prop_assert_eq!(u64::from(entry.frame()), address);
                    prop_assert_eq!(entry.read_only(), guest.read_only());
                    prop_assert_eq!(entry.privileged(), guest.privileged());
                    prop_assert_eq!(Some(entry.kind()), uncompressed_kind(guest.kind()));
                }
                prop_assert_eq!(Pte::from_bits(class.vram_entry(0)).aperture(), Aperture::Vram);
                prop_assert_eq!(Pte::from_bits(class.sysram_entry(0)).aperture(), Aperture::SysCoherent);
            }
        }

        #[test]
        fn remembered_class_equals_a_fresh_one(raws: Vec<u64>) {
            let mut classifier = Classifier::new();
            for raw in raws {
                let remembered = classifier.classify(raw | 1).map(|class| class.vram_entry(0));
                prop_assert_eq!(remembered, classify(Pte::from_bits(raw | 1)).map(|class| class.vram_entry(0)));
            }
        }
    }
}
