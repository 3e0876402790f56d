//! Whole-card tests, through the public interface; `owners` looks into the engines, too.

mod access_counts;
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
mod macros;
mod memory;
mod owners;
mod paused;
mod recovery;
mod replay;
mod sharing;
mod slicing;
mod strict;
mod support;
mod surfaces;
mod units;
mod workers;
