//! Guest VRAM: who holds which frame, where each chunk is.
//!
//! ```text
//! unbacked ─first map or touch─► resident (VRAM) ⇄ spilled (host RAM)
//!                                   └ both, while the copies are known equal
//! ```
//!
//! Invariants, checked by `Chunks::check` and the simulator's walker:
//! * a frame has one owner: a chunk of one VM, the broker, or nobody;
//! * a resident chunk holds exactly its frames, a spilled or unbacked one none;
//! * a byte of the image is the truth for instance pages always, for the rest of a chunk while that is spilled.

pub(crate) mod chunk;
mod frames;
mod history;

pub use chunk::{ChunkNo, Reach};
pub(crate) use chunk::{ChunkPlace, Chunks, GuestPage};
pub(crate) use frames::Frames;
pub(crate) use history::History;
