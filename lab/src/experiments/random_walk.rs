//! No figure: memory for the lanes of a grid, by random walks, on a bare card.
//!
//! Pham et al., "Dynamic Memory Management in Massively Parallel Systems: A Case on GPUs": steps against the formulas of
//! section 3 and 4, times against a queue and a list under a lock (section 5.2.1), RW_malloc by sizes (5.2.2) and its
//! utilisation at the first failure (Figure 12). The kernels are `kernels::allocators`. The same walk by threads of the host is `lockmap`.

mod bytes;
mod formulas;
mod pools;
mod runs;
mod threads;

use kernels::Noise;
use kernels::allocators::Walk;

use super::Experiment;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::report::{Cell, Report, Spread, Table};
use crate::settings::Settings;
use crate::statistics::spread;
use formulas::Point;
use pools::{PagePool, Way};

const PAPER: &str = "Pham et al. on a Titan V: steps as their formulas (2) to (5) say, CoRW an order of magnitude faster than Ouroboros' queues, utilisation near 100 %";
/// The paper's pool of its Figure 4: a million pages.
const PAGES: u32 = 1 << 20;
const PAGES_QUICK: u32 = 1 << 17;
/// Free pages before a launch, in thousandths of all.
const SHARES: [u32; 4] = [500, 100, 10, 5];
/// Launches of each seed with few lanes.
const REPEATS: u64 = 8;
/// Standard errors by which a mean may miss what is expected of it.
const ERRORS: f64 = 3.0;
/// Bound of a walk: so many times the draws that a lane needs on the average once all others have their page, so that one
/// in e^30 gives up.
const PATIENCE: u64 = 30;
/// Bound of looks at a slot, and of tries for a lock: far more than lanes, each of which holds others up for a few.
const LOOKS: u32 = 1 << 22;

/// A launch that is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Job {
    way: Way,
    /// Free pages in thousandths.
    share: u32,
    point: Point,
    repeats: u64,
}

impl Job {
    fn name(&self) -> String {
        let Self {
            way, share, point, ..
        } = self;
        format!("{}, {} free, {} lanes", way.name(), percent(*share), point.lanes)
    }

    /// Whether the lanes take a small part of what is free, as equation (4) presumes.
    fn is_small(&self) -> bool {
        self.repeats > 1
    }

    fn tries(&self) -> u32 {
        let Point { pages, free, lanes } = self.point;
        match self.way {
            Way::Walk(_) => (PATIENCE * u64::from(pages) / u64::from(free - lanes).max(1)) as u32,
            Way::Queue | Way::List => LOOKS,
        }
    }
}

/// Results of a job, a figure for each launch.
#[derive(Clone, Debug, Default)]
struct Outcome {
    lane_steps: Vec<f64>,
    warp_steps: Vec<f64>,
    take_ns: Vec<f64>,
    give_ns: Vec<f64>,
    /// Lanes without a page, pages that were given wrongly, pages that did not come back.
    failed: u64,
    wrong: u64,
    lost: u64,
}

fn percent(share: u32) -> String {
    format!("{} %", f64::from(share) / 10.0)
}

fn jobs(settings: &Settings) -> Vec<Job> {
    let pages = settings.choose(PAGES.into(), PAGES_QUICK.into()) as u32;
    // As many lanes as take four fifths of the smallest share, and a sixteenth of them.
    let many = pages / 256;
    let launches = [(many / 16, REPEATS), (many, 1)];
    let points = SHARES.iter().flat_map(|share| {
        launches.map(|(lanes, repeats)| {
            let free = (u64::from(pages) * u64::from(*share) / 1000) as u32;
            (*share, Point { pages, free, lanes }, repeats)
        })
    });
    let all = points.flat_map(|(share, point, repeats)| {
        Way::ALL.map(|way| Job {
            way,
            share,
            point,
            repeats,
        })
    });
    all.collect()
}

/// Takes pages of pools that are filled anew for each launch, and gives them back.
fn run_job(job: &Job, settings: &Settings, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let Job { way, point, .. } = *job;
    let mut pool = PagePool::new(way, point.pages, point.lanes as usize)?;
    let mut outcome = Outcome::default();
    for seed in settings.seeds() {
        for repeat in 0..job.repeats {
            if onlooker.wants_to_stop() {
                return Err(LabError::Stopped);
            }
            let noise = Noise::new(seed).of(repeat as usize);
            let free = pools::draw(noise, point.pages, point.free);
            pool.fill(&free)?;
            let taken = pool.take(point.lanes, noise.word(0), job.tries())?;
            outcome.failed += taken.failed();
            outcome.wrong += pools::wrong(&free, &taken.given, &pool.free()?);
            let back = pool.give(&taken.given, LOOKS)?;
            outcome.lost += back.faults + back.kept + pools::wrong(&free, &[], &pool.free()?);
            outcome.lane_steps.push(taken.lane_steps());
            outcome.warp_steps.push(taken.warp_steps());
            outcome.take_ns.push(taken.ns as f64);
            outcome.give_ns.push(back.ns as f64);
        }
    }
    Ok(outcome)
}

/// Mean and standard error.
fn mean(values: &[f64]) -> Spread {
    let Spread { mean, deviation } = spread(values);
    Spread {
        mean,
        deviation: deviation / (values.len().max(1) as f64).sqrt(),
    }
}

fn micros(nanoseconds: &[f64]) -> Cell {
    let Spread { mean, deviation } = mean(nanoseconds);
    Spread {
        mean: mean / 1e3,
        deviation: deviation / 1e3,
    }
    .into()
}

fn head(columns: &[&str]) -> Vec<String> {
    ["free", "lanes"]
        .iter()
        .chain(columns)
        .map(|&column| column.to_owned())
        .collect()
}

fn row(job: &Job, cells: Vec<Cell>) -> Vec<Cell> {
    let mut row = vec![percent(job.share).into(), u64::from(job.point.lanes).into()];
    row.extend(cells);
    row
}

/// Launches of one way, in the order of shares and lanes.
fn rows(results: &[(Job, Outcome)], way: Way) -> impl Iterator<Item = &(Job, Outcome)> {
    results.iter().filter(move |(job, _)| job.way == way)
}

/// Steps of the two walks that the paper has formulas for.
fn walk_tables(results: &[(Job, Outcome)]) -> [Table; 2] {
    let pages = rows(results, Way::Walk(Walk::Page)).map(|(job, outcome)| {
        let point = job.point;
        row(
            job,
            vec![
                mean(&outcome.lane_steps).into(),
                point.page_steps().mean.into(),
                mean(&outcome.warp_steps).into(),
                point.warp_bound(1).into(),
            ],
        )
    });
    let words = rows(results, Way::Walk(Walk::Word)).map(|(job, outcome)| {
        let (point, exact) = (job.point, job.point.exact_words());
        row(
            job,
            vec![
                mean(&outcome.lane_steps).into(),
                point.word_steps().mean.into(),
                exact.steps.into(),
                mean(&outcome.warp_steps).into(),
                point.warp_bound(32).into(),
                exact.bound.into(),
            ],
        )
    });
    [
        Table {
            title: "RW: steps, mean ± standard error".to_owned(),
            columns: head(&["of a lane", "equation (2)", "of a warp", "bound (3)"]),
            rows: pages.collect(),
        },
        Table {
            title: "RW-BM: steps, mean ± standard error".to_owned(),
            columns: head(&[
                "of a lane",
                "equation (4)",
                "exactly",
                "of a warp",
                "bound (5)",
                "exact bound",
            ]),
            rows: words.collect(),
        },
    ]
}

fn other_steps(results: &[(Job, Outcome)]) -> Table {
    let steps = |way: Way| rows(results, way);
    let together = steps(Way::Walk(Walk::Together))
        .zip(steps(Way::Queue))
        .zip(steps(Way::List));
    let rows = together.map(|(((job, together), (_, queue)), (_, list))| {
        row(
            job,
            vec![
                mean(&together.warp_steps).into(),
                job.point.together_steps().into(),
                mean(&queue.lane_steps).into(),
                job.point.queue_steps().into(),
                mean(&list.lane_steps).into(),
            ],
        )
    });
    Table {
        title: "CoRW (lanes have their warp's), queue, list: steps of a lane".to_owned(),
        columns: head(&["CoRW", "one by one", "queue", "(N + 1) / 2", "list"]),
        rows: rows.collect(),
    }
}

fn time_table(results: &[(Job, Outcome)], title: &str, of: fn(&Outcome) -> &[f64]) -> Table {
    let rows = results.chunks(Way::ALL.len()).map(|launch| {
        let cells = launch.iter().map(|(_, outcome)| micros(of(outcome)));
        row(&launch[0].0, cells.collect())
    });
    Table {
        title: format!("{title}: µs of the card's time, mean ± standard error"),
        columns: head(&Way::ALL.map(Way::name)),
        rows: rows.collect(),
    }
}

/// Whether a mean of launches is where it is expected: the standard error is that of the launches or, if that is more, the
/// one that the formula itself has for so many.
fn is_near(values: &[f64], expected: f64, deviation: f64) -> bool {
    let found = mean(values);
    let error = found
        .deviation
        .max(deviation / (values.len().max(1) as f64).sqrt());
    (found.mean - expected).abs() <= ERRORS * error
}

/// Claims that a mean is as expected in all rows of a way, and names those where it is not.
fn claim_near<'a>(
    report: &mut Report,
    what: &str,
    rows: impl Iterator<Item = &'a (Job, Outcome)>,
    holds: impl Fn(&Job, &Outcome) -> bool,
) {
    let (mut count, mut bad) = (0, Vec::new());
    for (job, outcome) in rows {
        count += 1;
        if !holds(job, outcome) {
            bad.push(job.name());
        }
    }
    let named = if bad.is_empty() {
        "none".to_owned()
    } else {
        bad.join("; ")
    };
    report.claim(
        count > 0 && bad.is_empty(),
        format!("{what} ({count} launches' means; others: {named})"),
    );
}

/// What the paper has formulas for.
fn claim_walks(report: &mut Report, results: &[(Job, Outcome)]) {
    let rows = |way: Way| rows(results, way);
    let (page, word) = (Way::Walk(Walk::Page), Way::Walk(Walk::Word));
    claim_near(
        report,
        "RW's steps of a lane are within 3 standard errors of equation (2)",
        rows(page),
        |job, outcome| {
            let expected = job.point.page_steps();
            is_near(&outcome.lane_steps, expected.mean, expected.deviation)
        },
    );
    claim_near(
        report,
        "RW-BM's are within 3 of equation (4) where lanes take a small part of what is free",
        rows(word).filter(|(job, _)| job.is_small()),
        |job, outcome| {
            let expected = job.point.word_steps();
            is_near(&outcome.lane_steps, expected.mean, expected.deviation)
        },
    );
    claim_near(
        report,
        "RW-BM's are within 3 of the exact formula everywhere",
        rows(word),
        |job, outcome| {
            let deviation = job.point.word_steps().deviation;
            is_near(&outcome.lane_steps, job.point.exact_words().steps, deviation)
        },
    );
    let is_bounded = |outcome: &Outcome, bound: f64| {
        let found = mean(&outcome.warp_steps);
        found.mean <= bound + ERRORS * found.deviation
    };
    claim_near(
        report,
        "the most steps of a warp's lanes are within 3 standard errors of RW's bound (3), or below",
        rows(page),
        |job, outcome| is_bounded(outcome, job.point.warp_bound(1)),
    );
    claim_near(
        report,
        "and of RW-BM's bound (5) where lanes take a small part",
        rows(word).filter(|(job, _)| job.is_small()),
        |job, outcome| is_bounded(outcome, job.point.warp_bound(32)),
    );
    claim_near(
        report,
        "and of the bound by exact chances everywhere",
        rows(word),
        |job, outcome| is_bounded(outcome, job.point.exact_words().bound),
    );
}

fn claim_other_steps(report: &mut Report, results: &[(Job, Outcome)]) {
    let rows = |way: Way| rows(results, way);
    claim_near(
        report,
        "a turn of each lane at the queue: (N + 1) / 2 steps exactly",
        rows(Way::Queue),
        |job, outcome| {
            outcome
                .lane_steps
                .iter()
                .all(|steps| (steps - job.point.queue_steps()).abs() < 1e-9)
        },
    );
    let pairs = rows(Way::Walk(Walk::Together)).zip(rows(Way::Walk(Walk::Word)));
    let worse = pairs
        .filter(|((_, together), (_, alone))| mean(&together.warp_steps).mean > mean(&alone.warp_steps).mean);
    let worse = worse.count();
    report.claim(
        worse == 0,
        format!("a warp of CoRW never takes more steps than one of RW-BM ({worse} do)"),
    );
}

fn claim_pages(report: &mut Report, results: &[(Job, Outcome)]) {
    let sum = |of: fn(&Outcome) -> u64| results.iter().map(|(_, outcome)| of(outcome)).sum::<u64>();
    let lanes: u64 = results
        .iter()
        .map(|(job, outcome)| u64::from(job.point.lanes) * outcome.lane_steps.len() as u64)
        .sum();
    let [failed, wrong, lost] = [
        sum(|outcome| outcome.failed),
        sum(|outcome| outcome.wrong),
        sum(|outcome| outcome.lost),
    ];
    report.claim(
        lanes > 0 && failed == 0,
        format!("each of {lanes} lanes gets a page ({failed} do not)"),
    );
    report.claim(
        wrong == 0,
        format!(
            "no page is given twice, or without having been free and being taken afterwards ({wrong} are)"
        ),
    );
    report.claim(lost == 0, format!("all come back ({lost} do not)"));
}

fn claim_times(report: &mut Report, results: &[(Job, Outcome)]) {
    let launches = results
        .chunks(Way::ALL.len())
        .filter(|launch| !launch[0].0.is_small());
    let time = |launch: &[(Job, Outcome)], way: Way| {
        let own = launch.iter().find(|(job, _)| job.way == way);
        own.map(|(_, outcome)| mean(&outcome.take_ns).mean)
    };
    let launches: Vec<_> = launches.collect();
    let not_faster = |than: Way, least_share: u32| {
        let wanted = launches.iter().filter(|launch| launch[0].0.share >= least_share);
        let is_faster = |launch: &[(Job, Outcome)]| {
            let both = time(launch, Way::Walk(Walk::Together)).zip(time(launch, than));
            both.is_some_and(|(together, other)| together < other)
        };
        wanted.filter(|launch| !is_faster(launch)).count()
    };
    let (lock, queue) = (not_faster(Way::List, 0), not_faster(Way::Queue, 100));
    report.claim(
        !launches.is_empty() && lock == 0,
        format!(
            "with many lanes CoRW takes less time than the list under a lock at each share ({lock} do not)"
        ),
    );
    report.claim(
        queue == 0,
        format!("and less than the queue at 10 % free and more ({queue} do not)"),
    );
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let jobs = jobs(settings);
    let outcomes = jobs::all(&jobs, onlooker, Job::name, |job, onlooker| {
        run_job(job, settings, onlooker)
    })?;
    let results: Vec<(Job, Outcome)> = jobs.into_iter().zip(outcomes).collect();
    let mut report = Experiment::RandomWalk.report("no figure", PAPER, settings);
    report.tables.extend(walk_tables(&results));
    report.tables.push(other_steps(&results));
    report
        .tables
        .push(time_table(&results, "a page for each lane", |outcome| {
            &outcome.take_ns
        }));
    report
        .tables
        .push(time_table(&results, "and back", |outcome| &outcome.give_ns));
    claim_walks(&mut report, &results);
    claim_other_steps(&mut report, &results);
    claim_pages(&mut report, &results);
    claim_times(&mut report, &results);
    bytes::run(&mut report, settings, onlooker)?;
    threads::run(&mut report, settings, onlooker)?;
    report.notes.push(format!(
        "a pool of {} pages, filled anew for each launch; blocks of 256 threads; few lanes: {REPEATS} launches of each run",
        results.first().map_or(0, |(job, _)| job.point.pages)
    ));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn walks_keep_to_the_formulas_and_give_nothing_twice() {
        let settings = Settings::of(Profile::Default, 2, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }

    #[test]
    fn mean_that_is_too_far_away_is_not_near() {
        let values = [1.0, 1.1, 0.9, 1.0];
        assert!(is_near(&values, 1.1, 0.0) && !is_near(&values, 1.2, 0.0));
        // Equal values have no error of their own.
        assert!(is_near(&[1.0; 4], 1.02, 0.02) && !is_near(&[1.0; 4], 1.04, 0.02));
    }
}
