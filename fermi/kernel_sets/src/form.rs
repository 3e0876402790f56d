//! Numbers of a thread as sums: `Σ factor × symbol + rest`, and what is known of the whole.
//!
//! Symbols are the thread's and block's numbers, which a thread keeps for its life, and for the outer loops the number
//! of the iteration. A form describes an integer without bounds; a register holds it modulo 2^32, a pair modulo 2^64.

use crate::sets::Root;

/// Symbols that a thread keeps: thread x, y, z, block x, y, z.
pub(crate) const IDS: usize = 6;
/// Loops whose iterations have a symbol.
pub(crate) const LOOPS: usize = 6;
/// All symbols, those of loops last.
pub(crate) const SYMBOLS: usize = IDS + LOOPS;
/// Beyond any number that counts, and far from the ends of the type.
pub(crate) const FAR: i128 = 1 << 100;
/// Numbers of a register.
pub(crate) const WORDS: i128 = 1 << 32;
/// Numbers of a register pair.
pub(crate) const PAIRS: i128 = 1 << 64;

/// Integers from `least` to `most`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interval {
    pub(crate) least: i128,
    pub(crate) most: i128,
}

impl Interval {
    pub(crate) const ALL: Self = Self::new(-FAR, FAR);

    pub(crate) const fn new(least: i128, most: i128) -> Self {
        Self { least, most }
    }

    pub(crate) fn is_single(self) -> bool {
        self.least == self.most
    }

    pub(crate) fn is_empty(self) -> bool {
        self.least > self.most
    }

    pub(crate) fn is_within(self, other: Self) -> bool {
        self.least >= other.least && self.most <= other.most
    }

    pub(crate) fn hull(self, other: Self) -> Self {
        Self::new(self.least.min(other.least), self.most.max(other.most))
    }

    pub(crate) fn meet(self, other: Self) -> Self {
        Self::new(self.least.max(other.least), self.most.min(other.most))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self::new(
            self.least.saturating_add(other.least).max(-FAR),
            self.most.saturating_add(other.most).min(FAR),
        )
    }

    pub(crate) fn times(self, factor: i128) -> Self {
        let [a, b] = [self.least, self.most].map(|end| end.saturating_mul(factor).clamp(-FAR, FAR));
        Self::new(a.min(b), a.max(b))
    }

    pub(crate) fn product(self, other: Self) -> Self {
        self.times(other.least).hull(self.times(other.most))
    }
}

/// What each symbol can be.
pub(crate) type Ranges = [Interval; SYMBOLS];

/// An integer of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Form {
    pub(crate) factors: [i64; SYMBOLS],
    pub(crate) rest: Interval,
    /// The whole, as it was known when the form was made: often less than the sum allows.
    pub(crate) range: Interval,
    /// The pointer that it was reckoned from.
    pub(crate) root: Option<Root>,
    /// A word of which nothing is known has a part in it.
    pub(crate) is_open: bool,
}

impl Form {
    /// A word of which nothing is known.
    pub(crate) const WORD: Self = Self {
        is_open: true,
        ..Self::span(0, WORDS - 1)
    };
    /// A pair of which nothing is known.
    pub(crate) const PAIR: Self = Self {
        is_open: true,
        ..Self::span(0, PAIRS - 1)
    };

    pub(crate) const fn span(least: i128, most: i128) -> Self {
        let interval = Interval::new(least, most);
        Self {
            factors: [0; SYMBOLS],
            rest: interval,
            range: interval,
            root: None,
            is_open: false,
        }
    }

    pub(crate) const fn number(value: i128) -> Self {
        Self::span(value, value)
    }

    /// A symbol itself.
    pub(crate) fn symbol(symbol: usize, ranges: &Ranges) -> Self {
        if ranges[symbol].is_single() {
            return Self::number(ranges[symbol].least);
        }
        let mut form = Self::number(0);
        form.factors[symbol] = 1;
        form.range = ranges[symbol];
        form
    }

    /// The value, if it is the same for all threads.
    pub(crate) fn single(&self) -> Option<i128> {
        self.range.is_single().then_some(self.range.least)
    }

    /// Whether the number follows from the symbols alone.
    pub(crate) fn is_sharp(&self) -> bool {
        self.rest.is_single()
    }

    /// Whether it may be as many numbers as `widest`.
    pub(crate) fn is_all(&self, widest: &Self) -> bool {
        let count = |interval: Interval| interval.most - interval.least;
        self.factors == [0; SYMBOLS] && count(self.rest) >= count(widest.rest)
    }

    /// The same number, of which only the range is kept.
    pub(crate) fn plain(&self) -> Self {
        Self {
            factors: [0; SYMBOLS],
            rest: self.range,
            ..*self
        }
    }

    /// What the sum allows, less what is known otherwise.
    pub(crate) fn total(&self, ranges: &Ranges) -> Interval {
        let sum = self
            .factors
            .iter()
            .zip(ranges)
            .filter(|(factor, _)| **factor != 0)
            .fold(self.rest, |sum, (factor, range)| {
                sum.plus(range.times(i128::from(*factor)))
            });
        sum.meet(self.range)
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum = Self {
            rest: self.rest.plus(other.rest),
            range: self.range.plus(other.range),
            root: Root::of_sum(self.root, other.root),
            is_open: self.is_open || other.is_open,
            ..*self
        };
        for (factor, more) in sum.factors.iter_mut().zip(other.factors) {
            match factor.checked_add(more) {
                Some(both) => *factor = both,
                None => return sum.plain(),
            }
        }
        sum
    }

    pub(crate) fn plus_number(&self, value: i128) -> Self {
        self.plus(&Self::number(value))
    }

    /// Times a number; no pointer any more unless it is 1.
    pub(crate) fn times(&self, factor: i128) -> Self {
        if factor == 1 {
            return *self;
        }
        let mut product = Self {
            rest: self.rest.times(factor),
            range: self.range.times(factor),
            root: None,
            ..*self
        };
        for of_symbol in &mut product.factors {
            match i64::try_from(factor)
                .ok()
                .and_then(|factor| of_symbol.checked_mul(factor))
            {
                Some(both) => *of_symbol = both,
                None => return product.plain(),
            }
        }
        product
    }

    pub(crate) fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(-1))
    }

    /// The product of two.
    pub(crate) fn product(&self, other: &Self) -> Self {
        if let Some(value) = other.single() {
            return self.times(value);
        }
        if let Some(value) = self.single() {
            return other.times(value);
        }
        let range = self.range.product(other.range);
        Self {
            is_open: self.is_open || other.is_open,
            ..Self::span(range.least, range.most)
        }
    }

    /// The same number with what is known of it besides.
    pub(crate) fn clamped(&self, interval: Interval) -> Self {
        let mut form = *self;
        form.range = form.range.meet(interval);
        if form.factors == [0; SYMBOLS] {
            form.rest = form.rest.meet(interval);
        }
        form.is_open &= form.range.most - form.range.least >= WORDS / 2;
        form
    }

    /// The form of the number that a register or pair of `size` numbers holds, counted from `first` on; `None` if it is
    /// not known how often that wraps.
    pub(crate) fn fitted(&self, first: i128, size: i128, ranges: &Ranges) -> Option<Self> {
        let total = self.total(ranges);
        if total.is_empty() || total.least <= -FAR || total.most >= FAR {
            return None;
        }
        let turns = (total.least - first).div_euclid(size);
        ((total.most - first).div_euclid(size) == turns).then(|| {
            let moved = Interval::new(-turns * size, -turns * size);
            let mut form = self.plus_number(moved.least);
            form.range = total.plus(moved);
            form
        })
    }

    /// The same modulo `size`, with small numbers: what a register or a pair keeps.
    pub(crate) fn settled(self, size: i128, ranges: &Ranges) -> Self {
        if let Some(value) = self.single() {
            return Self {
                root: self.root,
                ..Self::number(value.rem_euclid(size))
            };
        }
        let range = self.total(ranges);
        if range.is_within(Interval::new(-(size << 20), size << 20)) {
            return Self { range, ..self };
        }
        Self {
            root: self.root,
            is_open: true,
            ..Self::span(0, size - 1)
        }
    }

    /// The number of a word without sign.
    pub(crate) fn unsigned(&self, ranges: &Ranges) -> Self {
        self.fitted(0, WORDS, ranges).unwrap_or(Self::WORD)
    }

    /// The number of a word with sign.
    pub(crate) fn signed(&self, ranges: &Ranges) -> Self {
        let any = Self {
            is_open: true,
            ..Self::span(-WORDS / 2, WORDS / 2 - 1)
        };
        self.fitted(-WORDS / 2, WORDS, ranges).unwrap_or(any)
    }

    /// Half, quarter and so on, if each part is a multiple.
    pub(crate) fn divided(&self, divisor: i128) -> Option<Self> {
        let divides = |part: i128| part % divisor == 0;
        let is_whole = self.rest.is_single()
            && divides(self.rest.least)
            && self.factors.iter().all(|factor| divides(i128::from(*factor)));
        is_whole.then(|| {
            let mut form = *self;
            form.rest = Interval::new(self.rest.least / divisor, self.rest.least / divisor);
            form.range = Interval::new(
                self.range.least.div_euclid(divisor),
                self.range.most.div_euclid(divisor),
            );
            for factor in &mut form.factors {
                *factor = (i128::from(*factor) / divisor) as i64;
            }
            form.root = None;
            form
        })
    }

    /// Without a symbol, whose range is taken into the rest.
    pub(crate) fn without(&self, symbol: usize, ranges: &Ranges) -> Self {
        let mut form = *self;
        let factor = std::mem::take(&mut form.factors[symbol]);
        if factor != 0 {
            form.rest = form.rest.plus(ranges[symbol].times(i128::from(factor)));
        }
        form
    }

    /// With a symbol that counts one more than before.
    pub(crate) fn advanced(&self, symbol: usize) -> Self {
        let mut form = *self;
        let step = -i128::from(form.factors[symbol]);
        form.rest = form.rest.plus(Interval::new(step, step));
        form
    }
}

/// A form for both of two numbers, each with what its symbols can be.
///
/// Where a symbol has one value on a side, its factor there is free: it is chosen so that the other side's fits, and where
/// it has one value on each side, so that both lie on a line. That finds the steps of loop counters and of pointers.
pub(crate) fn join(a: &Form, of_a: &Ranges, b: &Form, of_b: &Ranges) -> Form {
    let (mut a, mut b) = (*a, *b);
    for symbol in 0..SYMBOLS {
        align(&mut a, of_a, &mut b, of_b, symbol);
    }
    let root = if a.root == b.root { a.root } else { None };
    let joined = Form {
        factors: a.factors,
        rest: a.rest.hull(b.rest),
        range: a.range.hull(b.range),
        root,
        is_open: a.is_open || b.is_open,
    };
    if a.factors == b.factors {
        joined
    } else {
        joined.plain()
    }
}

/// Makes the factors of one symbol equal, if that can be done.
fn align(a: &mut Form, of_a: &Ranges, b: &mut Form, of_b: &Ranges, symbol: usize) {
    let (ra, rb) = (of_a[symbol], of_b[symbol]);
    let line = ra.is_single() && rb.is_single() && ra != rb && a.is_sharp() && b.is_sharp();
    if line && symbol >= IDS {
        // What each is apart from this symbol, and the step that leads from one to the other.
        let value = |form: &Form, at: i128| form.rest.least + i128::from(form.factors[symbol]) * at;
        let (va, vb) = (value(a, ra.least), value(b, rb.least));
        let (rise, run) = (vb - va, rb.least - ra.least);
        if rise % run == 0
            && let Ok(factor) = i64::try_from(rise / run)
        {
            refactor(a, symbol, factor, ra.least);
            refactor(b, symbol, factor, rb.least);
        }
        return;
    }
    match (a.factors[symbol], b.factors[symbol]) {
        (x, y) if x == y => {}
        (_, y) if ra.is_single() => refactor(a, symbol, y, ra.least),
        (x, _) if rb.is_single() => refactor(b, symbol, x, rb.least),
        _ => {
            *a = a.without(symbol, of_a);
            *b = b.without(symbol, of_b);
        }
    }
}

/// Gives a symbol that has one value another factor.
fn refactor(form: &mut Form, symbol: usize, factor: i64, value: i128) {
    let change = (i128::from(form.factors[symbol]) - i128::from(factor)) * value;
    form.factors[symbol] = factor;
    form.rest = form.rest.plus(Interval::new(change, change));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(iteration: i128) -> Ranges {
        let mut ranges = [Interval::new(0, 0); SYMBOLS];
        ranges[0] = Interval::new(0, 31);
        ranges[IDS] = Interval::new(iteration, iteration);
        ranges
    }

    #[test]
    fn two_iterations_give_the_step_of_a_pointer() {
        let start = Form::symbol(0, &ranges(0)).times(4).plus_number(0x1000);
        let next = start.plus_number(0x80);
        let both = join(&start, &ranges(0), &next, &ranges(1));
        assert_eq!((both.factors[0], both.factors[IDS]), (4, 0x80));
        assert_eq!(both.rest, Interval::new(0x1000, 0x1000));
    }

    #[test]
    fn sum_that_may_wrap_is_no_number_of_a_register() {
        let ranges = ranges(0);
        let below = Form::symbol(0, &ranges).plus_number(-1);
        assert_eq!(below.fitted(0, WORDS, &ranges), None);
        assert_eq!(below.signed(&ranges).total(&ranges), Interval::new(-1, 30));
        let far = Form::symbol(0, &ranges).plus_number(WORDS + 5);
        assert_eq!(far.unsigned(&ranges).total(&ranges), Interval::new(5, 36));
    }
}
