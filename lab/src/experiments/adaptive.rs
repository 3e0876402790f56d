//! Ganguly's thesis, Figures 11, 12, 16, 22 and 29: traces of twelve programs under each policy, on memories that are too small for them.

use adaptive::{Bring, Choice, Evict, Migration, Rules, Spread};

use super::Experiment;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::Kernel;
use crate::replay::{Figures, Unit, belady, replay};
use crate::report::{Report, Table};
use crate::settings::Settings;
use crate::statistics::geometric_mean;
use crate::traces::Trace;
use crate::{KIB, MIB};

const PAPER: &str = "trees both ways take 93 % less time than pages of 4 KiB by age and 18.5 % less than large pages by age; the engine 28 % less than the driver";
/// How much of the programs' memory there is: their pages in percent of it.
const PERCENTS: [u64; 3] = [110, 125, 150];
const PERCENTS_QUICK: [u64; 1] = [125];

/// How a program uses its memory: the thesis's Table 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Streaming,
    Regular,
    Random,
    Irregular,
}

impl Use {
    /// The thesis's chapter 7 tells no more apart.
    pub(super) fn is_regular(self) -> bool {
        matches!(self, Self::Streaming | Self::Regular)
    }
}

/// The thesis's programs, which all have one of ours after them. Those that go over their memory again and again in one run of their plan
/// are run once; the others as often as is said, because one run of the thesis's has many launches.
const PROGRAMS: [(&str, Use, u32); 12] = [
    ("2dconv", Use::Streaming, 1),
    ("backprop", Use::Streaming, 1),
    ("pathfinder", Use::Streaming, 1),
    ("triad", Use::Streaming, 1),
    ("fdtd2d", Use::Regular, 3),
    ("hotspot", Use::Regular, 3),
    ("srad2", Use::Regular, 3),
    ("atax", Use::Random, 3),
    ("gups", Use::Random, 3),
    ("nw", Use::Irregular, 1),
    ("bfs", Use::Irregular, 1),
    ("sssp", Use::Irregular, 1),
];

/// A program's use of memory, if it is one of ours.
pub(super) fn use_of(program: &str) -> Option<Use> {
    let known = PROGRAMS.iter().find(|(name, ..)| *name == program);
    known.map(|(_, kind, _)| *kind)
}

/// Programs as they are recorded.
pub(super) fn kernels(settings: &Settings) -> impl Iterator<Item = Kernel> {
    let footprint = settings.choose(24 * MIB, 12 * MIB);
    PROGRAMS.into_iter().map(move |(name, _, repeats)| Kernel {
        name,
        footprint,
        repeats,
    })
}

/// A policy as the tables name it.
struct Way {
    name: &'static str,
    unit: Unit,
    choice: Choice,
}

const fn fixed(bring: Bring, evict: Evict, migration: Migration) -> Choice {
    Choice::Fixed(Rules {
        bring,
        evict,
        migration,
    })
}

impl Way {
    /// Whether it brings at the first access and evicts by age: nothing is left to chance or to counts.
    fn is_by_age(&self) -> bool {
        match self.choice {
            Choice::Fixed(rules) => {
                rules.migration == FIRST && !matches!(rules.evict, Evict::Random | Evict::Coldest)
            }
            Choice::ByPattern => false,
        }
    }
}

/// Programs that use each byte once.
const ONE_PASS: [&str; 2] = ["2dconv", "triad"];
const TREE: Bring = Bring::Tree(Spread::Balance);
const FIRST: Migration = Migration::FirstTouch;

/// Every policy. The first ones bring at the first access; the last is the engine.
static WAYS: [Way; 10] = [
    Way {
        name: "page, oldest",
        unit: Unit::Page,
        choice: fixed(Bring::Alone, Evict::Oldest, FIRST),
    },
    Way {
        name: "page, random",
        unit: Unit::Page,
        choice: fixed(Bring::Random, Evict::Random, FIRST),
    },
    Way {
        name: "block, local",
        unit: Unit::Block,
        choice: fixed(Bring::Alone, Evict::Local, FIRST),
    },
    Way {
        name: "tree, large",
        unit: Unit::Block,
        choice: Choice::Fixed(Rules::DRIVER),
    },
    Way {
        name: "51 %, large",
        unit: Unit::Block,
        choice: fixed(Bring::Tree(Spread::Largest), Evict::Large, FIRST),
    },
    Way {
        name: "tree, tree",
        unit: Unit::Block,
        choice: Choice::Fixed(Rules::TREES),
    },
    Way {
        name: "always 8",
        unit: Unit::Block,
        choice: fixed(TREE, Evict::Large, Migration::Always(8)),
    },
    Way {
        name: "full 8",
        unit: Unit::Block,
        choice: fixed(TREE, Evict::Large, Migration::Oversubscribed(8)),
    },
    Way {
        name: "dynamic",
        unit: Unit::Block,
        choice: fixed(TREE, Evict::Coldest, Migration::DYNAMIC),
    },
    Way {
        name: ENGINE,
        unit: Unit::Block,
        choice: Choice::ByPattern,
    },
];
const ENGINE: &str = "engine";

/// All replays of one program: by percent, then by policy, and Belady's behind them.
struct Outcome {
    program: String,
    /// `None`: the trace is the operator's.
    kind: Option<Use>,
    trace_pages: u64,
    allocations: u64,
    grids: u64,
    ways: Vec<Vec<Figures>>,
    best: Vec<Figures>,
}

fn outcome(trace: &Trace, percents: &[u64], onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let mut ways = Vec::new();
    for &percent in percents {
        let mut figures = Vec::new();
        for way in &WAYS {
            if onlooker.wants_to_stop() {
                return Err(LabError::Stopped);
            }
            figures.push(replay(trace, way.unit, way.choice, percent, 1));
        }
        ways.push(figures);
    }
    Ok(Outcome {
        program: trace.name.clone(),
        kind: use_of(&trace.name),
        trace_pages: trace.pages(),
        allocations: trace.allocations.len() as u64,
        grids: trace.grids.len() as u64,
        ways,
        best: percents.iter().map(|percent| belady(trace, *percent)).collect(),
    })
}

/// Index of a policy by its name.
fn way(name: &str) -> usize {
    WAYS.iter().position(|way| way.name == name).unwrap_or(0)
}

fn columns(first: &[&str]) -> Vec<String> {
    let names = first.iter().chain(WAYS.iter().map(|way| &way.name));
    names.map(|name| (*name).to_owned()).collect()
}

fn programs_table(outcomes: &[Outcome]) -> Table {
    let rows = outcomes.iter().map(|outcome| {
        let kind = outcome.kind.map(|kind| format!("{kind:?}").to_lowercase());
        vec![
            outcome.program.clone().into(),
            kind.unwrap_or_default().into(),
            (outcome.trace_pages * 4 * KIB / KIB).into(),
            outcome.allocations.into(),
            outcome.grids.into(),
        ]
    });
    Table {
        title: "programs".to_owned(),
        columns: ["program", "use", "KiB", "allocations", "grids"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    }
}

fn table(
    title: String,
    outcomes: &[Outcome],
    at: usize,
    of: impl Fn(&Figures, &Figures) -> f64,
    has_best: bool,
) -> Table {
    let rows = outcomes.iter().map(|outcome| {
        let best = outcome.best[at];
        let ways = outcome.ways[at].iter().map(|figures| of(figures, &best).into());
        let best = has_best.then(|| of(&best, &best).into());
        let program = std::iter::once(outcome.program.clone().into());
        program.chain(ways).chain(best).collect()
    });
    let mut columns = columns(&["program"]);
    columns.extend(has_best.then(|| "Belady".to_owned()));
    Table {
        title,
        columns,
        rows: rows.collect(),
    }
}

/// Programs that go over their memory more than once.
fn goes_again(outcome: &Outcome) -> bool {
    outcome.kind.is_some_and(|kind| kind != Use::Streaming)
}

/// How much faster one policy is than another: geometric mean over some programs and all memories.
fn speed(outcomes: &[Outcome], [of, than]: [&str; 2], is_wanted: &dyn Fn(&Outcome) -> bool) -> f64 {
    let wanted = outcomes.iter().filter(|outcome| is_wanted(outcome));
    let ratios: Vec<f64> = wanted
        .flat_map(|outcome| &outcome.ways)
        .map(|figures| figures[way(than)].gpu_ns / figures[way(of)].gpu_ns)
        .collect();
    geometric_mean(&ratios)
}

/// Where the engine does worst beside Belady's choice.
fn worst(outcomes: &[Outcome], percents: &[u64]) -> String {
    let all = outcomes.iter().flat_map(|outcome| {
        let memories = outcome.ways.iter().zip(&outcome.best).zip(percents);
        memories.map(move |((figures, best), percent)| {
            (
                figures[way(ENGINE)].gpu_ns / best.gpu_ns,
                &outcome.program,
                *percent,
            )
        })
    });
    let worst = all.max_by(|one, other| one.0.total_cmp(&other.0));
    worst.map_or_else(String::new, |(ratio, name, percent)| {
        format!("{ratio:.2} ({name} at {percent} %)")
    })
}

fn claims(report: &mut Report, outcomes: &[Outcome]) {
    let streams = outcomes
        .iter()
        .filter(|outcome| outcome.kind.is_some() && ONE_PASS.contains(&outcome.program.as_str()));
    let again: u64 = streams
        .flat_map(|outcome| &outcome.ways)
        .flat_map(|figures| WAYS.iter().zip(figures))
        .filter(|(way, _)| way.is_by_age())
        .map(|(_, figures)| figures.again)
        .sum();
    report.claim(
        again == 0,
        format!(
            "what is used in one pass comes once under every policy that evicts by age ({} KiB again)",
            again / KIB
        ),
    );
    let sparse = |name: &str| -> f64 { speed(outcomes, ["block, local", name], &|of| of.program == "nw") };
    report.claim(
        sparse("tree, tree") >= 1.0,
        format!(
            "on nw, sparse and local, blocks alone are no slower than trees: {:.2} times as fast",
            sparse("tree, tree")
        ),
    );
    for by in ["page, oldest", "tree, large"] {
        let speed = speed(outcomes, ["tree, tree", by], &goes_again);
        report.claim(
            speed >= 1.0,
            format!("trees both ways are no slower than \"{by}\": {speed:.2} times as fast"),
        );
    }
    for way in WAYS.iter().filter(|way| way.name != ENGINE) {
        let speed = speed(outcomes, [ENGINE, way.name], &|_| true);
        report.claim(
            speed >= 1.0,
            format!(
                "the engine is no slower than \"{}\" in geometric mean: {speed:.2} times as fast",
                way.name
            ),
        );
    }
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let kernels: Vec<Kernel> = kernels(settings).collect();
    let percents = match settings.quick {
        true => &PERCENTS_QUICK[..],
        false => &PERCENTS,
    };
    let traces = Trace::all(&kernels, settings, onlooker)?;
    let name = |trace: &Trace| trace.name.clone();
    let outcomes = jobs::all(&traces, onlooker, name, |trace, onlooker| {
        outcome(trace, percents, onlooker)
    })?;
    let mut report = Experiment::Adaptive.report(
        "Figures 11, 12, 16, 22 and 29 of Ganguly's thesis",
        PAPER,
        settings,
    );
    report.tables.push(programs_table(&outcomes));
    for (at, percent) in percents.iter().enumerate() {
        let time = |figures: &Figures, best: &Figures| figures.gpu_ns / best.gpu_ns;
        let title = format!("GPU time at {percent} % by Belady's");
        report.tables.push(table(title, &outcomes, at, time, false));
        let again = |figures: &Figures, _: &Figures| figures.again as f64 / MIB as f64;
        let link = |figures: &Figures, _: &Figures| figures.link_bytes() as f64 / MIB as f64;
        let title = format!("MiB across the link at {percent} %");
        report.tables.push(table(title, &outcomes, at, link, true));
        let title = format!("MiB that came again at {percent} %");
        report.tables.push(table(title, &outcomes, at, again, true));
    }
    // What has to hold of the thesis's programs need not of others.
    if settings.traces.is_empty() {
        claims(&mut report, &outcomes);
    }
    report.notes.push(format!(
        "the engine's time by Belady's, worst program and memory: {}",
        worst(&outcomes, percents)
    ));
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Belady's choice is the best that can be had without knowing more than what is used next, so nothing that brings blocks one at a time brings fewer.
    #[test]
    fn nobody_who_brings_blocks_alone_brings_fewer_than_belady() {
        for (name, repeats) in [("hotspot", 2), ("nw", 1), ("gups", 1)] {
            let kernel = Kernel {
                name,
                footprint: 2 * MIB,
                repeats,
            };
            let trace = Trace::record(kernel).unwrap();
            for percent in [110, 150] {
                let best = belady(&trace, percent);
                for evict in [
                    Evict::Random,
                    Evict::Oldest,
                    Evict::Local,
                    Evict::Large,
                    Evict::Coldest,
                ] {
                    let choice = fixed(Bring::Alone, evict, FIRST);
                    let figures = replay(&trace, Unit::Block, choice, percent, 1);
                    assert!(figures.bytes_in >= best.bytes_in, "{name} {percent} {evict:?}");
                    assert_eq!(figures.bytes_in - figures.again, best.bytes_in - best.again);
                }
            }
        }
    }

    #[test]
    fn policies_have_names_of_their_own() {
        for (at, one) in WAYS.iter().enumerate() {
            assert_eq!(way(one.name), at);
        }
    }
}
