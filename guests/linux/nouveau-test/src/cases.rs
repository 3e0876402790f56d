//! The tests, by name.

mod binding;
mod entries;
mod faults;
mod fences;
mod gate;
mod graphics;
mod identity;
mod memory;
mod parallel;
mod semaphores;
mod transfer;

use std::path::PathBuf;

use anyhow::Result;
use report::Outcome;

/// The card's files.
#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    /// The render node, which needs no rights over the display.
    pub(crate) render: PathBuf,
    /// The primary node, which allows every call.
    pub(crate) card: PathBuf,
}

/// One named test.
#[derive(Debug)]
pub(crate) struct Case {
    /// Name of the test.
    pub(crate) name: &'static str,
    /// Extended regular expression of what the kernel log may say because of it; empty for nothing.
    pub(crate) log: &'static str,
    /// The function that runs the test.
    pub(crate) run: fn(&Nodes) -> Result<Outcome>,
}

/// The driver's message about a channel that it ends.
const KILLED: &str = "fault [0-9a-f]+ |rc scheduled|errored - disabling channel|channel [0-9]+ killed|PBDMA[0-9]|\
                      error fencing pushbuf";
/// Any complaint of the driver, but no warning with a stack of calls.
const ANY: &str = "nouveau [0-9a-f:.]+:";

const fn quiet(name: &'static str, run: fn(&Nodes) -> Result<Outcome>) -> Case {
    Case { name, log: "", run }
}

const fn noisy(name: &'static str, log: &'static str, run: fn(&Nodes) -> Result<Outcome>) -> Case {
    Case { name, log, run }
}

/// All tests, in the order in which they run: what others need comes first.
pub(crate) fn all() -> Vec<Case> {
    [
        identity::CASES,
        memory::CASES,
        transfer::CASES,
        graphics::CASES,
        fences::CASES,
        semaphores::CASES,
        binding::CASES,
        entries::CASES,
        parallel::CASES,
        faults::CASES,
    ]
    .into_iter()
    .flat_map(|cases| cases.iter().map(|case| Case { ..*case }))
    .collect()
}
