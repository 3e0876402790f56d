//! States of all blocks, joined until no edge brings anything new; then what the instructions reach.
//!
//! 1. States only grow: a block whose state has changed is executed again. At the heads of loops what still grows after a
//!    few rounds is given up.
//! 2. When nothing is left to do, every edge is taken once more; only if none brings anything new the states hold for all
//!    threads.
//! 3. What was given up too early comes back by taking all edges a few times from states that hold: each result holds too.
//! 4. Then it is known how often loops are repeated at most, and all is done once more with these numbers: what grows from
//!    one iteration to the next grows no further.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::form::{IDS, LOOPS};
use crate::graph::{Edge, Program, When};
use crate::kernel::Kernel;
use crate::overwrite;
use crate::sets::{Reason, Sets};
use crate::state::{Haste, Start, State, unknown_registers};
use crate::step::{Found, Machine};
use crate::value::{Logic, Value};

/// Rounds of a loop before what grows is given up.
const ROUNDS_MAX: u32 = 6;
/// Rounds that get back what was given up.
const NARROWINGS: usize = 3;

/// What a block leads to.
pub(crate) struct Outcome {
    /// State at each edge; `None`: no thread takes it.
    pub(crate) edges: Vec<Option<State>>,
    pub(crate) found: Found,
    /// Guard of its last instruction.
    pub(crate) guard: Logic,
}

struct Solver<'a> {
    kernel: &'a Kernel<'a>,
    program: &'a Program,
    states: Vec<Option<State>>,
    rounds: Vec<u32>,
    ceilings: [i128; LOOPS],
    left: u64,
    unknown: Vec<Rc<Value>>,
}

/// The work is used up.
struct Exhausted;

/// What the program may reach.
pub(crate) fn run(kernel: &Kernel<'_>, program: &Program, work: u64) -> Sets {
    let count = program.blocks.len();
    let mut solver = Solver {
        kernel,
        program,
        states: vec![None; count],
        rounds: vec![0; count],
        ceilings: [0; LOOPS],
        left: work,
        unknown: unknown_registers(),
    };
    match solver.sets() {
        Ok(sets) => Sets {
            work: work - solver.left,
            ..sets
        },
        Err(Exhausted) => Sets::unknown(Reason::TooMuchWork, work),
    }
}

impl Solver<'_> {
    fn sets(&mut self) -> Result<Sets, Exhausted> {
        self.solve()?;
        let known = self.states.clone();
        self.ceilings = std::array::from_fn(|number| {
            let ranges = known.iter().flatten().map(|state| state.ranges[IDS + number]);
            ranges.map(|range| range.most).max().unwrap_or(0)
        });
        // Half of the work is kept for the last round.
        let kept = self.left / 2;
        self.left -= kept;
        let is_better = self.ceilings.iter().any(|most| *most > 0) && self.solve().is_ok();
        if !is_better {
            self.states = known;
        }
        self.left += kept;
        self.collect()
    }

    /// States that hold for all threads.
    fn solve(&mut self) -> Result<(), Exhausted> {
        self.states.fill(None);
        self.rounds.fill(0);
        self.states[0] = Some(self.entry());
        let mut open = BTreeSet::from([0]);
        loop {
            while let Some(block) = open.pop_first() {
                open.extend(self.propagate(block)?);
            }
            for block in 0..self.states.len() {
                open.extend(self.propagate(block)?);
            }
            if open.is_empty() {
                break;
            }
        }
        for _ in 0..NARROWINGS {
            if !self.narrow()? {
                break;
            }
        }
        Ok(())
    }

    fn start(&self, block: usize) -> Start<'_> {
        Start {
            live: self.program.live[block].start,
            unknown: &self.unknown,
        }
    }

    /// The state of all threads at the entry.
    fn entry(&self) -> State {
        State::entry(self.kernel, self.ceilings, &self.unknown).started(&self.start(0))
    }

    /// Executes a block, and says which blocks it changes.
    fn propagate(&mut self, block: usize) -> Result<Vec<usize>, Exhausted> {
        let Some(outcome) = self.execute(block)? else {
            return Ok(Vec::new());
        };
        let mut changed = Vec::new();
        for (number, state) in outcome.edges.into_iter().enumerate() {
            let edge = self.program.blocks[block].edges[number];
            let (Some(state), Some(target)) = (state, edge.target) else {
                continue;
            };
            let state = self.arrived(state, edge);
            let start = self.start(target);
            let new = match &self.states[target] {
                None => state.started(&start),
                Some(old) => {
                    let haste = match self.program.blocks[target].head {
                        Some(_) if edge.is_back && self.rounds[target] > ROUNDS_MAX => Haste::Full,
                        _ => Haste::Steps,
                    };
                    old.joined(&state, haste, &start)
                }
            };
            if self.states[target].as_ref() != Some(&new) {
                self.rounds[target] += u32::from(edge.is_back);
                self.states[target] = Some(new);
                changed.push(target);
            }
        }
        Ok(changed)
    }

    /// The state of an edge as its target sees it.
    fn arrived(&self, state: State, edge: Edge) -> State {
        let head = edge.target.and_then(|target| self.program.blocks[target].head);
        match head {
            Some(head) if head < LOOPS && edge.is_back => state.repeated(IDS + head),
            Some(head) if head < LOOPS => state.entered(IDS + head),
            _ => state,
        }
    }

    fn execute(&mut self, block: usize) -> Result<Option<Outcome>, Exhausted> {
        let Some(state) = self.states[block].clone() else {
            return Ok(None);
        };
        let (block, live) = (&self.program.blocks[block], &self.program.live[block]);
        // A join of states costs about as much as some instructions.
        const JOIN_WORK: u64 = 8;
        let work = live.code.len() as u64 + JOIN_WORK;
        self.left = self.left.checked_sub(work).ok_or(Exhausted)?;
        let mut machine = Machine::new(self.kernel, state);
        for (pc, instruction) in &live.code {
            machine.step(*pc, *instruction);
        }
        let edges = block.edges.iter().map(|edge| {
            let guard = &machine.guard;
            match edge.when {
                When::Any => Some(machine.state.clone()),
                When::Guard(lets) if guard.known == Some(!lets) => None,
                When::Guard(true) => machine.state.clone().refined(&guard.holds),
                When::Guard(false) => machine.state.clone().refined(&guard.fails),
            }
        });
        Ok(Some(Outcome {
            edges: edges.collect(),
            found: machine.found,
            guard: machine.guard,
        }))
    }

    /// Takes every edge once, from the states as they are; whether any state is better for it.
    fn narrow(&mut self) -> Result<bool, Exhausted> {
        let mut states: Vec<Option<State>> = vec![None; self.states.len()];
        states[0] = Some(self.entry());
        for block in 0..self.states.len() {
            let Some(outcome) = self.execute(block)? else {
                continue;
            };
            for (number, state) in outcome.edges.into_iter().enumerate() {
                let edge = self.program.blocks[block].edges[number];
                let (Some(state), Some(target)) = (state, edge.target) else {
                    continue;
                };
                let state = self.arrived(state, edge);
                let start = self.start(target);
                states[target] = Some(match &states[target] {
                    None => state.started(&start),
                    Some(old) => old.joined(&state, Haste::None, &start),
                });
            }
        }
        let is_better = states != self.states;
        self.states = states;
        Ok(is_better)
    }

    fn collect(&mut self) -> Result<Sets, Exhausted> {
        let mut outcomes = Vec::new();
        for block in 0..self.states.len() {
            outcomes.push(self.execute(block)?);
        }
        let found = || outcomes.iter().flatten().map(|outcome| &outcome.found);
        let mut accesses: Vec<_> = found().flat_map(|found| found.accesses.clone()).collect();
        accesses.sort_by_key(|access| (access.pc, access.bytes.start, access.bytes.end));
        accesses.dedup();
        Ok(Sets {
            accesses,
            overwrites: overwrite::ranges(self.kernel, self.program, &outcomes),
            uses_local: found().any(|found| found.uses_local),
            reason: None,
            work: 0,
        })
    }
}
