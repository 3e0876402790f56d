//! `cargo xtask package`: a package for Debian of `vramd` and `vramd-vm`, and its trial on an emulated host.
//!
//! `vramd/debian` says what is in it; debhelper makes it of a folder that [`layout`] fills. Its trial installs it in a Debian with
//! systemd, starts what it brings, upgrades it and takes it away again ([`trial`]).

mod attach;
mod layout;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::host_env::{self, HostEnv};
use crate::workspace::Workspace;
use layout::Packed;

/// Where packages are put, from the root of the workspace.
const OUTPUT: &str = "target/package";

/// What to do beside making the package.
#[derive(clap::Args)]
pub(crate) struct PackageArguments {
    /// Install it on an emulated host with systemd, and try it there
    #[arg(long)]
    test: bool,
    /// A line of shell to run on that host instead of the trial; may be repeated
    #[arg(long, value_name = "COMMAND", requires = "test")]
    run: Vec<String>,
    /// Keep the logs of a trial that passed too
    #[arg(long)]
    keep: bool,
    /// Pass, with a notice, on a machine that lacks what this needs and cannot fetch it
    #[arg(long)]
    allow_missing: bool,
    /// For diagnosis: this program, and vramd-vm from beside it, instead of those that are built
    #[arg(long, value_name = "FILE")]
    vramd: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Manifest {
    workspace: WorkspaceTable,
}

#[derive(Deserialize)]
struct WorkspaceTable {
    package: PackageTable,
}

#[derive(Deserialize)]
struct PackageTable {
    version: String,
}

/// The version that all our crates have.
fn version(manifest: &str) -> Result<String> {
    let manifest: Manifest = toml::from_str(manifest).context("cannot read the root Cargo.toml")?;
    Ok(manifest.workspace.package.version)
}

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &PackageArguments) -> Result<()> {
    let start = Instant::now();
    if let Err(error) = layout::check_tools() {
        ensure!(arguments.allow_missing, "{error:#}");
        eprintln!("NOTE: {error:#}: the package was NOT made");
        return Ok(());
    }
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_release("vramd", "vramd")?,
    };
    let manifest =
        fs::read_to_string(workspace.root().join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let version = version(&manifest)?;
    let output = workspace.root().join(OUTPUT);
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    let made = layout::make(workspace, &vramd, &version, &output)?;
    check_style(&made.file)?;
    println!(
        "{} ({} KiB) after {:.1} s",
        made.file.display(),
        made.bytes >> 10,
        start.elapsed().as_secs_f64()
    );
    if arguments.test {
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let tried = try_out(workspace, arguments, &made, folder.path());
        if tried.is_err() || arguments.keep {
            println!("logs are in {}", folder.keep().display());
        }
        tried?;
    }
    println!("package passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn try_out(workspace: &Workspace, arguments: &PackageArguments, made: &Packed, folder: &Path) -> Result<()> {
    let provided = HostEnv::provide(workspace).and_then(|environment| {
        let debian = host_env::provide_debian(workspace)?;
        Ok((environment, debian))
    });
    let (environment, debian) = match provided {
        Err(error) if arguments.allow_missing => {
            eprintln!("NOTE: {error:#}: the package was NOT tried");
            return Ok(());
        }
        provided => provided?,
    };
    let later = layout::make_later(made, trial::NEW_COMMENT, folder)?;
    let host = trial::Host {
        environment: &environment,
        debian: &debian,
        packages: [made, &later],
    };
    host.try_out(workspace, &arguments.run, folder)
}

/// Has lintian look at the package.
fn check_style(package: &Path) -> Result<()> {
    let is_there = Command::new("lintian").arg("--version").output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        return Workspace::lacks(
            "the package was NOT checked: lintian is not installed (apt-get install lintian)",
        );
    }
    let mut command = Command::new("lintian");
    command.args(["--fail-on", "error,warning", "--allow-root"]);
    let output = command.arg(package).output().context("cannot start lintian")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "lintian finds fault: {}", said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_workspace() {
        let manifest = "[workspace]\nmembers = []\n[workspace.package]\nversion = \"1.2.3\"\n";
        assert_eq!(version(manifest).unwrap(), "1.2.3");
        assert!(version("[workspace]\n").is_err());
    }
}
