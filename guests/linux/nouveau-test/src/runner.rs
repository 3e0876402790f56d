//! Runs tests, each in a process of its own, and prints what became of them.
//!
//! A test that a kernel message is part of (a fault, a killed channel) says so in [`Case::log`]; begin and end of every
//! test are written to the kernel log, so that a harness can tell such messages from others.

use std::io::{Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cases::{self, Case, Nodes, Outcome};

/// How often a running test is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Exit status of a test that could not be run here.
const SKIPPED: u8 = 77;

/// Which tests, and for how long.
#[derive(Debug)]
pub(crate) struct Selection {
    /// Only these, if there are any.
    pub(crate) only: Vec<String>,
    /// Not these.
    pub(crate) skip: Vec<String>,
    /// Time for each.
    pub(crate) limit: Duration,
}

/// Prints the tests: name, then what the kernel log may say.
pub(crate) fn list() {
    for case in cases::all() {
        match case.log {
            "" => println!("{}", case.name),
            log => println!("{} log={log}", case.name),
        }
    }
}

/// Prints why something that is no test failed.
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

/// Runs the selected tests; whether none failed.
pub(crate) fn run_all(selection: &Selection, nodes: &Nodes) -> Result<bool> {
    let all = cases::all();
    for name in selection.only.iter().chain(&selection.skip) {
        ensure!(
            all.iter().any(|case| case.name == name),
            "there is no test {name}: see --list"
        );
    }
    let is_selected = |case: &&Case| {
        let named = |list: &[String]| list.iter().any(|name| name == case.name);
        (selection.only.is_empty() || named(&selection.only)) && !named(&selection.skip)
    };
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for case in all.iter().filter(is_selected) {
        log_to_kernel("begin", case.name);
        let start = Instant::now();
        let end = run_apart(case, nodes, selection.limit)?;
        let took = start.elapsed().as_millis();
        log_to_kernel("end", case.name);
        match end {
            End::Passed => {
                passed += 1;
                println!("ok {} {took}", case.name);
            }
            End::Skipped(reason) => {
                skipped += 1;
                println!("skip {} {reason}", case.name);
            }
            End::Failed(reason) => {
                failed += 1;
                println!("FAIL {} {reason}", case.name);
            }
        }
        std::io::stdout().flush().context("standard output is closed")?;
    }
    println!("done ok={passed} FAIL={failed} skip={skipped}");
    Ok(failed == 0)
}

/// How a test's process ended.
enum End {
    Passed,
    Skipped(String),
    Failed(String),
}

fn run_apart(case: &Case, nodes: &Nodes, limit: Duration) -> Result<End> {
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
            return Ok(End::Failed(format!("not done after {} s", limit.as_secs())));
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
    Ok(match status.code() {
        Some(0) => End::Passed,
        Some(code) if code == i32::from(SKIPPED) => End::Skipped(reason),
        Some(_) if !reason.is_empty() => End::Failed(reason),
        _ => End::Failed(format!("ended by {status}")),
    })
}

/// Marks the kernel log. Without the right to do so there are no marks.
fn log_to_kernel(what: &str, name: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // One write is one line of the log.
        let _ = log.write_all(format!("nouveau-test: {what} {name}\n").as_bytes());
    }
}

fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").replace('\n', " ")
}
