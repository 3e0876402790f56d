//! The bitmap, its LockMap, and the walk.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

const BITS: u32 = u64::BITS;
/// Words that a walk draws before it searches in order. With one unit in a thousand free, 256 draws of 64 find none once in ten million
/// searches.
const DRAWS_MAX: u32 = 256;

/// 64 bits that several threads change. A model checker brings its own.
trait Word {
    fn new(bits: u64) -> Self;
    /// All bits, acquired.
    fn look(&self) -> u64;
    /// Sets bits at once; returns all of them as they were.
    fn set(&self, bits: u64, order: Ordering) -> u64;
    /// Clears bits at once; returns all of them as they were.
    fn clear(&self, bits: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    fn new(bits: u64) -> Self {
        Self::new(bits)
    }

    fn look(&self) -> u64 {
        self.load(Acquire)
    }

    fn set(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_or(bits, order)
    }

    fn clear(&self, bits: u64, order: Ordering) -> u64 {
        self.fetch_and(!bits, order)
    }
}

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With this unit, which is the caller's until it is given back.
    Took(u32),
    /// No word had a free unit when it was looked at. While nobody gives any back, all are taken.
    Full,
    /// Only words that others had locked had free units. Whoever tries again will find one, or that there is none.
    HeldUp,
}

/// What a search took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Search {
    /// The unit, or why there is none.
    pub ended: Ended,
    /// Words it went to: the steps of the paper (section 3.2.1).
    pub steps: u32,
    /// How many of these words another thread had locked.
    pub locked: u32,
}

/// A unit that is to be given back and that nobody has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotTaken {
    /// The number that was given back.
    pub unit: u32,
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unit {} is not taken", self.unit)
    }
}

impl std::error::Error for NotTaken {}

/// Units with the numbers `0..count`, each taken by one thread at a time.
///
/// Beside the bitmap of a bit for each unit there is one bit for 64 of them.
#[derive(Debug)]
pub struct Units(Maps<AtomicU64, AtomicU64>);

impl Units {
    /// All of them free.
    pub fn new(count: u32) -> Self {
        Self(Maps::new(count, DRAWS_MAX))
    }

    /// Takes a free unit. `draw` gives a number below its argument, each with the same chance; threads draw independently.
    ///
    /// After 256 draws in vain it goes through all words once, in order. It never waits.
    pub fn take(&self, draw: impl FnMut(u32) -> u32) -> Search {
        self.0.take(draw)
    }

    /// Gives a unit back that the caller has.
    ///
    /// # Errors
    /// Nobody has it, or there is no such unit; nothing changed.
    pub fn give(&self, unit: u32) -> Result<(), NotTaken> {
        self.0.give(unit)
    }
}

/// What a look at a word found.
enum Look {
    Took(u32),
    Full,
    Locked,
}

/// The two bitmaps; `W` of units, `L` of locks.
#[derive(Debug)]
struct Maps<W, L> {
    /// A bit for each unit, set while it is taken, and for good behind the last one.
    taken: Box<[W]>,
    /// The LockMap: a bit for each word of `taken`.
    locks: Box<[L]>,
    count: u32,
    draws_max: u32,
}

impl<W: Word, L: Word> Maps<W, L> {
    fn new(count: u32, draws_max: u32) -> Self {
        let words = count.div_ceil(BITS);
        let bits = |at: u32| match count - at * BITS {
            left if left < BITS => !0 << left,
            _ => 0,
        };
        Self {
            taken: (0..words).map(|at| W::new(bits(at))).collect(),
            locks: (0..words.div_ceil(BITS)).map(|_| L::new(0)).collect(),
            count,
            draws_max,
        }
    }

    fn take(&self, mut draw: impl FnMut(u32) -> u32) -> Search {
        let words = self.taken.len();
        let mut search = Search {
            ended: Ended::Full,
            steps: 0,
            locked: 0,
        };
        if words == 0 {
            return search;
        }
        let mut at = 0;
        for _ in 0..self.draws_max {
            // A number that is too large wraps.
            at = draw(words as u32) as usize % words;
            search.count(&self.step(at));
            if let Ended::Took(_) = search.ended {
                return search;
            }
        }
        for at in (at..words).chain(0..at) {
            // Words are looked at without their locks here: most are full.
            let look = match self.taken[at].look() {
                bits if bits == !0 => Look::Full,
                _ => self.step(at),
            };
            search.count(&look);
            match look {
                Look::Took(_) => break,
                Look::Full => {}
                Look::Locked => search.ended = Ended::HeldUp,
            }
        }
        search
    }

    /// Takes the lowest free unit of a word, if there is one and nobody else takes from it now.
    fn step(&self, at: usize) -> Look {
        let (lock, bit) = (&self.locks[at / BITS as usize], 1 << (at % BITS as usize));
        if lock.set(bit, Acquire) & bit != 0 {
            return Look::Locked;
        }
        let free = self.taken[at].look().trailing_ones();
        if free < BITS {
            // Nobody else sets bits of this word now, but some may be cleared.
            self.taken[at].set(1 << free, Relaxed);
        }
        lock.clear(bit, Release);
        match free {
            BITS => Look::Full,
            _ => Look::Took(at as u32 * BITS + free),
        }
    }

    fn give(&self, unit: u32) -> Result<(), NotTaken> {
        let bit = 1 << (unit % BITS);
        let word = self.taken.get((unit / BITS) as usize);
        let had = word
            .filter(|_| unit < self.count)
            .map(|word| word.clear(bit, Release));
        match had {
            Some(bits) if bits & bit != 0 => Ok(()),
            _ => Err(NotTaken { unit }),
        }
    }
}

impl Search {
    /// One word more.
    fn count(&mut self, look: &Look) {
        self.steps += 1;
        match *look {
            Look::Took(unit) => self.ended = Ended::Took(unit),
            Look::Full => {}
            Look::Locked => self.locked += 1,
        }
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
