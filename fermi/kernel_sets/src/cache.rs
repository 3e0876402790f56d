//! Sets of launches that came before.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::fixpoint;
use crate::graph::Program;
use crate::kernel::{Kernel, Limits};
use crate::sets::Sets;

/// All that sets follow from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    words: Vec<(u32, u64)>,
    entry: u32,
    grid: [u32; 3],
    block: [u32; 3],
    windows: [u64; 2],
    constants: Vec<(u8, u32, Option<u32>)>,
    work: u64,
}

/// The last sets by code, grid and constants. Hashes find an entry, and all of the key decides: two launches with one hash cost
/// each other their place and nothing else.
#[derive(Debug)]
pub struct Cache {
    entries: BTreeMap<u64, (Key, Arc<Sets>)>,
    /// Hashes, the oldest first.
    order: VecDeque<u64>,
    entries_max: usize,
    /// Launches whose sets were known.
    pub hits: u64,
    /// Launches whose sets were found out.
    pub misses: u64,
}

impl Cache {
    /// An empty one that keeps so many launches; each takes some kilobytes, and its constants and code.
    pub fn new(entries_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            order: VecDeque::new(),
            entries_max,
            hits: 0,
            misses: 0,
        }
    }

    /// What [`analyse`](crate::analyse) finds out, or found out before.
    pub fn sets(
        &mut self,
        kernel: &Kernel<'_>,
        code: &mut dyn FnMut(u32) -> Option<u64>,
        limits: Limits,
    ) -> Arc<Sets> {
        let program = match Program::explore(kernel, code, limits.instructions) {
            Ok(program) => program,
            Err(reason) => return Arc::new(Sets::unknown(reason, 0)),
        };
        let key = Key {
            words: program.words().collect(),
            entry: kernel.entry,
            grid: kernel.grid,
            block: kernel.block,
            windows: kernel.windows,
            constants: program.constants(kernel),
            work: limits.work,
        };
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some((known, sets)) = self.entries.get(&hash)
            && *known == key
        {
            self.hits += 1;
            return Arc::clone(sets);
        }
        self.misses += 1;
        let sets = Arc::new(fixpoint::run(kernel, &program, limits.work));
        self.keep(hash, key, Arc::clone(&sets));
        sets
    }

    fn keep(&mut self, hash: u64, key: Key, sets: Arc<Sets>) {
        if self.entries_max == 0 {
            return;
        }
        if self.entries.insert(hash, (key, sets)).is_none() {
            self.order.push_back(hash);
        }
        while self.order.len() > self.entries_max {
            if let Some(oldest) = self.order.pop_front() {
                self.entries.remove(&oldest);
            }
        }
    }
}
