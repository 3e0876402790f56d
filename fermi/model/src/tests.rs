//! Whole-card tests, through the public interface only.

mod bring_up;
mod channels;
mod errors;
mod garbage;
mod memory;
mod slicing;
mod support;
