//! A guest that is alone, on a paced card and on a vGPU of one. What it loses to the mediator is measured by the bench of that name.

use std::time::Instant;

use integration::solo::Solo;

/// What the card may be ahead of the host: a piece of work, and the loads of its clock.
const AHEAD_NS: u64 = 100_000;

#[test]
fn card_that_is_paced_takes_as_long_as_its_clock_says() {
    let mut solo = Solo::on_a_card().unwrap();
    solo.set_copies();
    let (start, before) = (Instant::now(), solo.card_time());
    solo.run(100, 4).unwrap();
    let by_card = solo.card_time() - before;
    let by_host = start.elapsed().as_nanos() as u64;
    assert!(by_card > 1_000_000, "{by_card} ns are no work");
    assert!(
        by_card <= by_host + AHEAD_NS,
        "{by_card} ns of the card's time in {by_host}"
    );
}

#[test]
fn jobs_on_a_vgpu_end_one_at_a_time_and_many_handed_over() {
    let mut solo = Solo::on_a_vgpu().unwrap();
    for queued in [1, 4, 32] {
        solo.run(100, queued).unwrap();
    }
}
