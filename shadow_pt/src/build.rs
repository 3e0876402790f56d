//! Turns a snapshot into a shadow: translates and writes the slots of one directory entry.
//!
//! A slot has one of three forms in the shadow: nothing, one large entry, or small entries. A change of form is
//! written make-before-break: first small entries, then large ones, then the clearing of small entries that are no
//! longer wanted. A new table enters the directory while it is empty. So a walk at any moment finds the old or the
//! new place of a page that is mapped throughout. This relies on the card preferring a valid large entry.

use crate::entry::{Class, Classifier, EntryPage, IN_FRAME_BITS, Refusal, is_valid, page_of, same_frame};
use crate::output::{Scratch, write_zeros};
use crate::placement::{FramePlacement, Placement, Placements, ShadowWriter, TablePages};
use crate::region::{GuestSlot, Region, SLOTS, SlotSet};
use crate::reverse::{GuestFrame, NO_EDGE, ReachChange, ReverseIndex, SlotFrames, SlotId};
use crate::saved::{self, Unsound};
use fermi_spec::addr::{FRAME, Gpa, GuestVramAddr, SMALL_PAGE, VramAddr};
use fermi_spec::pte::{LARGE_PT_BYTES, Pde, PdeAperture, SMALL_PER_LARGE, SMALL_PT_BYTES};
use planted::Fault;
use serde::{Deserialize, Serialize};

/// Valid guest entries that were not translated, counted by cause. The guest finds them not present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Dropped {
    /// They name memory that is not this guest's.
    pub outside: u64,
    /// They name another card's memory.
    pub peer: u64,
    /// Their kind does not exist.
    pub kind: u64,
    /// Large entries whose address is not a multiple of 128 KiB.
    pub misaligned: u64,
}

/// VRAM of a shadow table that nothing refers to any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableRange {
    /// First byte of the table.
    pub at: VramAddr,
    /// Length in bytes: 8 KiB, 64 KiB or 256 KiB.
    pub bytes: u64,
}

/// The counts of a build or redirect, and the tables that it freed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use = "the tables listed leak unless they are freed after the flush"]
pub struct Built {
    /// Number of slots translated.
    pub slots: u64,
    /// Shadow entries written, directory entries and clearing included.
    pub entries: u64,
    /// Valid guest entries left not present because they have no memory yet.
    pub unbacked: u64,
    /// Valid guest entries that no shadow entry may express.
    pub dropped: Dropped,
    /// Valid guest entries left not present because the place that [`Placements`] gave cannot stand in an entry. No guest
    /// can cause that: who gave it has wrong accounts of this guest.
    pub misplaced: u64,
    /// Slots left not present because a shadow table was refused. They stay changed: the next build retries.
    pub refused: u64,
    /// Frames that began or ceased to be reached, in order.
    pub reach: Vec<ReachChange>,
    /// No changed slot is left that could be built.
    pub is_complete: bool,
    /// Tables that left the shadow. The TLB may still know them: flush it, then give them to [`TablePages::free`].
    pub freed: Vec<TableRange>,
}

/// The form that a slot has in the shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Shape {
    Empty,
    Large,
    Small,
}

/// Guest RAM pages that a slot's entries name, first to last; empty when the first is behind the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct RamSpan {
    first: u32,
    last: u32,
}

const NO_RAM: RamSpan = RamSpan {
    first: u32::MAX,
    last: 0,
};

/// One directory entry: the guest's tables and the shadow's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Mirror {
    index: u16,
    pub(crate) guest: Region,
    large: Option<VramAddr>,
    small: Option<VramAddr>,
    /// Where a small table will lie: had together with the large one, so that what is mapped can always move to system memory.
    kept: Option<VramAddr>,
    /// The shadow directory entry as last written.
    pde: u64,
    #[serde(with = "saved::runs")]
    shapes: Box<[Shape; SLOTS]>,
    #[serde(with = "saved::runs")]
    edges: Box<[u32; SLOTS]>,
    /// Allocated with the first slot that names RAM.
    #[serde(with = "saved::runs_or_none")]
    ram: Option<Box<[RamSpan; SLOTS]>>,
}

impl Mirror {
    pub(crate) fn new(index: u16) -> Self {
        Self {
            index,
            guest: Region::new(),
            large: None,
            small: None,
            kept: None,
            pde: 0,
            shapes: Box::new([Shape::Empty; SLOTS]),
            edges: Box::new([NO_EDGE; SLOTS]),
            ram: None,
        }
    }

    /// Bytes of host memory that it takes, without its edges in the index.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let ram = self.ram.as_ref().map_or(0, |spans| size_of_val(&**spans));
        let own = size_of::<Self>() + size_of_val(&*self.shapes) + size_of_val(&*self.edges) + ram;
        own as u64 + self.guest.heap_bytes()
    }

    /// Whether it has a table of large entries.
    pub(crate) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// Whether it has a table of small entries.
    pub(crate) fn has_small(&self) -> bool {
        self.small.is_some()
    }

    /// The slots whose shadow, as last built, names guest RAM between two pages.
    pub(crate) fn slots_in_ram(&self, first: u32, last: u32) -> SlotSet {
        let mut slots = SlotSet::EMPTY;
        for (slot, span) in self.ram.iter().flat_map(|spans| spans.iter()).enumerate() {
            if span.first <= last && span.last >= first {
                slots.insert(slot);
            }
        }
        slots
    }

    /// Each slot, with the start of its list in the index.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (SlotId, u32)> {
        let slots = (0..SLOTS).map(|slot| SlotId::new(self.index, slot));
        slots.zip(self.edges.iter().copied())
    }

    /// Checks the mirror of a directory entry that was read from somewhere. Its tables and edges are checked with all
    /// others'.
    pub(crate) fn check(&self, index: u16) -> Result<(), Unsound> {
        Unsound::unless(self.index == index, "the mirror of another directory entry")?;
        let has_table = |shape: &Shape| match shape {
            Shape::Empty => true,
            Shape::Large => self.large.is_some(),
            Shape::Small => self.small.is_some(),
        };
        Unsound::unless(
            self.shapes.iter().all(has_table),
            "a slot has entries in a table that is not there",
        )?;
        Unsound::unless(
            self.large.is_none() || self.small.or(self.kept).is_some(),
            "a large table without room for a small one",
        )?;
        self.guest.check()
    }

    /// The shadow's own tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = TableRange> {
        let large = self.large.map(|at| TableRange {
            at,
            bytes: LARGE_PT_BYTES,
        });
        let small = self.small.iter().chain(&self.kept).map(|&at| TableRange {
            at,
            bytes: SMALL_PT_BYTES,
        });
        large.into_iter().chain(small)
    }
}

/// The form that a slot shall get.
enum Wanted {
    Empty,
    Large {
        entry: u64,
        frame: u32,
        writable: bool,
    },
    /// The entries are in [`Builder::entries`].
    Small,
}

/// Everything that a build needs, borrowed for its length.
pub(crate) struct Builder<'a> {
    placements: &'a dyn Placements,
    pages: &'a mut dyn TablePages,
    writer: &'a mut dyn ShadowWriter,
    scratch: &'a mut Scratch,
    index: &'a mut ReverseIndex,
    directory: VramAddr,
    /// Number of 128 KiB frames of guest VRAM.
    guest_frames: u32,
    classifier: Classifier,
    frames: SlotFrames,
    entries: [u64; SMALL_PER_LARGE],
    ram: RamSpan,
    last_frame: Option<(u32, FramePlacement)>,
    built: Built,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(
        directory: VramAddr,
        guest_frames: u32,
        index: &'a mut ReverseIndex,
        scratch: &'a mut Scratch,
        placements: &'a dyn Placements,
        pages: &'a mut dyn TablePages,
        writer: &'a mut dyn ShadowWriter,
    ) -> Self {
        Self {
            placements,
            pages,
            writer,
            scratch,
            index,
            directory,
            guest_frames,
            classifier: Classifier::new(),
            frames: SlotFrames::new(),
            entries: [0; SMALL_PER_LARGE],
            ram: NO_RAM,
            last_frame: None,
            built: Built::default(),
        }
    }

    pub(crate) fn finish(mut self, is_complete: bool) -> Built {
        self.built.is_complete = is_complete;
        self.built.reach = self.index.take_changes();
        self.built
    }

    /// Translates `slots` of one directory entry and writes them. With `settle`, and if no table was refused, they
    /// no longer count as changed.
    pub(crate) fn build(&mut self, mirror: &mut Mirror, slots: &SlotSet, settle: bool) {
        let mut unwanted = SlotSet::EMPTY;
        let mut refused = SlotSet::EMPTY;
        let skipped = usize::from(!settle && planted::is(Fault::RedirectSkipsSlot));
        for slot in slots.iter().skip(skipped) {
            let mut wanted = self.translate(mirror.guest.slot(slot));
            if !self.has_table_for(mirror, &wanted) {
                refused.insert(slot);
                self.frames.clear();
                self.ram = NO_RAM;
                wanted = Wanted::Empty;
            }
            self.write_slot(mirror, slot, &wanted, &mut unwanted);
            self.index_slot(mirror, slot, &wanted);
        }
        if settle {
            mirror.guest.changed.remove_all(slots);
        }
        mirror.guest.changed.insert_all(&refused);
        self.built.refused += refused.len();
        self.built.slots += slots.len();
        self.scratch.flush_small(self.writer);
        if let Some(table) = mirror.large {
            self.built.entries += self.scratch.flush_large(self.writer, table);
        }
        if let Some(table) = mirror.small {
            for slot in unwanted.iter() {
                self.built.entries += SMALL_PER_LARGE as u64;
                self.scratch
                    .small(self.writer, table, slot, &[0; SMALL_PER_LARGE]);
            }
            self.scratch.flush_small(self.writer);
        }
    }

    /// Takes the directory entry out of the shadow; its tables are returned by [`Self::finish`].
    pub(crate) fn remove(&mut self, mut mirror: Mirror) {
        self.built.freed.extend(mirror.tables());
        mirror.large = None;
        mirror.small = None;
        mirror.kept = None;
        self.write_pde(&mut mirror);
        for slot in 0..SLOTS {
            self.index
                .set(&mut mirror.edges[slot], SlotId::new(mirror.index, slot), &[]);
        }
    }

    /// Makes sure that small entries can be written without asking for a table. Returns whether they can.
    pub(crate) fn reserve_small(&mut self, mirror: &mut Mirror) -> bool {
        self.has_table_for(mirror, &Wanted::Small)
    }

    /// Records the frames and RAM pages that the slot refers to now.
    #[inline]
    fn index_slot(&mut self, mirror: &mut Mirror, slot: usize, wanted: &Wanted) {
        let edges = &mut mirror.edges[slot];
        let id = SlotId::new(mirror.index, slot);
        let mut ram = NO_RAM;
        if let &Wanted::Large { frame, writable, .. } = wanted {
            self.index.set_one(edges, id, frame, writable);
        } else {
            self.index.set(edges, id, self.frames.as_slice());
            ram = self.ram;
        }
        if ram != NO_RAM && mirror.ram.is_none() {
            mirror.ram = Some(Box::new([NO_RAM; SLOTS]));
        }
        if let Some(spans) = &mut mirror.ram {
            spans[slot] = ram;
        }
    }

    #[inline]
    fn write_slot(&mut self, mirror: &mut Mirror, slot: usize, wanted: &Wanted, unwanted: &mut SlotSet) {
        let old = mirror.shapes[slot];
        let (shape, large_entry) = match *wanted {
            Wanted::Empty => (Shape::Empty, 0),
            Wanted::Large { entry, .. } => (Shape::Large, entry),
            Wanted::Small => (Shape::Small, 0),
        };
        if shape == Shape::Small
            && let Some(table) = mirror.small
        {
            self.built.entries += SMALL_PER_LARGE as u64;
            self.scratch.small(self.writer, table, slot, &self.entries);
        }
        if shape == Shape::Large || old == Shape::Large {
            self.scratch.large(slot, large_entry);
        }
        if old == Shape::Small && shape != Shape::Small {
            unwanted.insert(slot);
        }
        mirror.shapes[slot] = shape;
    }

    /// Whether the table that the slot needs exists, after allocating it if necessary.
    #[inline]
    fn has_table_for(&mut self, mirror: &mut Mirror, wanted: &Wanted) -> bool {
        match wanted {
            Wanted::Empty => true,
            Wanted::Large { .. } => mirror.large.is_some() || self.allocate_large(mirror),
            Wanted::Small => mirror.small.is_some() || self.allocate_small(mirror),
        }
    }

    #[cold]
    fn allocate_large(&mut self, mirror: &mut Mirror) -> bool {
        if mirror.small.or(mirror.kept).is_none() {
            mirror.kept = self.pages.allocate(SMALL_PT_BYTES);
        }
        if mirror.small.or(mirror.kept).is_none() {
            return false;
        }
        mirror.large = self.allocate(LARGE_PT_BYTES);
        self.write_pde(mirror);
        mirror.large.is_some()
    }

    #[cold]
    fn allocate_small(&mut self, mirror: &mut Mirror) -> bool {
        mirror.small = match mirror.kept.take() {
            Some(at) => Some(self.clear(at, SMALL_PT_BYTES)),
            None => self.allocate(SMALL_PT_BYTES),
        };
        self.write_pde(mirror);
        mirror.small.is_some()
    }

    /// Allocates a table of zeros.
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr> {
        let at = self.pages.allocate(bytes)?;
        Some(self.clear(at, bytes))
    }

    fn clear(&mut self, at: VramAddr, bytes: u64) -> VramAddr {
        write_zeros(self.writer, at, bytes);
        self.built.entries += bytes / 8;
        at
    }

    fn write_pde(&mut self, mirror: &mut Mirror) {
        let mut pde = Pde::new();
        if let Some(at) = mirror.large {
            pde = pde
                .with_large_aperture(PdeAperture::Vram)
                .with_large_frame((at.0 / SMALL_PAGE) as u32);
        }
        if let Some(at) = mirror.small {
            pde = pde
                .with_small_aperture(PdeAperture::Vram)
                .with_small_frame((at.0 / SMALL_PAGE) as u32);
        }
        if pde.into_bits() != mirror.pde {
            mirror.pde = pde.into_bits();
            self.built.entries += 1;
            let at = self.directory.offset(u64::from(mirror.index) * 8);
            self.writer.write(at, &[mirror.pde]);
        }
    }

    /// Translates one slot. The frames and RAM that it refers to are in `frames` and `ram` afterwards; for a large
    /// entry they are in the result.
    #[inline]
    fn translate(&mut self, slot: GuestSlot<'_>) -> Wanted {
        if let GuestSlot::Large(raw) = slot
            && let Some(wanted) = self.translate_large(raw)
        {
            return wanted;
        }
        self.frames.clear();
        self.ram = NO_RAM;
        match slot {
            GuestSlot::Empty => Wanted::Empty,
            GuestSlot::Large(raw) => self.translate_split(raw),
            GuestSlot::Small(raws) => self.translate_small(raws),
        }
    }

    fn translate_small(&mut self, raws: &[u64; SMALL_PER_LARGE]) -> Wanted {
        let mut any = 0;
        let mut from = 0;
        while from < SMALL_PER_LARGE {
            let raw = raws[from];
            let rest = &raws[from..];
            let run = rest
                .iter()
                .position(|&other| !same_frame(raw, other))
                .unwrap_or(rest.len());
            if is_valid(raw) {
                any |= self.translate_run(&raws[from..from + run], from);
            } else {
                self.entries[from..from + run].fill(0);
            }
            from += run;
        }
        if any == 0 { Wanted::Empty } else { Wanted::Small }
    }

    /// Translates valid entries that differ in nothing but the page of one frame, to `entries` from `target` on.
    /// Returns whether any became valid, as bits.
    #[inline]
    fn translate_run(&mut self, raws: &[u64], target: usize) -> u64 {
        let frame = page_of(raws[0]) / SMALL_PER_LARGE as u32;
        if let Ok(class) = self.classifier.classify(raws[0])
            && !class.is_ram
            && frame < self.guest_frames
            && let FramePlacement::Uniform(place) = self.frame(frame)
            && let Some(first) = match place {
                Placement::Vram(at) => EntryPage::first_of_frame(at.0).map(|page| class.vram_entry(page)),
                Placement::Sysram(at) => EntryPage::first_of_frame(at.0).map(|page| class.sysram_entry(page)),
                Placement::Unbacked | Placement::Outside => None,
            }
        {
            self.frames.add(frame, class.writable);
            for (entry, &raw) in self.entries[target..].iter_mut().zip(raws) {
                // Cannot carry out of the frame's field: the last page of the frame fits into it.
                *entry = first + (raw & IN_FRAME_BITS);
            }
            return first;
        }
        let mut any = 0;
        for (index, &raw) in raws.iter().enumerate() {
            self.entries[target + index] = self.translate_page(raw);
            any |= self.entries[target + index];
        }
        any
    }

    /// Translates a large entry whose frame is one piece of VRAM. The frame that it refers to is in the result.
    #[inline]
    fn translate_large(&mut self, raw: u64) -> Option<Wanted> {
        let class = self.classifier.classify(raw).ok()?;
        let page = page_of(raw);
        let frame = page / SMALL_PER_LARGE as u32;
        if class.is_ram || !page.is_multiple_of(SMALL_PER_LARGE as u32) || frame >= self.guest_frames {
            return None;
        }
        match self.placements.frame(GuestFrame(frame).base()) {
            FramePlacement::Uniform(Placement::Vram(at)) if at.is_aligned(FRAME) => {
                let entry = class.vram_entry(EntryPage::first_of_frame(at.0)?);
                let writable = class.writable;
                Some(Wanted::Large {
                    entry,
                    frame,
                    writable,
                })
            }
            _ => None,
        }
    }

    /// Translates any other large entry: the same 32 pages as small entries.
    fn translate_split(&mut self, raw: u64) -> Wanted {
        if let Err(refusal) = self.classifier.classify(raw) {
            self.count_refusal(refusal);
            return Wanted::Empty;
        }
        if !page_of(raw).is_multiple_of(SMALL_PER_LARGE as u32) {
            self.built.dropped.misaligned += 1;
            return Wanted::Empty;
        }
        self.translate_small(&std::array::from_fn(|page| raw | (page as u64) << 4))
    }

    /// The shadow entry of one valid small entry, 0 if it is to be absent.
    #[inline]
    fn translate_page(&mut self, raw: u64) -> u64 {
        let class = match self.classifier.classify(raw) {
            Ok(class) => class,
            Err(refusal) => {
                self.count_refusal(refusal);
                return 0;
            }
        };
        let page = page_of(raw);
        let place = if class.is_ram {
            self.ram.first = self.ram.first.min(page);
            self.ram.last = self.ram.last.max(page);
            self.placements.ram(Gpa(u64::from(page) * SMALL_PAGE))
        } else {
            let frame = page / SMALL_PER_LARGE as u32;
            if frame >= self.guest_frames {
                self.built.dropped.outside += 1;
                return 0;
            }
            self.frames.add(frame, class.writable);
            let within = u64::from(page % SMALL_PER_LARGE as u32) * SMALL_PAGE;
            match self.frame(frame) {
                FramePlacement::Uniform(place) => return self.entry_of(class, place, within),
                FramePlacement::Mixed => self.placements.vram(GuestVramAddr(u64::from(page) * SMALL_PAGE)),
            }
        };
        self.entry_of(class, place, 0)
    }

    /// The entry of the page `within` bytes behind a place, 0 if it is to be absent.
    #[inline]
    fn entry_of(&mut self, class: Class, place: Placement, within: u64) -> u64 {
        let named = |at: u64| at.checked_add(within).and_then(EntryPage::at);
        let entry = match place {
            Placement::Vram(at) => named(at.0).map(|page| class.vram_entry(page)),
            Placement::Sysram(at) => named(at.0).map(|page| class.sysram_entry(page)),
            Placement::Unbacked => {
                self.built.unbacked += 1;
                return 0;
            }
            Placement::Outside => {
                self.built.dropped.outside += 1;
                return 0;
            }
        };
        self.built.misplaced += u64::from(entry.is_none());
        entry.unwrap_or(0)
    }

    #[inline]
    fn frame(&mut self, frame: u32) -> FramePlacement {
        if let Some((known, placement)) = self.last_frame
            && known == frame
        {
            return placement;
        }
        let placement = self.placements.frame(GuestFrame(frame).base());
        self.last_frame = Some((frame, placement));
        placement
    }

    #[cold]
    fn count_refusal(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Peer => self.built.dropped.peer += 1,
            Refusal::Kind => self.built.dropped.kind += 1,
        }
    }
}
