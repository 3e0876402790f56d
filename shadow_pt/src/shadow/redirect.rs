//! Entries are written anew because what they name has another place.

use std::collections::BTreeMap;

use fermi_spec::addr::{Gpa, SMALL_PAGE};

use super::ShadowSpace;
use crate::build::{Builder, Built};
use crate::placement::{Placements, ShadowWriter, TablePages};
use crate::region::SlotSet;
use crate::reverse::GuestFrame;

impl ShadowSpace {
    /// Rewrites every slot that reaches the frame, which moved, was backed or lost its backing. Flush afterwards.
    ///
    /// Slots that the guest changed since the last build are written as they are now and stay pending.
    pub fn redirect(
        &mut self,
        frame: GuestFrame,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
    ) -> Built {
        let slots = self.slots_by_mirror(frame);
        self.rewrite(slots, placements, pages, writer)
    }

    /// Rewrites every slot that names guest RAM in the range, whose mapping changed. Flush afterwards.
    pub fn redirect_ram(
        &mut self,
        from: Gpa,
        bytes: u64,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
    ) -> Built {
        if bytes == 0 {
            return Built::default();
        }
        let page = |at: u64| u32::try_from(at / SMALL_PAGE).unwrap_or(u32::MAX);
        let (first, last) = (page(from.0), page(from.0.saturating_add(bytes - 1)));
        let slots = self
            .mirrors
            .iter()
            .map(|(&index, mirror)| (index, mirror.slots_in_ram(first, last)))
            .filter(|(_, slots)| !slots.is_empty())
            .collect();
        self.rewrite(slots, placements, pages, writer)
    }

    /// Clears the tables that a redirect of the frame to system memory may need: small tables where large entries point
    /// to it, whose memory was allocated with the large one. Call it before a move that must not take long. Returns whether
    /// all are there.
    pub fn reserve(
        &mut self,
        frame: GuestFrame,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
    ) -> bool {
        let slots = self.slots_by_mirror(frame);
        let frames = self.guest_frames();
        let mut builder = Builder::new(
            self.directory,
            frames,
            &mut self.index,
            &mut self.scratch,
            placements,
            pages,
            writer,
        );
        slots.keys().all(|index| {
            self.mirrors
                .get_mut(index)
                .is_none_or(|mirror| builder.reserve_small(mirror))
        })
    }

    fn slots_by_mirror(&self, frame: GuestFrame) -> BTreeMap<u16, SlotSet> {
        let mut slots: BTreeMap<u16, SlotSet> = BTreeMap::new();
        for id in self.index.slots(frame) {
            slots.entry(id.pde()).or_insert(SlotSet::EMPTY).insert(id.slot());
        }
        slots
    }

    fn rewrite(
        &mut self,
        slots: BTreeMap<u16, SlotSet>,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
    ) -> Built {
        let frames = self.guest_frames();
        let mut builder = Builder::new(
            self.directory,
            frames,
            &mut self.index,
            &mut self.scratch,
            placements,
            pages,
            writer,
        );
        for (index, slots) in slots {
            if let Some(mirror) = self.mirrors.get_mut(&index) {
                builder.build(mirror, &slots, false);
            }
        }
        builder.finish(true)
    }
}
