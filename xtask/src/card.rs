//! `vramd gpu` as a process of its own, and its report at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::Serialize;

use crate::process::Process;

const MODEL: &str = "gtx480";
const VRAM: &str = "256M";
/// Number of reads in a row of a register without a name that counts as a poll: the driver waits for
/// an answer in vain.
const POLL_READS: u64 = 16;
/// The warning that a card logs once when a guest draws. Methods at random do (`nouveau-test`, `garbage`); results of draws
/// that are wanted are compared by the tests.
pub(crate) const UNDRAWN: &str = "WARN  card::running] a draw, or a copy or clear of a kind";

/// The warning that a card logs once when it reaches for memory that is not there.
const ASTRAY: &str = "WARN  card::running] the card reaches where no memory is";

/// The lines of a card's log that are complaints.
fn complaints(log: &str) -> String {
    let is_one = |line: &&str| !line.trim().is_empty() && !line.contains(UNDRAWN);
    log.lines().filter(is_one).collect::<Vec<_>>().join("\n")
}

/// Whether these complaints are one of memory that is not there, and no other.
fn is_astray_alone(complaints: &str) -> bool {
    complaints.contains(ASTRAY) && complaints.lines().count() == 1
}

/// A served card. Ended when dropped.
pub(crate) struct Card {
    process: Process,
    socket: PathBuf,
}

/// Messages over the socket, as the card counted them.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// Messages of any kind.
    pub(crate) messages: u64,
    /// Messages whose answer the client waits for.
    pub(crate) waited_for: u64,
    /// Registers without a name that were touched, by offset. Filled only for a card that traces.
    pub(crate) unknown: BTreeMap<String, Unknown>,
    /// All lines that the card printed.
    pub(crate) lines: Vec<String>,
}

/// Accesses to a register without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unknown {
    pub(crate) reads: u64,
    pub(crate) in_a_row: u64,
    pub(crate) writes: u64,
}

impl Card {
    /// Starts it and waits until it listens. Socket and log go to `folder`.
    pub(crate) fn start(vramd: &Path, options: &[String], folder: &Path) -> Result<Self> {
        let socket = folder.join("card.sock");
        let mut command = Command::new(vramd);
        command
            .args(["gpu", "--model", MODEL, "--vram", VRAM, "--socket"])
            .arg(&socket)
            .args(options);
        let mut process = Process::start("vramd gpu", command, folder.join("card.log"))?;
        process.line().context("the card does not start")?;
        Ok(Self { process, socket })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Cuts the card's power: from now on it reads ones and ignores writes.
    pub(crate) fn cut_power(&self) -> Result<()> {
        self.process.signal(Signal::USR1)
    }

    /// Gives the card its power back: it is as new.
    pub(crate) fn restore_power(&self) -> Result<()> {
        self.process.signal(Signal::USR2)
    }

    /// What it has complained of by now.
    pub(crate) fn complaints(&self) -> Result<String> {
        Ok(complaints(&self.process.errors()?))
    }

    /// Ends it as an operator does. A warning in its log is an error, but for one of draws.
    pub(crate) fn stop(self) -> Result<Summary> {
        self.stop_saying(str::is_empty)
    }

    /// The same for a card that was sent astray by its test: it has to say that, and nothing else.
    pub(crate) fn stop_astray(self) -> Result<Summary> {
        self.stop_saying(is_astray_alone)
    }

    fn stop_saying(mut self, is_wanted: impl Fn(&str) -> bool) -> Result<Summary> {
        let status = self.process.terminate()?;
        let complaints = self.complaints()?;
        ensure!(
            status.success() && is_wanted(&complaints),
            "vramd gpu ended with {status}: {complaints:?}"
        );
        Summary::parse(self.process.last_lines())
    }
}

impl Summary {
    fn parse(lines: Vec<String>) -> Result<Self> {
        let mut summary = Self::default();
        for line in &lines {
            if let Some((messages, rest)) = line.split_once(" messages in ") {
                summary.messages = messages
                    .parse()
                    .with_context(|| format!("no count of messages in {line:?}"))?;
                let waited = rest
                    .rsplit_once("; waited for: ")
                    .and_then(|(_, waited)| waited.parse().ok());
                summary.waited_for = waited.with_context(|| format!("no count of waits in {line:?}"))?;
            } else if let Some((register, rest)) = line
                .strip_prefix("unknown 0x")
                .and_then(|line| line.split_once(": "))
            {
                let unknown = Unknown::parse(rest).with_context(|| format!("no counts in {line:?}"))?;
                summary.unknown.insert(format!("0x{register}"), unknown);
            }
        }
        ensure!(summary.messages > 0, "vramd gpu counted no messages: {lines:?}");
        summary.lines = lines;
        Ok(summary)
    }

    /// Registers without a name that the driver polled.
    pub(crate) fn polled(&self) -> Vec<&str> {
        let polled = self
            .unknown
            .iter()
            .filter(|(_, unknown)| unknown.in_a_row >= POLL_READS);
        polled.map(|(register, _)| register.as_str()).collect()
    }
}

impl Unknown {
    /// Parses `3 reads (2 in a row), 1 writes`.
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text
            .split(|c: char| !c.is_ascii_digit())
            .filter(|word| !word.is_empty());
        let mut number = || numbers.next()?.parse().ok();
        Some(Self {
            reads: number()?,
            in_a_row: number()?,
            writes: number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Summary> {
        Summary::parse(text.lines().map(str::to_owned).collect())
    }

    #[test]
    fn warning_of_draws_is_no_complaint() {
        let drawn = "[2026-01-01T00:00:00Z WARN  card::running] a draw, or a copy or clear of a kind that the software \
                     card does not perform, has no effect\n";
        assert_eq!(complaints(drawn), "");
        assert_eq!(complaints(&format!("{drawn}WARN other\n")), "WARN other");
    }

    #[test]
    fn card_that_went_astray_says_that_and_nothing_else() {
        let astray = format!("[2026-01-01T00:00:00Z {ASTRAY}: 0 loads and 1 stores\n");
        assert!(is_astray_alone(&complaints(&astray)));
        assert!(!is_astray_alone(&complaints(&format!("{astray}WARN other\n"))));
        assert!(!is_astray_alone(""));
    }

    #[test]
    fn counts_of_a_card_are_read() {
        let text = "30 messages in 7 turns: 5 reads, 20 posted writes, 0 batches of writes, 1 writes waited for, 2 \
                    changes of DMA maps, 2 others; waited for: 10\nunknown registers: 2\n\
                    unknown 0x0a0000: 3 reads (2 in a row), 1 writes\nunknown 0x0a0004: 99 reads (98 in a row), 0 writes\n";
        let summary = parse(text).unwrap();
        assert_eq!((summary.messages, summary.waited_for), (30, 10));
        assert_eq!(
            summary.unknown["0x0a0000"],
            Unknown {
                reads: 3,
                in_a_row: 2,
                writes: 1
            }
        );
        assert_eq!(summary.polled(), ["0x0a0004"]);
    }

    #[test]
    fn card_that_counted_nothing_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("many messages in 7 turns; waited for: 10").is_err());
        assert!(parse("30 messages in 7 turns").is_err());
    }
}
