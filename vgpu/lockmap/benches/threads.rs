//! Taking a unit and giving one back, by one thread and by two at once: `cargo bench -p lockmap`.
//!
//! Each thread has some units all the time. It takes one and gives back the one that it has had longest, so that what is free does not
//! stay where it was. Random walks are compared with first fit under a mutex, a list under a mutex, and a queue without locks. The walk
//! without a LockMap shows what that costs: it sets a bit and looks afterwards whether another was first.

#[path = "../../../integration/benches/pairs/cores.rs"]
mod cores;
#[path = "../../../integration/benches/pairs/mod.rs"]
mod pairs;

use std::collections::{BTreeSet, VecDeque};
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use lockmap::{Ended, Units};
use pairs::{Measure, Mode, Table, Way};

/// Frames of a card of 8 GiB.
const UNITS: u32 = 65_536;
const WORDS: usize = UNITS as usize / 64;
/// Free units while the threads have theirs, in thousandths.
const SHARES: [u32; 3] = [500, 100, 10];
/// Units that a thread has.
const HELD: usize = 128;
/// Units that each thread takes in a round.
const TURNS: u32 = 20_000;
const ROUNDS: usize = 101;

/// Numbers of one thread, by xorshift (Marsaglia 2003): the same few cycles for all that draw.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(end)) >> 32) as u32
    }
}

/// Somebody who gives units to threads.
trait Pool: Sync {
    /// `None`: none was found, or others were at work where one is.
    fn take(&self, thread: usize, draws: &mut Draws) -> Option<u32>;
    fn give(&self, unit: u32);
}

impl Pool for Units {
    fn take(&self, _: usize, draws: &mut Draws) -> Option<u32> {
        match Units::take(self, |end| draws.below(end)).ended {
            Ended::Took(unit) => Some(unit),
            Ended::Full | Ended::HeldUp => None,
        }
    }

    fn give(&self, unit: u32) {
        Units::give(self, unit).expect("taken before");
    }
}

/// A random walk in which the bit itself says who was first.
struct NoLockMap(Vec<AtomicU64>);

impl Pool for NoLockMap {
    fn take(&self, _: usize, draws: &mut Draws) -> Option<u32> {
        (0..256).find_map(|_| {
            let at = draws.below(WORDS as u32);
            let word = &self.0[at as usize];
            let free = word.load(Ordering::Acquire).trailing_ones();
            let is_first = free < 64 && word.fetch_or(1 << free, Ordering::Acquire) & 1 << free == 0;
            is_first.then_some(at * 64 + free)
        })
    }

    fn give(&self, unit: u32) {
        self.0[unit as usize / 64].fetch_and(!(1 << (unit % 64)), Ordering::Release);
    }
}

/// The lowest free unit of the first word that has one, from a place of the thread's own on, as the core has it for VMs.
struct FirstFit(Mutex<Vec<u64>>);

impl Pool for FirstFit {
    fn take(&self, thread: usize, _: &mut Draws) -> Option<u32> {
        let mut words = self.0.lock().expect("no panic");
        let first = thread * WORDS / 2;
        let at = (first..WORDS).chain(0..first).find(|&at| words[at] != !0)?;
        let free = words[at].trailing_ones();
        words[at] |= 1 << free;
        Some(at as u32 * 64 + free)
    }

    fn give(&self, unit: u32) {
        self.0.lock().expect("no panic")[unit as usize / 64] &= !(1 << (unit % 64));
    }
}

/// The unit that was given back last.
struct List(Mutex<Vec<u32>>);

impl Pool for List {
    fn take(&self, _: usize, _: &mut Draws) -> Option<u32> {
        self.0.lock().expect("no panic").pop()
    }

    fn give(&self, unit: u32) {
        self.0.lock().expect("no panic").push(unit);
    }
}

/// The unit that was given back first.
impl Pool for ArrayQueue<u32> {
    fn take(&self, _: usize, _: &mut Draws) -> Option<u32> {
        self.pop()
    }

    fn give(&self, unit: u32) {
        self.push(unit).expect("room for all units");
    }
}

/// One unit, however often it takes to look for it.
fn one(pool: &dyn Pool, thread: usize, draws: &mut Draws) -> u32 {
    loop {
        if let Some(unit) = pool.take(thread, draws) {
            return unit;
        }
        spin_loop();
    }
}

/// Nanoseconds for a unit of each thread, on average, while all of them are at work.
fn round(pool: &dyn Pool, threads: usize, processors: &[usize], seed: u64) -> f64 {
    let ready = AtomicU32::new(0);
    let work = |thread: usize| {
        cores::pin(&processors[thread..=thread]);
        let mut draws = Draws(seed << 8 | (thread as u64 + 1));
        for _ in 0..20 {
            // The first numbers of neighbouring seeds are alike.
            draws.below(1);
        }
        let mut held: VecDeque<u32> = (0..HELD).map(|_| one(pool, thread, &mut draws)).collect();
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < threads as u32 {
            spin_loop();
        }
        let start = Instant::now();
        for _ in 0..TURNS {
            held.push_back(one(pool, thread, &mut draws));
            held.pop_front().into_iter().for_each(|unit| pool.give(unit));
        }
        (start.elapsed().as_nanos() as f64 / f64::from(TURNS), held)
    };
    let done: Vec<(f64, VecDeque<u32>)> = std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let ended = started.into_iter().map(|thread| thread.join().expect("no panic"));
        ended.collect()
    });
    let held: BTreeSet<u32> = done.iter().flat_map(|(_, held)| held).copied().collect();
    assert_eq!(held.len(), threads * HELD, "a unit was given twice");
    held.into_iter().for_each(|unit| pool.give(unit));
    done.iter().map(|(nanoseconds, _)| nanoseconds).sum::<f64>() / threads as f64
}

/// So many free units anywhere, in no order.
fn free_units(count: usize) -> Vec<u32> {
    let mut draws = Draws(0x1234_5678_9abc_def1);
    let mut units: Vec<u32> = (0..UNITS).collect();
    for at in 0..count {
        let other = at + draws.below((units.len() - at) as u32) as usize;
        units.swap(at, other);
    }
    units.truncate(count);
    units
}

/// A bitmap in which only these are free.
fn bitmap(free: &[u32]) -> Vec<u64> {
    let mut words = vec![!0; WORDS];
    free.iter()
        .for_each(|unit| words[*unit as usize / 64] &= !(1 << (unit % 64)));
    words
}

fn walk(free: &[u32]) -> Units {
    let units = Units::new(UNITS);
    let mut draws = Draws(7);
    while let Ended::Took(_) = units.take(|end| draws.below(end)).ended {}
    free.iter().for_each(|&unit| Pool::give(&units, unit));
    units
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let processors = cores::processors();
    for share in SHARES {
        for threads in 1..=2 {
            if processors.len() < threads {
                println!("this process may use one processor: no figures for two threads");
                continue;
            }
            let free = free_units((UNITS * share / 1000) as usize + threads * HELD);
            let queue = ArrayQueue::new(UNITS as usize);
            free.iter().for_each(|&unit| Pool::give(&queue, unit));
            let pools: [(&str, Box<dyn Pool>); 5] = [
                ("random walk, LockMap", Box::new(walk(&free))),
                (
                    "random walk, no LockMap",
                    Box::new(NoLockMap(bitmap(&free).into_iter().map(AtomicU64::new).collect())),
                ),
                ("first fit, mutex", Box::new(FirstFit(Mutex::new(bitmap(&free))))),
                ("list, mutex", Box::new(List(Mutex::new(free)))),
                ("queue, no lock", Box::new(queue)),
            ];
            let ways = pools.iter().map(|(name, pool)| -> Way<'_> {
                let (mut seed, processors) = (0, &processors);
                let turn = move || {
                    seed += 1;
                    round(pool.as_ref(), threads, processors, seed)
                };
                (*name, Box::new(turn))
            });
            Table {
                title: &format!("{} % free, threads: {threads}", f64::from(share) / 10.0),
                unit: "ns a unit of each thread",
                measure: Measure::Time,
                bases: &["first fit, mutex", "list, mutex", "queue, no lock"],
                rounds: mode.rounds(ROUNDS),
            }
            .run(ways.collect());
        }
    }
}
