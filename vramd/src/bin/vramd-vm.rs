//! `vramd-vm`: one VM. It names nothing but `vramd_vm`, for each VM's process holds what is linked here.

use std::process::ExitCode;

fn main() -> ExitCode {
    vramd_vm::main()
}
