//! Reads guest GPU page tables and keeps the shadow tables that the card walks.
//!
//! ```text
//! guest directory ─► guest tables      shadow directory ─► shadow tables     (VRAM, allocated through TablePages)
//!        │ TableStore, DirtyPages             ▲ ShadowWriter
//!        ▼                                    │
//!     snapshot ── changed slots ──► entry policy ── Placements: where each guest page is now
//! ```
//!
//! A [`ShadowSpace`] mirrors one guest address space. [`ShadowSpace::refresh`] reads the guest's changes,
//! [`ShadowSpace::build`] translates them, [`ShadowSpace::redirect`] rewrites the entries that point to a moved
//! frame. The unit of all three is a *slot*: 128 KiB of virtual address space, one large entry and 32 small ones.
//!
//! Nothing here logs, waits, flushes a TLB or decides where memory is: the caller does. The content of a guest's
//! tables is never an error: it is translated, or dropped and counted. No shadow entry ever points outside of the
//! addresses that [`Placements`] gave.
//!
//! * [`mod@walk`]: one software walk, for CPU windows
//! * `store`, `dirty`, `placement`: traits that the caller implements
//! * `entry`: the entry policy; `region`: the snapshot of one directory entry; `reverse`: frame → slots
//! * `build`: from snapshot to shadow; `output`: its writes; `shadow`: the whole address space
//! * `saved`: a space that is written, read and checked; `work`: how much is done in one go
#![forbid(unsafe_code)]

mod build;
mod dirty;
mod entry;
mod output;
mod placement;
mod region;
mod reverse;
mod saved;
mod shadow;
mod store;
pub mod walk;
mod work;

pub use build::{Built, Dropped, TableRange};
pub use dirty::{AllDirty, DirtyPages};
pub use placement::{FramePlacement, Placement, Placements, ShadowWriter, TablePages};
pub use reverse::{GuestFrame, Reach, ReachChange};
pub use saved::Unsound;
pub use shadow::{
    Changes, HOST_ENTRY, Pending, RedirectAt, Refresh, Reserved, ShadowConfig, ShadowError, ShadowSpace,
};
pub use store::{GuestDirectory, TableAt, TableRead, TableStore};
pub use walk::{Walk, WalkedPage, walk};
pub use work::Work;
