//! Which blocks of GPU memory to bring before a launch, and which to evict for it: the policies of GDM (Wang, Ding, Lee, Kato, Zhang, "GDM:
//! Device Memory Management for GPGPU Computing", SIGMETRICS 2014), called "the paper" here.
//!
//! ```text
//! copies to and from the GPU ─► Manager ─► Staged: latest bytes on the host, on the card, or both
//! launches, in their order ───►   ├─ prepare: bring the working set
//!                                 ├─ LRU-COST: who goes for it ──► Card::sign: who is clean
//!                                 └─ prefetch: what was copied and not yet brought
//! ```
//!
//! * `objects`: what lies in an owner's memory (section 4.2)
//! * `stack`: blocks on the card in the order of LRU-COST (4.4)
//! * [`Manager`]: a card's memory under these policies
//!
//! An *owner* has an address space of its own: a process in the paper, a VM here. Its addresses are cut into *blocks* of one size, which are what
//! moves. Nothing here moves a byte or knows time: [`Card`] does both. The GPU need not report faults or dirty pages.
#![forbid(unsafe_code)]

mod manager;
mod objects;
mod setup;
mod stack;

pub use manager::{Busy, Manager};
pub use setup::{Card, Clean, Evict, Launch, Prepared, Setup, Touch, WorkingSet};

/// A block of an owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block {
    /// Whose it is.
    pub owner: u32,
    /// Its address divided by the size of a block.
    pub index: u32,
}
