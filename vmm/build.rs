//! Builds the bare-metal guest (`guests/bare`) and leaves it as `guest.elf` in `OUT_DIR`.
//!
//! The guest is a package outside the workspace with flags of its own, so a second cargo builds it, in a target
//! folder of its own: the outer cargo holds the lock of the other one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Variables of the outer build that would change the guest's flags or place, by name or beginning.
const OUTER_VARIABLES: [&str; 9] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "CLIPPY_",
    "CARGO_TARGET_",
    "CARGO_BUILD_",
    "CARGO_PROFILE_",
    "__CARGO",
];
/// Text of cargo's error when the guest's lock file does not fit a changed manifest.
const LOCK_IS_STALE: &str = "--locked";

fn main() {
    // Asked of the environment: the folder may have moved since this was compiled.
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let workspace = package.join("..");
    let bare = workspace.join("guests/bare");
    let sources = [
        "Cargo.toml",
        "guests/Cargo.toml",
        "guests/src",
        "guests/kernels/Cargo.toml",
        "guests/kernels/build.rs",
        "guests/kernels/asm",
        "guests/kernels/src",
        "fermi/spec/Cargo.toml",
        "fermi/spec/src",
        "guests/bare/Cargo.toml",
        "guests/bare/Cargo.lock",
        "guests/bare/.cargo/config.toml",
        "guests/bare/build.rs",
        "guests/bare/link.ld",
        "guests/bare/src",
    ];
    for source in sources {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = out.join("guest");
    let mut built = build(&bare, &target, &["--locked"]);
    if !built.status.success() && String::from_utf8_lossy(&built.stderr).contains(LOCK_IS_STALE) {
        println!("cargo::warning=guests/bare/Cargo.lock is out of date and is being updated: commit it");
        built = build(&bare, &target, &[]);
    }
    let log = String::from_utf8_lossy(&built.stderr);
    assert!(
        built.status.success(),
        "cannot build the bare-metal guest:\n{log}"
    );
    let program = target.join("x86_64-unknown-linux-gnu/release/bare");
    fs::copy(&program, out.join("guest.elf")).expect("the guest that cargo just built can be copied");
}

fn build(bare: &Path, target: &Path, arguments: &[&str]) -> Output {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    // In the guest's folder, for cargo finds its flags from there.
    cargo
        .current_dir(bare)
        .args(["build", "--release", "--quiet", "--target-dir"])
        .arg(target)
        .args(arguments);
    let is_outer = |name: &str| OUTER_VARIABLES.iter().any(|outer| name.starts_with(outer));
    env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| name.to_str().is_some_and(is_outer))
        .for_each(|name| {
            cargo.env_remove(name);
        });
    cargo.output().expect("cargo can be started")
}
