//! Whether a VM's launches wait for their memory, or run at once on what is where it is: by what its own work took either way.
//!
//! ```text
//! Direct ─it can pay ([`forecast`]), the loading is paid for─► Trying ─faster─► Held ─a second is over─► Direct
//!   ▲                                                            │ not faster, or credit used up   │ slower than direct was
//!   └────────────────────────────────────────────────────────────┴──────────────────────────────────┘
//! ```
//!
//! A guest submits again when work has ended. So the time from one doorbell to the next is what the work of the first one took, waits for
//! memory and all. Work is compared with work of its own *kind*: the same codes, grids and copies. What it took directly is a running mean;
//! a kind that has none runs directly once. While another VM tries, while memory of its own moves, or when it took long to find out what
//! work uses, what it takes says nothing of its kind, and is left out.
//!
//! Before a trial the sets of some doorbells are looked up while they run directly ([`Free::with_looks`]).
//! A trial is not begun where a replay of the last doorbells says that loading, and finding out what to load, takes longer than the work itself. It is paid from a credit
//! that grows by [`EARNS`] of the time that work takes, so that all trials together cost no more than that. The first time of a kind within
//! a trial is not judged: its set is loaded then, and what counts is whether it is there the next time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::forecast::{InVram, Rung};
use crate::event::Tick;
use crate::memory::ChunkNo;

/// One part in so many of the time of work is earned for trials, up to so much.
const EARNS: u64 = 25;
const MOST_NS: i64 = 20_000_000;
/// A trial is judged when its work would have taken this part of what the last doorbells took directly, and so many doorbells at least; and
/// after so many at most.
const JUDGED_PART: u64 = 2;
const JUDGED_MIN: u32 = 4;
const JUDGED_MAX: u32 = 64;
/// Faster means by more than one part in so many.
const TELLS: u64 = 20;
/// A look is short beside work that takes so many times as long.
const SHORT_LOOK: u64 = 4;
/// Times its mean that a doorbell of a kind counts as at most.
const OUTLIER: u64 = 4;
/// Longer than so a guest was busy with something else.
const IDLE_NS: u64 = 100_000_000;
/// Time until the next trial, doubled for each one that failed in a row, up to so often.
const WAIT_NS: u64 = 50_000_000;
const DOUBLINGS: u32 = 6;
/// Time for which a VM is let alone until its work is known, it has credit, or another's trial is over.
const LEARN_NS: u64 = 20_000_000;
/// Longest time of a trial, and until work that is held runs directly for [`LEARN_NS`]: what it takes then may have changed.
const TRIAL_NS: u64 = 500_000_000;
const HELD_NS: u64 = 1_000_000_000;
/// Kinds of work that are kept; doorbells that are, and their chunks all together.
const KINDS_MAX: usize = 256;
const RECENT: usize = 32;
const CHUNKS_MAX: usize = 16_384;
/// Doorbells that must have been seen before the first trial.
const KNOWN_MIN: u32 = 4;
/// Doorbells whose sets a forecast needs.
const LOOKED_UP_MIN: usize = 16;
/// Loading that took longer than forecast counts as so many times as dear at most.
const DEARER_MAX: u64 = 16;

/// Whether work waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Mode {
    Direct { free: Free },
    Trying { until: Tick },
    Held { until: Tick },
}

/// Work is not held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Free {
    pub(super) until: Tick,
    /// What it will use is looked up all the same.
    pub(super) with_looks: bool,
}

/// What is known of one kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Kind {
    /// Mean time that it took directly, 0 if that is not known.
    direct_ns: u64,
    /// It was seen within the trial.
    is_warm: bool,
}

/// Chunks that work uses, and what it took to find them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found<'a> {
    pub(super) chunks: &'a BTreeSet<ChunkNo>,
    pub(super) look_ns: u64,
}

/// The last doorbell: its work may not have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Doorbell {
    kind: u64,
    at: Tick,
    look_ns: u64,
    /// Its work runs directly, whatever the mode.
    is_direct: bool,
}

/// A doorbell whose work has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Past {
    kind: u64,
    /// Chunks that it used, ascending, if they were looked up, and what that took.
    chunks: Option<Vec<ChunkNo>>,
    look_ns: u64,
}

/// Whether the work of one VM waits, and what is known of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Switch {
    mode: Mode,
    kinds: BTreeMap<u64, Kind>,
    /// The last doorbells, the latest at the end.
    recent: VecDeque<Past>,
    /// Doorbells whose time directly was seen.
    known: u32,
    last: Option<Doorbell>,
    /// Memory of the VM has moved since.
    is_disturbed: bool,
    credit_ns: i64,
    /// What judged work took, and what it would have taken directly.
    took_ns: u64,
    would_take_ns: u64,
    judged: u32,
    /// What the last doorbells took directly when the trial began, and what loading was to take.
    cycle_ns: u64,
    load_ns: u64,
    /// Trials that failed in a row.
    failed: u32,
    /// Work runs directly before this time, whatever the mode.
    direct_until: Tick,
    /// Loading takes so many times what is forecast.
    dearer: u64,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            mode: Mode::Direct {
                free: Free::default(),
            },
            kinds: BTreeMap::new(),
            recent: VecDeque::new(),
            known: 0,
            last: None,
            is_disturbed: false,
            credit_ns: 0,
            took_ns: 0,
            would_take_ns: 0,
            judged: 0,
            cycle_ns: 0,
            load_ns: 0,
            failed: 0,
            direct_until: Tick::default(),
            dearer: 1,
        }
    }
}

impl Switch {
    /// Work of a kind was submitted: what the one before took is known. `found`: what it uses, if that was looked up. `beside`: another VM
    /// tries.
    pub(super) fn work(&mut self, kind: u64, at: Tick, found: Option<Found<'_>>, beside: bool) {
        let look_ns = found.map_or(0, |found| found.look_ns);
        // More of what was rung for at once.
        if let Some(last) = self.last.as_mut().filter(|last| last.at == at) {
            last.look_ns = last.look_ns.saturating_add(look_ns);
            let kind = last.kind;
            if let Some(more) = found {
                self.note_found(kind, more);
            }
            return;
        }
        let doorbell = Doorbell {
            kind,
            at,
            look_ns,
            is_direct: at < self.direct_until,
        };
        let is_disturbed = std::mem::take(&mut self.is_disturbed);
        if let Some(before) = self.last.replace(doorbell) {
            let took = at.since(before.at);
            if took < IDLE_NS {
                self.took(before, took, at, beside || is_disturbed);
            }
        }
        if self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(&kind) {
            self.kinds.clear();
            self.recent.clear();
        }
        self.kinds.entry(kind).or_default();
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Past {
            kind,
            chunks: None,
            look_ns: 0,
        });
        if let Some(found) = found {
            self.note_found(kind, found);
        }
    }

    /// Memory of the VM has moved, or it has got some.
    pub(super) fn disturb(&mut self) {
        self.is_disturbed = true;
    }

    /// The last doorbell uses these too.
    fn note_found(&mut self, kind: u64, more: Found<'_>) {
        let kept = self.recent.iter().filter_map(|past| past.chunks.as_ref());
        let has_room = kept.map(Vec::len).sum::<usize>() + more.chunks.len() <= CHUNKS_MAX;
        if let Some(last) = self
            .recent
            .back_mut()
            .filter(|last| has_room && last.kind == kind)
        {
            let chunks = last.chunks.get_or_insert_default();
            chunks.extend(more.chunks);
            chunks.sort_unstable();
            chunks.dedup();
            last.look_ns = last.look_ns.saturating_add(more.look_ns);
        }
    }

    fn took(&mut self, of: Doorbell, took: u64, now: Tick, says_nothing: bool) {
        let Some(kind) = self.kinds.get_mut(&of.kind) else {
            return;
        };
        self.credit_ns = (self.credit_ns + (took / EARNS) as i64).min(MOST_NS);
        if of.is_direct || matches!(self.mode, Mode::Direct { .. }) {
            // Its guest waits for a look, and for others' turns if that took long.
            if !says_nothing && of.look_ns.saturating_mul(SHORT_LOOK) <= took {
                let took = took - of.look_ns;
                kind.direct_ns = match kind.direct_ns {
                    0 => took.max(1),
                    // One that took far longer waited for something else as well.
                    mean => (3 * mean + took.min(mean.saturating_mul(OUTLIER))) / 4,
                };
                self.known = self.known.saturating_add(1);
            }
            return;
        }
        if kind.direct_ns == 0 {
            self.credit_ns = self.credit_ns.saturating_sub_unsigned(of.look_ns);
            return;
        }
        let saved = kind.direct_ns as i64 - took as i64;
        self.credit_ns = (self.credit_ns + saved).min(MOST_NS);
        if std::mem::replace(&mut kind.is_warm, true) {
            self.took_ns += took;
            self.would_take_ns += kind.direct_ns;
            self.judged += 1;
        }
        self.judge(now);
    }

    fn judge(&mut self, now: Tick) {
        let is_faster = self.took_ns + self.would_take_ns / TELLS < self.would_take_ns;
        let is_slower = self.took_ns > self.would_take_ns;
        let is_enough =
            self.judged >= JUDGED_MIN && self.would_take_ns >= self.cycle_ns.div_ceil(JUDGED_PART);
        let is_far_slower = self.judged >= JUDGED_MIN && self.took_ns / 2 > self.would_take_ns;
        match self.mode {
            Mode::Trying { .. } | Mode::Held { .. } if self.is_overdrawn() => self.fail(now),
            Mode::Trying { .. } if is_enough && is_faster => {
                self.mode = Mode::Held {
                    until: now.after(HELD_NS),
                };
                self.failed = 0;
                self.forget_judged();
            }
            Mode::Trying { until } if self.judged >= JUDGED_MAX || now >= until => self.fail(now),
            Mode::Held { .. } if is_enough && is_slower || is_far_slower => self.fail(now),
            Mode::Held { .. } if self.judged >= JUDGED_MAX => self.forget_judged(),
            _ => {}
        }
    }

    /// It cost more than there was for it, and more than twice what was forecast.
    fn is_overdrawn(&self) -> bool {
        self.credit_ns <= -(self.load_ns as i64)
    }

    fn forget_judged(&mut self) {
        (self.took_ns, self.would_take_ns, self.judged) = (0, 0, 0);
    }

    fn fail(&mut self, now: Tick) {
        if self.is_overdrawn() {
            self.dearer = (self.dearer * 2).min(DEARER_MAX);
        }
        let wait = self.longer_wait();
        self.be_direct(now, wait, false);
        self.forget_judged();
    }

    /// Time until it is looked at again, longer each time.
    fn longer_wait(&mut self) -> u64 {
        let wait = WAIT_NS << self.failed.min(DOUBLINGS);
        self.failed = self.failed.saturating_add(1);
        wait
    }

    fn be_direct(&mut self, now: Tick, for_ns: u64, with_looks: bool) -> Free {
        let free = Free {
            until: now.after(for_ns),
            with_looks,
        };
        self.mode = Mode::Direct { free };
        free
    }

    /// Whether it tries now what loading brings.
    pub(super) fn tries(&self, now: Tick) -> bool {
        matches!(self.mode, Mode::Trying { until } if now < until)
    }

    /// Nothing can be loaded for a launch that waits: its set is larger than what the VM has.
    pub(super) fn found_no_room(&mut self, now: Tick) -> Free {
        if let Mode::Trying { .. } = self.mode {
            self.fail(now);
        }
        match self.mode {
            Mode::Direct { free } if now < free.until => free,
            _ => Free {
                until: now.after(LEARN_NS),
                with_looks: true,
            },
        }
    }

    /// Whether the VM's work is not held; `None`: its memory is to be loaded. `in_vram`: what the VM has there. `beside`: another VM tries.
    pub(super) fn free(&mut self, now: Tick, in_vram: impl FnOnce() -> InVram, beside: bool) -> Option<Free> {
        if let Some(free) = self.due(now, in_vram, beside) {
            return Some(free);
        }
        self.is_new_to_it().then(|| {
            // Its kind is known only when it was looked at, which is to take no more than its part of the time.
            let look_ns = self.last.map_or(0, |last| last.look_ns);
            self.direct_until = now.after(look_ns.saturating_mul(TELLS).max(1));
            Free {
                until: self.direct_until,
                with_looks: false,
            }
        })
    }

    /// The same before it was looked at what the work is: a look at work that is not to be held would be in vain, and keeps it waiting.
    pub(super) fn due(&mut self, now: Tick, in_vram: impl FnOnce() -> InVram, beside: bool) -> Option<Free> {
        match self.mode {
            Mode::Direct { free } if now < free.until => Some(free),
            Mode::Direct { free } => self.stays_direct(now, free.with_looks, in_vram, beside),
            Mode::Trying { until } if now >= until => {
                self.fail(now);
                Some(self.found_no_room(now))
            }
            Mode::Held { until } if now >= until => Some(self.be_direct(now, LEARN_NS, true)),
            Mode::Trying { .. } | Mode::Held { .. } => None,
        }
    }

    /// Begins a trial, or says for how long there is none.
    fn stays_direct(
        &mut self,
        now: Tick,
        had_looks: bool,
        in_vram: impl FnOnce() -> InVram,
        beside: bool,
    ) -> Option<Free> {
        if beside || self.credit_ns <= 0 || self.known < KNOWN_MIN {
            return Some(self.be_direct(now, LEARN_NS, had_looks));
        }
        let direct_ns = |past: &Past| self.kinds.get(&past.kind).map_or(0, |kind| kind.direct_ns);
        let looked_up = self.recent.iter();
        let looked_up = looked_up.filter_map(|past| {
            Some(Rung {
                chunks: past.chunks.as_deref()?,
                takes_ns: direct_ns(past),
                look_ns: past.look_ns,
            })
        });
        let looked_up: Vec<Rung<'_>> = looked_up.collect();
        if looked_up.len() < LOOKED_UP_MIN {
            return Some(self.be_direct(now, LEARN_NS, true));
        }
        let forecast = in_vram().forecast(&looked_up);
        let first_ns = forecast.first_ns.saturating_mul(self.dearer);
        let again_ns = forecast.again_ns.saturating_mul(self.dearer);
        let looks_ns = forecast.looks_ns;
        // Nothing that could be loaded; or it takes more than can be gained; or nobody could tell what is gained.
        let is_vain =
            first_ns + again_ns == 0 || again_ns + looks_ns + forecast.takes_ns / TELLS >= forecast.gains_ns;
        let first_ns = first_ns.saturating_add(looks_ns);
        if is_vain {
            let for_ns = self.longer_wait();
            return Some(self.be_direct(now, for_ns, false));
        }
        if self.credit_ns.cast_unsigned() < first_ns.min(MOST_NS.cast_unsigned()) {
            return Some(self.be_direct(now, LEARN_NS, true));
        }
        self.mode = Mode::Trying {
            until: now.after(TRIAL_NS),
        };
        (self.cycle_ns, self.load_ns) = (forecast.takes_ns, first_ns.min(MOST_NS.cast_unsigned()));
        self.forget_judged();
        self.kinds.values_mut().for_each(|kind| kind.is_warm = false);
        None
    }

    /// Whether the last doorbell is of a kind that never ran directly. It does now.
    fn is_new_to_it(&mut self) -> bool {
        let Some(last) = &mut self.last else { return false };
        let is_known = self.kinds.get(&last.kind).is_some_and(|kind| kind.direct_ns > 0);
        last.is_direct = !is_known;
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::looks::Looks;

    /// A guest that does two kinds of work in turn, each with a set of four chunks, which takes `direct_ns` directly. Held, its set is loaded
    /// in `load_ns` the first time, and every time if the two do not fit together; then it takes `held_ns`.
    #[derive(Clone, Copy)]
    struct Guest {
        direct_ns: u64,
        held_ns: u64,
        load_ns: u64,
        /// What it takes to look up what is used.
        look_ns: u64,
        /// Chunks that it may have in VRAM.
        room: u32,
        /// Doorbells after which work is of another kind for good.
        changes_after: u64,
        /// Its first sets are in VRAM from the beginning, and other memory of it is not.
        is_there: bool,
    }

    const GUEST: Guest = Guest {
        direct_ns: 1_000_000,
        held_ns: 800_000,
        load_ns: 3_000_000,
        look_ns: 0,
        room: 4,
        changes_after: u64::MAX,
        is_there: false,
    };

    fn set(kind: u64) -> BTreeSet<ChunkNo> {
        (0..4).map(|no| ChunkNo(kind as u32 * 4 + no)).collect()
    }

    impl Guest {
        /// Time that so many doorbells take, as a multiple of what they take directly, and how many found their set loaded.
        fn run(&self, doorbells: u64) -> (f64, u64) {
            let (mut switch, mut looks, mut now) = (Switch::default(), Looks::default(), Tick(0));
            // At first there is something else.
            let first = if self.is_there { 0 } else { 1_000_000 };
            let mut loaded: VecDeque<ChunkNo> = (first..first + self.room).map(ChunkNo).collect();
            let (mut free, mut found) = (Free::default(), 0);
            for doorbell in 0..doorbells {
                let kind = doorbell % 2 + doorbell / self.changes_after * 2;
                let set = set(kind);
                let in_vram = || InVram {
                    chunk_bytes: 1 << 20,
                    chunks: loaded.iter().copied().collect(),
                };
                let mut waits = now >= free.until;
                if waits && let Some(until) = switch.due(now, in_vram, false) {
                    (free, waits) = (until, false);
                }
                let is_looked_up = waits || free.with_looks && looks.may_look(now);
                if is_looked_up && !waits {
                    looks.spend(self.look_ns);
                    looks.end(1, self.look_ns);
                }
                let of = Found {
                    chunks: &set,
                    look_ns: self.look_ns,
                };
                switch.work(kind, now, is_looked_up.then_some(of), false);
                let mut is_there = set.iter().all(|chunk| loaded.contains(chunk));
                let mut took = if is_looked_up { self.look_ns } else { 0 };
                if !is_there && waits {
                    match switch.free(now, in_vram, false) {
                        Some(until) => free = until,
                        None => {
                            took += self.load_ns;
                            loaded.retain(|chunk| !set.contains(chunk));
                            loaded.extend(&set);
                            loaded.drain(..loaded.len() - self.room as usize);
                            is_there = true;
                        }
                    }
                }
                found += u64::from(is_there);
                took += if is_there { self.held_ns } else { self.direct_ns };
                now = now.after(took);
            }
            (now.0 as f64 / (doorbells * self.direct_ns) as f64, found)
        }
    }

    #[test]
    fn sets_that_fit_are_loaded_and_stay() {
        let guest = Guest {
            direct_ns: 2_000_000,
            held_ns: 500_000,
            load_ns: 5_000_000,
            room: 8,
            ..GUEST
        };
        let (took, _) = guest.run(1000);
        assert!(took < 0.35, "{took:.3}");
    }

    /// The first loading would take longer than the work: no trial is needed to know that.
    #[test]
    fn sets_that_throw_each_other_out_run_where_they_are() {
        let (took, found) = GUEST.run(5_000);
        assert!((took - 1.0).abs() < 1e-9 && found == 0, "{took:.3}, {found}");
    }

    /// Launches that take less time than it takes to find out what they use.
    #[test]
    fn work_that_is_shorter_than_a_look_is_left_alone() {
        let guest = Guest {
            direct_ns: 100_000,
            held_ns: 20_000,
            load_ns: 1_000_000,
            look_ns: 500_000,
            room: 8,
            ..GUEST
        };
        let (took, found) = guest.run(20_000);
        assert!(took < 1.08 && found == 0, "{took:.3}, {found}");
        let (took, found) = Guest {
            look_ns: 5_000,
            ..guest
        }
        .run(20_000);
        assert!(took < 0.5 && found > 10_000, "{took:.3}, {found}");
    }

    /// Nothing ever waits for memory then, so only [`Switch::due`] is asked.
    #[test]
    fn work_whose_memory_is_there_is_not_looked_at_again_and_again() {
        let guest = Guest {
            direct_ns: 8_000,
            held_ns: 8_000,
            look_ns: 168_000,
            room: 8,
            is_there: true,
            ..GUEST
        };
        let (took, _) = guest.run(100_000);
        assert!(took < 1.05, "{took:.3}");
    }

    #[test]
    fn loading_each_time_is_kept_up_where_it_pays() {
        let guest = Guest {
            direct_ns: 10_000_000,
            held_ns: 2_000_000,
            ..GUEST
        };
        let (took, _) = guest.run(500);
        assert!(took < 0.6, "{took:.3}");
    }

    #[test]
    fn trials_that_bring_nothing_cost_no_more_than_what_is_earned() {
        let mut tried = 0;
        for (held_ns, load_ns) in [(10_000_000, 0), (10_000_000, 10_000_000), (9_900_000, 2_000_000)] {
            let guest = Guest {
                direct_ns: 10_000_000,
                held_ns,
                load_ns,
                ..GUEST
            };
            let (took, found) = guest.run(3_000);
            assert!(took < 1.05, "{held_ns}, {load_ns}: {took:.3}");
            tried += u64::from(found > 0);
        }
        assert_eq!(tried, 3);
    }

    /// What is held because it was faster once stays so no longer than it is.
    #[test]
    fn work_that_changes_while_it_is_held_runs_directly_first() {
        let guest = Guest {
            direct_ns: 10_000_000,
            held_ns: 2_000_000,
            load_ns: 3_000_000,
            changes_after: 120,
            ..GUEST
        };
        let (took, found) = guest.run(120);
        assert!(took < 0.95 && found > 20, "{took:.3}, {found}");
        let (took, _) = guest.run(360);
        assert!(took < 0.95, "{took:.3}");
        // Work that is new each time has no time directly to be held against.
        let guest = Guest {
            changes_after: 2,
            ..guest
        };
        let (took, found) = guest.run(1000);
        assert!(took <= 1.0 && found == 0, "{took:.3}, {found}");
    }

    #[test]
    fn one_vm_tries_at_a_time_and_what_others_take_meanwhile_is_not_learnt() {
        let mut switch = Switch::default();
        let all = set(0);
        let all = Found {
            chunks: &all,
            look_ns: 0,
        };
        for at in 0..200 {
            switch.work(0, Tick(at * 1_000_000), Some(all), false);
        }
        let known = switch.clone();
        switch.work(0, Tick(290_000_000), Some(all), true);
        switch.work(0, Tick(291_000_000), Some(all), true);
        assert_eq!(switch.kinds, known.kinds);
        let in_vram = || InVram {
            chunk_bytes: 1 << 20,
            chunks: (8..16).map(ChunkNo).collect(),
        };
        let now = Tick(300_000_000);
        assert!(switch.free(now, in_vram, true).is_some() && !switch.tries(now));
        let now = now.after(LEARN_NS);
        assert!(switch.free(now, in_vram, false).is_none() && switch.tries(now));
        assert!(!switch.tries(now.after(TRIAL_NS)));
    }
}
