//! A GPU kernel: its inputs go to VRAM, its plan runs, its outputs come back and are compared with a reference.
//!
//! 1. *upload*: inputs are computed piece by piece in staging memory and copied to VRAM by copy engine 0.
//! 2. *reference*: the processor computes what the outputs have to be, into [`Machine::scratch`].
//! 3. *run*: the plan, launch by launch; how long each took is between two stamps of the GPU's clock. Large grids are
//!    cut, so that no launch keeps other VMs from the card for long.
//! 4. *check*: every byte of inputs and outputs comes back by M2MF and is compared.
//!
//! Steps 3 and 4 are repeated in each round.
//!
//! ```text
//! VRAM: driver │ Compute │ code │ buffers of the kernel, each from a page on ...
//! ```

mod gpu;
mod managed;
mod transfer;

pub(super) use managed::run as run_coherent;
pub use managed::{ManagedArray, ManagedSummary, Managing, run_managed};

use super::{Machine, progress, report};
use crate::driver::{COMPUTE_BYTES, Copier, DmaBlock, Driver, DriverConfig, DriverError, Fence, PageSize};
use crate::report::Report;
use crate::{GuestBus, Options, Workload};
use fermi_spec::addr::{LARGE_PAGE, SMALL_PAGE};
pub use gpu::grid_of;
use gpu::{GuestGpu, Outcome};
use kernels::{Buffer, Buffers, Instance, Kernel, Noise, Role};

/// Where VRAM address 0 would be in the channels' address space.
const VRAM_VA: u64 = 8 << 30;
const CODE_BYTES: u64 = LARGE_PAGE;
/// Most buffers: they are [`kernels::Buffers`]' own limit.
const BUFFERS_MAX: usize = 16;
/// Staging memory is two halves: one is copied while the processor works on the other.
const HALF_BYTES: u64 = 512 << 10;
const HALF_WORDS: usize = HALF_BYTES as usize / 4;

/// Results of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelSummary {
    /// VRAM that the GPU shows, in bytes.
    pub vram_bytes: u64,
    /// Bytes of the kernel's buffers.
    pub footprint_bytes: u64,
    /// How often its plan was run and compared.
    pub rounds: u32,
    /// Launches on the GPU.
    pub grids: u64,
    /// GPU time of the launches in nanoseconds. It includes the time that the channel was
    /// suspended during a launch.
    pub gpu_ns: u64,
    /// Bytes that were compared.
    pub checked_bytes: u64,
    /// Copies done by the GPU.
    pub copies: u64,
    /// Bytes they moved.
    pub bytes_copied: u64,
    /// Words that were wrong.
    pub mismatches: u64,
}

/// Words of [`Machine::scratch`] that a workload needs whose buffers have `footprint` bytes.
pub fn scratch_words(workload: Workload, footprint: u64) -> usize {
    match workload {
        Workload::Files => 0,
        Workload::Kernel(_) => kernels::make(workload.name(), footprint)
            .map_or(0, |instance| instance.kernel().reference_words()),
    }
}

/// A piece of a buffer in one half of the staging memory.
#[derive(Clone, Copy)]
struct Piece {
    number: usize,
    buffer: Buffer,
    first: usize,
    words: usize,
}

/// Where the buffers of a kernel are.
#[derive(Clone)]
struct Places {
    buffers: Buffers,
    va: [u64; BUFFERS_MAX],
    /// One past the last, in VRAM.
    end: u64,
}

impl Places {
    /// First byte of VRAM for buffers.
    const fn start() -> u64 {
        (Driver::data_start() + COMPUTE_BYTES + CODE_BYTES).next_multiple_of(LARGE_PAGE)
    }

    /// Each buffer begins a page of `page` bytes.
    fn new(kernel: &dyn Kernel, page: u64) -> Self {
        let buffers = Buffers::of(kernel);
        let mut va = [0; BUFFERS_MAX];
        let mut end = Self::start();
        for (number, buffer) in buffers.iter() {
            va[number] = VRAM_VA + end;
            end += (buffer.words as u64 * 4).next_multiple_of(page);
        }
        Self { buffers, va, end }
    }

    fn va(&self, piece: Piece) -> u64 {
        self.va.get(piece.number).map_or(VRAM_VA, |va| *va) + piece.first as u64 * 4
    }

    /// Pieces of all buffers that `wants` names.
    fn pieces(&self, wants: fn(Role) -> bool) -> impl Iterator<Item = Piece> + use<'_> {
        let wanted = self.buffers.iter().filter(move |(_, buffer)| wants(buffer.role));
        wanted.flat_map(|(number, buffer)| {
            (0..buffer.words).step_by(HALF_WORDS).map(move |first| Piece {
                number,
                buffer,
                first,
                words: HALF_WORDS.min(buffer.words - first),
            })
        })
    }
}

/// The state of a running kernel.
struct Run<'a> {
    kernel: &'a dyn Kernel,
    noise: Noise,
    places: Places,
    driver: Driver,
    copier: Copier,
    staging: DmaBlock,
    /// The last copy of each half.
    fences: [Option<Fence>; 2],
    summary: KernelSummary,
}

pub(super) fn run(
    bus: &mut dyn GuestBus,
    machine: Machine<'_>,
    index: usize,
) -> Result<KernelSummary, DriverError> {
    let options = machine.options;
    let mut driver = Driver::start(bus, &DriverConfig::new(machine.dma, &options))?;
    let vram_bytes = driver.vram_bytes();
    let instance = choose(vram_bytes, vram_bytes, &options, index, SMALL_PAGE)?;
    let kernel = instance.kernel();
    let memory = reference_memory(kernel, machine.scratch)?;
    let places = Places::new(kernel, SMALL_PAGE);
    let copier = Copier::new(&mut driver, bus)?;
    let staging = driver.take_dma(bus, 2 * HALF_BYTES)?;
    let mut run = Run {
        kernel,
        noise: Noise::new(options.seed),
        summary: KernelSummary {
            vram_bytes: driver.vram_bytes(),
            footprint_bytes: places.buffers.bytes(),
            rounds: options.rounds.max(1),
            ..KernelSummary::default()
        },
        places,
        driver,
        copier,
        staging,
        fences: [None; 2],
    };
    let mut gpu = run.prepare(bus)?;
    run.upload(bus)?;
    progress(bus, "reference", 0, 1);
    kernel.reference(run.noise, memory);
    progress(bus, "reference", 1, 1);
    let rounds = run.summary.rounds as usize;
    for round in 0..rounds {
        progress(bus, "run", round, rounds);
        (0..options.repeats.max(1)).try_for_each(|_| run.launch(bus, &mut gpu))?;
        progress(bus, "run", round + 1, rounds);
        run.check(bus, memory)?;
    }
    run.end(bus, gpu, Workload::Kernel(index).name())
}

/// The part of `scratch` that a kernel's reference needs.
fn reference_memory<'a>(kernel: &dyn Kernel, scratch: &'a mut [u32]) -> Result<&'a mut [u32], DriverError> {
    let (wanted, room) = (kernel.reference_words(), scratch.len());
    scratch.get_mut(..wanted).ok_or(DriverError::ScratchTooSmall {
        wanted: wanted as u64 * 4,
        room: room as u64 * 4,
    })
}

/// The kernel in the size that was asked for, or that VRAM and `most` bytes of anything else have room for. Each buffer begins a
/// page of `page` bytes.
fn choose(
    vram_bytes: u64,
    most: u64,
    options: &Options,
    index: usize,
    page: u64,
) -> Result<Instance, DriverError> {
    let room = vram_bytes.saturating_sub(Places::start());
    let most = room.min(most).saturating_sub(BUFFERS_MAX as u64 * page);
    let name = Workload::Kernel(index).name();
    let instance = kernels::make(name, options.footprint.unwrap_or(most));
    let fits = |instance: &Instance| Places::new(instance.kernel(), page).end <= vram_bytes;
    let wanted = instance
        .as_ref()
        .map_or(0, |instance| Buffers::of(instance.kernel()).bytes());
    instance
        .filter(fits)
        .ok_or(DriverError::FootprintTooLarge { wanted, room })
}

impl Run<'_> {
    /// Maps VRAM and creates the compute channel.
    fn prepare(&mut self, bus: &mut dyn GuestBus) -> Result<GuestGpu, DriverError> {
        let start = Driver::data_start();
        // The last page may end behind the buffers, and VRAM may end within it.
        let end = self
            .places
            .end
            .next_multiple_of(LARGE_PAGE)
            .min(self.summary.vram_bytes);
        self.driver
            .map_vram(bus, VRAM_VA + start, start, end - start, PageSize::Large)?;
        self.driver.flush_tlb(bus)?;
        GuestGpu::new(&mut self.driver, bus, VRAM_VA + start)
    }

    /// The plan, once.
    fn launch(&mut self, bus: &mut dyn GuestBus, gpu: &mut GuestGpu) -> Result<(), DriverError> {
        let kernel = self.kernel;
        let mut session = gpu.session(bus, &mut self.driver, &mut self.copier, &self.places);
        let planned = kernel.run(&mut session);
        let Outcome { grids, gpu_ns } = session.end(planned)?;
        self.summary.grids += grids;
        self.summary.gpu_ns += gpu_ns;
        Ok(())
    }

    fn end(
        mut self,
        bus: &mut dyn GuestBus,
        gpu: GuestGpu,
        name: &str,
    ) -> Result<KernelSummary, DriverError> {
        self.driver.check_device(bus)?;
        self.summary.copies = self.copier.copies();
        self.summary.bytes_copied = self.copier.bytes();
        gpu.destroy(&mut self.driver, bus)?;
        self.copier.destroy(&mut self.driver, bus)?;
        let summary = &self.summary;
        report(bus, &Report::Kernel { name, summary });
        Ok(self.summary)
    }
}
