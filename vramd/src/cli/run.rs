//! `vramd run`: hands over to `vramd-vm`, which lies beside this program.
//!
//! A VM's process is to hold what a VM needs and no more, so it runs a program of its own
//! (docs/decisions/0010-a-program-for-each-vm.md). The process stays the same, and with it its number, descriptors and user.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, anyhow};

/// Program of a VM's process.
const PROGRAM: &str = "vramd-vm";
/// Word after which the arguments of a VM begin.
const VERB: &str = "run";

/// Replaces this program by a VM's. `words` are all arguments of this program, which were checked; returns if the
/// other one cannot be started.
pub(super) fn run(words: impl Iterator<Item = OsString>) -> anyhow::Result<u8> {
    let own = std::env::current_exe().context("cannot tell where this program is")?;
    let program = own.with_file_name(PROGRAM);
    let arguments = words.skip_while(|word| word != VERB).skip(1);
    let error = Command::new(&program).args(arguments).exec();
    Err(anyhow!(error)).with_context(|| remedy(&program))
}

fn remedy(program: &Path) -> String {
    let path = program.display();
    if program.exists() {
        return format!("cannot start {path}");
    }
    format!(
        "cannot start {path}, which runs a VM: install it beside vramd; `cargo build --release` builds both"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_named_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let said = remedy(&folder.path().join(PROGRAM));
        assert!(
            said.contains("vramd-vm") && said.contains("cargo build --release"),
            "{said}"
        );
    }
}
