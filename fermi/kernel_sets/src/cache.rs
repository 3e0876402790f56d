//! Sets of launches that came before, and programs.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::fixpoint;
use crate::graph::{Program, Word};
use crate::kernel::{Kernel, Limits};
use crate::sets::{Reason, Sets};

/// Most programs that are kept. A launch is compared with each of them, up to the first word that differs.
const PROGRAMS_MAX: usize = 32;

/// A program, and all that its code was found by.
#[derive(Debug)]
struct Known {
    number: u64,
    entry: u32,
    words: Vec<(u32, u64)>,
    /// Constants that say where branches lead.
    targets: Vec<(Word, Option<u32>)>,
    /// Constants that its sets may follow from: words, and whole banks.
    constants: Vec<Word>,
    indexed: Vec<u8>,
    program: Program,
}

/// All that sets follow from.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    program: u64,
    grid: [u32; 3],
    block: [u32; 3],
    windows: [u64; 2],
    constants: Vec<Option<u32>>,
    banks: Vec<Vec<Option<u32>>>,
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
    /// The last one that was asked for at the front.
    programs: VecDeque<Known>,
    programs_made: u64,
    /// Launches whose sets were known.
    pub hits: u64,
    /// Launches whose sets were found out.
    pub misses: u64,
}

impl Known {
    fn new(number: u64, kernel: &Kernel<'_>, program: Program) -> Self {
        let targets = program.targets().into_iter();
        Self {
            number,
            entry: kernel.entry,
            words: program.words(),
            targets: targets.map(|at| (at, constant(kernel, at))).collect(),
            constants: program.constants().into_iter().collect(),
            indexed: program.indexed().into_iter().collect(),
            program,
        }
    }

    /// Whether exploring would lead to this program.
    fn is_of(&self, kernel: &Kernel<'_>, code: &mut dyn FnMut(u32) -> Option<u64>, limits: Limits) -> bool {
        self.entry == kernel.entry
            && self.program.size <= limits.instructions
            && self.words.iter().all(|(at, word)| code(*at) == Some(*word))
            && self
                .targets
                .iter()
                .all(|(at, target)| constant(kernel, *at) == *target)
    }

    fn key(&self, kernel: &Kernel<'_>, limits: Limits) -> Key {
        let bank = |bank: &u8| {
            kernel
                .banks
                .get(usize::from(*bank))
                .map_or(&[][..], |bank| bank.words)
        };
        Key {
            program: self.number,
            grid: kernel.grid,
            block: kernel.block,
            windows: kernel.windows,
            constants: self.constants.iter().map(|at| constant(kernel, *at)).collect(),
            banks: self.indexed.iter().map(|number| bank(number).to_vec()).collect(),
            work: limits.work,
        }
    }
}

fn constant(kernel: &Kernel<'_>, (bank, offset): Word) -> Option<u32> {
    kernel.constant(bank, offset)
}

impl Cache {
    /// An empty one that keeps so many launches; each takes some kilobytes and its constants. It keeps as many programs, but 32 at most.
    pub fn new(entries_max: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            order: VecDeque::new(),
            entries_max,
            programs: VecDeque::new(),
            programs_made: 0,
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
        let known = match self.known(kernel, code, limits) {
            Ok(known) => known,
            Err(reason) => return Arc::new(Sets::unknown(reason, 0)),
        };
        let key = known.key(kernel, limits);
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish();
        if let Some((same, sets)) = self.entries.get(&hash)
            && *same == key
        {
            self.hits += 1;
            let sets = Arc::clone(sets);
            self.keep_program(known);
            return sets;
        }
        self.misses += 1;
        let sets = Arc::new(fixpoint::run(kernel, &known.program, limits.work));
        self.keep_program(known);
        self.keep(hash, key, Arc::clone(&sets));
        sets
    }

    /// The program of a launch: taken out of those that are kept, or new.
    fn known(
        &mut self,
        kernel: &Kernel<'_>,
        code: &mut dyn FnMut(u32) -> Option<u64>,
        limits: Limits,
    ) -> Result<Known, Reason> {
        let place = self
            .programs
            .iter()
            .position(|known| known.is_of(kernel, code, limits));
        if let Some(known) = place.and_then(|place| self.programs.remove(place)) {
            return Ok(known);
        }
        let program = Program::explore(kernel, code, limits.instructions)?;
        self.programs_made += 1;
        Ok(Known::new(self.programs_made, kernel, program))
    }

    fn keep_program(&mut self, known: Known) {
        self.programs.push_front(known);
        self.programs.truncate(PROGRAMS_MAX.min(self.entries_max));
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
