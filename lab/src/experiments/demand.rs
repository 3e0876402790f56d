//! Ganguly's policies on kernels that run: blocks come by faults that warps wait for, and by counts, on a software card that can do both.

use adaptive::{Bring, Choice, Evict, Migration, Rules, Spread};

use super::Experiment;
use crate::demand::{self, Policy, Ran};
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::Kernel;
use crate::replay::{Figures, Unit, belady, capacity, replay};
use crate::report::{Cell, Report, Table};
use crate::settings::Settings;
use crate::traces::Trace;
use crate::{KIB, MIB};

const PAPER: &str =
    "the thesis simulates both, and feeds its policies by them; it tells no figure of a replay without them";
/// Pages of the kernels in percent of what fits: enough for everything, and too little.
const PERCENTS: [u64; 2] = [50, 125];

const FIRST: Migration = Migration::FirstTouch;

/// A policy as the tables name it.
struct Way {
    name: &'static str,
    choice: Choice,
    /// Whether what it brings does not depend on the order of accesses while everything fits.
    is_alone: bool,
}

const fn fixed(bring: Bring, evict: Evict, migration: Migration) -> Choice {
    Choice::Fixed(Rules {
        bring,
        evict,
        migration,
    })
}

static WAYS: [Way; 6] = [
    Way {
        name: OLDEST,
        choice: fixed(Bring::Alone, Evict::Oldest, FIRST),
        is_alone: true,
    },
    Way {
        name: "block, local",
        choice: fixed(Bring::Alone, Evict::Local, FIRST),
        is_alone: true,
    },
    Way {
        name: "tree, large",
        choice: Choice::Fixed(Rules::DRIVER),
        is_alone: false,
    },
    Way {
        name: "tree, tree",
        choice: Choice::Fixed(Rules::TREES),
        is_alone: false,
    },
    Way {
        name: "alone, always 8",
        choice: fixed(Bring::Alone, Evict::Oldest, Migration::Always(8)),
        is_alone: true,
    },
    Way {
        name: "tree, dynamic",
        choice: fixed(Bring::Tree(Spread::Balance), Evict::Tree, Migration::DYNAMIC),
        is_alone: false,
    },
];
const OLDEST: &str = "block, oldest";
/// A kernel that uses each block in one short time.
const ONE_PASS: &str = "triad";

fn kernels(settings: &Settings) -> Vec<Kernel> {
    let footprint = settings.choose(8 * MIB, 3 * MIB);
    let kernel = |name, repeats| Kernel {
        name,
        footprint,
        repeats,
    };
    vec![
        kernel(ONE_PASS, 1),
        kernel("hotspot", 2),
        kernel("atax", 1),
        kernel("bfs", 1),
    ]
}

/// One policy on one memory: on the card, and on the trace.
struct Pair {
    percent: u64,
    way: &'static Way,
    card: Ran,
    replayed: Figures,
    /// The same replay with as many blocks more and less as were used between two looks.
    between: [Figures; 2],
    best: Figures,
}

struct Outcome {
    name: &'static str,
    plain: Ran,
    blocks: u64,
    pairs: Vec<Pair>,
}

impl Pair {
    fn blocks_in(&self) -> u64 {
        self.card.paged.bytes_in / Unit::Block.bytes()
    }

    /// Whether the card's migrations lie between those of the replays with more and with less memory.
    fn is_between(&self) -> bool {
        let [more, less] = self.between.map(|figures| figures.bytes_in);
        (more..=less).contains(&self.card.paged.bytes_in)
    }
}

/// The replay with so many blocks.
fn with_blocks(trace: &Trace, choice: Choice, blocks: u32) -> Figures {
    crate::replay::replay_in(trace, Unit::Block, choice, blocks.max(1), 1)
}

fn pair(kernel: Kernel, trace: &Trace, way: &'static Way, percent: u64) -> Result<Pair, LabError> {
    let capacity = capacity(trace, Unit::Block, percent);
    let choice = way.choice;
    let card = demand::run(kernel, Policy { choice, capacity })?;
    let window = card.paged.used_at_once as u32;
    Ok(Pair {
        percent,
        way,
        replayed: replay(trace, Unit::Block, choice, percent, 1),
        between: [capacity.saturating_add(window), capacity.saturating_sub(window)]
            .map(|blocks| with_blocks(trace, choice, blocks)),
        best: belady(trace, percent),
        card,
    })
}

fn outcome(kernel: Kernel, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let (plain, trace) = demand::record(kernel)?;
    let mut pairs = Vec::new();
    for percent in PERCENTS {
        for way in &WAYS {
            if onlooker.wants_to_stop() {
                return Err(LabError::Stopped);
            }
            pairs.push(pair(kernel, &trace, way, percent)?);
        }
    }
    Ok(Outcome {
        name: kernel.name,
        plain,
        blocks: trace.pages() * 4 * KIB / Unit::Block.bytes(),
        pairs,
    })
}

fn mib(bytes: u64) -> Cell {
    (bytes as f64 / MIB as f64).into()
}

fn table(outcomes: &[Outcome], percent: u64) -> Table {
    let rows = outcomes.iter().flat_map(|outcome| {
        let pairs = outcome.pairs.iter().filter(move |pair| pair.percent == percent);
        pairs.map(move |pair| {
            let paged = &pair.card.paged;
            vec![
                outcome.name.into(),
                pair.way.name.into(),
                mib(paged.bytes_in),
                mib(pair.replayed.bytes_in),
                mib(pair.best.bytes_in),
                mib(paged.again),
                mib(paged.bytes_out),
                paged.faults.into(),
                paged.groups.into(),
                paged.remote.into(),
                paged.used_at_once.into(),
                (pair.card.gpu_ns as f64 / outcome.plain.gpu_ns as f64).into(),
                (pair.replayed.gpu_ns / outcome.plain.gpu_ns as f64).into(),
            ]
        })
    });
    let columns = [
        "kernel", "policy", "MiB in", "replay", "Belady", "again", "out", "faults", "groups", "remote",
        "window", "time", "replay's",
    ];
    Table {
        title: format!("on the card at {percent} % (time: by that with all in VRAM)"),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// All pairs of which something holds, with their kernels.
fn pairs<'a>(
    outcomes: &'a [Outcome],
    is_wanted: impl Fn(&Outcome, &Pair) -> bool + 'a,
) -> impl Iterator<Item = (&'a Outcome, &'a Pair)> {
    let all = outcomes
        .iter()
        .flat_map(|outcome| outcome.pairs.iter().map(move |pair| (outcome, pair)));
    all.filter(move |(outcome, pair)| is_wanted(outcome, pair))
}

fn names<'a>(pairs: impl Iterator<Item = (&'a Outcome, &'a Pair)>) -> String {
    let names: Vec<String> = pairs
        .map(|(outcome, pair)| {
            let (card, replay) = (pair.card.paged.bytes_in / KIB, pair.replayed.bytes_in / KIB);
            format!(
                "{} under {} at {} %: {card} and {replay} KiB",
                outcome.name, pair.way.name, pair.percent
            )
        })
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" (not so: {})", names.join("; ")),
    }
}

fn claims(report: &mut Report, outcomes: &[Outcome]) {
    let is_other = |outcome: &Outcome, pair: &Pair| pair.card.outputs != outcome.plain.outputs;
    let others = pairs(outcomes, is_other);
    report.claim(
        others.count() == 0,
        "every run leaves the outputs of the run with all in VRAM, byte for byte".to_owned(),
    );
    let fits = |pair: &Pair| pair.percent <= 100;
    let is_unlike = |pair: &Pair| pair.card.paged.bytes_in != pair.replayed.bytes_in;
    let unlike = |_: &Outcome, pair: &Pair| fits(pair) && pair.way.is_alone && is_unlike(pair);
    report.claim(
        pairs(outcomes, unlike).count() == 0,
        format!(
            "with memory enough, what brings blocks alone brings on the card what it brings in the replay, at the first access and by counts{}",
            names(pairs(outcomes, unlike))
        ),
    );
    let again =
        |_: &Outcome, pair: &Pair| fits(pair) && pair.card.paged.again + pair.card.paged.bytes_out > 0;
    report.claim(
        pairs(outcomes, again).count() == 0,
        "with memory enough nothing comes again or is written back".to_owned(),
    );
    let of_one_pass =
        |outcome: &Outcome, pair: &Pair| outcome.name == ONE_PASS && pair.way.is_alone && is_unlike(pair);
    report.claim(
        pairs(outcomes, of_one_pass).count() == 0,
        format!(
            "of a kernel of one pass the same holds on too little memory{}",
            names(pairs(outcomes, of_one_pass))
        ),
    );
    let outside = |_: &Outcome, pair: &Pair| pair.way.name == OLDEST && !pair.is_between();
    report.claim(
        pairs(outcomes, outside).count() == 0,
        format!(
            "\"{OLDEST}\" brings on the card no less and no more than the replay with one window of blocks more, and less{}",
            names(pairs(outcomes, outside))
        ),
    );
}

/// How far the card and the replay are apart where the order counts.
fn farthest(outcomes: &[Outcome]) -> String {
    let apart = |pair: &Pair| pair.card.paged.bytes_in as f64 / pair.replayed.bytes_in.max(1) as f64;
    let far = |pair: &Pair| apart(pair).ln().abs();
    let all = pairs(outcomes, |_, _| true);
    all.max_by(|one, other| far(one.1).total_cmp(&far(other.1)))
        .map_or_else(String::new, |(outcome, pair)| {
            format!(
                "{:.2} times the replay's ({} under {} at {} %: {} blocks of {})",
                apart(pair),
                outcome.name,
                pair.way.name,
                pair.percent,
                pair.blocks_in(),
                outcome.blocks
            )
        })
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let kernels = kernels(settings);
    let name = |kernel: &Kernel| kernel.name.to_owned();
    let outcomes = jobs::all(&kernels, onlooker, name, |&kernel, onlooker| {
        outcome(kernel, onlooker)
    })?;
    let mut report = Experiment::Demand.report(
        "none; the substrate of chapters 3 to 6 of Ganguly's thesis",
        PAPER,
        settings,
    );
    for percent in PERCENTS {
        report.tables.push(table(&outcomes, percent));
    }
    claims(&mut report, &outcomes);
    report.notes.push(format!(
        "bytes that came, farthest from the replay: {}",
        farthest(&outcomes)
    ));
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    fn small(name: &'static str, repeats: u32) -> Kernel {
        Kernel {
            name,
            footprint: 2 * MIB,
            repeats,
        }
    }

    #[test]
    fn claims_hold_of_small_kernels() {
        let kernels = [small(ONE_PASS, 1), small("hotspot", 2), small("bfs", 1)];
        let outcomes: Vec<Outcome> = kernels
            .into_iter()
            .map(|kernel| outcome(kernel, &Patient).unwrap())
            .collect();
        let settings = Settings::of(Profile::Paper, 1, true);
        let mut report = Experiment::Demand.report("", PAPER, &settings);
        claims(&mut report, &outcomes);
        for claim in &report.claims {
            assert!(claim.holds, "{}", claim.what);
        }
        // Something had to be replayed, moved back, and left on the host.
        let sum = |of: fn(&Ran) -> u64| -> u64 {
            pairs(&outcomes, |_, _| true)
                .map(|(_, pair)| of(&pair.card))
                .sum()
        };
        assert!(sum(|ran| ran.paged.groups) > 100);
        assert!(sum(|ran| ran.paged.bytes_out) > 0);
        assert!(sum(|ran| ran.paged.again) > 0);
        assert!(sum(|ran| ran.paged.remote) > 0);
    }

    /// The trace is the same kernel's: its allocations are the buffers, each used whole.
    #[test]
    fn recorded_run_has_the_buffers_as_allocations() {
        let (ran, trace) = demand::record(small(ONE_PASS, 1)).unwrap();
        assert_eq!(trace.allocations.len(), 3);
        assert!(
            trace
                .allocations
                .iter()
                .all(|pages| *pages == trace.allocations[0])
        );
        assert_eq!(ran.paged, crate::demand::Paged::default());
        assert!(ran.gpu_ns > 0);
    }
}
