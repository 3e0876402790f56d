//! Programs that use a driver.

pub(crate) mod files;
mod random;

use crate::report::{Line, Report};
use crate::{DriverError, GuestBus, Options};
use core::ops::Range;
use files::Summary;

/// A file in guest RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Input<'a> {
    /// Its name in reports.
    pub name: &'a str,
    /// First byte, any alignment. The GPU may read the whole 4 KiB pages around it.
    pub gpa: u64,
    /// Length in bytes, not zero.
    pub bytes: u64,
}

/// What a workload runs on, besides its bus.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Guest RAM (GPA) for rings, pushbuffers and read-back, apart from the inputs and from what runs the workload.
    /// 4 MiB are plenty; less than about half a MiB and one slot is too little.
    pub dma: Range<u64>,
    /// The files.
    pub inputs: &'a [Input<'a>],
    /// Seed, rounds and so on.
    pub options: Options,
}

/// Brings the GPU up and runs the file workload (see the crate's documentation) to its end, reporting on the way.
///
/// `Ok` says that it ran to the end, [`Summary::is_ok`] whether every byte was right. An error has been reported.
pub fn run(bus: &mut dyn GuestBus, machine: &Machine<'_>) -> Result<Summary, DriverError> {
    let outcome = files::run(bus, machine);
    if let Err(error) = &outcome {
        report(bus, &Report::Error(error));
    }
    outcome
}

fn report(bus: &mut dyn GuestBus, report: &Report<'_>) {
    bus.report(Line::new(report).as_str());
}
