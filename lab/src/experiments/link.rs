//! Ganguly's thesis, Figures 34, 36 and 37: pairs of programs on one link, by who goes first.

use adaptive::{Fairness, Order};

use super::Experiment;
use super::adaptive::{kernels, use_of};
use crate::MIB;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::Kernel;
use crate::replay::shared::{Share, Together, Way, together};
use crate::report::{Report, Table};
use crate::settings::Settings;
use crate::statistics::geometric_mean;
use crate::traces::Trace;

const PAPER: &str = "the adaptive order has 8 % more weighted speed-up and 8 % more harmonic speed-up than first come, first served; sparing the preferred \
                     program's memory at 110 % makes it 18 %";
/// Programs of `adaptive` that are left out: the thesis has ten here, those of its text among them.
const LEFT_OUT: [&str; 2] = ["backprop", "fdtd2d"];
/// Memory whose lack the thesis tries.
const SHORT_PERCENT: u64 = 110;

const fn way(order: Order) -> Way {
    Way {
        order,
        is_at_once: false,
        is_sparing: false,
    }
}

const DEMAND: Order = Order::Demand(Fairness::DEFAULT);
/// Names of the orders with memory enough. `First` is the one whose time for each transfer alone is least.
const ENOUGH: [&str; 4] = ["arrival", "turns", "first", "demand"];
/// Those with too little.
const SHORT: [&str; 3] = ["arrival", "demand", "demand, sparing"];

/// What two programs came to beside each other, by the way in which they shared.
struct Pair {
    programs: [usize; 2],
    names: [String; 2],
    /// How many of them use their memory in a regular way, if that is known.
    regular: Option<usize>,
    enough: Vec<Together>,
    /// The same where both execute at once.
    at_once: Vec<Together>,
    short: Vec<Together>,
}

/// Parts of its speed alone that each program has.
fn speeds(alone: &[Share], programs: [usize; 2], together: &Together) -> [f64; 2] {
    [0, 1].map(|at| alone[programs[at]].run_ns / together.shares[at].run_ns)
}

fn weighted(speeds: [f64; 2]) -> f64 {
    speeds.iter().sum()
}

/// The harmonic mean, n over the sum of the reciprocals; the thesis leaves the n out.
fn harmonic(speeds: [f64; 2]) -> f64 {
    speeds.len() as f64 / speeds.iter().map(|speed| 1.0 / speed).sum::<f64>()
}

/// Time of execution for each transfer.
fn per_transfer(share: &Share) -> f64 {
    share.ran_ns as f64 / share.transfers.max(1) as f64
}

fn pair(traces: &[Trace], alone: &[Share], programs: [usize; 2]) -> Pair {
    let of = programs.map(|program| &traces[program]);
    let [one, other] = programs.map(|program| per_transfer(&alone[program]));
    let first = usize::from(other < one);
    let enough = [Order::Arrival, Order::Turns, Order::First(first), DEMAND];
    let enough = enough.map(way);
    let at_once = enough.map(|way| Way {
        is_at_once: true,
        ..way
    });
    let sparing = Way {
        is_sparing: true,
        ..way(DEMAND)
    };
    let short = [way(Order::Arrival), way(DEMAND), sparing];
    let all = |ways: &[Way], percent| ways.iter().map(|way| together(&of, *way, percent)).collect();
    let regular = of.map(|trace| use_of(&trace.name).map(|kind| usize::from(kind.is_regular())));
    Pair {
        programs,
        names: of.map(|trace| trace.name.clone()),
        regular: regular[0].zip(regular[1]).map(|(one, other)| one + other),
        enough: all(&enough, 100),
        at_once: all(&at_once, 100),
        short: all(&short, SHORT_PERCENT),
    }
}

/// Pairs by how both use their memory.
const KINDS: [&str; 4] = ["both regular", "one irregular", "both irregular", "all"];

fn is_of(kind: &str, regular: Option<usize>) -> bool {
    match kind {
        "both regular" => regular == Some(2),
        "one irregular" => regular == Some(1),
        "both irregular" => regular == Some(0),
        _ => true,
    }
}

/// Geometric mean over pairs of a metric by that of the first way.
fn gain(
    pairs: &[Pair],
    alone: &[Share],
    kind: &str,
    (of, at): (&Ways, usize),
    metric: impl Fn([f64; 2]) -> f64,
) -> f64 {
    let wanted = pairs.iter().filter(|pair| is_of(kind, pair.regular));
    let ratios = wanted.map(|pair| {
        let value = |way: &Together| metric(speeds(alone, pair.programs, way));
        value(&of(pair)[at]) / value(&of(pair)[0])
    });
    geometric_mean(&ratios.collect::<Vec<f64>>())
}

/// One of a pair's lists of ways.
type Ways = dyn Fn(&Pair) -> &[Together];

fn alone_table(traces: &[Trace], alone: &[Share]) -> Table {
    let rows = traces.iter().zip(alone).map(|(trace, share)| {
        let mebibytes = share.bytes as f64 / MIB as f64;
        vec![
            trace.name.clone().into(),
            (trace.pages() * 4).into(),
            (share.run_ns / 1e6).into(),
            (share.ran_ns as f64 / share.run_ns).into(),
            (share.transfers as f64 / mebibytes).into(),
            (per_transfer(share) / 1e3).into(),
        ]
    });
    let columns = [
        "program",
        "KiB",
        "ms alone",
        "executing",
        "transfers a MiB",
        "µs executed a transfer",
    ];
    Table {
        title: "programs alone".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

/// Weighted speed-up of each pair, and MiB of each program that were evicted where memory is short.
fn pairs_table(pairs: &[Pair], alone: &[Share]) -> Table {
    let rows = pairs.iter().map(|pair| {
        let speed = |way: &Together| weighted(speeds(alone, pair.programs, way)).into();
        let evicted = pair.short.iter().map(|way| {
            let of = way.shares.iter().map(|share| share.evicted * 10 / MIB);
            let of = of.map(|tenths| format!("{:.1}", tenths as f64 / 10.0));
            of.collect::<Vec<_>>().join(" ").into()
        });
        let speeds = pair.enough.iter().chain(&pair.short).map(speed);
        std::iter::once(pair.names.join(" + ").into())
            .chain(speeds)
            .chain(evicted)
            .collect()
    });
    let ways = |ways: &[&str], what: &str| -> Vec<String> {
        ways.iter().map(|way| format!("{way}{what}")).collect()
    };
    let columns = [
        vec!["pair".to_owned()],
        ways(&ENOUGH, ""),
        ways(&SHORT, ", short"),
        ways(&SHORT, ", evicted"),
    ];
    Table {
        title: "weighted speed-up".to_owned(),
        columns: columns.concat(),
        rows: rows.collect(),
    }
}

/// The least part of its speed alone that a program has in any pair.
fn least(pairs: &[Pair], alone: &[Share], at: usize) -> f64 {
    let all = pairs
        .iter()
        .flat_map(|pair| speeds(alone, pair.programs, &pair.enough[at]));
    all.fold(f64::INFINITY, f64::min)
}

/// What is made of the speeds of two programs.
type Metric = fn([f64; 2]) -> f64;

const METRICS: [(&str, Metric); 2] = [
    ("weighted speed-up", weighted),
    ("harmonic mean of speeds", harmonic),
];

fn gains_tables(report: &mut Report, pairs: &[Pair], alone: &[Share]) {
    for (name, metric) in METRICS {
        let mut table = |when: &str, names: &[&str], ways: &Ways| {
            let is_there = |kind: &&&str| pairs.iter().any(|pair| is_of(kind, pair.regular));
            let rows = KINDS.iter().filter(is_there).map(|kind| {
                let gain = |at| gain(pairs, alone, kind, (ways, at), metric).into();
                let gains = (0..names.len()).map(gain);
                std::iter::once((*kind).into()).chain(gains).collect()
            });
            let columns = std::iter::once("pairs").chain(names.iter().copied());
            report.tables.push(Table {
                title: format!("{name} by that of arrival{when}"),
                columns: columns.map(str::to_owned).collect(),
                rows: rows.collect(),
            });
        };
        table("", &ENOUGH, &|pair| &pair.enough);
        table(", both executing at once", &ENOUGH, &|pair| &pair.at_once);
        table(&format!(", memory for {SHORT_PERCENT} %"), &SHORT, &|pair| {
            &pair.short
        });
    }
}

/// What has to hold. That an order is better need not hold of an operator's programs.
fn claims(report: &mut Report, pairs: &[Pair], alone: &[Share], are_ours: bool) {
    let all = pairs
        .iter()
        .flat_map(|pair| [&pair.enough, &pair.at_once, &pair.short]);
    let rests: u64 = all.flatten().map(|way| way.rests).sum();
    report.claim(
        rests == 0,
        format!("no direction of the link rests while a transfer is ready ({rests} times)"),
    );
    let demand = ENOUGH.len() - 1;
    for (name, metric) in METRICS.into_iter().filter(|_| are_ours) {
        let gain = gain(pairs, alone, "all", (&|pair| &pair.enough, demand), metric);
        report.claim(
            gain >= 1.0,
            format!("by demand, {name} is {gain:.3} times that of first come, first served"),
        );
    }
    let [arrival, ours] = [0, demand].map(|at| least(pairs, alone, at));
    report.notes.push(format!(
        "the least part of its speed alone that a program has in a pair: {arrival:.2} by arrival, {ours:.2} by demand"
    ));
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let kernels = kernels(settings).filter(|kernel| !LEFT_OUT.contains(&kernel.name));
    let kernels: Vec<Kernel> = kernels.collect();
    let traces = Trace::all(&kernels, settings, onlooker)?;
    let alone: Vec<Share> = traces
        .iter()
        .map(|trace| together(&[trace], way(Order::Arrival), 100).shares[0])
        .collect();
    let numbers: Vec<[usize; 2]> = (0..traces.len())
        .flat_map(|one| (one + 1..traces.len()).map(move |other| [one, other]))
        .collect();
    let name = |programs: &[usize; 2]| programs.map(|program| traces[program].name.as_str()).join(" + ");
    let pairs = jobs::all(&numbers, onlooker, name, |&programs, onlooker| {
        match onlooker.wants_to_stop() {
            true => Err(LabError::Stopped),
            false => Ok(pair(&traces, &alone, programs)),
        }
    })?;
    let mut report = Experiment::Link.report("Figures 34, 36 and 37 of Ganguly's thesis", PAPER, settings);
    report.tables.push(alone_table(&traces, &alone));
    gains_tables(&mut report, &pairs, &alone);
    report.tables.push(pairs_table(&pairs, &alone));
    claims(&mut report, &pairs, &alone, settings.traces.is_empty());
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_of_speeds_are_the_thesis_s_and_the_harmonic_one_with_n() {
        assert!((weighted([0.5, 1.0]) - 1.5).abs() < 1e-12);
        assert!((harmonic([0.5, 1.0]) - 2.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn pairs_are_of_one_kind_each() {
        for regular in 0..=2 {
            let kinds = KINDS.iter().filter(|kind| is_of(kind, Some(regular)));
            assert_eq!(kinds.count(), 2, "its own, and all");
        }
        assert_eq!(KINDS.iter().filter(|kind| is_of(kind, None)).count(), 1);
    }

    #[test]
    fn traces_of_the_operator_are_paired() {
        let trace = |name: &str, steps: u32| {
            let kernels: String = (0..steps)
                .map(|page| format!("quantum 100\n0 {} 1 0\n", page * 16))
                .collect();
            let text =
                format!("vramd-trace 1\nprogram {name}\ngpu-ns 9000\nallocations 512\nkernel\n{kernels}");
            Trace::parse(&text).unwrap()
        };
        let settings = Settings {
            traces: vec![trace("one", 20), trace("two", 30), trace("three", 32)],
            ..Settings::of(crate::Profile::Paper, 1, true)
        };
        let report = run(&settings, &crate::jobs::tests::Patient).unwrap();
        let pairs = report.tables.last().unwrap();
        assert_eq!(pairs.rows.len(), 3);
        let gains = report
            .tables
            .iter()
            .find(|table| table.title.starts_with("weighted"))
            .unwrap();
        assert_eq!(gains.rows.len(), 1, "of no known kind");
        assert_eq!(
            report.claims.len(),
            1,
            "only that the link never rests has to hold of any program"
        );
    }
}
