//! `vramd doctor`: the needs of a host, its state, and the command that mends what is missing.
//!
//! Everything is read from `/sys`, `/proc` and `/dev`; nothing is changed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use broker::{PciFunction, PciHostError, VFIO_DRIVER};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use sizes::Size;

use crate::confinement::files::is_known_to_kernel;

/// The first QEMU that attaches vfio-user devices.
const QEMU_MIN: (u32, u32) = (10, 1);
/// Least locked memory for a card of the host: RAM and VRAM of two small VMs.
const MEMLOCK_MIN: u64 = 1 << 30;
/// Most mappings of a served card besides a process's own (decision 0008).
const MAPS_MIN: u64 = 40_000;

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// A feature works less well, or one is absent that only some need.
    Warning,
    /// Virtual machines cannot run.
    Missing,
}

/// One check and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Finding {
    /// Subject of the check.
    pub what: String,
    /// Result of the check.
    pub verdict: Verdict,
    /// The state that was found.
    pub found: String,
    /// The command or action that mends it.
    pub remedy: Option<String>,
}

/// Results of all checks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Diagnosis {
    /// The checks, in the order in which one would mend them.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Checks this host.
    pub(crate) fn of_host() -> Self {
        let root = Path::new("/");
        let mut findings = vec![kvm(root), iommu(root), vfio_driver(root)];
        findings.extend(cards());
        findings.extend([memlock(), huge_pages(root), map_count(root), taps(root), qemu()]);
        let is_root = rustix::process::geteuid().is_root();
        findings.extend([
            user(is_root),
            filters(root),
            landlock(),
            core_files(root),
            tracing(root),
        ]);
        Self { findings }
    }

    /// Whether VMs with a software card can run.
    pub(crate) fn is_usable(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.verdict != Verdict::Missing)
    }

    /// A line for each check, and one for its remedy.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let mark = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Missing => "missing",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{mark:<8} {}: {}", finding.what, finding.found);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "{:<8} → {remedy}", "");
            }
        }
        text
    }
}

fn finding(what: &str, verdict: Verdict, found: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        what: what.to_owned(),
        verdict,
        found: found.into(),
        remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
    }
}

fn kvm(root: &Path) -> Finding {
    let what = "KVM";
    let node = root.join("dev/kvm");
    let modules = [
        ("kvm_intel", "VMX"),
        ("kvm_amd", "SVM"),
        ("kvm_pvm", "PVM, without hardware"),
    ];
    let kind = modules
        .into_iter()
        .find(|(module, _)| root.join("sys/module").join(module).exists())
        .map_or("of a kind that this program does not know", |(_, kind)| kind);
    if !node.exists() {
        let remedy = "modprobe kvm-amd or kvm-intel; virtualisation has to be on in the firmware. Without: vramd demo runs guests on threads";
        return finding(what, Verdict::Warning, "there is no /dev/kvm", remedy);
    }
    match File::options().read(true).write(true).open(&node) {
        Ok(_) => finding(what, Verdict::Ok, kind, ""),
        Err(error) => finding(
            what,
            Verdict::Missing,
            format!("cannot open /dev/kvm: {error}"),
            "usermod -aG kvm USER, then log in anew",
        ),
    }
}

fn iommu(root: &Path) -> Finding {
    let what = "IOMMU";
    let groups = fs::read_dir(root.join("sys/kernel/iommu_groups")).map_or(0, Iterator::count);
    if groups > 0 {
        return finding(what, Verdict::Ok, format!("{groups} groups"), "");
    }
    let remedy = "for a card of the host: VT-d or AMD-Vi on in the firmware, intel_iommu=on or amd_iommu=on in the kernel's command line";
    finding(what, Verdict::Warning, "off, or none", remedy)
}

fn vfio_driver(root: &Path) -> Finding {
    let what = "VFIO";
    if root.join("sys/bus/pci/drivers").join(VFIO_DRIVER).is_dir() {
        let way = if root.join("dev/iommu").exists() {
            "vfio-pci is loaded, /dev/iommu is there"
        } else {
            "vfio-pci is loaded, with type 1 containers"
        };
        return finding(what, Verdict::Ok, way, "");
    }
    finding(
        what,
        Verdict::Warning,
        "vfio-pci is not loaded",
        "for a card of the host: modprobe vfio-pci",
    )
}

/// One finding for each card of the host.
fn cards() -> Vec<Finding> {
    match PciFunction::cards() {
        Ok(cards) if cards.is_empty() => {
            let found = "none in this host: software cards only";
            vec![finding("GF100 cards", Verdict::Ok, found, "")]
        }
        Ok(cards) => cards.iter().map(card).collect(),
        Err(error) => vec![finding("GF100 cards", Verdict::Warning, error.to_string(), "")],
    }
}

fn card(card: &PciFunction) -> Finding {
    let what = format!("card {}", card.at);
    match card.check() {
        Ok(board) => {
            let found = format!("{}, ready: --gpu vfio:{}", board.name(), card.at);
            finding(&what, Verdict::Ok, found, "")
        }
        Err(PciHostError::WrongDriver { driver, .. }) => finding(
            &what,
            Verdict::Warning,
            format!("bound to {driver}"),
            &format!("vramd bind {}", card.at),
        ),
        // The error names the remedy.
        Err(error) => finding(&what, Verdict::Warning, error.to_string(), ""),
    }
}

fn memlock() -> Finding {
    let what = "locked memory";
    let remedy = "for a card of the host: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit";
    match getrlimit(Resource::Memlock).current {
        None => finding(what, Verdict::Ok, "no limit", ""),
        Some(bytes) if bytes >= MEMLOCK_MIN => finding(what, Verdict::Ok, Size(bytes).to_string(), ""),
        Some(bytes) => finding(what, Verdict::Warning, format!("at most {bytes} bytes"), remedy),
    }
}

fn huge_pages(root: &Path) -> Finding {
    let what = "huge pages of memory files";
    let path = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let modes = fs::read_to_string(root.join(path)).unwrap_or_default();
    let mode = modes
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    match mode {
        Some(mode @ ("advise" | "always" | "force" | "within_size")) => finding(what, Verdict::Ok, mode, ""),
        _ => finding(
            what,
            Verdict::Warning,
            mode.unwrap_or("not in this kernel"),
            &format!(
                "echo advise >/{path}: a card of the host then needs 512 times fewer entries in its IOMMU"
            ),
        ),
    }
}

fn map_count(root: &Path) -> Finding {
    let what = "mappings of a process";
    let text = fs::read_to_string(root.join("proc/sys/vm/max_map_count")).unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(count) if count >= MAPS_MIN => finding(what, Verdict::Ok, count.to_string(), ""),
        Ok(count) => finding(
            what,
            Verdict::Warning,
            count.to_string(),
            "sysctl vm.max_map_count=65530, or vramd gpu answers every access by a message",
        ),
        Err(_) => finding(what, Verdict::Warning, "unknown", ""),
    }
}

fn taps(root: &Path) -> Finding {
    let what = "taps";
    let node = root.join("dev/net/tun");
    if !node.exists() {
        let remedy = "for networks of VMs: modprobe tun";
        return finding(what, Verdict::Warning, "there is no /dev/net/tun", remedy);
    }
    match File::options().read(true).write(true).open(&node) {
        Ok(_) => finding(what, Verdict::Ok, "/dev/net/tun is there", ""),
        Err(error) => finding(
            what,
            Verdict::Warning,
            format!("cannot open /dev/net/tun: {error}"),
            "for networks of VMs: chmod 666 /dev/net/tun; whose a tap is says who may use it",
        ),
    }
}

/// Whose a broker is that is started as this program was.
fn user(is_root: bool) -> Finding {
    let what = "user of a broker";
    if is_root {
        let remedy = "vramd serve --user USER:GROUP, and gpu too, or vramd/systemd/vramd.service: what root owns is open to them otherwise";
        return finding(
            what,
            Verdict::Warning,
            "root, though without capabilities",
            remedy,
        );
    }
    finding(what, Verdict::Ok, "not root", "")
}

fn filters(root: &Path) -> Finding {
    let what = "filters of system calls";
    let actions = fs::read_to_string(root.join("proc/sys/kernel/seccomp/actions_avail")).unwrap_or_default();
    if actions.split_ascii_whitespace().any(|action| action == "trap") {
        return finding(what, Verdict::Ok, "seccomp", "");
    }
    let remedy =
        "a kernel with CONFIG_SECCOMP_FILTER; without, run, serve and gpu start with --no-seccomp only";
    finding(what, Verdict::Warning, "this kernel has none", remedy)
}

fn landlock() -> Finding {
    let what = "landlock";
    if is_known_to_kernel() {
        return finding(what, Verdict::Ok, "serve and gpu open no files but their own", "");
    }
    let remedy = "Linux 6.12 with CONFIG_SECURITY_LANDLOCK, and landlock in the list lsm= of its command line; older ones enforce a part";
    let found =
        "not in this kernel, or not whole: files are kept from serve and gpu by their user's rights alone";
    finding(what, Verdict::Warning, found, remedy)
}

/// `serve` and `gpu` leave no core files. Those of VMMs hold the memory of their guests.
fn core_files(root: &Path) -> Finding {
    let what = "core files";
    let pattern = fs::read_to_string(root.join("proc/sys/kernel/core_pattern")).unwrap_or_default();
    match pattern.trim() {
        "" => finding(what, Verdict::Ok, "none", ""),
        pattern if pattern.starts_with('|') => finding(
            what,
            Verdict::Warning,
            format!(
                "given to {}, whatever ulimit -c says",
                pattern.trim_start_matches('|')
            ),
            "of VMMs they hold a guest's memory: sysctl kernel.core_pattern=core and ulimit -c 0, or dump-guest-core=off for QEMU",
        ),
        pattern => finding(
            what,
            Verdict::Ok,
            format!("files named {pattern}, where ulimit -c allows"),
            "",
        ),
    }
}

/// `serve` and `gpu` are closed to the other processes of their user. VMMs of one user are open to each other.
fn tracing(root: &Path) -> Finding {
    let what = "processes of one user";
    let scope = fs::read_to_string(root.join("proc/sys/kernel/yama/ptrace_scope")).unwrap_or_default();
    if matches!(scope.trim(), "1" | "2" | "3") {
        return finding(what, Verdict::Ok, "may not look into each other (yama)", "");
    }
    let remedy = "a user for each VM, or sysctl kernel.yama.ptrace_scope=1";
    finding(what, Verdict::Warning, "may look into each other", remedy)
}

fn qemu() -> Finding {
    let what = "QEMU";
    let remedy =
        "for vfio-user with QEMU: version 10.1 or later (Debian: trixie-backports). Our own VMM needs none";
    let output = Command::new("qemu-system-x86_64").arg("--version").output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        return finding(what, Verdict::Warning, "not found", remedy);
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default();
    match version(line) {
        Some(version) if version >= QEMU_MIN => finding(what, Verdict::Ok, line, ""),
        _ => finding(what, Verdict::Warning, line, remedy),
    }
}

/// Major and minor in `QEMU emulator version 10.1.2 (…)`.
fn version(line: &str) -> Option<(u32, u32)> {
    let (_, rest) = line.split_once(" version ")?;
    let mut parts = rest.split(['.', ' ']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Root of the checked files, for tests of other hosts.
#[cfg(test)]
mod tests {
    use super::*;

    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn empty_host_gets_a_remedy_for_everything() {
        let root = host(&[]);
        for finding in [
            kvm(root.path()),
            iommu(root.path()),
            vfio_driver(root.path()),
            huge_pages(root.path()),
            taps(root.path()),
            filters(root.path()),
            tracing(root.path()),
            user(true),
        ] {
            assert_eq!(finding.verdict, Verdict::Warning, "{finding:?}");
            assert!(finding.remedy.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn host_that_has_everything_needs_nothing() {
        let shmem = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let root = host(&[
            ("dev/kvm", ""),
            ("dev/net/tun", ""),
            ("sys/module/kvm_amd/refcnt", "0"),
            ("sys/kernel/iommu_groups/0/type", "DMA"),
            ("sys/bus/pci/drivers/vfio-pci/bind", ""),
            (shmem, "always within_size [advise] never"),
            ("proc/sys/vm/max_map_count", "65530\n"),
            (
                "proc/sys/kernel/seccomp/actions_avail",
                "kill_thread trap errno allow\n",
            ),
            ("proc/sys/kernel/core_pattern", "core\n"),
            ("proc/sys/kernel/yama/ptrace_scope", "1\n"),
        ]);
        let root = root.path();
        for finding in [
            kvm(root),
            iommu(root),
            vfio_driver(root),
            huge_pages(root),
            map_count(root),
            taps(root),
            filters(root),
            core_files(root),
            tracing(root),
            user(false),
        ] {
            assert_eq!(
                (finding.verdict, &finding.remedy),
                (Verdict::Ok, &None),
                "{finding:?}"
            );
        }
        assert_eq!(kvm(root).found, "SVM");
    }

    #[test]
    fn core_files_for_a_program_are_told_with_its_name() {
        let root = host(&[("proc/sys/kernel/core_pattern", "|/usr/share/apport/apport %p\n")]);
        let finding = core_files(root.path());
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(
            finding.found.contains("given to /usr/share/apport/apport"),
            "{finding:?}"
        );
    }

    #[test]
    fn versions_of_qemu_are_compared_as_numbers() {
        assert_eq!(
            version("QEMU emulator version 10.1.2 (Debian 1:10.1.2)"),
            Some((10, 1))
        );
        assert_eq!(version("QEMU emulator version 9.2.0"), Some((9, 2)));
        assert!(version("QEMU emulator version 9.2.0") < Some(QEMU_MIN));
        assert_eq!(version("something else"), None);
    }
}
