//! Whole-card tests, through the public interface; `owners` looks into the engines, too.

mod at_once;
mod bring_up;
mod channels;
mod clears;
mod compute;
mod copy_engines;
mod entries;
mod errors;
mod garbage;
mod graph;
mod graph_garbage;
mod identity;
mod memory;
mod owners;
mod recovery;
mod sharing;
mod slicing;
mod strict;
mod support;
mod surfaces;
mod units;
