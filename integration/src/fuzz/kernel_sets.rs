//! Code of any kind, and what is said of it.
//!
//! Oracle: nothing panics, the work stays within its limits, and what the card reaches lies in the sets.

use std::sync::PoisonError;

use super::input::Input;
use super::shader::launch;
use crate::shaders::predicted;
use crate::shaders::runner::{self, Runner};

/// Body of the target `kernel_sets`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let launch = launch(&mut input);
    let sets = predicted::sets(&launch);
    assert!(
        sets.work <= kernel_sets::Limits::default().work,
        "work has a limit"
    );
    for access in &sets.accesses {
        let run = access.within(|pointer| Some(pointer & !0xfff..(pointer | 0xfff) + 1));
        let is_part = access.bytes.start <= run.start && run.end <= access.bytes.end;
        assert!(
            is_part || run.is_empty(),
            "a run cuts the interval: {access:x?}, {run:x?}"
        );
    }
    let mut runner = Runner::impatient();
    let tally = predicted::watch(&mut runner, &sets);
    // How it ends is no matter: what it reached until then counts.
    let _ = runner.run(&launch, &mut runner::memory());
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(tally.outside.is_empty(), "{:#?}", tally.outside);
}
