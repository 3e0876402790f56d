//! See `integration::fuzz`, target `config_files`.
#![no_main]

use std::sync::LazyLock;

use integration::fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| target("config_files").expect("a target of that name"));

fuzz_target!(|data: &[u8]| TARGET.run_alone(data));
