//! A Linux guest on QEMU, driven over a serial line.
//!
//! The guest's first program takes one command a line from the second serial port and marks the end of each
//! command's output (`host_env/take_commands.sh`). The kernel's console is the first serial port, which goes to a
//! file. The processor is emulated, so that this runs where there is no KVM.
//!
//! A real host is driven in the same way, by a shell on this machine ([`Guest::here`]).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::host_env::HostEnv;
use crate::process::{Process, Silent, until_within};
use crate::qmp::{Qmp, Rendezvous};

const READY: &str = "@@ready";
const STATUS: &str = "@@status ";
/// Longest time from power-on to the first command.
const BOOT_PATIENCE: Duration = Duration::from_secs(300);
/// Lines that one command may write.
const LINES_MAX: usize = 100_000;
/// Last lines of the console in the message of a failure.
const CONSOLE_TAIL: usize = 15;
/// The kernel's last line before the machine is off.
const POWERED_DOWN: &str = "reboot: Power down";
/// Longest time for shutting down.
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks at a processor that says nothing, how many find it in one place before it is stuck there, and the bytes of such a place.
const PLACE_LOOK: Duration = Duration::from_secs(1);
const STUCK_LOOKS: u32 = 20;
const PLACE_BYTES: u64 = 64;

/// The processor of a machine: emulated, so that no KVM is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    /// Everything that QEMU can emulate.
    Max,
    /// One with AMD's virtualisation, and nothing that the kernel's nested KVM would stumble over.
    EpycRome,
}

/// Time source of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The clock of this machine.
    Host,
    /// An instruction is a nanosecond, waiting takes none of this machine's time, and one thread emulates it all:
    /// figures repeat whatever else runs here.
    Instructions,
}

impl Clock {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Host => &["-accel", "tcg"],
            Self::Instructions => &[
                "-accel",
                "tcg,thread=single",
                "-icount",
                "shift=0,sleep=off,align=off",
            ],
        }
    }
}

/// The image of a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Disk<'a> {
    /// Nothing can be written.
    ReadOnly(&'a Path),
    /// What is written goes to a file that ends with the machine.
    Scratch(&'a Path),
}

impl Disk<'_> {
    /// The disk of that number, from 0 on.
    fn arguments(self, number: usize) -> [String; 4] {
        let (image, mode) = match self {
            Self::ReadOnly(image) => (image, "readonly=on"),
            Self::Scratch(image) => (image, "snapshot=on,cache=unsafe"),
        };
        let drive = format!(
            "file={},format=raw,if=none,id=disk{number},{mode}",
            image.display()
        );
        let device = format!("virtio-blk-pci,drive=disk{number}");
        ["-drive".to_owned(), drive, "-device".to_owned(), device]
    }
}

/// Parameters of a machine and its devices.
pub(crate) struct GuestConfig<'a> {
    pub(crate) processor: Processor,
    pub(crate) clock: Clock,
    pub(crate) ram_mib: u32,
    /// Socket of the card.
    pub(crate) card: Option<&'a Path>,
    /// Image of the first root.
    pub(crate) root: &'a Path,
    /// `/dev/vda` and so on.
    pub(crate) disks: &'a [Disk<'a>],
    /// Whether a VT-d unit stands between the card and memory.
    pub(crate) has_iommu: bool,
    /// Further words of the kernel's command line.
    pub(crate) kernel_options: &'a str,
}

/// Outcome of a command.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub(crate) status: i32,
    pub(crate) lines: Vec<String>,
}

/// The command's number, from 1 on, and its status.
fn numbered_status(line: &str) -> Option<(u32, i32)> {
    let (number, status) = line.strip_prefix(STATUS)?.trim().split_once(' ')?;
    Some((number.parse().ok()?, status.parse().ok()?))
}

impl Output {
    /// Both outputs, for a message.
    pub(crate) fn text(&self) -> String {
        self.lines.join("\n")
    }
}

/// A guest, or this machine, that takes commands. A guest is ended when this is dropped.
pub(crate) struct Guest {
    process: Process,
    /// The emulated machine; `None` for this one.
    machine: Option<Machine>,
    /// Commands sent so far.
    sent: u32,
}

/// The parts of an emulated machine beyond its shell.
struct Machine {
    qmp: Qmp,
    console: PathBuf,
    clock: Clock,
}

/// What takes commands on this machine.
const SHELL_HERE: &str = include_str!("host_env/take_commands.sh");

impl Guest {
    /// Boots and waits for the guest's first program. Logs go to `folder`.
    pub(crate) fn boot(environment: &HostEnv, config: &GuestConfig<'_>, folder: &Path) -> Result<Self> {
        let console = folder.join("console.log");
        // The timer is not tried: on a host with much else to do, an emulated processor counts too few ticks, and with
        // interrupt remapping Linux then panics.
        let mut kernel = String::from("console=ttyS0 loglevel=5 panic=1 log_buf_len=4M no_timer_check");
        let mut command = environment.qemu.command();
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
            .args([
                "-machine",
                "q35,memory-backend=ram",
                "-cpu",
                match config.processor {
                    Processor::Max => "max",
                    Processor::EpycRome => "EPYC-Rome",
                },
            ])
            .args(config.clock.arguments())
            .args(["-m", &format!("{}M", config.ram_mib)])
            .args([
                "-object",
                &format!("memory-backend-memfd,id=ram,size={}M,share=on", config.ram_mib),
            ])
            .args(["-chardev", "stdio,id=commands,signal=off"])
            .args([
                "-serial",
                &format!("file:{}", console.display()),
                "-serial",
                "chardev:commands",
            ]);
        if config.has_iommu {
            // It must come before the devices behind it.
            command.args(["-device", "intel-iommu,intremap=on,caching-mode=on"]);
            kernel.push_str(" intel_iommu=on");
        }
        kernel.push(' ');
        kernel.push_str(config.kernel_options);
        if let Some(card) = config.card {
            let device = json!({
                "driver": "vfio-user-pci",
                "socket": { "type": "unix", "path": card },
            });
            command.args(["-device", &device.to_string()]);
        }
        for (number, disk) in config.disks.iter().enumerate() {
            command.args(disk.arguments(number));
        }
        command.arg("-kernel").arg(environment.kernel.image());
        command.arg("-initrd").arg(config.root).args(["-append", &kernel]);
        let monitor_path = folder.join("monitor.sock");
        let monitor = Rendezvous::new(&monitor_path)?;
        command.arg("-qmp").arg(Rendezvous::address(&monitor_path));
        let mut process = Process::start("QEMU", command, folder.join("qemu.log"))?;
        let qmp = Qmp::new(monitor.accept(&mut process)?)?;
        let mut guest = Self {
            process,
            machine: Some(Machine {
                qmp,
                console,
                clock: config.clock,
            }),
            sent: 0,
        };
        let deadline = Instant::now() + BOOT_PATIENCE;
        guest
            .lines_until(deadline, |line| line == READY)
            .context("the guest does not boot")?;
        Ok(guest)
    }

    /// This machine, in `folder`, which comes first where programs are looked for.
    pub(crate) fn here(folder: &Path) -> Result<Self> {
        let mut path = folder.as_os_str().to_owned();
        if let Some(others) = std::env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        let mut command = std::process::Command::new("/bin/sh");
        command
            .args(["-c", SHELL_HERE])
            .current_dir(folder)
            .env("PATH", path);
        let process = Process::start("the shell", command, folder.join("shell.log"))?;
        let mut guest = Self {
            process,
            machine: None,
            sent: 0,
        };
        let deadline = Instant::now() + BOOT_PATIENCE;
        guest.lines_until(deadline, |line| line == READY)?;
        Ok(guest)
    }

    /// Runs a line of shell and waits for its end.
    pub(crate) fn run(&mut self, command: &str, patience: Duration) -> Result<Output> {
        let deadline = Instant::now() + patience;
        self.send(command)?;
        self.output(command, deadline)
    }

    fn send(&mut self, command: &str) -> Result<()> {
        ensure!(!command.contains('\n'), "a command is one line");
        let input = self.process.child.stdin.as_mut().context("no pipe to QEMU")?;
        self.sent += 1;
        writeln!(input, "{command}")
            .and_then(|()| input.flush())
            .context("QEMU takes no command")
    }

    fn output(&mut self, command: &str, deadline: Instant) -> Result<Output> {
        let (mut lines, last) = self
            .lines_until(deadline, |line| line.starts_with(STATUS))
            .with_context(|| format!("the guest does not end {command:?}"))?;
        // The output begins with the mark, so that it is at the start of a line.
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        let (number, status) = numbered_status(&last).with_context(|| format!("the guest says {last:?}"))?;
        ensure!(
            number == self.sent,
            "the guest answers command {number}, not {} ({command:?}): {}",
            self.sent,
            lines.join("\n")
        );
        Ok(Output { status, lines })
    }

    /// Runs a line of shell that suspends the machine, and wakes the machine when it sleeps.
    pub(crate) fn sleep_and_wake(&mut self, command: &str, patience: Duration) -> Result<Output> {
        let deadline = Instant::now() + patience;
        self.send(command)?;
        let asleep = until_within(patience, "the machine to fall asleep", || {
            let machine = self
                .machine
                .as_mut()
                .context("this machine is not put to sleep")?;
            let status = machine.qmp.execute("query-status", json!({}))?;
            Ok((status["status"] == "suspended").then_some(()))
        });
        asleep.with_context(|| format!("console:\n{}", self.console_tail()))?;
        if let Some(machine) = &mut self.machine {
            machine.qmp.execute("system_wakeup", json!({}))?;
        }
        self.output(command, deadline)
    }

    /// Runs a line of shell that must succeed.
    pub(crate) fn succeed(&mut self, command: &str, patience: Duration) -> Result<Output> {
        let output = self.run(command, patience)?;
        ensure!(
            output.status == 0,
            "{command:?} ended with {}: {}",
            output.status,
            output.text()
        );
        Ok(output)
    }

    /// Seconds since the guest booted, by its own clock.
    pub(crate) fn uptime_s(&mut self) -> Result<f64> {
        let output = self.succeed("uptime_s", crate::process::PATIENCE)?;
        let seconds = output.lines.first().and_then(|line| line.parse().ok());
        seconds.with_context(|| format!("the guest's time is {:?}", output.text()))
    }

    /// Shuts the guest's system down and ends the machine.
    ///
    /// Only the kernel's last line counts, not what the machine does then: after a suspend QEMU misses the request
    /// to turn itself off.
    pub(crate) fn power_off(&mut self) -> Result<()> {
        // This machine goes on; only its shell ends.
        self.send(if self.machine.is_some() {
            "poweroff -f"
        } else {
            "exit 0"
        })?;
        let ended = until_within(POWER_OFF_PATIENCE, "the kernel to shut down", || {
            if self.process.child.try_wait()?.is_some() {
                return Ok(Some(true));
            }
            let console = match &self.machine {
                Some(machine) => std::fs::read(&machine.console)?,
                None => Vec::new(),
            };
            Ok(String::from_utf8_lossy(&console)
                .contains(POWERED_DOWN)
                .then_some(false))
        });
        let has_ended = ended.with_context(|| format!("console:\n{}", self.console_tail()))?;
        if let Some(machine) = self.machine.as_mut().filter(|_| !has_ended) {
            // A machine that has turned itself off meanwhile refuses this.
            let _ = machine.qmp.execute("quit", json!({}));
        }
        let status = self.process.wait()?;
        ensure!(
            status.success(),
            "{} ended with {status}: {}",
            if self.machine.is_some() {
                "QEMU"
            } else {
                "the shell"
            },
            self.process.last_words()?
        );
        Ok(())
    }

    fn lines_until(
        &mut self,
        deadline: Instant,
        is_last: impl Fn(&str) -> bool,
    ) -> Result<(Vec<String>, String)> {
        let mut lines = Vec::new();
        let mut place = Place::default();
        loop {
            let patience = deadline.saturating_duration_since(Instant::now());
            let line = match self.process.line_within(patience.min(PLACE_LOOK)) {
                Ok(line) => line,
                Err(error) if error.is::<Silent>() && patience > PLACE_LOOK && !self.is_stuck(&mut place) => {
                    continue;
                }
                Err(error) => {
                    let said = lines
                        .last()
                        .map_or(String::new(), |line: &String| format!("; its last line: {line}"));
                    let at = self.standstill();
                    return Err(
                        error.context(format!("it is at {at}; console:\n{}{said}", self.console_tail()))
                    );
                }
            };
            if is_last(&line) {
                return Ok((lines, line));
            }
            lines.push(line);
            if lines.len() > LINES_MAX {
                bail!("the guest wrote more than {LINES_MAX} lines");
            }
        }
    }

    /// Whether the processor of a machine that counts instructions goes round in one place, which is the way in which such machines hang.
    fn is_stuck(&mut self, place: &mut Place) -> bool {
        let counts = |machine: &Machine| machine.clock == Clock::Instructions;
        self.machine.as_ref().is_some_and(counts) && place.is_stuck(&self.standstill())
    }

    /// What the processor of a machine that does not answer is at: its instruction pointer and flags.
    pub(crate) fn standstill(&mut self) -> String {
        let Some(machine) = &mut self.machine else {
            return "a shell of this machine".to_owned();
        };
        let asked = json!({ "command-line": "info registers" });
        match machine.qmp.execute("human-monitor-command", asked) {
            Ok(registers) => {
                let text = registers.as_str().unwrap_or_default();
                let line = text.lines().find(|line| line.starts_with("RIP="));
                line.unwrap_or("no instruction pointer").trim().to_owned()
            }
            Err(error) => format!("{error:#}"),
        }
    }

    fn console_tail(&self) -> String {
        let Some(machine) = &self.machine else {
            return String::new();
        };
        let bytes = std::fs::read(&machine.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_TAIL)..].join("\n")
    }
}

/// Where a processor was found, and how often one after the other.
#[derive(Default)]
struct Place {
    rip: u64,
    looks: u32,
}

impl Place {
    /// Takes the line of `info registers` with its instruction pointer. Whether a kernel goes round in one place: one that waits for a lock which nobody
    /// has does, and it does not halt. A program may go round where it likes, as a guest of the machine's VMs does that is to use up time.
    fn is_stuck(&mut self, registers: &str) -> bool {
        let field = |name: &str| {
            let mut words = registers.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        let rip = field("RIP=").and_then(|rip| u64::from_str_radix(rip, 16).ok());
        let is_kernel_at_work = field("CPL=") == Some("0") && field("HLT=") == Some("0");
        match rip.filter(|_| is_kernel_at_work) {
            Some(rip) if rip.abs_diff(self.rip) < PLACE_BYTES => self.looks += 1,
            rip => {
                *self = Self {
                    rip: rip.unwrap_or(0),
                    looks: 0,
                }
            }
        }
        self.looks >= STUCK_LOOKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_that_goes_round_in_one_place_is_stuck_and_one_that_halts_or_works_is_not() {
        let at_level = |cpl: u32, rip: u64, hlt: u32| {
            format!("RIP={rip:016x} RFL=00000002 [-------] CPL={cpl} II=0 A20=1 SMM=0 HLT={hlt}")
        };
        let line = |rip, hlt| at_level(0, rip, hlt);
        let looks = |line: &dyn Fn(u64) -> String| {
            let mut place = Place::default();
            (0..100).position(|look| place.is_stuck(&line(look)))
        };
        assert_eq!(
            looks(&|look| line(0xffff_ffff_81d1_2d60 + look % 3 * 4, 0)),
            Some(STUCK_LOOKS as usize)
        );
        assert_eq!(looks(&|_| line(0xffff_ffff_81d1_2d60, 1)), None, "it halts");
        assert_eq!(
            looks(&|look| line(0xffff_ffff_81d1_2d60 + look % 20 / 19 * 4096, 0)),
            None,
            "it comes round"
        );
        assert_eq!(looks(&|_| at_level(3, 0x20_1234, 0)), None, "it is a program");
        assert_eq!(looks(&|_| "no instruction pointer".to_owned()), None);
    }

    #[test]
    fn line_that_is_no_shell_ends_the_command_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut guest = Guest::here(folder.path()).unwrap();
        for line in ["echo 'hello", "( echo", "echo $((1+))", ": </nowhere"] {
            let output = guest.run(line, BOOT_PATIENCE).unwrap();
            assert_ne!(output.status, 0, "{line:?}");
        }
        assert_eq!(guest.run("(exit 7)", BOOT_PATIENCE).unwrap().status, 7);
        assert!(guest.run("echo two\necho lines", BOOT_PATIENCE).is_err());
    }

    #[test]
    fn status_names_the_command_that_it_is_of() {
        assert_eq!(numbered_status("@@status 3 0"), Some((3, 0)));
        assert_eq!(numbered_status("@@status 12 255\r"), Some((12, 255)));
        for other in ["@@status 3", "@@status ", "@@status a 0", "3 0"] {
            assert_eq!(numbered_status(other), None, "{other:?}");
        }
    }
}
