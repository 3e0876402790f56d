//! The rules of the crate, in orders of a few threads' accesses, with the values that weak memory may show (loom): all orders of two
//! searches, and of more those in which a thread that could go on makes way for another at most five times.
//!
//! Whoever has a unit adds one to its count by a load and a store. If two had it at once, or if the second did not see what the first
//! did, one of them is missing at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, AtomicUsize};
use loom::thread;

use super::*;

/// A word as it should be.
struct Sound(AtomicU64);

impl Word for Sound {
    fn new(bits: u64) -> Self {
        Self(AtomicU64::new(bits))
    }

    fn look(&self) -> u64 {
        self.0.load(Acquire)
    }

    fn set(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_or(bits, order)
    }

    fn clear(&self, bits: u64, order: Ordering) -> u64 {
        self.0.fetch_and(!bits, order)
    }
}

/// Planted words: each is [`Sound`] but for one method.
macro_rules! planted {
    ($($(#[$about:meta])* $Name:ident: $method:ident($word:ident $(, $argument:ident: $Kind:ty)*) $body:expr;)*) => {
        $(
            $(#[$about])*
            struct $Name(Sound);

            impl Planted for $Name {
                fn sound(&self) -> &Sound {
                    &self.0
                }

                fn plant(bits: u64) -> Self {
                    Self(Sound::new(bits))
                }

                fn $method(&self $(, $argument: $Kind)*) -> u64 {
                    let $word = &self.0.0;
                    $body
                }
            }
        )*
    };
}

trait Planted {
    fn sound(&self) -> &Sound;
    fn plant(bits: u64) -> Self;

    fn look_at(&self) -> u64 {
        self.sound().look()
    }

    fn set_of(&self, bits: u64, order: Ordering) -> u64 {
        self.sound().set(bits, order)
    }

    fn clear_of(&self, bits: u64, order: Ordering) -> u64 {
        self.sound().clear(bits, order)
    }
}

impl<P: Planted> Word for P {
    fn new(bits: u64) -> Self {
        Self::plant(bits)
    }

    fn look(&self) -> u64 {
        self.look_at()
    }

    fn set(&self, bits: u64, order: Ordering) -> u64 {
        self.set_of(bits, order)
    }

    fn clear(&self, bits: u64, order: Ordering) -> u64 {
        self.clear_of(bits, order)
    }
}

planted! {
    /// A lock that everybody gets.
    Skipped: set_of(word, bits: u64, order: Ordering) {
        word.fetch_or(bits, order);
        0
    };
    /// A lock that is looked at and then set: two may find it clear.
    Late: set_of(word, bits: u64, order: Ordering) match word.load(Acquire) {
        set if set & bits != 0 => set,
        _ => word.fetch_or(bits, order) & !bits,
    };
    /// A lock whose next holder need not see what the last one set.
    Unordered: clear_of(word, bits: u64, _order: Ordering) word.fetch_and(!bits, Relaxed);
    /// A lock that is given away to all waiting at once: clearing it clears its neighbours.
    Broad: clear_of(word, _bits: u64, order: Ordering) word.fetch_and(0, order);
    /// Bits that are set by a load and a store: what is cleared meanwhile is lost.
    Torn: set_of(word, bits: u64, _order: Ordering) {
        let before = word.load(Acquire);
        word.store(before | bits, Release);
        before
    };
    /// Bits whose taker need not see what the giver did.
    Unseen: look_at(word) word.load(Relaxed);
    /// Bits whose giver need not have finished.
    Unfinished: clear_of(word, bits: u64, _order: Ordering) word.fetch_and(!bits, Relaxed);
}

/// Units that a few threads share.
struct Shared<W, L> {
    maps: Maps<W, L>,
    /// How often each of those was had that are free at first, which are so many of each word.
    had: Vec<AtomicUsize>,
    free: u32,
}

/// What a thread does: to take so many units, one after the other, each from the words that it draws in turn.
#[derive(Clone, Copy)]
struct Task {
    takes: usize,
    draws: &'static [u32],
    /// Whether it gives each one back before it takes the next.
    gives: bool,
}

/// What it came to.
#[derive(Default)]
struct Done {
    held: Vec<u32>,
    took: usize,
    full: usize,
}

impl<W: Word, L: Word> Shared<W, L> {
    fn run(&self, task: Task) -> Done {
        let mut done = Done::default();
        for _ in 0..task.takes {
            let mut draws = task.draws.iter().cycle();
            let search = self.maps.take(|_| draws.next().copied().unwrap_or(0));
            let unit = match search.ended {
                Ended::Took(unit) => unit,
                Ended::Full => {
                    done.full += 1;
                    continue;
                }
                Ended::HeldUp => continue,
            };
            let had = &self.had[(unit / BITS * self.free + unit % BITS) as usize];
            had.store(had.load(Relaxed) + 1, Relaxed);
            done.took += 1;
            match task.gives {
                true => self.maps.give(unit).expect("given back twice"),
                false => done.held.push(unit),
            }
        }
        done
    }

    /// What must hold once all threads are done, whatever their order was.
    fn check(&self, done: &[Done]) {
        let mut held: Vec<u32> = done.iter().flat_map(|done| done.held.clone()).collect();
        held.sort_unstable();
        let count = held.len();
        held.dedup();
        assert_eq!(held.len(), count, "a unit was given twice");
        let had: usize = self.had.iter().map(|had| had.load(Relaxed)).sum();
        let took: usize = done.iter().map(|done| done.took).sum();
        assert_eq!(had, took, "two had a unit at once");
        let left: u32 = self.maps.taken.iter().map(|word| word.look().count_zeros()).sum();
        assert_eq!(left as usize, self.had.len() - count, "a unit was lost");
        for unit in held {
            self.maps.give(unit).expect("a unit that is held is not taken");
        }
        assert!(
            self.maps.locks.iter().all(|lock| lock.look() == 0),
            "a lock stays"
        );
    }
}

/// Runs two threads or more. Of the words of 64 units all but the first `free` of each are taken.
fn check<W, L>(words: u32, free: u32, tasks: &'static [Task])
where
    W: Word + Send + Sync + 'static,
    L: Word + Send + Sync + 'static,
{
    let mut builder = loom::model::Builder::new();
    let takes: usize = tasks.iter().map(|task| task.takes).sum();
    builder.preemption_bound = (takes > 2).then_some(5);
    builder.check(move || {
        let shared = Shared {
            maps: Maps::<W, L>::new(words * BITS, 2),
            had: (0..words * free).map(|_| AtomicUsize::new(0)).collect(),
            free,
        };
        for word in &shared.maps.taken {
            word.set(!0 << free, Relaxed);
        }
        let shared = Arc::new(shared);
        let (own, others) = tasks.split_first().expect("a task");
        let start = |&task| {
            let shared = shared.clone();
            thread::spawn(move || shared.run(task))
        };
        let others: Vec<_> = others.iter().map(start).collect();
        let mut done = vec![shared.run(*own)];
        done.extend(others.into_iter().map(|thread| thread.join().expect("it ends")));
        shared.check(&done);
        let is_enough = takes <= (words * free) as usize;
        assert!(
            !is_enough || done.iter().all(|done| done.full == 0),
            "full, and it is not"
        );
    });
}

const KEEP: Task = Task {
    takes: 1,
    draws: &[0],
    gives: false,
};
const PASS: Task = Task {
    takes: 2,
    draws: &[0],
    gives: true,
};

/// What the checker says of words, where they may break.
fn found<W, L>(words: u32, free: u32, tasks: &'static [Task]) -> Option<String>
where
    W: Word + Send + Sync + 'static,
    L: Word + Send + Sync + 'static,
{
    let broke = catch_unwind(AssertUnwindSafe(|| check::<W, L>(words, free, tasks))).err()?;
    let text = broke.downcast_ref::<String>().cloned();
    text.or_else(|| broke.downcast_ref::<&str>().map(|&text| text.to_owned()))
}

#[test]
fn two_that_want_the_same_word_get_different_units_or_none() {
    check::<Sound, Sound>(1, 2, &[KEEP, KEEP]);
}

#[test]
fn three_get_different_units_or_none() {
    check::<Sound, Sound>(1, 3, &[KEEP, KEEP, KEEP]);
}

#[test]
fn last_unit_goes_from_hand_to_hand() {
    const ONCE: Task = Task { takes: 1, ..PASS };
    check::<Sound, Sound>(1, 1, &[ONCE, ONCE]);
    check::<Sound, Sound>(1, 1, &[PASS, PASS]);
}

#[test]
fn what_is_given_back_beside_a_search_is_not_lost() {
    check::<Sound, Sound>(1, 2, &[PASS, KEEP]);
}

#[test]
fn locked_word_is_left_for_another() {
    const SECOND: Task = Task {
        draws: &[0, 1],
        ..KEEP
    };
    check::<Sound, Sound>(2, 1, &[KEEP, SECOND]);
    check::<Sound, Sound>(2, 2, &[Task { takes: 2, ..KEEP }, Task { takes: 2, ..SECOND }]);
}

#[test]
fn planted_locks_are_found() {
    let twice = |said: Option<String>| {
        said.is_some_and(|said| said.contains("a unit was given twice") || said.contains("given back twice"))
    };
    assert!(twice(found::<Sound, Skipped>(1, 2, &[KEEP, KEEP])));
    assert!(twice(found::<Sound, Late>(1, 2, &[KEEP, KEEP])));
    assert!(twice(found::<Sound, Unordered>(1, 2, &[KEEP, KEEP])));
}

#[test]
fn planted_lock_that_frees_its_neighbours_is_found() {
    const SECOND: Task = Task { draws: &[1], ..KEEP };
    let said = found::<Sound, Broad>(2, 2, &[KEEP, KEEP, SECOND]);
    assert!(said.is_some_and(|said| said.contains("a unit was given twice")));
}

#[test]
fn planted_bits_are_found() {
    let lost = found::<Torn, Sound>(1, 2, &[PASS, KEEP]);
    assert!(lost.is_some_and(|said| said.contains("a unit was lost")));
    let at_once = |said: Option<String>| said.is_some_and(|said| said.contains("two had a unit at once"));
    assert!(at_once(found::<Unseen, Sound>(1, 1, &[PASS, PASS])));
    assert!(at_once(found::<Unfinished, Sound>(1, 1, &[PASS, PASS])));
}
