//! Runs tests, each in a process of its own, and prints their results.
//!
//! A test that a kernel message is part of (a fault, a killed channel) says so in [`Case::log`]; begin and end of every
//! test are written to the kernel log, so that a harness can tell such messages from others.

use std::io::Read as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use report::{Outcome, Report, Selection, one_line};

use crate::cases::{self, Case, Nodes};

/// Time between two looks at a running test.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Exit status of a test that could not be run here.
const SKIPPED: u8 = 77;

/// Prints the tests: name, then the allowed messages of the kernel log.
pub(crate) fn list() {
    for case in cases::all() {
        match case.log {
            "" => println!("{}", case.name),
            log => println!("{} log={log}", case.name),
        }
    }
}

/// Prints why something other than a test failed.
pub(crate) fn report(name: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAIL {name} {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs one test in this process; the reason of a failure goes to standard output.
pub(crate) fn run_here(name: &str, nodes: &Nodes) -> ExitCode {
    let Some(case) = cases::all().into_iter().find(|case| case.name == name) else {
        println!("no such test");
        return ExitCode::FAILURE;
    };
    match (case.run)(nodes) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Skipped(reason)) => {
            println!("{reason}");
            ExitCode::from(SKIPPED)
        }
        Err(error) => {
            println!("{}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected tests, each for no longer than `limit`; whether none failed.
pub(crate) fn run_all(selection: &Selection, limit: Duration, nodes: &Nodes) -> Result<bool> {
    let mut report = Report::new("nouveau-test");
    for case in selection.choose(cases::all(), |case| case.name)? {
        report.run(case.name, || run_apart(&case, nodes, limit))?;
    }
    report.finish()
}

fn run_apart(case: &Case, nodes: &Nodes, limit: Duration) -> Result<Outcome> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut child = Command::new(own)
        .arg("--inner")
        .arg(case.name)
        .arg("--render")
        .arg(&nodes.render)
        .arg("--card")
        .arg(&nodes.card)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start a test")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().context("cannot wait for a test")? {
            break status;
        }
        if start.elapsed() > limit {
            child.kill().context("cannot kill a test")?;
            // A process inside the driver dies only when the driver lets go of it: not waited for.
            bail!("not done after {} s", limit.as_secs());
        }
        std::thread::sleep(LOOK_INTERVAL);
    };
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output
            .read_to_string(&mut said)
            .context("cannot read what a test said")?;
    }
    let reason = said.lines().last().unwrap_or("").to_owned();
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(code) if code == i32::from(SKIPPED) => Ok(Outcome::Skipped(reason)),
        Some(_) if !reason.is_empty() => bail!(reason),
        _ => bail!("ended by {status}"),
    }
}
