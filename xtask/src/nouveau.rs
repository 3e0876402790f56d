//! `cargo xtask nouveau`: Debian's kernel and the unmodified driver nouveau against `vramd gpu`, in a virtual machine; with `--vgpu`
//! against a vGPU of `vramd serve`, or against two that share a card which is too small for both.
//!
//! For each scenario a card and a guest are started; the driver is loaded, test programs run, the driver is bound
//! anew, suspended, unloaded and loaded again, and the kernel's log is checked after every step. Nothing here knows
//! how the driver works: the test is that it does not complain.

mod alike;
mod device;
pub(crate) mod kernel_log;
mod measure;
mod scenario;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use crate::broker::Figures;
use crate::card::{Card, Summary};
use crate::guest::{Clock, Disk, Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};
use crate::workspace::Workspace;
pub(crate) use device::EXPECTED;
use device::{Device, Sizes, Traffic, VMS_MAX, Vgpus};
use kernel_log::Allowed;
pub(crate) use scenario::judge;
use scenario::{Interrupts, Outcome, SCENARIOS, Scenario, Step, TestProgram, Walk, Walked};

const RAM_MIB: u32 = 1024;
/// Lines of each log that a run that failed prints.
const LOG_END_LINES: usize = 8;
/// Moves in vain are one in so many pauses at most: more are the broker's fault, not a busy host's.
const IN_VAIN_PART: u64 = 20;
/// So many are allowed in any case.
const IN_VAIN_MAX: u64 = 2;
/// Packages of test programs, and whether they need the second root.
const TEST_FOLDERS: [(&str, bool); 3] = [
    ("guests/linux/nouveau-test", false),
    ("guests/linux/mesa-test", true),
    ("guests/linux/opencl-test", true),
];

/// Scenarios and options of a run.
#[derive(clap::Args)]
pub(crate) struct NouveauArguments {
    /// Only this machine: msi, intx, msi-vtd or intx-vtd; may be repeated [default: all]
    #[arg(long, value_name = "NAME", value_parser = Scenario::from_name)]
    scenario: Vec<Scenario>,
    /// Against a vGPU of `vramd serve` instead of a card of `vramd gpu`
    #[arg(long, conflicts_with_all = ["measure", "card_option"])]
    vgpu: bool,
    /// Have each access to BAR1, BAR3 and PRAMIN of a vGPU be a message
    #[arg(long, requires = "vgpu")]
    trapped: bool,
    /// With --vgpu: which of a VM's chunks are in VRAM, by this policy of the broker's and not by its default
    #[arg(long, requires = "vgpu", value_name = "NAME")]
    policy: Option<String>,
    /// Two VMs at a time, on a card that has a quarter of the VRAM that they see: it must spill
    #[arg(long, value_name = "N", requires = "vgpu", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(VMS_MAX)))]
    vms: u8,
    /// Run the same on a card afterwards, and demand that the driver says the same of both
    #[arg(long, requires = "vgpu", conflicts_with_all = ["vms", "probe_only", "run"])]
    like_card: bool,
    /// All that is promised of vGPUs: each scenario with Mesa and compared with a card, then two VMs on a quarter of what they see
    #[arg(long, requires = "vgpu", conflicts_with_all = ["scenario", "trapped", "vms", "mesa", "like_card", "probe_only", "run"])]
    all: bool,
    /// Also the test programs that need Mesa
    #[arg(long)]
    mesa: bool,
    /// Pass, with a notice, on a machine that lacks what a guest needs and cannot fetch it
    #[arg(long)]
    allow_missing: bool,
    /// Only load the driver
    #[arg(long)]
    probe_only: bool,
    /// Measure instead: load the driver so many times as served by default and with --all-trapped, in turns
    #[arg(long, value_name = "ROUNDS", conflicts_with_all = ["scenario", "mesa", "run"])]
    measure: Option<u32>,
    /// Keep the logs of runs that passed too
    #[arg(long)]
    keep: bool,
    /// Write the results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// For diagnosis: parameters of the driver, such as debug=fifo=trace
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    parameters: String,
    /// For diagnosis: a line of shell to run in the guest after the driver is loaded; may be repeated. Test programs
    /// are there with --probe-only too
    #[arg(long, value_name = "COMMAND")]
    run: Vec<String>,
    /// For diagnosis: this program instead of the one that is built
    #[arg(long, value_name = "FILE")]
    vramd: Option<PathBuf>,
    /// For diagnosis: a further option of vramd gpu; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    card_option: Vec<String>,
}

/// Results of one scenario.
#[derive(Debug, Serialize)]
struct Report {
    scenario: &'static str,
    /// VMs that share the card; none where it is one guest's own.
    vms: u8,
    /// What each of them sees, and its VRAM.
    sizes: Option<String>,
    passed: bool,
    insmod_s: Vec<f64>,
    /// The same on a card that it was compared with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    insmod_card_s: Vec<f64>,
    steps: Vec<Step>,
    /// What the card of `vramd gpu` counted.
    card: Option<Summary>,
    /// What `vramd serve` counted of each VM.
    vgpus: Vec<Figures>,
    /// What the first guest's kernel said.
    #[serde(skip)]
    log: String,
}

/// Results of a run.
#[derive(Debug, Serialize)]
struct Results<'a> {
    /// The day on which it began, by the host's clock in UTC.
    date: String,
    seconds: u64,
    reports: &'a [Report],
}

fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}

/// What one device is tried for.
#[derive(Clone, Copy)]
struct Trial {
    scenario: Scenario,
    /// VMs that share the card; none where it is one guest's own.
    vms: u8,
    sizes: Sizes,
    has_mesa: bool,
    /// The driver has to say the same of a card.
    is_compared: bool,
}

impl Trial {
    /// The same on a card.
    fn on_card(self) -> Self {
        Self {
            vms: 0,
            is_compared: false,
            ..self
        }
    }
}

/// The parts that all scenarios use.
struct Setting<'a> {
    environment: HostEnv,
    vramd: PathBuf,
    allowed: Allowed,
    programs: Vec<GuestFile>,
    tests: Vec<TestProgram>,
    arguments: &'a NouveauArguments,
}

impl Setting<'_> {
    /// Builds the selected test programs.
    fn build_tests(&mut self, workspace: &Workspace) -> Result<()> {
        for (folder, in_mesa) in TEST_FOLDERS {
            if in_mesa && !self.arguments.has_mesa() {
                continue;
            }
            let path = workspace.build_apart(folder)?;
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .context("a program without a name")?;
            let name = name.to_owned();
            self.tests.push(TestProgram {
                name: name.clone(),
                in_mesa,
            });
            self.programs.push(GuestFile::test(&name, path));
        }
        Ok(())
    }
}

/// Runs the task.
pub(crate) fn run(workspace: &Workspace, arguments: &NouveauArguments) -> Result<()> {
    let start = Instant::now();
    let environment = match HostEnv::provide(workspace) {
        Err(error) if arguments.allow_missing => {
            eprintln!("NOTE: {error:#}: the Linux driver was NOT tried");
            return Ok(());
        }
        provided => provided?,
    };
    let vramd = match &arguments.vramd {
        Some(path) => path.clone(),
        None => workspace.build_program("vramd", "vramd")?,
    };
    let mut setting = Setting {
        environment,
        vramd,
        allowed: Allowed::load(workspace)?,
        programs: Vec::new(),
        tests: Vec::new(),
        arguments,
    };
    if let Some(rounds) = arguments.measure {
        let measurement = measure::measure(&setting, rounds)?;
        return write_json(arguments, &measurement);
    }
    if !arguments.probe_only || !arguments.run.is_empty() {
        setting.build_tests(workspace)?;
    }
    let mut reports = Vec::new();
    for trial in arguments.trials() {
        let scenario = trial.scenario;
        let tried = try_one(&setting, trial, &arguments.card_option);
        reports.push(tried.with_context(|| format!("scenario {}", scenario.name))?);
    }
    let seconds = start.elapsed().as_secs();
    write_json(
        arguments,
        &Results {
            date: today(),
            seconds,
            reports: &reports,
        },
    )?;
    let failed: Vec<_> = reports
        .iter()
        .filter(|report| !report.passed)
        .map(|report| report.scenario)
        .collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    println!("nouveau passed in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

impl NouveauArguments {
    fn has_mesa(&self) -> bool {
        self.mesa || self.all
    }

    /// All that is to be tried, in this order.
    fn trials(&self) -> Vec<Trial> {
        let chosen = match self.scenario.as_slice() {
            [] => SCENARIOS.to_vec(),
            chosen => chosen.to_vec(),
        };
        let trial = |scenario| Trial {
            scenario,
            vms: if self.vgpu { self.vms } else { 0 },
            sizes: if self.vms > 1 { Sizes::SMALL } else { Sizes::OF_ONE },
            has_mesa: self.has_mesa(),
            is_compared: self.like_card || self.all,
        };
        let mut trials: Vec<_> = chosen.into_iter().map(trial).collect();
        if self.all
            && let Some(first) = trials.first().copied()
        {
            trials.extend([Sizes::SMALL, Sizes::LARGE].map(|sizes| Trial {
                vms: VMS_MAX,
                sizes,
                is_compared: false,
                ..first
            }));
        }
        trials
    }
}

/// One trial; with the same on a card, if the two are compared.
fn try_one(setting: &Setting<'_>, trial: Trial, options: &[String]) -> Result<Report> {
    let name = trial.scenario.name;
    match trial.vms {
        0 => println!("── {name}"),
        1 => println!("── {name}, a vGPU"),
        vms => println!("── {name}, {vms} vGPUs of {}", trial.sizes),
    }
    let mut report = try_scenario(setting, trial, options)?;
    if !trial.is_compared || !report.passed {
        return Ok(report);
    }
    println!("── {name}, a card, to compare it with");
    let start = Instant::now();
    let card = try_scenario(setting, trial.on_card(), options)?;
    let compared = match card.passed {
        true => alike::compare(&card.log, &report.log),
        false => Err(anyhow!("it does not work on a card")),
    };
    report.insmod_card_s = card.insmod_s;
    println!(
        "  insmod: {:?} s on a vGPU, {:?} s on a card",
        report.insmod_s, report.insmod_card_s
    );
    let step = match compared {
        Ok(lines) => {
            println!("  the driver says the same of both: {lines} lines");
            Step {
                name: "compared with a card".to_owned(),
                outcome: Outcome::Passed,
                seconds: start.elapsed().as_secs_f64(),
                note: format!("the driver says the same, {lines} lines"),
            }
        }
        Err(error) => {
            println!("  compared with a card: FAILED: {error:#}");
            report.passed = false;
            failed("compared with a card", start, &error)
        }
    };
    report.steps.push(step);
    Ok(report)
}

fn write_json(arguments: &NouveauArguments, results: &impl Serialize) -> Result<()> {
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(results)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One device and its guests, from start to end.
fn try_scenario(setting: &Setting<'_>, trial: Trial, options: &[String]) -> Result<Report> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let root = folder.path().join("root.cpio");
    setting.environment.write_first_root(&root, &setting.programs)?;
    let device = start_device(setting, trial, options, folder.path())?;
    let walked = thread::scope(|scope| {
        let guests = device.sockets().into_iter().map(|(vm, socket)| {
            let (traffic, root, folder) = (device.traffic(vm), &root, folder.path());
            scope.spawn(move || walk(setting, trial, (vm, traffic), &socket, (root, folder)))
        });
        let guests: Vec<_> = guests.collect();
        let ends = guests
            .into_iter()
            .map(|guest| guest.join().expect("a walk that panics is a bug"));
        ends.collect::<Result<Vec<_>>>()
    })?;
    let mut report = Report {
        scenario: trial.scenario.name,
        vms: trial.vms,
        sizes: (trial.vms > 0).then(|| trial.sizes.to_string()),
        passed: false,
        insmod_s: Vec::new(),
        insmod_card_s: Vec::new(),
        steps: Vec::new(),
        card: None,
        vgpus: Vec::new(),
        log: String::new(),
    };
    for Walked {
        steps,
        insmod_s,
        figures,
        log,
    } in walked
    {
        if report.log.is_empty() {
            report.log = log;
        }
        report.steps.extend(steps);
        report.insmod_s.extend(insmod_s);
        report.vgpus.extend(figures);
    }
    if let Err(error) = end_device(setting, device, &mut report) {
        println!("  card: FAILED: {error:#}");
        report.steps.push(failed("card", Instant::now(), &error));
    }
    report.passed = report.steps.iter().all(|step| step.outcome == Outcome::Passed);
    if !report.passed {
        print_log_ends(folder.path());
    }
    if !report.passed || setting.arguments.keep {
        keep_logs(folder, &root)?;
    }
    Ok(report)
}

/// Starts what the guests get.
fn start_device(
    setting: &Setting<'_>,
    Trial {
        scenario, vms, sizes, ..
    }: Trial,
    options: &[String],
    folder: &Path,
) -> Result<Device> {
    let arguments = setting.arguments;
    if vms > 0 {
        let is_direct = scenario.is_direct() && !arguments.trapped;
        let card = (arguments.policy.as_deref(), is_direct);
        return Vgpus::start(&setting.vramd, (vms, sizes), card, folder).map(Device::Vgpus);
    }
    let mut options = options.to_vec();
    // The driver brings microcode, makes its golden image and names registers in it: PGRAPH may ask for all of it.
    options.push("--strict".to_owned());
    if !scenario.is_direct() {
        options.push(measure::ALL_TRAPPED.to_owned());
    }
    if arguments.measure.is_none() {
        options.extend([
            "--trace".to_owned(),
            folder.join("card.trace").display().to_string(),
        ]);
    }
    Card::start(&setting.vramd, &options, folder).map(Device::Card)
}

/// Ends it, and adds what it counted to the report.
fn end_device(setting: &Setting<'_>, device: Device, report: &mut Report) -> Result<()> {
    report.card = device.stop()?;
    if let Some(summary) = &report.card {
        for line in &summary.lines {
            println!("  card: {line}");
        }
        let polled = summary.polled();
        ensure!(
            polled.is_empty(),
            "the driver polled registers without a name: {}",
            polled.join(", ")
        );
    }
    let moved = |name: &str| {
        report
            .vgpus
            .iter()
            .map(|figures| figures.get(name))
            .collect::<Vec<_>>()
    };
    let sum = |name: &str| -> Result<u64> {
        let each: Option<Vec<&u64>> = moved(name).into_iter().collect();
        Ok(each
            .with_context(|| format!("a VM has no figure {name}"))?
            .into_iter()
            .sum())
    };
    let (pauses, in_vain) = (sum("pauses_total")?, sum("rolled_back_total")?);
    ensure!(
        in_vain <= IN_VAIN_MAX.max(pauses / IN_VAIN_PART),
        "{in_vain} moves were rolled back, of {pauses} for which a VM stood still"
    );
    let arguments = setting.arguments;
    if report.vms > 1 && !arguments.probe_only {
        let spills = moved("spilled_chunks_total");
        println!(
            "  card: spills {spills:?}, refills {:?}; {pauses} pauses, {in_vain} moves rolled back",
            moved("refilled_chunks_total")
        );
        ensure!(
            spills
                .iter()
                .all(|spills| spills.is_some_and(|spills| *spills > 0)),
            "a VM was never spilled: {spills:?}"
        );
    }
    Ok(())
}

fn failed(name: &str, start: Instant, error: &anyhow::Error) -> Step {
    Step {
        name: name.to_owned(),
        outcome: Outcome::Failed(format!("{error:#}")),
        seconds: start.elapsed().as_secs_f64(),
        note: String::new(),
    }
}

/// Boots a guest on the vGPU or card behind `socket` and takes all steps. `folders` are the first root and the folder for logs.
fn walk(
    setting: &Setting<'_>,
    Trial {
        scenario,
        vms,
        has_mesa,
        ..
    }: Trial,
    (vm, traffic): (&str, Option<Traffic>),
    socket: &Path,
    (root, folder): (&Path, &Path),
) -> Result<Walked> {
    let arguments = setting.arguments;
    let folder = folder.join(vm);
    std::fs::create_dir_all(&folder).context("cannot create a folder for logs")?;
    let mesa = [Disk::ReadOnly(setting.environment.mesa.image())];
    let config = GuestConfig {
        processor: Processor::Max,
        clock: Clock::Host,
        ram_mib: RAM_MIB,
        card: Some(socket),
        root,
        disks: if has_mesa { &mesa } else { &[] },
        has_iommu: scenario.has_iommu,
        kernel_options: match scenario.interrupts {
            Interrupts::Msi => "",
            Interrupts::Intx => "pci=nomsi",
        },
    };
    let start = Instant::now();
    let guest = match Guest::boot(&setting.environment, &config, &folder) {
        Ok(guest) => guest,
        Err(error) => {
            return Ok(Walked {
                steps: vec![failed("boot", start, &error)],
                ..Walked::default()
            });
        }
    };
    let log = folder.join("kernel.log");
    println!(
        "  {}boot: {:.1} s",
        scenario::label(vm),
        start.elapsed().as_secs_f64()
    );
    let mut walk = Walk::new(guest, scenario, setting.allowed.clone(), &log, (vm, traffic));
    let is_up = walk.bring_up(&arguments.parameters);
    for command in &arguments.run {
        walk.show(command);
    }
    if is_up && !arguments.probe_only && arguments.measure.is_none() {
        match vms {
            0 | 1 => walk.exercise(&setting.tests),
            _ => walk.run_beside_others(&setting.tests),
        }
    }
    Ok(walk.power_off())
}

/// What the device and the kernels said last: of a run on a machine of CI it is all that is left of the logs.
fn print_log_ends(folder: &Path) {
    for name in ["broker.log", "kernel.log", "a/kernel.log", "b/kernel.log"] {
        let Ok(text) = std::fs::read(folder.join(name)) else {
            continue;
        };
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        println!("  the end of {name}:");
        for line in &lines[lines.len().saturating_sub(LOG_END_LINES)..] {
            println!("    {line}");
        }
    }
}

fn keep_logs(folder: tempfile::TempDir, root: &Path) -> Result<()> {
    // It is the largest file, and quickly made anew.
    std::fs::remove_file(root)?;
    println!("  logs are in {}", folder.keep().display());
    Ok(())
}
