//! `--watch`: tables that are painted anew in place, or one after the other where there is no terminal.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::process::{Process, complaint, text};
use super::served;
use super::terminal::Terminal;

#[test]
fn table_on_a_terminal_changes_in_place_and_the_terminal_is_left_as_it_was() {
    let host = served();
    let control = host.control();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut terminal = Terminal::new();
        let before = terminal.modes();
        let mut shown = terminal.start(&["show", "a", "--watch", "0.1", "--control", &control]);
        terminal.wait_for(&["vm ", "a on g0"]);
        terminal.wait_for(&["state", "not connected"]);
        let vmm = host.vmm("a");
        terminal.wait_for(&["in VRAM", "0 in use, 0 idle"]);
        // The shorter word is where the longer one was.
        let line = terminal.wait_for(&["state", "connected"]);
        assert!(line.ends_with("  connected"), "{line}");
        drop(vmm);
        // What is below the shorter page is taken away.
        terminal.wait_without("in VRAM");
        terminal.wait_for(&["state", "not connected"]);
        shown.signal(signal);
        assert_eq!(shown.0.wait().unwrap().code(), Some(0), "{signal:?}");
        assert_eq!(terminal.modes(), before, "{signal:?}");
        assert!(terminal.is_given_back(), "{signal:?}");
    }
}

#[test]
fn broker_that_goes_leaves_what_it_told_last_with_the_reason() {
    let mut host = served();
    let mut terminal = Terminal::new();
    let mut shown = terminal.start(&["show", "a", "--watch", "0.1", "--control", &host.control()]);
    terminal.wait_for(&["state", "not connected"]);
    host.stop();
    terminal.wait_for(&["asking again: cannot reach a broker"]);
    terminal.wait_for(&["state", "not connected"]);
    shown.signal(Signal::INT);
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
}

#[test]
fn broker_that_hangs_holds_nobody_up_who_wants_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    // It takes connections and never answers.
    let hangs = UnixListener::bind(&path).unwrap();
    for verb in [&["list"][..], &["show", "a"]] {
        let words = [verb, &["--watch", "--control", path.to_str().unwrap()]].concat();
        let mut shown = Process::start(&words);
        let (asked, _) = hangs.accept().unwrap();
        let start = Instant::now();
        shown.signal(Signal::INT);
        assert_eq!(shown.wait().status.code(), Some(0), "{verb:?}");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        drop(asked);
    }
}

#[test]
fn without_a_terminal_tables_follow_one_another_and_documents_are_lines() {
    let host = served();
    let _vmm = host.vmm("a");
    for verb in [
        &["list"][..],
        &["show", "a"],
        &["why", "a"],
        &["metrics"],
        &["inspect", "a", "quota"],
    ] {
        let mut plain = host.start_verb(&[verb, &["--watch", "0.1"]].concat());
        let first = plain.next_line();
        // The next begins after a blank line.
        let rest = std::iter::repeat_with(|| plain.next_line()).take(1000);
        let lines: Vec<_> = rest.take_while(|line| *line != first).collect();
        assert!(lines.len() < 1000, "{verb:?}: {first}");
        assert_eq!(lines.last().unwrap(), "", "{verb:?}");
        assert!(lines.iter().all(|line| !line.contains('\x1b')), "{verb:?}");
        plain.signal(Signal::INT);
        assert_eq!(plain.0.wait().unwrap().code(), Some(0), "{verb:?}");
    }
    for verb in [&["list"][..], &["show", "a"], &["why", "a"], &["inspect", "a"]] {
        let mut lines = host.start_verb(&[verb, &["--json", "--watch", "0.1"]].concat());
        for _ in 0..3 {
            let document: Value = serde_json::from_str(&lines.next_line()).unwrap();
            assert!(document.is_object(), "{document}");
        }
        lines.signal(Signal::INT);
        assert_eq!(lines.0.wait().unwrap().code(), Some(0), "{verb:?}");
    }
}

#[test]
fn wrong_period_is_wrong_usage_and_nobody_to_ask_is_said_at_once() {
    let said = complaint(&["list", "--watch", "0"], 2);
    assert!(
        said.contains("is no number of seconds from 0.1 to 3600"),
        "{said}"
    );
    let said = complaint(&["list", "--watch", "--control", "/nowhere/control.sock"], 1);
    assert!(said.contains("cannot reach a broker"), "{said}");
    let mut host = served();
    let mut shown = host.start_verb(&["list", "--watch", "0.1"]);
    shown.next_line();
    host.stop();
    let ended = shown.wait();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        text(&ended.stderr).contains("cannot reach a broker"),
        "{}",
        text(&ended.stderr)
    );
}
