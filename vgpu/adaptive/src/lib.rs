//! Which blocks of a GPU's memory to bring, which to evict, and which to leave on the host: the policies of Ganguly, Adaptive Memory Management
//! for CPU-GPU Heterogeneous Systems (thesis, University of Pittsburgh, 2020), called "the thesis" here.
//!
//! ```text
//! accesses ─► Manager ─ in memory? ─────────► Local
//!                ├─ Migration: often enough? ─► Remote
//!                ├─ Bring: what comes with it
//!                └─ Evict: who goes for it ───► Comes { units, gone }
//! ```
//!
//! * `tree`: what comes and goes around a block (sections 2.2.2, 4.1.2)
//! * `counters`, [`Migration`]: hot and cold blocks, and thresholds (chapter 5)
//! * [`Pattern`]: how an allocation is used (chapter 6)
//! * [`Rules`], [`Choice`]: a policy, or the engine that chooses one by pattern
//! * [`Manager`]: a memory under a policy
//! * [`Link`]: in which order transfers of several programs go (chapter 7)
//!
//! A *unit* is what a policy works by: a block (64 KiB in the thesis) or, for the baselines, a page. Nothing but the link knows bytes or time. Fermi has neither
//! replayable faults nor access counters, so who feeds this says what stands for them.
#![forbid(unsafe_code)]

mod counters;
mod link;
mod manager;
mod pattern;
mod residency;
mod rules;
mod threshold;
mod tree;

pub use link::{Fairness, Link, Order, Transfer};
pub use manager::{Manager, Outcome, Setup};
pub use pattern::Pattern;
pub use residency::{Gone, Place};
pub use rules::{Bring, Choice, Evict, Rules};
pub use threshold::{Fill, Migration};
pub use tree::{Spread, runs};
