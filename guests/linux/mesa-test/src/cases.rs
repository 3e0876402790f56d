//! The tests, by name.

mod buffers;
mod compute;
mod order;
mod textures;

use anyhow::Result;

use crate::egl::Egl;
use crate::gl::Gl;

/// How a test that did not fail ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All is as it should be.
    Passed,
    /// It does not apply to this machine.
    Skipped(String),
}

/// A test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Runs it.
    pub(crate) run: fn(&Egl, &Gl<'_>) -> Result<Outcome>,
}

const fn case(name: &'static str, run: fn(&Egl, &Gl<'_>) -> Result<Outcome>) -> Case {
    Case { name, run }
}

/// All tests, in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    [buffers::CASES, textures::CASES, order::CASES, compute::CASES].concat()
}
