//! `cargo xtask nested`: a cloud host in an emulated machine, with KVM, VFIO, an IOMMU and a card, and vramd on it.
//!
//! The outer machine's processor has AMD's virtualisation, its VT-d unit stands between the card and memory, and the
//! card is a `vramd gpu` process out here. What runs inside cannot tell that from a real host with a real card.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::card::Card;
use crate::guest::{Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};
use crate::workspace::Workspace;

const RAM_MIB: u32 = 3072;
/// Two MiB each: one map of the IOMMU instead of 512.
const HUGE_PAGES: u32 = 512;
/// Longest time for one line of shell.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run in the nested host.
#[derive(clap::Args)]
pub(crate) struct NestedArguments {
    /// A line of shell to run inside; may be repeated [default: all checks]
    #[arg(long, value_name = "COMMAND")]
    run: Vec<String>,
    /// Keep the logs of runs that passed too
    #[arg(long)]
    keep: bool,
    /// For diagnosis: this program instead of the one that is built
    #[arg(long, value_name = "FILE")]
    vramd: Option<PathBuf>,
}

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &NestedArguments) -> Result<()> {
    let start = Instant::now();
    let environment = HostEnv::provide(workspace)?;
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_release("vmm", "vramd")?,
    };
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let outcome = run_inside(&environment, &vramd, arguments, folder.path());
    if outcome.is_err() || arguments.keep {
        println!("logs are in {}", folder.keep().display());
    }
    outcome?;
    println!("nested passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn run_inside(environment: &HostEnv, vramd: &Path, arguments: &NestedArguments, folder: &Path) -> Result<()> {
    let root = folder.join("root.cpio");
    let files = GuestFile::program_with_libraries("vramd", vramd.to_owned())?;
    environment.write_first_root(&root, &files)?;
    let card = Card::start(vramd, &[], folder)?;
    let kernel_options = format!("iommu=nopt hugepages={HUGE_PAGES}");
    let config = GuestConfig {
        processor: Processor::EpycRome,
        ram_mib: RAM_MIB,
        card: Some(card.socket()),
        root: &root,
        disk: None,
        has_iommu: true,
        kernel_options: &kernel_options,
    };
    let mut guest = Guest::boot(environment, &config, folder)?;
    guest.succeed("load host", PATIENCE)?;
    for command in &arguments.run {
        let start = Instant::now();
        let output = guest.run(command, PATIENCE)?;
        println!("{}", output.text());
        println!(
            "{command}: status {} after {:.1} s",
            output.status,
            start.elapsed().as_secs_f64()
        );
        if output.status != 0 {
            bail!("{command:?} ended with {}", output.status);
        }
    }
    guest.power_off()?;
    let summary = card.stop()?;
    for line in &summary.lines {
        println!("card: {line}");
    }
    ensure!(root.is_file(), "the root is gone");
    Ok(())
}
