//! One guest address space and its shadow.
//!
//! ```text
//! refresh:  guest tables ─► snapshot, changed slots          (Missing: fetch the pages, repeat; Unfinished: repeat)
//! (caller)  backs pending_frames()
//! build:    changed slots ─► shadow entries, reverse index   (then flush the TLB, then free what `Built` lists)
//! redirect: slots of a frame or RAM range ─► shadow entries  (then the same)
//! ```
//!
//! The reverse index describes the shadow as built, not the guest's later changes. It may name frames whose entries
//! are absent because they have no memory yet: backing such a frame is a redirect, too.

use crate::build::{Builder, Built, Mirror, TableRange};
use crate::dirty::DirtyPages;
use crate::entry::{Classifier, is_valid, page_of};
use crate::output::{Scratch, write_zeros};
use crate::placement::{Placements, ShadowWriter, TablePages};
use crate::region::{GuestSlot, PAGE_ENTRIES, SLOTS, has_table, read_entries};
use crate::reverse::{GuestFrame, Reach, ReverseIndex};
use crate::saved;
use crate::store::{GuestDirectory, TableAt, TableRead, TableStore};
use crate::work::{LARGE_BUILT, PAGE_ASKED, PAGE_COMPARED, SLOT_BUILT, SLOT_SEEN, Work};
use fermi_spec::addr::{FRAME, SMALL_PAGE, VramAddr};
use fermi_spec::pte::{PD_BYTES, PD_ENTRIES, Pde, SMALL_PER_LARGE};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod names;
mod redirect;
mod rescan;
mod sound;

pub use redirect::{RedirectAt, Reserved};

/// The directory entry, the last one, that is the host's in every shadow: what a guest has there is as absent. The caller writes it.
pub const HOST_ENTRY: u16 = PD_ENTRIES as u16 - 1;

/// Pages of a guest's directory.
const DIRECTORY_PAGES: usize = PD_ENTRIES / PAGE_ENTRIES;

/// Bounds of an address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShadowConfig {
    /// Bytes of VRAM that the guest sees. Entries beyond are dropped without asking for a placement.
    pub guest_vram_bytes: u64,
    /// Directory entries (128 MiB each) that may have tables at a time; further ones are treated as absent and counted.
    /// Bounds VRAM to 264 KiB for each, and host memory to 280 KiB for each, or 1.1 MiB where a guest maps every small
    /// page to another frame.
    pub tables_max: usize,
}

impl ShadowConfig {
    /// The usual bounds, 8 GiB of virtual address space, for a guest with that much VRAM.
    pub const fn for_guest_vram(guest_vram_bytes: u64) -> Self {
        Self {
            guest_vram_bytes,
            tables_max: 64,
        }
    }
}

/// Failures of the host. The content of a guest's tables never causes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ShadowError {
    /// [`TablePages`] refused the directory.
    #[error("no VRAM left for the shadow directory of {guest} ({PD_BYTES} bytes)")]
    NoDirectory {
        /// Place of the guest's directory.
        guest: TableAt,
    },
}

/// Counts of a refresh, its repetitions included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// Guest entries read and compared, directory entries included.
    pub compared: u64,
    /// Number of those that differ from the snapshot.
    pub changed: u64,
    /// Directory entries now treated as absent: too many have tables, or it is [`HOST_ENTRY`].
    pub refused: u64,
}

/// How a refresh ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refresh {
    /// The snapshot equals the guest's tables.
    Done(Changes),
    /// These pages are not at hand, and perhaps others. Fetch them and repeat: the snapshot is a mixture of old and new, as
    /// a TLB would be. Each repeat gets further.
    Missing(Vec<TableAt>),
    /// The work is used up. Repeat with more.
    Unfinished,
}

/// What [`ShadowSpace::pending_frames`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Frames, and how the next build will let them be reached.
    pub frames: Vec<(GuestFrame, Reach)>,
    /// Nothing is left to look at.
    pub is_complete: bool,
}

/// Most pages that a refresh names as missing in one go, but for the directory's.
pub(crate) const MISSING_MAX: usize = 64;

/// How far a refresh, a look for pending frames and a build have come that were left off.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// Directory entries below it were asked which of their pages are dirty; `None`: a refresh begins anew.
    marked: Option<u16>,
    /// Directory entries below it were looked at.
    sought: u16,
    /// A directory entry and a slot of it: changed slots below are built, or were refused a table.
    built: (u16, u16),
}

/// A guest's address space: snapshot of its tables, and their shadow in VRAM.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShadowSpace {
    config: ShadowConfig,
    guest: GuestDirectory,
    directory: VramAddr,
    #[serde(with = "saved::runs")]
    guest_pdes: Box<[u64; PD_ENTRIES]>,
    /// Bit n: directory page n has to be read.
    unread: u16,
    mirrors: BTreeMap<u16, Mirror>,
    /// Directory entries that have tables but no mirror, for want of room.
    refused: BTreeSet<u16>,
    index: ReverseIndex,
    #[serde(skip)]
    scratch: Box<Scratch>,
    /// Counts of a refresh that had to be repeated, so far.
    changes: Changes,
    progress: Progress,
}

impl ShadowSpace {
    /// Allocates the shadow directory (64 KiB) and writes it empty.
    ///
    /// # Errors
    /// [`ShadowError::NoDirectory`] when `pages` refuses it.
    pub fn new(
        guest: GuestDirectory,
        config: ShadowConfig,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
    ) -> Result<Self, ShadowError> {
        let directory = pages
            .allocate(PD_BYTES)
            .ok_or(ShadowError::NoDirectory { guest: guest.at })?;
        write_zeros(writer, directory, PD_BYTES);
        Ok(Self {
            config,
            guest,
            directory,
            guest_pdes: Box::new([0; PD_ENTRIES]),
            unread: u16::MAX,
            mirrors: BTreeMap::new(),
            refused: BTreeSet::new(),
            index: ReverseIndex::new(),
            scratch: Box::default(),
            changes: Changes::default(),
            progress: Progress::default(),
        })
    }

    /// The shadow directory, for the shadow instance block.
    pub fn directory(&self) -> VramAddr {
        self.directory
    }

    /// The guest's directory.
    pub fn guest_directory(&self) -> GuestDirectory {
        self.guest
    }

    /// Reads the guest's changes in its tables: a table whole when it is first seen, later the pages that `dirty`
    /// names, and those that this space lets the GPU write. Nothing is translated or written. It may have so many
    /// tables and no more; what would be one too many is refused.
    ///
    /// `dirty` is asked once for each page, however often a refresh has to be repeated.
    pub fn refresh(
        &mut self,
        store: &mut dyn TableStore,
        dirty: &dyn DirtyPages,
        tables_max: usize,
        work: &mut Work,
    ) -> Refresh {
        let mut changes = std::mem::take(&mut self.changes);
        let mut missing = Vec::new();
        let index = &self.index;
        let is_dirty = |at| dirty.is_dirty(at) || index.is_written(at);
        let mut marked = self.progress.marked.unwrap_or_else(|| {
            work.add(DIRECTORY_PAGES as u64 * PAGE_ASKED);
            let pages =
                (0..DIRECTORY_PAGES).map(|page| (page, self.guest.at.offset(page as u64 * SMALL_PAGE)));
            for (page, _) in pages.filter(|(_, at)| is_dirty(*at)) {
                self.unread |= 1 << page;
            }
            0
        });
        self.read_directory(store, &mut changes, &mut missing, work);
        self.retry_refused(tables_max, &mut changes);
        let index = &self.index;
        let is_dirty = |at| dirty.is_dirty(at) || index.is_written(at);
        for (&number, mirror) in self.mirrors.range_mut(marked..) {
            mirror.guest.mark(is_dirty, work);
            marked = number + 1;
            if work.is_used_up() {
                break;
            }
        }
        for mirror in self.mirrors.values_mut() {
            mirror.guest.read(store, &mut changes, &mut missing, work);
        }
        let is_hidden = has_table(self.guest_pdes[usize::from(HOST_ENTRY)]);
        changes.refused = self.refused.len() as u64 + u64::from(is_hidden);
        let is_read = self.mirrors.range(marked..).next().is_none()
            && self.mirrors.values().all(|mirror| !mirror.guest.is_unread());
        if missing.is_empty() && is_read {
            self.progress.marked = None;
            return Refresh::Done(changes);
        }
        self.progress.marked = Some(marked);
        self.changes = changes;
        match missing.is_empty() {
            true => Refresh::Unfinished,
            false => Refresh::Missing(missing),
        }
    }

    fn read_directory(
        &mut self,
        store: &mut dyn TableStore,
        changes: &mut Changes,
        missing: &mut Vec<TableAt>,
        work: &mut Work,
    ) {
        for page in (0..DIRECTORY_PAGES)
            .filter(|page| self.unread & 1 << page != 0)
            .collect::<Vec<_>>()
        {
            let at = self.guest.at.offset(page as u64 * SMALL_PAGE);
            let mut fresh = [0; PAGE_ENTRIES];
            work.add(PAGE_COMPARED);
            match read_entries(store, at, &mut fresh) {
                TableRead::Done | TableRead::Outside => {
                    self.unread &= !(1 << page);
                    changes.compared += PAGE_ENTRIES as u64;
                    self.store_directory(page, &fresh, changes);
                }
                TableRead::Missing => missing.push(at),
            }
        }
    }

    fn store_directory(&mut self, page: usize, fresh: &[u64; PAGE_ENTRIES], changes: &mut Changes) {
        let first = page * PAGE_ENTRIES;
        if self.guest_pdes[first..first + PAGE_ENTRIES] == *fresh {
            return;
        }
        for (index, &pde) in (first..).zip(fresh) {
            if std::mem::replace(&mut self.guest_pdes[index], pde) != pde {
                changes.changed += 1;
                self.set_pde(index as u16, changes);
            }
        }
    }

    fn set_pde(&mut self, index: u16, changes: &mut Changes) {
        if index == HOST_ENTRY {
            return;
        }
        let pde = self.guest_pdes[usize::from(index)];
        self.refused.remove(&index);
        if let Some(mirror) = self.mirrors.get_mut(&index) {
            mirror.guest.set_pde(Pde::from_bits(pde), changes);
        } else if has_table(pde) {
            self.refused.insert(index);
        }
    }

    /// Gives mirrors to entries without one, lowest first. Those that the guest emptied do not count, but the next
    /// build has yet to remove them, so they are bounded as well.
    fn retry_refused(&mut self, tables_max: usize, changes: &mut Changes) {
        let tables_max = tables_max.min(self.config.tables_max);
        let mut live = self
            .mirrors
            .values()
            .filter(|mirror| mirror.guest.is_live())
            .count();
        while live < tables_max && self.mirrors.len() < self.config.tables_max.saturating_mul(2) {
            let Some(index) = self.refused.pop_first() else {
                return;
            };
            let mut mirror = Mirror::new(index);
            let pde = Pde::from_bits(self.guest_pdes[usize::from(index)]);
            mirror.guest.set_pde(pde, changes);
            self.mirrors.insert(index, mirror);
            live += 1;
        }
    }

    /// The guest-VRAM frames that changed slots refer to and the next build will ask placements for, each once, in
    /// order. Back them first, or they become not present. Goes on where the last call was left off, as far as the work
    /// goes.
    pub fn pending_frames(&mut self, work: &mut Work) -> Pending {
        let mut classifier = Classifier::new();
        let mut frames: Vec<(GuestFrame, Reach)> = Vec::new();
        let guest_frames = self.guest_frames();
        let mut add = |raw: u64| {
            let frame = page_of(raw) / SMALL_PER_LARGE as u32;
            if is_valid(raw)
                && frame < guest_frames
                && let Ok(class) = classifier.classify(raw)
                && !class.is_ram
            {
                match frames.last_mut() {
                    Some((last, reach)) if last.0 == frame => reach.writable |= class.writable,
                    _ => frames.push((
                        GuestFrame(frame),
                        Reach {
                            writable: class.writable,
                        },
                    )),
                }
            }
        };
        let mut is_complete = true;
        for (&number, mirror) in self.mirrors.range(self.progress.sought..) {
            if work.is_used_up() {
                self.progress.sought = number;
                is_complete = false;
                break;
            }
            work.add(mirror.guest.changed.len() * SLOT_SEEN);
            for slot in mirror.guest.changed.iter() {
                match mirror.guest.slot(slot) {
                    GuestSlot::Empty => {}
                    GuestSlot::Large(raw) if !page_of(raw).is_multiple_of(SMALL_PER_LARGE as u32) => {}
                    GuestSlot::Large(raw) => add(raw),
                    GuestSlot::Small(raws) => raws.iter().for_each(|&raw| add(raw)),
                }
            }
        }
        frames.sort_unstable_by_key(|(frame, _)| *frame);
        frames.dedup_by(|next, kept| {
            kept.1.writable |= next.0 == kept.0 && next.1.writable;
            next.0 == kept.0
        });
        if is_complete {
            self.progress.sought = 0;
        }
        Pending { frames, is_complete }
    }

    /// Translates the changed slots with the placements of now and writes the shadow entries, as far as the work goes;
    /// the next call goes on. Afterwards flush the TLB, then free what the results list.
    pub fn build(
        &mut self,
        placements: &dyn Placements,
        pages: &mut dyn TablePages,
        writer: &mut dyn ShadowWriter,
        work: &mut Work,
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
        let (first, mut slot) = self.progress.built;
        let gone: Vec<u16> = self
            .mirrors
            .iter()
            .filter(|(_, mirror)| !mirror.guest.is_live())
            .map(|(&index, _)| index)
            .collect();
        for index in gone {
            if work.is_used_up() {
                return builder.finish(false);
            }
            work.add(SLOTS as u64 * SLOT_SEEN);
            if let Some(mirror) = self.mirrors.remove(&index) {
                builder.remove(mirror);
            }
        }
        for (&number, mirror) in self.mirrors.range_mut(first..) {
            if number != first {
                slot = 0;
            }
            while !mirror.guest.changed.is_empty() {
                if work.is_used_up() {
                    self.progress.built = (number, slot);
                    return builder.finish(false);
                }
                let slots = mirror.guest.changed.from(usize::from(slot), work.slots_left());
                let Some(last) = slots.iter().last() else { break };
                for slot in slots.iter() {
                    work.add(match mirror.guest.slot(slot) {
                        GuestSlot::Small(_) => SLOT_BUILT,
                        GuestSlot::Empty | GuestSlot::Large(_) => LARGE_BUILT,
                    });
                }
                builder.build(mirror, &slots, true);
                slot = last as u16 + 1;
            }
        }
        self.progress.built = (0, 0);
        builder.finish(true)
    }

    /// Bytes of host memory that the snapshot and the index of this space take.
    pub fn heap_bytes(&self) -> u64 {
        let mirrors: u64 = self.mirrors.values().map(Mirror::heap_bytes).sum();
        mirrors + self.index.heap_bytes() + size_of_val(&*self.guest_pdes) as u64
    }

    /// Directory entries whose tables it holds a snapshot of.
    pub fn table_count(&self) -> usize {
        self.mirrors.len()
    }

    /// How the shadow, as last built, reaches the frame; `None` if not at all.
    pub fn reaches(&self, frame: GuestFrame) -> Option<Reach> {
        self.index.reaches(frame)
    }

    /// Every frame that the shadow, as last built, reaches, in order.
    pub fn referenced(&self) -> impl Iterator<Item = (GuestFrame, Reach)> {
        self.index.iter()
    }

    /// The 4 KiB guest pages that hold the directory and the tables, as of the last refresh. Pages that several
    /// directory entries share come more than once.
    #[cfg(test)]
    pub(crate) fn table_pages(&self) -> impl Iterator<Item = TableAt> {
        let directory = (0..DIRECTORY_PAGES as u64).map(|page| self.guest.at.offset(page * SMALL_PAGE));
        directory.chain(
            self.mirrors
                .values()
                .flat_map(|mirror| mirror.guest.table_pages()),
        )
    }

    /// The shadow's own tables, the directory first.
    pub fn tables(&self) -> impl Iterator<Item = TableRange> {
        let directory = TableRange {
            at: self.directory,
            bytes: PD_BYTES,
        };
        std::iter::once(directory).chain(self.mirrors.values().flat_map(Mirror::tables))
    }

    /// Gives all tables back. No instance block refers to the directory any more, and the TLB has been flushed since.
    pub fn release(self, pages: &mut dyn TablePages) {
        for table in self.mirrors.values().flat_map(Mirror::tables) {
            pages.free(table.at, table.bytes);
        }
        pages.free(self.directory, PD_BYTES);
    }

    fn guest_frames(&self) -> u32 {
        u32::try_from(self.config.guest_vram_bytes / FRAME).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests;
