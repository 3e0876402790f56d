//! Entries are written anew because what they name has another place.

use std::collections::BTreeMap;
use std::ops::Range;

use fermi_spec::addr::{Gpa, SMALL_PAGE};
use serde::{Deserialize, Serialize};

use super::ShadowSpace;
use crate::build::{Builder, Built, Mirror};
use crate::placement::{Placements, ShadowWriter, TablePages};
use crate::region::{SLOTS, SlotSet};
use crate::reverse::GuestFrame;
use crate::work::{SLOT_BUILT, SLOT_SEEN, TABLE_CLEARED, TABLE_SEARCHED, Work};

/// How far a redirect has come in an address space that was left off: the directory entry and the slot of it that come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RedirectAt(Option<(u16, u16)>);

/// What of the tables that a redirect may need is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// All of them.
    All,
    /// Those that the work was enough for.
    Some,
    /// There is no memory for one of them.
    NoMemory,
}

impl ShadowSpace {
    /// Rewrites every slot that reaches one of the frames, which moved, were backed or lost their backing, as far as the work goes. The next call
    /// with the same frames and the same `at`, which begins as the default, goes on. Flush when it is complete.
    ///
    /// Slots that the guest changed since the last build are written as they are now and stay pending.
    pub fn redirect(
        &mut self,
        frames: &[GuestFrame],
        at: &mut RedirectAt,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
        work: &mut Work,
    ) -> Built {
        let (slots, is_complete) = match at.0.is_none() && self.are_few(frames, work) {
            true => {
                let slots = self.slots_by_mirror(frames);
                work.add(slots.values().map(SlotSet::len).sum::<u64>() * SLOT_BUILT);
                (slots, true)
            }
            // A frame's list cannot be gone on with: others may have changed it. A table can.
            false => {
                let runs = runs_of(frames);
                let is_moved = |frame: GuestFrame| runs.iter().any(|run| run.contains(&frame.0));
                self.slots_from(at, SLOTS as u64 * SLOT_SEEN, work, |mirror| {
                    let mut slots = SlotSet::EMPTY;
                    for (id, first) in mirror.edges() {
                        if self.index.frames_of_slot(first).any(is_moved) {
                            slots.insert(id.slot());
                        }
                    }
                    slots
                })
            }
        };
        self.rewrite(slots, is_complete, placements, pages, writer)
    }

    /// Rewrites every slot that names guest RAM in the range, whose mapping changed, as far as the work goes. The next call with the same range and
    /// the same `at`, which begins as the default, goes on. Flush when it is complete.
    pub fn redirect_ram(
        &mut self,
        (from, bytes): (Gpa, u64),
        at: &mut RedirectAt,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
        work: &mut Work,
    ) -> Built {
        let page = |at: u64| u32::try_from(at / SMALL_PAGE).unwrap_or(u32::MAX);
        let Some(last) = bytes.checked_sub(1) else {
            return self.rewrite(BTreeMap::new(), true, placements, pages, writer);
        };
        let (first, last) = (page(from.0), page(from.0.saturating_add(last)));
        let (slots, is_complete) = self.slots_from(at, TABLE_SEARCHED, work, |mirror| {
            mirror.slots_in_ram(first, last)
        });
        self.rewrite(slots, is_complete, placements, pages, writer)
    }

    /// Clears the tables that a redirect of the frames to system memory may need, as far as the work goes: small tables where large entries point
    /// to them, whose memory was allocated with the large one. Call it before a move that must not take long, and again until all are there. The
    /// bound of `work` is what a step of that redirect will have. Where that is less than all of it, each table is made ready, because to find
    /// out which of them point to the frames would take as long.
    pub fn reserve(
        &mut self,
        frames: &[GuestFrame],
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
        work: &mut Work,
    ) -> Reserved {
        let tables: Vec<u16> = match self.are_few(frames, work) {
            true => self.slots_by_mirror(frames).into_keys().collect(),
            false => {
                let large = self.mirrors.iter().filter(|(_, mirror)| mirror.has_large());
                large.map(|(&index, _)| index).collect()
            }
        };
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
        for index in tables {
            let Some(mirror) = self.mirrors.get_mut(&index).filter(|of| !of.has_small()) else {
                continue;
            };
            if work.is_used_up() {
                return Reserved::Some;
            }
            work.add(TABLE_CLEARED);
            if !builder.reserve_small(mirror) {
                return Reserved::NoMemory;
            }
        }
        Reserved::All
    }

    /// Whether the slots that reach these frames are no more than one step has, so that the frames' lists can be followed.
    fn are_few(&self, frames: &[GuestFrame], work: &Work) -> bool {
        let edges = frames.iter().map(|frame| self.index.edges_of(*frame));
        work.holds_slots(edges.sum())
    }

    fn slots_by_mirror(&self, frames: &[GuestFrame]) -> BTreeMap<u16, SlotSet> {
        let mut slots: BTreeMap<u16, SlotSet> = BTreeMap::new();
        for id in frames.iter().flat_map(|frame| self.index.slots(*frame)) {
            slots.entry(id.pde()).or_insert(SlotSet::EMPTY).insert(id.slot());
        }
        slots
    }

    /// Slots that `of` finds in tables from `at` on, as far as the work goes, and whether these are all that are left.
    fn slots_from(
        &self,
        at: &mut RedirectAt,
        work_of_table: u64,
        work: &mut Work,
        of: impl Fn(&Mirror) -> SlotSet,
    ) -> (BTreeMap<u16, SlotSet>, bool) {
        let mut found = BTreeMap::new();
        let (first, slot) = at.0.unwrap_or_default();
        for (&index, mirror) in self.mirrors.range(first..) {
            let from = if index == first { slot } else { 0 };
            if work.is_used_up() {
                at.0 = Some((index, from));
                return (found, false);
            }
            work.add(work_of_table);
            let all = of(mirror).from(from.into(), SLOTS);
            let some = all.from(from.into(), work.slots_left());
            work.add(some.len() * SLOT_BUILT);
            let last = some.iter().last();
            let is_rest = some.len() < all.len();
            found.insert(index, some);
            if let Some(last) = last.filter(|_| is_rest) {
                at.0 = Some((index, last as u16 + 1));
                return (found, false);
            }
        }
        (found, true)
    }

    fn rewrite(
        &mut self,
        slots: BTreeMap<u16, SlotSet>,
        is_complete: bool,
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
        builder.finish(is_complete)
    }
}

/// Frames as runs of neighbours.
fn runs_of(frames: &[GuestFrame]) -> Vec<Range<u32>> {
    let mut numbers: Vec<u32> = frames.iter().map(|frame| frame.0).collect();
    numbers.sort_unstable();
    let mut runs: Vec<Range<u32>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}
