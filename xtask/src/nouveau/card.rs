//! `vramd gpu` as a process of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::Process;

const MODEL: &str = "gtx480";
const VRAM: &str = "256M";

/// A served card. Ended when dropped.
pub(super) struct Card {
    process: Process,
    socket: PathBuf,
}

impl Card {
    /// Starts it and waits until it listens. Socket and log go to `folder`.
    pub(super) fn start(vramd: &Path, options: &[String], folder: &Path) -> Result<Self> {
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

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it as an operator does; what it says about the time that it ran.
    pub(super) fn stop(mut self) -> Result<Vec<String>> {
        let status = self.process.terminate()?;
        ensure!(
            status.success(),
            "vramd gpu ended with {status}: {}",
            self.process.errors()?.trim()
        );
        Ok(self.process.last_lines())
    }
}
