//! `cargo xtask nested`: a cloud host in an emulated machine, with KVM, VFIO, an IOMMU and a card, and vramd on it.
//!
//! The outer machine's processor has AMD's virtualisation, its VT-d unit stands between the card and memory, and
//! the card is a `vramd gpu` process outside. Programs inside cannot tell it from a real host with a real card.

mod bare_metal;
mod baseline;
mod boots;
mod debian;
mod icount;
mod linux;
mod pinned;
mod previous;
mod stray;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::card::Card;
use crate::guest::{Clock, Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};
use crate::workspace::Workspace;

const RAM_MIB: u32 = 3072;
/// Settings that allow memory files to have huge pages: one map of the IOMMU instead of 512, and
/// as many fewer messages.
const SHMEM_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// The line of `vramd run` for a guest that ended as it should.
const SUCCESS: &str = "the guest ended with status 0";
/// PCI address of the only card of the nested host.
const CARD: &str = "0000:00:01.0";
/// Longest time for one line of shell.
const PATIENCE: Duration = Duration::from_secs(600);

/// What to run in the nested host.
#[derive(clap::Args)]
pub(crate) struct NestedArguments {
    /// A line of shell to run inside instead of the checks; may be repeated
    #[arg(long, value_name = "COMMAND")]
    run: Vec<String>,
    /// Measure instead, in a machine that counts instructions, and compare with integration/nested/baseline.toml
    #[arg(long, conflicts_with = "run")]
    icount: bool,
    /// Boot two Debians with nouveau and Mesa on vGPUs of that host's card instead, together twice its VRAM
    #[arg(long, conflicts_with = "icount")]
    debian: bool,
    /// With --debian: a few of the driver's tests, and none of Mesa's
    #[arg(long, requires = "debian", conflicts_with = "run")]
    brief: bool,
    /// Run on this host and its card at that PCI address, as root, instead of in an emulated machine
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["run", "icount", "weakened"])]
    bare_metal: Option<String>,
    /// VRAM of each of the two VMs that share that card: more than half of the card's
    #[arg(long, value_name = "SIZE", default_value = "1536M", requires = "bare_metal")]
    guest_vram: String,
    /// Make what is measured the baseline
    #[arg(long, requires = "icount")]
    bless: bool,
    /// Keep the logs of runs that passed too
    #[arg(long)]
    keep: bool,
    /// Pass, with a notice, on a machine that lacks what a guest needs and cannot fetch it
    #[arg(long)]
    allow_missing: bool,
    /// For diagnosis: this program instead of the one that is built
    #[arg(long, value_name = "FILE")]
    vramd: Option<PathBuf>,
    /// For diagnosis: this program instead of the one that is built with the feature `weakened`
    #[arg(long, value_name = "FILE")]
    weakened: Option<PathBuf>,
}

/// The programs under test.
struct Programs {
    vramd: PathBuf,
    weakened: PathBuf,
}

/// The fields of `vramd demo --json` that are checked.
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

/// A command that must be refused, and the text that its one line on stderr must contain.
const REFUSED: [(&str, &str); 5] = [
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
    ("vramd bind 00:1f.2", "takes no other device from the host"),
];

/// A user who is not root, and his group.
const USER: &str = "1000:1000";
/// Limits of locked memory in KiB that are too low, for the broker itself and for a VM, each
/// with the expected message.
const MEMLOCK_REFUSED: [(u32, &str); 2] = [
    (64, "the limit is 0x10000 bytes (ulimit -l, LimitMEMLOCK=)"),
    (4096, "the limit is 0x400000 bytes (ulimit -l, LimitMEMLOCK=)"),
];

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &NestedArguments) -> Result<()> {
    let start = Instant::now();
    if let Some(at) = &arguments.bare_metal {
        return bare_metal::run(workspace, arguments.vramd.as_deref(), at, &arguments.guest_vram);
    }
    let environment = match HostEnv::provide(workspace) {
        Err(error) if arguments.allow_missing => {
            eprintln!("NOTE: {error:#}: VFIO and KVM of a nested host were NOT tried");
            return Ok(());
        }
        provided => provided?,
    };
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let programs = programs(workspace, arguments)?;
    let outcome = if arguments.debian {
        let work = match arguments.run.as_slice() {
            [] => debian::Work::Check {
                is_brief: arguments.brief,
            },
            lines => debian::Work::Lines(lines),
        };
        debian::run(workspace, &environment, &programs.vramd, &work, folder.path())
    } else if arguments.icount {
        icount::measure(&environment, &programs.vramd, folder.path())
            .and_then(|figures| baseline::judge(workspace, figures, arguments.bless))
    } else {
        in_nested_host(&environment, &programs, arguments, folder.path())
    };
    if outcome.is_err() || arguments.keep {
        println!("logs are in {}", folder.keep().display());
    }
    outcome?;
    println!("nested passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// The weakened program is not built for speed.
fn programs(workspace: &Workspace, arguments: &NestedArguments) -> Result<Programs> {
    let is_checked = arguments.run.is_empty() && !arguments.icount && !arguments.debian;
    let weakened = match &arguments.weakened {
        Some(path) => path.clone(),
        None if is_checked => workspace.build_program_with("vramd", "vramd-weakened", "weakened")?,
        None => PathBuf::new(),
    };
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_release("vramd", "vramd")?,
    };
    Ok(Programs { vramd, weakened })
}

fn in_nested_host(
    environment: &HostEnv,
    programs: &Programs,
    arguments: &NestedArguments,
    folder: &Path,
) -> Result<()> {
    let vramd = &programs.vramd;
    let root = folder.join("root.cpio");
    let mut files = GuestFile::vramd(vramd)?;
    files.extend(linux::files(environment, folder)?);
    if arguments.run.is_empty() {
        files.extend(stray::files(&programs.weakened, CARD, folder)?);
        files.extend(pinned::files(CARD, folder)?);
    }
    environment.write_first_root(&root, &files)?;
    if arguments.run.is_empty() {
        let folder = folder.join("no-iommu");
        std::fs::create_dir(&folder).context("cannot create a folder")?;
        check_without_iommu(environment, vramd, &root, &folder)?;
    }
    let card = Card::start(vramd, &[], folder)?;
    let config = config(&root, &card, true);
    let start = Instant::now();
    let mut guest = Guest::boot(environment, &config, folder)?;
    guest.succeed("load host", PATIENCE)?;
    guest.succeed(&format!("echo advise >{SHMEM_HUGE_PAGES}"), PATIENCE)?;
    println!(
        "the nested host is up after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    if arguments.run.is_empty() {
        check(&mut guest, &card).map_err(|error| match no_map_refused(folder) {
            Err(cause) => cause.context(format!("{error:#}")),
            Ok(()) => error,
        })?;
    } else {
        for command in &arguments.run {
            show(&mut guest, command)?;
        }
    }
    guest.power_off()?;
    // The check sends it astray once, with the host's IOMMU in between.
    let summary = if arguments.run.is_empty() {
        card.stop_astray()?
    } else {
        card.stop()?
    };
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
    no_map_refused(folder)
}

/// QEMU reports it when the card has no room for a map, and goes on: bytes that are wrong may be that and no more.
fn no_map_refused(folder: &Path) -> Result<()> {
    let qemu = std::fs::read_to_string(folder.join("qemu.log")).context("cannot read QEMU's log")?;
    match qemu.lines().find(|line| line.contains("dma_map")) {
        Some(refused) => bail!("a DMA map was refused: {refused}"),
        None => Ok(()),
    }
}

fn config<'a>(root: &'a Path, card: &'a Card, has_iommu: bool) -> GuestConfig<'a> {
    GuestConfig {
        processor: Processor::EpycRome,
        clock: Clock::Host,
        ram_mib: RAM_MIB,
        card: Some(card.socket()),
        root,
        disks: &[],
        has_iommu,
        kernel_options: "iommu=nopt",
    }
}

/// On a host whose IOMMU is off no card is used, and the message says why.
fn check_without_iommu(environment: &HostEnv, vramd: &Path, root: &Path, folder: &Path) -> Result<()> {
    let card = Card::start(vramd, &[], folder)?;
    let mut guest = Guest::boot(environment, &config(root, &card, false), folder)?;
    guest.succeed("load host", PATIENCE)?;
    let at = card_address(&mut guest)?;
    refuses(
        &mut guest,
        &format!("vramd demo --gpu vfio:{at}"),
        "has no IOMMU group: the host needs an IOMMU that is on (intel_iommu=on",
    )?;
    guest.power_off()?;
    card.stop().map(drop)
}

/// Runs the lines of shell from the command line.
fn show(guest: &mut Guest, command: &str) -> Result<()> {
    let start = Instant::now();
    let output = guest.run(command, PATIENCE)?;
    println!("{}", output.text());
    let seconds = start.elapsed().as_secs_f64();
    println!("{command}: status {} after {seconds:.1} s", output.status);
    ensure!(output.status == 0, "{command:?} ended with {}", output.status);
    Ok(())
}

/// The checks in the nested host.
fn check(guest: &mut Guest, outer: &Card) -> Result<()> {
    let card = card_address(guest)?;
    ensure!(card == CARD, "the card is at {card}, not at {CARD}");
    for (command, expected) in REFUSED {
        refuses(guest, &command.replace("{card}", &card), expected)?;
    }
    previous::take_over(guest, &card)?;
    guest.succeed(
        "mkdir -p /etc && echo user:x:1000:1000::/:/bin/sh >>/etc/passwd",
        PATIENCE,
    )?;
    for (kib, expected) in MEMLOCK_REFUSED {
        refuses(guest, &as_user(&card, kib), expected)?;
    }
    pinned::check(guest)?;
    stray::check(guest, outer)?;
    demo(
        guest,
        &format!("vramd demo --gpu vfio:{card} --vms 2 --guest-vram 256M --workload files --json"),
    )?;
    previous::give_back(guest, &card)?;
    // The card was given back in a state from which it can be brought up once more.
    demo(
        guest,
        &format!("vramd demo --gpu vfio:{card} --vms 2 --no-kvm --workload files --rounds 1 --json"),
    )?;
    linux::serve(guest, &card)?;
    let checked = linux::check(guest);
    linux::stop_serving(guest)?;
    checked?;
    lose_card(guest, outer, &card)
}

/// A demo as a user who owns the card's group, with a limit of locked memory that root does not have.
fn as_user(card: &str, memlock_kib: u32) -> String {
    let demo = format!("exec vramd demo --gpu vfio:{card} --vms 1 --no-kvm --workload files");
    format!(
        "chown {USER} /dev/vfio/* && start-stop-daemon -S -p none.pid -c {USER} -x /bin/sh -- -c 'ulimit -l {memlock_kib} && {demo}'"
    )
}

/// Cuts the card's power while two VMs use it: one line reports it, nothing goes wrong in the host, and when the
/// power is back the card is, too.
fn lose_card(guest: &mut Guest, outer: &Card, card: &str) -> Result<()> {
    let demo = format!("vramd demo --gpu vfio:{card} --vms 2 --guest-vram 256M --input /bin/busybox");
    // Leftovers of the check before.
    guest.succeed("dmesg -c >/dev/null", PATIENCE)?;
    guest.succeed(
        &format!("{demo} --rounds 100000 >/dev/null 2>lost & demo=$!"),
        PATIENCE,
    )?;
    // The VMs are at work once the card has begun to interrupt.
    let at_work = "until [ \"$(awk '/vfio-msi/ { print $2 }' /proc/interrupts)\" -gt 0 ] 2>/dev/null; do \
                   kill -0 $demo || break; usleep 50000; done; kill -0 $demo";
    guest.succeed(at_work, PATIENCE)?;
    outer.cut_power()?;
    let start = Instant::now();
    let ended = guest.run("wait $demo; s=$?; tail -n 1 lost; (exit $s)", PATIENCE)?;
    let said = ended.text();
    let expected = format!("vramd: the broker has ended: the card is gone: {card} reads ones everywhere");
    ensure!(
        ended.status == 1 && said.trim().starts_with(&expected),
        "a demo whose card lost its power ended with {} and {said:?}",
        ended.status
    );
    println!(
        "{} ({:.1} s after the card's power was cut)",
        said.trim(),
        start.elapsed().as_secs_f64()
    );
    let log = guest.succeed(
        "dmesg | grep -E 'DMAR:.*fault|BUG:|Oops|Call Trace' || true",
        PATIENCE,
    )?;
    ensure!(
        log.text().trim().is_empty(),
        "the nested host's kernel complains: {}",
        log.text()
    );
    outer.restore_power()?;
    // The signal takes its time, and a card without power cannot be bound.
    let config = format!("/sys/bus/pci/devices/{card}/config");
    let is_back = format!("until [ \"$(xxd -p -l 2 {config})\" = de10 ]; do usleep 50000; done");
    guest.succeed(&is_back, PATIENCE)?;
    guest.succeed(&format!("vramd unbind {card} && vramd bind {card}"), PATIENCE)?;
    self::demo(
        guest,
        &format!("vramd demo --gpu vfio:{card} --vms 2 --no-kvm --workload files --rounds 1 --json"),
    )
}

/// Finds the card's PCI address by its vendor.
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

/// Runs a demo. Several VMs together must use more VRAM than there is, and show it.
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
