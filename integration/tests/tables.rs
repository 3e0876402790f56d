//! Page tables among a guest's data: what is loaded from VRAM for them, and how often.

use integration::checkers::Violation;
use integration::tables::{
    table_among_data_becomes_instance_memory, table_that_the_gpu_writes_stays_where_it_is,
};

fn held(result: Result<(), Violation>) {
    result.unwrap_or_else(|violation| panic!("{}", violation.0));
}

#[test]
fn table_among_data_is_loaded_from_vram_once() {
    held(table_among_data_becomes_instance_memory());
}

#[test]
fn table_that_the_gpu_writes_is_read_anew_at_each_flush() {
    held(table_that_the_gpu_writes_stays_where_it_is());
}
