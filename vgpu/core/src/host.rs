//! The card's driver: everything that the core wants of the hardware, as sequences of writes and bounded polls.
//!
//! Nothing here knows about guests' data. The card is told what to do through three [`lane::Lane`]s, each a protocol
//! of the hardware that admits one operation at a time: TLB flush (100cbc/100c80), preempt (2634) and runlist
//! (2270/2274/227c). A lane that waits for the card holds up nobody in the other two.

pub(crate) mod arena;
pub(crate) mod bring_up;
pub(crate) mod card;
pub(crate) mod copy;
pub(crate) mod interrupt;
pub(crate) mod lane;
pub(crate) mod microcode;

pub(crate) use arena::Arena;
pub(crate) use card::{Card, PhysChannel};
pub(crate) use copy::CopyRun;
pub(crate) use lane::Job;
