//! Guest VRAM: the owner of each frame, the place of each chunk.
//!
//! ```text
//! unbacked ─first map or touch─► resident (VRAM) ⇄ spilled (host RAM)
//!                                   └ both, while the copies are known equal
//! ```
//!
//! Invariants, checked by `Chunks::check` and the simulator's walker:
//! * a frame has at most one owner: a chunk of one VM, or the broker;
//! * a resident chunk holds exactly its frames, a spilled or unbacked one none;
//! * a byte of the image is the truth for instance pages always, for the rest of a chunk while that is spilled.

pub(crate) mod chunk;
mod frames;
mod history;
mod image_maps;

pub use chunk::{ChunkNo, Reach};
pub(crate) use chunk::{ChunkPlace, Chunks, GuestPage, Split};
pub use frames::FrameSearch;
pub(crate) use frames::Frames;
pub(crate) use history::History;
pub(crate) use image_maps::{ImageMaps, Piece};
