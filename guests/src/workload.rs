//! Programs that use a driver.

mod files;
mod kernel;
mod random;

use crate::report::{Line, Report};
use crate::{DriverError, GuestBus, Options, Workload};
use core::ops::Range;

pub use files::FilesSummary;
pub use kernel::{
    KernelSummary, ManagedArray, ManagedSummary, Managing, grid_of, run_managed, scratch_words,
};

/// A file in guest RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input<'a> {
    /// Name in reports.
    pub name: &'a str,
    /// First byte, any alignment. The GPU may read the whole 4 KiB pages around it.
    pub gpa: u64,
    /// Length in bytes, not zero.
    pub bytes: u64,
}

/// The memory and options of a workload.
#[derive(Debug)]
pub struct Machine<'a> {
    /// Guest RAM (GPA) for rings, pushbuffers and read-back, apart from the inputs and the program itself.
    /// 4 MiB are plenty; less than about half a MiB and one slot is too little.
    pub dma: Range<u64>,
    /// Memory that the GPU does not reach, for the reference of a kernel: see [`scratch_words`]. The other workloads
    /// need none. Contents are undefined.
    pub scratch: &'a mut [u32],
    /// The files of the workload.
    pub inputs: &'a [Input<'a>],
    /// Workload, seed, rounds and so on.
    pub options: Options,
}

/// Results of a workload that ran to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Summary {
    /// Results of [`Workload::Files`].
    Files(FilesSummary),
    /// Results of [`Workload::Kernel`].
    Kernel(KernelSummary),
}

impl Summary {
    /// Whether every byte was right.
    pub fn is_ok(&self) -> bool {
        match self {
            Self::Files(files) => files.is_ok(),
            Self::Kernel(kernel) => kernel.mismatches == 0,
        }
    }

    /// Slots or words that were wrong.
    pub fn mismatches(&self) -> u64 {
        match self {
            Self::Files(files) => files.mismatches.into(),
            Self::Kernel(kernel) => kernel.mismatches,
        }
    }

    /// Bytes that the GPU copied.
    pub fn bytes_copied(&self) -> u64 {
        match self {
            Self::Files(files) => files.bytes_copied,
            Self::Kernel(kernel) => kernel.bytes_copied,
        }
    }
}

/// Brings the GPU up and runs the workload that the options name to its end, reporting on the way.
///
/// `Ok` says that it ran to the end, [`Summary::is_ok`] whether every byte was right. An error has been reported.
pub fn run(bus: &mut dyn GuestBus, machine: Machine<'_>) -> Result<Summary, DriverError> {
    let outcome = match machine.options.workload {
        Workload::Files => files::run(bus, &machine).map(Summary::Files),
        Workload::Kernel(index) => match machine.options.coherence {
            None => kernel::run(bus, machine, index).map(Summary::Kernel),
            Some(scheme) => kernel::run_coherent(bus, machine, index, scheme).map(Summary::Kernel),
        },
    };
    if let Err(error) = &outcome {
        report(bus, &Report::Error(error));
    }
    outcome
}

/// DMA memory of a machine that runs a kernel.
const KERNEL_DMA_BYTES: u64 = 8 << 20;

/// Divides free guest RAM between [`Machine::dma`] and [`Machine::scratch`], which only kernels need.
pub fn split_ram(free: Range<u64>, options: &Options) -> (Range<u64>, Range<u64>) {
    let end = match (options.workload, options.coherence) {
        (Workload::Files, _) => free.end,
        (Workload::Kernel(_), None) => free.start.saturating_add(KERNEL_DMA_BYTES),
        // Buffers have a copy in RAM, each from a page on. Nobody's reference takes more than they do.
        (Workload::Kernel(_), Some(_)) => {
            let half = (free.end - free.start) / 2;
            let footprint = options.footprint.unwrap_or(half);
            free.start
                .saturating_add(KERNEL_DMA_BYTES)
                .saturating_add(footprint)
        }
    };
    let border = free.end.min(end);
    (free.start..border, border..free.end)
}

fn report(bus: &mut dyn GuestBus, report: &Report<'_>) {
    bus.report(Line::new(report).as_str());
}

/// Progress lines of a phase.
const LINES_PER_PHASE: u64 = 16;

/// Reports every sixteenth of a phase.
fn progress(bus: &mut dyn GuestBus, phase: &str, done: usize, total: usize) {
    let (done, total) = (done as u64, total as u64);
    let step = total.div_ceil(LINES_PER_PHASE).max(1);
    if done.is_multiple_of(step) || done == total {
        report(bus, &Report::Progress { done, total, phase });
    }
}
