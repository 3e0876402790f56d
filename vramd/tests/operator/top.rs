//! `vramd top` on a terminal of its own: what is seen on it, what keys do, and how it leaves it.

use rustix::process::Signal;
use serde_json::Value;

use super::host::TestHost;
use super::process::{Process, complaint};
use super::served;
use super::terminal::Terminal;

/// `top` of a broker.
pub(crate) fn top(terminal: &Terminal, host: &TestHost) -> Process {
    terminal.start(&["top", "--interval", "0.2", "--control", &host.control()])
}

#[test]
fn keys_change_a_quota_and_the_terminal_is_left_as_it_was() {
    let host = served();
    let _vmm = host.vmm("a");
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    let mut shown = top(&terminal, &host);
    terminal.wait_for(&["g0 ", "of 4G", "no errors"]);
    let a = terminal.wait_for(&["a  ", "[", "max", "idle"]);
    assert!(a.starts_with("a  "), "{a}");
    terminal.wait_for(&["b  ", "absent"]);
    assert_ne!(terminal.modes(), before);
    terminal.press("emax=20M\r");
    terminal.wait_for(&["a  ", "20M", "idle"]);
    terminal.wait_for(&["a: min 0, low 0, high max, max 20M, weight 100"]);
    assert_eq!(host.ask(&["show", "a"])["quota"]["max"], 20 << 20);
    // What cannot be is said, by the broker or before it is asked.
    terminal.press("emin=8000M\r");
    terminal.wait_for(&["vramd show a"]);
    terminal.press("emax=5X\r");
    terminal.wait_for(&["is not a size"]);
    // The next VM.
    terminal.press("\x1b[Beweight=7\r");
    terminal.wait_for(&["b: min 0, low 0, high max, max max, weight 7"]);
    terminal.press("q");
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
    assert_eq!(terminal.modes(), before);
    assert!(terminal.is_given_back());
}

#[test]
fn keys_freeze_a_vm_after_a_yes_and_thaw_it() {
    let host = served();
    let _vmm = host.vmm("a");
    let mut terminal = Terminal::new();
    let mut shown = top(&terminal, &host);
    terminal.wait_for(&["a  ", "idle"]);
    let held = || host.ask(&["show", "a"])["hold"]["vram_bytes"].clone();
    terminal.press("f");
    terminal.wait_for(&["send all memory of a to host RAM", "y, or any other key"]);
    terminal.press("n");
    terminal.wait_without("send all memory");
    assert_eq!(held(), Value::Null);
    terminal.press("fy");
    terminal.wait_for(&["a: frozen"]);
    terminal.wait_for(&["a  ", "[", "frozen"]);
    assert_eq!(held(), 0);
    terminal.press("t");
    terminal.wait_for(&["a: not held"]);
    terminal.wait_for(&["a  ", "[", "idle"]);
    assert_eq!(held(), Value::Null);
    terminal.press("q");
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
}

#[test]
fn broker_that_goes_is_shown_and_asked_again() {
    let mut host = served();
    let mut terminal = Terminal::new();
    let mut shown = top(&terminal, &host);
    terminal.wait_for(&["a  ", "absent"]);
    host.stop();
    terminal.wait_for(&["asking again: cannot reach a broker"]);
    host.start();
    let _vmm = host.vmm("a");
    terminal.wait_for(&["a  ", "idle"]);
    terminal.press("\u{3}");
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
}

#[test]
fn each_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let host = served();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = Terminal::new();
        let before = terminal.modes();
        let mut shown = top(&terminal, &host);
        terminal.wait_for(&["a  ", "absent"]);
        assert_ne!(terminal.modes(), before);
        shown.signal(signal);
        assert_eq!(shown.0.wait().unwrap().code(), Some(0), "{signal:?}");
        assert_eq!(terminal.modes(), before, "{signal:?}");
        assert!(terminal.is_given_back(), "{signal:?}");
    }
}

#[test]
fn without_a_terminal_it_names_the_verbs_for_that() {
    let said = complaint(&["top"], 1);
    assert!(said.contains("`vramd list`"), "{said}");
    complaint(&["top", "--interval", "0"], 2);
}
