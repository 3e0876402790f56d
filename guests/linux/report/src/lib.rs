//! The output of a Linux guest's test program: one line for each test, marks in the kernel log, and the counts.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::time::Instant;

use anyhow::{Context as _, Error, Result, ensure};

/// How a test that did not fail ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// It does not apply to this machine, and why.
    Skipped(String),
}

/// Which tests to run: options of a command line.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Selection {
    /// Run only this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out this test; may be given several times.
    #[arg(long, value_name = "NAME")]
    skip: Vec<String>,
}

impl Selection {
    /// Those of `tests` that are wanted, in their order.
    ///
    /// # Errors
    ///
    /// A name that no test has is an error, so that a misspelt name does not look like a pass.
    pub fn choose<T>(
        &self,
        tests: impl IntoIterator<Item = T>,
        name: impl Fn(&T) -> &'static str,
    ) -> Result<Vec<T>> {
        let tests: Vec<_> = tests.into_iter().collect();
        for wanted in self.only.iter().chain(&self.skip) {
            ensure!(
                tests.iter().any(|test| name(test) == wanted),
                "there is no test {wanted}: see --list"
            );
        }
        let is_in = |list: &[String], test: &T| list.iter().any(|wanted| wanted == name(test));
        let is_chosen =
            |test: &T| (self.only.is_empty() || is_in(&self.only, test)) && !is_in(&self.skip, test);
        Ok(tests.into_iter().filter(is_chosen).collect())
    }
}

/// Runs tests and prints their results: "ok NAME MS", "skip NAME REASON" or "FAIL NAME REASON"; at the end "done" with the
/// counts.
#[derive(Debug)]
pub struct Report<W> {
    program: &'static str,
    output: W,
    passed: u32,
    failed: u32,
    skipped: u32,
}

impl Report<io::Stdout> {
    /// A report on standard output; `program` names it in the kernel log.
    #[must_use]
    pub fn new(program: &'static str) -> Self {
        Self::to(program, io::stdout())
    }
}

impl<W: Write> Report<W> {
    /// A report to somewhere else.
    #[must_use]
    pub(crate) fn to(program: &'static str, output: W) -> Self {
        Self {
            program,
            output,
            passed: 0,
            failed: 0,
            skipped: 0,
        }
    }

    /// Runs the test `name` and prints its result.
    ///
    /// # Errors
    ///
    /// Those of the output. A failure of the test is not one.
    pub fn run(&mut self, name: &str, test: impl FnOnce() -> Result<Outcome>) -> Result<()> {
        let (took, result) = self.time(name, test);
        match result {
            Ok(Outcome::Passed) => self.pass(name, took),
            Ok(Outcome::Skipped(reason)) => {
                self.skipped += 1;
                self.say(format_args!("skip {name} {reason}"))
            }
            Err(error) => self.fail(name, &error),
        }
    }

    /// Makes something that all tests need: a test by itself, whose failure ends the run.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn prepare<T>(&mut self, name: &str, make: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let (took, result) = self.time(name, make);
        match result {
            Ok(made) => self.pass(name, took).map(|()| Some(made)),
            Err(error) => self.fail(name, &error).map(|()| None),
        }
    }

    /// Prints a line that is not a result.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn note(&mut self, what: &str) -> Result<()> {
        self.say(format_args!("note {what}"))
    }

    /// Ends the report with the counts; whether no test failed.
    ///
    /// # Errors
    ///
    /// Those of the output.
    pub fn finish(mut self) -> Result<bool> {
        let (passed, failed, skipped) = (self.passed, self.failed, self.skipped);
        self.say(format_args!("done ok={passed} FAIL={failed} skip={skipped}"))?;
        Ok(failed == 0)
    }

    fn time<T>(&self, name: &str, work: impl FnOnce() -> Result<T>) -> (u128, Result<T>) {
        log_to_kernel(self.program, "begin", name);
        let start = Instant::now();
        let result = work();
        let took = start.elapsed().as_millis();
        log_to_kernel(self.program, "end", name);
        (took, result)
    }

    fn pass(&mut self, name: &str, took: u128) -> Result<()> {
        self.passed += 1;
        self.say(format_args!("ok {name} {took}"))
    }

    fn fail(&mut self, name: &str, error: &Error) -> Result<()> {
        self.failed += 1;
        self.say(format_args!("FAIL {name} {}", one_line(error)))
    }

    fn say(&mut self, line: Arguments<'_>) -> Result<()> {
        writeln!(self.output, "{line}")
            .and_then(|()| self.output.flush())
            .context("standard output is closed")
    }
}

/// An error and its causes without line breaks.
#[must_use]
pub fn one_line(error: &Error) -> String {
    format!("{error:#}").replace('\n', " ")
}

/// Marks the kernel log. Without the right to do so there are no marks.
fn log_to_kernel(program: &str, what: &str, name: &str) {
    if let Ok(mut log) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // One write is one line of the log.
        let _ = log.write_all(format!("{program}: {what} {name}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(only: &[&str], skip: &[&str]) -> Selection {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Selection {
            only: owned(only),
            skip: owned(skip),
        }
    }

    #[test]
    fn chosen_tests_are_in_their_order_and_without_those_left_out() {
        let choose = |only: &[&str], skip: &[&str]| {
            selection(only, skip)
                .choose(["a", "b", "c"], |name| name)
                .expect("names exist")
        };
        assert_eq!(choose(&[], &[]), ["a", "b", "c"]);
        assert_eq!(choose(&["c", "a"], &[]), ["a", "c"]);
        assert_eq!(choose(&["c", "a"], &["a"]), ["c"]);
        assert_eq!(choose(&[], &["b"]), ["a", "c"]);
    }

    #[test]
    fn unknown_name_is_an_error_that_names_it() {
        for selection in [selection(&["d"], &[]), selection(&[], &["d"])] {
            let error = selection.choose(["a"], |name| name).expect_err("no such test");
            assert_eq!(error.to_string(), "there is no test d: see --list");
        }
    }

    #[test]
    fn each_end_has_its_line_and_its_count() {
        let mut output = Vec::new();
        let mut report = Report::to("a-test", &mut output);
        report.run("good", || Ok(Outcome::Passed)).expect("room");
        let reason = "no such card".to_owned();
        report
            .run("absent", || Ok(Outcome::Skipped(reason)))
            .expect("room");
        let made = report.prepare("thing", || Ok(7)).expect("room");
        assert_eq!(made, Some(7));
        let error = Error::msg("line\nbreak").context("while reading");
        report.run("bad", || Err(error)).expect("room");
        report.note("of no weight").expect("room");
        assert!(!report.finish().expect("room"));
        let text = String::from_utf8(output).expect("text");
        let untimed = text.lines().map(|line| match line.split_once(" 0") {
            Some((line, "")) => line,
            _ => line,
        });
        assert_eq!(
            untimed.collect::<Vec<_>>(),
            [
                "ok good",
                "skip absent no such card",
                "ok thing",
                "FAIL bad while reading: line break",
                "note of no weight",
                "done ok=2 FAIL=1 skip=1",
            ]
        );
    }
}
