//! Two programs at a time (sections 6.3, 6.4).

use gdm::{Clean, Setup};

use super::{PROGRAMS, Scale};
use crate::calls::Program;
use crate::report::{Cell, Report, Table};
use crate::staged::{Costs, Replayed, Run, replay, replay_in_order};

/// Each program of a pair runs at least so often, and for as long as the slower one takes for that.
const TIMES: f64 = 2.0;
const TIMES_MAX: f64 = 400.0;

/// A way to manage memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum System {
    Base,
    Gdm,
    /// GDM that signs blocks when they come.
    Loads,
    /// GDM that believes what launches say they store to.
    Sets,
}

impl System {
    const ALL: [Self; 4] = [Self::Base, Self::Gdm, Self::Loads, Self::Sets];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Base => "GDM-Base",
            Self::Gdm => "GDM",
            Self::Loads => "signed at load",
            Self::Sets => "GDM by sets",
        }
    }

    pub(super) const fn setup(self, scale: Scale) -> Setup {
        let gdm = Setup::gdm(scale.capacity(), scale.block());
        match self {
            Self::Base => Setup::base(scale.capacity(), scale.block()),
            Self::Gdm => gdm,
            Self::Loads => Setup {
                clean: Clean::Signatures {
                    uniformity: true,
                    at_load: true,
                },
                ..gdm
            },
            Self::Sets => Setup {
                clean: Clean::Sets,
                ..gdm
            },
        }
    }
}

/// Results of a pair.
struct Pair {
    names: [&'static str; 2],
    exceeds: bool,
    times: [u32; 2],
    /// By system, each program as fast as it is served.
    replayed: Vec<Replayed>,
    /// The same with all calls in one order.
    ordered: Vec<Replayed>,
    /// Weighted speed-up: the sum of how fast each is beside how fast it is alone.
    speedup: Vec<f64>,
    /// GPU work efficiency: what both would have taken alone, in parts of what the GPU took.
    efficiency: Vec<f64>,
}

fn runs<'a>(programs: [&'a Program; 2], times: [u32; 2]) -> Vec<Run<'a>> {
    let runs = programs.into_iter().zip(times);
    let runs = runs.map(|(program, times)| Run {
        program,
        times,
        protected: 0,
        weight: 0,
    });
    runs.collect()
}

/// One run of a program that has the card to itself: with the memory that it wants, as where nobody manages any.
pub(super) fn alone(scale: Scale, costs: Costs, program: &Program) -> Replayed {
    let setup = Setup {
        capacity: u32::MAX,
        ..System::Base.setup(scale)
    };
    let run = Run {
        program,
        times: 1,
        protected: 0,
        weight: 0,
    };
    replay(setup, costs, &[run])
}

fn pair(scale: Scale, costs: Costs, programs: [&Program; 2]) -> Pair {
    let alone = programs.map(|program| alone(scale, costs, program));
    let solo = [0, 1].map(|at| alone[at].ends[0].0);
    let longest = solo[0].max(solo[1]) * TIMES;
    let times = solo.map(|ns| (longest / ns.max(1.0)).round().clamp(TIMES, TIMES_MAX) as u32);
    let replayed = System::ALL.map(|system| replay(system.setup(scale), costs, &runs(programs, times)));
    let order = order(&alone, solo, times);
    let ordered =
        System::ALL.map(|system| replay_in_order(system.setup(scale), costs, &runs(programs, times), &order));
    let each = |of: &Replayed, part: fn(&Replayed, usize, f64) -> f64| -> f64 {
        (0..2).map(|at| part(of, at, solo[at])).sum()
    };
    let speedup = replayed.iter().map(|of| {
        each(of, |of, at, solo| {
            let (end, ran) = of.ends[at];
            solo * f64::from(ran) / end
        })
    });
    let useful: f64 = (0..2)
        .map(|at| alone[at].figures.busy_ns() * f64::from(times[at]))
        .sum();
    let efficiency = replayed.iter().map(|of| useful / of.figures.busy_ns() * 100.0);
    let bytes: u64 = programs.iter().map(|program| program.bytes(scale.block())).sum();
    Pair {
        names: programs.map(|program| program.name),
        exceeds: bytes > u64::from(scale.capacity()) * scale.block(),
        times,
        speedup: speedup.collect(),
        efficiency: efficiency.collect(),
        replayed: replayed.to_vec(),
        ordered: ordered.to_vec(),
    }
}

/// Whose call is next if both programs were as fast as alone, so many times.
fn order(alone: &[Replayed; 2], solo: [f64; 2], times: [u32; 2]) -> Vec<usize> {
    let calls = (0..2).flat_map(|at| {
        let runs = (0..times[at]).map(move |run| f64::from(run) * solo[at]);
        runs.flat_map(move |start| alone[at].calls.iter().map(move |call| (start + call, at)))
    });
    let mut calls: Vec<(f64, usize)> = calls.collect();
    calls.sort_by(|one, other| one.0.total_cmp(&other.0));
    calls.into_iter().map(|(_, at)| at).collect()
}

fn table(pairs: &[Pair], title: &str, of: impl Fn(&Pair, usize) -> Cell) -> Table {
    let rows = pairs.iter().map(|pair| {
        let name = format!(
            "{} ({}), {} ({})",
            pair.names[0], pair.times[0], pair.names[1], pair.times[1]
        );
        let exceeds = if pair.exceeds { "yes" } else { "no" };
        let cells = (0..System::ALL.len()).map(|at| of(pair, at));
        [name.into(), exceeds.into()].into_iter().chain(cells).collect()
    });
    let columns = ["pair (runs)", "exceeds"].map(str::to_owned).into_iter();
    Table {
        title: title.to_owned(),
        columns: columns
            .chain(System::ALL.map(|system| system.name().to_owned()))
            .collect(),
        rows: rows.collect(),
    }
}

fn claims(report: &mut Report, pairs: &[Pair]) {
    let (large, small): (Vec<&Pair>, Vec<&Pair>) = pairs.iter().partition(|pair| pair.exceeds);
    report.claim(
        (large.len(), small.len()) == (14, 7),
        format!(
            "{} of {} pairs want more than the card has (14 of 21)",
            large.len(),
            pairs.len()
        ),
    );
    let all = || {
        pairs
            .iter()
            .flat_map(|pair| pair.replayed.iter().chain(&pair.ordered))
    };
    let finished = pairs.iter().flat_map(|pair| {
        let ends = pair
            .replayed
            .iter()
            .chain(&pair.ordered)
            .map(|of| [of.ends[0].1, of.ends[1].1]);
        ends.map(|ran| ran == pair.times)
    });
    let unfinished = finished.filter(|is| !is).count();
    let lost: u64 = all().map(|of| of.lost).sum();
    report.claim(
        unfinished == 0 && lost == 0,
        format!("all finish under all four, and no launch or copy meets old bytes ({unfinished} do not, {lost} do)"),
    );
    let sum = |of: fn(&Replayed) -> u64| {
        let replayed = small.iter().flat_map(|pair| &pair.replayed);
        replayed.map(of).sum::<u64>()
    };
    let (evictions, signed) = (sum(|of| of.figures.evictions), sum(|of| of.figures.signed));
    report.claim(
        evictions == 0 && signed == 0,
        format!("the others evict and sign nothing ({evictions} evictions, {signed} signatures)"),
    );
    claim_bytes(report, &large);
    claim_speed(report, &large);
}

fn claim_bytes(report: &mut Report, large: &[&Pair]) {
    let moved = |at: usize, of: fn(&Pair) -> &[Replayed]| {
        let moves_more = |pair: &&&Pair| of(pair)[at].figures.moved() > of(pair)[0].figures.moved();
        large.iter().filter(moves_more).count()
    };
    for (at, system) in System::ALL.into_iter().enumerate().skip(1) {
        let more = moved(at, |pair| &pair.ordered);
        report.claim(
            more == 0,
            format!(
                "with all calls in one order {} moves no more bytes than GDM-Base on any pair ({more} do)",
                system.name()
            ),
        );
    }
    let more = [1, 2, 3].map(|at| [moved(at, |pair| &pair.ordered), moved(at, |pair| &pair.replayed)]);
    report.notes.push(format!(
        "pairs on which more bytes move than with GDM-Base, in one order and with each program as fast as it is served: GDM to the letter {} and {}, signed at load {} and {}, by sets {} and {}",
        more[0][0], more[0][1], more[1][0], more[1][1], more[2][0], more[2][1]
    ));
}

fn claim_speed(report: &mut Report, large: &[&Pair]) {
    let mean = |of: &dyn Fn(&Pair) -> f64| {
        large.iter().map(|pair| of(pair)).sum::<f64>() / large.len().max(1) as f64
    };
    let more = [1, 2, 3].map(|at| mean(&|pair| pair.speedup[at] / pair.speedup[0] * 100.0 - 100.0));
    let efficiencies = [0, 1, 2, 3].map(|at| mean(&|pair| pair.efficiency[at]));
    report.claim(
        more[1] > 0.0,
        format!(
            "on pairs that want more GDM, signed at load, has {:.0} % more throughput than GDM-Base on the average, to the letter {:.0}, by sets {:.0} (the paper 21)",
            more[1], more[0], more[2]
        ),
    );
    report.claim(
        efficiencies[2] > efficiencies[0],
        format!(
            "and its GPU work efficiency is {:.0} %, to the letter {:.0}, by sets {:.0}, GDM-Base's {:.0} (the paper: 14 points more, most near 100)",
            efficiencies[2], efficiencies[1], efficiencies[3], efficiencies[0]
        ),
    );
}

pub(super) fn add(report: &mut Report, scale: Scale, costs: Costs, programs: &[Program]) {
    let mut pairs = Vec::new();
    for first in 0..PROGRAMS.len() {
        for second in first + 1..PROGRAMS.len() {
            pairs.push(pair(scale, costs, [&programs[first], &programs[second]]));
        }
    }
    let mib = |bytes: u64| Cell::Number(bytes as f64 / crate::MIB as f64);
    report.tables.push(table(
        &pairs,
        "MiB moved, both ways, all calls in one order",
        |pair, at| mib(pair.ordered[at].figures.moved()),
    ));
    report
        .tables
        .push(table(&pairs, "of them written back by evictions", |pair, at| {
            mib(pair.ordered[at].figures.written_back)
        }));
    report
        .tables
        .push(table(&pairs, "throughput: weighted speed-up", |pair, at| {
            pair.speedup[at].into()
        }));
    report
        .tables
        .push(table(&pairs, "GPU work efficiency, %", |pair, at| {
            pair.efficiency[at].into()
        }));
    report
        .tables
        .push(table(&pairs, "signatures of blocks", |pair, at| {
            pair.replayed[at].figures.signed.into()
        }));
    claims(report, &pairs);
}
