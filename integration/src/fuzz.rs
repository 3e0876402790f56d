//! Bodies of the fuzz targets: each takes any bytes and turns them into actions of a guest or a foreign client.
//!
//! A body returns if all is well and panics if not. Stable tests (`tests/fuzz.rs`) run them over the committed
//! corpus and over seeded random inputs; `fuzz/` runs them under libFuzzer. Bytes that are missing read as zero, so
//! that every prefix of an input is an input too.
//!
//! * `input`: bytes to numbers (the card around them is `crate::card`)
//! * `poster`: a VM that asks for what the input says, on the whole core
//! * `bars`, `channels`, `descriptors`, `page_tables`, `shader`, `sync_cost`, `two_clients`, `vfio_user`: one target each

mod bars;
mod channels;
mod descriptors;
mod input;
mod page_tables;
mod poster;
mod shader;
mod sync_cost;
mod two_clients;
mod vfio_user;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, which is also that of its corpus folder.
    pub name: &'static str,
    /// Body that runs an input.
    pub body: fn(&[u8]),
}

/// All fuzz targets, by name.
pub const TARGETS: [Target; 8] = [
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
    Target {
        name: "two_clients",
        body: two_clients::run,
    },
    Target {
        name: "sync_cost",
        body: sync_cost::run,
    },
    Target {
        name: "descriptors",
        body: descriptors::run,
    },
];

/// The target with that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
