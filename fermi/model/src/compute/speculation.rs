//! Blocks that are executed ahead of their turn, and what they did.

mod feed;
mod record;
mod rows;
mod track;

pub(crate) use record::{View, parts};
pub(crate) use track::{Access, Kind};
