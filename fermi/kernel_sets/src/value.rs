//! What registers and predicates hold.

use std::rc::Rc;

use fermi_spec::isa::Addition;

use crate::form::{Form, Interval, Ranges, SYMBOLS};

/// Which concrete word of the thread it is: two with the same part are equal, whatever is known of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Part {
    /// The result of an instruction, by a number that is its own within a block.
    Result(u32),
    /// A word of a constant bank.
    Constant(u8, u16),
    /// A number itself.
    Number(u32),
}

/// A word that is the upper half of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Upper {
    /// The pair, modulo 2^64.
    pub(crate) pair: Form,
    /// Its lower half.
    pub(crate) low: Part,
}

/// What a register holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Value {
    /// The word, modulo 2^32.
    pub(crate) form: Form,
    pub(crate) part: Part,
    pub(crate) upper: Option<Upper>,
    /// The word in threads that a guard lets through.
    pub(crate) guarded: Option<Guarded>,
}

/// A predicate as a guard, and how often it had been written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Condition {
    pub(crate) predicate: u8,
    pub(crate) is_negated: bool,
    pub(crate) writes: u32,
}

/// What a register holds where a guard lets through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Guarded {
    pub(crate) condition: Condition,
    pub(crate) value: Rc<Value>,
}

impl Value {
    pub(crate) fn new(form: Form, part: Part) -> Self {
        Self {
            form,
            part,
            upper: None,
            guarded: None,
        }
    }

    pub(crate) fn number(value: u32) -> Self {
        Self::new(Form::number(value.into()), Part::Number(value))
    }

    /// The pair with `low` below this word, if this is one number: zero extends.
    pub(crate) fn extending(&self, low: &Form, ranges: &Ranges) -> Option<Form> {
        let above = self.known()?;
        let low = low.unsigned(ranges);
        let pair = low.plus_number(i128::from(above) << 32);
        Some(Form {
            root: if above == 0 { low.root } else { None },
            ..pair
        })
    }

    /// The number, if it is one.
    pub(crate) fn known(&self) -> Option<u32> {
        self.form.single().map(|value| value as u32)
    }
}

/// Bounds of a sum of symbols.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Constraint {
    pub(crate) factors: [i64; SYMBOLS],
    pub(crate) bounds: Interval,
}

/// A word lies within bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fact {
    /// The word that was compared, while it is known which.
    pub(crate) part: Option<Part>,
    /// What it was: as a number, not modulo anything.
    pub(crate) form: Form,
    pub(crate) bounds: Interval,
}

impl Fact {
    /// The same of the symbols.
    pub(crate) fn constraint(&self) -> Constraint {
        let Interval { least, most } = self.form.rest;
        Constraint {
            factors: self.form.factors,
            bounds: self.bounds.plus(Interval::new(-most, -least)),
        }
    }
}

/// Most facts that a predicate tells.
const FACTS_MAX: usize = 6;

/// What follows from a predicate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Truth {
    pub(crate) facts: Vec<Fact>,
    /// The facts together are all that the predicate says: it holds if they do.
    pub(crate) is_exact: bool,
}

impl Truth {
    pub(crate) fn and(&self, other: &Self) -> Self {
        let all = self.facts.len() + other.facts.len();
        let facts = self.facts.iter().chain(&other.facts).take(FACTS_MAX);
        Self {
            facts: facts.copied().collect(),
            is_exact: self.is_exact && other.is_exact && all <= FACTS_MAX,
        }
    }
}

/// What a predicate is: known, or what follows from each of its values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Logic {
    pub(crate) known: Option<bool>,
    pub(crate) holds: Truth,
    pub(crate) fails: Truth,
}

impl Logic {
    pub(crate) fn known(value: bool) -> Self {
        Self {
            known: Some(value),
            ..Self::default()
        }
    }

    pub(crate) fn negated(&self) -> Self {
        Self {
            known: self.known.map(|known| !known),
            holds: self.fails.clone(),
            fails: self.holds.clone(),
        }
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        match (self.known, other.known) {
            (Some(false), _) | (_, Some(false)) => Self::known(false),
            (Some(true), _) => other.clone(),
            (_, Some(true)) => self.clone(),
            (None, None) => Self {
                known: None,
                holds: self.holds.and(&other.holds),
                fails: Truth::default(),
            },
        }
    }

    pub(crate) fn or(&self, other: &Self) -> Self {
        self.negated().and(&other.negated()).negated()
    }

    pub(crate) fn xor(&self, other: &Self) -> Self {
        match (self.known, other.known) {
            (Some(value), _) => {
                if value {
                    other.negated()
                } else {
                    other.clone()
                }
            }
            (_, Some(value)) => {
                if value {
                    self.negated()
                } else {
                    self.clone()
                }
            }
            _ => Self::default(),
        }
    }

    /// As the COMBINE and PRED_OP fields say.
    pub(crate) fn combined(&self, operation: u32, other: &Self) -> Self {
        match operation {
            0 => self.and(other),
            1 => self.or(other),
            _ => self.xor(other),
        }
    }
}

/// A sum of words whose carry is in the flags.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Carry {
    /// The flags are these where the guard lets through; `None`: everywhere.
    pub(crate) condition: Option<Condition>,
    pub(crate) a: (Part, Form),
    pub(crate) b: (Part, Form),
    pub(crate) addition: Addition,
    /// The word of the sum.
    pub(crate) result: Part,
}

/// The form of a sum.
pub(crate) fn sum(addition: Addition, a: &Form, b: &Form) -> Form {
    match addition {
        Addition::Add => a.plus(b),
        Addition::Subtract => a.minus(b),
        Addition::Reverse => b.minus(a),
        Addition::PlusOne => a.plus(b).plus_number(1),
    }
}
