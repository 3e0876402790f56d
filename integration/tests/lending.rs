//! A VM that rests lends its memory to those that work, and has it back when it works.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use integration::lender::{who_rests_lends_and_who_works_does_not, who_waits_lends_and_goes_on_lending};

#[test]
fn work_that_rings_no_doorbell_keeps_its_memory_and_rest_lends_it() {
    who_rests_lends_and_who_works_does_not().unwrap();
}

#[test]
fn wait_for_a_semaphore_lends_though_memory_moves() {
    who_waits_lends_and_goes_on_lending().unwrap();
}
