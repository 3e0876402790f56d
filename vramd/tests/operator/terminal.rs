//! A terminal of its own for a program, and what is seen on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::host::WAIT;
use super::process::{Process, vramd};

/// A terminal, its own end and that of programs, with what was drawn on it.
pub(crate) struct Terminal {
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
    pub(crate) fn new() -> Terminal {
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
    pub(crate) fn modes(&self) -> String {
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

    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        let mut command = vramd(arguments);
        command
            .stdin(self.end())
            .stdout(self.end())
            .stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.own.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a line that has all of these words.
    pub(crate) fn wait_for(&mut self, words: &[&str]) -> String {
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

    /// Waits until no line has this word.
    pub(crate) fn wait_without(&mut self, word: &str) {
        let start = Instant::now();
        while self
            .screen
            .iter()
            .any(|line| line.iter().collect::<String>().contains(word))
        {
            assert!(start.elapsed() < WAIT, "{word} stays");
            if let Ok(bytes) = self.drawn.recv_timeout(Duration::from_millis(100)) {
                self.bytes.extend(bytes);
                self.show();
            }
        }
    }

    /// What the program drew gives the screen and the cursor of before back: they are the last of each that was asked for. A program that has
    /// ended has drawn all of it, though it may not have come yet.
    pub(crate) fn is_given_back(&mut self) -> bool {
        let start = Instant::now();
        loop {
            let all = self.rest();
            let given_back = [("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h")];
            let is_given_back = given_back.iter().all(|(taken, given_back)| {
                all.rfind(taken)
                    .is_some_and(|at| Some(at) < all.rfind(given_back))
            });
            if is_given_back || start.elapsed() > WAIT {
                return is_given_back;
            }
        }
    }

    /// Reads to what a program draws last.
    pub(crate) fn rest(&mut self) -> String {
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
                "J" => {
                    let (row, column) = if numbers == "2" { (0, 0) } else { self.at };
                    self.clear(row, column);
                    self.screen
                        .iter_mut()
                        .skip(row + 1)
                        .for_each(|line| line.fill(' '));
                }
                "K" => self.clear(self.at.0, self.at.1),
                _ => {}
            }
            rest = &sequence[end + 1..];
        }
        self.seen = self.bytes.len() - rest.len();
    }

    /// Clears the rest of a line.
    fn clear(&mut self, row: usize, column: usize) {
        if let Some(line) = self.screen.get_mut(row) {
            line.iter_mut().skip(column).for_each(|cell| *cell = ' ');
        }
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
