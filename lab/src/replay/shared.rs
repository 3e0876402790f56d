//! Several programs on one GPU, one memory and one link: their traces replayed at once.
//!
//! ```text
//!  a quantum's accesses ─ all there? ─► the GPU, one quantum after the other
//!        └─ a fault's time ─► transfers, in the order of the links ─ all done ─► the GPU
//! ```
//!
//! A program begins anew until each has ended once: what it is slowed down by is there all the time. Who ends writes back what it changed and leaves.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use adaptive::{Choice, Gone, Link, Manager, Order, Outcome, Place, Rules, Setup, Transfer};

use super::{
    ACCESS_BYTES, BYTES_PER_NS, FAULT_NS, LARGE, TRANSFER_NS, Transfers, Unit, by_unit, runs, units,
};
use crate::traces::{Touch, Trace};

const UNIT: Unit = Unit::Block;
/// The link's direction to the GPU; the other one is behind it.
const IN: usize = 0;

/// How programs share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) order: Order,
    /// Programs execute at once, each as fast as alone: the thesis's GPU has room for several. One of a Fermi's contexts executes at a time.
    pub(crate) is_at_once: bool,
    /// Nothing of the program that the link prefers is evicted while others have something in memory.
    pub(crate) is_sparing: bool,
}

/// What became of one program.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Share {
    /// Time of a whole run, in the mean.
    pub(crate) run_ns: f64,
    /// How often it ended.
    pub(crate) runs: u64,
    /// Transfers that it waited for, in all runs.
    pub(crate) transfers: u64,
    pub(crate) bytes: u64,
    /// Bytes that were evicted while it had not ended.
    pub(crate) evicted: u64,
    /// Time of execution, in all runs.
    pub(crate) ran_ns: u64,
}

/// What became of all.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Together {
    pub(crate) shares: Vec<Share>,
    /// Times at which a link rested though a transfer was ready.
    pub(crate) rests: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum What {
    /// A program's faults have been taken.
    Faulted(usize),
    /// The transfer of a direction is over.
    Moved(usize),
    /// The quantum on the GPU is over.
    Executed(usize),
}

struct Program {
    /// Its allocations among all.
    allocations: Range<usize>,
    quanta: Vec<(u64, Vec<Touch>)>,
    ns_per_step: f64,
    at: usize,
    /// Units that come and go when its fault has been taken.
    wanted: Transfers,
    /// Transfers that it waits for.
    waits_for: usize,
    since: u64,
    runs_ns: u64,
    share: Share,
}

impl Program {
    fn new(trace: &Trace, first: usize) -> Self {
        Self {
            allocations: first..first + trace.allocations.len(),
            quanta: trace
                .quanta()
                .map(|quantum| (quantum.steps, by_unit(quantum, UNIT)))
                .collect(),
            ns_per_step: trace.gpu_ns as f64 / trace.steps().max(1) as f64,
            at: 0,
            wanted: Transfers::default(),
            waits_for: 0,
            since: 0,
            runs_ns: 0,
            share: Share::default(),
        }
    }
}

/// A direction: its order, what is on it, and how many transfers are ready by the replay's own count.
struct Direction {
    link: Link,
    on_it: Option<(Transfer, u64)>,
    ready: u64,
}

struct Replay {
    programs: Vec<Program>,
    manager: Manager,
    links: [Direction; 2],
    /// Programs whose quantum can be executed, in turn.
    ready: VecDeque<usize>,
    executing: usize,
    executing_max: usize,
    events: BinaryHeap<Reverse<(u64, What)>>,
    is_sparing: bool,
    now: u64,
    rests: u64,
}

/// Bytes of each run of neighbours.
fn lengths(units: &mut [u32]) -> Vec<u64> {
    units.sort_unstable();
    let lengths = runs(units).map(|run| u64::from(run.end - run.start) * UNIT.bytes());
    lengths.collect()
}

/// Replays traces at once on a memory of which all their units are so many percent.
pub(crate) fn together(traces: &[&Trace], way: Way, percent: u64) -> Together {
    let mut first = 0;
    let programs = traces.iter().map(|trace| {
        let program = Program::new(trace, first);
        first = program.allocations.end;
        program
    });
    let programs: Vec<_> = programs.collect();
    let allocations: Vec<u32> = traces.iter().flat_map(|trace| units(trace, UNIT)).collect();
    let all: u64 = allocations.iter().map(|units| u64::from(*units)).sum();
    let direction = || Direction {
        link: Link::new(way.order, traces.len()),
        on_it: None,
        ready: 0,
    };
    let mut replay = Replay {
        manager: Manager::new(Setup {
            capacity: (all * 100 / percent.max(1)) as u32,
            units_of_large: (LARGE / UNIT.bytes()) as u32,
            allocations,
            choice: Choice::Fixed(Rules::DRIVER),
            reserve_percent: 0,
            seed: 1,
        }),
        programs,
        links: [direction(), direction()],
        ready: VecDeque::new(),
        executing: 0,
        executing_max: if way.is_at_once { traces.len() } else { 1 },
        events: BinaryHeap::new(),
        is_sparing: way.is_sparing,
        now: 0,
        rests: 0,
    };
    replay.run();
    let shares = replay.programs.iter().map(|program| Share {
        run_ns: program.runs_ns as f64 / program.share.runs.max(1) as f64,
        ..program.share
    });
    Together {
        shares: shares.collect(),
        rests: replay.rests,
    }
}

impl Replay {
    fn run(&mut self) {
        (0..self.programs.len()).for_each(|program| self.begin(program));
        while self.programs.iter().any(|program| program.share.runs == 0) {
            self.go_on();
            let Some(Reverse((now, what))) = self.events.pop() else {
                return;
            };
            self.now = now;
            match what {
                What::Faulted(program) => self.faulted(program),
                What::Moved(direction) => self.moved(direction),
                What::Executed(program) => self.executed(program),
            }
        }
    }

    /// The GPU and both directions get what is next.
    fn go_on(&mut self) {
        while self.executing < self.executing_max {
            let Some(program) = self.ready.pop_front() else {
                break;
            };
            let of = &self.programs[program];
            let (steps, _) = of.quanta[of.at];
            let remote = (of.wanted.remote * ACCESS_BYTES) as f64 / BYTES_PER_NS;
            let ns = (steps as f64 * of.ns_per_step + remote) as u64;
            self.executing += 1;
            self.events
                .push(Reverse((self.now + ns, What::Executed(program))));
            self.programs[program].share.ran_ns += ns;
            self.links.iter_mut().for_each(|to| to.link.ran(program, ns));
        }
        for (number, direction) in self.links.iter_mut().enumerate() {
            if direction.on_it.is_some() {
                continue;
            }
            let Some(transfer) = direction.link.next(self.now) else {
                self.rests += u64::from(direction.ready > 0);
                continue;
            };
            direction.ready -= 1;
            let ns = (TRANSFER_NS + transfer.bytes as f64 / BYTES_PER_NS) as u64;
            direction.on_it = Some((transfer, ns));
            self.events.push(Reverse((self.now + ns, What::Moved(number))));
        }
    }

    /// A program begins its next quantum.
    fn begin(&mut self, program: usize) {
        if self.is_sparing {
            let preferred = self.links[IN].link.preferred(self.now);
            let spared = preferred.map_or(0..0, |program| self.programs[program].allocations.clone());
            self.manager.spare(spared);
        }
        let of = &self.programs[program];
        let first = of.allocations.start;
        let mut wanted = Transfers::default();
        let mut evicted = Vec::new();
        let (_, touches) = &of.quanta[of.at];
        for touch in touches {
            let place = Place {
                allocation: first + touch.allocation,
                unit: touch.page,
            };
            match self.manager.access(place, touch.loads, touch.stores) {
                Outcome::Local => {}
                Outcome::Remote => wanted.remote += u64::from(touch.loads + touch.stores),
                Outcome::Comes { units, gone, remote } => {
                    wanted.remote += u64::from(remote);
                    wanted.came.entry(place.allocation).or_default().extend(units);
                    evicted.extend(gone);
                }
            }
        }
        for Gone { place, is_dirty } in evicted {
            let owner = self
                .programs
                .iter_mut()
                .find(|of| of.allocations.contains(&place.allocation));
            if let Some(owner) = owner {
                owner.share.evicted += UNIT.bytes();
            }
            if is_dirty {
                wanted.went.entry(place.allocation).or_default().push(place.unit);
            }
        }
        let is_there = wanted.came.is_empty();
        self.programs[program].wanted = wanted;
        if is_there {
            self.ready.push_back(program);
        } else {
            self.events
                .push(Reverse((self.now + FAULT_NS as u64, What::Faulted(program))));
        }
    }

    /// All that a program waits for is ready.
    fn faulted(&mut self, program: usize) {
        let wanted = &mut self.programs[program].wanted;
        let moves = [&mut wanted.came, &mut wanted.went].map(std::mem::take);
        for (direction, mut units) in self.links.iter_mut().zip(moves) {
            for bytes in units.values_mut().flat_map(|units| lengths(units)) {
                direction.link.ready(program, bytes);
                direction.ready += 1;
                self.programs[program].waits_for += 1;
                self.programs[program].share.bytes += bytes;
                self.programs[program].share.transfers += 1;
            }
        }
    }

    fn moved(&mut self, direction: usize) {
        let direction = &mut self.links[direction];
        let Some((transfer, ns)) = direction.on_it.take() else {
            return;
        };
        direction.link.done(transfer, ns);
        let program = &mut self.programs[transfer.program];
        program.waits_for -= 1;
        if program.waits_for > 0 {
            return;
        }
        match program.at < program.quanta.len() {
            true => self.ready.push_back(transfer.program),
            false => self.ended(transfer.program),
        }
    }

    fn executed(&mut self, program: usize) {
        self.executing -= 1;
        let of = &mut self.programs[program];
        of.at += 1;
        if of.at < of.quanta.len() {
            return self.begin(program);
        }
        // What it changed is written back.
        let mut wanted = Transfers::default();
        for Gone { place, is_dirty } in self.manager.leave(of.allocations.clone()) {
            if is_dirty {
                wanted.went.entry(place.allocation).or_default().push(place.unit);
            }
        }
        of.wanted = wanted;
        self.faulted(program);
        if self.programs[program].waits_for == 0 {
            self.ended(program);
        }
    }

    fn ended(&mut self, program: usize) {
        let of = &mut self.programs[program];
        of.share.runs += 1;
        of.runs_ns += self.now - of.since;
        (of.at, of.since) = (0, self.now);
        self.begin(program);
    }
}

#[cfg(test)]
mod tests {
    use adaptive::Fairness;

    use super::*;
    use crate::replay::replay;
    use crate::replay::tests::scans;

    const ORDERS: [Order; 4] = [
        Order::Arrival,
        Order::Turns,
        Order::First(0),
        Order::Demand(Fairness::DEFAULT),
    ];

    fn way(order: Order) -> Way {
        Way {
            order,
            is_at_once: false,
            is_sparing: false,
        }
    }

    #[test]
    fn one_program_alone_takes_as_long_as_its_own_replay() {
        let trace = scans(64, 3);
        let alone = replay(&trace, UNIT, Choice::Fixed(Rules::DRIVER), 100, 1);
        for order in ORDERS {
            let together = together(&[&trace], way(order), 100);
            let share = together.shares[0];
            assert_eq!(
                (share.runs, share.bytes, share.evicted, together.rests),
                (1, alone.bytes_in, 0, 0)
            );
            assert!(
                (share.run_ns / alone.gpu_ns - 1.0).abs() < 1e-3,
                "{share:?} {alone:?}"
            );
        }
    }

    #[test]
    fn two_of_a_kind_share_alike_and_no_link_rests() {
        let trace = scans(64, 3);
        for order in [Order::Arrival, Order::Turns, Order::Demand(Fairness::DEFAULT)] {
            let together = together(&[&trace, &trace], way(order), 100);
            let [one, other] = together.shares[..] else {
                panic!("two programs")
            };
            assert!(
                (one.run_ns / other.run_ns - 1.0).abs() < 0.15,
                "{order:?} {one:?} {other:?}"
            );
            assert_eq!(together.rests, 0);
        }
    }

    #[test]
    fn memory_of_the_preferred_program_stays_while_the_other_has_some() {
        let (small, large) = (scans(256, 3), scans(512, 2));
        let with = |is_sparing| {
            let way = Way {
                is_sparing,
                ..way(Order::First(0))
            };
            together(&[&small, &large], way, 250).shares[0].evicted
        };
        assert!(with(false) > 0);
        assert_eq!(with(true), 0);
    }
}
