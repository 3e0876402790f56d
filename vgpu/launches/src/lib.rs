//! What a channel is about to do: walks its ring from one doorbell to the next and interprets the pushbuffers.
//!
//! ```text
//!   GP_GET … GP_PUT ──► Observer::look ──entries──► segments ──headers──► methods by class
//!                          │  memory: read once, then decoded             90c0 ─► Launch (kernel_sets)
//!                          │                                              90b5, 9039 ─► Copy
//!                          ▼                                              host ─► Release, Acquire, Wait
//!                        Item { entry, work }                             the rest ─► Opaque, with the reason
//! ```
//!
//! * [`Observer`]: one channel; bindings of subchannels and the methods that matter persist from one submission to the next
//! * [`Work`]: what was found; [`Launch`]: code, grid, parameters and what they may reach
//! * [`GpuMemory`]: how memory of the channel's space is read
//!
//! Rules:
//!
//! 1. A guest may rewrite everything at any time. Each range is read once into a copy, and only the copy is decoded: the
//!    ring, segments, constants and code of a launch. What the hardware reads later may be something else; whoever must rely
//!    on it lets the channel run from the copies.
//! 2. Work that was found and has not ended yet will change memory. What it stores there is laid over what is read
//!    (`pending`): bytes that came inline are known, others are not. A launch whose code is among these is opaque.
//! 3. A look does at most [`Limits`] of work and goes on with the next one where it stopped. What is kept for a channel is
//!    bounded.
//! 4. A macro is interpreted from the code that was seen uploaded; what its registers are, or what it reads, may not be known. One
//!    that cannot be told ([`Opaque::Macro`]) may have sent and uploaded anything: nothing of its class and of macros is known
//!    then, nor whether methods still do what they say, until they are set again.
//! 5. Where the decoder loses its way, all that methods have set counts as unknown until it is set again.
#![forbid(unsafe_code)]

mod calls;
mod compute;
mod copies;
mod macros;
mod memory;
mod mme;
mod observer;
mod pending;
mod registers;
mod segment;
mod work;

pub use memory::{GpuMemory, Unmapped};
pub use observer::{CopyMethods, Limits, Looked, Observer, Ring};
pub use work::{Copy, Grid, Item, Launch, Opaque, Target, Work};
