//! BAR1, BAR3 and PRAMIN as memory that a VMM maps.

use integration::checkers::Violation;
use integration::windows::bar1::{
    data_that_is_shown_stays_the_same_and_goes_back_to_its_chunk, doorbells_in_memory_are_rung,
};
use integration::windows::{
    page_that_the_gpu_uses_is_shown_and_stays_the_same,
    pages_beside_busy_data_are_shown_and_nobody_stands_still, pages_in_many_pieces_are_shown,
    reset_takes_the_windows_back, table_that_is_stored_to_unseen_counts_at_the_next_flush,
};

/// On a card that follows the broker's mappings, and on one behind an IOMMU, whose maps pin memory.
fn held(check: fn(bool) -> Result<(), Violation>) {
    for pins in [false, true] {
        check(pins).unwrap_or_else(|violation| panic!("pins {pins}: {}", violation.0));
    }
}

#[test]
fn page_that_the_gpu_uses_is_shown_by_bar3_and_pramin_wherever_its_memory_goes() {
    held(page_that_the_gpu_uses_is_shown_and_stays_the_same);
}

#[test]
fn table_that_is_stored_to_through_a_mapped_window_counts_at_the_next_flush() {
    held(table_that_is_stored_to_unseen_counts_at_the_next_flush);
}

#[test]
fn pages_beside_busy_data_stop_nobody() {
    held(pages_beside_busy_data_are_shown_and_nobody_stands_still);
}

#[test]
fn reset_takes_back_what_windows_show() {
    held(reset_takes_the_windows_back);
}

#[test]
fn every_second_page_is_shown() {
    held(pages_in_many_pieces_are_shown);
}

#[test]
fn data_that_bar1_shows_is_the_gpus_too_and_goes_back_to_its_chunk() {
    held(data_that_is_shown_stays_the_same_and_goes_back_to_its_chunk);
}

#[test]
fn doorbells_that_nobody_sends_are_rung() {
    held(doorbells_in_memory_are_rung);
}
