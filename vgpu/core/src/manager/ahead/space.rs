//! A channel's address space as its guest's tables show it: where the addresses of work lie.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fermi_spec::addr::{GpuVa, LARGE_PAGE, PDE_SPAN, SMALL_PAGE};
use kernel_sets::Bound;
use launches::{GpuMemory, Item, Launch, Target, Unmapped, Work};
use shadow_pt::{GuestDirectory, Placement, TableAt, TableRead, TableStore, Walk, WalkedPage, walk};

use super::codes::Codes;
use crate::device::tables::Reader;
use crate::event::Tick;
use crate::memory::{ChunkNo, GuestPage};

/// Most steps through tables in one look, whatever it finds. What lies beyond is not looked up.
const STEPS_MAX: u32 = 8192;
/// Most steps from a pointer to each end of the mapped run that holds it.
const RUN_STEPS: u32 = 256;
/// Pages and addresses of a channel whose places are kept.
const PLACES_MAX: usize = 512;

/// Chunks by entry of a ring.
pub(super) type Sets = BTreeMap<u64, BTreeSet<ChunkNo>>;

/// Where addresses were found, until the guest's tables are read anew.
#[derive(Debug, Default)]
pub(super) struct Places {
    synced_at: Option<Tick>,
    pages: BTreeMap<u64, TableAt>,
    runs: BTreeMap<u64, Range<u64>>,
    chunks: BTreeMap<(u64, u64), BTreeSet<ChunkNo>>,
}

impl Places {
    /// Those that hold still.
    pub(super) fn of(self, synced_at: Option<Tick>) -> Self {
        let are_many = self.chunks.len() + self.runs.len() + self.pages.len() > PLACES_MAX;
        match self.synced_at == synced_at && !are_many {
            true => self,
            false => Self {
                synced_at,
                ..Self::default()
            },
        }
    }
}

/// Memory of a channel's space, as its guest's tables show it.
pub(super) struct SpaceMemory<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) directory: GuestDirectory,
    /// Walks through tables so far.
    pub(super) steps: u32,
    pub(super) places: Places,
    /// Code of the VM's, as it was a short time ago.
    pub(super) codes: &'a Codes,
    pub(super) now: Tick,
    /// Pages in VRAM that code was read from, and that are not kept.
    pub(super) code_pages: BTreeSet<GuestPage>,
}

impl GpuMemory for SpaceMemory<'_> {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let target = self.target(at)?;
        match self.reader.read(target, bytes) {
            TableRead::Done => Ok(()),
            TableRead::Missing | TableRead::Outside => Err(Unmapped),
        }
    }

    fn read_code(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        if let TableAt::Vram(place) = self.target(at)?
            && let Placement::Vram(_) = self.reader.chunks.locate(place)
        {
            let (page, from) = (GuestPage::of(place), place.within(SMALL_PAGE) as usize);
            let kept = self.codes.page(page, self.now);
            match kept.and_then(|kept| kept.get(from..from + bytes.len())) {
                Some(kept) => {
                    bytes.copy_from_slice(kept);
                    return Ok(());
                }
                None => self.code_pages.insert(page),
            };
        }
        self.read(at, bytes)
    }
}

impl SpaceMemory<'_> {
    /// Where an address leads.
    fn target(&mut self, at: GpuVa) -> Result<TableAt, Unmapped> {
        let within = at.0 % SMALL_PAGE;
        let start = match self.places.pages.get(&(at.0 - within)) {
            Some(page) => *page,
            None => {
                let start = self.page(at.0 - within).map_err(|_| Unmapped)?.target;
                self.places.pages.insert(at.0 - within, start);
                start
            }
        };
        Ok(start.offset(within))
    }

    /// The page at an address, or the first address behind it where there may be one.
    fn page(&mut self, at: u64) -> Result<WalkedPage, u64> {
        self.steps += 1;
        match walk(self.directory, GpuVa(at), &mut self.reader) {
            Walk::Page(page) => Ok(page),
            Walk::NoTable | Walk::BeyondLimit => Err((at | (PDE_SPAN - 1)) + 1),
            Walk::TableTooShort | Walk::NotPresent | Walk::Peer | Walk::InvalidKind | Walk::Missing(_) => {
                Err((at | (SMALL_PAGE - 1)) + 1)
            }
        }
    }

    /// Steps that may be taken to one end of a run.
    fn run_steps(&self) -> u32 {
        RUN_STEPS.min(STEPS_MAX.saturating_sub(self.steps))
    }

    /// The mapped run of addresses that holds a pointer, as far as it is looked for.
    fn run(&mut self, at: u64) -> Range<u64> {
        let (mut start, mut end) = (at, at);
        for _ in 0..self.run_steps() {
            let Ok(page) = self.page(end) else { break };
            end += page.bytes_left;
        }
        for _ in 0..self.run_steps() {
            let Some(before) = start.checked_sub(1) else { break };
            let (large, small) = (before & !(LARGE_PAGE - 1), before & !(SMALL_PAGE - 1));
            start = match self.page(large) {
                Ok(page) if page.bytes_left == LARGE_PAGE => large,
                _ if self.page(small).is_ok() => small,
                _ => break,
            };
        }
        start..end
    }

    /// Chunks that work will use, by entry. `first` is the number of the observer's first one.
    pub(super) fn sets(&mut self, items: &[Item], first: u64) -> Sets {
        let mut sets = Sets::new();
        for item in items {
            let ranges = self.ranges_of(&item.work);
            if !ranges.is_empty() {
                self.add_chunks(ranges, sets.entry(first + item.entry).or_default());
            }
        }
        sets
    }

    /// Addresses that work will use, as far as they are known: of launches and copies.
    fn ranges_of(&mut self, work: &Work) -> Vec<Range<u64>> {
        match work {
            Work::Launch(launch) => self.ranges_of_launch(launch),
            Work::Copy(copy) => {
                let sides = copy.from.iter().chain([&copy.to]);
                sides.map(Target::bytes).collect()
            }
            Work::Grid(_) | Work::Release { .. } | Work::Acquire { .. } | Work::Wait | Work::Opaque(_) => {
                Vec::new()
            }
        }
    }

    fn ranges_of_launch(&mut self, launch: &Launch) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = launch.fetches.clone();
        ranges.extend(launch.scratch.clone());
        for access in &launch.sets.accesses {
            let range = match (access.bound, access.root) {
                (Bound::Space, _) => continue,
                (Bound::Run, Some(root)) => {
                    let known = self.places.runs.get(&root.address).cloned();
                    let run = known.unwrap_or_else(|| self.run(root.address));
                    self.places.runs.insert(root.address, run.clone());
                    access.within(|_| Some(run.clone()))
                }
                _ => access.bytes.clone(),
            };
            ranges.push(range);
        }
        ranges
    }

    /// Adds the chunks that lie at addresses, as far as [`STEPS_MAX`] leads.
    fn add_chunks(&mut self, ranges: Vec<Range<u64>>, chunks: &mut BTreeSet<ChunkNo>) {
        for range in ranges {
            let key = (range.start, range.end);
            if let Some(known) = self.places.chunks.get(&key) {
                chunks.extend(known);
                continue;
            }
            let found = self.chunks_at(range);
            chunks.extend(&found);
            self.places.chunks.insert(key, found);
        }
    }

    fn chunks_at(&mut self, range: Range<u64>) -> BTreeSet<ChunkNo> {
        let (mut chunks, mut at) = (BTreeSet::new(), range.start);
        while at < range.end && self.steps < STEPS_MAX {
            at = match self.page(at) {
                Ok(page) => {
                    if let TableAt::Vram(target) = page.target {
                        chunks.extend(self.reader.chunks.of(target));
                    }
                    at + page.bytes_left
                }
                Err(next) => next,
            };
        }
        chunks
    }
}
