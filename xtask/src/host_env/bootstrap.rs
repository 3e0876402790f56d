//! Debians made by running their packages' scripts, in a folder that mmdebstrap changes into, unlike the roots that are unpacked only.
//!
//! That takes root, because their files belong to several users.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{self, Apt};
use super::cache::Cache;
use super::pins::Pin;

/// Not needed in a test, and half of the files.
const LEFT_OUT: [&str; 3] = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];
/// What is left out now is not to be left out of packages that are installed later.
const FORGET_LEFT_OUT: &str = "rm \"$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap\"";
/// What systemd does at the first start after a change of the system is done: it takes seconds there at each first start, and all are.
const UPDATED: &str = "touch \"$1/etc/.updated\" \"$1/var/.updated\"";

/// Makes a Debian of what `pin` names in a folder below `build`. Each of `hooks` is a line of shell, with the folder as `$1`.
pub(super) fn bootstrap(
    pin: &Pin,
    hooks: &[String],
    cache: &Cache,
    apt: &Apt,
    build: &Path,
) -> Result<PathBuf> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "files of several users can be made by root only: run this once as root, with VRAMD_CACHE={}",
        cache.folder().display()
    );
    let packages = apt.exact(&pin.packages)?.join(",");
    let archive = build.join("debian.tar");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase", "--format=tar"]);
    command.arg(format!("--include={packages}"));
    for files in LEFT_OUT {
        command.arg(format!("--dpkgopt=path-exclude={files}"));
    }
    // Nothing of a folder that is made anew after a loss of power has to be on the disk at each step.
    command.arg("--dpkgopt=force-unsafe-io");
    let hooks = hooks.iter().map(String::as_str);
    for hook in [FORGET_LEFT_OUT].into_iter().chain(hooks).chain([UPDATED]) {
        command.arg(format!("--customize-hook={hook}"));
    }
    command.arg(&pin.suite).arg(&archive).arg(apt.source(&pin.suite));
    apt::output(&mut command).context("cannot make a Debian (package mmdebstrap)")?;
    let root = build.join("debian-root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let mut unpack = Command::new("tar");
    // Nodes of devices are the kernel's to make.
    unpack.args(["--extract", "--numeric-owner", "--exclude=./dev/*", "--file"]);
    unpack.arg(&archive).arg("--directory").arg(&root);
    apt::output(&mut unpack)?;
    Ok(root)
}

/// The hook by which these units do not start with the machine.
pub(super) fn disable(units: &[&str]) -> String {
    format!("chroot \"$1\" systemctl --quiet disable {}", units.join(" "))
}
