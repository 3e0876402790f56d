//! A whole host on one thread: core, software card, the memory of all VMs, and a clock that only its owner moves.
//!
//! * [`world`]: the host itself; [`world::Watch`] is what its owner has done around each event
//! * [`bus`]: a guest on that host; its thread runs only while the owner waits for it
//! * [`turns`]: what a guest asks for becomes an event, and the core's replies its answers
#![forbid(unsafe_code)]

pub mod bus;
pub mod turns;
pub mod world;
