//! The card's driver: the core's operations on the hardware, as sequences of writes and bounded polls.
//!
//! Nothing here knows about guests' data. The card is driven through three [`lane::Lane`]s, each a protocol of the
//! hardware that admits one operation at a time: TLB flush (100cbc/100c80), preempt (2634) and runlist
//! (2270/2274/227c). A lane that waits for the card does not delay the other two.

pub(crate) mod arena;
pub(crate) mod bring_up;
pub(crate) mod card;
pub(crate) mod copy;
pub(crate) mod graph;
mod graph_errors;
pub(crate) mod interrupt;
pub(crate) mod lane;
pub(crate) mod lending;
pub(crate) mod microcode;

pub(crate) use arena::Arena;
pub(crate) use card::{Card, PhysChannel};
pub(crate) use copy::CopyRun;
pub(crate) use lane::{Job, Pause};
