//! `cargo xtask planted`: plants each fault of `planted` once, and demands that the simulator finds it.
//!
//! One build has all faults; each is tried in a process of its own, over the same seeds, until a run finds it or its time
//! is up. Without a fault the same seeds must find nothing. The table that comes out is the one in
//! `docs/planted-faults.md`.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use ::planted::Fault;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use crate::workspace::Workspace;

/// The word for a run in which nothing is planted.
const NONE: &str = "none";

/// Options of `cargo xtask planted`.
#[derive(Args)]
pub(crate) struct PlantedArguments {
    /// This fault alone; without it, all, and none.
    fault: Option<Fault>,
    /// First seed of each.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Seeds in which nothing may be found without a fault.
    #[arg(long, default_value_t = 40)]
    seeds: u64,
    /// Time in which a fault has to be found.
    #[arg(long, default_value_t = 900)]
    seconds: u64,
}

impl Default for PlantedArguments {
    /// What CI runs.
    fn default() -> Self {
        Self {
            fault: None,
            first: 0,
            seeds: 40,
            seconds: 900,
        }
    }
}

/// What a process says of its fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Outcome {
    fault: String,
    /// Who found it; nobody did if it is absent.
    by: Option<String>,
    #[serde(default)]
    what: String,
    runs: u64,
    took_ms: u64,
}

/// Runs what was asked for, on as many processors as there are.
pub(crate) fn run(workspace: &Workspace, arguments: &PlantedArguments) -> Result<()> {
    let program = workspace.build_program_with("integration", "planted", "planted")?;
    let start = Instant::now();
    let mut names: VecDeque<String> = match arguments.fault {
        Some(fault) => VecDeque::from([fault.to_string()]),
        None => std::iter::once(NONE.to_owned())
            .chain(Fault::ALL.iter().map(Fault::to_string))
            .collect(),
    };
    let order: Vec<String> = names.iter().cloned().collect();
    names.make_contiguous();
    let (queue, outcomes) = (Mutex::new(names), Mutex::new(Vec::new()));
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(name) = next(&queue) {
                    let outcome = try_one(&program, &name, arguments);
                    outcomes
                        .lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner())
                        .push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut outcomes: Vec<Outcome> = outcomes.into_iter().collect::<Result<_>>()?;
    outcomes.sort_by_key(|outcome| order.iter().position(|name| *name == outcome.fault));
    print!("{}", table(&outcomes));
    println!(
        "{} tried in {:.0} s",
        outcomes.len(),
        start.elapsed().as_secs_f64()
    );
    judge(&outcomes)
}

fn next(queue: &Mutex<VecDeque<String>>) -> Option<String> {
    queue
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .pop_front()
}

/// Runs one process to its end.
fn try_one(program: &Path, name: &str, arguments: &PlantedArguments) -> Result<Outcome> {
    let seeds = if name == NONE { arguments.seeds } else { u64::MAX };
    // Nothing is found without a fault, however long that takes.
    let seconds = if name == NONE { u64::MAX } else { arguments.seconds };
    let mut command = Command::new(program);
    command.arg(name);
    for number in [arguments.first, seeds, seconds] {
        command.arg(number.to_string());
    }
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_str(&text).with_context(|| format!("{name}: {text:?} is no outcome"))
}

/// A line for each fault.
fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| fault | what goes wrong | found by | runs | seconds | what was seen |\n".to_owned();
    text += "|---|---|---|---|---|---|\n";
    for outcome in outcomes {
        let mut all = Fault::ALL.iter().copied();
        let wrong = all.find(|fault| fault.to_string() == outcome.fault);
        let wrong = wrong.map_or("", Fault::text);
        let by = outcome.by.as_deref().unwrap_or("nobody");
        let what: String = outcome.what.replace('|', "/").chars().take(120).collect();
        let seconds = outcome.took_ms as f64 / 1000.0;
        let (fault, runs) = (&outcome.fault, outcome.runs);
        text += &format!("| {fault} | {wrong} | {by} | {runs} | {seconds:.1} | {what} |\n");
    }
    text
}

fn judge(outcomes: &[Outcome]) -> Result<()> {
    let is_wrong = |outcome: &&Outcome| (outcome.fault == NONE) == outcome.by.is_some();
    let wrong: Vec<String> = outcomes
        .iter()
        .filter(is_wrong)
        .map(|outcome| match outcome.fault.as_str() {
            NONE => format!("without a fault this was found: {}", outcome.what),
            fault => format!("{fault} was not found in {} runs", outcome.runs),
        })
        .collect();
    match wrong.is_empty() {
        true => Ok(()),
        false => bail!("{}", wrong.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(fault: &str, by: Option<&str>) -> Outcome {
        Outcome {
            fault: fault.to_owned(),
            by: by.map(str::to_owned),
            what: "a|b".to_owned(),
            runs: 3,
            took_ms: 1_250,
        }
    }

    #[test]
    fn fault_that_nobody_found_fails() {
        let error = judge(&[outcome("WrongOwner", None), outcome(NONE, None)]).unwrap_err();
        assert_eq!(error.to_string(), "WrongOwner was not found in 3 runs");
        assert!(judge(&[outcome("WrongOwner", Some("simulator")), outcome(NONE, None)]).is_ok());
    }

    #[test]
    fn finding_without_a_fault_fails() {
        let error = judge(&[outcome(NONE, Some("simulator"))]).unwrap_err();
        assert_eq!(error.to_string(), "without a fault this was found: a|b");
    }

    #[test]
    fn table_has_a_line_for_each() {
        let table = table(&[outcome("WrongOwner", Some("simulator")), outcome(NONE, None)]);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "| WrongOwner | A frame is given to its VM under its neighbour's address. | simulator | 3 | 1.2 | a/b |",
                "| none |  | nobody | 3 | 1.2 | a/b |"
            ]
        );
    }
}
