//! Tests OpenCL of a Linux guest: Mesa's rusticl on nouveau, for a harness that reads lines.
//!
//! Each test runs its kernel on the card and with Mesa's software renderer, which is another device of the same process,
//! and the words of all buffers have to agree.

mod cases;
mod device;

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use cases::{CASES, Case, SOURCE};
use device::Machine;

/// Names the drivers that rusticl offers devices of; without it there are none.
const DRIVERS: (&str, &str) = ("RUSTICL_ENABLE", "nouveau,llvmpipe");
/// The root of a guest can be read-only, so there is no place for a cache of shaders; and the loader of OpenCL is known
/// by a name without a version to developers' packages only.
const SETTINGS: [(&str, &str); 2] = [
    ("MESA_SHADER_CACHE_DISABLE", "true"),
    ("OPENCL_DYLIB_PATH", "libOpenCL.so.1"),
];
/// What the software renderer calls itself.
const REFERENCE: &str = "llvmpipe";

/// Tests OpenCL of this machine on nouveau.
///
/// One line for each test: "ok NAME MS" or "FAIL NAME REASON"; at the end "done" with the counts.
#[derive(Parser, Debug)]
struct Arguments {
    /// Name the tests and stop.
    #[arg(long)]
    list: bool,
    /// Run only this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// What the name of the device has to contain.
    #[arg(long, value_name = "TEXT", default_value = "NVC0")]
    device: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for case in CASES {
            println!("{}", case.name);
        }
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAIL devices {}", one_line(&error));
            println!("done ok=0 FAIL=1 skip=0");
            ExitCode::FAILURE
        }
    }
}

/// Starts this program anew where Mesa has not been told its drivers: they are read from the environment.
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
    for name in &arguments.only {
        ensure!(
            CASES.iter().any(|case| case.name == name),
            "there is no test {name}: see --list"
        );
    }
    enable_drivers()?;
    log_to_kernel("begin", "devices");
    let start = Instant::now();
    let card = Machine::open(&arguments.device, SOURCE)?;
    let reference = Machine::open(REFERENCE, SOURCE)?;
    println!("note {} against {}", card.name(), reference.name());
    println!("ok devices {}", start.elapsed().as_millis());
    log_to_kernel("end", "devices");
    let (mut passed, mut failed) = (1, 0);
    for case in CASES {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == case.name) {
            continue;
        }
        log_to_kernel("begin", case.name);
        let start = Instant::now();
        let result = perform(case, &card, &reference);
        let took = start.elapsed().as_millis();
        log_to_kernel("end", case.name);
        match result {
            Ok(()) => {
                passed += 1;
                println!("ok {} {took}", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {} {}", case.name, one_line(&error));
            }
        }
        std::io::stdout().flush().context("standard output is closed")?;
    }
    println!("done ok={passed} FAIL={failed} skip=0");
    Ok(failed == 0)
}

fn perform(case: &Case, card: &Machine, reference: &Machine) -> Result<()> {
    let wanted = (case.run)(reference).context(REFERENCE)?;
    let found = (case.run)(card)?;
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
    Ok(())
}

/// Marks the kernel log. Without the right to do so there are no marks.
fn log_to_kernel(what: &str, name: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // One write is one line of the log.
        let _ = log.write_all(format!("opencl-test: {what} {name}\n").as_bytes());
    }
}

fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
