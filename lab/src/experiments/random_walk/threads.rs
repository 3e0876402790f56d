//! The same walk on the host: threads instead of lanes, words of 64, and the LockMap of sections 4.1.1 and 4.2 (`lockmap`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kernels::Noise;
use lockmap::{Ended, Units};

use super::{Settings, is_near, mean, percent};
use crate::host::LabError;
use crate::jobs::Onlooker;
use crate::report::{Cell, Report, Table};

const UNITS: u32 = 1 << 20;
const UNITS_QUICK: u32 = 1 << 16;
/// Units of a word.
const WORD: u32 = 64;
/// Threads at work at once.
const THREADS: [usize; 3] = [1, 2, 4];
/// Free units while all threads look, in thousandths of all, in the order in which they come free.
const SHARES: [u32; 4] = [5, 10, 100, 500];
/// Searches of all threads together in one pool at one share.
const SEARCHES: u32 = 20_000;

/// What so many threads did.
#[derive(Default)]
struct Together {
    /// Steps of a search on average, for each share and pool. Those that met another's lock say nothing of the word and do not count.
    steps: [Vec<f64>; SHARES.len()],
    /// All steps, and those that met another's lock.
    all: [u64; SHARES.len()],
    locked: [u64; SHARES.len()],
    /// Units that two had at once, or that could not be given back.
    wrong: u64,
    /// Units that were free when a search failed while all were being taken.
    missed: u64,
    /// Searches that ended because others were at work where units were free.
    held_up: u64,
}

/// A pool, and which of its units somebody has.
struct Pool {
    units: Units,
    had: Vec<AtomicBool>,
}

/// Numbers of one thread.
struct Draws(Noise, usize);

/// What one thread did.
#[derive(Default)]
struct Alone {
    steps: u64,
    locked: u64,
    wrong: u64,
    held_up: u64,
}

impl Alone {
    /// Steps of a search on average that looked at their word, of so many searches.
    fn steps_of_a_search(&self, searches: u32) -> f64 {
        (self.steps - self.locked) as f64 / f64::from(searches)
    }
}

impl Pool {
    fn new(count: u32) -> Self {
        Self {
            units: Units::new(count),
            had: (0..count).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Takes a unit; `None` if none is free.
    fn take(&self, draws: &mut Draws, alone: &mut Alone) -> Option<u32> {
        loop {
            let search = self.units.take(|end| {
                draws.1 += 1;
                draws.0.below(draws.1, end)
            });
            alone.steps += u64::from(search.steps);
            alone.locked += u64::from(search.locked);
            match search.ended {
                Ended::Took(unit) => {
                    let was_had = self.had[unit as usize].swap(true, Ordering::Relaxed);
                    alone.wrong += u64::from(was_had);
                    return Some(unit);
                }
                Ended::Full => return None,
                Ended::HeldUp => alone.held_up += 1,
            }
        }
    }

    fn give(&self, unit: u32, alone: &mut Alone) {
        let was_had = self.had[unit as usize].swap(false, Ordering::Relaxed);
        let is_wrong = self.units.give(unit).is_err() || !was_had;
        alone.wrong += u64::from(is_wrong);
    }

    /// Units that nobody has.
    fn free(&self) -> u64 {
        let is_free = |had: &&AtomicBool| !had.load(Ordering::Relaxed);
        self.had.iter().filter(is_free).count() as u64
    }
}

/// Runs something in so many threads at once, each with numbers of its own.
fn at_once(threads: usize, noise: Noise, work: impl Fn(Draws, &mut Alone) + Sync) -> Alone {
    let done: Vec<Alone> = thread::scope(|scope| {
        let start = |at: usize| {
            let (work, draws) = (&work, Draws(noise.of(at), 0));
            scope.spawn(move || {
                let mut alone = Alone::default();
                work(draws, &mut alone);
                alone
            })
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        let ended = started.into_iter().map(|thread| thread.join());
        ended
            .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.into_iter().fold(Alone::default(), |sum, alone| Alone {
        steps: sum.steps + alone.steps,
        locked: sum.locked + alone.locked,
        wrong: sum.wrong + alone.wrong,
        held_up: sum.held_up + alone.held_up,
    })
}

/// Takes all units of a pool by so many threads, then gives back more and more of them and lets the threads search for what is free.
fn run_pool(count: u32, threads: usize, noise: Noise, together: &mut Together) {
    let pool = Pool::new(count);
    let filled = at_once(threads, noise.of(0), |mut draws, alone| {
        while pool.take(&mut draws, alone).is_some() {}
    });
    together.missed += pool.free();
    together.held_up += filled.held_up;
    let mut order: Vec<u32> = (0..count).collect();
    let mut given = Alone::default();
    let (mut free, each) = (0, SEARCHES / threads as u32);
    for (at, share) in SHARES.into_iter().enumerate() {
        let wanted = (u64::from(count) * u64::from(share) / 1000) as u32;
        for at in free..wanted {
            let other = at + noise.of(1).below(at as usize, count - at);
            order.swap(at as usize, other as usize);
            pool.give(order[at as usize], &mut given);
        }
        free = wanted;
        let done = at_once(threads, noise.of(2 + at), |mut draws, alone| {
            for _ in 0..each {
                if let Some(unit) = pool.take(&mut draws, alone) {
                    pool.give(unit, alone);
                }
            }
        });
        together.steps[at].push(done.steps_of_a_search(each * threads as u32));
        together.all[at] += done.steps;
        together.locked[at] += done.locked;
        together.wrong += done.wrong;
        together.held_up += done.held_up;
    }
    together.wrong += filled.wrong + given.wrong + pool.free().abs_diff(free.into());
}

/// Section 4.1.1: steps of one search, and the standard deviation of the mean over the searches in a pool.
fn expected(share: u32, count: u32) -> (f64, f64) {
    let hit = 1.0 - (1.0 - f64::from(share) / 1000.0).powi(WORD as i32);
    let of_searches = (1.0 - hit) / hit.powi(2) / f64::from(SEARCHES);
    // Words with a free unit differ from pool to pool.
    let of_pool = (1.0 - hit) / hit.powi(3) / f64::from(count.div_ceil(WORD));
    (1.0 / hit, (of_searches + of_pool).sqrt())
}

pub(super) fn run(report: &mut Report, settings: &Settings, onlooker: &dyn Onlooker) -> Result<(), LabError> {
    let count = settings.choose(UNITS.into(), UNITS_QUICK.into()) as u32;
    onlooker.runs(THREADS.len());
    let mut rows = Vec::new();
    let (mut far, mut wrong, mut missed, mut held_up) = (0, 0, 0, 0);
    for threads in THREADS {
        let mut together = Together::default();
        // One after the other: their threads are to meet each other.
        for seed in settings.seeds() {
            if onlooker.wants_to_stop() {
                return Err(LabError::Stopped);
            }
            run_pool(count, threads, Noise::new(seed).of(threads), &mut together);
        }
        for (at, share) in SHARES.into_iter().enumerate() {
            let (formula, deviation) = expected(share, count);
            let steps = &together.steps[at];
            far += u64::from(!is_near(steps, formula, deviation));
            let locked = together.locked[at] as f64 / together.all[at].max(1) as f64;
            rows.push(vec![
                Cell::from(percent(share)),
                (threads as u64).into(),
                mean(steps).into(),
                formula.into(),
                (1e6 * locked).into(),
            ]);
        }
        wrong += together.wrong;
        missed += together.missed;
        held_up += together.held_up;
        onlooker.ran(&format!("threads of the host: {threads}"));
    }
    report.claim(
        far == 0,
        format!(
            "steps of the host's threads, but those that met a lock, are within 3 standard errors of equation (4) for words of 64 ({} means, {far} are not)",
            rows.len()
        ),
    );
    report.claim(
        wrong == 0,
        format!("no unit is two threads' at once, and all come back ({wrong} are not so)"),
    );
    report.claim(
        missed == 0,
        format!("a search fails once all units are taken, whoever else searches ({missed} were free)"),
    );
    report.tables.push(Table {
        title: format!(
            "threads of the host, LockMap, {count} units, words of 64: steps, but those that met a lock, mean ± standard error"
        ),
        columns: [
            "free",
            "threads",
            "of a search",
            "equation (4)",
            "locked, of a million",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    });
    report.notes.push(format!(
        "threads of the host run in the host's time: how often they meet a lock differs from run to run; {held_up} searches were held up"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_that_two_have_or_that_nobody_had_is_counted() {
        let pool = Pool::new(64);
        let (mut draws, mut alone) = (Draws(Noise::new(1), 0), Alone::default());
        let unit = pool.take(&mut draws, &mut alone);
        assert_eq!((unit, alone.wrong), (Some(0), 0));
        pool.had[1].store(true, Ordering::Relaxed);
        assert_eq!(pool.take(&mut draws, &mut alone), Some(1));
        assert_eq!(alone.wrong, 1);
        pool.give(1, &mut alone);
        pool.give(1, &mut alone);
        pool.give(2, &mut alone);
        assert_eq!((alone.wrong, pool.free()), (3, 63));
    }

    /// Half of the units are free, so each look finds one: however often two threads meet, the formula holds exactly.
    #[test]
    fn steps_that_met_a_lock_are_not_the_walks() {
        let pool = Pool::new(128);
        let mut alone = Alone {
            locked: 3,
            steps: 3,
            ..Alone::default()
        };
        let _ = pool.take(&mut Draws(Noise::new(1), 0), &mut alone);
        let (formula, deviation) = expected(500, 1 << 16);
        assert!(is_near(&[alone.steps_of_a_search(1)], formula, deviation));
        assert!(!is_near(&[alone.steps as f64], formula, deviation));
    }

    #[test]
    fn threads_take_all_and_find_what_comes_back() {
        let mut together = Together::default();
        run_pool(4096, 4, Noise::new(1), &mut together);
        assert_eq!((together.wrong, together.missed), (0, 0));
        assert!(together.steps.iter().all(|pools| pools.len() == 1));
        // Of the smallest share there are 20 units.
        assert!(together.all[0] > u64::from(SEARCHES) * 2 && together.all[3] < u64::from(SEARCHES) * 2);
    }
}
