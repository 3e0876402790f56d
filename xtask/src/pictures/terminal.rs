//! A terminal for a program, and what is seen on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use vt100::{Parser, Screen};

use crate::process::{PATIENCE, mortal, until};

/// What a terminal of today says that it is.
const KIND: &str = "xterm-256color";
/// A program that writes nothing for so long has painted its screen: `top` writes more often than ten times a second only while it does.
const PAINTED: Duration = Duration::from_millis(50);
/// What a program wrote that has ended is here by then.
const ALL: Duration = Duration::from_millis(500);

/// Both ends of a terminal, and its screen.
pub(super) struct Terminal {
    own: File,
    programs: OwnedFd,
    written: Receiver<Vec<u8>>,
    parser: Parser,
}

/// A program on a terminal: ended when dropped.
pub(super) struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn wait(&mut self) -> Result<ExitStatus> {
        let child = &mut self.0;
        until("the end of a program on a terminal", || Ok(child.try_wait()?))
    }
}

impl Terminal {
    /// One of this size, with nothing on it.
    pub(super) fn new(rows: NonZeroU16, columns: NonZeroU16) -> Result<Self> {
        let own =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("there is no terminal to be had")?;
        grantpt(&own)?;
        unlockpt(&own)?;
        let name = ptsname(&own, Vec::new())?;
        let programs = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty())?;
        let size = Winsize {
            ws_row: rows.get(),
            ws_col: columns.get(),
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&own, size)?;
        let own = File::from(own);
        let mut reader = own.try_clone()?;
        let (sender, written) = channel();
        // It ends when nobody has the programs' end any more.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            own,
            programs,
            written,
            parser: Parser::new(rows, columns, 0),
        })
    }

    /// Starts a program on it.
    pub(super) fn start(&self, command: &Command) -> Result<Program> {
        let end = || Ok::<_, std::io::Error>(Stdio::from(self.programs.try_clone()?));
        let child = mortal(command)
            .env("TERM", KIND)
            .env_remove("NO_COLOR")
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .spawn();
        let program = command.get_program().display();
        Ok(Program(child.with_context(|| format!("cannot start {program}"))?))
    }

    /// Shows `line` as if a shell had read it, runs the command, and waits for its end.
    pub(super) fn run(&mut self, line: &str, command: &Command) -> Result<()> {
        self.parser.process(format!("$ {line}\r\n").as_bytes());
        let status = self.start(command)?.wait()?;
        self.see(ALL);
        ensure!(
            status.success(),
            "{line} ended with {status}: {}",
            self.screen().contents()
        );
        Ok(())
    }

    /// Presses keys, and waits until the program has ended.
    pub(super) fn end_by(&mut self, keys: &str, mut program: Program) -> Result<()> {
        self.own.write_all(keys.as_bytes())?;
        let status = program.wait()?;
        ensure!(status.success(), "after {keys:?} a program ended with {status}");
        Ok(())
    }

    /// Waits until what is seen is as it should be, and stays so while the program is silent.
    pub(super) fn see_until(&mut self, what: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            self.see(PAINTED);
            let seen = self.screen().contents();
            if is_so(&seen) {
                return Ok(());
            }
            ensure!(start.elapsed() < PATIENCE, "waited for {what}; there is:\n{seen}");
        }
    }

    /// Takes what was written, until nothing is for so long.
    fn see(&mut self, silence: Duration) {
        while let Ok(bytes) = self.written.recv_timeout(silence) {
            self.parser.process(&bytes);
        }
    }

    pub(super) fn screen(&self) -> &Screen {
        self.parser.screen()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: NonZeroU16 = NonZeroU16::new(5).unwrap();
    const COLUMNS: NonZeroU16 = NonZeroU16::new(33).unwrap();

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn program_has_a_terminal_of_the_size_and_its_colours_are_seen() {
        let mut terminal = Terminal::new(ROWS, COLUMNS).unwrap();
        let script = "test -t 0 && test -t 1 && stty size && printf '\\033[31mred\\033[m\\n'";
        terminal.run("look", &shell(script)).unwrap();
        assert_eq!(terminal.screen().contents(), "$ look\n5 33\nred");
        let cell = terminal.screen().cell(2, 0).unwrap();
        assert_eq!(cell.fgcolor(), vt100::Color::Idx(1));
    }

    #[test]
    fn keys_reach_a_program_and_failure_is_an_error() {
        let mut terminal = Terminal::new(ROWS, COLUMNS).unwrap();
        let script = "read word && test \"$word\" = go";
        let program = terminal.start(&shell(script)).unwrap();
        terminal.end_by("go\n", program).unwrap();
        let program = terminal.start(&shell(script)).unwrap();
        assert!(terminal.end_by("stop\n", program).is_err());
        let error = terminal
            .run("fail", &shell("echo why; exit 3"))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("why"),
            "{error}"
        );
    }
}
