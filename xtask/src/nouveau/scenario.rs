//! The steps that are tried in one guest.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use super::alike::STEP;
use super::device::Traffic;
use super::kernel_log::Allowed;
use crate::broker::Figures;
use crate::guest::{Guest, Output};
use crate::host_env::DRIVER;

/// Kind of the card's interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupts {
    Msi,
    Intx,
}

/// Machine that the driver is tried in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) interrupts: Interrupts,
    pub(super) has_iommu: bool,
}

/// All scenarios there are.
pub(super) const SCENARIOS: [Scenario; 4] = [
    Scenario {
        name: "msi",
        interrupts: Interrupts::Msi,
        has_iommu: false,
    },
    Scenario {
        name: "intx",
        interrupts: Interrupts::Intx,
        has_iommu: false,
    },
    Scenario {
        name: "msi-vtd",
        interrupts: Interrupts::Msi,
        has_iommu: true,
    },
    Scenario {
        name: "intx-vtd",
        interrupts: Interrupts::Intx,
        has_iommu: true,
    },
];

/// The step that loads the driver, or the beginning of its name.
const INSMOD: &str = "insmod";
/// Messages that the driver may take until it is loaded, where windows are memory: 9,700 and some room.
const PROBE_MESSAGES_MAX: u64 = 12_000;

impl Scenario {
    /// The scenario of that name.
    pub(super) fn from_name(name: &str) -> Result<Self, String> {
        let found = SCENARIOS.into_iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| format!("there are {}", SCENARIOS.map(|scenario| scenario.name).join(", ")))
    }

    /// Whether the device may offer windows as memory in this scenario.
    ///
    /// At the first INTx, a QEMU without KVM takes away its mappings of the device for good, and where a region could
    /// be mapped it waits for the answer to each write. A card that maps nothing has its writes posted.
    pub(super) fn is_direct(self) -> bool {
        self.interrupts == Interrupts::Msi
    }

    /// Name of the interrupt controller in `/proc/interrupts`.
    fn controller(self) -> &'static str {
        match self.interrupts {
            Interrupts::Msi => "PCI-MSI",
            Interrupts::Intx => "IO-APIC",
        }
    }
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Passed,
    Failed(String),
}

/// A step and its outcome.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    /// Seconds on the host's clock.
    pub(super) seconds: f64,
    /// Lines that are worth a look even if it passed.
    pub(super) note: String,
}

/// Longest time of a step that takes a moment.
const QUICK: Duration = Duration::from_secs(30);
/// Longest time for loading or unloading the driver, and for suspending.
const DRIVER_PATIENCE: Duration = Duration::from_secs(120);
/// The same where every access is a message, at probe some two million.
const TRAPPED_PATIENCE: Duration = Duration::from_secs(900);
/// Longest time for a test program. Compilers run in some, so a host with much else to do takes minutes.
const PROGRAM_PATIENCE: Duration = Duration::from_secs(600);
/// Tests that are taken again when the driver has started the card anew.
const FEW_TESTS: &str = "--only vram-mapped --only copy-m2mf --only copy-engine-0 --only fence-deferred";
/// Complaints in the message of a failure; all are in the log.
const COMPLAINTS_SHOWN: usize = 10;

/// What became of a guest.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) steps: Vec<Step>,
    /// Seconds that insmod took on the guest's clock, each time.
    pub(super) insmod_s: Vec<f64>,
    /// The broker's last figures of its VM, if it has one.
    pub(super) figures: Option<Figures>,
    /// What the guest's kernel said, after the name of each step.
    pub(super) log: String,
}

/// Which of a program's tests are run.
#[derive(Clone, Copy)]
enum Tests {
    All,
    Few,
}

impl Tests {
    /// Options for a program.
    fn options(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Few => FEW_TESTS,
        }
    }
}

/// A test program in the guest's `/tests`.
#[derive(Clone, Debug)]
pub(super) struct TestProgram {
    pub(super) name: String,
    /// Whether it needs the second root.
    pub(super) in_mesa: bool,
}

impl TestProgram {
    fn command(&self) -> String {
        let wrap = if self.in_mesa { "in_mesa " } else { "" };
        format!("{wrap}/tests/{}", self.name)
    }
}

/// What is printed before what is about a VM, if it has a name.
pub(super) fn label(vm: &str) -> String {
    if vm.is_empty() {
        String::new()
    } else {
        format!("{vm}: ")
    }
}

/// A guest with the steps taken in it so far.
pub(super) struct Walk<'a> {
    guest: Guest,
    scenario: Scenario,
    allowed: Allowed,
    /// Path of the kernel's whole log.
    log: &'a Path,
    /// What is printed before the name of each step.
    label: String,
    /// Messages, where they are counted.
    traffic: Option<Traffic>,
    /// Longest time for loading or unloading the driver, and for suspending.
    patience: Duration,
    /// Whether the guest has ceased to answer.
    is_lost: bool,
    pub(super) steps: Vec<Step>,
    /// Seconds that insmod took on the guest's clock, each time.
    pub(super) insmod_s: Vec<f64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        guest: Guest,
        scenario: Scenario,
        allowed: Allowed,
        log: &'a Path,
        (vm, traffic): (&str, Option<Traffic>),
    ) -> Self {
        let patience = match traffic {
            Some(_) => TRAPPED_PATIENCE,
            None => DRIVER_PATIENCE,
        };
        Self {
            guest,
            scenario,
            allowed,
            log,
            label: label(vm),
            traffic,
            patience,
            is_lost: false,
            steps: Vec::new(),
            insmod_s: Vec::new(),
        }
    }

    /// Loads the driver for the first time. Without it no other step makes sense.
    pub(super) fn bring_up(&mut self, parameters: &str) -> bool {
        let prepared = self.step("modules", |guest, _| {
            guest.succeed("load driver", PROGRAM_PATIENCE)?;
            // Lines that the kernel printed before are not the driver's.
            guest.succeed("dmesg -c >/dev/null", QUICK)?;
            Ok(String::new())
        });
        prepared && self.insmod(INSMOD, parameters)
    }

    /// Everything after the driver is up. A step that fails does not keep the next from being tried.
    pub(super) fn exercise(&mut self, programs: &[TestProgram]) {
        for program in programs {
            self.program(program, Tests::All);
        }
        self.step("interrupts", check_interrupts);
        let patience = self.patience;
        self.step("unbind and bind", |guest, _| rebind(guest, patience));
        self.still_works(programs);
        let holder = programs.first().map(TestProgram::command);
        self.step("suspend and resume", |guest, _| {
            suspend(guest, holder.as_deref(), patience)
        });
        self.still_works(programs);
        self.step("rmmod", |guest, _| {
            timed(guest, &format!("rmmod {DRIVER}"), patience)
        });
        self.insmod("insmod again", "");
        self.still_works(programs);
    }

    /// The test programs and no other step: what VMs do side by side. Among them are tests that take all channels of a card, or all of its VRAM.
    pub(super) fn run_beside_others(&mut self, programs: &[TestProgram]) {
        for program in programs {
            self.program(program, Tests::All);
        }
        self.step("interrupts", check_interrupts);
    }

    /// Runs a few tests that use all parts: memory, the copiers, interrupts.
    fn still_works(&mut self, programs: &[TestProgram]) {
        if let Some(program) = programs.first() {
            self.program(program, Tests::Few);
        }
    }

    fn program(&mut self, program: &TestProgram, which: Tests) {
        let command = program.command();
        let mut tests = Vec::new();
        self.step(&format!("{} --list", program.name), |guest, _| {
            tests = guest
                .succeed(&format!("{command} --list"), PROGRAM_PATIENCE)?
                .lines;
            ensure!(!tests.is_empty(), "it has no tests");
            Ok(format!("{} tests", tests.len()))
        });
        for line in &tests {
            if let Err(error) = self.allowed.add_test(line) {
                self.record("patterns of the tests", Instant::now(), Err(error));
            }
        }
        let options = which.options();
        self.step(&program.name, |guest, _| {
            let output = guest.run(&format!("{command} {options}"), PROGRAM_PATIENCE)?;
            judge(&output)
        });
    }

    /// Runs a command of the user's, and shows its output.
    pub(super) fn show(&mut self, command: &str) {
        self.step(command, |guest, _| {
            let output = guest.run(command, PROGRAM_PATIENCE)?;
            println!("{}", output.text());
            Ok(format!("status {}", output.status))
        });
    }

    /// Ends the guest, after a last look at the figures of its traffic.
    pub(super) fn power_off(mut self) -> Walked {
        let figures = self.traffic.take().map(Traffic::end);
        if !self.is_lost {
            let start = Instant::now();
            let ended = self.guest.power_off();
            self.record("power off", start, ended.map(|()| String::new()));
        }
        Walked {
            steps: self.steps,
            insmod_s: self.insmod_s,
            figures,
            log: std::fs::read_to_string(self.log).unwrap_or_default(),
        }
    }

    /// Whether the driver is loaded, with or without complaints.
    fn insmod(&mut self, name: &str, parameters: &str) -> bool {
        let (mut took, patience) = (None, self.patience);
        self.step(name, |guest, _| {
            let before = guest.uptime_s()?;
            guest.succeed(&format!("insmod /modules/{DRIVER}.ko {parameters}"), patience)?;
            let seconds = guest.uptime_s()? - before;
            for node in ["card0", "renderD128"] {
                guest
                    .succeed(&format!("[ -c /dev/dri/{node} ]"), QUICK)
                    .context("no DRM device")?;
            }
            took = Some(seconds);
            Ok(format!("{seconds:.2} s in the guest"))
        });
        self.insmod_s.extend(took);
        took.is_some()
    }

    /// Takes a step and checks the lines that the kernel printed meanwhile.
    fn step(&mut self, name: &str, take: impl FnOnce(&mut Guest, Scenario) -> Result<String>) -> bool {
        if self.is_lost {
            return false;
        }
        let start = Instant::now();
        let taken = take(&mut self.guest, self.scenario);
        let log = self.guest.run("dmesg -r -c", QUICK);
        let ended = match log {
            Err(error) => {
                self.is_lost = true;
                Err(taken.err().unwrap_or(error))
            }
            Ok(log) => match (taken, self.look_at(name, &log)) {
                (taken, Ok(())) => taken,
                (Ok(_), Err(complaint)) => Err(complaint),
                // The kernel's lines often say why the step failed.
                (Err(error), Err(complaint)) => Err(anyhow!("{error:#}\n{complaint:#}")),
            },
        };
        let ended = ended.and_then(|note| self.with_traffic(name, note));
        self.record(name, start, ended)
    }

    /// Adds the messages of a step to its note.
    fn with_traffic(&mut self, step: &str, note: String) -> Result<String> {
        let Some(traffic) = &mut self.traffic else {
            return Ok(note);
        };
        let most = step.starts_with(INSMOD).then_some(PROBE_MESSAGES_MAX);
        let looked = traffic.look(most)?;
        let comma = if note.is_empty() { "" } else { "; " };
        Ok(format!("{note}{comma}{looked}"))
    }

    /// Keeps the kernel's lines, and fails if one is a complaint.
    fn look_at(&mut self, step: &str, log: &Output) -> Result<()> {
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(self.log)
            .context("cannot keep the log")?;
        writeln!(file, "{STEP}{step}\n{}", log.text())?;
        let complaints = self.allowed.complaints(log.lines.iter().map(String::as_str));
        if complaints.is_empty() {
            return Ok(());
        }
        let shown = &complaints[..complaints.len().min(COMPLAINTS_SHOWN)];
        bail!(
            "the kernel complained in {} lines:\n{}",
            complaints.len(),
            shown.join("\n")
        )
    }

    fn record(&mut self, name: &str, start: Instant, ended: Result<String>) -> bool {
        let seconds = start.elapsed().as_secs_f64();
        let (outcome, note) = match ended {
            Ok(note) => (Outcome::Passed, note),
            Err(error) => (Outcome::Failed(format!("{error:#}")), String::new()),
        };
        let passed = outcome == Outcome::Passed;
        let label = &self.label;
        match &outcome {
            Outcome::Passed => println!("  {label}{name}: ok ({seconds:.1} s) {note}"),
            Outcome::Failed(why) => println!(
                "  {label}{name}: FAILED ({seconds:.1} s)\n    {}",
                why.replace('\n', "\n    ")
            ),
        }
        self.steps.push(Step {
            name: format!("{label}{name}"),
            outcome,
            seconds,
            note,
        });
        passed
    }
}

/// Whether a test program is content: all its tests passed or said why they could not be run.
pub(crate) fn judge(output: &Output) -> Result<String> {
    let of = |word: &str| {
        output
            .lines
            .iter()
            .filter(|line| line.starts_with(word))
            .cloned()
            .collect::<Vec<_>>()
    };
    let failed = of("FAIL ");
    ensure!(
        output.status == 0 && failed.is_empty(),
        "ended with {}:\n{}",
        output.status,
        if failed.is_empty() {
            output.text()
        } else {
            failed.join("\n")
        }
    );
    let last = output.lines.last().filter(|line| line.starts_with("done "));
    let mut note = last
        .with_context(|| format!("it did not come to its end: {}", output.text()))?
        .clone();
    ensure!(!of("ok ").is_empty(), "no test passed: {note}");
    for skipped in of("skip ") {
        note.push_str("; ");
        note.push_str(&skipped);
    }
    Ok(note)
}

fn timed(guest: &mut Guest, command: &str, patience: Duration) -> Result<String> {
    let before = guest.uptime_s()?;
    guest.succeed(command, patience)?;
    Ok(format!("{:.2} s in the guest", guest.uptime_s()? - before))
}

/// The driver uses the kind of interrupt that the scenario is about, and some arrived.
fn check_interrupts(guest: &mut Guest, scenario: Scenario) -> Result<String> {
    let output = guest.succeed("grep -E 'nvkm|nouveau' /proc/interrupts", QUICK)?;
    let line = output.text();
    let wanted = scenario.controller();
    ensure!(line.contains(wanted), "the interrupt is no {wanted}: {line}");
    let count = line
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|count| count.parse::<u64>().ok());
    let count = count.with_context(|| format!("no count in {line:?}"))?;
    ensure!(count > 0, "no interrupt arrived: {line}");
    Ok(format!("{count} by {wanted}"))
}

fn rebind(guest: &mut Guest, patience: Duration) -> Result<String> {
    let folder = format!("/sys/bus/pci/drivers/{DRIVER}");
    let found = guest
        .succeed(&format!("cd {folder}; echo 0000:*; cd /"), QUICK)?
        .text();
    let address = found.trim().to_owned();
    ensure!(
        !address.is_empty() && !address.contains([' ', '*']),
        "the driver has {found:?}"
    );
    let unbound = timed(guest, &format!("echo {address} >{folder}/unbind"), patience)?;
    ensure!(
        guest.run("[ -e /dev/dri/card0 ]", QUICK)?.status != 0,
        "card0 is there after unbind"
    );
    let bound = timed(guest, &format!("echo {address} >{folder}/bind"), patience)?;
    guest
        .succeed("[ -c /dev/dri/card0 ] && [ -c /dev/dri/renderD128 ]", QUICK)
        .context("after bind")?;
    Ok(format!("{unbound}, {bound}"))
}

/// Suspend to RAM: the card loses its power, so the driver saves what it has in VRAM and starts the card anew.
///
/// Meanwhile `holder` holds VRAM and looks at it afterwards.
fn suspend(guest: &mut Guest, holder: Option<&str>, patience: Duration) -> Result<String> {
    let states = guest.succeed("cat /sys/power/mem_sleep", QUICK)?.text();
    ensure!(
        states.contains("[deep]"),
        "the machine would suspend to {states:?}"
    );
    if let Some(holder) = holder {
        let wait = "until grep -q ^held /run/held; do kill -0 $holder || break; sleep 0.1; done; cat /run/held; grep -q ^held /run/held";
        guest.succeed(
            &format!("{holder} --hold /run/go >/run/held 2>&1 & holder=$!; {wait}"),
            PROGRAM_PATIENCE,
        )?;
    }
    let before = guest.uptime_s()?;
    let output = guest.sleep_and_wake("echo mem >/sys/power/state", patience)?;
    ensure!(
        output.status == 0,
        "ended with {}: {}",
        output.status,
        output.text()
    );
    let mut note = format!("{:.2} s in the guest", guest.uptime_s()? - before);
    if holder.is_some() {
        let held = guest.run(
            "touch /run/go; wait $holder; status=$?; cat /run/held; rm /run/go; (exit $status)",
            PROGRAM_PATIENCE,
        )?;
        let last = held
            .lines
            .last()
            .filter(|line| held.status == 0 && line.starts_with("ok "));
        let last =
            last.with_context(|| format!("VRAM after the resume, status {}: {}", held.status, held.text()))?;
        note = format!("{note}, {last}");
    }
    Ok(note)
}
