//! The tests, by name.

mod arithmetic;
mod buffers;
mod clears;
mod compute;
mod images;
mod memory;
mod order;
mod samplers;
mod shaders;
mod textures;

use anyhow::Result;
use report::Outcome;

use crate::egl::Egl;
use crate::gl::Gl;
use crate::reference::Bound;

/// Source of a test's expected results.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// It computes the expected result itself.
    Checked(fn(&Egl, &Gl<'_>) -> Result<Outcome>),
    /// The software renderer computes it: its words have to agree within these bounds.
    Compared(fn(&Gl<'_>) -> Result<Vec<u32>>, &'static [Bound]),
}

/// One named test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Name of the test.
    pub(crate) name: &'static str,
    /// The function of the test.
    pub(crate) work: Work,
}

const fn case(name: &'static str, run: fn(&Egl, &Gl<'_>) -> Result<Outcome>) -> Case {
    Case {
        name,
        work: Work::Checked(run),
    }
}

const fn compared(
    name: &'static str,
    run: fn(&Gl<'_>) -> Result<Vec<u32>>,
    bounds: &'static [Bound],
) -> Case {
    Case {
        name,
        work: Work::Compared(run, bounds),
    }
}

/// All tests, in the order in which they run.
pub(crate) fn all() -> Vec<Case> {
    [
        buffers::CASES,
        textures::CASES,
        clears::CASES,
        order::CASES,
        compute::CASES,
        arithmetic::CASES,
        memory::CASES,
        images::CASES,
        samplers::CASES,
    ]
    .concat()
}
