//! `vramd`: several VMs share one GPU and use more VRAM than it has.

use std::process::ExitCode;

const _: () = assert!(
    !planted::ARE_BUILT_IN,
    "this program would contain faults on purpose"
);

fn main() -> ExitCode {
    vramd::cli::main()
}
