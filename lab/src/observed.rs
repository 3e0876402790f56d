//! A bare machine whose channels are looked at: what is found at each doorbell, and what the card then executes.
//!
//! Both sides are independent: `launches` reads rings and pushbuffers through the guest's page tables, the card's watcher
//! sees grids start and the addresses of each instruction.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use card::BareMachine;
use fermi_model::{GridStart, WarpStep, WarpWatcher};
use fermi_spec::addr::{Aperture, Gpa, GpuVa, GuestVramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::instance::{AddressSpacePointer, USERD_BYTES, offset, userd};
use fermi_spec::regs::pfifo::ChannelInstance;
use fermi_spec::regs::{Bar0Reg, PfifoReg};
use guests::GuestBus;
use kernel_sets::Cache;
use launches::{CopyMethods, GpuMemory, Item, Limits, Looked, Observer, Ring, Unmapped};
use shadow_pt::{GuestDirectory, TableAt, TableRead, TableStore, Walk, walk};
use vm_memory::{MmapRegion, VolatileMemory};

/// Channels of the guests' driver, whose pages with doorbells BAR1 shows from its start on.
const CHANNELS: u64 = 8;
/// Launches whose sets are kept.
const CACHE_ENTRIES: usize = 64;
/// Bytes of a block of touched memory.
const BLOCK_BYTES: u64 = 64;

/// Bytes that were touched.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    /// A bit for each byte, by block.
    blocks: BTreeMap<u64, u64>,
}

impl Touched {
    fn touch(&mut self, bytes: Range<u64>) {
        for at in bytes {
            *self.blocks.entry(at / BLOCK_BYTES).or_default() |= 1 << (at % BLOCK_BYTES);
        }
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks
            .values()
            .map(|bits| u64::from(bits.count_ones()))
            .sum()
    }

    /// Whether all bytes lie in one of the ranges.
    pub(crate) fn is_within(&self, ranges: &[Range<u64>]) -> bool {
        self.blocks.iter().all(|(block, bits)| {
            let start = block * BLOCK_BYTES;
            let is_inside = |at: u64| ranges.iter().any(|range| range.contains(&at));
            let whole = |range: &Range<u64>| range.start <= start && start + BLOCK_BYTES <= range.end;
            ranges.iter().any(whole)
                || (0..BLOCK_BYTES).all(|bit| bits >> bit & 1 == 0 || is_inside(start + bit))
        })
    }

    /// Whether every byte of the ranges was touched.
    pub(crate) fn has_all(&self, ranges: &[Range<u64>]) -> bool {
        let has = |at: u64| {
            let bits = self.blocks.get(&(at / BLOCK_BYTES));
            bits.is_some_and(|bits| bits >> (at % BLOCK_BYTES) & 1 != 0)
        };
        ranges.iter().cloned().all(|mut range| range.all(has))
    }

    /// Adds what another has.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (block, bits) in &other.blocks {
            *self.blocks.entry(*block).or_default() |= bits;
        }
    }
}

/// What an instruction of a grid reached: loads, stores.
pub(crate) type Reached = BTreeMap<u32, [Touched; 2]>;

/// A grid that the card executed.
#[derive(Clone, Debug)]
pub(crate) struct Executed {
    pub(crate) start: GridStart,
    /// Bytes by the instruction's place in the code.
    pub(crate) reached: Reached,
}

/// Collects what the card executes.
struct Collector(Arc<Mutex<Vec<Executed>>>);

impl WarpWatcher for Collector {
    fn start(&mut self, grid: &GridStart) {
        let mut grids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grids.push(Executed {
            start: *grid,
            reached: Reached::new(),
        });
    }

    fn see(&mut self, step: &WarpStep<'_>) {
        let Some(global) = step.global.as_ref().filter(|global| global.lanes != 0) else {
            return;
        };
        let mut grids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(grid) = grids.last_mut() else { return };
        let [loaded, stored] = grid.reached.entry(step.pc).or_default();
        for lane in (0..32).filter(|lane| global.lanes >> lane & 1 != 0) {
            let at = global.addresses[lane];
            let bytes = at..at + u64::from(global.bytes);
            if global.is_load {
                loaded.touch(bytes.clone());
            }
            if global.is_store {
                stored.touch(bytes);
            }
        }
    }
}

/// A bare machine, an observer of each channel, and what both saw.
pub(crate) struct ObservedMachine {
    pub(crate) machine: BareMachine,
    observers: BTreeMap<u64, Observer>,
    cache: Cache,
    /// What was found, by channel, in the order of the doorbells.
    pub(crate) found: Vec<(u64, Item)>,
    /// Mapped run of addresses that held each pointer of a launch when it was found.
    runs: BTreeMap<u64, Range<u64>>,
    executed: Arc<Mutex<Vec<Executed>>>,
}

impl ObservedMachine {
    /// One that keeps what its grids reach, byte by byte.
    pub(crate) fn new(machine: BareMachine) -> Self {
        let executed = Arc::default();
        let collector = Collector(Arc::clone(&executed));
        Self {
            executed,
            ..Self::watched_by(machine, Box::new(collector))
        }
    }

    /// One whose card is watched by somebody else: [`Self::executed`] stays empty.
    pub(crate) fn watched_by(mut machine: BareMachine, watcher: Box<dyn WarpWatcher>) -> Self {
        machine.card.model.watch_warps(Some(watcher));
        Self {
            machine,
            observers: BTreeMap::new(),
            cache: Cache::new(CACHE_ENTRIES),
            found: Vec::new(),
            runs: BTreeMap::new(),
            executed: Arc::default(),
        }
    }

    /// What the card executed, in its order.
    pub(crate) fn executed(&self) -> Vec<Executed> {
        let grids = self.executed.lock().unwrap_or_else(PoisonError::into_inner);
        grids.clone()
    }

    /// The mapped run that held an address when a launch was found that has it as a pointer.
    pub(crate) fn run_of(&self, at: u64) -> Option<Range<u64>> {
        self.runs.get(&at).cloned()
    }

    /// A guest rings a channel.
    fn doorbell(&mut self, channel: u64, put: u32) {
        let entry = self.machine.card.read(PfifoReg::ChannelInstance(channel as u16));
        let entry = ChannelInstance::from_bits(entry);
        if entry.aperture() != Aperture::Vram {
            return;
        }
        let get = self.read32(Bar::Bar1, channel * USERD_BYTES + userd::GP_GET);
        let card = &self.machine.card;
        let tables = Tables {
            vram: &card.vram,
            ram: &card.ram,
        };
        let Some(mut space) = Space::of(tables, u64::from(entry.frame()) << 12) else {
            return;
        };
        let observer = self
            .observers
            .entry(channel)
            .or_insert_with(|| Observer::new(space.ring, CopyMethods::Nouveau, get));
        let mut items = Vec::new();
        let range = [get, put];
        while observer.look(&mut space, &mut self.cache, range, Limits::default(), &mut items) == Looked::More
        {
        }
        for item in items {
            if let launches::Work::Launch(launch) = &item.work {
                let roots = launch.sets.accesses.iter().filter_map(|access| access.root);
                for root in roots.map(|root| root.address) {
                    if !self.runs.contains_key(&root)
                        && let Some(run) = space.run(root)
                    {
                        self.runs.insert(root, run);
                    }
                }
            }
            self.found.push((channel, item));
        }
    }
}

impl GuestBus for ObservedMachine {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        self.machine.read32(bar, offset)
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        let channel = offset / USERD_BYTES;
        if bar == Bar::Bar1 && channel < CHANNELS && offset % USERD_BYTES == userd::GP_PUT {
            self.doorbell(channel, value);
        }
        if bar == Bar::Bar0 {
            // Another channel may be there from now on.
            let place = |channel: &u64| Bar0Reg::from(PfifoReg::ChannelInstance(*channel as u16)).offset();
            self.observers
                .retain(|channel, _| u64::from(place(channel)) != offset);
        }
        self.machine.write32(bar, offset, value);
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.machine.write64(bar, offset, value);
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        self.machine.ram_read(gpa, data);
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        self.machine.ram_write(gpa, data);
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        self.machine.ram_read32(gpa)
    }

    fn relax(&mut self) {
        self.machine.relax();
    }

    fn now_ns(&mut self) -> u64 {
        self.machine.now_ns()
    }

    fn report(&mut self, line: &str) {
        self.machine.report(line);
    }
}

/// The card's memories, as page tables name them.
#[derive(Clone, Copy)]
struct Tables<'a> {
    vram: &'a MmapRegion,
    ram: &'a MmapRegion,
}

impl Tables<'_> {
    fn words<const N: usize>(&mut self, at: u64) -> Option<[u32; N]> {
        let mut words = [0; N];
        for (number, word) in words.iter_mut().enumerate() {
            let mut bytes = [0; 4];
            let place = TableAt::Vram(GuestVramAddr(at + 4 * number as u64));
            if self.read(place, &mut bytes) != TableRead::Done {
                return None;
            }
            *word = u32::from_le_bytes(bytes);
        }
        Some(words)
    }
}

impl TableStore for Tables<'_> {
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        let (memory, at) = match at {
            TableAt::Vram(GuestVramAddr(at)) => (self.vram, at),
            TableAt::Ram(Gpa(at)) => (self.ram, at),
        };
        match memory.get_slice(at as usize, data.len()) {
            Ok(slice) => {
                slice.copy_to(data);
                TableRead::Done
            }
            Err(_) => TableRead::Outside,
        }
    }
}

/// A channel's address space and ring.
struct Space<'a> {
    tables: Tables<'a>,
    directory: GuestDirectory,
    ring: Ring,
}

impl<'a> Space<'a> {
    /// Those of the channel with its instance block at `instance` in VRAM.
    fn of(mut tables: Tables<'a>, instance: u64) -> Option<Self> {
        let pointer = AddressSpacePointer::from_words(tables.words(instance + offset::PD_LO)?);
        let [low, high] = tables.words(instance + offset::GP_BASE_LO)?;
        Some(Self {
            directory: GuestDirectory::from_pointer(pointer)?,
            ring: Ring {
                base: GpuVa(u64::from(high & 0xff) << 32 | u64::from(low)),
                entries_log2: high >> 16 & 0x1f,
            },
            tables,
        })
    }

    /// The mapped addresses around one.
    fn run(&mut self, at: u64) -> Option<Range<u64>> {
        const PAGE: u64 = fermi_spec::addr::SMALL_PAGE;
        let is_mapped = |space: &mut Self, at: u64| {
            matches!(walk(space.directory, GpuVa(at), &mut space.tables), Walk::Page(_))
        };
        if !is_mapped(self, at) {
            return None;
        }
        let (mut start, mut end) = (at / PAGE * PAGE, at / PAGE * PAGE + PAGE);
        while start >= PAGE && is_mapped(self, start - PAGE) {
            start -= PAGE;
        }
        while is_mapped(self, end) {
            end += PAGE;
        }
        Some(start..end)
    }
}

impl GpuMemory for Space<'_> {
    fn read(&mut self, at: GpuVa, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let Walk::Page(page) = walk(self.directory, at, &mut self.tables) else {
            return Err(Unmapped);
        };
        match self.tables.read(page.target, bytes) {
            TableRead::Done => Ok(()),
            TableRead::Missing | TableRead::Outside => Err(Unmapped),
        }
    }
}
