//! A package on an emulated Debian host: installed, started, watched, upgraded while it runs, removed, purged.
//!
//! The host's processor has AMD's virtualisation, so VMs run on its own KVM: `a` is Debian's kernel, `b` the built-in guest, which keeps
//! its vGPU at work.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::attach::Attach;
use super::layout::Packed;
use crate::guest::{Clock, Disk, Guest, GuestConfig, Processor};
use crate::host_env::{DebianDisk, GuestFile, HostEnv, PAYLOAD};
use crate::workspace::Workspace;

/// What the configuration of the later package has beyond the first one's.
pub(super) const NEW_COMMENT: &str = "A comment of the later version.";
const RAM_MIB: u32 = 3072;
/// Longest time for one line of shell.
const PATIENCE: Duration = Duration::from_secs(600);
const FIRST: &str = "first.deb";
const LATER: &str = "later.deb";
const KERNEL: &str = "vmlinuz";
const ROOT: &str = "root.cpio";
/// The time after which a broker that is silent is given up here: that of the unit would make this trial longer.
const WATCHDOG_S: u64 = 5;

/// An emulated host, and what is tried there.
pub(super) struct Host<'a> {
    pub(super) environment: &'a HostEnv,
    pub(super) debian: &'a DebianDisk,
    /// The package, and a later one.
    pub(super) packages: [&'a Packed; 2],
}

impl Host<'_> {
    /// Boots the host and tries the packages, or runs `lines` of shell there.
    pub(super) fn try_out(&self, workspace: &Workspace, lines: &[String], folder: &Path) -> Result<()> {
        let start = Instant::now();
        let root = folder.join("host-root.cpio");
        let mut files = self.files(folder)?;
        let attach = Attach::prepare(workspace, self.environment, &mut files)?;
        self.environment.write_host_root(&root, &files)?;
        let config = GuestConfig {
            processor: Processor::EpycRome,
            clock: Clock::Host,
            ram_mib: RAM_MIB,
            card: None,
            root: &root,
            disks: &[Disk::Scratch(self.debian.image())],
            has_iommu: false,
            // What a host does at its start and this one need not.
            kernel_options: "apparmor=0 systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service",
        };
        let guest = Guest::boot(self.environment, &config, folder)?;
        println!("the host is up after {:.1} s", start.elapsed().as_secs_f64());
        let mut trial = Trial { guest };
        if lines.is_empty() {
            trial.all(self, &attach)?;
        } else {
            for line in lines {
                let output = trial.guest.run(line, PATIENCE)?;
                println!("{}\n{line}: status {}", output.text(), output.status);
            }
        }
        trial.guest.power_off()
    }

    /// What the host finds of ours.
    fn files(&self, folder: &Path) -> Result<Vec<GuestFile>> {
        let inner = folder.join(ROOT);
        self.environment.write_inner_root(&inner)?;
        let [first, later] = self.packages;
        let mut files = vec![
            GuestFile::payload(FIRST, first.file.clone()),
            GuestFile::payload(LATER, later.file.clone()),
            GuestFile::payload(KERNEL, self.environment.kernel.image()),
            GuestFile::payload(ROOT, inner),
        ];
        for (name, text) in [("a.toml", vm_a()), ("b.toml", vm_b())] {
            let path = folder.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            files.push(GuestFile::payload(name, path));
        }
        Ok(files)
    }
}

/// Boots Debian's kernel, and waits for its power button.
fn vm_a() -> String {
    format!(
        "name = \"a\"\nmemory = \"128M\"\nkernel = \"/{PAYLOAD}/{KERNEL}\"\ninitramfs = \"/{PAYLOAD}/{ROOT}\"\n\
         options = \"quiet end=button\"\n[vgpu]\nsocket = \"/run/vramd/a/gpu.sock\"\n"
    )
}

/// Moves a file through its VRAM as long as it is let.
fn vm_b() -> String {
    "name = \"b\"\nmemory = \"64M\"\ninputs = [\"/usr/bin/env\"]\noptions = \"vramd.rounds=100000000 vramd.timeout_ms=4000000000\"\n\
     [vgpu]\nsocket = \"/run/vramd/b/gpu.sock\"\n"
        .to_owned()
}

/// The host while it is tried.
pub(super) struct Trial {
    guest: Guest,
}

impl Trial {
    fn all(&mut self, host: &Host<'_>, attach: &Attach) -> Result<()> {
        let [first, later] = host.packages;
        self.step("installed", |trial| trial.install(first))?;
        self.step("started", Trial::start)?;
        self.step("two VMs", Trial::start_vms)?;
        self.step("journal", Trial::look_into_the_journal)?;
        self.step("watchdog", Trial::stop_answering)?;
        self.step("a VM that dies", Trial::kill_a_vm)?;
        self.step("power button", Trial::press_power_button)?;
        self.step("libvirt", |trial| attach.check(trial))?;
        self.step("upgraded", |trial| trial.upgrade(later))?;
        self.step("removed", Trial::remove)?;
        self.step("purged", Trial::purge)
    }

    fn step(&mut self, what: &str, work: impl FnOnce(&mut Trial) -> Result<()>) -> Result<()> {
        let start = Instant::now();
        work(self)
            .with_context(|| format!("{what}; the host's journal ends with:\n{}", self.journal_tail()))?;
        println!("{what}: {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    fn journal_tail(&mut self) -> String {
        let told = self
            .guest
            .run("journalctl --no-pager --lines 40 --no-hostname", PATIENCE);
        told.map_or_else(|error| format!("{error:#}"), |output| output.text())
    }

    /// Runs a line of shell that must succeed and print all of `expected`.
    pub(super) fn says(&mut self, command: &str, expected: &[&str]) -> Result<String> {
        let output = self.guest.succeed(&format!("{{ {command}; }} 2>&1"), PATIENCE)?;
        let text = output.text();
        for wanted in expected {
            ensure!(
                text.contains(wanted),
                "{command:?} says {:?}, not {wanted:?}",
                text.trim()
            );
        }
        Ok(text.trim().to_owned())
    }

    /// Runs a line of shell that must fail and print `expected`.
    fn refuses(&mut self, command: &str, expected: &str) -> Result<()> {
        let output = self.guest.run(&format!("{{ {command}; }} 2>&1"), PATIENCE)?;
        let text = output.text();
        ensure!(output.status != 0, "{command:?} was not refused: {}", text.trim());
        ensure!(
            text.contains(expected),
            "{command:?} says {:?}, not {expected:?}",
            text.trim()
        );
        Ok(())
    }

    /// Runs a line of shell again and again until it succeeds.
    pub(super) fn waits_for(&mut self, command: &str) -> Result<()> {
        let line = format!("timeout 500 sh -c 'until {command}; do sleep 1; done'");
        self.guest.succeed(&line, PATIENCE).map(drop)
    }

    /// A property of a unit.
    fn property(&mut self, unit: &str, name: &str) -> Result<String> {
        self.says(&format!("systemctl show --value --property {name} {unit}"), &[])
    }

    /// Nothing runs that nobody asked for, and everything is where it belongs.
    fn install(&mut self, package: &Packed) -> Result<()> {
        self.says(&format!("dpkg --install {FIRST}"), &["Setting up vramd"])?;
        self.says("dpkg-query --show vramd", &[&package.version])?;
        self.says(
            "dpkg --verify vramd && vramd --version && vramd-vm --version",
            &["vramd", "vramd-vm"],
        )?;
        self.refuses("systemctl is-enabled vramd.service", "disabled")?;
        self.refuses("systemctl is-active vramd.service", "inactive")?;
        self.says("id --name --groups vramd", &["vramd"])?;
        self.says("id --name --groups vramd-vm", &["vramd-vm", "vramd", "kvm"])?;
        self.says(
            "ls /usr/share/man/man1/vramd.1.gz /usr/share/man/man1/vramd-quota.1.gz \
             /usr/share/bash-completion/completions/vramd /usr/share/doc/vramd/examples/alerts.yaml \
             /usr/share/doc/vramd/pictures/top.svg",
            &[],
        )?;
        let complaints = self.says(
            "systemd-analyze verify --man=no vramd.service vramd-vm@a.service",
            &[],
        )?;
        ensure!(
            complaints.is_empty(),
            "systemd complains about the units: {complaints}"
        );
        Ok(())
    }

    /// The service is up when systemd says so, and not before its sockets are.
    fn start(&mut self) -> Result<()> {
        self.says(
            &format!(
                "mkdir -p /run/systemd/system/vramd.service.d && printf '[Service]\\nWatchdogSec={WATCHDOG_S}\\n' \
                 >/run/systemd/system/vramd.service.d/trial.conf && systemctl daemon-reload"
            ),
            &[],
        )?;
        self.says(
            "systemctl start vramd.service && vramd list",
            &["gpu0", "not connected"],
        )?;
        self.says(
            "systemctl show --property Type,NotifyAccess,WatchdogUSec,ActiveState vramd.service",
            &[
                "Type=notify",
                "NotifyAccess=main",
                "WatchdogUSec=5s",
                "ActiveState=active",
            ],
        )?;
        self.waits_for("systemctl status vramd.service | grep -q \"gpu0: 0 of 2 VMs connected\"")?;
        self.check_user("vramd.service", "vramd")?;
        self.says(
            "stat --format '%n %U %G %a' /run/vramd /run/vramd/a /run/vramd/a/gpu.sock /run/vramd/control.sock /var/lib/vramd",
            &[
                "/run/vramd vramd vramd 711",
                "/run/vramd/a vramd vramd 710",
                "/run/vramd/a/gpu.sock vramd vramd 660",
                "/run/vramd/control.sock vramd vramd 600",
                "/var/lib/vramd vramd vramd 700",
            ],
        )?;
        self.says(
            "journalctl --unit vramd.service --output cat",
            &["landlock: enforced"],
        )?;
        Ok(())
    }

    /// Two VMs, each a unit and a machine.
    fn start_vms(&mut self) -> Result<()> {
        self.refuses("systemctl start vramd-vm@nobody.service", "Assertion failed")?;
        self.says("cp a.toml b.toml /etc/vramd/vms/", &[])?;
        // One after the other: b is never idle, and the host has one processor.
        self.says("systemctl start vramd-vm@a.service", &[])?;
        self.wait_until_a_is_up()?;
        self.says("systemctl start vramd-vm@b.service", &[])?;
        self.check_machine("a")?;
        self.check_machine("b")?;
        self.waits_for("systemctl status vramd.service | grep -q \"gpu0: 2 of 2 VMs connected\"")?;
        self.says(
            "journalctl VRAMD_VM=a --output cat",
            &["@@pci 0000:00:01.0 0x10de 0x06c0"],
        )?;
        self.check_user("vramd-vm@a.service", "vramd-vm")
    }

    /// Whose the unit's process is.
    fn check_user(&mut self, unit: &str, user: &str) -> Result<()> {
        let process = self.property(unit, "MainPID")?;
        let owner = self.says(&format!("stat --format %U /proc/{process}/task"), &[])?;
        ensure!(owner == user, "{unit} runs as {owner}, not as {user}");
        Ok(())
    }

    /// A VM is a machine, in the unit of its process.
    fn check_machine(&mut self, vm: &str) -> Result<()> {
        let service = format!("vramd-vm@{vm}.service");
        self.says(
            "machinectl list --no-legend | tr --squeeze-repeats ' '",
            &[&format!("{vm} vm vramd")],
        )?;
        let leader = self.property(&service, "MainPID")?;
        let (unit, leader) = (format!("Unit={service}"), format!("Leader={leader}"));
        self.says(
            &format!("machinectl show {vm}"),
            &[&unit, &leader, "Class=vm", "Service=vramd"],
        )?;
        let slice = self.property(&service, "Slice")?;
        ensure!(slice == "machine.slice", "vm {vm} is in {slice}");
        Ok(())
    }

    /// Waits until the guest that a has now waits for its power button.
    fn wait_until_a_is_up(&mut self) -> Result<()> {
        let now = self.property("vramd-vm@a.service", "InvocationID")?;
        self.waits_for(&format!(
            "journalctl _SYSTEMD_INVOCATION_ID={now} --output cat | grep -q \"@@waits for the button\""
        ))
    }

    /// What the broker says of one VM is found by a field, with who and how bad.
    fn look_into_the_journal(&mut self) -> Result<()> {
        self.says("vramd quota a --weight 50", &[])?;
        self.says("vramd quota b --weight 60", &[])?;
        let of_a = "journalctl --unit vramd.service VRAMD_VM=a --output json";
        let line = self.says(
            &format!("{of_a} | grep 'quota changed'"),
            &[
                "\"VRAMD_VM\":\"a\"",
                "\"VRAMD_UID\":\"0\"",
                "\"PRIORITY\":\"5\"",
                "\"SYSLOG_IDENTIFIER\":\"vramd\"",
                "weight: 50",
            ],
        )?;
        // And what it says of one card.
        self.says(
            "journalctl --unit vramd.service VRAMD_GPU=gpu0 --output cat",
            &["card is up"],
        )?;
        ensure!(
            line.lines().count() == 1 && !line.contains("weight: 60"),
            "lines of another VM are among those of a: {line}"
        );
        Ok(())
    }

    /// A broker that hangs is given up, and starts anew with its VM.
    fn stop_answering(&mut self) -> Result<()> {
        // What is never idle would make the rest longer.
        self.says("systemctl stop vramd-vm@b.service", &[])?;
        self.wait_until_no_machine("b")?;
        let before = self.property("vramd.service", "MainPID")?;
        let vm_before = self.property("vramd-vm@a.service", "MainPID")?;
        let start = Instant::now();
        self.says(&format!("kill -STOP {before}"), &[])?;
        self.waits_for("systemctl show --value --property NRestarts vramd.service | grep -qx 1")?;
        let seconds = start.elapsed().as_secs();
        self.waits_for("systemctl is-active --quiet vramd.service vramd-vm@a.service")?;
        let after = self.property("vramd.service", "MainPID")?;
        ensure!(before != after, "the broker was not started anew");
        self.says(
            "journalctl --unit vramd.service --output cat",
            &["Watchdog timeout (limit 5s)"],
        )?;
        self.waits_for("systemctl status vramd.service | grep -q \"gpu0: 1 of 2 VMs connected\"")?;
        let vm_after = self.property("vramd-vm@a.service", "MainPID")?;
        ensure!(vm_before != vm_after, "vm a was not started anew with its broker");
        println!("a broker that hung was given up after {seconds} s, and its VM started anew with it");
        self.check_machine("a")
    }

    /// A VM whose process dies starts anew, and is the machine of its new process.
    fn kill_a_vm(&mut self) -> Result<()> {
        self.wait_until_a_is_up()?;
        let before = self.property("vramd-vm@a.service", "MainPID")?;
        let restarts: u32 = self.property("vramd-vm@a.service", "NRestarts")?.parse()?;
        self.says(&format!("kill -KILL {before}"), &[])?;
        self.waits_for(&format!(
            "systemctl show --value --property NRestarts vramd-vm@a.service | grep -qx {}",
            restarts + 1
        ))?;
        self.waits_for("systemctl is-active --quiet vramd-vm@a.service")?;
        let after = self.property("vramd-vm@a.service", "MainPID")?;
        ensure!(before != after, "vm a was not started anew");
        self.check_machine("a")
    }

    /// A VM that is asked to go switches itself off, and is no machine any more.
    fn press_power_button(&mut self) -> Result<()> {
        self.wait_until_a_is_up()?;
        self.says("machinectl poweroff a", &[])?;
        self.waits_for(
            "systemctl show --value --property ActiveState vramd-vm@a.service | grep -qx inactive",
        )?;
        let result = self.property("vramd-vm@a.service", "Result")?;
        ensure!(
            result == "success",
            "vm a that was switched off ended with {result}"
        );
        self.says(
            "journalctl VRAMD_VM=a --output cat",
            &["@@the button was pressed", "vm a: ok"],
        )?;
        self.wait_until_no_machine("a")
    }

    /// A machine is closed behind its unit's end.
    fn wait_until_no_machine(&mut self, vm: &str) -> Result<()> {
        self.waits_for(&format!("! machinectl show {vm} >/dev/null 2>&1"))?;
        self.refuses(&format!("machinectl show {vm}"), "No machine")
    }

    /// The operator's configuration stays, and what runs goes on.
    fn upgrade(&mut self, package: &Packed) -> Result<()> {
        self.says("systemctl start vramd-vm@b.service", &[])?;
        let of_broker = self.property("vramd.service", "MainPID")?;
        let of_vm = self.property("vramd-vm@b.service", "MainPID")?;
        self.says(
            "sed -i s/1G/2G/ /etc/vramd/host.toml && systemctl enable vramd.service",
            &[],
        )?;
        self.says(
            &format!("dpkg --install --force-confdef --force-confold {LATER}"),
            &["Setting up vramd"],
        )?;
        self.says("dpkg-query --show vramd", &[&package.version])?;
        self.says("grep host_ram /etc/vramd/host.toml", &["\"2G\""])?;
        self.says("tail -n 1 /etc/vramd/host.toml.dpkg-dist", &[NEW_COMMENT])?;
        self.says("systemctl is-enabled vramd.service", &["enabled"])?;
        let still = [
            self.property("vramd.service", "MainPID")?,
            self.property("vramd-vm@b.service", "MainPID")?,
        ];
        ensure!(still == [of_broker, of_vm], "an upgrade ended what ran");
        // What an operator does when it suits the VMs.
        self.says("systemctl restart vramd.service && vramd list --json", &["\"b\""])?;
        self.waits_for("systemctl status vramd.service | grep -q \"gpu0: 1 of 2 VMs connected\"")
    }

    fn remove(&mut self) -> Result<()> {
        self.says("dpkg --remove vramd", &["Removing vramd"])?;
        self.refuses("grep --line-regexp vramd.* /proc/[0-9]*/comm", "")?;
        self.wait_until_no_machine("b")?;
        self.says("ls /etc/vramd/host.toml /etc/vramd/vms/a.toml", &[])?;
        self.refuses("ls /usr/bin/vramd", "No such file")?;
        self.refuses("ls /run/vramd", "No such file")
    }

    fn purge(&mut self) -> Result<()> {
        self.says(
            "rm -r /run/systemd/system/vramd.service.d && dpkg --purge vramd",
            &["Purging"],
        )?;
        let left = self.says(
            "find / /run -xdev -name '*vramd*' ! -path '/run/payload/*' ! -path '*/libvirt/*' ! -path '/run/systemd/units/*'",
            &[],
        )?;
        ensure!(left.is_empty(), "a purge leaves {left}");
        Ok(())
    }
}
