//! The state of a thread at a place of the code, joined over all ways there.
//!
//! Results have numbers that mean something within one block only. At the start of a block each register's word gets a
//! number there, equal for words that were equal on all ways, and halves of pairs stay halves.

use std::rc::Rc;

use crate::form::{self, FAR, Form, IDS, Interval, LOOPS, Ranges, SYMBOLS};
use crate::kernel::Kernel;
use crate::live::Mask;
use crate::value::{Carry, Condition, Constraint, Fact, Logic, Part, Truth, Upper, Value};

/// Registers of a thread; the next one is zero.
pub(crate) const REGISTERS: usize = 63;
/// Predicates of a thread; the next one is true.
const PREDICATES: usize = 7;
/// Constraints of a way that are kept.
const CONSTRAINTS_MAX: usize = 8;
/// Iterations of a loop that are tried, one after the other, until nothing more comes: from the last on there is no bound.
const ITERATIONS: [i128; 4] = [1 << 16, 1 << 24, 1 << 31, FAR];

/// What a word holds as a number without sign.
const WORD: Interval = Interval::new(0, (1 << 32) - 1);

/// How ready a join is to give up what grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Haste {
    /// Not at all: nothing says that joins come to an end.
    None,
    /// Iterations go up in steps.
    Steps,
    /// All that grows is given up.
    Full,
}

/// A word and the product of two others that it is the lower half of.
pub(crate) type Product = (Part, Part, Part);

/// The start of a block: registers that matter there, and what stands for the others.
pub(crate) struct Start<'a> {
    pub(crate) live: Mask,
    pub(crate) unknown: &'a [Rc<Value>],
}

impl Start<'_> {
    fn is_live(&self, register: usize) -> bool {
        self.live >> register & 1 != 0
    }
}

/// Registers of which nothing is known, each a word of its own.
pub(crate) fn unknown_registers() -> Vec<Rc<Value>> {
    let register = |number| Rc::new(Value::new(Form::WORD, Part::Result(number)));
    (0..REGISTERS as u32).map(register).collect()
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) registers: Vec<Rc<Value>>,
    pub(crate) predicates: Vec<Rc<Logic>>,
    /// How often each predicate has been written in this block.
    pub(crate) writes: [u32; PREDICATES],
    pub(crate) carry: Option<Carry>,
    pub(crate) products: Vec<Product>,
    pub(crate) ranges: Ranges,
    /// What holds for threads that come here.
    pub(crate) path: Vec<Constraint>,
    pub(crate) next_result: u32,
    /// Iterations of each loop that are tried first.
    pub(crate) ceilings: [i128; LOOPS],
}

impl State {
    /// A thread at the entry: nothing is known but its numbers.
    pub(crate) fn entry(kernel: &Kernel<'_>, ceilings: [i128; LOOPS], unknown: &[Rc<Value>]) -> Self {
        let mut ranges = [Interval::new(0, 0); SYMBOLS];
        let counts = kernel.block.iter().chain(&kernel.grid);
        for (range, count) in ranges.iter_mut().zip(counts) {
            range.most = i128::from(count.saturating_sub(1));
        }
        Self {
            registers: unknown.to_vec(),
            predicates: vec![Rc::default(); PREDICATES],
            writes: [0; PREDICATES],
            carry: None,
            products: Vec::new(),
            ranges,
            path: Vec::new(),
            next_result: REGISTERS as u32,
            ceilings,
        }
    }

    /// A number for a new result.
    pub(crate) fn fresh(&mut self) -> Part {
        self.next_result += 1;
        Part::Result(self.next_result - 1)
    }

    /// A predicate with its negation.
    pub(crate) fn logic(&self, predicate: u8, is_negated: bool) -> Logic {
        let logic = match self.predicates.get(usize::from(predicate)) {
            Some(logic) => (**logic).clone(),
            None => Logic::known(true),
        };
        if is_negated { logic.negated() } else { logic }
    }

    /// A guard that need not let through, as it is now.
    pub(crate) fn condition(&self, predicate: u8, is_negated: bool) -> Option<Condition> {
        let writes = *self.writes.get(usize::from(predicate))?;
        Some(Condition {
            predicate,
            is_negated,
            writes,
        })
    }

    /// Of threads for which the facts hold. `None` if there is none.
    pub(crate) fn refined(mut self, truth: &Truth) -> Option<Self> {
        truth.facts.iter().try_for_each(|fact| self.refine(fact))?;
        Some(self)
    }

    fn refine(&mut self, fact: &Fact) -> Option<()> {
        let refined = fact.form.clamped(fact.bounds);
        if refined.total(&self.ranges).is_empty() {
            return None;
        }
        for value in &mut self.registers {
            if Some(value.part) == fact.part {
                let mut changed = (**value).clone();
                let known = changed.form.range;
                let is_same = [known, refined.range].iter().all(|range| range.is_within(WORD));
                changed.form = Form {
                    root: changed.form.root,
                    ..if is_same { refined.clamped(known) } else { refined }
                };
                *value = Rc::new(changed);
            }
        }
        let constraint = fact.constraint();
        for symbol in IDS..SYMBOLS {
            self.bound_iterations(symbol, &constraint)?;
        }
        self.constrain(constraint);
        Some(())
    }

    /// Bounds the iterations of a loop by a constraint. `None` if none is left.
    fn bound_iterations(&mut self, symbol: usize, constraint: &Constraint) -> Option<()> {
        let factor = i128::from(constraint.factors[symbol]);
        if factor == 0 {
            return Some(());
        }
        let others = self.ranges.iter().zip(constraint.factors).enumerate();
        let others = others
            .filter(|(other, (_, factor))| *other != symbol && *factor != 0)
            .fold(Interval::new(0, 0), |sum, (_, (range, factor))| {
                sum.plus(range.times(factor.into()))
            });
        let Interval { least, most } = constraint.bounds.plus(Interval::new(-others.most, -others.least));
        let (least, most) = if factor > 0 {
            (least, most)
        } else {
            (-most, -least)
        };
        let size = factor.abs();
        let bounds = Interval::new(-(-least).div_euclid(size), most.div_euclid(size));
        self.ranges[symbol] = self.ranges[symbol].meet(bounds);
        (!self.ranges[symbol].is_empty()).then_some(())
    }

    fn constrain(&mut self, constraint: Constraint) {
        if constraint.factors == [0; SYMBOLS] {
            return;
        }
        let known = self
            .path
            .iter_mut()
            .find(|known| known.factors == constraint.factors);
        if let Some(known) = known {
            known.bounds = known.bounds.meet(constraint.bounds);
        } else if self.path.len() < CONSTRAINTS_MAX {
            self.path.push(constraint);
        }
    }

    /// Changes every form that has a symbol in it; nobody knows any more what held under guards.
    fn change(&mut self, symbol: usize, change: impl Fn(&Form) -> Form) {
        let has = |form: &Form| form.factors[symbol] != 0;
        for value in &mut self.registers {
            let is_touched = has(&value.form) || value.upper.is_some_and(|upper| has(&upper.pair));
            if !is_touched && value.guarded.is_none() {
                continue;
            }
            let mut changed = (**value).clone();
            changed.guarded = None;
            changed.form = change(&changed.form);
            if let Some(upper) = &mut changed.upper {
                upper.pair = change(&upper.pair);
            }
            *value = Rc::new(changed);
        }
        for logic in &mut self.predicates {
            let mut facts = logic.holds.facts.iter().chain(&logic.fails.facts);
            if !facts.any(|fact| has(&fact.form)) {
                continue;
            }
            let mut changed = (**logic).clone();
            for fact in changed.holds.facts.iter_mut().chain(&mut changed.fails.facts) {
                fact.form = change(&fact.form);
            }
            *logic = Rc::new(changed);
        }
        self.carry = None;
    }

    /// Comes to the head of a loop from outside of it: its iterations are counted anew.
    pub(crate) fn entered(mut self, symbol: usize) -> Self {
        let ranges = self.ranges;
        self.change(symbol, |form| form.without(symbol, &ranges));
        self.path.retain(|constraint| constraint.factors[symbol] == 0);
        self.ranges[symbol] = Interval::new(0, 0);
        self
    }

    /// Comes to the head of a loop again.
    pub(crate) fn repeated(mut self, symbol: usize) -> Self {
        self.change(symbol, |form| form.advanced(symbol));
        for constraint in &mut self.path {
            let step = i128::from(constraint.factors[symbol]);
            constraint.bounds = constraint.bounds.plus(Interval::new(step, step));
        }
        self.ranges[symbol] = self.ranges[symbol].plus(Interval::new(1, 1));
        self
    }

    /// A state for the threads of both, as a block starts with it.
    pub(crate) fn joined(&self, other: &Self, haste: Haste, start: &Start<'_>) -> Self {
        let parts = Parts::of(self, other, start);
        let is_hasty = haste == Haste::Full;
        let (ranges, leaps) = self.joined_ranges(other, haste);
        let join = Join {
            of_a: &self.ranges,
            of_b: &other.ranges,
            is_hasty,
            leaps,
        };
        let registers = 0..REGISTERS;
        let registers = registers.map(|number| match start.is_live(number) {
            true => self.joined_value(other, number, &parts, &join),
            false => Rc::clone(&start.unknown[number]),
        });
        let predicates = self.predicates.iter().zip(&other.predicates);
        let predicates = predicates.map(|(a, b)| {
            let logic = joined_logic(a, b, &parts);
            // What stays as it was is shared: it is compared and freed once.
            if logic == **a {
                Rc::clone(a)
            } else {
                Rc::new(logic)
            }
        });
        let path = self.path.iter().filter_map(|constraint| {
            let same = other
                .path
                .iter()
                .find(|same| same.factors == constraint.factors)?;
            let bounds = constraint.bounds.hull(same.bounds);
            (!is_hasty || bounds == constraint.bounds).then_some(Constraint {
                bounds,
                ..*constraint
            })
        });
        Self {
            registers: registers.collect(),
            predicates: predicates.collect(),
            writes: [0; PREDICATES],
            carry: None,
            products: Vec::new(),
            ranges,
            path: path.collect(),
            next_result: REGISTERS as u32,
            ceilings: self.ceilings,
        }
    }

    /// This state as a block starts with it.
    pub(crate) fn started(&self, start: &Start<'_>) -> Self {
        self.joined(self, Haste::None, start)
    }

    /// The ranges of both, and which of them went up by more than was found.
    fn joined_ranges(&self, other: &Self, haste: Haste) -> (Ranges, [bool; SYMBOLS]) {
        let (mut ranges, mut leaps) = (self.ranges, [false; SYMBOLS]);
        for number in 0..LOOPS {
            let range = &mut ranges[IDS + number];
            let both = range.hull(other.ranges[IDS + number]);
            let grows = match haste {
                Haste::None => false,
                Haste::Steps => both.most > range.most && !range.is_single(),
                Haste::Full => both != *range,
            };
            leaps[IDS + number] = grows;
            let mut steps = [self.ceilings[number]].into_iter().chain(ITERATIONS);
            let most = steps.find(|most| *most >= both.most);
            *range = match grows {
                true => Interval::new(both.least.min(0), most.unwrap_or(FAR)),
                false => both,
            };
        }
        (ranges, leaps)
    }

    /// The pairs of which both words are upper halves; one that is a number extends what the other belongs to.
    fn halves(&self, other: &Self, a: &Value, b: &Value) -> Option<(Upper, Upper)> {
        match (a.upper, b.upper) {
            (Some(x), Some(y)) => Some((x, y)),
            (Some(x), None) => Some((x, self.extended(&x, other, b)?)),
            (None, Some(y)) => Some((other.extended(&y, self, a)?, y)),
            (None, None) => None,
        }
    }

    /// The pair of `high` in another state, with the register below that holds the lower half here.
    fn extended(&self, own: &Upper, other: &Self, high: &Value) -> Option<Upper> {
        let register = self.registers.iter().position(|value| value.part == own.low)?;
        let low = &other.registers[register];
        let pair = high.extending(&low.form, &other.ranges)?;
        Some(Upper { pair, low: low.part })
    }

    fn joined_value(&self, other: &Self, number: usize, parts: &Parts, join: &Join<'_>) -> Rc<Value> {
        let (a, b) = (&self.registers[number], &other.registers[number]);
        let is_plain = a.upper.is_none() && a.guarded.is_none();
        if is_plain && Rc::ptr_eq(a, b) && a.part == parts.own[number] && join.keeps(&a.form, &Form::WORD) {
            return Rc::clone(a);
        }
        let part = match (a.part, b.part) {
            (a, b) if a == b && !matches!(a, Part::Result(_)) => a,
            _ => parts.own[number],
        };
        let upper = self.halves(other, a, b).and_then(|(x, y)| {
            let pair = join.form(&x.pair, &y.pair, Form::PAIR);
            let low = parts.of_both(x.low, y.low)?;
            Some(Upper { pair, low })
        });
        let joined = Value {
            upper,
            ..Value::new(join.form(&a.form, &b.form, Form::WORD), part)
        };
        // What stays as it was is shared.
        if joined == **a {
            Rc::clone(a)
        } else {
            Rc::new(joined)
        }
    }
}

/// How forms of two states are joined.
struct Join<'a> {
    of_a: &'a Ranges,
    of_b: &'a Ranges,
    is_hasty: bool,
    /// Symbols whose ranges went up by more than was found.
    leaps: [bool; SYMBOLS],
}

impl Join<'_> {
    /// Whether a form that is the same in both states stays so.
    fn keeps(&self, form: &Form, widest: &Form) -> bool {
        let mut factors = self.leaps.iter().zip(form.factors);
        !form.is_all(widest) && factors.all(|(leaps, factor)| !leaps || factor == 0)
    }

    /// A form for both; `widest` is what the register or pair can hold at all.
    fn form(&self, a: &Form, b: &Form, widest: Form) -> Form {
        if a == b && self.keeps(a, &widest) {
            return *a;
        }
        let joined = form::join(a, self.of_a, b, self.of_b);
        let given_up = Form {
            root: joined.root,
            ..widest
        };
        // All that the register can hold is one thing, however it is counted.
        if joined.is_all(&widest) {
            return given_up;
        }
        let is_same = joined.factors == a.factors && joined.rest.is_within(a.rest);
        if self.is_hasty && !is_same {
            return given_up;
        }
        let factors = self.leaps.iter().zip(joined.factors);
        let leaps = factors
            .filter(|(leaps, _)| **leaps)
            .any(|(_, factor)| factor != 0);
        // What was known of the whole was known of fewer iterations.
        if leaps || self.is_hasty && !joined.range.is_within(a.range) {
            return Form {
                range: Interval::ALL,
                ..joined
            };
        }
        joined
    }
}

/// Which words are equal in two states, and the numbers that they have after the join.
struct Parts {
    /// What the words are in either state, and the number of the first register that holds them; ascending.
    numbers: Vec<((Part, Part), u32)>,
    own: [Part; REGISTERS],
}

impl Parts {
    fn of(a: &State, b: &State, start: &Start<'_>) -> Self {
        let both = a.registers.iter().zip(&b.registers);
        let mut numbers: Vec<_> = (0..)
            .zip(both)
            .filter(|(number, _)| start.is_live(*number as usize))
            .map(|(number, (x, y))| ((x.part, y.part), number))
            .collect();
        numbers.sort_unstable();
        let mut own = [Part::Number(0); REGISTERS];
        for same in numbers.chunk_by(|(one, _), (next, _)| one == next) {
            for (_, number) in same {
                own[*number as usize] = Part::Result(same[0].1);
            }
        }
        Self { numbers, own }
    }

    /// The word that was `a` in the one and `b` in the other state.
    fn of_both(&self, a: Part, b: Part) -> Option<Part> {
        match (a, b) {
            (a, b) if a == b && !matches!(a, Part::Result(_)) => Some(a),
            _ => {
                let first = self.numbers.partition_point(|(words, _)| *words < (a, b));
                let (words, number) = *self.numbers.get(first)?;
                (words == (a, b)).then_some(Part::Result(number))
            }
        }
    }
}

fn joined_logic(a: &Logic, b: &Logic, parts: &Parts) -> Logic {
    if a.known.is_some() || b.known.is_some() {
        return Logic {
            known: if a.known == b.known { a.known } else { None },
            ..Logic::default()
        };
    }
    Logic {
        known: None,
        holds: joined_truth(&a.holds, &b.holds, parts),
        fails: joined_truth(&a.fails, &b.fails, parts),
    }
}

/// Facts that both have.
fn joined_truth(a: &Truth, b: &Truth, parts: &Parts) -> Truth {
    let facts = a.facts.iter().filter_map(|fact| {
        let same = |other: &&Fact| other.form == fact.form && other.bounds == fact.bounds;
        let other = b.facts.iter().find(same)?;
        let part = fact.part.zip(other.part).and_then(|(a, b)| parts.of_both(a, b));
        Some(Fact { part, ..*fact })
    });
    let facts: Vec<Fact> = facts.collect();
    let is_all = facts.len() == a.facts.len() && facts.len() == b.facts.len();
    Truth {
        is_exact: a.is_exact && b.is_exact && is_all,
        facts,
    }
}

/// A word of `bytes` bytes that memory or another unit gives.
pub(crate) fn loaded(bytes: u32, is_signed: bool) -> Form {
    let numbers = 1i128 << (8 * bytes.min(4));
    match (bytes, is_signed) {
        (4.., _) => Form::WORD,
        (_, false) => Form::span(0, numbers - 1),
        (_, true) => Form::span(-numbers / 2, numbers / 2 - 1),
    }
}
