//! The processors that threads run on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors that this process may use, the first few of them.
pub(crate) fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Keeps the calling thread, and threads that it starts, on these processors: on a busy machine the scheduler would
/// put two threads on one core in some runs and not in others.
pub(crate) fn pin(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).expect("the processors are this process's");
}
