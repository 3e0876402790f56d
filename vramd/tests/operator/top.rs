//! `vramd top` on a terminal of its own: what is seen on it, what keys do, and how it leaves it.

use rustix::process::Signal;
use serde_json::Value;

use super::process::{Process, complaint};
use super::terminal::Terminal;
use super::{Served, next_line};

/// `top` of a broker.
fn top(terminal: &Terminal, served: &Served) -> Process {
    let socket = served.socket();
    terminal.start(&["top", "--interval", "0.2", "--control", socket.to_str().unwrap()])
}

#[test]
fn keys_change_a_quota_and_the_terminal_is_left_as_it_was() {
    let served = Served::new("");
    let _vmm = served.vmm("a");
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    let mut shown = top(&terminal, &served);
    terminal.wait_for(&["g0 ", "of 4G", "no errors"]);
    let a = terminal.wait_for(&["a  ", "[", "max", "idle"]);
    assert!(a.starts_with("a  "), "{a}");
    terminal.wait_for(&["b  ", "absent"]);
    assert_ne!(terminal.modes(), before);
    terminal.press("emax=20M\r");
    terminal.wait_for(&["a  ", "20M", "idle"]);
    terminal.wait_for(&["a: min 0, low 0, high max, max 20M, weight 100"]);
    let a: Value = serde_json::from_str(&served.told(&["show", "a", "--json"])).unwrap();
    assert_eq!(a["quota"]["max"], 20 << 20);
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
    let served = Served::new("");
    let _vmm = served.vmm("a");
    let mut terminal = Terminal::new();
    let mut shown = top(&terminal, &served);
    terminal.wait_for(&["a  ", "idle"]);
    let held = || {
        serde_json::from_str::<Value>(&served.told(&["show", "a", "--json"])).unwrap()["hold"]["vram_bytes"]
            .clone()
    };
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
    let mut served = Served::new("");
    let mut terminal = Terminal::new();
    let mut shown = top(&terminal, &served);
    terminal.wait_for(&["a  ", "absent"]);
    served.broker.terminate();
    terminal.wait_for(&["asking again: cannot reach a broker"]);
    let config = served.folder.path().join("host.toml");
    served.broker = Process::start(&["serve", "--config", config.to_str().unwrap()]);
    next_line(&mut served.broker);
    let _vmm = served.vmm("a");
    terminal.wait_for(&["a  ", "idle"]);
    terminal.press("\u{3}");
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
}

#[test]
fn each_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let served = Served::new("");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = Terminal::new();
        let before = terminal.modes();
        let mut shown = top(&terminal, &served);
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
