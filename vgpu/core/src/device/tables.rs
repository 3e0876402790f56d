//! The traits of shadow_pt over one vGPU: where its tables are read, where its memory is, what they may cost.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use fermi_spec::addr::{FRAME, Gpa, GuestVramAddr, PDE_SPAN, SMALL_PAGE, VramAddr};
use fermi_spec::instance::INSTANCE_BYTES;
use fermi_spec::pte::{LARGE_PT_BYTES, PD_BYTES};
use planted::Fault;
use serde::{Deserialize, Serialize};
use shadow_pt::{
    DirtyPages, FramePlacement, GuestFrame, Placement, Placements, ShadowWriter, TableAt, TablePages,
    TableRead, TableStore,
};

use super::ram::RamMaps;
use super::stores::Stores;
use super::{Space, SpaceId};
use crate::config::CHANNELS_DEFAULT;
use crate::event::{Actions, HostMemory, Place, VmId};
use crate::host::Arena;
use crate::host::arena::SLOT_BYTES;
use crate::host::graph::Graph;
use crate::manager::live_windows::LiveWindows;
use crate::memory::{Chunks, Frames, GuestPage, Reach};
use crate::reason::Inconsistency;

/// Reads guest memory for the broker: tables, instance blocks, runlists.
pub(crate) struct Reader<'a> {
    pub(crate) vm: VmId,
    pub(crate) chunks: &'a Chunks,
    pub(crate) ram: &'a RamMaps,
    pub(crate) fetched: &'a BTreeMap<GuestPage, Box<[u8; SMALL_PAGE as usize]>>,
    pub(crate) memory: &'a mut dyn HostMemory,
    /// Pages that lie in VRAM and were not fetched yet.
    pub(crate) missing: Vec<GuestPage>,
}

impl Reader<'_> {
    /// One piece within a page.
    fn piece(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        match at {
            TableAt::Ram(gpa) => {
                if self.ram.locate(gpa).is_none() {
                    return TableRead::Outside;
                }
                match self.memory.read(Place::Ram { vm: self.vm, gpa }, data) {
                    true => TableRead::Done,
                    false => TableRead::Outside,
                }
            }
            TableAt::Vram(at) => match self.chunks.locate(at) {
                Placement::Outside => TableRead::Outside,
                Placement::Unbacked => {
                    data.fill(0);
                    TableRead::Done
                }
                Placement::Sysram(_) => match self.memory.read(Place::Image { vm: self.vm, at }, data) {
                    true => TableRead::Done,
                    false => TableRead::Outside,
                },
                Placement::Vram(_) => {
                    let page = GuestPage::of(at);
                    let Some(bytes) = self.fetched.get(&page) else {
                        self.missing.push(page);
                        return TableRead::Missing;
                    };
                    let from = at.within(SMALL_PAGE) as usize;
                    data.copy_from_slice(&bytes[from..from + data.len()]);
                    TableRead::Done
                }
            },
        }
    }
}

impl TableStore for Reader<'_> {
    fn read(&mut self, at: TableAt, data: &mut [u8]) -> TableRead {
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let within = match at {
                TableAt::Vram(at) => at.within(SMALL_PAGE),
                TableAt::Ram(at) => at.within(SMALL_PAGE),
            };
            let length = rest.len().min((SMALL_PAGE - within) as usize);
            let (piece, tail) = rest.split_at_mut(length);
            match self.piece(at, piece) {
                TableRead::Done => {}
                other => return other,
            }
            at = at.offset(length as u64);
            rest = tail;
        }
        TableRead::Done
    }
}

/// Which pages of tables may have changed since a space was refreshed.
pub(crate) struct Dirt<'a> {
    /// Each page counts as changed.
    pub(crate) is_all: bool,
    pub(crate) stores: &'a Stores,
    /// The space's last refresh.
    pub(crate) seen: u64,
    /// The other spaces, to see whether the GPU itself can write a page.
    pub(crate) spaces: &'a BTreeMap<SpaceId, Space>,
    /// Says the same of whole chunks, and sooner.
    pub(crate) chunks: &'a Chunks,
    /// Nobody sees what is stored to pages that the client has mapped.
    pub(crate) live: Option<&'a LiveWindows>,
}

impl DirtyPages for Dirt<'_> {
    fn is_dirty(&self, page: TableAt) -> bool {
        if self.is_all {
            return true;
        }
        let TableAt::Vram(at) = page else {
            // Stores to guest RAM are never seen.
            return !planted::is(Fault::RamTablesNotCompared);
        };
        let number = GuestPage::of(at);
        let frame = GuestFrame((at.0 / fermi_spec::addr::FRAME) as u32);
        let is_written = |chunk| self.chunks.reach(chunk) == Reach::Writable;
        self.stores.is_newer(number, self.seen)
            || self
                .live
                .is_some_and(|live| live.lives(number) && !planted::is(Fault::WindowStoreUnseen))
            || self.chunks.of(at).is_some_and(is_written)
                && self
                    .spaces
                    .values()
                    .any(|space| space.shadow.reaches(frame).is_some_and(|reach| reach.writable))
    }
}

/// Where a guest's memory is now.
pub(crate) struct Whereabouts<'a> {
    pub(crate) vm: VmId,
    /// What says whose a frame is.
    pub(crate) frames: &'a Frames,
    /// The bus addresses that are the VM's.
    pub(crate) bus: Range<u64>,
    /// A place that its accounts named and that is not its own: no entry leads there.
    pub(crate) foreign: Cell<Option<Placement>>,
    pub(crate) chunks: &'a Chunks,
    pub(crate) ram: &'a RamMaps,
}

impl Whereabouts<'_> {
    fn own(&self, place: Placement) -> Placement {
        let is_own = match place {
            Placement::Vram(at) => self.frames.is_at(at, self.vm),
            Placement::Sysram(at) => self.bus.contains(&at.0),
            Placement::Unbacked | Placement::Outside => true,
        };
        if is_own {
            return place;
        }
        self.foreign.set(Some(place));
        Placement::Outside
    }

    /// Whether all places that were asked for are the VM's.
    pub(crate) fn end(&self) -> Result<(), Inconsistency> {
        match self.foreign.take() {
            Some(Placement::Vram(at)) => Err(Inconsistency::at(at)),
            Some(Placement::Sysram(at)) => Err(Inconsistency::on_bus(at)),
            Some(Placement::Unbacked | Placement::Outside) | None => Ok(()),
        }
    }
}

impl Placements for Whereabouts<'_> {
    fn vram(&self, at: GuestVramAddr) -> Placement {
        self.own(self.chunks.locate_reached(at))
    }

    fn ram(&self, at: Gpa) -> Placement {
        if self.ram.is_hidden(at) {
            return Placement::Outside;
        }
        match self.ram.locate(at) {
            Some((iova, true)) => self.own(Placement::Sysram(iova)),
            Some((iova, false)) if planted::is(Fault::ReadOnlyRamMapped) => Placement::Sysram(iova),
            // A hole in law 1, made for the test that the host's IOMMU closes it (`cargo xtask nested`): the guest names a
            // bus address of its choice.
            #[cfg(feature = "weakened")]
            None => Placement::Sysram(fermi_spec::addr::Iova(at.0)),
            #[cfg(not(feature = "weakened"))]
            None => Placement::Outside,
            // The shadow cannot tell loads from stores here, and what the device may not write it must not be able to.
            Some((_, false)) => Placement::Outside,
        }
    }

    fn frame(&self, at: GuestVramAddr) -> FramePlacement {
        match self.chunks.locate_frame(at) {
            FramePlacement::Uniform(place) => FramePlacement::Uniform(self.own(place)),
            FramePlacement::Mixed => FramePlacement::Mixed,
        }
    }
}

/// Shadow memory that a VM is promised, in slots of the arena: small-page tables for all its VRAM and for 128 MiB of addresses
/// more, what the contexts of a driver's channels take, and beside them two directories, the large-page tables and instance blocks. What a
/// guest maps beyond is lent, or absent for the card as long as nothing is left to lend.
pub(crate) fn promised_slots(guest_vram: u64, graph: &Graph) -> u32 {
    let channels = u64::from(CHANNELS_DEFAULT);
    let tables = guest_vram.div_ceil(PDE_SPAN) + 1;
    // Two directories, with the host's table in each.
    let directories = 2 * (PD_BYTES + LARGE_PT_BYTES);
    let small = directories + INSTANCE_BYTES * channels + tables * LARGE_PT_BYTES;
    let contexts = (graph.buffer_pages() as u64 + channels * graph.image_pages() as u64) * FRAME;
    (tables + small.div_ceil(SLOT_BYTES) + contexts.div_ceil(SLOT_BYTES)) as u32
}

/// Arena memory that a VM holds for its shadows. The arena says how much it may hold ([`Arena::lending`]).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ShadowCharge {
    pub(crate) held: u64,
}

impl ShadowCharge {
    /// The arena as the VM may use it.
    pub(crate) fn pages<'a>(&'a mut self, arena: &'a mut Arena, vm: VmId) -> TableBudget<'a> {
        TableBudget {
            arena,
            vm,
            wrong: None,
            held: &mut self.held,
        }
    }
}

/// Arena memory for one VM's shadows, within what it is promised and lent.
pub(crate) struct TableBudget<'a> {
    arena: &'a mut Arena,
    vm: VmId,
    held: &'a mut u64,
    wrong: Option<Inconsistency>,
}

impl TableBudget<'_> {
    /// A page of 128 KiB, of any content.
    pub(crate) fn allocate_frame(&mut self) -> Option<VramAddr> {
        self.allocate_at(FRAME, FRAME)
    }

    fn allocate_at(&mut self, bytes: u64, align: u64) -> Option<VramAddr> {
        let after = self.held.checked_add(bytes)?;
        let at = self.arena.allocate(bytes, align, Some(self.vm))?;
        *self.held = match planted::is(Fault::ShadowMemoryNotCounted) {
            true => after - SMALL_PAGE,
            false => after,
        };
        Some(at)
    }

    /// Whether all that was given back was the VM's. What was not, stays whose it is.
    pub(crate) fn end(self) -> Result<(), Inconsistency> {
        self.wrong.map_or(Ok(()), Err)
    }
}

impl TablePages for TableBudget<'_> {
    fn allocate(&mut self, bytes: u64) -> Option<VramAddr> {
        self.allocate_at(bytes, SMALL_PAGE)
    }

    fn free(&mut self, at: VramAddr, bytes: u64) {
        let released = self.arena.release(at, bytes, Some(self.vm));
        let wrong = match (released, self.held.checked_sub(bytes)) {
            (Ok(()), Some(left)) => {
                *self.held = left;
                return;
            }
            (Ok(()), None) => Inconsistency::ShadowMemory {
                held: *self.held,
                found: bytes,
            },
            (Err(wrong), _) => wrong,
        };
        self.wrong.get_or_insert(wrong);
    }
}

/// Shadow entries as stores to the arena. Runs of writes to consecutive addresses become one store.
pub(crate) struct ArenaWriter {
    runs: Vec<(VramAddr, Vec<u8>)>,
}

/// Longest store of shadow entries.
const RUN_BYTES_MAX: usize = 1 << 16;

impl ArenaWriter {
    pub(crate) fn new() -> Self {
        Self { runs: Vec::new() }
    }

    /// Emits what was written for a VM, in order.
    ///
    /// # Errors
    /// A table is not the VM's: nothing from there on is written.
    pub(crate) fn emit(self, vm: VmId, arena: &Arena, actions: &mut Actions) -> Result<(), Inconsistency> {
        self.runs
            .into_iter()
            .try_for_each(|(at, data)| arena.write_for(vm, at, data, actions))
    }
}

impl ShadowWriter for ArenaWriter {
    fn write(&mut self, at: VramAddr, entries: &[u64]) {
        let bytes = entries.iter().flat_map(|entry| entry.to_le_bytes());
        match self.runs.last_mut() {
            Some((start, data))
                if start.0 + data.len() as u64 == at.0 && data.len() + entries.len() * 8 <= RUN_BYTES_MAX =>
            {
                data.extend(bytes);
            }
            _ => self.runs.push((at, bytes.collect())),
        }
    }
}
