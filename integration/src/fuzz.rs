//! Bodies of the fuzz targets: each takes any bytes and turns them into actions of a guest or a foreign client.
//!
//! A body returns if all is well and panics if not. Stable tests (`tests/fuzz.rs`) run them over the committed
//! corpus and over seeded random inputs; `fuzz/` runs them under libFuzzer. Bytes that are missing read as zero, so
//! that every prefix of an input is an input too.
//!
//! * `input`: bytes to numbers (the card around them is `crate::card`)
//! * `poster`: a VM that asks for what the input says, on the whole core
//! * `bars`, `channels`, `config_files`, `control_request`, `descriptors`, `kernel_sets`, `launches`, `page_tables`, `shader`, `sync_cost`, `two_clients`, `vfio_user`:
//!   one target each

mod bars;
mod channels;
#[cfg(feature = "programs")]
mod config_files;
#[cfg(feature = "programs")]
mod control_request;
#[cfg(feature = "programs")]
mod descriptors;
mod input;
mod kernel_sets;
mod launches;
mod page_tables;
mod poster;
mod shader;
mod sync_cost;
mod two_clients;
mod vfio_user;

use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use vmm_sys_util::signal::register_signal_handler;

/// Longest wait for what a broker does by itself.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const RETRY: Duration = Duration::from_millis(1);

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, which is also that of its corpus folder.
    pub name: &'static str,
    /// Body that runs an input.
    pub body: fn(&[u8]),
}

impl Target {
    /// Runs an input in a process that does nothing else, and returns when its threads have ended too. Nobody joins a thread that
    /// lets go of what clients left, and while one ends a sanitizer takes what it holds for leaked.
    ///
    /// # Panics
    ///
    /// If the body does, or if a thread is left after 20 s.
    pub fn run_alone(&self, data: &[u8]) {
        live_on_broken_pipes();
        let before = threads();
        (self.body)(data);
        let start = Instant::now();
        while threads() > before {
            assert!(
                start.elapsed() < PATIENCE,
                "{} threads are left",
                threads() - before
            );
            thread::sleep(RETRY);
        }
    }
}

/// Has stores to a socket whose other end is closed fail, as Rust's own start of a program does. Under libFuzzer there is none, and the
/// signal would end the process without an input that shows why.
fn live_on_broken_pipes() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        register_signal_handler(Signal::PIPE.as_raw(), ignored).expect("every process may catch this signal");
    });
}

extern "C" fn ignored<Information, Context>(_: i32, _: *mut Information, _: *mut Context) {}

/// Threads of this process.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a process has threads");
    tasks.count()
}

/// All fuzz targets, by name. Those that need the feature `programs` drive what `vramd` itself stands on.
pub const TARGETS: &[Target] = &[
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
    #[cfg(feature = "programs")]
    Target {
        name: "descriptors",
        body: descriptors::run,
    },
    #[cfg(feature = "programs")]
    Target {
        name: "control_request",
        body: control_request::run,
    },
    #[cfg(feature = "programs")]
    Target {
        name: "config_files",
        body: config_files::run,
    },
    Target {
        name: "kernel_sets",
        body: kernel_sets::run,
    },
    Target {
        name: "launches",
        body: launches::run,
    },
];

/// The target with that name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}
