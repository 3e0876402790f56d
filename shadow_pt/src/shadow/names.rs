//! Whether the GPU may reach one page of guest VRAM through an address space.

use fermi_spec::addr::{GuestVramAddr, SMALL_PAGE};
use fermi_spec::pte::{Pte, SMALL_PER_LARGE};

use super::ShadowSpace;
use crate::entry::{is_valid, page_of};
use crate::region::GuestSlot;
use crate::reverse::GuestFrame;
use crate::work::{PAGE_ASKED, SLOT_SEEN, Work};

impl ShadowSpace {
    /// Whether an entry may lead to the page: of the shadow as last built, or of the guest's tables as last read. `true` as well
    /// where the guest's entries are not built yet, or where the work is used up before all slots that reach the page's frame were looked at.
    pub fn may_name(&self, page: GuestVramAddr, work: &mut Work) -> bool {
        work.add(PAGE_ASKED);
        let Some(frame) = GuestFrame::of(page) else {
            return false;
        };
        let number = page.0 / SMALL_PAGE;
        self.index.slots(frame).any(|id| {
            let is_late = work.is_used_up();
            work.add(SLOT_SEEN);
            is_late
                || self.mirrors.get(&id.pde()).is_none_or(|mirror| {
                    mirror.guest.changed.contains(id.slot()) || names(mirror.guest.slot(id.slot()), number)
                })
        })
    }
}

/// Whether one of the slot's entries leads to a page of VRAM.
fn names(slot: GuestSlot<'_>, page: u64) -> bool {
    let is_vram = |raw: u64| is_valid(raw) && !Pte::from_bits(raw).aperture().is_sysram();
    match slot {
        GuestSlot::Empty => false,
        GuestSlot::Large(raw) => {
            is_vram(raw) && u64::from(page_of(raw)) / SMALL_PER_LARGE as u64 == page / SMALL_PER_LARGE as u64
        }
        GuestSlot::Small(raws) => raws
            .iter()
            .any(|&raw| is_vram(raw) && u64::from(page_of(raw)) == page),
    }
}
