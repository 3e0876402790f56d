//! The entry policy: which attributes of a guest's entry survive in the shadow.
//!
//! Kept: valid, privileged, read-only, the storage kind without compression, volatile for VRAM. Cleared: encrypted,
//! lock, the compression tag, which indexes a table that all guests share (envytools `memory/gf100_vm.xml`, nouveau
//! `mmu/gf100.c`). System memory is always mapped coherent and volatile, as nouveau does. Dropped, hence not present:
//! another card's memory, kinds that do not exist.

use fermi_spec::addr::{Aperture, PHYS_BITS, SMALL_PAGE};
use fermi_spec::pte::{Pte, SMALL_PER_LARGE, uncompressed_kind};
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
    pub(crate) fn vram_entry(self, page: EntryPage) -> u64 {
        self.to_vram | page.bits()
    }

    /// The shadow entry for a page in system memory.
    #[inline]
    pub(crate) fn sysram_entry(self, page: EntryPage) -> u64 {
        self.to_sysram | page.bits()
    }
}

/// A 4 KiB page that an entry can name: 28 bits, so the last one ends at 2^40. An address that does not fit would be cut to
/// one that belongs to another VM, so there is no such value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryPage(u32);

impl EntryPage {
    /// Pages that can be named.
    const COUNT: u64 = (1 << PHYS_BITS) / SMALL_PAGE;

    /// The page that begins at `address`; `None` if none does that an entry can name.
    #[inline]
    pub(crate) fn at(address: u64) -> Option<Self> {
        let page = address / SMALL_PAGE;
        (address.is_multiple_of(SMALL_PAGE) && page < Self::COUNT).then_some(Self(page as u32))
    }

    /// The same, where the 31 pages behind it can be named as well.
    #[inline]
    pub(crate) fn first_of_frame(address: u64) -> Option<Self> {
        Self::at(address).filter(|first| u64::from(first.0) + SMALL_PER_LARGE as u64 <= Self::COUNT)
    }

    #[inline]
    fn bits(self) -> u64 {
        u64::from(self.0) << 4
    }
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
        let entry = Pte::from_bits(classify(guest).expect("valid kind").vram_entry(EntryPage(0x40)));
        assert_eq!((entry.kind(), entry.comptag(), entry.frame()), (0xfe, 0, 0x40));
    }

    #[test]
    fn pages_up_to_the_last_can_be_named_and_none_behind_it() {
        const END: u64 = 1 << PHYS_BITS;
        for behind in 0..=64 {
            let page = END - behind * SMALL_PAGE;
            assert_eq!(EntryPage::at(page).is_some(), behind > 0, "{page:#x}");
            assert_eq!(
                EntryPage::first_of_frame(page).is_some(),
                behind >= 32,
                "{page:#x}"
            );
        }
        let nowhere = [
            1,
            SMALL_PAGE - 1,
            END + 1,
            END | SMALL_PAGE,
            u64::MAX,
            u64::MAX - 0xfff,
        ];
        assert!(nowhere.iter().all(|at| EntryPage::at(*at).is_none()));
    }

    proptest! {
        #[test]
        fn shadow_keeps_only_what_the_policy_names(raw: u64, page in 0u64..EntryPage::COUNT) {
            let guest = Pte::from_bits(raw | 1);
            let named = EntryPage::at(page * SMALL_PAGE).expect("a page below 2^40");
            if let Ok(class) = classify(guest) {
                for entry in [class.vram_entry(named), class.sysram_entry(named)] {
                    let entry = Pte::from_bits(entry);
                    prop_assert!(entry.valid() && !entry.encrypted() && !entry.lock());
                    prop_assert_eq!(entry.comptag(), 0);
                    prop_assert_eq!(u64::from(entry.frame()), page);
                    prop_assert_eq!(entry.read_only(), guest.read_only());
                    prop_assert_eq!(entry.privileged(), guest.privileged());
                    prop_assert_eq!(Some(entry.kind()), uncompressed_kind(guest.kind()));
                }
                prop_assert_eq!(Pte::from_bits(class.vram_entry(EntryPage(0))).aperture(), Aperture::Vram);
                prop_assert_eq!(Pte::from_bits(class.sysram_entry(EntryPage(0))).aperture(), Aperture::SysCoherent);
            }
        }

        #[test]
        fn remembered_class_equals_a_fresh_one(raws: Vec<u64>) {
            let mut classifier = Classifier::new();
            for raw in raws {
                let remembered = classifier.classify(raw | 1).map(|class| class.vram_entry(EntryPage(0)));
                prop_assert_eq!(remembered, classify(Pte::from_bits(raw | 1)).map(|class| class.vram_entry(EntryPage(0))));
            }
        }
    }
}
