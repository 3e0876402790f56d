//! `cargo xtask nested --debian`: two stock Debians on our VMM, each with a vGPU on the one card of the nested host.
//!
//! ```text
//! this machine ── QEMU: the nested host (VT-d, emulated SVM) ── vramd serve ─┬─ vramd run a: Debian, systemd, nouveau, Mesa
//!   vramd gpu ────── vfio-user-pci, a PCI card there ──── VFIO ──┘           └─ vramd run b: the same
//! ```
//!
//! Nothing in the guests knows of us: they boot to a login, udev loads nouveau, and the test programs of `cargo xtask nouveau` run in both at
//! once. They see twice the VRAM that the card has. A quota changes meanwhile.

mod console;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::console::Console;
use super::{PATIENCE, SHMEM_HUGE_PAGES, no_map_refused};
use crate::broker::{Figures, figures_of, is_complaint};
use crate::card::Card;
use crate::guest::{Clock, Disk, Guest, GuestConfig, Processor};
use crate::host_env::{self, DebianGuest, GuestFile, HostEnv};
use crate::nouveau::kernel_log::Allowed;
use crate::nouveau::{EXPECTED, judge};
use crate::workspace::Workspace;

const RAM_MIB: u32 = 6144;
const HOST: &str = include_str!("debian/host.toml");
const HOST_NAME: &str = "debian-host.toml";
const CONTROL: &str = "/run/control.sock";
const VMS: [&str; 2] = ["a", "b"];
/// Disks of the nested host: the root of each VM, and the programs for both.
const ROOTS: [&str; 2] = ["/dev/vda", "/dev/vdb"];
const PROGRAMS: &str = "/dev/vdc";
/// What a VM's kernel may say, from the root of the workspace.
const KERNEL_LOG: &str = "integration/nested/debian-log.txt";
/// Packages of the test programs.
const PROGRAMS_OF: [&str; 3] = ["nouveau-test", "mesa-test", "opencl-test"];
/// What runs in both VMs at once, in this order.
///
/// Left out are tests whose limit in wall time a host of a tenth of the speed does not keep, and those that break channels: with two VMs at it, both VMMs
/// waited for more than the 5 s after which they give a vGPU up (`[SLOWNEST]` in `docs/todo.md`). `cargo xtask nouveau` has them all.
const ALL: [&str; 3] = [
    "nouveau-test --skip acquire-never --skip channels-parallel --skip garbage --skip bad-host-method --skip bad-method --skip bad-class \
     --skip unbound-subchannel --skip fault-m2mf --skip fault-engine-0 --skip fault-engine-1 --skip fault-semaphore --skip exec-fault",
    "mesa-test",
    "opencl-test",
];
/// The same where time is short: memory, copies, interrupts, and more VRAM than there is.
const FEW: [&str; 1] = [
    "nouveau-test --only vram-mapped --only copy-m2mf --only copy-engine-0 --only fence-deferred --only vram-pressure",
];
/// Microcode as the broker looks for it. The software card takes an upload and runs none, so a word that says nothing will do.
const MICROCODE: [&str; 8] = [
    "nvc0_fuc104c",
    "nvc0_fuc104d",
    "nvc0_fuc105c",
    "nvc0_fuc105d",
    "nvc0_fuc409c",
    "nvc0_fuc409d",
    "nvc0_fuc41ac",
    "nvc0_fuc41ad",
];
/// The most VRAM that the second VM has while both are at work.
const LOWERED: u64 = 64 << 20;
/// Longest time for the tests of one program in both VMs.
const TESTS_PATIENCE: Duration = Duration::from_secs(3600);

/// What to do with them.
pub(super) enum Work<'a> {
    /// The checks, with all tests or a few.
    Check { is_brief: bool },
    /// Lines of shell in the nested host, where the functions of `debian/console.sh` are.
    Lines(&'a [String]),
}

/// Boots the nested host and does the work there.
pub(super) fn run(
    workspace: &Workspace,
    environment: &HostEnv,
    vramd: &Path,
    work: &Work<'_>,
    folder: &Path,
) -> Result<()> {
    let debian = host_env::provide_debian_guest(workspace)?;
    let tests = write_tests(workspace, folder)?;
    let root = folder.join("root.cpio");
    let mut files = GuestFile::vramd(vramd)?;
    files.extend(inner_files(&debian, folder)?);
    environment.write_first_root(&root, &files)?;
    let card = Card::start(vramd, &["--strict".to_owned()], folder)?;
    let image = debian.image();
    let config = GuestConfig {
        processor: Processor::EpycRome,
        clock: Clock::Host,
        ram_mib: RAM_MIB,
        card: Some(card.socket()),
        root: &root,
        disks: &[
            Disk::Scratch(&image),
            Disk::Scratch(&image),
            Disk::ReadOnly(&tests),
        ],
        has_iommu: true,
        kernel_options: "iommu=nopt",
    };
    let start = Instant::now();
    let mut guest = Guest::boot(environment, &config, folder)?;
    prepare(&mut guest)?;
    println!(
        "the nested host is up after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    match work {
        Work::Lines(lines) => lines.iter().try_for_each(|line| super::show(&mut guest, line))?,
        Work::Check { is_brief } => {
            let allowed = Allowed::load_with(workspace, &[KERNEL_LOG])?;
            let tests = if *is_brief { &FEW[..] } else { &ALL };
            check(&mut guest, allowed, tests).map_err(|error| match no_map_refused(folder) {
                Err(cause) => cause.context(format!("{error:#}")),
                Ok(()) => error,
            })?;
        }
    }
    guest.power_off()?;
    card.stop()?;
    no_map_refused(folder)
}

/// A disk with the test programs.
fn write_tests(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let programs = folder.join("tests");
    fs::create_dir(&programs).context("cannot create a folder")?;
    for program in PROGRAMS_OF {
        let built = workspace.build_apart(&format!("guests/linux/{program}"))?;
        fs::copy(&built, programs.join(program)).with_context(|| format!("cannot copy {program}"))?;
    }
    let image = folder.join("tests.img");
    host_env::write_disk(&programs, &image)?;
    Ok(image)
}

/// What the nested host needs for its VMs, made in `folder`.
fn inner_files(debian: &DebianGuest, folder: &Path) -> Result<Vec<GuestFile>> {
    let inner = |name: &str, from| GuestFile {
        to: format!("inner/{name}"),
        from,
    };
    let mut files = vec![
        inner("debian-vmlinuz", debian.kernel()),
        inner("debian-initrd.img", debian.initramfs()),
    ];
    let vm = |(name, disk): (&str, &str)| {
        let text = format!(
            "name = \"{name}\"\nmemory = \"1G\"\nkernel = \"/inner/debian-vmlinuz\"\ninitramfs = \"/inner/debian-initrd.img\"\n\
             options = \"root=/dev/vda rw quiet systemd.hostname={name}\"\n[[disk]]\npath = \"{disk}\"\n\
             [[disk]]\npath = \"{PROGRAMS}\"\nread_only = true\n[vgpu]\nsocket = \"/run/{name}.sock\"\n"
        );
        (format!("debian-{name}.toml"), text)
    };
    let mut texts = vec![
        (HOST_NAME.to_owned(), HOST.to_owned()),
        (console::NAME.to_owned(), console::SHELL.to_owned()),
    ];
    texts.extend(VMS.into_iter().zip(ROOTS).map(vm));
    texts.extend(MICROCODE.map(|name| (format!("firmware/{name}"), "....".to_owned())));
    fs::create_dir(folder.join("firmware")).context("cannot create a folder")?;
    for (name, text) in texts {
        let path = folder.join(&name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        files.push(inner(&name, path));
    }
    Ok(files)
}

/// Has the nested host ready for a broker and VMs.
fn prepare(guest: &mut Guest) -> Result<()> {
    guest.succeed("load host && load disk", PATIENCE)?;
    guest.succeed(&format!("echo advise >{SHMEM_HUGE_PAGES}"), PATIENCE)?;
    let card = super::card_address(guest)?;
    let bind = format!("sed -i s/CARD/{card}/ /inner/{HOST_NAME} && vramd bind {card}");
    guest.succeed(&bind, PATIENCE)?;
    guest.succeed(&format!(". /inner/{}", console::NAME), PATIENCE)?;
    guest.succeed("dmesg -c >/dev/null", PATIENCE).map(drop)
}

/// Everything that is checked, with a broker from its start to its end.
fn check(guest: &mut Guest, mut allowed: Allowed, tests: &[&str]) -> Result<()> {
    let serve = format!(
        "RUST_LOG=info vramd serve --config /inner/{HOST_NAME} >/run/serve.log 2>&1 & broker=$!; \
         until [ -S /run/b.sock ]; do kill -0 $broker || break; sleep 0.2; done; [ -S /run/b.sock ] || {{ cat /run/serve.log; false; }}"
    );
    guest.succeed(&serve, PATIENCE)?;
    let vms = boot(guest)?;
    for test in vms[0].succeed(guest, "/mnt/nouveau-test --list")?.lines {
        allowed.add_test(&test)?;
    }
    let mut meanwhile = format!("vramd quota b --max {LOWERED} --control {CONTROL}");
    for test in tests {
        beside_each_other(guest, &vms, test, &meanwhile)?;
        meanwhile.clear();
    }
    moved(guest)?;
    for vm in &vms {
        vm.is_content(guest, &mut allowed.clone())?;
        vm.switch_off(guest)?;
    }
    guest.succeed("kill $broker; wait $broker", PATIENCE)?;
    let log = guest.succeed("cat /run/serve.log", PATIENCE)?;
    let is_expected = |line: &str| EXPECTED.iter().any(|text| line.contains(text));
    let complaint = log
        .lines
        .iter()
        .find(|line| line.starts_with('[') && is_complaint(line) && !is_expected(line));
    ensure!(complaint.is_none(), "the broker complained: {complaint:?}");
    let log = guest.succeed(
        "dmesg | grep -E 'DMAR:.*fault|BUG:|Oops|Call Trace|soft lockup' || true",
        PATIENCE,
    )?;
    let complaints = log.text();
    ensure!(
        complaints.trim().is_empty(),
        "the nested host's kernel complains: {complaints}"
    );
    Ok(())
}

/// Boots both VMs to a login with a GPU.
fn boot(guest: &mut Guest) -> Result<[Console; 2]> {
    let start = Instant::now();
    let vms = VMS.map(Console::new);
    for vm in &vms {
        vm.start(guest)?;
    }
    for vm in &vms {
        vm.log_in(guest)?;
        println!(
            "{}: a login after {:.1} s",
            vm.name(),
            start.elapsed().as_secs_f64()
        );
    }
    for vm in &vms {
        vm.succeed(guest, "until [ -c /dev/dri/renderD128 ]; do sleep 0.5; done")?;
        let state = vm.run(guest, "systemctl is-system-running --wait")?.text();
        ensure!(state.trim() == "running", "{}: systemd says {state:?}", vm.name());
        println!(
            "{}: systemd is done, and renderD128 there, after {:.1} s",
            vm.name(),
            start.elapsed().as_secs_f64()
        );
        vm.succeed(guest, "mount -o ro /dev/vdb /mnt")?;
    }
    let metrics = metrics(guest)?;
    for vm in VMS {
        let figures = figures_of(&metrics, vm);
        let [bar0, bar1, bar3, pauses] = [
            "bar0_accesses_total",
            "bar1_accesses_total",
            "bar3_accesses_total",
            "pauses_total",
        ]
        .map(|name| of(&figures, name));
        println!(
            "{vm}: {bar0} messages of BAR0, {bar1} of BAR1, {bar3} of BAR3 until the driver was up; {pauses} pauses"
        );
        ensure!(
            bar1 + bar3 == 0,
            "{vm}: windows are memory, and {} messages were about them",
            bar1 + bar3
        );
    }
    Ok(vms)
}

/// Runs a test program in both VMs at once, and a command in the nested host meanwhile.
fn beside_each_other(guest: &mut Guest, vms: &[Console; 2], test: &str, meanwhile: &str) -> Result<()> {
    let start = Instant::now();
    let program = test.split(' ').next().unwrap_or(test);
    for vm in vms {
        vm.begin(guest, &format!("/mnt/{test}"))?;
    }
    if !meanwhile.is_empty() {
        guest.succeed(&format!("sleep 5; {meanwhile}"), PATIENCE)?;
    }
    for vm in vms {
        let output = vm.end(guest, TESTS_PATIENCE)?;
        let judged = judge(&output).with_context(|| format!("{}: {program}", vm.name()))?;
        println!(
            "{}: {program}: {judged} ({:.1} s)",
            vm.name(),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

/// Both have been spilled and came back, and the one whose quota was lowered holds no more than that.
fn moved(guest: &mut Guest) -> Result<()> {
    let metrics = metrics(guest)?;
    for vm in VMS {
        let figures = figures_of(&metrics, vm);
        let [spills, refills, pauses, bar1, bar3] = [
            "spilled_chunks_total",
            "refilled_chunks_total",
            "pauses_total",
            "bar1_accesses_total",
            "bar3_accesses_total",
        ]
        .map(|name| of(&figures, name));
        println!("{vm}: {spills} chunks spilled, {refills} refilled, {pauses} pauses");
        ensure!(spills > 0, "{vm} was never spilled");
        ensure!(bar1 + bar3 == 0, "{vm}: {} messages about windows", bar1 + bar3);
    }
    let resident = of(&figures_of(&metrics, VMS[1]), "resident_bytes");
    ensure!(
        resident <= LOWERED,
        "b holds {resident:#x} bytes of VRAM, and its max is {LOWERED:#x}"
    );
    Ok(())
}

fn metrics(guest: &mut Guest) -> Result<String> {
    let output = guest.succeed(&format!("vramd metrics --control {CONTROL}"), PATIENCE)?;
    Ok(output.text())
}

fn of(figures: &Figures, name: &str) -> u64 {
    figures.get(name).copied().unwrap_or(0)
}
