//! Bodies of the fuzz targets: each takes any bytes and makes them into what a guest or a foreign client may send.
//!
//! A body returns if all is well and panics if not. Stable tests (`tests/fuzz.rs`) run them over the committed corpus
//! and over seeded random inputs; `fuzz/` runs them under libFuzzer. Bytes that are missing read as zero, so that every
//! prefix of an input is one.
//!
//! * `input`: bytes to numbers (the card around them is `crate::card`)
//! * `bars`, `channels`, `page_tables`, `shader`, `vfio_user`: one target each

mod bars;
mod channels;
mod input;
mod page_tables;
mod shader;
mod vfio_user;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also that of its corpus folder.
    pub name: &'static str,
    /// What it does with an input.
    pub body: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 5] = [
    Target {
        name: "vfio_user",
        body: vfio_user::run,
    },
    Target {
        name: "bars",
        body: bars::run,
    },
    Target {
        name: "channels",
        body: channels::run,
    },
    Target {
        name: "page_tables",
        body: page_tables::run,
    },
    Target {
        name: "shader",
        body: shader::run,
    },
];

/// The target with that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
