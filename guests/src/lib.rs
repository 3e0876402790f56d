//! The code that runs inside a guest: a Fermi driver of our own and the workloads that use it.
//!
//! The code is `no_std` and talks to its machine through [`GuestBus`] only, so the same driver runs in the
//! bare-metal guest (`guests/bare`), on a host thread joined to a broker, and inside the simulator.
//!
//! * [`driver`]: brings a GF100 up, maps memory, runs channels and copies; usable on its own
//! * [`run`]: a workload on a [`Machine`]: files from guest RAM are kept in VRAM, moved about, read back; or a GPU
//!   kernel runs and its results are compared with a reference
//! * [`coherence`]: arrays with a copy in RAM and one in VRAM, moved when an old one would be touched; [`run_managed`] runs a
//!   kernel on them
//! * [`report`]: the form of the lines that a guest reports
//! * [`Options`]: the words that a guest understands on its command line
//!
//! The driver's state has a fixed size and lies where the caller puts it. [`run`] needs less than 64 KiB of stack.
#![cfg_attr(not(any(test, feature = "serde")), no_std)]
#![forbid(unsafe_code)]

mod bus;
pub mod coherence;
pub mod driver;
mod options;
pub mod report;
mod workload;

pub use bus::GuestBus;
pub use driver::{Driver, DriverError};
pub use options::{OptionError, Options, Workload};
pub use workload::{
    FilesSummary, Input, KernelSummary, Machine, ManagedArray, ManagedSummary, Managing, Summary, grid_of,
    run, run_managed, scratch_words, split_ram,
};
