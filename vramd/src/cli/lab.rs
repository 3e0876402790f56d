//! The verb `vramd lab`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context as _, ensure};
use clap::Parser;
use clap::builder::PossibleValue;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Experiment, Onlooker, Profile, Settings, Trace};
use sizes::parse_size;
use vgpu::PolicyName;
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
    /// Policies that are compared instead of all (oversubscribe)
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = policy)]
    policies: Vec<PolicyName>,
    /// Replay traces from files instead of those of our programs (adaptive, link): `docs/experiments.md` has their form
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "record")]
    traces: Vec<PathBuf>,
    /// Write the traces of our programs down in a folder, one file each (adaptive, link)
    #[arg(long, value_name = "FOLDER")]
    record: Option<PathBuf>,
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

fn policy(name: &str) -> Result<PolicyName, String> {
    let found = PolicyName::ALL
        .into_iter()
        .find(|policy| policy.to_string() == name);
    found.ok_or_else(|| {
        let names = PolicyName::ALL.map(|policy| policy.to_string());
        format!("there are {}", names.join(", "))
    })
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Largest file of a trace. Bytes.
const TRACE_BYTES_MAX: u64 = 1 << 30;

fn read_trace(path: &Path) -> anyhow::Result<Trace> {
    let bytes = fs::metadata(path)?.len();
    ensure!(
        bytes <= TRACE_BYTES_MAX,
        "it has {bytes} bytes, {TRACE_BYTES_MAX} at most are read"
    );
    Ok(Trace::parse(&fs::read_to_string(path)?)?)
}

/// A bar on a terminal, nothing elsewhere; and the folder for traces, if there is one.
struct Bar {
    bar: ProgressBar,
    record_to: Option<PathBuf>,
    /// The first file that could not be written.
    unwritten: Mutex<Option<anyhow::Error>>,
}

impl Bar {
    fn new(record_to: Option<PathBuf>) -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} to go  {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            record_to,
            unwritten: Mutex::default(),
        }
    }

    fn unwritten(&self) -> MutexGuard<'_, Option<anyhow::Error>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Onlooker for Bar {
    fn runs(&self, count: usize) {
        self.bar.inc_length(count as u64);
    }

    fn ran(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.inc(1);
    }

    fn recorded(&self, trace: &Trace) {
        let Some(folder) = &self.record_to else { return };
        let path = folder.join(format!("{}.trace", trace.name()));
        let written = fs::write(&path, trace.text());
        if let Err(error) = written.with_context(|| format!("cannot write {}", path.display())) {
            self.unwritten().get_or_insert(error);
        }
    }

    fn wants_to_stop(&self) -> bool {
        is_stop_requested() || self.unwritten().is_some()
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
    let traces = arguments
        .traces
        .iter()
        .map(|path| read_trace(path).with_context(|| format!("the trace {} cannot be used", path.display())));
    let settings = Settings {
        sizes: arguments.sizes.clone(),
        policies: arguments.policies.clone(),
        traces: traces.collect::<anyhow::Result<_>>()?,
        ..Settings::of(
            arguments.profile,
            arguments.seeds.unwrap_or(seeds),
            arguments.quick,
        )
    };
    if let Err(reason) = settings.check(experiment) {
        complain(&reason);
        return Ok(WRONG_USAGE);
    }
    arguments.plot.as_deref().map_or(Ok(()), check_writable)?;
    if let Some(folder) = &arguments.record {
        if experiment.traces_min().is_none() {
            complain(&format!("--record: {} replays no traces", experiment.name()));
            return Ok(WRONG_USAGE);
        }
        ensure!(
            folder.is_dir(),
            "--record: there is no folder {}",
            folder.display()
        );
    }
    let bar = Bar::new(arguments.record.clone());
    let outcome = lab::run(experiment, &settings, &bar);
    bar.bar.finish_and_clear();
    if let Some(error) = bar.unwritten().take() {
        return Err(error);
    }
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
