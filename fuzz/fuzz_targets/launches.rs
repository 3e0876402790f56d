//! See `integration::fuzz`, target `launches`.
#![no_main]

use std::sync::LazyLock;

use integration::fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<Target> = LazyLock::new(|| target("launches").expect("a target of that name"));

fuzz_target!(|data: &[u8]| TARGET.run_alone(data));
