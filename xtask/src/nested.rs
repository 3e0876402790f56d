//! `cargo xtask nested`: a cloud host in an emulated machine, with KVM, VFIO, an IOMMU and a card, and vramd on it.
//!
//! The outer machine's processor has AMD's virtualisation, its VT-d unit stands between the card and memory, and the
//! card is a `vramd gpu` process out here. What runs inside cannot tell that from a real host with a real card.

mod linux;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::card::Card;
use crate::guest::{Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};
use crate::workspace::Workspace;

const RAM_MIB: u32 = 3072;
/// Whether memory files may have huge pages: one map of the IOMMU instead of 512, and as many fewer messages.
const SHMEM_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Longest time for one line of shell.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run in the nested host.
#[derive(clap::Args)]
pub(crate) struct NestedArguments {
    /// A line of shell to run inside instead of the checks; may be repeated
    #[arg(long, value_name = "COMMAND")]
    run: Vec<String>,
    /// Keep the logs of runs that passed too
    #[arg(long)]
    keep: bool,
    /// Pass, with a notice, on a machine that lacks what a guest needs and cannot fetch it
    #[arg(long)]
    allow_missing: bool,
    /// For diagnosis: this program instead of the one that is built
    #[arg(long, value_name = "FILE")]
    vramd: Option<PathBuf>,
}

/// What `vramd demo --json` says, as far as it is looked at.
#[derive(Deserialize)]
struct Demo {
    ok: bool,
    kvm: bool,
    host_errors: u64,
    vms: Vec<DemoVm>,
}

#[derive(Deserialize)]
struct DemoVm {
    touched_bytes: u64,
    spills: u64,
    refills: u64,
    mismatches: u64,
}

/// Something that must be refused: a command, and what its one line on stderr has to say.
const REFUSED: [(&str, &str); 4] = [
    (
        "vramd demo --gpu vfio:0000:00:1e.0",
        "there is no PCI function 0000:00:1e.0",
    ),
    ("vramd demo --gpu vfio:00:1f.2", "not a GF100 card"),
    (
        "vramd demo --gpu vfio:{card}",
        "bound to no driver, not to vfio-pci: vramd bind",
    ),
    ("vramd bind 1f.2", "is not a PCI address"),
];

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &NestedArguments) -> Result<()> {
    let start = Instant::now();
    let environment = match HostEnv::provide(workspace) {
        Err(error) if arguments.allow_missing => {
            eprintln!("NOTE: {error:#}: VFIO and KVM of a nested host were NOT tried");
            return Ok(());
        }
        provided => provided?,
    };
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_release("vmm", "vramd")?,
    };
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let outcome = in_nested_host(&environment, &vramd, arguments, folder.path());
    if outcome.is_err() || arguments.keep {
        println!("logs are in {}", folder.keep().display());
    }
    outcome?;
    println!("nested passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn in_nested_host(
    environment: &HostEnv,
    vramd: &Path,
    arguments: &NestedArguments,
    folder: &Path,
) -> Result<()> {
    let root = folder.join("root.cpio");
    let mut files = GuestFile::program_with_libraries("vramd", vramd.to_owned())?;
    files.extend(linux::files(environment, folder)?);
    environment.write_first_root(&root, &files)?;
    let card = Card::start(vramd, &[], folder)?;
    let config = GuestConfig {
        processor: Processor::EpycRome,
        ram_mib: RAM_MIB,
        card: Some(card.socket()),
        root: &root,
        disk: None,
        has_iommu: true,
        kernel_options: "iommu=nopt",
    };
    let start = Instant::now();
    let mut guest = Guest::boot(environment, &config, folder)?;
    guest.succeed("load host", PATIENCE)?;
    guest.succeed(&format!("echo advise >{SHMEM_HUGE_PAGES}"), PATIENCE)?;
    println!(
        "the nested host is up after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    if arguments.run.is_empty() {
        check(&mut guest)?;
    } else {
        for command in &arguments.run {
            show(&mut guest, command)?;
        }
    }
    guest.power_off()?;
    let summary = card.stop()?;
    for line in &summary.lines {
        println!("card: {line}");
    }
    if arguments.run.is_empty() {
        let by_msi = summary
            .lines
            .iter()
            .find_map(|line| line.strip_prefix("interrupts: "));
        let by_msi = by_msi.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
        ensure!(by_msi > Some(0), "the card sent no message-signalled interrupt");
    }
    // QEMU says so when the card has no room for a map, and goes on.
    let qemu = std::fs::read_to_string(folder.join("qemu.log")).context("cannot read QEMU's log")?;
    let refused = qemu.lines().find(|line| line.contains("dma_map"));
    ensure!(
        refused.is_none(),
        "a DMA map was refused: {}",
        refused.unwrap_or_default()
    );
    Ok(())
}

/// Runs what somebody asked for.
fn show(guest: &mut Guest, command: &str) -> Result<()> {
    let start = Instant::now();
    let output = guest.run(command, PATIENCE)?;
    println!("{}", output.text());
    let seconds = start.elapsed().as_secs_f64();
    println!("{command}: status {} after {seconds:.1} s", output.status);
    ensure!(output.status == 0, "{command:?} ended with {}", output.status);
    Ok(())
}

/// What must hold on every host.
fn check(guest: &mut Guest) -> Result<()> {
    let card = card_address(guest)?;
    for (command, expected) in REFUSED {
        refuses(guest, &command.replace("{card}", &card), expected)?;
    }
    guest.succeed(&format!("vramd bind {card}"), PATIENCE)?;
    demo(
        guest,
        &format!("vramd demo --gpu vfio:{card} --vms 2 --guest-vram 256M --workload files --json"),
    )?;
    let again = guest.succeed(&format!("vramd unbind {card} && vramd bind {card}"), PATIENCE)?;
    println!("{}", again.text().trim());
    // The card was given back in a state from which it can be brought up once more.
    demo(
        guest,
        &format!("vramd demo --gpu vfio:{card} --vms 2 --no-kvm --workload files --rounds 1 --json"),
    )?;
    linux::serve(guest, &card)?;
    let checked = linux::check(guest);
    linux::stop_serving(guest)?;
    checked
}

/// Where the card is, by its vendor.
fn card_address(guest: &mut Guest) -> Result<String> {
    let found = guest.succeed(
        "for f in /sys/bus/pci/devices/*; do [ $(cat $f/vendor) = 0x10de ] && echo ${f##*/}; done; true",
        PATIENCE,
    )?;
    let mut lines = found
        .lines
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty());
    let card = lines.next().context("the nested host has no card")?;
    ensure!(
        lines.next().is_none(),
        "the nested host has several cards: {}",
        found.text()
    );
    Ok(card.to_owned())
}

fn refuses(guest: &mut Guest, command: &str, expected: &str) -> Result<()> {
    let output = guest.run(&format!("{command} 2>&1"), PATIENCE)?;
    let text = output.text();
    ensure!(output.status != 0, "{command:?} was not refused");
    ensure!(
        text.contains(expected),
        "{command:?} says {:?}, not {expected:?}",
        text.trim()
    );
    println!("{command}: {}", text.trim());
    Ok(())
}

/// Runs a demo. More than one VM must use more VRAM than there is, and show it.
fn demo(guest: &mut Guest, command: &str) -> Result<()> {
    let start = Instant::now();
    let output = guest.run(
        &format!("{command} 2>errors; s=$?; grep '^vramd' errors; (exit $s)"),
        PATIENCE,
    )?;
    let text = output.text();
    let line = output.lines.iter().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("{command:?} ended with {}: {text}", output.status))?;
    let demo: Demo = serde_json::from_str(line).with_context(|| format!("{command:?} says {line}"))?;
    let is_right = output.status == 0 && demo.ok && demo.vms.iter().all(|vm| vm.mismatches == 0);
    ensure!(is_right, "{command:?} ended with {}: {text}", output.status);
    let wants_kvm = !command.contains("--no-kvm");
    ensure!(demo.kvm == wants_kvm, "{command:?} used KVM: {}", demo.kvm);
    let of = |count: fn(&DemoVm) -> u64| demo.vms.iter().map(count).collect::<Vec<_>>();
    let (spills, refills) = (of(|vm| vm.spills), of(|vm| vm.refills));
    if demo.vms.len() > 1 {
        let moved = spills.iter().sum::<u64>() > 0 && refills.iter().sum::<u64>() > 0;
        ensure!(moved, "{command:?} moved nothing: {line}");
    }
    println!(
        "{command}: ok after {:.1} s, touched {} MiB, spills {spills:?}, refills {refills:?}, host errors {}",
        start.elapsed().as_secs_f64(),
        of(|vm| vm.touched_bytes).iter().sum::<u64>() >> 20,
        demo.host_errors
    );
    Ok(())
}
