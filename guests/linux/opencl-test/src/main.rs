//! Tests OpenCL of a Linux guest: Mesa's rusticl on nouveau, for a harness that reads lines.
//!
//! A test of kernels runs them on the card and with Mesa's software renderer, which is another device of the same process,
//! and the words of all buffers have to agree. A test of fills computes by itself what every byte has to be.

mod cases;
mod device;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use report::{Outcome, Report, Selection};

use cases::{Case, SOURCE, Work};
use device::Machine;

/// Names the drivers that rusticl offers devices of; without it there are none.
const DRIVERS: (&str, &str) = ("RUSTICL_ENABLE", "nouveau,llvmpipe");
/// The root of a guest can be read-only, so there is no place for a cache of shaders; and the loader of OpenCL is known
/// by a name without a version to developers' packages only.
const SETTINGS: [(&str, &str); 2] = [
    ("MESA_SHADER_CACHE_DISABLE", "true"),
    ("OPENCL_DYLIB_PATH", "libOpenCL.so.1"),
];
/// Name of the software renderer.
const REFERENCE: &str = "llvmpipe";

/// Tests OpenCL of this machine on nouveau.
///
/// One line for each test: "ok NAME MS" or "FAIL NAME REASON"; at the end "done" with the counts.
#[derive(Parser, Debug)]
struct Arguments {
    /// Name the tests and stop.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    selection: Selection,
    /// Text that the name of the device must contain.
    #[arg(long, value_name = "TEXT", default_value = "NVC0")]
    device: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for case in cases::all() {
            println!("{}", case.name);
        }
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("opencl-test: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Starts this program anew where the environment does not name Mesa's drivers, which are read from there.
fn enable_drivers() -> Result<()> {
    let (name, drivers) = DRIVERS;
    if std::env::var_os(name).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().context("no path to this program")?;
    let error = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(name, drivers)
        .envs(SETTINGS)
        .exec();
    Err(error).context("this program cannot run itself")
}

/// Runs the selected tests; whether none failed.
fn run(arguments: &Arguments) -> Result<bool> {
    let chosen = arguments.selection.choose(cases::all(), |case| case.name)?;
    enable_drivers()?;
    let mut report = Report::new("opencl-test");
    let Some(card) = report.prepare("card", || Machine::open(&arguments.device, SOURCE))? else {
        return report.finish();
    };
    let Some(reference) = report.prepare("reference", || Machine::open(REFERENCE, SOURCE))? else {
        return report.finish();
    };
    report.note(&format!("{} against {}", card.name(), reference.name()))?;
    for case in chosen {
        report.run(case.name, || perform(&case, &card, &reference))?;
    }
    report.finish()
}

fn perform(case: &Case, card: &Machine, reference: &Machine) -> Result<Outcome> {
    let run = match case.work {
        Work::Checked(run) => return run(card),
        Work::Compared(run) => run,
    };
    let wanted = run(reference).context(REFERENCE)?;
    let found = run(card)?;
    // A card that stores nothing is not to agree with a renderer that does not either.
    ensure!(
        wanted.iter().any(|word| *word != wanted[0]),
        "all words are the same"
    );
    ensure!(
        found.len() == wanted.len(),
        "{} words, {REFERENCE} has {}",
        found.len(),
        wanted.len()
    );
    let wrong = (0..found.len()).filter(|&index| found[index] != wanted[index]);
    let (first, count) = (wrong.clone().next(), wrong.count());
    if let Some(first) = first {
        anyhow::bail!(
            "word {first} is {:#x}, {REFERENCE} has {:#x}; {count} of {} are wrong",
            found[first],
            wanted[first],
            found.len()
        );
    }
    Ok(Outcome::Passed)
}
