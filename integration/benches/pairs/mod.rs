//! Times several ways to do the same work in turns, so that a slow phase of the machine meets all of them.
//!
//! A single time says little on a shared machine; ratios of medians of one run do. Nothing here judges a result.

#![allow(dead_code, reason = "each bench uses what it needs")]

use std::time::Instant;

/// One way to do the work: runs a batch and returns its measure in the table's unit.
pub(crate) type Way<'a> = (&'a str, Box<dyn FnMut() -> f64 + 'a>);

/// Whether a larger figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Time for one operation: less is better.
    Time,
    /// Operations in a time: more is better.
    Rate,
}

/// A table of one run.
pub(crate) struct Table<'a> {
    /// Title of the table.
    pub(crate) title: &'a str,
    /// Unit of the figures.
    pub(crate) unit: &'a str,
    /// The ways, each with its name.
    pub(crate) measure: Measure,
    /// Names of the ways that all are compared with.
    pub(crate) bases: &'a [&'a str],
    /// Number of measured turns.
    pub(crate) rounds: usize,
}

/// Mode that the caller of the bench asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `cargo bench`: measure.
    Measure,
    /// `cargo test --benches`: only check that it still works.
    Smoke,
    /// A test runner asks for a list of tests: there are none.
    List,
}

impl Mode {
    /// The mode from the arguments that cargo and test runners give.
    pub(crate) fn from_arguments() -> Mode {
        let has = |wanted: &str| std::env::args().any(|argument| argument == wanted);
        match (has("--list"), has("--bench")) {
            (true, _) => Mode::List,
            (false, true) => Mode::Measure,
            (false, false) => Mode::Smoke,
        }
    }

    /// Turns to measure where a bench would like `wanted`.
    pub(crate) fn rounds(self, wanted: usize) -> usize {
        if self == Mode::Measure { wanted } else { 1 }
    }
}

impl Table<'_> {
    /// Runs each way once to warm up, then in turns, and prints the table.
    pub(crate) fn run(&self, mut ways: Vec<Way<'_>>) {
        let mut series: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        for round in 0..=self.rounds {
            for (at, (_, way)) in ways.iter_mut().enumerate() {
                let figure = way();
                if round > 0 {
                    series[at].push(figure);
                }
            }
        }
        let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
        self.print(&names, series);
    }

    fn print(&self, names: &[&str], mut series: Vec<Vec<f64>>) {
        for figures in &mut series {
            figures.sort_by(f64::total_cmp);
        }
        let median = |at: usize| series[at][series[at].len() / 2];
        let best = |at: usize| match self.measure {
            Measure::Time => series[at][0],
            Measure::Rate => series[at][series[at].len() - 1],
        };
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        println!(
            "\n{} ({}, medians; interleaved rounds: {})",
            self.title, self.unit, self.rounds
        );
        print!("  {:width$}  {:>10}  {:>10}", "", "median", "best");
        self.bases.iter().for_each(|base| print!("  ÷ {base}"));
        println!();
        for (at, name) in names.iter().enumerate() {
            print!(
                "  {name:width$}  {:>10}  {:>10}",
                figure(median(at)),
                figure(best(at))
            );
            for base in self.bases {
                let of = names
                    .iter()
                    .position(|name| name == base)
                    .expect("bases are ways");
                let column = base.chars().count() + 2;
                print!("  {:>column$}", format!("{:.2}", median(at) / median(of)));
            }
            println!();
        }
    }
}

/// Prints three significant digits.
fn figure(value: f64) -> String {
    let decimals = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Nanoseconds that `work` takes.
pub(crate) fn nanoseconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64
}
