//! Who goes next on a link that several programs share (chapter 7).
//!
//! ```text
//!  ready ─► a queue for each program ─ next: who passes whom? ─► on the link ─► done
//!                                        ▲
//!  ran, done ─► demand and slowdown ─────┘
//! ```
//!
//! The thesis gives the link to the program with the highest demand. What a program reaches alone goes with AI/T (equation 6): its arithmetic
//! intensity, for which the thesis takes time per byte, over its transfers per byte. The bytes cancel out, so what is measured here is *the time that a
//! program runs for each of its transfers*, and who has least of it goes first. Where nobody has clearly least, programs take turns.
//!
//! Nobody waits for ever: a program that has lost more than another by waiting goes first until it has recovered, and one that so many
//! transfers have passed goes next in any case. Whatever the order, the link never rests while a transfer is ready.

use std::collections::VecDeque;

/// How transfers of several programs are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Whose transfer was ready first (the thesis's FR-FCFS, what drivers do).
    Arrival,
    /// One transfer of each program in turn (RR-FR-FCFS).
    Turns,
    /// One program's before all others' (static priority), those by arrival. It can starve them.
    First(usize),
    /// Who has the highest demand, bounded by what others lose.
    Demand(Fairness),
}

/// Bounds of [`Order::Demand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fairness {
    /// How much more one program must run for each of its transfers than the next for that one to be preferred, in percent.
    pub apart: u32,
    /// How much more slowed down than the preferred program another one may be, in percent, before it goes first.
    pub behind: u32,
    /// Transfers of others that may pass one that is ready.
    pub passed_max: u32,
    /// The time over which demand and slowdown are measured halves what was before, in nanoseconds.
    pub period_ns: u64,
}

impl Fairness {
    /// What `vramd lab link` uses. The thesis names no values.
    pub const DEFAULT: Self = Self {
        apart: 25,
        behind: 10,
        passed_max: 64,
        period_ns: 5_000_000,
    };
}

/// A transfer that is ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Whose it is.
    pub program: usize,
    /// Its length in bytes.
    pub bytes: u64,
    /// The number of the transfer among all, in the order in which they were ready.
    pub number: u64,
}

#[derive(Clone, Debug, Default)]
struct Program {
    ready: VecDeque<Transfer>,
    /// Transfers of others that have passed the first of `ready`.
    passed: u32,
    /// Transfers, time of execution, time on the link and time that it waited while others had the link; each half of what was before this period.
    transfers: f64,
    ran: f64,
    moved: f64,
    waited: f64,
    is_behind: bool,
}

impl Program {
    /// Time of execution for each transfer; of one without transfers it is without end.
    fn per_transfer(&self) -> f64 {
        self.ran / self.transfers
    }

    /// How much longer it took than it would have without waiting for others.
    fn slowdown(&self) -> f64 {
        let worked = self.ran + self.moved;
        match worked > 0.0 {
            true => (worked + self.waited) / worked,
            false => 1.0,
        }
    }

    fn fade(&mut self) {
        for of in [
            &mut self.transfers,
            &mut self.ran,
            &mut self.moved,
            &mut self.waited,
        ] {
            *of /= 2.0;
        }
    }
}

/// One direction of a link.
#[derive(Clone, Debug)]
pub struct Link {
    order: Order,
    programs: Vec<Program>,
    next_number: u64,
    /// Whose transfer was last.
    last: usize,
    /// Who is preferred in this period.
    preferred: Option<usize>,
    period: u64,
}

impl Link {
    /// A link without transfers, for so many programs.
    pub fn new(order: Order, programs: usize) -> Self {
        Self {
            order,
            programs: vec![Program::default(); programs],
            next_number: 0,
            last: programs.saturating_sub(1),
            preferred: None,
            period: 0,
        }
    }

    /// A program's transfer is ready; returns its number. Transfers of one program keep their order.
    ///
    /// # Panics
    /// There is no such program.
    pub fn ready(&mut self, program: usize, bytes: u64) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.programs[program].ready.push_back(Transfer {
            program,
            bytes,
            number,
        });
        number
    }

    /// The program that goes before others now, if one does; at a time that has passed, in nanoseconds.
    pub fn preferred(&mut self, now_ns: u64) -> Option<usize> {
        match self.order {
            Order::Arrival | Order::Turns => None,
            Order::First(program) => Some(program),
            Order::Demand(fairness) => {
                let period = now_ns / fairness.period_ns.max(1);
                if period != self.period {
                    self.period = period;
                    self.preferred = self.highest_demand(fairness);
                    self.programs.iter_mut().for_each(Program::fade);
                }
                self.preferred
            }
        }
    }

    /// The transfer that goes next, if one is ready.
    pub fn next(&mut self, now_ns: u64) -> Option<Transfer> {
        let preferred = self.preferred(now_ns);
        let chosen = match self.order {
            Order::Arrival => self.earliest(),
            Order::Turns => self.in_turn(),
            Order::First(_) => self.if_ready(preferred).or_else(|| self.earliest()),
            Order::Demand(fairness) => self
                .most_passed(fairness.passed_max)
                .or_else(|| self.most_behind(fairness.behind))
                .or_else(|| self.if_ready(preferred))
                .or_else(|| self.in_turn()),
        }?;
        let first = self.programs[chosen].ready.front()?.number;
        for (number, program) in self.programs.iter_mut().enumerate() {
            if number == chosen {
                program.passed = 0;
            } else if program
                .ready
                .front()
                .is_some_and(|transfer| transfer.number < first)
            {
                program.passed += 1;
            }
        }
        self.last = chosen;
        self.programs[chosen].ready.pop_front()
    }

    /// A transfer has taken the link for so long.
    pub fn done(&mut self, transfer: Transfer, took_ns: u64) {
        for (number, program) in self.programs.iter_mut().enumerate() {
            if number == transfer.program {
                program.transfers += 1.0;
                program.moved += took_ns as f64;
            } else if !program.ready.is_empty() {
                program.waited += took_ns as f64;
            }
        }
    }

    /// A program was executed for so long.
    ///
    /// # Panics
    /// There is no such program.
    pub fn ran(&mut self, program: usize, ns: u64) {
        self.programs[program].ran += ns as f64;
    }

    fn if_ready(&self, program: Option<usize>) -> Option<usize> {
        program.filter(|program| {
            self.programs
                .get(*program)
                .is_some_and(|program| !program.ready.is_empty())
        })
    }

    fn earliest(&self) -> Option<usize> {
        let firsts = self.programs.iter().filter_map(|program| program.ready.front());
        firsts
            .min_by_key(|transfer| transfer.number)
            .map(|transfer| transfer.program)
    }

    fn in_turn(&self) -> Option<usize> {
        let count = self.programs.len();
        (1..=count)
            .map(|step| (self.last + step) % count)
            .find(|program| !self.programs[*program].ready.is_empty())
    }

    /// Who has been passed as often as is allowed.
    fn most_passed(&self, most: u32) -> Option<usize> {
        let all = self.programs.iter().enumerate();
        let waiting = all.filter(|(_, program)| !program.ready.is_empty() && program.passed >= most);
        waiting
            .max_by_key(|(_, program)| program.passed)
            .map(|(number, _)| number)
    }

    /// Who has lost too much by waiting, until it has caught up with the preferred program.
    fn most_behind(&mut self, percent: u32) -> Option<usize> {
        let preferred = self.preferred?;
        let of_preferred = self.programs[preferred].slowdown();
        let limit = of_preferred * (1.0 + f64::from(percent) / 100.0);
        let mut most = (None, 0.0);
        for (number, program) in self.programs.iter_mut().enumerate() {
            if number == preferred {
                continue;
            }
            let slowdown = program.slowdown();
            program.is_behind = slowdown > if program.is_behind { of_preferred } else { limit };
            if program.is_behind && !program.ready.is_empty() && slowdown > most.1 {
                most = (Some(number), slowdown);
            }
        }
        most.0
    }

    /// Who runs least for each of its transfers, if it is clearly less than anybody else.
    fn highest_demand(&self, fairness: Fairness) -> Option<usize> {
        let mut by_demand: Vec<(f64, usize)> = self
            .programs
            .iter()
            .enumerate()
            .filter(|(_, program)| program.transfers > 0.0)
            .map(|(number, program)| (program.per_transfer(), number))
            .collect();
        by_demand.sort_by(|one, other| one.0.total_cmp(&other.0));
        match by_demand[..] {
            [(least, program), (second, _), ..] => {
                let is_apart = second > least * (1.0 + f64::from(fairness.apart) / 100.0);
                is_apart.then_some(program)
            }
            // Nobody else has a transfer to be passed.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
