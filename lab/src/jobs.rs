//! Runs that do not depend on each other, on all processors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::host::LabError;
use crate::traces::Trace;

/// Who waits for an experiment.
pub trait Onlooker: Sync {
    /// So many runs are to come.
    fn runs(&self, count: usize);
    /// One of them has ended.
    fn ran(&self, what: &str);
    /// A program's trace was recorded.
    fn recorded(&self, _: &Trace) {}
    /// Whether the operator does not want to wait any longer.
    fn wants_to_stop(&self) -> bool;
}

/// Does all jobs; results are in their order. The first error ends the others.
pub(crate) fn all<J: Sync, R: Send>(
    jobs: &[J],
    onlooker: &dyn Onlooker,
    name: impl Fn(&J) -> String + Sync,
    run: impl Fn(&J, &dyn Onlooker) -> Result<R, LabError> + Sync,
) -> Result<Vec<R>, LabError> {
    onlooker.runs(jobs.len());
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(jobs.len());
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let results: Mutex<Vec<Option<Result<R, LabError>>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !has_failed.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    let result = guarded(|| run(job, onlooker));
                    has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    onlooker.ran(&name(job));
                    if let Ok(mut results) = results.lock() {
                        results[at] = Some(result);
                    }
                }
            });
        }
    });
    let results = results
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    // Jobs are taken in order, so what was not begun comes after an error.
    results.into_iter().flatten().collect()
}

/// Host and core assert what they owe each other: here that is an error.
fn guarded<R>(run: impl FnOnce() -> Result<R, LabError>) -> Result<R, LabError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        let what = what.unwrap_or_else(|| "a panic without a message".to_owned());
        Err(LabError::Fault { what })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Waits for as long as it takes.
    pub(crate) struct Patient;

    impl Onlooker for Patient {
        fn runs(&self, _: usize) {}
        fn ran(&self, _: &str) {}
        fn wants_to_stop(&self) -> bool {
            false
        }
    }

    #[test]
    fn results_are_in_the_order_of_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let squares = all(&jobs, &Patient, u64::to_string, |job, _| Ok(job * job));
        assert_eq!(
            squares.unwrap(),
            jobs.iter().map(|job| job * job).collect::<Vec<_>>()
        );
    }

    #[test]
    fn panic_of_a_run_is_an_error_with_its_message() {
        let failed = all(
            &[1, 2],
            &Patient,
            |_| String::new(),
            |job, _| match job {
                1 => panic!("an answer came twice"),
                _ => Ok(()),
            },
        );
        let said = failed.unwrap_err().to_string();
        assert_eq!(said, "a fault of the simulated host: an answer came twice");
    }
}
