//! What ends `vramd kernel` before it is done: a signal at once, the host's time for a launch.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use all of it")]
mod process;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use process::{Process, complaint, text};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

/// Lines of a source that an assembler is busy with for some seconds.
const MANY: usize = 1 << 20;
/// Lines whose words take several pages of a file.
const SOME: usize = 20_000;
/// A launch that no watchdog of the card's ends in the time of a test.
const ENDLESS: &str = "code = \"k.asm\"\ngrid = [100]\nblock = [256]\n[card]\nwatchdog_ms = 60000";

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn pipe(folder: &tempfile::TempDir, name: &str) -> String {
    let path = path(folder, name);
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    path
}

/// Gives a source to whoever reads the pipe. When this returns all of it is read, but for what a pipe holds.
fn feed(pipe: &str, text: &str) {
    let mut into = fs::OpenOptions::new().write(true).open(pipe).unwrap();
    into.write_all(text.as_bytes()).unwrap();
}

#[test]
fn signal_ends_the_assembler_at_once_and_leaves_the_output_alone() {
    for (signal, before) in [(Signal::INT, Some("old")), (Signal::TERM, None)] {
        let folder = tempfile::tempdir().unwrap();
        let (source, words) = (pipe(&folder, "k.asm"), path(&folder, "k.hex"));
        if let Some(before) = before {
            fs::write(&words, before).unwrap();
        }
        let mut process = Process::start(&["kernel", "asm", &source, "-o", &words]);
        feed(&source, &"exit\n".repeat(MANY));
        process.signal(signal);
        let output = process.wait();
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{output:?}");
        assert_eq!(fs::read_to_string(&words).ok().as_deref(), before);
    }
}

#[test]
fn signal_ends_the_assembler_that_waits_for_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let source = pipe(&folder, "k.asm");
    let mut process = Process::start(&["kernel", "asm", &source]);
    // Open at both ends, so it waits for more.
    let _writer = fs::OpenOptions::new().write(true).open(&source).unwrap();
    process.signal(Signal::INT);
    assert_eq!(process.wait().status.signal(), Some(Signal::INT.as_raw()));
}

#[test]
fn words_are_written_whole_whatever_signal_comes_meanwhile() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let (source, words) = (path(&folder, "k.asm"), path(&folder, "k.hex"));
        fs::write(&source, "exit\n".repeat(SOME)).unwrap();
        let mut process = Process::start(&["kernel", "asm", &source, "-o", &words]);
        let mut has_ended = false;
        while !Path::new(&words).exists() {
            assert!(!has_ended, "it wrote nothing");
            // One that has ended may have written since the look.
            has_ended = process.0.try_wait().unwrap().is_some();
            std::thread::yield_now();
        }
        if !has_ended {
            process.signal(signal);
        }
        let output = process.wait();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(fs::read_to_string(&words).unwrap().lines().count(), SOME);
    }
}

#[test]
fn signal_ends_the_assembler_whose_words_nobody_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (source, words) = (pipe(&folder, "k.asm"), pipe(&folder, "k.hex"));
    let mut process = Process::start(&["kernel", "asm", &source, "-o", &words]);
    feed(&source, "exit");
    process.signal(Signal::TERM);
    assert_eq!(process.wait().status.signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn signal_ends_an_endless_kernel() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = tempfile::tempdir().unwrap();
        let (source, launch) = (pipe(&folder, "k.asm"), path(&folder, "l.toml"));
        fs::write(&launch, ENDLESS).unwrap();
        let mut process = Process::start(&["kernel", "run", &launch]);
        feed(&source, "x: bra #x");
        process.signal(signal);
        let output = process.wait();
        assert_eq!(output.status.signal(), Some(signal.as_raw()), "{output:?}");
        assert_eq!(text(&output.stdout), "");
    }
}

#[test]
fn launch_is_given_up_when_its_host_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let launch = path(&folder, "l.toml");
    fs::write(path(&folder, "k.asm"), "x: bra #x").unwrap();
    fs::write(&launch, ENDLESS).unwrap();
    let told = complaint(&["kernel", "run", &launch, "--host-time-limit", "1"], 1);
    assert!(
        told.contains("not done after 1 s of host time") && told.contains("--host-time-limit SECONDS"),
        "{told}"
    );
    complaint(&["kernel", "run", &launch, "--host-time-limit", "0"], 2);
}
