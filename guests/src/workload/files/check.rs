//! The parts that look at bytes: digests before, comparisons after.

use super::{Files, INPUTS_MAX, Piece, progress, report};
use crate::GuestBus;
use crate::driver::{CopyPath, DriverError};
use crate::report::Report;
use fermi_spec::addr::SMALL_PAGE;
use fermi_spec::bar::Bar;
use sha2::{Digest, Sha256};

/// Slots of which words are read through BAR1.
const BAR1_SAMPLES: usize = 32;
/// Slots of which words are read through PRAMIN.
const PRAMIN_SAMPLES: usize = 8;
/// Words read of a sampled slot.
const SAMPLE_WORDS: usize = 4;
/// Bytes hashed at a time.
const BUFFER: usize = 4096;

/// Digests of the inputs.
pub(super) type InputDigests = [[u8; 32]; INPUTS_MAX];

impl Files<'_> {
    /// Takes the digests of all inputs and pieces from RAM.
    pub(super) fn hash(&mut self, bus: &mut dyn GuestBus) -> InputDigests {
        let mut digests = [[0; 32]; INPUTS_MAX];
        for (index, digest) in digests.iter_mut().enumerate().take(self.pieces.inputs().len()) {
            let mut whole = Sha256::new();
            for number in self.pieces.of_input(index) {
                let Piece { gpa, bytes, .. } = self.pieces.piece(number);
                let piece = hash_ram(bus, gpa, bytes, Some(&mut whole));
                self.pieces.store_digest(bus, number, &piece);
                progress(bus, "hash", number + 1, self.pieces.count());
            }
            *digest = whole.finalize().into();
        }
        digests
    }

    /// Reads every slot back and compares its digest.
    pub(super) fn verify(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        let (mut next, mut done) = (0, 0);
        loop {
            let mut batch = [0usize; Self::BATCH_MAX];
            let mut count = 0;
            let limit = self.batch();
            for slot in self.books.full().filter(|slot| *slot >= next).take(limit) {
                batch[count] = slot;
                count += 1;
            }
            let Some(last) = batch[..count].last() else {
                return Ok(());
            };
            next = last + 1;
            self.read_back(bus, &batch[..count])?;
            for (place, &slot) in batch[..count].iter().enumerate() {
                let bytes = self.piece_in(slot).bytes;
                let got = hash_ram(bus, self.place(place), bytes, None);
                let number = self.books.piece(slot).unwrap_or(0);
                let want = self.pieces.load_digest(bus, number);
                self.compare(bus, slot, other_path(self.books.writer(slot)).name(), &want, &got);
                done += 1;
                progress(bus, "verify", done, self.geometry.data_slots);
            }
        }
    }

    /// Puts every input together again from VRAM, hashes and reports it.
    pub(super) fn digest(
        &mut self,
        bus: &mut dyn GuestBus,
        wanted: &InputDigests,
    ) -> Result<(), DriverError> {
        for (index, input) in self.pieces.inputs().iter().enumerate() {
            let mut whole = Sha256::new();
            let numbers = self.pieces.of_input(index);
            let mut number = numbers.start;
            while number < numbers.end {
                let mut batch = [0usize; Self::BATCH_MAX];
                let count = self.batch().min(numbers.end - number);
                for (slot, number) in batch[..count].iter_mut().zip(number..) {
                    *slot = self.any_slot_with(number);
                }
                self.read_back(bus, &batch[..count])?;
                for place in 0..count {
                    let bytes = self.pieces.piece(number + place).bytes;
                    hash_ram(bus, self.place(place), bytes, Some(&mut whole));
                }
                number += count;
                progress(bus, "digest", number, self.pieces.count());
            }
            let sha256: [u8; 32] = whole.finalize().into();
            self.inputs_wrong += u32::from(sha256 != wanted[index]);
            let report_line = Report::Digest {
                input: input.name,
                sha256: &sha256,
                bytes: input.bytes,
            };
            report(bus, &report_line);
        }
        Ok(())
    }

    /// Compares words of a few slots, seen through BAR1 and PRAMIN, with the inputs in RAM.
    pub(super) fn sample_windows(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        let mut samples = [(0usize, 0u64, 0u64); BAR1_SAMPLES];
        let mut count = 0;
        let step = self.geometry.data_slots.div_ceil(BAR1_SAMPLES);
        for slot in self.books.full().step_by(step).take(BAR1_SAMPLES) {
            // A page that the piece fills with the words to be read; a shorter piece has its digest only.
            let pages = self.piece_in(slot).bytes / SMALL_PAGE;
            if pages != 0 {
                samples[count] = (slot, self.random.below(pages) * SMALL_PAGE, 0);
                count += 1;
            }
        }
        let samples = &mut samples[..count];
        for (window, (slot, offset, bar1)) in samples.iter_mut().enumerate() {
            let vram = self.geometry.slot_vram(*slot) + *offset;
            *bar1 = self.driver.map_window(bus, window as u64, vram)?;
        }
        if !samples.is_empty() {
            self.driver.flush_windows(bus)?;
        }
        for &(slot, offset, bar1) in samples.iter() {
            let (start, want) = self.sample(bus, slot, offset);
            let words = read_words(|at| bus.read32(Bar::Bar1, bar1 + start + at));
            self.compare_words(bus, slot, "bar1", &want, &words);
        }
        // A page that two windows show at once lives in one of them where windows are memory.
        for window in 0..samples.len() as u64 {
            self.driver.unmap_window(bus, window)?;
        }
        if !samples.is_empty() {
            self.driver.flush_windows(bus)?;
        }
        for &(slot, offset, _) in samples.iter().take(PRAMIN_SAMPLES) {
            let (start, want) = self.sample(bus, slot, offset);
            let vram = self.geometry.slot_vram(slot) + offset + start;
            let driver = &mut self.driver;
            let words = read_words(|at| driver.read_pramin(bus, vram + at));
            self.compare_words(bus, slot, "pramin", &want, &words);
        }
        Ok(())
    }

    /// Some words of a page of a slot: where they begin within it, and what the input says that they are.
    fn sample(&mut self, bus: &mut dyn GuestBus, slot: usize, offset: u64) -> (u64, [u8; SAMPLE_WORDS * 4]) {
        let start = self.random.below((SMALL_PAGE / 4) - SAMPLE_WORDS as u64) * 4;
        let mut want = [0; SAMPLE_WORDS * 4];
        bus.ram_read(self.piece_in(slot).gpa + offset + start, &mut want);
        (start, want)
    }

    const BATCH_MAX: usize = 16;

    /// Slots that are read back together.
    fn batch(&self) -> usize {
        ((self.staging.bytes / self.geometry.slot_bytes) as usize).clamp(1, Self::BATCH_MAX)
    }

    /// GPA of a place of the staging memory.
    fn place(&self, place: usize) -> u64 {
        self.staging.gpa + place as u64 * self.geometry.slot_bytes
    }

    /// Copies slots to the places of the staging memory, each by a path that did not write it.
    fn read_back(&mut self, bus: &mut dyn GuestBus, slots: &[usize]) -> Result<(), DriverError> {
        // Spoils each page first: bytes of an earlier batch must not pass for a copy that was not made.
        for page in 0..slots.len() as u64 * self.geometry.slot_bytes / SMALL_PAGE {
            bus.ram_write(self.staging.gpa + page * SMALL_PAGE, &self.random.spoil());
        }
        for (place, &slot) in slots.iter().enumerate() {
            let target = self.staging.va + place as u64 * self.geometry.slot_bytes;
            let bytes = self.piece_in(slot).bytes;
            let path = other_path(self.books.writer(slot));
            self.copy(bus, path, self.slot_va(slot), target, bytes)?;
        }
        self.copier.finish(&mut self.driver, bus)
    }

    fn any_slot_with(&self, number: usize) -> usize {
        let mut slots = self.books.full();
        // The first round of loading put every piece into a slot, and moving loses none.
        slots
            .find(|slot| self.books.piece(*slot) == Some(number))
            .unwrap_or(0)
    }

    fn compare_words(&mut self, bus: &mut dyn GuestBus, slot: usize, by: &str, want: &[u8], got: &[u8]) {
        if want != got {
            let digest = |bytes: &[u8]| -> [u8; 32] { Sha256::digest(bytes).into() };
            self.compare(bus, slot, by, &digest(want), &digest(got));
        }
    }

    /// Counts and reports a slot that is wrong, once.
    fn compare(&mut self, bus: &mut dyn GuestBus, slot: usize, by: &str, want: &[u8; 32], got: &[u8; 32]) {
        if want != got && self.books.mark_wrong(slot) {
            self.mismatches += 1;
            let piece = self.books.piece(slot).unwrap_or(0) as u32;
            let slot = slot as u32;
            let line = Report::Mismatch {
                slot,
                piece,
                by,
                want,
                got,
            };
            report(bus, &line);
        }
    }
}

/// How a slot is read back, by who wrote it.
fn other_path(writer: CopyPath) -> CopyPath {
    match writer {
        CopyPath::Copy0 | CopyPath::Copy1 => CopyPath::M2mf,
        CopyPath::M2mf => CopyPath::Copy1,
    }
}

fn read_words(mut read: impl FnMut(u64) -> u32) -> [u8; SAMPLE_WORDS * 4] {
    let mut bytes = [0; SAMPLE_WORDS * 4];
    for (index, word) in bytes.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&read(index as u64 * 4).to_le_bytes());
    }
    bytes
}

/// SHA-256 of RAM; `whole` takes the same bytes.
fn hash_ram(bus: &mut dyn GuestBus, gpa: u64, bytes: u64, mut whole: Option<&mut Sha256>) -> [u8; 32] {
    let mut hasher = Sha256::new();
    let mut buffer = [0; BUFFER];
    let mut done = 0;
    while done < bytes {
        let part = &mut buffer[..(bytes - done).min(BUFFER as u64) as usize];
        bus.ram_read(gpa + done, part);
        hasher.update(&*part);
        if let Some(whole) = whole.as_deref_mut() {
            whole.update(&*part);
        }
        done += part.len() as u64;
    }
    hasher.finalize().into()
}
