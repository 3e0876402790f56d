//! When a guest uses its GPU, as far as that is known, and how long it rests in between.

use serde::{Deserialize, Serialize};

use crate::event::Tick;
use crate::inspect::{Inspect, Tree};

/// A VM that rests as a habit lends after that time at the earliest. Guests that show pictures or wait for a user's next key make shorter breaks.
pub(crate) const BREAK_NS: u64 = 50_000_000;
/// A rest was long if it lasted for so many times as long as the VM would have had to rest before it lent.
const LONG: u64 = 4;
/// So many long ones, one behind the other, are a habit.
const HABIT: u8 = 2;

/// What is known of when a guest uses its GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Activity {
    /// Doorbells of all its channels that brought work, since the VM was attached. A guest that waits for its work before it submits more
    /// rings as often as work ends.
    pub(crate) doorbells: u64,
    /// When the last one came.
    pub(crate) rang_at: Option<Tick>,
    /// When it last used the GPU, or may have: rang, took memory, or was asked about and had work until then, as far as is known.
    pub(crate) used_at: Tick,
    /// It has rested for so long that what it uses is others' as far as nothing protects it.
    pub(crate) lends: bool,
    pub(crate) rests: Rests,
}

/// How long a guest's rests were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rests {
    /// When it last did what no guest does that rests: rang, took memory, or had work of which the card said so.
    worked_at: Option<Tick>,
    /// Nothing of it was left at some pass since.
    is_resting: bool,
    /// Time in which a rest pays for the copies of what it lends, as far as it was known at the last pass.
    pays_ns: u64,
    /// Long rests since the last that was none, [`HABIT`] at most.
    long: u8,
}

impl Rests {
    /// Time of rest after which a VM lends that has the habit.
    fn soon_ns(&self) -> u64 {
        self.pays_ns.max(BREAK_NS)
    }

    /// Before a pass: whether something of it is on the card, and what a rest has to pay for now.
    pub(crate) fn note_pass(&mut self, is_at_work: bool, pays_ns: u64) {
        self.is_resting |= !is_at_work;
        self.pays_ns = pays_ns;
    }

    /// Its guest works.
    pub(crate) fn end(&mut self, now: Tick) {
        let before = self.worked_at.replace(now);
        let has_rested = std::mem::take(&mut self.is_resting);
        let Some(rested_ns) = before.filter(|_| has_rested).map(|before| now.since(before)) else {
            return;
        };
        if rested_ns >= self.soon_ns().saturating_mul(LONG) {
            self.long = HABIT.min(self.long + 1);
        } else if rested_ns >= self.soon_ns() {
            self.long = 0;
        }
    }

    /// It is at work, and since when nobody has seen.
    pub(crate) fn found_at_work(&mut self, now: Tick) {
        (self.worked_at, self.is_resting) = (Some(now), false);
    }

    /// It stood still for a reason of somebody else's, which says nothing of its habits.
    pub(crate) fn forget(&mut self) {
        self.is_resting = false;
    }

    /// Whether it rests for long as a habit, and has begun to.
    pub(crate) fn has_begun_a_long_one(&self, now: Tick) -> bool {
        let begun = self.worked_at.is_some_and(|at| now.since(at) >= self.soon_ns());
        begun && self.long == HABIT
    }
}

impl Inspect for Activity {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.count("doorbells", self.doorbells as usize);
        if let Some(at) = self.rang_at {
            tree.age("rang", at);
        }
        tree.age("used", self.used_at);
        tree.flag("lends", self.lends);
        tree.count("long_rests", self.rests.long.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A VM that worked at 0, and rests of so many milliseconds behind it.
    fn after(rests_ms: &[u64]) -> (Rests, Tick) {
        let (mut rests, mut now) = (Rests::default(), Tick(0));
        rests.end(now);
        for ms in rests_ms {
            rests.note_pass(false, 60 * MS);
            now = now.after(ms * MS);
            rests.end(now);
        }
        rests.note_pass(false, 60 * MS);
        (rests, now)
    }

    #[test]
    fn two_long_rests_are_a_habit_until_one_was_short() {
        for (rests_ms, is_habit) in [
            (&[][..], false),
            (&[240], false),
            (&[240, 240], true),
            (&[240, 239], false),
            (&[1_000, 1_000, 60], false),
            (&[1_000, 60, 1_000, 1_000], true),
            // No rest at all: between two pieces of work.
            (&[1_000, 59, 1, 1_000, 59], true),
        ] {
            let (rests, now) = after(rests_ms);
            let begun = |ms| rests.has_begun_a_long_one(now.after(ms * MS));
            assert_eq!(begun(60), is_habit, "{rests_ms:?}");
            assert!(!begun(59), "it has not paid yet");
        }
    }

    #[test]
    fn time_in_which_it_may_have_worked_is_no_rest() {
        type Meanwhile = fn(&mut Rests, Tick);
        let kinds: [(Meanwhile, bool); 4] = [
            (|rests, _| rests.note_pass(false, 0), true),
            (|rests, _| rests.note_pass(true, 0), false),
            (|rests, at| rests.found_at_work(at), false),
            (|rests, _| rests.forget(), false),
        ];
        for (meanwhile, counts) in kinds {
            let (mut rests, mut now) = after(&[1_000]);
            rests.is_resting = false;
            meanwhile(&mut rests, now.after(999 * MS));
            now = now.after(1_000 * MS);
            rests.end(now);
            let of_the_next = now.after(1_000 * MS);
            assert_eq!(rests.has_begun_a_long_one(of_the_next), counts);
        }
    }

    #[test]
    fn small_memory_is_lent_behind_a_break_and_not_before() {
        let (mut rests, mut now) = (Rests::default(), Tick(0));
        rests.end(now);
        for _ in 0..2 {
            rests.note_pass(false, 0);
            now = now.after(LONG * BREAK_NS);
            rests.end(now);
        }
        assert!(!rests.has_begun_a_long_one(now.after(BREAK_NS - 1)));
        assert!(rests.has_begun_a_long_one(now.after(BREAK_NS)));
    }
}
