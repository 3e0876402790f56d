//! What the program of a VM's process holds, and how `vramd run` gets there.

use std::process::Command;

/// Crates that a VM has no use for. Names of functions in a program's symbols have these before them.
const NOT_A_VMS: [&str; 4] = ["broker", "card", "fermi_model", "vgpu"];

/// Whether the symbols of the program name functions of `crate_name`.
fn names(program: &[u8], crate_name: &str) -> bool {
    // As in `_ZN6broker4perform…`: the length of the name, then the name, then the length of the next.
    let start = format!("_ZN{}{crate_name}", crate_name.len());
    program
        .windows(start.len() + 1)
        .any(|window| window.starts_with(start.as_bytes()) && window[start.len()].is_ascii_digit())
}

#[test]
fn vms_process_holds_no_broker_core_or_model() {
    let [vramd, vm] = [env!("CARGO_BIN_EXE_vramd"), env!("CARGO_BIN_EXE_vramd-vm")]
        .map(|path| std::fs::read(path).unwrap());
    for name in NOT_A_VMS {
        assert!(
            names(&vramd, name),
            "{name} is not in vramd: what do its symbols look like?"
        );
        assert!(!names(&vm, name), "{name} is in vramd-vm");
    }
    assert!(names(&vm, "vmm"));
}

#[test]
fn run_and_the_vms_program_say_the_same() {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (by_run, by_program) = (
        said(
            env!("CARGO_BIN_EXE_vramd"),
            &["run", "/nonexistent/vm.toml", "--json"],
        ),
        said(
            env!("CARGO_BIN_EXE_vramd-vm"),
            &["/nonexistent/vm.toml", "--json"],
        ),
    );
    assert_eq!(by_run, by_program);
    assert_eq!(by_run.0, Some(1));
    assert!(
        by_run.1.starts_with("vramd: cannot read /nonexistent/vm.toml"),
        "{}",
        by_run.1
    );
}

#[test]
fn program_without_the_vms_beside_it_says_what_to_do() {
    // On the same file system: a copy could not be started while another test's child holds it open.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("vramd");
    std::fs::hard_link(env!("CARGO_BIN_EXE_vramd"), &alone).unwrap();
    let output = Command::new(&alone).args(["run", "vm.toml"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains(
            "vramd-vm, which runs a VM: install it beside vramd; `cargo build --release` builds both"
        ),
        "{said}"
    );
}
