//! Inputs on their way to VRAM, and everything on its way back.

use super::{HALF_BYTES, KernelSummary, Piece, Run};
use crate::GuestBus;
use crate::driver::{Copy, CopyPath, DriverError};
use crate::report::Report;
use crate::workload::{progress, report};
use fermi_spec::addr::SMALL_PAGE;
use kernels::{Kernel, Noise, Role};

/// Words that the processor computes or compares at a time: a page.
const PART_WORDS: usize = 1024;
/// Wrong words that are reported one by one.
const WRONG_LINES: u64 = 8;
/// First bytes of a page of staging memory before a copy: 8 bytes that no kernel computes on purpose.
const SPOILED: [u8; 8] = *b"\xa5spoiled";

impl Run<'_> {
    /// Computes the inputs and copies them to VRAM.
    pub(super) fn upload(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        let places = self.places.clone();
        let is_input = |role| role == Role::Input;
        let total = places.pieces(is_input).count();
        for (index, piece) in places.pieces(is_input).enumerate() {
            let half = index % 2;
            self.wait_half(bus, half)?;
            fill(bus, self.kernel, self.noise, self.half_gpa(half), piece);
            let copy = Copy {
                source: self.half_va(half),
                target: places.va(piece),
                bytes: piece.words as u64 * 4,
            };
            self.start_copy(bus, half, CopyPath::Copy0, copy)?;
            progress(bus, "upload", index + 1, total);
        }
        (0..2).try_for_each(|half| self.wait_half(bus, half))
    }

    /// Reads inputs and outputs back and compares every word.
    pub(super) fn check(&mut self, bus: &mut dyn GuestBus, memory: &[u32]) -> Result<(), DriverError> {
        let places = self.places.clone();
        let counts = |role| role != Role::Work;
        let total = places.pieces(counts).count();
        let mut before = None;
        for (index, piece) in places.pieces(counts).enumerate() {
            let half = index % 2;
            self.spoil(bus, half, piece);
            let copy = Copy {
                source: places.va(piece),
                target: self.half_va(half),
                bytes: piece.words as u64 * 4,
            };
            self.start_copy(bus, half, CopyPath::M2mf, copy)?;
            // While this one is copied.
            if let Some(before) = before.replace(piece) {
                self.wait_half(bus, 1 - half)?;
                self.compare(bus, memory, 1 - half, before);
            }
            progress(bus, "check", index + 1, total);
        }
        if let Some(last) = before {
            let half = (total - 1) % 2;
            self.wait_half(bus, half)?;
            self.compare(bus, memory, half, last);
        }
        Ok(())
    }

    fn half_va(&self, half: usize) -> u64 {
        self.staging.va + half as u64 * HALF_BYTES
    }

    fn half_gpa(&self, half: usize) -> u64 {
        self.staging.gpa + half as u64 * HALF_BYTES
    }

    fn start_copy(
        &mut self,
        bus: &mut dyn GuestBus,
        half: usize,
        path: CopyPath,
        copy: Copy,
    ) -> Result<(), DriverError> {
        self.copier.copy(&mut self.driver, bus, path, copy)?;
        self.fences[half] = Some(self.driver.submit(bus, self.copier.channel(path))?);
        Ok(())
    }

    fn wait_half(&mut self, bus: &mut dyn GuestBus, half: usize) -> Result<(), DriverError> {
        match self.fences[half].take() {
            Some(fence) => self.driver.wait(bus, fence),
            None => Ok(()),
        }
    }

    fn compare(&mut self, bus: &mut dyn GuestBus, memory: &[u32], half: usize, piece: Piece) {
        let (kernel, noise) = (self.kernel, self.noise);
        let gpa = self.half_gpa(half);
        let reference = Reference {
            kernel,
            noise,
            memory,
        };
        reference.compare(bus, &mut self.summary, gpa, piece);
    }

    /// Bytes of an earlier piece must not pass for a copy that was not made.
    fn spoil(&self, bus: &mut dyn GuestBus, half: usize, piece: Piece) {
        for page in 0..(piece.words as u64 * 4).div_ceil(SMALL_PAGE) {
            bus.ram_write(self.half_gpa(half) + page * SMALL_PAGE, &SPOILED);
        }
    }
}

/// Computes a piece of an input into RAM at `gpa`.
pub(super) fn fill(bus: &mut dyn GuestBus, kernel: &dyn Kernel, noise: Noise, gpa: u64, piece: Piece) {
    let mut words = [0; PART_WORDS];
    let mut bytes = [0; PART_WORDS * 4];
    for start in (0..piece.words).step_by(PART_WORDS) {
        let count = PART_WORDS.min(piece.words - start);
        let words = &mut words[..count];
        kernel.fill(noise, piece.number, piece.first + start, words);
        let bytes = &mut bytes[..count * 4];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bus.ram_write(gpa + start as u64 * 4, bytes);
    }
}

/// What the words of a kernel's buffers have to be.
#[derive(Clone, Copy)]
pub(super) struct Reference<'a> {
    pub(super) kernel: &'a dyn Kernel,
    pub(super) noise: Noise,
    /// As [`Kernel::reference`] left it.
    pub(super) memory: &'a [u32],
}

impl Reference<'_> {
    /// Compares a piece that is in RAM at `gpa`. What is wrong is counted, and the first words are reported.
    pub(super) fn compare(self, bus: &mut dyn GuestBus, summary: &mut KernelSummary, gpa: u64, piece: Piece) {
        let (mut want, mut got) = ([0; PART_WORDS], [0; PART_WORDS * 4]);
        for start in (0..piece.words).step_by(PART_WORDS) {
            let count = PART_WORDS.min(piece.words - start);
            let (want, got) = (&mut want[..count], &mut got[..count * 4]);
            let first = piece.first + start;
            match piece.buffer.role {
                Role::Input => self.kernel.fill(self.noise, piece.number, first, want),
                Role::Work | Role::Output => {
                    self.kernel
                        .expected(self.noise, self.memory, piece.number, first, want);
                }
            }
            bus.ram_read(gpa + start as u64 * 4, got);
            self.compare_words(bus, summary, Piece { first, ..piece }, want, got);
        }
        summary.checked_bytes += piece.words as u64 * 4;
    }

    fn compare_words(
        self,
        bus: &mut dyn GuestBus,
        summary: &mut KernelSummary,
        piece: Piece,
        want: &[u32],
        got: &[u8],
    ) {
        let matching = self.kernel.matching(piece.number);
        for (index, (want, got)) in want.iter().zip(got.as_chunks().0).enumerate() {
            let got = u32::from_le_bytes(*got);
            if matching.holds(*want, got) {
                continue;
            }
            if summary.mismatches < WRONG_LINES {
                let line = Report::Wrong {
                    buffer: piece.buffer.name,
                    word: (piece.first + index) as u64,
                    want: *want,
                    got,
                };
                report(bus, &line);
            }
            summary.mismatches += 1;
        }
    }
}
