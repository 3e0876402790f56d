//! `vramd serve` as a process of its own, seen from outside.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::Process;

/// Labels of a figure stand between these; ours have the VM's name last.
const VM_LABEL: &str = ",vm=\"";

/// Resources that a process holds: descriptors and mapped memory files, counted by kind.
pub(crate) type Holdings = BTreeMap<String, usize>;

/// A mapping of a memory file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) name: String,
    /// First byte in the file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A running broker.
pub(crate) struct Broker {
    process: Process,
}

impl Broker {
    /// Starts it and waits until it listens. Its log goes to `log`.
    pub(crate) fn start(program: &Path, config: &Path, log: PathBuf) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--config"])
            .arg(config)
            .env("RUST_LOG", "info");
        let mut process = Process::start("vramd serve", command, log)?;
        let ready = process.line()?;
        ensure!(
            ready.contains("vfio-user-pci"),
            "vramd serve says {ready:?} where the line for QEMU should be"
        );
        Ok(Self { process })
    }

    /// Mapped memory files.
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>> {
        let path = format!("/proc/{}/maps", self.process.child.id());
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(text.lines().filter_map(parse_mapping).collect())
    }

    /// The resources that it holds at this moment.
    pub(crate) fn holdings(&self) -> Result<Holdings> {
        let mut holdings = Holdings::new();
        for mapping in self.mappings()? {
            *holdings
                .entry(format!("mapping of {}", mapping.name))
                .or_default() += 1;
        }
        let path = format!("/proc/{}/fd", self.process.child.id());
        for entry in fs::read_dir(&path).with_context(|| format!("cannot list {path}"))? {
            // One that was closed since it was listed is not counted.
            if let Ok(target) = fs::read_link(entry?.path()) {
                *holdings.entry(kind_of(&target.to_string_lossy())).or_default() += 1;
            }
        }
        Ok(holdings)
    }

    /// Ends it as an operator does; a complaint in its log is an error.
    pub(crate) fn stop(self) -> Result<()> {
        self.stop_expecting(|_| false)
    }

    /// Ends it as an operator does; a complaint in its log that is not expected is an error.
    pub(crate) fn stop_expecting(mut self, is_expected: impl Fn(&str) -> bool) -> Result<()> {
        let status = self.process.terminate()?;
        ensure!(
            status.success(),
            "vramd serve ended with {status}: {}",
            self.process.last_words()?
        );
        let log = self.process.errors()?;
        match log.lines().find(|line| is_complaint(line) && !is_expected(line)) {
            Some(complaint) => anyhow::bail!("the broker complained: {complaint}"),
            None => Ok(()),
        }
    }
}

/// Figures of a VM, by name without `vramd_vm_`.
pub(crate) type Figures = BTreeMap<String, u64>;

/// The figures of a VM that whole numbers tell, as the broker behind that control socket counts them.
pub(crate) fn figures(vramd: &Path, control: &Path, vm: &str) -> Result<Figures> {
    let output = Command::new(vramd)
        .args(["metrics", "--control"])
        .arg(control)
        .output()
        .context("cannot start vramd")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "vramd metrics: {}", said.trim());
    let text = String::from_utf8(output.stdout).context("metrics that are no text")?;
    Ok(figures_of(&text, vm))
}

/// The figures of a VM in a broker's metrics.
pub(crate) fn figures_of(metrics: &str, vm: &str) -> Figures {
    metrics
        .lines()
        .filter_map(|line| parse_figure(line, vm))
        .collect()
}

/// `vramd_vm_NAME{gpu="…",vm="VM"} NUMBER`, if it is about that VM.
fn parse_figure(line: &str, vm: &str) -> Option<(String, u64)> {
    let (name, rest) = line.strip_prefix("vramd_vm_")?.split_once('{')?;
    let (_, rest) = rest.split_once(VM_LABEL)?;
    let value = rest.strip_prefix(vm)?.strip_prefix("\"} ")?;
    Some((name.to_owned(), value.parse().ok()?))
}

/// Whether a line of the log is a warning or worse, or does not look like a log line.
pub(crate) fn is_complaint(line: &str) -> bool {
    !["INFO", "DEBUG", "TRACE"]
        .iter()
        .any(|level| line.contains(&format!(" {level} ")))
}

/// `socket:[1234]` and `socket:[5678]` are the same kind.
fn kind_of(target: &str) -> String {
    match target.split_once(":[") {
        Some((kind, rest)) if rest.trim_end_matches(']').parse::<u64>().is_ok() => kind.to_owned(),
        _ => target.to_owned(),
    }
}

/// A line of `maps` (proc(5)), if it is of a memory file.
fn parse_mapping(line: &str) -> Option<Mapping> {
    let (fields, name) = line.split_once("/memfd:")?;
    let mut fields = fields.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let offset = number(fields.nth(1)?)?;
    Some(Mapping {
        name: name.trim_end_matches(" (deleted)").to_owned(),
        offset,
        bytes: number(end)?.checked_sub(number(start)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_read_if_it_is_of_the_vm_and_a_whole_number() {
        let line = "vramd_vm_spilled_chunks_total{gpu=\"g\",vm=\"a\"} 12";
        assert_eq!(
            parse_figure(line, "a"),
            Some(("spilled_chunks_total".to_owned(), 12))
        );
        assert_eq!(parse_figure(line, "b"), None);
        assert_eq!(
            parse_figure("vramd_vm_paused_seconds_total{gpu=\"g\",vm=\"a\"} 0.5", "a"),
            None
        );
        assert_eq!(parse_figure("# TYPE vramd_vm_spilled_chunks counter", "a"), None);
    }

    #[test]
    fn mapping_of_a_memory_file_is_read_and_others_are_passed_over() {
        let line = "7fb0a000-7fb1a000 rw-s 00100000 00:01 57564         /memfd:some ram (deleted)";
        let mapping = Mapping {
            name: "some ram".to_owned(),
            offset: 0x10_0000,
            bytes: 0x1_0000,
        };
        assert_eq!(parse_mapping(line), Some(mapping));
        assert_eq!(
            parse_mapping("7fb0a000-7fb1a000 r-xp 00000000 08:01 12 /usr/lib/libc.so.6"),
            None
        );
        assert_eq!(parse_mapping("7fb0a000-7fb1a000 rw-p 00000000 00:00 0"), None);
    }

    #[test]
    fn descriptors_are_told_apart_by_kind_and_not_by_number() {
        assert_eq!(kind_of("socket:[77]"), "socket");
        assert_eq!(kind_of("anon_inode:[eventfd]"), "anon_inode:[eventfd]");
        assert_eq!(kind_of("/dev/null"), "/dev/null");
    }

    #[test]
    fn warning_is_a_complaint_and_news_is_none() {
        assert!(is_complaint(
            "[2026-11-21T09:18:03Z WARN  broker::server] a second client was disconnected: one is attached"
        ));
        assert!(is_complaint("thread panicked"));
        assert!(!is_complaint(
            "[2026-11-21T09:18:03Z INFO  broker::server] client connected"
        ));
    }
}
