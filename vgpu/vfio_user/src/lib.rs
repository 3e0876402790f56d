//! The vfio-user protocol: the server, for many hostile clients, bounded, non-blocking; and the client, which outlives
//! a bad server.
//!
//! A VMM (QEMU, Cloud Hypervisor, our own) attaches to a PCI function that lives in this process, or this
//! process drives one that lives elsewhere. This crate owns the socket and the messages and knows nothing
//! of the function's purpose.
//!
//! | module | owns |
//! | --- | --- |
//! | [`listener`] | the socket path: stale or busy, whose it is and who may connect, one client at a time |
//! | `connection` | bytes and descriptors to whole messages and back |
//! | [`message`], [`version`] | layouts and a total decoder |
//! | [`client`] | negotiation, request ids, back-pressure; the surface that embedders see |
//! | [`function`] | regions and interrupts of the function; the trait for functions that answer at once |
//! | [`dma`], [`irq`] | the client's memory and interrupts |
//! | [`reaper`], `bell` | descriptors of clients closed, and eventfds signalled, without waiting |
//! | [`threads`] | the kinds of threads, and that each is confined as it starts |
//! | `peer` | whose a client is; the only unsafe code |
//! | [`pending`] | requests that wait for their answers |
//! | [`serve`] | drives a function that answers at once |
//! | [`remote`] | the other side: a function in another process |
//! | [`bounds`], [`error`] | every limit; every refusal and its errno |
//!
//! No message makes this crate panic, block, or hold more than [`bounds`] allows. An event loop polls the
//! [`Listener`] and each [`Client`], calls [`Client::read_ready`] and performs the [`Incoming`]s; a function that
//! answers at once implements [`PciFunction`] and leaves the rest to [`serve::serve_client`]:
//!
//! ```no_run
#![doc = include_str!("../examples/ramdev.rs")]
//! ```

mod bell;
pub mod bounds;
pub mod client;
mod connection;
pub mod dma;
pub mod doorbells;
pub mod error;
pub mod function;
pub mod irq;
pub mod listener;
pub mod message;
mod peer;
pub mod pending;
pub mod reaper;
pub mod remote;
pub mod serve;
#[cfg(test)]
mod testing;
pub mod threads;
pub mod version;

pub use client::{BatchedWrite, Client, Incoming, RequestId};
pub use dma::{DmaFile, DmaMap, DmaTable};
pub use error::{CloseReason, DmaError, ProtocolError, ReplyError};
pub use function::{Area, FunctionInfo, MappableRegion, PciFunction, Region, RegionInfo, RegionKind};
pub use irq::{IrqAction, IrqChange, IrqEvent, IrqIndex, IrqOperation};
pub use listener::{Accepted, BoundSocket, Listener, ListenerError, SocketAccess};
pub use peer::Peer;
pub use pending::Pending;
pub use reaper::{ForeignFd, Leftover, Reaper};
pub use remote::{MemoryPart, RegionMemory, RemoteError, RemoteFunction};
/// An error number, as replies carry it.
pub use rustix::io::Errno;
pub use threads::ThreadKind;
