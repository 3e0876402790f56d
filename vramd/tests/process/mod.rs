//! `vramd` as a process.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// No test's process needs longer.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn vramd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vramd"));
    command
        .args(arguments)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null());
    command
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    vramd(arguments).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The only document on stdout.
pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

pub(crate) fn write_input(folder: &Path, name: &str, bytes: usize) -> (PathBuf, String) {
    let data: Vec<u8> = (0..bytes as u32)
        .map(|index| (index.wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect();
    let path = folder.join(name);
    std::fs::write(&path, &data).unwrap();
    let digest = Sha256::digest(&data);
    (path, digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Wrong usage or a failure: nothing on stdout, one line on stderr.
pub(crate) fn complaint(arguments: &[&str], status: i32) -> String {
    let output = output(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    stderr
}

/// A process that is killed if its test fails.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Process {
        Process(
            vramd(arguments)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        )
    }

    /// The first line of its output.
    pub(crate) fn first_line(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        line
    }

    /// Waits until it says something on stderr.
    pub(crate) fn wait_for_words(&mut self) {
        let said = self.0.stderr.as_mut().unwrap().read(&mut [0]).unwrap();
        assert_eq!(said, 1, "it ended without a word");
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // A process that has ended and was not waited for keeps its id.
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub(crate) fn terminate(&mut self) -> Output {
        self.signal(Signal::TERM);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> Output {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < LIMIT, "the process does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.as_mut().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.as_mut().unwrap().read_to_end(&mut stderr).unwrap();
        Output {
            status,
            stdout,
            stderr,
        }
    }
}
