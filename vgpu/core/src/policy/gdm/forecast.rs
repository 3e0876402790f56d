//! What loading the sets of work takes and can bring, by a replay of the last doorbells.
//!
//! The replay loads as [`load`](super::load) does: chunks of the set in, as far as there is room beside those of the set itself, for chunks
//! that were used least recently. The first time it begins with what is in VRAM now. The second time shows what stays: nothing is loaded
//! where all sets fit together, nearly all of it where they throw each other out.

use std::collections::{BTreeMap, BTreeSet};

use crate::memory::ChunkNo;

/// What bringing a chunk to VRAM takes, with another one going for it: copies both ways (0.24 ms a MiB each, `experiments.md`), and its part
/// of two suspensions.
const COPIED_NS_PER_KIB: u64 = 500;
const STOPPED_NS: u64 = 150_000;
/// Chunks that a replay looks at, about.
const LOOKS_MAX: usize = 1 << 16;

/// A VM's memory in VRAM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct InVram {
    pub(super) chunk_bytes: u64,
    /// Chunks, the one that was used least recently first.
    pub(super) chunks: Vec<ChunkNo>,
}

/// A doorbell that is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rung<'a> {
    /// Chunks that its work uses, ascending.
    pub(super) chunks: &'a [ChunkNo],
    /// What its work takes directly; 0 if that is not known.
    pub(super) takes_ns: u64,
    /// What it takes to find out what it uses.
    pub(super) look_ns: u64,
}

/// Nanoseconds for the last doorbells together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Forecast {
    /// What loading takes the first time, and each time after it.
    pub(super) first_ns: u64,
    pub(super) again_ns: u64,
    /// What finding out what is to be loaded takes, each time.
    pub(super) looks_ns: u64,
    /// What the work takes directly; and of that what lacks memory in VRAM now: no loading brings more.
    pub(super) takes_ns: u64,
    pub(super) gains_ns: u64,
}

impl InVram {
    /// `recent`: the last doorbells.
    pub(super) fn forecast(&self, recent: &[Rung<'_>]) -> Forecast {
        let looks = |works: &[Rung<'_>]| {
            let of_sets: usize = works.iter().map(|work| work.chunks.len()).sum();
            2 * (of_sets + works.len() * self.chunks.len())
        };
        // The latest ones, if all are too many.
        let skipped = (0..recent.len()).find(|&skipped| looks(&recent[skipped..]) <= LOOKS_MAX);
        let works = &recent[skipped.unwrap_or(recent.len().saturating_sub(1))..];
        let now: BTreeSet<ChunkNo> = self.chunks.iter().copied().collect();
        let lacks = |chunks: &[ChunkNo]| chunks.iter().any(|chunk| !now.contains(chunk));
        let mut replay = Replay::new(&self.chunks);
        let mut pass = || works.iter().map(|work| replay.load(work.chunks)).sum::<u64>();
        let cost = self.chunk_bytes / 1024 * COPIED_NS_PER_KIB + STOPPED_NS;
        Forecast {
            first_ns: pass() * cost,
            again_ns: pass() * cost,
            looks_ns: works.iter().map(|work| work.look_ns).sum(),
            takes_ns: works.iter().map(|work| work.takes_ns).sum(),
            gains_ns: works
                .iter()
                .filter(|work| lacks(work.chunks))
                .map(|work| work.takes_ns)
                .sum(),
        }
    }
}

/// Memory of so many chunks, and when each was used.
struct Replay {
    capacity: usize,
    used: BTreeMap<ChunkNo, usize>,
    time: usize,
}

impl Replay {
    fn new(chunks: &[ChunkNo]) -> Self {
        Self {
            capacity: chunks.len(),
            used: chunks.iter().copied().zip(0..).collect(),
            time: chunks.len(),
        }
    }

    /// Loads a set as far as it fits. Number of chunks that are loaded.
    fn load(&mut self, set: &[ChunkNo]) -> u64 {
        self.time += 1;
        let mut missing = Vec::new();
        for chunk in set {
            match self.used.get_mut(chunk) {
                Some(used) => *used = self.time,
                None => missing.push(*chunk),
            }
        }
        if missing.is_empty() {
            return 0;
        }
        let others = self.used.iter().filter(|(_, used)| **used != self.time);
        let mut others: Vec<(usize, ChunkNo)> = others.map(|(chunk, used)| (*used, *chunk)).collect();
        others.sort_unstable();
        let room = self.capacity - self.used.len();
        missing.truncate(room + others.len());
        for (_, chunk) in others.into_iter().take(missing.len().saturating_sub(room)) {
            self.used.remove(&chunk);
        }
        let loaded = missing.len() as u64;
        self.used
            .extend(missing.into_iter().map(|chunk| (chunk, self.time)));
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: std::ops::Range<u32>) -> Vec<ChunkNo> {
        numbers.map(ChunkNo).collect()
    }

    fn rung(chunks: &[ChunkNo], takes_ns: u64) -> Rung<'_> {
        Rung {
            chunks,
            takes_ns,
            look_ns: 3,
        }
    }

    /// Chunks that are loaded the first time and again, with `0..in_vram` in VRAM.
    fn loaded<const N: usize>(in_vram: u32, sets: [(u32, u32); N]) -> (u64, u64) {
        let sets: Vec<_> = sets.iter().map(|&(first, end)| numbers(first..end)).collect();
        let recent: Vec<Rung<'_>> = sets.iter().map(|set| rung(set, 1)).collect();
        let memory = InVram {
            chunk_bytes: 0,
            chunks: numbers(0..in_vram),
        };
        let forecast = memory.forecast(&recent);
        (forecast.first_ns / STOPPED_NS, forecast.again_ns / STOPPED_NS)
    }

    #[test]
    fn sets_that_fit_together_are_loaded_once() {
        assert_eq!(loaded(8, [(4, 8), (8, 12)]), (4, 0));
        assert_eq!(loaded(8, [(0, 4), (20, 24), (0, 4), (20, 24)]), (4, 0));
    }

    #[test]
    fn sets_that_throw_each_other_out_are_loaded_each_time() {
        assert_eq!(loaded(4, [(0, 4), (4, 8)]), (4, 8));
        // One after the other through three: least recently used is what comes next.
        assert_eq!(loaded(8, [(0, 4), (4, 8), (8, 12)]), (4, 12));
    }

    #[test]
    fn set_that_does_not_fit_is_loaded_as_far_as_it_does() {
        // Its own part stays, and nothing else is there that could go.
        assert_eq!(loaded(4, [(0, 12)]), (0, 0));
        assert_eq!(loaded(4, [(2, 12)]), (2, 0));
        assert_eq!(loaded(4, [(0, 12), (12, 20)]), (4, 8));
    }

    #[test]
    fn only_work_that_lacks_memory_gains_and_the_latest_is_looked_at_if_there_is_much() {
        let memory = InVram {
            chunk_bytes: 1 << 20,
            chunks: numbers(0..4),
        };
        let [here, out] = [numbers(0..4), numbers(3..6)];
        let forecast = memory.forecast(&[rung(&here, 70), rung(&out, 20), rung(&out, 0)]);
        assert_eq!(
            (forecast.takes_ns, forecast.gains_ns, forecast.looks_ns),
            (90, 20, 9)
        );
        assert_eq!(forecast.first_ns, 2 * (1024 * COPIED_NS_PER_KIB + STOPPED_NS));
        let large = numbers(0..LOOKS_MAX as u32);
        let forecast = memory.forecast(&[rung(&here, 5), rung(&large, 7), rung(&here, 9)]);
        assert_eq!(forecast.takes_ns, 9);
        assert_eq!(memory.forecast(&[]), Forecast::default());
    }
}
