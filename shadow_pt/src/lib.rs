//! Reads guest GPU page tables and keeps the shadow tables that the card walks.
//!
//! ```text
//! guest directory ─► guest tables      shadow directory ─► shadow tables     (VRAM, allocated through TablePages)
//!        │ TableStore, DirtyPages             ▲ ShadowWriter
//!        ▼                                    │
//!     snapshot ── changed slots ──► entry policy ── Placements: where each guest page is now
//! ```
//!
//! A [`ShadowSpace`] mirrors one guest address space. [`ShadowSpace::refresh`] reads what the guest changed,
//! [`ShadowSpace::build`] translates it, [`ShadowSpace::redirect`] rewrites what points to a moved frame. The unit of
//! all three is a *slot*: 128 KiB of virtual address space, one large entry and 32 small ones.
//!
//! Nothing here logs, waits, flushes a TLB or decides where memory is: that is the caller's. What a guest writes into
//! its tables is never an error, it is translated, dropped and counted; no shadow entry ever points outside of what
//! [`Placements`] answered.
//!
//! * [`mod@walk`]: one software walk, for CPU windows
//! * `store`, `dirty`, `placement`: what the caller supplies
//! * `entry`: the entry policy; `region`: what is known of one directory entry; `reverse`: frame → slots
//! * `build`: from snapshot to shadow; `output`: its writes; `shadow`: the whole address space
#![forbid(unsafe_code)]

mod build;
mod dirty;
mod entry;
mod output;
mod placement;
mod region;
mod reverse;
mod shadow;
mod store;
pub mod walk;

pub use build::{Built, Dropped, TableRange};
pub use dirty::{AllDirty, DirtyPages, DirtySet};
pub use placement::{FramePlacement, Placement, Placements, ShadowWriter, TablePages};
pub use reverse::{GuestFrame, Reach};
pub use shadow::{Changes, Refresh, ShadowConfig, ShadowError, ShadowSpace};
pub use store::{GuestDirectory, TableAt, TableRead, TableStore};
pub use walk::{Walk, walk};
