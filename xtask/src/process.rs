//! Processes that a task starts: ended when dropped, heard line by line, never waited for without a bound.

use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for anything that a process is to say or do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Lines of its standard error in the message of a failure.
const LAST_LINES: usize = 15;
/// Time between two looks for a state that is not signalled.
const LOOK_PERIOD: Duration = Duration::from_millis(10);

/// A process said nothing for as long as one was ready to wait.
#[derive(Debug)]
pub(crate) struct Silent {
    name: &'static str,
    patience: Duration,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} says nothing for {:.1?}", self.name, self.patience)
    }
}

impl std::error::Error for Silent {}

/// A process with its standard output as lines and its standard error in a file.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    pub(crate) child: Child,
    lines: Receiver<String>,
    errors: PathBuf,
}

impl Process {
    /// Starts `command`; standard error goes to the file `errors`.
    pub(crate) fn start(name: &'static str, command: Command, errors: PathBuf) -> Result<Self> {
        let file = File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        let mut child = mortal(&command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let output = child.stdout.take().context("no pipe to read from")?;
        Ok(Self {
            name,
            child,
            lines: lines_of(output),
            errors,
        })
    }

    /// Ends it as an operator does. That it ends otherwise, or an error in its log, is one.
    pub(crate) fn terminate_clean(mut self) -> Result<()> {
        let status = self.terminate()?;
        let log = self.errors()?;
        let error = log
            .lines()
            .find(|line| line.contains("ERROR") || line.contains("panicked"));
        ensure!(
            status.success() && error.is_none(),
            "{} ended with {status}: {}",
            self.name,
            error.unwrap_or(log.trim())
        );
        Ok(())
    }

    /// That it runs still.
    pub(crate) fn check_runs(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(
            ended.is_none(),
            "{} ended with {ended:?}: {}",
            self.name,
            self.last_words()?
        );
        Ok(())
    }

    /// The next line that it writes.
    pub(crate) fn line(&mut self) -> Result<String> {
        self.line_within(PATIENCE)
    }

    /// The next line, if it comes within `patience`; [`Silent`] if not.
    pub(crate) fn line_within(&mut self, patience: Duration) -> Result<String> {
        match self.lines.recv_timeout(patience) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Silent {
                name: self.name,
                patience,
            }
            .into()),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.wait()?;
                bail!("{} ended with {status}: {}", self.name, self.last_words()?)
            }
        }
    }

    /// The lines not asked for yet, of a process that has ended.
    pub(crate) fn last_lines(&mut self) -> Vec<String> {
        self.lines.iter().collect()
    }

    /// All that it has written to standard error.
    pub(crate) fn errors(&self) -> Result<String> {
        let bytes =
            std::fs::read(&self.errors).with_context(|| format!("cannot read {}", self.errors.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of what it has written to standard error, for a message.
    pub(crate) fn last_words(&self) -> Result<String> {
        let all = self.errors()?;
        let lines: Vec<_> = all.trim().lines().collect();
        let left_out = lines.len().saturating_sub(LAST_LINES);
        let end = lines[left_out..].join("\n");
        Ok(match left_out {
            0 => end,
            _ => format!("(behind {left_out} lines in {})\n{end}", self.errors.display()),
        })
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let (name, child) = (self.name, &mut self.child);
        until(&format!("the end of {name}"), || {
            child
                .try_wait()
                .with_context(|| format!("cannot wait for {name}"))
        })
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let id = id.with_context(|| format!("{} has no process id", self.name))?;
        // It is a child that was not waited for, so the id is still its own.
        kill_process(id, signal).with_context(|| format!("cannot send {signal:?} to {}", self.name))
    }

    /// Asks it to end, as an operator does, and waits.
    pub(crate) fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The same command, ended by the kernel should we be killed before we can end it.
pub(crate) fn mortal(command: &Command) -> Command {
    // Part of util-linux, which every Debian has. Elsewhere an orphan may stay behind.
    let has_setpriv = Command::new("setpriv")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success());
    let mut mortal = if has_setpriv {
        let mut setpriv = Command::new("setpriv");
        setpriv
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program());
        setpriv
    } else {
        Command::new(command.get_program())
    };
    mortal.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        mortal.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => mortal.env(name, value),
            None => mortal.env_remove(name),
        };
    }
    mortal
}

/// Reads on a thread, which ends with the pipe.
fn lines_of(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            // A guest may write anything.
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Looks until there is something, at most [`PATIENCE`]; `what` is for the message.
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_within(PATIENCE, what, look)
}

/// Looks until there is something, at most `patience`.
pub(crate) fn until_within<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            bail!("waited {patience:.1?} for {what}");
        }
        thread::sleep(LOOK_PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Process) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let process = Process::start("sh", command, folder.path().join("errors")).unwrap();
        (folder, process)
    }

    #[test]
    fn process_that_ends_unheard_is_reported_with_its_last_words() {
        let (_folder, mut process) = shell("echo one; echo why >&2; exit 3");
        assert_eq!(process.line().unwrap(), "one");
        let error = process.line().unwrap_err().to_string();
        assert!(error.contains("exit status: 3: why"), "{error}");
    }

    #[test]
    fn last_words_are_the_end_of_what_was_said() {
        let (folder, mut process) = shell("for i in $(seq 20); do echo line $i >&2; done; exit 3");
        let error = process.line().unwrap_err().to_string();
        let errors = folder.path().join("errors");
        let expected = format!(
            "exit status: 3: (behind 5 lines in {})\nline 6\n",
            errors.display()
        );
        assert!(error.contains(&expected) && error.ends_with("line 20"), "{error}");
    }

    #[test]
    fn silence_is_told_from_an_end() {
        let (_folder, mut process) = shell("read x");
        let error = process.line_within(Duration::from_millis(20)).unwrap_err();
        assert!(error.context("why").is::<Silent>());
        drop(process.child.stdin.take());
        assert!(!process.line().unwrap_err().is::<Silent>());
    }

    #[test]
    fn terminated_process_is_waited_for() {
        let (_folder, mut process) =
            shell("trap 'exit 7' TERM; echo ready; while :; do read x || sleep 0.01; done");
        assert_eq!(process.line().unwrap(), "ready");
        assert_eq!(process.terminate().unwrap().code(), Some(7));
    }
}
