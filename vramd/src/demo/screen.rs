//! Live lines on stderr: one for each VM, rewritten in place on a terminal, repeated now and then elsewhere.

use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use super::report::mebibytes;
use super::{Onlooker, VmFrame};

/// Time between two pictures on a terminal.
const TERMINAL_PERIOD: Duration = Duration::from_millis(200);
/// Time between two lines elsewhere.
const LINE_PERIOD: Duration = Duration::from_millis(500);

/// The operator's screen.
pub struct Screen {
    is_terminal: bool,
    /// Lines of the last picture, which the next overwrites.
    drawn: usize,
    last: Option<Instant>,
    wants_to_stop: fn() -> bool,
}

impl Screen {
    /// Writes to stderr and asks `wants_to_stop`.
    pub fn new(wants_to_stop: fn() -> bool) -> Screen {
        Screen {
            is_terminal: io::stderr().is_terminal(),
            drawn: 0,
            last: None,
            wants_to_stop,
        }
    }

    fn is_due(&self, vms: usize) -> bool {
        let period = if self.is_terminal {
            TERMINAL_PERIOD
        } else {
            LINE_PERIOD * vms as u32
        };
        self.last.is_none_or(|last| last.elapsed() >= period)
    }
}

fn line(vm: &VmFrame) -> String {
    format!(
        "{:<4} {:<6} {:>3}%  resident {:>8}  spilled {:>8}  moved out {:>5} back {:>5}  pause {} (max {})",
        vm.name,
        vm.state,
        vm.percent,
        mebibytes(vm.resident_bytes),
        mebibytes(vm.spilled_bytes),
        vm.moves.0,
        vm.moves.1,
        milliseconds(vm.pause_ns.0),
        milliseconds(vm.pause_ns.1),
    )
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1}ms", ns as f64 / 1e6)
}

impl Onlooker for Screen {
    fn notice(&mut self, text: &str) {
        let bar = "*".repeat(72);
        // If stderr is closed there is nowhere to report to.
        let _ = writeln!(io::stderr(), "{bar}\n*** {text}\n{bar}");
    }

    fn frame(&mut self, vms: &[VmFrame]) {
        if !self.is_due(vms.len()) {
            return;
        }
        self.last = Some(Instant::now());
        let mut picture = String::new();
        if self.is_terminal && self.drawn > 0 {
            // Cursor up, to the start of the line.
            picture.push_str(&format!("\x1b[{}F", self.drawn));
        }
        for vm in vms {
            let clear = if self.is_terminal { "\x1b[K" } else { "" };
            picture.push_str(&format!("{}{clear}\n", line(vm)));
        }
        self.drawn = vms.len();
        let _ = io::stderr().write_all(picture.as_bytes());
    }

    fn wants_to_stop(&self) -> bool {
        (self.wants_to_stop)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_where_the_bytes_are() {
        let shown = line(&VmFrame {
            name: "a".to_owned(),
            state: "move".to_owned(),
            percent: 45,
            resident_bytes: 84 << 20,
            spilled_bytes: 3 << 19,
            moves: (12, 10),
            pause_ns: (3_100_000, 9_000_000),
        });
        let wanted = "a    move    45%  resident    84.0M  spilled     1.5M  moved out    12 back    10  \
                      pause 3.1ms (max 9.0ms)";
        assert_eq!(shown, wanted);
    }
}
