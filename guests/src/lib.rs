//! What runs inside a guest: a Fermi driver of our own and the workloads that use it.
//!
//! The code is `no_std` and talks to its machine through [`GuestBus`] only, so the same driver runs in the
//! bare-metal guest (`guests/bare`), on a host thread joined to a broker, and inside the simulator.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bus;

pub use bus::{Bar, GuestBus};
