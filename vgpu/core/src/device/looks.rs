//! Looks at work for which nothing waits: how much of the time they may take.
//!
//! A launch may take less time than it takes to find out what it will use. So looks that find that out are paid from a credit, a [`PART`]th of
//! the time. They come in bursts, because what follows what matters to policies: one begins when there is credit for [`BURST`] looks like the
//! last ones, and ends when all of it is used up. What a burst sees stands for what was not seen since the last one ([`Looks::stands_for`]).

use serde::{Deserialize, Serialize};

use crate::event::Tick;
use crate::inspect::{Inspect, Tree};
use crate::saved::Unsound;

/// One part in so many of the time is earned for looks, up to so much.
const PART: u64 = 32;
const CREDIT_MAX_NS: i64 = 8_000_000;
/// Looks that there must be credit for when a burst begins, and what one is taken to cost before there was any.
const BURST: u64 = 24;
const MEAN_NS: u64 = 40_000;

/// The credit of one VM.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Looks {
    credit_ns: i64,
    earned_at: Tick,
    /// A burst is under way.
    is_on: bool,
    mean_ns: u64,
    /// Entries of rings that this burst has seen, and those that none has since the last one.
    seen: u64,
    unseen: u64,
    stands_for: u32,
}

impl Default for Looks {
    fn default() -> Self {
        Self {
            credit_ns: 0,
            earned_at: Tick::default(),
            is_on: false,
            mean_ns: MEAN_NS,
            seen: 0,
            unseen: 0,
            stands_for: 1,
        }
    }
}

impl Looks {
    /// Whether a look may find out what work uses.
    pub(crate) fn may_look(&mut self, now: Tick) -> bool {
        let earned = now.since(self.earned_at) / PART;
        self.earned_at = self.earned_at.after(earned * PART);
        let earned = i64::try_from(earned).unwrap_or(i64::MAX);
        self.credit_ns = self.credit_ns.saturating_add(earned).min(CREDIT_MAX_NS);
        let burst = i64::try_from(self.mean_ns.saturating_mul(BURST)).unwrap_or(i64::MAX);
        if !self.is_on && self.credit_ns >= burst.min(CREDIT_MAX_NS) {
            let unseen = self.unseen.checked_div(self.seen).unwrap_or(0);
            self.stands_for = u32::try_from(unseen.saturating_add(1)).unwrap_or(u32::MAX);
            (self.seen, self.unseen) = (0, 0);
            self.is_on = true;
        }
        self.is_on
    }

    /// A part of a look, which may have several and be given up between them. One that has begun goes on as long as the debt is bounded.
    pub(crate) fn spend(&mut self, cost_ns: u64) {
        self.credit_ns = self.credit_ns.saturating_sub_unsigned(cost_ns);
        self.is_on &= self.credit_ns > -CREDIT_MAX_NS;
    }

    /// A look at so many entries came to its end. All of its parts together have cost this.
    pub(crate) fn end(&mut self, entries: u64, cost_ns: u64) {
        self.mean_ns = self.mean_ns.saturating_mul(7).saturating_add(cost_ns) / 8;
        self.seen = self.seen.saturating_add(entries);
        self.is_on &= self.credit_ns > 0;
    }

    /// So many entries were passed without finding out what they use.
    pub(crate) fn pass(&mut self, entries: u64) {
        self.unseen = self.unseen.saturating_add(entries);
    }

    /// How many entries one that is seen stands for.
    pub(crate) fn stands_for(&self) -> u32 {
        self.stands_for
    }

    /// What must be so of one that was read.
    pub(crate) fn check(&self) -> Result<(), Unsound> {
        // A look is bounded work, so no sum of them comes near the ends of the types.
        let far = i64::MAX.unsigned_abs() / 16;
        let is_sound = self.credit_ns <= CREDIT_MAX_NS
            && self.credit_ns.unsigned_abs() < far
            && self.mean_ns < far
            && self.stands_for > 0;
        Unsound::unless(is_sound, "a credit for looks that nobody can have")
    }
}

impl Inspect for Looks {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.flag("is_looking", self.is_on);
        tree.nanoseconds("credit", self.credit_ns.max(0).unsigned_abs());
        tree.nanoseconds("mean_cost", self.mean_ns);
        tree.count("entry_stands_for", self.stands_for as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of `entries` entries that come `apart_ns` after each other, where a look costs `cost_ns`: how many were seen, the time that
    /// looks took in thousandths, and for how many entries those stand that were seen.
    fn run(entries: u64, apart_ns: u64, cost_ns: u64) -> (u64, u64, u64) {
        let (mut looks, mut seen, mut stands_for) = (Looks::default(), 0, 0);
        for entry in 0..entries {
            if looks.may_look(Tick(entry * apart_ns)) {
                looks.spend(cost_ns);
                looks.end(1, cost_ns);
                seen += 1;
                stands_for += u64::from(looks.stands_for());
            } else {
                looks.pass(1);
            }
            looks.check().expect("sound");
        }
        (seen, 1000 * seen * cost_ns / (entries * apart_ns), stands_for)
    }

    #[test]
    fn looks_take_their_part_of_the_time_whatever_they_cost() {
        for (apart_ns, cost_ns) in [
            (100_000, 500_000),
            (100_000, 40_000),
            (1_000_000, 400_000),
            (20_000, 5_000),
        ] {
            let (seen, thousandths, stands_for) = run(200_000, apart_ns, cost_ns);
            assert!(
                (28..=32).contains(&thousandths),
                "{apart_ns}, {cost_ns}: {thousandths}"
            );
            // What was seen stands for everything, but for what came before the first burst and behind the last.
            assert!(
                (180_000..=220_000).contains(&stands_for),
                "{seen} stand for {stands_for}"
            );
        }
    }

    #[test]
    fn cheap_looks_see_everything() {
        let (seen, ..) = run(10_000, 1_000_000, 20_000);
        assert!(seen > 9_900, "{seen}");
    }

    #[test]
    fn looks_that_never_end_take_their_part_too() {
        let (mut looks, mut taken) = (Looks::default(), 0_u64);
        let (entries, apart_ns) = (200_000, 100_000);
        for entry in 0..entries {
            if looks.may_look(Tick(entry * apart_ns)) {
                looks.spend(300_000);
                taken += 300_000;
            }
            looks.check().expect("sound");
        }
        let all = entries * apart_ns;
        assert!(
            taken <= all / PART + CREDIT_MAX_NS.unsigned_abs() * 2 && taken > all / PART / 2,
            "{taken} ns of {all}"
        );
    }

    #[test]
    fn bursts_are_long_enough_to_see_what_follows_what() {
        let mut looks = Looks::default();
        let mut bursts = vec![0];
        for entry in 0..100_000 {
            match looks.may_look(Tick(entry * 100_000)) {
                true => {
                    looks.spend(200_000);
                    looks.end(1, 200_000);
                    *bursts.last_mut().expect("one") += 1;
                }
                false if bursts.last() != Some(&0) => bursts.push(0),
                false => {}
            }
        }
        bursts.pop();
        assert!(
            bursts.len() > 5 && bursts[2..].iter().all(|burst| *burst >= 20),
            "{bursts:?}"
        );
    }
}
