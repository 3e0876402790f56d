//! What a grid certainly stores.
//!
//! Threads that leave at the start because their number is beyond the end do so by a guard that says nothing else. Without
//! these exits, a block that every way to the end leads through is executed by all other threads. If the address of a
//! store in it is a sum of the thread's and block's numbers whose steps leave no gap, all bytes between the least and the
//! most are stored.

use std::ops::Range;

use crate::fixpoint::Outcome;
use crate::form::{IDS, Interval};
use crate::graph::{Program, When};
use crate::kernel::Kernel;
use crate::sets::{VA_END, merged};
use crate::step::Store;
use crate::value::{Constraint, Fact, Truth};

/// Blocks of a program that is looked at.
const BLOCKS_MAX: usize = 256;

/// Bytes that are stored by every grid that comes to its end.
pub(crate) fn ranges(
    kernel: &Kernel<'_>,
    program: &Program,
    outcomes: &[Option<Outcome>],
) -> Vec<Range<u64>> {
    if program.blocks.len() > BLOCKS_MAX {
        return Vec::new();
    }
    let (exits, constraints) = exits(program, outcomes);
    let mut ranges = Vec::new();
    for (block, outcome) in outcomes.iter().enumerate() {
        let Some(outcome) = outcome
            .as_ref()
            .filter(|outcome| !outcome.found.stores.is_empty())
        else {
            continue;
        };
        if !is_on_every_way(program, outcomes, &exits, block) {
            continue;
        }
        for store in &outcome.found.stores {
            if store.facts.iter().all(is_about_ids) {
                let own = store.facts.iter().map(Fact::constraint);
                let all: Vec<Constraint> = constraints.iter().copied().chain(own).collect();
                ranges.extend(covered(kernel, store, &all));
            }
        }
    }
    merged(ranges)
}

/// An edge by its block and number.
type EdgeNumber = (usize, usize);

/// Exits that threads take for their number alone, and what holds for the threads that take none of them.
fn exits(program: &Program, outcomes: &[Option<Outcome>]) -> (Vec<EdgeNumber>, Vec<Constraint>) {
    let (mut exits, mut constraints) = (Vec::new(), Vec::new());
    for (number, (block, outcome)) in program.blocks.iter().zip(outcomes).enumerate() {
        let Some(outcome) = outcome else { continue };
        let leaves = block
            .edges
            .iter()
            .position(|edge| edge.target.is_none() && edge.when == When::Guard(true));
        let Truth { facts, is_exact } = &outcome.guard.fails;
        if let Some(edge) = leaves
            && *is_exact
            && facts.iter().all(is_about_ids)
        {
            exits.push((number, edge));
            constraints.extend(facts.iter().map(Fact::constraint));
        }
    }
    (exits, constraints)
}

fn is_about_ids(fact: &Fact) -> bool {
    fact.form.is_sharp() && fact.form.factors[IDS..].iter().all(|factor| *factor == 0)
}

/// Whether no way from the entry to the end avoids a block.
fn is_on_every_way(
    program: &Program,
    outcomes: &[Option<Outcome>],
    exits: &[EdgeNumber],
    avoided: usize,
) -> bool {
    let mut seen = vec![false; program.blocks.len()];
    seen[avoided] = true;
    let mut open = if avoided == 0 { Vec::new() } else { vec![0] };
    while let Some(block) = open.pop() {
        let Some(outcome) = &outcomes[block] else { continue };
        for (number, edge) in program.blocks[block].edges.iter().enumerate() {
            if outcome.edges[number].is_none() || exits.contains(&(block, number)) {
                continue;
            }
            match edge.target {
                None => return false,
                Some(target) if !std::mem::replace(&mut seen[target], true) => open.push(target),
                Some(_) => {}
            }
        }
    }
    true
}

/// A number of several symbols whose values are all from `range.least` to `range.most`, and the step of the address.
struct Digit {
    step: i128,
    range: Interval,
}

/// The bytes of all threads' stores, if they leave no gap.
fn covered(kernel: &Kernel<'_>, store: &Store, constraints: &[Constraint]) -> Option<Range<u64>> {
    let counts: Vec<i128> = kernel
        .block
        .iter()
        .chain(&kernel.grid)
        .map(|n| i128::from(*n))
        .collect();
    let mut digits: Vec<Digit> = Vec::new();
    let mut groups: Vec<(Vec<usize>, Interval)> = Vec::new();
    // What is said of numbers alone follows from the rest.
    for constraint in constraints
        .iter()
        .filter(|constraint| constraint.factors.iter().any(|factor| *factor != 0))
    {
        let (symbols, range) = group(constraint, &counts)?;
        match groups.iter_mut().find(|(known, _)| *known == symbols) {
            Some((_, known)) => *known = known.meet(range),
            None => groups.push((symbols, range)),
        }
    }
    let mut used = [false; IDS];
    for (symbols, range) in groups {
        let first = *symbols.first()?;
        let step = i128::from(store.address.factors[first]);
        let mut size = 1;
        for symbol in symbols {
            let is_digit = i128::from(store.address.factors[symbol]) == step * size;
            if std::mem::replace(&mut used[symbol], true) || !is_digit {
                return None;
            }
            size *= counts[symbol];
        }
        digits.push(Digit { step, range });
    }
    let rest = (0..IDS).filter(|symbol| !used[*symbol]).map(|symbol| Digit {
        step: i128::from(store.address.factors[symbol]),
        range: Interval::new(0, counts[symbol] - 1),
    });
    digits.extend(rest);
    if digits.iter().any(|digit| digit.range.is_empty()) {
        return None;
    }
    let lowest = digits.iter().map(|digit| digit.range.times(digit.step).least);
    let start = store.address.rest.least + lowest.sum::<i128>();
    digits.retain(|digit| digit.step != 0);
    digits.sort_by_key(|digit| digit.step.abs());
    let mut bytes = i128::from(store.bytes);
    for Digit { step, range } in digits {
        if step.abs() > bytes {
            return None;
        }
        bytes += step.abs() * (range.most - range.least);
    }
    let start = start.rem_euclid(VA_END.into());
    let end = start + bytes;
    (end <= VA_END.into()).then_some(start as u64..end as u64)
}

/// The symbols of a constraint as digits of one number, the lowest first, and which of its values they have.
fn group(constraint: &Constraint, counts: &[i128]) -> Option<(Vec<usize>, Interval)> {
    let factor = |symbol: usize| i128::from(constraint.factors[symbol]);
    let mut symbols: Vec<usize> = (0..IDS).filter(|symbol| factor(*symbol) != 0).collect();
    symbols.sort_by_key(|symbol| factor(*symbol).abs());
    let unit = factor(*symbols.first()?);
    let mut size = 1;
    for symbol in &symbols {
        if factor(*symbol) != unit * size {
            return None;
        }
        size *= counts[*symbol];
    }
    let Interval { least, most } = constraint.bounds;
    let (least, most) = if unit > 0 { (least, most) } else { (-most, -least) };
    let unit = unit.abs();
    let values = Interval::new(-(-least).div_euclid(unit), most.div_euclid(unit));
    Some((symbols, values.meet(Interval::new(0, size - 1))))
}
