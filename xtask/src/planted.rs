//! `cargo xtask planted`: plants each fault of `planted` once, and demands that the simulator finds it.
//!
//! One build has all faults; each is tried in a process of its own until a run finds it or its time is up: first in the seed
//! that found it last (`integration/planted/seeds.toml`), then in all from 0 on. Without a fault none of these seeds may find
//! anything. The table that comes out is the one in `docs/planted-faults.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ::planted::Fault;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use crate::workers;
use crate::workspace::Workspace;

/// The word for a run in which nothing is planted.
const NONE: &str = "none";
/// Path of the seeds from the root of the workspace.
const SEEDS: &str = "integration/planted/seeds.toml";
/// What is written above them.
const SEEDS_HEAD: &str = "# The seed that each fault was found in. It is tried before all others, so that a fault that few runs meet costs no search; \
                          one that\n# its seed no longer finds is searched for as ever. `cargo xtask planted --bless` writes this file anew.\n\n";

/// Options of `cargo xtask planted`.
#[derive(Args)]
pub(crate) struct PlantedArguments {
    /// This fault alone; without it, all, and none.
    fault: Option<Fault>,
    /// First seed of each; with it, seeds that found faults before are not tried first.
    #[arg(long)]
    first: Option<u64>,
    /// Seeds in which nothing may be found without a fault.
    #[arg(long, default_value_t = 40)]
    seeds: u64,
    /// Time in which a fault has to be found.
    #[arg(long, default_value_t = 900)]
    seconds: u64,
    /// Time in which all have to be found; those whose turn comes later are tried in the seed that found them last, and in no other.
    #[arg(long, default_value_t = 7200)]
    seconds_in_all: u64,
    /// Write down in which seeds faults were found.
    #[arg(long)]
    bless: bool,
}

impl Default for PlantedArguments {
    /// What CI runs.
    fn default() -> Self {
        Self {
            fault: None,
            first: None,
            seeds: 40,
            seconds: 300,
            seconds_in_all: 600,
            bless: false,
        }
    }
}

/// What a process says of its fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Outcome {
    fault: String,
    /// Who found it; nobody did if it is absent.
    by: Option<String>,
    /// The seed of that run.
    seed: Option<u64>,
    #[serde(default)]
    what: String,
    runs: u64,
    took_ms: u64,
}

/// Seeds by faults.
type Seeds = BTreeMap<String, u64>;

fn parse_seeds(text: &str) -> Result<Seeds> {
    let seeds: Seeds = toml::from_str(text).with_context(|| format!("{SEEDS} is wrong"))?;
    for name in seeds.keys() {
        let known = name.parse::<Fault>();
        ensure!(known.is_ok(), "{SEEDS} names {name:?}, which is no fault");
    }
    Ok(seeds)
}

/// What to look at first for `name`: for no fault, all that is looked at first for any.
fn before(seeds: &Seeds, name: &str) -> Vec<u64> {
    let mut before: Vec<u64> = match name {
        NONE => seeds.values().copied().collect(),
        name => seeds.get(name).copied().into_iter().collect(),
    };
    before.sort_unstable();
    before.dedup();
    before
}

/// The text of `seeds` with what was found now.
fn blessed(mut seeds: Seeds, outcomes: &[Outcome]) -> String {
    for outcome in outcomes {
        if let Some(seed) = outcome.seed.filter(|_| outcome.fault != NONE) {
            seeds.insert(outcome.fault.clone(), seed);
        }
    }
    let lines = Fault::ALL.iter().filter_map(|fault| {
        let name = fault.to_string();
        seeds.get(&name).map(|seed| format!("{name} = {seed}\n"))
    });
    SEEDS_HEAD.to_owned() + &lines.collect::<String>()
}

/// Runs what was asked for, on as many processors as there are.
pub(crate) fn run(workspace: &Workspace, arguments: &PlantedArguments) -> Result<()> {
    let path = workspace.root().join(SEEDS);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {SEEDS}"))?;
    let seeds = parse_seeds(&text)?;
    let first = match arguments.first {
        Some(_) => Seeds::new(),
        None => seeds.clone(),
    };
    let program = workspace.build_program_with("integration", "planted", "planted")?;
    let start = Instant::now();
    let names: Vec<String> = match arguments.fault {
        Some(fault) => vec![fault.to_string()],
        None => std::iter::once(NONE.to_owned())
            .chain(Fault::ALL.iter().map(Fault::to_string))
            .collect(),
    };
    let end = start + Duration::from_secs(arguments.seconds_in_all);
    let tried = workers::each(names, |name| {
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        let seconds = arguments.seconds.min(left);
        try_one(&program, &name, &before(&first, &name), (arguments, seconds))
    });
    let outcomes: Vec<Outcome> = tried.into_iter().collect::<Result<_>>()?;
    print!("{}", table(&outcomes));
    println!(
        "{} tried in {:.0} s",
        outcomes.len(),
        start.elapsed().as_secs_f64()
    );
    if arguments.bless {
        fs::write(&path, blessed(seeds, &outcomes)).with_context(|| format!("cannot write {SEEDS}"))?;
    } else {
        note_moved(&first, &outcomes);
    }
    judge(&outcomes)
}

/// Names those whose search took longer than it had to.
fn note_moved(seeds: &Seeds, outcomes: &[Outcome]) {
    let is_moved = |outcome: &&Outcome| {
        let seed = seeds.get(&outcome.fault);
        outcome.fault != NONE && outcome.seed.is_some() && !seeds.is_empty() && outcome.seed.as_ref() != seed
    };
    let moved: Vec<_> = outcomes.iter().filter(is_moved).map(|one| &*one.fault).collect();
    if !moved.is_empty() {
        println!(
            "NOTE: {SEEDS} has no seed that finds {}: `cargo xtask planted --bless` writes one",
            moved.join(", ")
        );
    }
}

/// Runs one process to its end. A fault is looked for in its first seed at least, and then for so many seconds.
fn try_one(
    program: &Path,
    name: &str,
    before: &[u64],
    (arguments, seconds): (&PlantedArguments, u64),
) -> Result<Outcome> {
    let seeds = if name == NONE { arguments.seeds } else { u64::MAX };
    // Nothing is found without a fault, however long that takes.
    let seconds = if name == NONE { u64::MAX } else { seconds };
    let mut command = Command::new(program);
    command.arg(name);
    let numbers = [arguments.first.unwrap_or(0), seeds, seconds];
    command.args(numbers.iter().chain(before).map(u64::to_string));
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
            fault => format!(
                "{fault} was not found in {} runs: `cargo xtask planted {fault} --bless` looks for longer, and keeps the seed",
                outcome.runs
            ),
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
            seed: by.map(|_| 7),
            what: "a|b".to_owned(),
            runs: 3,
            took_ms: 1_250,
        }
    }

    #[test]
    fn fault_that_nobody_found_fails() {
        let error = judge(&[outcome("WrongOwner", None), outcome(NONE, None)]).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("WrongOwner was not found in 3 runs: `cargo xtask planted WrongOwner --bless`"),
            "{said}"
        );
        assert!(judge(&[outcome("WrongOwner", Some("simulator")), outcome(NONE, None)]).is_ok());
    }

    #[test]
    fn finding_without_a_fault_fails() {
        let error = judge(&[outcome(NONE, Some("simulator"))]).unwrap_err();
        assert_eq!(error.to_string(), "without a fault this was found: a|b");
    }

    #[test]
    fn committed_seeds_are_those_of_faults_and_of_all() {
        let workspace = Workspace::find().unwrap();
        let seeds = parse_seeds(&fs::read_to_string(workspace.root().join(SEEDS)).unwrap()).unwrap();
        let without = Fault::ALL.iter().map(Fault::to_string);
        let without: Vec<_> = without.filter(|name| !seeds.contains_key(name)).collect();
        assert!(without.is_empty(), "no seed is known for {without:?}: {SEEDS}");
        assert!(parse_seeds("Nothing = 1").is_err());
        assert!(parse_seeds("WrongOwner = -1").is_err());
    }

    #[test]
    fn seeds_of_all_faults_are_looked_at_without_a_fault() {
        let seeds = parse_seeds("WrongOwner = 9\nWrongKind = 2\nCopyShort = 9").unwrap();
        assert_eq!(before(&seeds, "WrongOwner"), [9]);
        assert_eq!(before(&seeds, "FlushDropped"), [0; 0]);
        assert_eq!(before(&seeds, NONE), [2, 9]);
    }

    #[test]
    fn found_seeds_are_written_down_beside_the_others() {
        let seeds = parse_seeds("WrongOwner = 1\nWrongKind = 2").unwrap();
        let found = [
            outcome("WrongOwner", Some("simulator")),
            outcome("CopyShort", None),
            outcome(NONE, None),
        ];
        let text = blessed(seeds, &found);
        assert!(text.ends_with("\n\nWrongOwner = 7\nWrongKind = 2\n"), "{text}");
        parse_seeds(&text).unwrap();
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
