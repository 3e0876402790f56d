//! `cargo xtask sim`: whole runs of host, card and guests from a seed.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, bail};
use integration::rewrite::Rewrites;
use integration::sim::{Outcome, Settings, Telling, run as simulate, run_recorded};

use crate::workers;

/// Seeds to run, and how much to print.
#[derive(clap::Args)]
pub(crate) struct SimArguments {
    /// Run this seed and print the log of its events.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Run the seeds A..B (B excluded) and print one line.
    #[arg(long, value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Print only what `--seed` drew and its outcome, not its log.
    #[arg(long)]
    quiet: bool,
    /// Print the actions of each event of `--seed` in full, registers by name.
    #[arg(long, requires = "seed", conflicts_with = "quiet")]
    actions: bool,
    /// Record `--seed` into this file, for `cargo xtask replay`.
    #[arg(long, value_name = "FILE", requires = "seed")]
    record: Option<PathBuf>,
    /// Honest guests only.
    #[arg(long)]
    honest: bool,
    /// Hardware that does not misbehave.
    #[arg(long)]
    no_faults: bool,
    /// A policy that proposes nonsense. A recording could not name it.
    #[arg(long, conflicts_with = "record")]
    hostile_policy: bool,
    /// Write and read the core before one event in so many, drawn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rewrite_one_in: Option<u32>,
}

impl SimArguments {
    fn telling(&self) -> Telling {
        match (self.quiet, self.actions) {
            (true, _) => Telling::Outcome,
            (false, true) => Telling::Actions,
            (false, false) => Telling::Events,
        }
    }

    /// How to run that seed alone.
    fn repeat(&self, seed: u64) -> String {
        let honest = if self.honest { " --honest" } else { "" };
        let faults = if self.no_faults { " --no-faults" } else { "" };
        let policy = match self.hostile_policy {
            true => " --hostile-policy",
            false => "",
        };
        let rewrites = match self.rewrite_one_in {
            Some(one_in) => format!(" --rewrite-one-in {one_in}"),
            None => String::new(),
        };
        format!("repeat with: cargo xtask sim --seed {seed}{honest}{faults}{policy}{rewrites}")
    }
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    parsed
        .filter(|range: &Range<u64>| !range.is_empty())
        .ok_or_else(|| format!("{text:?} is not A..B with A < B"))
}

pub(crate) fn run(arguments: &SimArguments) -> anyhow::Result<()> {
    let settings = Settings {
        telling: Telling::Nothing,
        hostile: !arguments.honest,
        faults: !arguments.no_faults,
        hostile_policy: arguments.hostile_policy,
        rewrites: arguments
            .rewrite_one_in
            .map(|one_in| Rewrites::Drawn { seed: 0, one_in }),
    };
    match (&arguments.seed, &arguments.seeds) {
        (Some(seed), None) => one(
            *seed,
            Settings {
                telling: arguments.telling(),
                ..settings
            },
            arguments.record.as_deref(),
        ),
        (None, Some(seeds)) => many(seeds.clone(), settings, arguments),
        _ => bail!("say --seed N or --seeds A..B"),
    }
}

fn one(seed: u64, settings: Settings, record: Option<&Path>) -> anyhow::Result<()> {
    let outcome = match record {
        Some(file) => run_recorded(seed, settings, file)?,
        None => simulate(seed, settings),
    };
    let mut out = std::io::stdout().lock();
    let head = match settings.telling {
        Telling::Nothing | Telling::Outcome => &outcome.drawn,
        Telling::Events | Telling::Actions => &outcome.log,
    };
    out.write_all(head.as_bytes()).context("cannot write the log")?;
    let (spilled, refilled) = outcome.moves;
    writeln!(
        out,
        "seed {seed}: {} events, {spilled} chunks spilled, {refilled} refilled, {} suspensions, {} roll-backs, log {}",
        outcome.events, outcome.suspensions, outcome.roll_backs, outcome.log_hash
    )?;
    match outcome.violation {
        Some(ref violation) => bail!("seed {seed}: {violation}\n{}", scene(&outcome)),
        None => Ok(()),
    }
}

/// What to look at beside a violation: what the seed drew, the card and the core at that moment, what happened last.
fn scene(outcome: &Outcome) -> String {
    format!(
        "drawn:\n{}the card:\n{}the core:\n{}what happened last:\n{}",
        outcome.drawn, outcome.card, outcome.state, outcome.flight
    )
}

/// Whoever runs many seeds is told how far that is, after so many each time.
const TOLD_AFTER: u64 = 500;

/// Says whose run panics, and lets no other begin.
struct OnPanic<'a> {
    seed: u64,
    is_over: &'a AtomicBool,
    arguments: &'a SimArguments,
}

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.is_over.store(true, Ordering::Relaxed);
            eprintln!("seed {} panics; {}", self.seed, self.arguments.repeat(self.seed));
        }
    }
}

/// Runs seeds on all processors. None begins after a violation or a panic.
fn many(seeds: Range<u64>, settings: Settings, arguments: &SimArguments) -> anyhow::Result<()> {
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let outcomes = workers::each(seeds.clone().collect(), |seed| {
        if is_over.load(Ordering::Relaxed) {
            return None;
        }
        let on_panic = OnPanic {
            seed,
            is_over: &is_over,
            arguments,
        };
        let outcome = simulate(seed, settings);
        drop(on_panic);
        is_over.fetch_or(outcome.violation.is_some(), Ordering::Relaxed);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(TOLD_AFTER) {
            eprintln!("{done} of {} seeds", seeds.end - seeds.start);
        }
        Some((seed, outcome))
    });
    let (mut events, mut spilled, mut refilled) = (0, 0, 0);
    for (seed, outcome) in outcomes.into_iter().flatten() {
        if let Some(violation) = &outcome.violation {
            bail!(
                "seed {seed}: {violation}\ndrawn:\n{}{}",
                outcome.drawn,
                arguments.repeat(seed)
            );
        }
        events += outcome.events;
        spilled += outcome.moves.0;
        refilled += outcome.moves.1;
    }
    let (first, end) = (seeds.start, seeds.end);
    println!(
        "seeds {first}..{end}: no violation; {events} events, {spilled} chunks spilled, {refilled} refilled"
    );
    Ok(())
}
