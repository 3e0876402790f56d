//! `vramd`: several VMs share one GPU and use more VRAM than it has.

use std::process::ExitCode;

fn main() -> ExitCode {
    vramd::cli::main()
}
