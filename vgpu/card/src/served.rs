//! One software card served as a PCI device over vfio-user: `vramd gpu`.
//!
//! ```text
//!   client (QEMU, a broker) ──vfio-user──► Server ──► Session: one turn after the other
//!                                                       accesses ──► RunningCard (under its lock, all of a turn at once)
//!                                                       DMA maps ──► ClientMemory ──► DmaMaps ◄── engines
//!        ◄── eventfds ── Pins ◄── every access or step that may change the card's interrupt
//! ```
//!
//! One thread serves the socket, another runs the engines. The card has one client at a time; while it is attached,
//! every other connection is closed. When a client goes, the card goes back to its state after power-on, VRAM
//! included: the next client finds no data of the one before.

mod front;
mod function;
mod graphics;
mod live;
mod memory;
mod pins;
mod server;
mod session;
mod trace;
mod traffic;
mod vram;

pub use server::{GpuError, GpuServer, GpuSetup};
