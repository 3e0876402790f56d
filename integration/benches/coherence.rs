//! What a check of `guests::coherence` costs that finds its array up to date: the price of every access that is checked,
//! and of a loop whose check is hoisted out of it.
//!
//! The paper (Pai et al., PACT'12, section 7.6) has 8 to 9 cycles a call.

#[path = "pairs/mod.rs"]
mod pairs;

use std::hint::black_box;

use anyhow::{Result, ensure};
use guests::DriverError;
use guests::coherence::{ARRAYS_MAX, Coherence, Direction, Scheme, Sets, Transfers};
use pairs::{Measure, Mode, Table, Way, nanoseconds};

const ROUNDS: usize = 51;
/// Words of the array, each of which is loaded once in a turn: 256 KiB.
const WORDS: usize = 64 << 10;
/// A launch that loads and stores the array.
const LAUNCH: Sets = Sets { loads: 1, stores: 1 };
/// Copies before anything is timed: in for the launch, out for the first load.
const COPIES: u64 = 2;

/// Moves nothing, and counts the copies that it is asked for.
#[derive(Default)]
struct Counter {
    copies: u64,
}

impl Transfers for Counter {
    fn allocate(&mut self, _: usize) -> Result<(), DriverError> {
        Ok(())
    }

    fn copy(&mut self, _: usize, _: Direction) -> Result<(), DriverError> {
        self.copies += 1;
        Ok(())
    }
}

/// Nanoseconds of one of the array's words in a loop over all.
fn each(words: &[u32], mut work: impl FnMut(&u32)) -> f64 {
    nanoseconds(|| words.iter().for_each(&mut work)) / words.len() as f64
}

/// As many arrays as there can be, the first of which was stored, used by a launch, and loaded.
fn used_arrays(transfers: &mut Counter) -> Result<Coherence> {
    let mut arrays = Coherence::new(Scheme::Amm);
    for _ in 0..ARRAYS_MAX {
        arrays.add(4 * WORDS as u64);
    }
    arrays.check_overwrite(0);
    arrays.before_launch(transfers, LAUNCH)?;
    arrays.after_launch(transfers, LAUNCH)?;
    arrays.check_read(transfers, 0)?;
    Ok(arrays)
}

fn main() -> Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    let words: Vec<u32> = (0..WORDS as u32).collect();
    let mut before = Counter::default();
    let arrays = used_arrays(&mut before)?;
    let [mut for_reads, mut for_writes, mut for_loops] = [arrays.clone(), arrays.clone(), arrays];
    let mut counters = [const { Counter { copies: 0 } }; 3];
    let [reads, writes, loops] = &mut counters;
    let ways: Vec<Way<'_>> = vec![
        (
            "load",
            Box::new(|| {
                each(&words, |word| {
                    black_box(*word);
                })
            }),
        ),
        (
            "check_read, load",
            Box::new(|| {
                each(&words, |word| {
                    let checked = for_reads.check_read(reads, black_box(0));
                    black_box((checked.is_ok(), *word));
                })
            }),
        ),
        (
            "check_write, load",
            Box::new(|| {
                each(&words, |word| {
                    let checked = for_writes.check_write(writes, black_box(0));
                    black_box((checked.is_ok(), *word));
                })
            }),
        ),
        (
            "check_read once, loads",
            Box::new(|| {
                let mut is_ok = true;
                let checked = nanoseconds(|| is_ok = for_loops.check_read(loops, black_box(0)).is_ok());
                black_box(is_ok);
                let loaded = each(&words, |word| {
                    black_box(*word);
                });
                loaded + checked / WORDS as f64
            }),
        ),
    ];
    let table = Table {
        title: "a word of an array that is up to date",
        unit: "ns",
        measure: Measure::Time,
        bases: &["load"],
        rounds: mode.rounds(ROUNDS),
    };
    table.run(ways);
    let copies: u64 = counters.iter().map(|counter| counter.copies).sum();
    ensure!(
        before.copies == COPIES && copies == 0,
        "{} copies of an array that was used, and {copies} while it was up to date",
        before.copies
    );
    Ok(())
}
