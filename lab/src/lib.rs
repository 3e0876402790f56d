//! The figures of the papers that this system follows, reproduced on a simulated host: GPUswap's (Kehne, Metter, Bellosa, VEE'15) and others'.
//!
//! The host is that of `sim_host`: core, software card, VMs whose guests are ordinary guest code. Its clock is the card's: what
//! the host's processor does takes no time, so figures are the same on every host. Sizes are the paper's divided by 16.
//!
//! ```text
//! Experiment ──jobs──► Host (one for each job, on as many threads as there are processors)
//!      └─────────────► Report ──► table, JSON, SVG
//! ```
//!
//! * `experiments`: one module for each; [`run`] runs one
//! * `host`: a host whose failures are errors; `programs`: what its guests do
//! * `traces`: what pages kernels use; `replay`: traces on too little memory
//! * `demand`: a card whose buffers come when they are used, by faults that can be replayed and by access counters
//! * `device`: a bare card that runs launches of our choice
//! * `calls`: what programs ask of a card; `staged`: their calls replayed on a memory that is managed before launches
//! * `observed`: a bare machine whose channels are looked at; `two_copies`: what happens there to arrays with two copies, in order
//! * [`report`]: figures, charts, and what is claimed of them
#![forbid(unsafe_code)]

mod calls;
mod demand;
mod device;
mod experiments;
mod host;
mod jobs;
mod observed;
mod plot;
mod programs;
mod replay;
pub mod report;
mod settings;
mod staged;
mod statistics;
mod traces;
mod two_copies;

pub use experiments::{Experiment, run};
pub use host::LabError;
pub use jobs::Onlooker;
pub use report::Report;
pub use settings::{Profile, Settings};
pub use traces::{Trace, TraceError};

/// What the paper's sizes are divided by.
const SCALE: u64 = 16;
/// Bytes of 1 MiB.
const MIB: u64 = 1 << 20;
/// Bytes of 1 KiB.
const KIB: u64 = 1 << 10;
