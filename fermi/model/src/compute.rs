//! The shader cores: warps of 32 lanes that execute machine code.
//!
//! ```text
//!   launch.rs ─► grid.rs: blocks in turns ─► block.rs: warps in turns ─► execute.rs: an instruction of 32 lanes
//!                                                                          ├► alu: what it does to one lane
//!   code.rs: decoded once                                                  ├► texture.rs, surface.rs: texels
//!                                                                          └► outside.rs: the address space
//! ```
//!
//! Decoding ([`fermi_spec::isa`], `code.rs`), semantics (`alu`) and dispatch (`execute.rs`) are apart, so that
//! another dispatch can take the place of this one. Nothing here knows of channels or time: the caller runs a grid
//! in pieces, and the grid leaves its counts in a [`tally::Tally`].

mod alu;
mod block;
mod coalesce;
mod code;
mod execute;
mod grid;
mod launch;
mod outside;
mod reach;
mod shared;
mod simd;
mod speculation;
mod stack;
mod surface;
mod tally;
mod texture;
mod trap;
mod warp;
mod watch;

pub(crate) use coalesce::{Places, SEGMENT_BYTES};
pub(crate) use grid::{Grid, GridProgress};
pub(crate) use launch::{BANK_BYTES_MAX, BANKS, Bank, Launch, SURFACES};
pub(crate) use outside::Outside;
pub(crate) use reach::Reach;
pub use speculation::Worker;
pub(crate) use speculation::{Access, Kind, View, Workers, page_parts};
pub(crate) use surface::Surface;
pub(crate) use tally::{Issue, Tally};
pub(crate) use texture::texel::{mask_of, pack};
pub(crate) use texture::{SAMPLER_SLOTS, Slot, TEXTURE_SLOTS, Texture, Textures};
pub use trap::ShaderPlace;
pub(crate) use trap::{Stop, WarpError};
pub(crate) use warp::{LANES, Lanes, lanes_of};
pub use watch::{GlobalAccess, GridStart, WarpStep, WarpWatcher};

#[cfg(test)]
mod tests;
