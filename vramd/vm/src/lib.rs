//! One VM from its `vm.toml`: the whole of the program `vramd-vm`, to which `vramd run` hands over.
//!
//! Whatever this crate names is held by each VM's process: no broker, core, GPU model, web server or screen.

pub mod config;
pub mod guest;
pub mod program;
mod run;
pub mod signals;

pub use run::{RunArguments, main};
