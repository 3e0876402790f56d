//! `vramd` as a process.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
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

/// Whether a test can act as another user; said aloud if not.
pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("SKIPPED: to act as another user takes root");
    }
    is_root
}

/// Runs `work` on a thread that is another user's, of this group and these.
pub(crate) fn as_user<T: Send + 'static>(
    (uid, gid): (u32, u32),
    groups: &[u32],
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    std::thread::spawn(move || {
        set_thread_groups(&groups).unwrap();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    })
}

/// Lets this process have as many descriptors as it may.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
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
        Process::spawn(&mut vramd(arguments))
    }

    pub(crate) fn spawn(command: &mut Command) -> Process {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    /// The next line of its output. Nothing after it is read.
    pub(crate) fn next_line(&mut self) -> String {
        let out = self.0.stdout.as_mut().unwrap();
        let (mut line, mut byte) = (Vec::new(), [0]);
        while out.read_exact(&mut byte).is_ok() && byte != *b"\n" {
            line.extend(byte);
        }
        text(&line)
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
