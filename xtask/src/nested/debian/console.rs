//! A VM of the nested host, driven by its console: `console.sh` types lines there and finds what comes back.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::super::PATIENCE;
use crate::guest::{Guest, Output};
use crate::nouveau::kernel_log::Allowed;

/// The functions for the nested host's shell, and the name of their file there.
pub(super) const SHELL: &str = include_str!("console.sh");
pub(super) const NAME: &str = "console.sh";
/// Longest time until somebody can log in.
const BOOT_PATIENCE: Duration = Duration::from_secs(600);
/// Complaints in the message of a failure.
const SHOWN: usize = 10;

/// A VM by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Console {
    name: &'static str,
}

impl Console {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name }
    }

    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// Begins its boot; the VMMs of several boot side by side.
    pub(super) fn start(self, guest: &mut Guest) -> Result<()> {
        guest
            .succeed(&format!("vm_start {}", self.name), PATIENCE)
            .map(drop)
    }

    /// Waits for its login and takes it.
    pub(super) fn log_in(self, guest: &mut Guest) -> Result<()> {
        guest
            .succeed(&format!("vm_login {}", self.name), BOOT_PATIENCE)
            .map(drop)
    }

    /// Begins a command. It has no quotes.
    pub(super) fn begin(self, guest: &mut Guest, command: &str) -> Result<()> {
        ensure!(!command.contains('\''), "{command:?} has a quote");
        guest
            .succeed(&format!("vm_begin {} '{command}'", self.name), PATIENCE)
            .map(drop)
    }

    /// Waits for the end of the command that was begun.
    pub(super) fn end(self, guest: &mut Guest, patience: Duration) -> Result<Output> {
        let mut output = guest.run(&format!("vm_end {}", self.name), patience)?;
        // The mark of its end begins a line.
        if output.lines.last().is_some_and(String::is_empty) {
            output.lines.pop();
        }
        Ok(output)
    }

    pub(super) fn run(self, guest: &mut Guest, command: &str) -> Result<Output> {
        self.begin(guest, command)?;
        self.end(guest, PATIENCE)
    }

    /// Runs a command that must succeed.
    pub(super) fn succeed(self, guest: &mut Guest, command: &str) -> Result<Output> {
        let output = self.run(guest, command)?;
        ensure!(
            output.status == 0,
            "{}: {command:?} ended with {}: {}",
            self.name,
            output.status,
            output.text()
        );
        Ok(output)
    }

    /// Its kernel has said nothing that is not expected, from power-on on.
    pub(super) fn is_content(self, guest: &mut Guest, allowed: &mut Allowed) -> Result<()> {
        let log = self.succeed(guest, "dmesg -r")?;
        let complaints = allowed.complaints(log.lines.iter().map(String::as_str));
        if !complaints.is_empty() {
            let shown = complaints[..complaints.len().min(SHOWN)].join("\n");
            bail!(
                "{}: its kernel complains, {} lines: {shown}",
                self.name,
                complaints.len()
            );
        }
        Ok(())
    }

    /// Has systemd switch it off, and waits for the end of its VMM.
    pub(super) fn switch_off(self, guest: &mut Guest) -> Result<()> {
        let output = guest.run(&format!("vm_off {}", self.name), BOOT_PATIENCE)?;
        ensure!(
            output.status == 0,
            "VM {} ended with {}: {}",
            self.name,
            output.status,
            output.text()
        );
        println!("{}", output.text().trim());
        Ok(())
    }
}
