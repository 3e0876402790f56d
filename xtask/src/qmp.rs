//! QEMU's monitor protocol: one command at a time over a socket that QEMU connects to.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process::{PATIENCE, Process, until};

/// A socket for QEMU to connect to.
pub(crate) struct Rendezvous {
    listener: UnixListener,
}

impl Rendezvous {
    /// Listens at `path`.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        // A run before this one may have left it.
        let _ = std::fs::remove_file(path);
        let listener =
            UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener })
    }

    /// Arguments that make QEMU connect.
    pub(crate) fn address(path: &Path) -> OsString {
        let mut address = OsString::from("unix:");
        address.push(path);
        address
    }

    /// Waits for `qemu` to connect.
    pub(crate) fn accept(self, qemu: &mut Process) -> Result<BufReader<UnixStream>> {
        let stream = until("QEMU to connect", || match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => match qemu.child.try_wait()? {
                Some(status) => bail!("QEMU ended with {status}: {}", qemu.last_words()?),
                None => Ok(None),
            },
            Err(error) => Err(error).context("cannot accept QEMU's connection"),
        })?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(BufReader::new(stream))
    }
}

/// A monitor that takes commands.
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets a QEMU that has connected.
    pub(crate) fn new(stream: BufReader<UnixStream>) -> Result<Self> {
        let mut qmp = Self { stream };
        let greeting = qmp.line()?;
        ensure!(greeting.contains("\"QMP\""), "QEMU greets with {greeting:?}");
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its answer.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        // One write: a stream that is not buffered would send a batch of small ones.
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .context("QEMU takes no command")?;
        loop {
            let line = self.line()?;
            let mut answer: Value =
                serde_json::from_str(&line).with_context(|| format!("QEMU says {line:?}"))?;
            if answer.get("event").is_some() {
                continue;
            }
            return match answer.get_mut("return") {
                Some(value) => Ok(value.take()),
                None => bail!("QEMU refuses {command}: {line}"),
            };
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stream
            .read_line(&mut line)
            .context("QEMU's monitor says nothing")?;
        ensure!(!line.is_empty(), "QEMU's monitor hung up");
        Ok(line)
    }
}
