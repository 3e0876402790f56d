//! The verb `vramd lab`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::Context as _;
use clap::Parser;
use clap::builder::PossibleValue;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Experiment, Onlooker, Profile, Settings};
use sizes::parse_size;
use vramd_vm::program::{FAILED, WRONG_USAGE, complain};
use vramd_vm::signals::is_stop_requested;

#[derive(Parser, Debug)]
pub(super) struct Arguments {
    /// What is reproduced
    #[arg(value_name = "EXPERIMENT")]
    experiment: Name,
    /// Fewer points and less work: a minute instead of many
    #[arg(long)]
    quick: bool,
    /// Runs of each point, each with random choices of its own [default: 10, with --quick 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// Whose values: the paper's, those of its released code, or a broker's defaults
    #[arg(long, value_name = "NAME", default_value = "paper", value_parser = profile)]
    profile: Profile,
    /// Sizes of the points instead of the experiment's own: memory for guests as in the paper (oversubscribe), chunks (chunk-size)
    #[arg(long, value_name = "SIZE", num_args = 1.., value_parser = size)]
    sizes: Vec<u64>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    /// Write the charts to a file
    #[arg(long, visible_alias = "svg", value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// An experiment on the command line.
#[derive(Clone, Copy, Debug)]
struct Name(Experiment);

impl clap::ValueEnum for Name {
    fn value_variants<'a>() -> &'a [Self] {
        static NAMES: OnceLock<Vec<Name>> = OnceLock::new();
        NAMES.get_or_init(|| Experiment::ALL.iter().copied().map(Name).collect())
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.0.name()).help(self.0.about()))
    }
}

fn profile(name: &str) -> Result<Profile, String> {
    let found = Profile::ALL.into_iter().find(|profile| profile.name() == name);
    found.ok_or_else(|| {
        let names = Profile::ALL.map(Profile::name);
        format!("there are {}", names.join(", "))
    })
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// A bar on a terminal, nothing elsewhere.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} to go  {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Onlooker for Bar {
    fn runs(&self, count: usize) {
        self.0.inc_length(count as u64);
    }

    fn ran(&self, what: &str) {
        self.0.set_message(what.to_owned());
        self.0.inc(1);
    }

    fn wants_to_stop(&self) -> bool {
        is_stop_requested()
    }
}

/// A file that can be written, known before the minutes of an experiment. It is left as it was, and gone if it was not there.
fn check_writable(path: &Path) -> anyhow::Result<()> {
    let is_new = !path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| {
            format!(
                "cannot write {}: a file in a folder that exists is wanted",
                path.display()
            )
        })?;
    if is_new {
        fs::remove_file(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

pub(super) fn lab(arguments: &Arguments) -> anyhow::Result<u8> {
    let Name(experiment) = arguments.experiment;
    let seeds = match arguments.quick {
        true => Settings::SEEDS_QUICK,
        false => Settings::SEEDS,
    };
    let settings = Settings {
        sizes: arguments.sizes.clone(),
        ..Settings::of(
            arguments.profile,
            arguments.seeds.unwrap_or(seeds),
            arguments.quick,
        )
    };
    if let Err(reason) = settings.check(experiment) {
        complain(&format!("--sizes: {reason}"));
        return Ok(WRONG_USAGE);
    }
    arguments.plot.as_deref().map_or(Ok(()), check_writable)?;
    let bar = Bar::new();
    let outcome = lab::run(experiment, &settings, &bar);
    bar.0.finish_and_clear();
    let report = outcome?;
    if let Some(path) = &arguments.plot {
        fs::write(path, report.to_svg()?).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = match arguments.json {
        true => format!("{}\n", serde_json::to_string(&report)?),
        false => report.to_string(),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to stdout")?;
    if !report.holds() {
        complain("not everything holds that has to");
        return Ok(FAILED);
    }
    Ok(0)
}
