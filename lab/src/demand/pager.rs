//! What the host does: it asks a policy, moves blocks, and writes entries of page tables.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use adaptive::{Choice, Gone, Manager, Outcome, Place, Setup};
use fermi_model::{BareCard, ReplayableFault};
use fermi_spec::addr::{Aperture, GpuVa, PhysAddr, SMALL_PAGE};
use fermi_spec::instance::{AddressSpacePointer, offset};
use fermi_spec::pte::{LargePages, Pde, Pte, small_index};
use vm_memory::{MmapRegion, VolatileMemory as _, VolatileSlice};

use super::{Managed, fault};
use crate::host::LabError;
use crate::replay::{LARGE, Transfers, Unit};

const BLOCK: u64 = Unit::Block.bytes();
/// Looks in a row that found faults though no instruction was executed, after which the policy is held to get nowhere.
const IDLE_LOOKS_MAX: u32 = 1000;

/// A policy, and the memory that it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    pub(crate) choice: Choice,
    /// Blocks that fit into VRAM.
    pub(crate) capacity: u32,
}

/// What a run moved across the link, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Paged {
    /// Bytes that came.
    pub(crate) bytes_in: u64,
    /// Those of blocks that had been there before.
    pub(crate) again: u64,
    /// Bytes that were written back.
    pub(crate) bytes_out: u64,
    /// Groups of faults that were answered.
    pub(crate) groups: u64,
    /// Faults that were taken from the card.
    pub(crate) faults: u64,
    /// Accesses of warps across the link.
    pub(crate) remote: u64,
    /// Most blocks that were used between two looks.
    pub(crate) used_at_once: u64,
}

/// The host's side of the card's memory.
pub(super) struct Pager {
    manager: Manager,
    buffers: Vec<Managed>,
    /// VRAM of each block that is there.
    slots: BTreeMap<Place, u64>,
    free: Vec<u64>,
    /// Blocks with entries of system memory, and whether they may be stored to.
    remote: BTreeMap<Place, bool>,
    /// Faults that were told to the policy and are not yet counted by the card: loads, stores.
    announced: BTreeMap<Place, [u32; 2]>,
    /// VRAM of the page directory, once a fault has said which.
    directory: Option<u64>,
    seen: BTreeSet<Place>,
    /// Blocks that came since the look began.
    coming: BTreeSet<Place>,
    moved: Transfers,
    paged: Paged,
    executed: u64,
    idle_looks: u32,
}

fn bytes_of(memory: &MmapRegion, bytes: Range<u64>) -> Result<VolatileSlice<'_>, LabError> {
    let slice = memory.get_slice(bytes.start as usize, (bytes.end - bytes.start) as usize);
    slice.map_err(|error| fault(format!("no memory at {:#x}: {error}", bytes.start)))
}

fn words_of<const N: usize>(vram: &MmapRegion, at: u64) -> Result<[u8; N], LabError> {
    let mut bytes = [0; N];
    bytes_of(vram, at..at + N as u64)?.copy_to(&mut bytes);
    Ok(bytes)
}

impl Pager {
    /// Nothing is in VRAM, whose slots begin at `slots`.
    pub(super) fn new(policy: Policy, buffers: &[Managed], slots: u64) -> Self {
        let Policy { choice, capacity } = policy;
        Self {
            manager: Manager::new(Setup {
                capacity,
                units_of_large: (LARGE / BLOCK) as u32,
                allocations: buffers.iter().map(Managed::blocks).collect(),
                choice,
                reserve_percent: 0,
                seed: 1,
            }),
            buffers: buffers.to_vec(),
            slots: BTreeMap::new(),
            free: (0..u64::from(capacity))
                .rev()
                .map(|slot| slots + slot * BLOCK)
                .collect(),
            remote: BTreeMap::new(),
            announced: BTreeMap::new(),
            directory: None,
            seen: BTreeSet::new(),
            coming: BTreeSet::new(),
            moved: Transfers::default(),
            paged: Paged::default(),
            executed: 0,
            idle_looks: 0,
        }
    }

    /// Where a block is in VRAM, if it is there.
    pub(super) fn slot_of(&self, allocation: usize, unit: u32) -> Option<u64> {
        self.slots.get(&Place { allocation, unit }).copied()
    }

    /// The kernel under way is over.
    pub(super) fn kernel_ends(&mut self) {
        self.manager.kernel_ends();
    }

    /// What moved in all. Blocks that the policy calls clean have the bytes that they came with.
    pub(super) fn end(mut self, card: &BareCard) -> Result<Paged, LabError> {
        let buffers = 0..self.buffers.len();
        for gone in self.manager.leave(buffers) {
            self.check_clean(card, gone)?;
        }
        Ok(self.paged)
    }

    /// Looks at the card: counts, then faults. Whether it asked for a replay.
    pub(super) fn look(&mut self, card: &mut BareCard) -> Result<bool, LabError> {
        self.coming.clear();
        let faults = card.model.take_faults();
        if let Some(first) = faults.first() {
            self.find_directory(card, first)?;
        }
        self.take_counts(card)?;
        self.take_faults(card, &faults)?;
        let moved = std::mem::take(&mut self.moved);
        if faults.is_empty() && moved.is_empty() {
            return Ok(false);
        }
        self.paged.groups += u64::from(!faults.is_empty());
        self.paged.faults += faults.len() as u64;
        let executed = card.model.counters().warp_instructions;
        let is_idle = executed == std::mem::replace(&mut self.executed, executed);
        self.idle_looks = if is_idle { self.idle_looks + 1 } else { 0 };
        if self.idle_looks > IDLE_LOOKS_MAX {
            let what = "a kernel whose policy evicts what its warps wait for";
            return Err(LabError::Endless { what });
        }
        card.model.replay_faults(moved.ns(Unit::Block) as u64);
        Ok(true)
    }

    /// The block with a byte.
    fn place(&self, va: GpuVa) -> Option<Place> {
        let of = |buffer: &Managed| {
            let unit = va.0.checked_sub(buffer.va)? / BLOCK;
            (unit < u64::from(buffer.blocks())).then_some(unit as u32)
        };
        let mut all = self.buffers.iter().enumerate();
        all.find_map(|(allocation, buffer)| of(buffer).map(|unit| Place { allocation, unit }))
    }

    fn take_counts(&mut self, card: &mut BareCard) -> Result<(), LabError> {
        let counts: Vec<(Place, [u32; 2])> = card
            .model
            .access_counts()
            .filter_map(|count| Some((self.place(count.va)?, [count.loads, count.stores])))
            .collect();
        card.model.clear_access_counts();
        self.paged.used_at_once = self.paged.used_at_once.max(counts.len() as u64);
        let (local, others): (Vec<_>, Vec<_>) = counts
            .into_iter()
            .partition(|(place, _)| self.slots.contains_key(place));
        for (place, counted) in local.into_iter().chain(others) {
            if !self.slots.contains_key(&place) {
                self.paged.remote += counted.iter().map(|count| u64::from(*count)).sum::<u64>();
            }
            let told = self.announced.remove(&place).unwrap_or_default();
            let [loads, stores] = [0, 1].map(|kind| counted[kind].saturating_sub(told[kind]));
            if loads == 0 && stores == 0 {
                continue;
            }
            let outcome = self.manager.access(place, loads, stores);
            self.apply(card, place, outcome, None)?;
        }
        Ok(())
    }

    fn take_faults(&mut self, card: &BareCard, faults: &[ReplayableFault]) -> Result<(), LabError> {
        for of in faults {
            let Some(place) = self.place(of.va) else {
                return Err(fault(format!(
                    "a warp waits for {:#x}, where no buffer is",
                    of.va.0
                )));
            };
            let is_served = match self.remote.get(&place) {
                Some(may_store) => !of.is_store || *may_store,
                None => self.slots.contains_key(&place),
            };
            if is_served {
                continue;
            }
            let [loads, stores] = [u32::from(!of.is_store), u32::from(of.is_store)];
            let told = self.announced.entry(place).or_default();
            told[0] += loads;
            told[1] += stores;
            let outcome = self.manager.access(place, loads, stores);
            if self.apply(card, place, outcome, Some(of.is_store))? {
                break;
            }
        }
        Ok(())
    }

    /// Does what the policy says of a block; `fault` is whether a store or a load waits for it. Whether something went that had come since
    /// the look began.
    fn apply(
        &mut self,
        card: &BareCard,
        place: Place,
        outcome: Outcome,
        fault: Option<bool>,
    ) -> Result<bool, LabError> {
        match outcome {
            Outcome::Local => Ok(false),
            Outcome::Remote => {
                if let Some(may_store) = fault {
                    let home = self.home(place);
                    self.map(card, place, Aperture::SysCoherent, home, may_store)?;
                    self.remote.insert(place, may_store);
                }
                Ok(false)
            }
            Outcome::Comes { units, gone, .. } => {
                let is_own = gone.iter().any(|gone| self.coming.contains(&gone.place));
                for gone in gone {
                    self.evict(card, gone)?;
                }
                for unit in units {
                    self.bring(card, Place { unit, ..place })?;
                }
                Ok(is_own)
            }
        }
    }

    /// Where a block is on the host.
    fn home(&self, place: Place) -> u64 {
        self.buffers[place.allocation].home + u64::from(place.unit) * BLOCK
    }

    /// A block of VRAM, and the same on the host.
    fn both<'a>(
        &self,
        card: &'a BareCard,
        place: Place,
        slot: u64,
    ) -> Result<[VolatileSlice<'a>; 2], LabError> {
        let home = self.home(place);
        Ok([
            bytes_of(&card.vram, slot..slot + BLOCK)?,
            bytes_of(&card.ram, home..home + BLOCK)?,
        ])
    }

    fn bring(&mut self, card: &BareCard, place: Place) -> Result<(), LabError> {
        let Some(slot) = self.free.pop() else {
            return Err(fault("the policy brings more than fits".to_owned()));
        };
        let [vram, home] = self.both(card, place, slot)?;
        home.copy_to_volatile_slice(vram);
        self.map(card, place, Aperture::Vram, slot, true)?;
        self.remote.remove(&place);
        self.slots.insert(place, slot);
        self.coming.insert(place);
        self.moved
            .came
            .entry(place.allocation)
            .or_default()
            .push(place.unit);
        self.paged.bytes_in += BLOCK;
        self.paged.again += if self.seen.insert(place) { 0 } else { BLOCK };
        Ok(())
    }

    fn evict(&mut self, card: &BareCard, gone: Gone) -> Result<(), LabError> {
        self.check_clean(card, gone)?;
        let Some(slot) = self.slots.remove(&gone.place) else {
            return Err(fault("the policy evicts what is not there".to_owned()));
        };
        if gone.is_dirty {
            let [vram, home] = self.both(card, gone.place, slot)?;
            vram.copy_to_volatile_slice(home);
            let of = self.moved.went.entry(gone.place.allocation).or_default();
            of.push(gone.place.unit);
            self.paged.bytes_out += BLOCK;
        }
        self.store_entries(card, gone.place, |_| Pte::new())?;
        // A warp that still waits for it faults again, and is told again.
        self.announced.remove(&gone.place);
        self.free.push(slot);
        Ok(())
    }

    /// What the policy calls clean, by the card's counts and faults, is clean.
    fn check_clean(&self, card: &BareCard, gone: Gone) -> Result<(), LabError> {
        let Some(slot) = self.slots.get(&gone.place).filter(|_| !gone.is_dirty) else {
            return Ok(());
        };
        let [mut vram, mut home] = [[0; BLOCK as usize]; 2];
        let slices = self.both(card, gone.place, *slot)?;
        slices[0].copy_to(&mut vram);
        slices[1].copy_to(&mut home);
        match vram == home {
            true => Ok(()),
            false => Err(fault(format!("stores to {:?} were not counted", gone.place))),
        }
    }

    /// Finds the page directory of the channel that waits.
    fn find_directory(&mut self, card: &BareCard, of: &ReplayableFault) -> Result<(), LabError> {
        if self.directory.is_some() {
            return Ok(());
        }
        let (Aperture::Vram, PhysAddr(instance)) = of.instance else {
            return Err(fault("the channel's instance block is not in VRAM".to_owned()));
        };
        let bytes: [u8; 16] = words_of(&card.vram, instance + offset::PD_LO)?;
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        self.directory = Some(AddressSpacePointer::from_words(words).directory.0);
        Ok(())
    }

    fn map(
        &mut self,
        card: &BareCard,
        place: Place,
        aperture: Aperture,
        at: u64,
        may_store: bool,
    ) -> Result<(), LabError> {
        let template = Pte::new()
            .with_valid(true)
            .with_volatile(aperture.is_sysram())
            .with_aperture(aperture)
            .with_read_only(!may_store);
        self.store_entries(card, place, |page| {
            template.with_address(PhysAddr(at + page * SMALL_PAGE))
        })
    }

    /// Stores the entries of a block's pages; they are in force after the next replay.
    fn store_entries(
        &self,
        card: &BareCard,
        place: Place,
        entry: impl Fn(u64) -> Pte,
    ) -> Result<(), LabError> {
        let va = GpuVa(self.buffers[place.allocation].va + u64::from(place.unit) * BLOCK);
        let missing = || fault(format!("no page table for {:#x}", va.0));
        let index = LargePages::Kib128.pde_index(va) as u64;
        let directory = self.directory.ok_or_else(missing)?;
        let pde = Pde::from_bits(u64::from_le_bytes(words_of(&card.vram, directory + 8 * index)?));
        let (_, table) = pde.small_table().ok_or_else(missing)?;
        let first = table.0 + 8 * small_index(va) as u64;
        let entries: Vec<u8> = (0..BLOCK / SMALL_PAGE)
            .flat_map(|page| entry(page).into_bits().to_le_bytes())
            .collect();
        bytes_of(&card.vram, first..first + entries.len() as u64)?.copy_from(&entries);
        Ok(())
    }
}
