//! `vramd-weakened`: the program with the hole that the feature `weakened` makes. It has a name of its own, so that `vramd` stays
//! where it was built.

use std::process::ExitCode;

fn main() -> ExitCode {
    vramd::cli::main()
}
