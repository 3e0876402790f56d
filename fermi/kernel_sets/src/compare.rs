//! Comparisons and logic of predicates.

use std::rc::Rc;

use fermi_spec::isa::{Guard, Instruction, Opcode, field};

use crate::form::{FAR, Form, Interval, WORDS};
use crate::step::Machine;
use crate::value::{Fact, Logic, Truth, Value};

/// Orders that a comparison holds for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Orders {
    less: bool,
    equal: bool,
    greater: bool,
}

impl Orders {
    fn of(bits: u32) -> Self {
        Self {
            less: bits & 1 != 0,
            equal: bits & 2 != 0,
            greater: bits & 4 != 0,
        }
    }

    fn opposite(self) -> Self {
        Self {
            less: !self.less,
            equal: !self.equal,
            greater: !self.greater,
        }
    }

    fn reversed(self) -> Self {
        Self {
            less: self.greater,
            greater: self.less,
            ..self
        }
    }
}

/// One side of a comparison.
struct Side {
    value: Rc<Value>,
    /// The number that is compared.
    form: Form,
    total: Interval,
    /// The form is the number itself; otherwise it is so where the number is below the other side's.
    is_fit: bool,
}

impl Machine<'_> {
    /// Executes an instruction of this module; whether it was one.
    pub(crate) fn comparison(&mut self, instruction: Instruction) -> bool {
        let logic = match instruction.opcode() {
            Opcode::Isetp => self.integers(instruction),
            Opcode::Fsetp | Opcode::Dsetp | Opcode::Csetp => Logic::default(),
            Opcode::Psetp => {
                let a = self.source(instruction.predicate_source(field::PRED_A, field::PRED_A_NOT));
                let b = self.source(instruction.predicate_source(field::PRED_B, field::PRED_B_NOT));
                a.combined(instruction.get(field::PRED_OP), &b)
            }
            _ => return false,
        };
        let third = self.source(instruction.predicate_source(field::PRED_C, field::PRED_C_NOT));
        let operation = instruction.get(field::COMBINE);
        let (is, is_not) = (
            logic.combined(operation, &third),
            logic.negated().combined(operation, &third),
        );
        self.write_predicate(instruction.predicate(field::PRED_Q), is_not);
        self.write_predicate(instruction.predicate(field::PRED_D), is);
        true
    }

    fn source(&self, guard: Guard) -> Logic {
        self.state.logic(guard.predicate.0, guard.is_negated)
    }

    fn side(&self, value: Rc<Value>, is_signed: bool) -> Side {
        let ranges = self.ranges();
        let first = if is_signed { -WORDS / 2 } else { 0 };
        let fitted = value.form.fitted(first, WORDS, &ranges);
        let total = value.form.total(&ranges);
        let is_near = total.is_within(Interval::new(-WORDS / 2, WORDS / 2 - 1));
        let (form, is_fit) = match fitted {
            Some(form) => (form, true),
            // Below zero is far above: only a number that is less than another below 2^31 is what it seems.
            None if is_near => (value.form, false),
            None => {
                let any = Form::span(first, first + WORDS - 1);
                (Form { is_open: true, ..any }, true)
            }
        };
        Side {
            total: form.total(&ranges),
            value,
            form,
            is_fit,
        }
    }

    fn integers(&self, instruction: Instruction) -> Logic {
        // The upper half of a wider comparison.
        const EXTENDED: u32 = 6;
        if instruction.bit(EXTENDED) {
            return Logic::default();
        }
        let is_signed = instruction.bit(5);
        let orders = Orders::of(instruction.get(field::COMPARE));
        let a = self.side(self.read(instruction.a()), is_signed);
        let b = self.side(self.operand(instruction.b()), is_signed);
        if a.is_fit
            && b.is_fit
            && let Some(known) = decided(orders, a.total, b.total)
        {
            return Logic::known(known);
        }
        Logic {
            known: None,
            holds: truth(orders, &a, &b),
            fails: truth(orders.opposite(), &a, &b),
        }
    }
}

/// The result, if all numbers of both sides have the same.
fn decided(orders: Orders, a: Interval, b: Interval) -> Option<bool> {
    let can_be_less = a.least < b.most;
    let can_be_greater = a.most > b.least;
    let can_be_equal = !a.meet(b).is_empty();
    let possible = [
        (can_be_less, orders.less),
        (can_be_equal, orders.equal),
        (can_be_greater, orders.greater),
    ];
    let mut results = possible.iter().filter(|(is_possible, _)| *is_possible);
    let (_, first) = *results.next()?;
    results.all(|(_, result)| *result == first).then_some(first)
}

/// What follows if one of the orders is there.
fn truth(orders: Orders, a: &Side, b: &Side) -> Truth {
    let facts = [(a, orders, b), (b, orders.reversed(), a)];
    let facts = facts.into_iter().map(|(side, orders, other)| {
        let is_at_most = !orders.greater && other.is_fit && other.total.most <= WORDS / 2;
        let bounds = bounds(orders, side.total, other.total);
        (side, bounds, side.is_fit || is_at_most)
    });
    let facts: Vec<Fact> = facts
        .filter(|(_, bounds, is_told)| *is_told && *bounds != Interval::ALL)
        .map(|(side, bounds, _)| Fact {
            part: Some(side.value.part),
            form: side.form,
            // One that seems to be less than zero is not less than anything.
            bounds: match side.is_fit {
                true => bounds,
                false => bounds.meet(Interval::new(0, FAR)),
            },
        })
        .collect();
    Truth {
        is_exact: is_exact(orders, a, b) && !facts.is_empty(),
        facts,
    }
}

/// Whether the bounds are all that the comparison says: a number that follows from the symbols, against one.
fn is_exact(orders: Orders, a: &Side, b: &Side) -> bool {
    let is_order = orders != Orders::of(5) && orders != Orders::of(0);
    let sides = [(a, b), (b, a)];
    is_order
        && a.is_fit
        && b.is_fit
        && sides
            .iter()
            .any(|(x, y)| x.form.is_sharp() && y.total.is_single())
}

/// Bounds of a number that stands in one of the orders to one within `other`.
fn bounds(orders: Orders, own: Interval, other: Interval) -> Interval {
    let mut bounds = Interval::ALL;
    match (orders.less, orders.equal, orders.greater) {
        (true, true, true) => {}
        (false, false, false) => bounds = Interval::new(1, 0),
        (true, false, true) => {
            // Unequal to a number at an end.
            if other.is_single() && own.least == other.least {
                bounds.least = own.least + 1;
            }
            if other.is_single() && own.most == other.least {
                bounds.most = own.most - 1;
            }
        }
        (is_less, is_equal, is_greater) => {
            if !is_greater {
                bounds.most = if is_equal { other.most } else { other.most - 1 };
            }
            if !is_less {
                bounds.least = if is_equal { other.least } else { other.least + 1 };
            }
        }
    }
    bounds
}
