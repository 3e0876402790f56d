//! The guest's GPU as a plan sees it: launches with their times, and words to and from buffers between them.

use super::{CODE_BYTES, Places, VRAM_VA};
use crate::GuestBus;
use crate::driver::{
    COMPUTE_BYTES, Compute, ComputeMemory, Copier, Copy, CopyPath, DmaBlock, Driver, DriverError, Grid,
    STACK_BYTES, STAMP_BYTES, Stamp,
};
use fermi_spec::addr::SMALL_PAGE;
use kernels::programs::Program;
use kernels::{Gpu, Launch, Piece, Stopped};

/// Most programs of a kernel.
const PROGRAMS_MAX: usize = 16;
/// Launches between two waits: each keeps the card for some ten milliseconds, and VMs share it.
const LAUNCHES_MAX: u64 = 128;
/// Words that are copied by way of the mailbox at a time.
const MAILBOX_WORDS: usize = SMALL_PAGE as usize / 4;
/// Local memory comes in such units.
const LOCAL_UNIT: u32 = 16;

/// A compute channel with the programs and stamps that plans need.
pub(super) struct GuestGpu {
    compute: Compute,
    /// Programs in VRAM and where they are.
    programs: [Option<(&'static Program, u64)>; PROGRAMS_MAX],
    code_va: u64,
    code_used: u64,
    /// Two stamps for each launch since the last wait.
    stamps: DmaBlock,
    mailbox: DmaBlock,
}

/// Results of a plan.
#[derive(Clone, Copy, Default)]
pub(super) struct Outcome {
    /// Launches on the GPU.
    pub(super) grids: u64,
    /// GPU time of the launches.
    pub(super) gpu_ns: u64,
}

/// One run of a plan.
pub(super) struct Session<'a> {
    gpu: &'a mut GuestGpu,
    pub(super) bus: &'a mut dyn GuestBus,
    pub(super) driver: &'a mut Driver,
    copier: &'a mut Copier,
    places: &'a Places,
    /// Launches since the last wait.
    pending: u64,
    outcome: Outcome,
    error: Option<DriverError>,
}

/// A piece of a launch as the driver wants it: its code is at `code`, its constants are [`kernels::Parameters::bank`]'s.
///
/// The caller sees to it that the parameters are those of the program.
pub fn grid_of<'a>(launch: &Launch<'_>, piece: Piece, code: u64, constants: &'a [u32]) -> Grid<'a> {
    let program = launch.program;
    Grid {
        code,
        entry: 0,
        registers: program.registers,
        shared_bytes: program.shared_bytes,
        stack_bytes: STACK_BYTES,
        local_bytes: [program.local_bytes.next_multiple_of(LOCAL_UNIT), 0],
        barriers: program.barriers,
        blocks: [piece.blocks[0], piece.blocks[1], 1],
        threads: [launch.threads[0], launch.threads[1], 1],
        constants,
        banks: &[],
    }
}

impl GuestGpu {
    /// `va` is the start of mapped VRAM of [`COMPUTE_BYTES`] and [`CODE_BYTES`].
    pub(super) fn new(driver: &mut Driver, bus: &mut dyn GuestBus, va: u64) -> Result<Self, DriverError> {
        let stamps = driver.take_dma(bus, LAUNCHES_MAX * 2 * STAMP_BYTES)?;
        let mailbox = driver.take_dma(bus, SMALL_PAGE)?;
        driver.flush_tlb(bus)?;
        let memory = ComputeMemory {
            va,
            bytes: COMPUTE_BYTES,
        };
        Ok(Self {
            compute: Compute::new(driver, bus, memory)?,
            programs: [None; PROGRAMS_MAX],
            code_va: va + COMPUTE_BYTES,
            code_used: 0,
            stamps,
            mailbox,
        })
    }

    pub(super) fn session<'a>(
        &'a mut self,
        bus: &'a mut dyn GuestBus,
        driver: &'a mut Driver,
        copier: &'a mut Copier,
        places: &'a Places,
    ) -> Session<'a> {
        Session {
            gpu: self,
            bus,
            driver,
            copier,
            places,
            pending: 0,
            outcome: Outcome::default(),
            error: None,
        }
    }

    pub(super) fn destroy(self, driver: &mut Driver, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        self.compute.destroy(driver, bus)
    }
}

impl Session<'_> {
    /// Waits for the last launches. `planned` is the result of making the plan.
    pub(super) fn end(mut self, planned: Result<(), Stopped>) -> Result<Outcome, DriverError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let finished = self.finish();
        // A plan stops for no reason but an error above.
        debug_assert!(planned.is_ok(), "the plan stopped by itself");
        finished.map(|()| self.outcome)
    }

    /// Remembers why the plan has to stop.
    pub(super) fn keep<T>(&mut self, result: Result<T, DriverError>) -> Result<T, Stopped> {
        result.map_err(|error| {
            self.error = Some(error);
            Stopped
        })
    }

    /// Waits for everything that was launched and adds up its time.
    pub(super) fn finish(&mut self) -> Result<(), DriverError> {
        if self.pending == 0 {
            return Ok(());
        }
        self.gpu.compute.finish(self.driver, self.bus)?;
        for launch in 0..self.pending {
            let at = self.gpu.stamps.gpa + launch * 2 * STAMP_BYTES;
            let [start, end] = [at, at + STAMP_BYTES].map(|gpa| Stamp::read(self.bus, gpa).time_ns);
            self.outcome.gpu_ns += end.saturating_sub(start);
        }
        self.pending = 0;
        Ok(())
    }

    /// Where a program is in VRAM; it is brought there when it is launched for the first time.
    fn code(&mut self, program: &'static Program) -> Result<u64, DriverError> {
        let known = self.gpu.programs.iter().flatten();
        if let Some((_, va)) = known.copied().find(|(known, _)| core::ptr::eq(*known, program)) {
            return Ok(va);
        }
        let bytes = program.code.len() as u64 * 8;
        let bad = |what| DriverError::BadGrid { what };
        let slot = self.gpu.programs.iter().position(Option::is_none);
        let slot = slot.ok_or(bad("a kernel has at most 16 programs"))?;
        if self.gpu.code_used + bytes > CODE_BYTES {
            return Err(bad("the code of a kernel has at most 128 KiB"));
        }
        let va = self.gpu.code_va + self.gpu.code_used;
        for (index, words) in program.code.chunks(MAILBOX_WORDS / 2).enumerate() {
            for (at, word) in words.iter().enumerate() {
                let gpa = self.gpu.mailbox.gpa + at as u64 * 8;
                self.bus.ram_write(gpa, &word.to_le_bytes());
            }
            let copy = Copy {
                source: self.gpu.mailbox.va,
                target: va + index as u64 * SMALL_PAGE,
                bytes: words.len() as u64 * 8,
            };
            self.copy(copy)?;
        }
        self.gpu.code_used += bytes;
        self.gpu.programs[slot] = Some((program, va));
        Ok(va)
    }

    /// Copies, and waits for the end.
    pub(super) fn copy(&mut self, copy: Copy) -> Result<(), DriverError> {
        self.copier.copy(self.driver, self.bus, CopyPath::Copy0, copy)?;
        let channel = self.copier.channel(CopyPath::Copy0);
        let fence = self.driver.submit(self.bus, channel)?;
        self.driver.wait(self.bus, fence)
    }

    /// Queues a grid.
    pub(super) fn start(&mut self, launch: &Launch<'_>) -> Result<(), DriverError> {
        let program = launch.program;
        if launch.parameters.bytes() != program.parameter_bytes {
            let what = "parameters are not those of the program";
            return Err(DriverError::BadGrid { what });
        }
        let code = self.code(program)?;
        for piece in launch.pieces() {
            if self.pending == LAUNCHES_MAX {
                self.finish()?;
            }
            let (constants, count) = launch.parameters.bank(piece);
            let grid = grid_of(launch, piece, code, &constants[..count]);
            let stamp = self.gpu.stamps.va + self.pending * 2 * STAMP_BYTES;
            let (compute, number) = (&self.gpu.compute, self.outcome.grids as u32);
            compute.stamp(self.driver, self.bus, stamp, number)?;
            compute.launch(self.driver, self.bus, &grid)?;
            compute.stamp(self.driver, self.bus, stamp + STAMP_BYTES, number)?;
            compute.submit(self.driver, self.bus)?;
            self.pending += 1;
            self.outcome.grids += 1;
        }
        Ok(())
    }

    fn load_words(&mut self, va: u64, words: &mut [u32]) -> Result<(), DriverError> {
        self.finish()?;
        for (index, words) in words.chunks_mut(MAILBOX_WORDS).enumerate() {
            self.copy(Copy {
                source: va + index as u64 * SMALL_PAGE,
                target: self.gpu.mailbox.va,
                bytes: words.len() as u64 * 4,
            })?;
            for (at, word) in words.iter_mut().enumerate() {
                let mut bytes = [0; 4];
                self.bus
                    .ram_read(self.gpu.mailbox.gpa + at as u64 * 4, &mut bytes);
                *word = u32::from_le_bytes(bytes);
            }
        }
        Ok(())
    }

    fn store_words(&mut self, va: u64, words: &[u32]) -> Result<(), DriverError> {
        self.finish()?;
        for (index, words) in words.chunks(MAILBOX_WORDS).enumerate() {
            for (at, word) in words.iter().enumerate() {
                let gpa = self.gpu.mailbox.gpa + at as u64 * 4;
                self.bus.ram_write(gpa, &word.to_le_bytes());
            }
            self.copy(Copy {
                source: self.gpu.mailbox.va,
                target: va + index as u64 * SMALL_PAGE,
                bytes: words.len() as u64 * 4,
            })?;
        }
        Ok(())
    }

    /// Where the words of a buffer are that lie in it.
    fn words_at(&self, buffer: usize, first: usize, count: usize) -> Result<u64, DriverError> {
        let words = self.places.buffers.get(buffer).map_or(0, |buffer| buffer.words);
        if first.checked_add(count).is_some_and(|end| end <= words) {
            return Ok(self.address(buffer) + first as u64 * 4);
        }
        Err(DriverError::BadCopy {
            source: self.address(buffer),
            target: first as u64 * 4,
            bytes: count as u64 * 4,
        })
    }
}

impl Gpu for Session<'_> {
    fn address(&self, buffer: usize) -> u64 {
        self.places.va.get(buffer).map_or(VRAM_VA, |va| *va)
    }

    fn launch(&mut self, launch: &Launch<'_>) -> Result<(), Stopped> {
        let started = self.start(launch);
        self.keep(started)
    }

    fn load(&mut self, buffer: usize, first: usize, words: &mut [u32]) -> Result<(), Stopped> {
        let read = self.words_at(buffer, first, words.len());
        let read = read.and_then(|va| self.load_words(va, words));
        self.keep(read)
    }

    fn store(&mut self, buffer: usize, first: usize, words: &[u32]) -> Result<(), Stopped> {
        let written = self.words_at(buffer, first, words.len());
        let written = written.and_then(|va| self.store_words(va, words));
        self.keep(written)
    }
}
