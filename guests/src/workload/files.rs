//! Files kept in VRAM: loaded in pieces, moved about, read back by another way, compared with digests.
//!
//! 1. *hash*: SHA-256 of each input and each piece of it, from RAM, before the GPU has seen them.
//! 2. *load*: copy engine 0 puts the pieces into the slots of VRAM, round and round until all but a few are full.
//! 3. *move*: in each round a quarter of the slots is unmapped, and so idle; the contents of the others change
//!    places in a seeded order by way of the free slots, by both copy engines and M2MF; then the quarter comes back.
//! 4. *verify*: each slot is read back by an engine that did not write it and hashed; a sample of words is read
//!    through BAR1 and PRAMIN.
//! 5. *digest*: each input is put together again from VRAM and hashed as a whole.
//!
//! The books have a fixed size: [`SLOTS_MAX`] slots and pieces, [`INPUTS_MAX`] inputs. The digests of the pieces lie
//! at the end of the DMA memory, which is not mapped for the GPU.

mod books;
mod check;

use super::random::Random;
use super::{Machine, progress, report};
use crate::driver::{Copier, Copy, CopyPath, DmaBlock, Driver, DriverConfig, DriverError, PageSize, USER_VA};
use crate::report::Report;
use crate::{GuestBus, Options};
use books::{Books, Geometry, Piece, Pieces};
use fermi_spec::addr::SMALL_PAGE;

/// Most slots, and most pieces, that the workload counts.
pub(crate) const SLOTS_MAX: usize = 2048;
/// Most inputs of a run.
pub(crate) const INPUTS_MAX: usize = 16;
/// Where VRAM address 0 would be in the channels' address space.
const VRAM_VA: u64 = 8 << 30;
/// Read-back goes in batches of so many bytes if the DMA memory suffices.
const STAGING_BYTES: u64 = 1 << 20;
/// Slots loaded by one submission.
const LOAD_BATCH: usize = 16;
/// Slots mapped at a time while loading: the use of VRAM grows as it would in a program that allocates.
const MAP_BATCH: usize = 64;

/// Results of a run of files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FilesSummary {
    /// VRAM that the GPU shows, in bytes.
    pub vram_bytes: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Slots that held data.
    pub slots: u32,
    /// Copies done by the GPU.
    pub copies: u64,
    /// Bytes they moved.
    pub bytes_copied: u64,
    /// Slots whose bytes were wrong.
    pub mismatches: u32,
    /// Inputs that came back with another digest.
    pub inputs_wrong: u32,
}

impl FilesSummary {
    /// Whether every byte was right.
    pub fn is_ok(&self) -> bool {
        self.mismatches == 0 && self.inputs_wrong == 0
    }
}

/// A running workload.
struct Files<'a> {
    pieces: Pieces<'a>,
    options: Options,
    geometry: Geometry,
    books: Books,
    driver: Driver,
    copier: Copier,
    staging: DmaBlock,
    random: Random,
    mismatches: u32,
    inputs_wrong: u32,
    /// Copies that moved a slot's contents: chooses the engine of the next.
    moves: u64,
}

pub(super) fn run(bus: &mut dyn GuestBus, machine: &Machine<'_>) -> Result<FilesSummary, DriverError> {
    let mut files = Files::start(bus, machine)?;
    let digests = files.hash(bus);
    files.load(bus)?;
    for round in 0..files.options.rounds {
        files.shuffle_slots(bus, round)?;
    }
    files.verify(bus)?;
    files.sample_windows(bus)?;
    files.digest(bus, &digests)?;
    files.end(bus)
}

impl<'a> Files<'a> {
    fn start(bus: &mut dyn GuestBus, machine: &Machine<'a>) -> Result<Self, DriverError> {
        let options = machine.options;
        // The table of digests is taken off before the driver maps anything.
        let table_bytes = (SLOTS_MAX * 32) as u64;
        let start = machine.dma.start;
        let end = machine.dma.end & !(SMALL_PAGE - 1);
        let table = end.checked_sub(table_bytes).filter(|table| *table > start);
        let table = table.ok_or(DriverError::DmaMemoryFull {
            wanted: table_bytes,
            left: end.saturating_sub(start),
        })?;
        let mut driver = Driver::start(bus, &DriverConfig::new(start..table, &options))?;
        let geometry = Geometry::choose(driver.vram_bytes(), options.slot_bytes)?;
        let pieces = Pieces::new(machine.inputs, geometry, table)?;
        let copier = Copier::new(&mut driver, bus)?;
        let room = STAGING_BYTES.min(driver.dma_left() / geometry.slot_bytes * geometry.slot_bytes);
        let staging = driver.take_dma(bus, room.max(geometry.slot_bytes))?;
        Ok(Self {
            pieces,
            options,
            geometry,
            books: Books::new(geometry.slots),
            driver,
            copier,
            staging,
            random: Random::new(options.seed),
            mismatches: 0,
            inputs_wrong: 0,
            moves: 0,
        })
    }

    fn load(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        for index in 0..self.pieces.inputs().len() {
            let mapping = self.pieces.mapping(index);
            self.driver.map_ram(bus, mapping.va, mapping.gpa, mapping.bytes)?;
        }
        let slots = self.geometry.data_slots;
        for slot in 0..slots {
            if slot % MAP_BATCH == 0 {
                self.map_slots(bus, slot, MAP_BATCH.min(self.geometry.slots - slot))?;
                self.driver.flush_tlb(bus)?;
            }
            let number = slot % self.pieces.count();
            let piece = self.pieces.piece(number);
            self.copy(bus, CopyPath::Copy0, piece.va, self.slot_va(slot), piece.bytes)?;
            self.books.put(slot, number, CopyPath::Copy0);
            if slot % LOAD_BATCH == LOAD_BATCH - 1 {
                self.copier.finish(&mut self.driver, bus)?;
            }
            progress(bus, "load", slot + 1, slots);
        }
        let mapped = slots.next_multiple_of(MAP_BATCH);
        if mapped < self.geometry.slots {
            self.map_slots(bus, mapped, self.geometry.slots - mapped)?;
            self.driver.flush_tlb(bus)?;
        }
        self.copier.finish(&mut self.driver, bus)
    }

    /// One round: a quarter of the slots rests, every other piece moves once.
    fn shuffle_slots(&mut self, bus: &mut dyn GuestBus, round: u32) -> Result<(), DriverError> {
        let slots = self.geometry.slots;
        let quarter = |number: usize| number * slots / 4..(number + 1) * slots / 4;
        let mut idle = quarter(round as usize % 4);
        if self.books.free_outside(&idle).next().is_none() {
            // All free slots rest, so none do in the next quarter.
            idle = quarter((round as usize + 1) % 4);
        }
        let idle_bytes = idle.len() as u64 * self.geometry.slot_bytes;
        self.driver
            .unmap(bus, self.slot_va(idle.start), idle_bytes, PageSize::Large)?;
        self.driver.flush_tlb(bus)?;

        let mut order = [0u16; SLOTS_MAX];
        let mut count = 0;
        for slot in self.books.full_outside(&idle) {
            order[count] = slot as u16;
            count += 1;
        }
        self.random.shuffle(&mut order[..count]);
        let mut moved = 0;
        while moved < count {
            let done = self.move_batch(bus, &order[moved..count], &idle)?;
            moved += done;
            let total = count * self.options.rounds as usize;
            progress(bus, "move", round as usize * count + moved, total);
        }
        self.map_slots(bus, idle.start, idle.len())?;
        self.driver.flush_tlb(bus)
    }

    /// Moves the first of `sources` into the free slots outside `idle`; returns how many. None waits for another.
    fn move_batch(
        &mut self,
        bus: &mut dyn GuestBus,
        sources: &[u16],
        idle: &core::ops::Range<usize>,
    ) -> Result<usize, DriverError> {
        let mut batch = [(0usize, 0usize, CopyPath::Copy0); Geometry::FREE_MAX];
        let mut count = 0;
        for (target, source) in self.books.free_outside(idle).zip(sources) {
            let path = match self.moves % 5 {
                0 | 2 => CopyPath::Copy0,
                1 | 3 => CopyPath::Copy1,
                _ => CopyPath::M2mf,
            };
            batch[count] = (usize::from(*source), target, path);
            (count, self.moves) = (count + 1, self.moves + 1);
        }
        for &(source, target, path) in &batch[..count] {
            let bytes = self.piece_in(source).bytes;
            self.copy(bus, path, self.slot_va(source), self.slot_va(target), bytes)?;
        }
        self.copier.finish(&mut self.driver, bus)?;
        for &(source, target, path) in &batch[..count] {
            self.books.move_piece(source, target, path);
        }
        Ok(count)
    }

    fn end(mut self, bus: &mut dyn GuestBus) -> Result<FilesSummary, DriverError> {
        self.driver.check_device(bus)?;
        let (copies, bytes_copied) = (self.copier.copies(), self.copier.bytes());
        self.copier.destroy(&mut self.driver, bus)?;
        let summary = FilesSummary {
            vram_bytes: self.driver.vram_bytes(),
            slot_bytes: self.geometry.slot_bytes,
            slots: self.geometry.data_slots as u32,
            copies,
            bytes_copied,
            mismatches: self.mismatches,
            inputs_wrong: self.inputs_wrong,
        };
        report(
            bus,
            &Report::Result {
                ok: summary.is_ok(),
                vram_bytes: summary.vram_bytes,
                slot_bytes: summary.slot_bytes,
                slots: summary.slots,
                copies,
                bytes_copied,
                mismatches: summary.mismatches,
            },
        );
        Ok(summary)
    }

    fn copy(
        &mut self,
        bus: &mut dyn GuestBus,
        path: CopyPath,
        source: u64,
        target: u64,
        bytes: u64,
    ) -> Result<(), DriverError> {
        let copy = Copy {
            source,
            target,
            bytes,
        };
        self.copier.copy(&mut self.driver, bus, path, copy)
    }

    fn map_slots(&mut self, bus: &mut dyn GuestBus, first: usize, count: usize) -> Result<(), DriverError> {
        let vram = self.geometry.slot_vram(first);
        let bytes = count as u64 * self.geometry.slot_bytes;
        self.driver
            .map_vram(bus, VRAM_VA + vram, vram, bytes, PageSize::Large)
    }

    fn slot_va(&self, slot: usize) -> u64 {
        VRAM_VA + self.geometry.slot_vram(slot)
    }

    /// The piece that a full slot holds.
    fn piece_in(&self, slot: usize) -> Piece {
        self.pieces.piece(self.books.piece(slot).unwrap_or(0))
    }
}

/// Where the inputs are mapped, one after the other.
const INPUT_VA: u64 = USER_VA;
