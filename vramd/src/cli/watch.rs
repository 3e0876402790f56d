//! `--watch`: what a verb shows, again and again, in place on a terminal.

use std::io::{self, IsTerminal as _, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use ratatui::crossterm::cursor::{Hide, MoveTo, Show};
use ratatui::crossterm::style::Print;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, size};
use ratatui::crossterm::{execute, queue};
use vramd_vm::signals::{self, is_stop_requested};

/// Longest time in which a signal is not looked at.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Args, Debug)]
pub(super) struct Watch {
    /// Show it again each so many seconds [default: 2], until Ctrl-C; with --json one document a line
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Seconds between two looks.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse::<f64>()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("{text:?} is no number of seconds from 0.1 to 3600"))?;
    Ok(Duration::from_secs_f64(seconds))
}

impl Watch {
    /// Whether it is shown more than once.
    pub(super) fn is_on(&self) -> bool {
        self.watch.is_some()
    }

    /// Shows what `look` returns: once, or until a signal. In place on a terminal, unless it is one document a line.
    pub(super) fn show(
        &self,
        is_json: bool,
        mut look: impl FnMut() -> anyhow::Result<String>,
    ) -> anyhow::Result<u8> {
        let Some(period) = self.watch else {
            return write(&look()?).map(|()| 0);
        };
        signals::install()?;
        signals::install_hangup()?;
        let shown = match io::stdout().is_terminal() && !is_json {
            true => in_place(period, look),
            false => one_after_another(period, is_json, look),
        };
        match shown {
            // The terminal itself went away.
            Err(_) if is_stop_requested() => Ok(0),
            other => other.map(|()| 0),
        }
    }
}

/// Writes a text to stdout at once.
pub(super) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to stdout")
}

fn one_after_another(
    period: Duration,
    is_json: bool,
    mut look: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let mut is_first = true;
    while !is_stop_requested() {
        let text = look()?;
        let gap = if is_first || is_json { "" } else { "\n" };
        write(&format!("{gap}{text}"))?;
        is_first = false;
        rest(period);
    }
    Ok(())
}

/// A broker that goes is asked again: what it told last stays, with the reason below.
fn in_place(period: Duration, mut look: impl FnMut() -> anyhow::Result<String>) -> anyhow::Result<()> {
    // Without an answer to begin with there is nothing to watch.
    let mut known = look()?;
    let screen = Screen::take().context("cannot set the terminal up")?;
    let mut text = known.clone();
    while !is_stop_requested() {
        screen.paint(&text).context("cannot write to the terminal")?;
        rest(period);
        text = match look() {
            Ok(text) => {
                known.clone_from(&text);
                text
            }
            Err(why) => format!("{known}\nasking again: {why:#}\n"),
        };
    }
    Ok(())
}

/// Waits for a period, or until a signal.
fn rest(period: Duration) {
    let until = Instant::now() + period;
    while !is_stop_requested() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}

/// The terminal's other screen. Dropped, the terminal is as it was.
struct Screen;

impl Screen {
    fn take() -> io::Result<Self> {
        let screen = Screen;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// As many lines as there is room for, and as much of each, over what was there.
    fn paint(&self, text: &str) -> io::Result<()> {
        let (columns, rows) = size()?;
        let mut out = io::stdout().lock();
        for (row, line) in (0..rows).zip(text.lines()) {
            let seen: String = line.chars().take(columns.into()).collect();
            queue!(out, MoveTo(0, row), Print(seen))?;
            // At the last column this would take the last sign away.
            if line.chars().count() < usize::from(columns) {
                queue!(out, Clear(ClearType::UntilNewLine))?;
            }
        }
        let below = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
        if below < rows {
            queue!(out, MoveTo(0, below), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to hear of it if the terminal is gone.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn period_is_seconds_within_reason() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "NaN", "inf", "1h", "3601"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
