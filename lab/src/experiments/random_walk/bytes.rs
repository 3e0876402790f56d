//! RW_malloc against queues by size: mixed sizes, and how full a pool is when it fails for the first time.

use kernels::Noise;

use super::pools::{Taken, WARP};
use super::runs::{BytePool, Kind};
use super::{mean, micros};
use crate::MIB;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::report::{Cell, Report, Table};
use crate::settings::Settings;

/// Most bytes that a lane asks for, in rows of the mixed sizes.
const MIXES: [u32; 5] = [16, 64, 256, 1024, 8192];
/// Lanes of a launch of mixed sizes.
const LANES: [u64; 2] = [512, 4096];
/// Shift of the paper's unit.
const UNIT_SHIFT: u32 = 8;
/// Draws of a warp before it searches in order.
const TRIES: u32 = 16;
/// Looks at a slot of a queue.
const LOOKS: u32 = 1 << 22;
/// Least share of the units that are taken at the first failure, in percent.
const FULL_PERCENT: f64 = 95.0;

/// Sizes that lanes ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sizes {
    /// All the same.
    Equal(u32),
    /// From 1 to so many bytes, equally often.
    UpTo(u32),
}

impl Sizes {
    fn name(self) -> String {
        match self {
            Self::Equal(bytes) => format!("{bytes} B"),
            Self::UpTo(most) => format!("1 to {most} B"),
        }
    }

    fn draw(self, noise: Noise, count: usize) -> Vec<u32> {
        let size = |at: usize| match self {
            Self::Equal(bytes) => bytes,
            Self::UpTo(most) => 1 + noise.below(at, most),
        };
        (0..count).map(size).collect()
    }
}

/// Launches of mixed sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mix {
    kind: Kind,
    most: u32,
    lanes: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct MixOutcome {
    take_ns: Vec<f64>,
    give_ns: Vec<f64>,
    steps: Vec<f64>,
    failed: u64,
    wrong: u64,
}

fn held(sizes: &[u32], taken: &Taken) -> impl Iterator<Item = (u32, u32)> {
    let pairs: Vec<_> = sizes.iter().copied().zip(taken.given.iter().copied()).collect();
    pairs.into_iter()
}

/// A part of the pool is taken and given back in between, so that runs are sought in a pool with gaps.
fn run_mix(mix: &Mix, settings: &Settings, onlooker: &dyn Onlooker) -> Result<MixOutcome, LabError> {
    let mut outcome = MixOutcome::default();
    let lanes = mix.lanes as usize;
    let mut pool = BytePool::new(mix.kind, mix.bytes, lanes)?;
    for seed in settings.seeds() {
        if onlooker.wants_to_stop() {
            return Err(LabError::Stopped);
        }
        pool.empty()?;
        let noise = Noise::new(seed);
        let sizes = [0, 1].map(|at| Sizes::UpTo(mix.most).draw(noise.of(at), lanes));
        let looks = pool.bound(TRIES, LOOKS);
        let first = pool.take(&sizes[0], noise.word(0), looks)?;
        // The first half of the lanes gives back.
        let half = lanes / 2;
        let back = pool.give(&sizes[0][..half], &first.given[..half], looks)?;
        let second = pool.take(&sizes[1][..half], noise.word(1), looks)?;
        let all: Vec<_> = held(&sizes[0], &first)
            .skip(half)
            .chain(held(&sizes[1][..half], &second))
            .collect();
        outcome.wrong += pool.wrong(&all)?;
        let (sizes, pieces): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let last = pool.give(&sizes, &pieces, looks)?;
        outcome.wrong +=
            back.faults + back.kept + last.faults + last.kept + pool.wrong(&[])? + pool.used()?;
        outcome.failed += first.failed() + second.failed();
        outcome.take_ns.push(first.ns as f64);
        outcome.give_ns.push(last.ns as f64);
        outcome.steps.push(first.warp_steps());
    }
    Ok(outcome)
}

/// Requests until one fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fill {
    kind: Kind,
    sizes: Sizes,
    bytes: u64,
}

#[derive(Clone, Debug, Default)]
struct FillOutcome {
    /// Percent of the pool that is taken at the first failure, and that was asked for.
    taken: Vec<f64>,
    asked: Vec<f64>,
    wrong: u64,
}

/// A warp a launch, so that the first failure is known to a warp. Bytes of lanes behind the first one that failed do not
/// count; the warp's units do, if it got any.
fn run_fill(fill: &Fill, settings: &Settings, onlooker: &dyn Onlooker) -> Result<FillOutcome, LabError> {
    let mut outcome = FillOutcome::default();
    let mut pool = BytePool::new(fill.kind, fill.bytes, WARP)?;
    for seed in settings.seeds() {
        pool.empty()?;
        let noise = Noise::new(seed);
        let (mut all, mut asked, mut has_failed) = (Vec::new(), 0u64, false);
        let mut launches = 0;
        // Each launch that does not fail takes at least a byte a lane, so there is an end.
        while !has_failed {
            if onlooker.wants_to_stop() {
                return Err(LabError::Stopped);
            }
            let sizes = fill.sizes.draw(noise.of(launches), WARP);
            let taken = pool.take(&sizes, noise.word(launches), pool.bound(TRIES, LOOKS))?;
            has_failed = taken.failed() > 0;
            let pairs: Vec<_> = held(&sizes, &taken).collect();
            let got = pairs
                .iter()
                .take_while(|(_, piece)| *piece != kernels::allocators::NONE);
            asked += got.map(|(size, _)| u64::from(*size)).sum::<u64>();
            all.extend(pairs);
            launches += 1;
        }
        outcome.wrong += pool.wrong(&all)?;
        let percent = |bytes: u64| bytes as f64 * 100.0 / pool.bytes() as f64;
        outcome.taken.push(percent(pool.used()?));
        outcome.asked.push(percent(asked));
    }
    Ok(outcome)
}

fn mixes(settings: &Settings) -> Vec<Mix> {
    let lanes: &[u64] = if settings.quick { &LANES[..1] } else { &LANES };
    let rows = lanes.iter().flat_map(|&lanes| MIXES.map(|most| (lanes, most)));
    // Enough for each queue: half of the largest mix goes to one of six.
    let bytes = settings.choose(128, 16) * MIB;
    let both = [Kind::Units(UNIT_SHIFT), Kind::Queues];
    let all = rows.flat_map(|(lanes, most)| {
        both.map(|kind| Mix {
            kind,
            most,
            lanes,
            bytes,
        })
    });
    all.collect()
}

fn fills(settings: &Settings) -> Vec<Fill> {
    let equal = [64, 256, 1000, 3000, 8192].map(Sizes::Equal);
    let mixed = Sizes::UpTo(8192);
    let paper = Kind::Units(UNIT_SHIFT);
    let by_size = equal
        .iter()
        .flat_map(|&sizes| [(paper, sizes), (Kind::Queues, sizes)]);
    let by_unit = [
        (paper, mixed),
        (Kind::Units(9), mixed),
        (Kind::Units(10), mixed),
        (Kind::Queues, mixed),
    ];
    let bytes = settings.choose(16, 2) * MIB;
    let all = by_size
        .chain(by_unit)
        .map(|(kind, sizes)| Fill { kind, sizes, bytes });
    all.collect()
}

fn mix_table(results: &[(Mix, MixOutcome)]) -> Table {
    let rows = results.chunks(2).map(|both| {
        let (mix, walk) = &both[0];
        let (_, queues) = &both[1];
        let row: Vec<Cell> = vec![
            Sizes::UpTo(mix.most).name().into(),
            mix.lanes.into(),
            mean(&walk.steps).into(),
            micros(&walk.take_ns),
            micros(&queues.take_ns),
            micros(&walk.give_ns),
            micros(&queues.give_ns),
        ];
        row
    });
    let columns = [
        "sizes",
        "lanes",
        "steps of a warp",
        "RW_malloc",
        "queues",
        "RW_malloc, back",
        "queues, back",
    ];
    Table {
        title: "mixed sizes, a request a lane: µs of the card's time, mean ± standard error".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

fn fill_table(results: &[(Fill, FillOutcome)]) -> Table {
    let rows = results.iter().map(|(fill, outcome)| {
        let row: Vec<Cell> = vec![
            fill.kind.name().into(),
            fill.sizes.name().into(),
            mean(&outcome.taken).into(),
            mean(&outcome.asked).into(),
        ];
        row
    });
    Table {
        title: "percent of a pool at the first failure, mean ± standard error".to_owned(),
        columns: ["pool", "sizes", "taken", "asked for"]
            .map(str::to_owned)
            .to_vec(),
        rows: rows.collect(),
    }
}

fn claims(report: &mut Report, mixes: &[(Mix, MixOutcome)], fills: &[(Fill, FillOutcome)]) {
    let sum = |of: fn(&MixOutcome) -> u64| mixes.iter().map(|(_, outcome)| of(outcome)).sum::<u64>();
    let (failed, wrong) = (sum(|outcome| outcome.failed), sum(|outcome| outcome.wrong));
    let wrong = wrong + fills.iter().map(|(_, outcome)| outcome.wrong).sum::<u64>();
    report.claim(
        !mixes.is_empty() && failed == 0,
        format!("all mixed requests are met, in gaps, too ({failed} are not)"),
    );
    report.claim(
        wrong == 0,
        format!("no two pieces overlap, bitmaps and tags are those of the pieces, all come back ({wrong} are wrong)"),
    );
    let walks = || {
        fills
            .iter()
            .filter(|(fill, _)| matches!(fill.kind, Kind::Units(_)))
    };
    let least = walks()
        .map(|(_, outcome)| mean(&outcome.taken).mean)
        .fold(f64::INFINITY, f64::min);
    report.claim(
        walks().count() > 0 && least >= FULL_PERCENT,
        format!("RW_malloc has {FULL_PERCENT} % of its units taken at the first failure, whatever the sizes ({least:.1} % at least)"),
    );
}

/// Adds tables and claims about bytes.
pub(super) fn run(report: &mut Report, settings: &Settings, onlooker: &dyn Onlooker) -> Result<(), LabError> {
    let (mixes, fills) = (mixes(settings), fills(settings));
    let name = |mix: &Mix| format!("{}, up to {} B", mix.kind.name(), mix.most);
    let mixed = jobs::all(&mixes, onlooker, name, |mix, onlooker| {
        run_mix(mix, settings, onlooker)
    })?;
    let name = |fill: &Fill| format!("{}, {}", fill.kind.name(), fill.sizes.name());
    let filled = jobs::all(&fills, onlooker, name, |fill, onlooker| {
        run_fill(fill, settings, onlooker)
    })?;
    let mixes: Vec<_> = mixes.into_iter().zip(mixed).collect();
    let fills: Vec<_> = fills.into_iter().zip(filled).collect();
    report.tables.push(mix_table(&mixes));
    report.tables.push(fill_table(&fills));
    claims(report, &mixes, &fills);
    Ok(())
}
