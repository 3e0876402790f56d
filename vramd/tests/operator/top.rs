//! `vramd top` on a terminal of its own: what is seen on it, what keys do, and how it leaves it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use super::process::{Process, complaint, vramd};
use super::{Served, WAIT, next_line};

/// A terminal, its own end and that of programs, with what was drawn on it.
pub(super) struct Terminal {
    own: File,
    programs: OwnedFd,
    drawn: Receiver<Vec<u8>>,
    screen: Vec<Vec<char>>,
    at: (usize, usize),
    /// All bytes that came, and how many of them are on the screen.
    bytes: Vec<u8>,
    seen: usize,
}

impl Terminal {
    pub(super) fn new() -> Terminal {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let programs = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&own, size).unwrap();
        let own = File::from(own);
        let (tell, drawn) = channel();
        let mut reader = own.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if tell.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal {
            own,
            programs,
            drawn,
            screen: vec![vec![' '; 200]; 100],
            at: (0, 0),
            bytes: Vec::new(),
            seen: 0,
        }
    }

    /// Modes and special characters, as a program finds them.
    fn modes(&self) -> String {
        let modes = tcgetattr(&self.programs).unwrap();
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            modes.input_modes,
            modes.output_modes,
            modes.control_modes,
            modes.local_modes,
            modes.special_codes
        )
    }

    fn end(&self) -> Stdio {
        Stdio::from(self.programs.try_clone().unwrap())
    }

    pub(super) fn start(&self, arguments: &[&str]) -> Process {
        let mut command = vramd(arguments);
        command
            .stdin(self.end())
            .stdout(self.end())
            .stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    pub(super) fn press(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a line that has all of these words.
    pub(super) fn wait_for(&mut self, words: &[&str]) -> String {
        let start = Instant::now();
        loop {
            let lines = self.screen.iter().map(|line| line.iter().collect::<String>());
            if let Some(line) = lines
                .into_iter()
                .find(|line| words.iter().all(|word| line.contains(word)))
            {
                return line.trim_end().to_owned();
            }
            let shown: Vec<String> = self.screen[..24]
                .iter()
                .map(|line| line.iter().collect())
                .collect();
            assert!(
                start.elapsed() < WAIT,
                "no line has {words:?}:\n{}",
                shown.join("\n")
            );
            if let Ok(bytes) = self.drawn.recv_timeout(Duration::from_millis(100)) {
                self.bytes.extend(bytes);
                self.show();
            }
        }
    }

    /// Reads to what a program draws last.
    fn rest(&mut self) -> String {
        while let Ok(bytes) = self.drawn.recv_timeout(Duration::from_millis(300)) {
            self.bytes.extend(bytes);
        }
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Does what the bytes say: signs, and moves of the cursor. Colours are not looked at.
    fn show(&mut self) {
        let text = String::from_utf8_lossy(&self.bytes[self.seen..]).into_owned();
        let mut rest = text.as_str();
        while let Some(sign) = rest.chars().next() {
            let Some(sequence) = rest.strip_prefix("\x1b[") else {
                if rest == "\x1b" || sign == '\u{fffd}' {
                    break;
                }
                self.put(sign);
                rest = &rest[sign.len_utf8()..];
                continue;
            };
            // One that has not all come yet is read when it has.
            let Some(end) = sequence.find(|sign: char| sign.is_ascii_alphabetic()) else {
                break;
            };
            let (numbers, command) = (&sequence[..end], &sequence[end..=end]);
            match command {
                "H" => {
                    let mut numbers = numbers
                        .split(';')
                        .map(|number| number.parse::<usize>().unwrap_or(1) - 1);
                    self.at = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                }
                "J" => self.screen.iter_mut().for_each(|line| line.fill(' ')),
                _ => {}
            }
            rest = &sequence[end + 1..];
        }
        self.seen = self.bytes.len() - rest.len();
    }

    fn put(&mut self, sign: char) {
        if let Some(cell) = self
            .screen
            .get_mut(self.at.0)
            .and_then(|line| line.get_mut(self.at.1))
        {
            *cell = sign;
        }
        self.at.1 += 1;
    }
}

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
    let all = terminal.rest();
    // The screen of before and the cursor are the last of each that was asked for.
    for (taken, given_back) in [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")] {
        assert!(
            all.rfind(taken).unwrap() < all.rfind(given_back).unwrap(),
            "{given_back:?}"
        );
    }
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
fn signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let served = Served::new("");
    let mut terminal = Terminal::new();
    let before = terminal.modes();
    let mut shown = top(&terminal, &served);
    terminal.wait_for(&["a  ", "absent"]);
    shown.signal(Signal::TERM);
    assert_eq!(shown.0.wait().unwrap().code(), Some(0));
    assert_eq!(terminal.modes(), before);
    assert!(terminal.rest().contains("\x1b[?1049l"));
}

#[test]
fn without_a_terminal_it_names_the_verbs_for_that() {
    let said = complaint(&["top"], 1);
    assert!(said.contains("`vramd list`"), "{said}");
    complaint(&["top", "--interval", "0"], 2);
}
