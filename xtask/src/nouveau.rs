//! `cargo xtask nouveau`: Debian's kernel and the unmodified driver nouveau against `vramd gpu`, in a virtual machine.
//!
//! For each scenario a card and a guest are started; the driver is loaded, test programs run, the driver is bound
//! anew, suspended, unloaded and loaded again, and the kernel's log is checked after every step. Nothing here knows
//! how the driver works: the test is that it does not complain.

mod kernel_log;
mod measure;
mod scenario;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::card::{Card, Summary};
use crate::guest::{Clock, Disk, Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};
use crate::workspace::Workspace;
use kernel_log::Allowed;
use scenario::{Interrupts, Outcome, SCENARIOS, Scenario, Step, TestProgram, Walk};

const RAM_MIB: u32 = 1024;
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
    passed: bool,
    insmod_s: Vec<f64>,
    steps: Vec<Step>,
    card: Summary,
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
            if in_mesa && !self.arguments.mesa {
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
    let scenarios = if arguments.scenario.is_empty() {
        SCENARIOS.to_vec()
    } else {
        arguments.scenario.clone()
    };
    let mut reports = Vec::new();
    for scenario in scenarios {
        println!("── {}", scenario.name);
        reports.push(
            try_scenario(&setting, scenario, &arguments.card_option)
                .with_context(|| format!("scenario {}", scenario.name))?,
        );
    }
    write_json(arguments, &reports)?;
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

fn write_json(arguments: &NouveauArguments, results: &impl Serialize) -> Result<()> {
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(results)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// One card and one guest, from start to end.
fn try_scenario(setting: &Setting<'_>, scenario: Scenario, options: &[String]) -> Result<Report> {
    let arguments = setting.arguments;
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let root = folder.path().join("root.cpio");
    setting.environment.write_first_root(&root, &setting.programs)?;
    let mut options = options.to_vec();
    options.extend(scenario.card_option().map(str::to_owned));
    if arguments.measure.is_none() {
        options.extend([
            "--trace".to_owned(),
            folder.path().join("card.trace").display().to_string(),
        ]);
    }
    let card = Card::start(&setting.vramd, &options, folder.path())?;
    let config = GuestConfig {
        processor: Processor::Max,
        clock: Clock::Host,
        ram_mib: RAM_MIB,
        card: Some(card.socket()),
        root: &root,
        disk: arguments
            .mesa
            .then(|| Disk::ReadOnly(setting.environment.mesa.image())),
        has_iommu: scenario.has_iommu,
        kernel_options: match scenario.interrupts {
            Interrupts::Msi => "",
            Interrupts::Intx => "pci=nomsi",
        },
    };
    let (mut steps, insmod_s) = walk(setting, scenario, &config, folder.path());
    let card = card.stop().and_then(|summary| {
        for line in &summary.lines {
            println!("  card: {line}");
        }
        let polled = summary.polled();
        ensure!(
            polled.is_empty(),
            "the driver polled registers without a name: {}",
            polled.join(", ")
        );
        Ok(summary)
    });
    let card = card.unwrap_or_else(|error| {
        println!("  card: FAILED: {error:#}");
        let outcome = Outcome::Failed(format!("{error:#}"));
        steps.push(Step {
            name: "card".to_owned(),
            outcome,
            seconds: 0.0,
            note: String::new(),
        });
        Summary::default()
    });
    let passed = steps.iter().all(|step| step.outcome == Outcome::Passed);
    if !passed || arguments.keep {
        keep_logs(folder, &root)?;
    }
    Ok(Report {
        scenario: scenario.name,
        passed,
        insmod_s,
        steps,
        card,
    })
}

/// Boots and takes all steps.
fn walk(
    setting: &Setting<'_>,
    scenario: Scenario,
    config: &GuestConfig<'_>,
    folder: &Path,
) -> (Vec<Step>, Vec<f64>) {
    let arguments = setting.arguments;
    let start = Instant::now();
    let guest = match Guest::boot(&setting.environment, config, folder) {
        Ok(guest) => guest,
        Err(error) => {
            let outcome = Outcome::Failed(format!("{error:#}"));
            let seconds = start.elapsed().as_secs_f64();
            return (
                vec![Step {
                    name: "boot".to_owned(),
                    outcome,
                    seconds,
                    note: String::new(),
                }],
                Vec::new(),
            );
        }
    };
    let log = folder.join("kernel.log");
    println!("  boot: {:.1} s", start.elapsed().as_secs_f64());
    let mut walk = Walk::new(guest, scenario, setting.allowed.clone(), &log);
    let is_up = walk.bring_up(&arguments.parameters);
    for command in &arguments.run {
        walk.show(command);
    }
    if is_up && !arguments.probe_only && arguments.measure.is_none() {
        walk.exercise(&setting.tests);
    }
    walk.power_off()
}

fn keep_logs(folder: tempfile::TempDir, root: &Path) -> Result<()> {
    // It is the largest file, and quickly made anew.
    std::fs::remove_file(root)?;
    println!("  logs are in {}", folder.keep().display());
    Ok(())
}
