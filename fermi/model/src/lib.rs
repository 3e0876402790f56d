//! A software GF100 ("NVC0"): registers, memory windows, MMU, channels and copy engines.
//!
//! The card is a value. An embedder gives it memory ([`FermiModel::place_frame`] for VRAM, [`SystemBus`] for DMA),
//! forwards accesses to its BARs, and lets its engines run by [`FermiModel::step`]. The card spawns nothing, reads
//! no clock and does no I/O, so any run can be repeated.
//!
//! ```text
//!   bar_write ─► bar0 ─► pfifo, interrupts, windows …        registers take effect at once
//!            └─► windows ─► mmu ─► memory (VRAM frames, SystemBus); doorbells ─► pfifo
//!   step ─► schedule: the earliest event of  runlist · preempt · engines · PBDMAs · acquires
//!              PBDMA ─► host methods, or a method for an engine ─► copy, m2mf … ─► transfer
//! ```
//!
//! Every unit carries the GPU time of its next event; [`FermiModel::step`] performs events in the order of their
//! times, whatever the budget, so neither results nor GPU time depend on how a run is sliced.
//!
//! Mistakes of a driver are answered as the hardware does: by a fault record, an interrupt, an all-ones read. Facts
//! and their sources are in `fermi_spec`; an assumption of this model is marked as such where it is made.

mod access_counts;
mod at_once;
mod backing;
mod bar0;
mod bare;
mod capabilities;
mod clock;
mod compute;
mod context;
mod copy;
mod copy_nvidia;
mod counters;
mod doorbells;
mod engine;
mod falcon;
mod faults;
mod fetch;
mod fill;
mod graph;
mod host;
mod identity;
mod interrupts;
mod l2;
mod live;
mod ltc;
mod m2mf;
mod memory;
mod microcode;
mod mmu;
mod mmu_fault;
mod model;
mod owners;
mod past_caches;
mod paused;
mod pbdma;
mod pci;
mod peephole;
mod pfifo;
mod pmu;
mod preempt;
mod remap;
mod replay;
mod schedule;
mod sharing;
mod side;
mod slices;
mod storage;
mod timing;
mod tlb;
mod transfer;
mod unknown;
mod userd;
mod windows;

pub use access_counts::AccessCount;
pub use backing::{Backing, SystemBus};
pub use bare::{BareCard, BareCardError};
pub use capabilities::{Capabilities, ReplayableFaults};
pub use compute::{GlobalAccess, GridStart, ShaderPlace, WarpStep, WarpWatcher, Worker};
pub use counters::Counters;
pub use doorbells::{Doorbell, DoorbellWatcher};
pub use faults::Faults;
pub use microcode::CopyMicrocode;
pub use model::{FermiModel, ModelConfig, ModelError, Stepped};
pub use pci::CONFIG_BYTES;
pub use replay::ReplayableFault;
pub use timing::{ShaderTiming, Timing};
pub use tlb::Translation;
pub use unknown::Poll;

#[cfg(test)]
mod tests;
