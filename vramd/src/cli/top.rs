//! `vramd top`: VMs and cards of a running broker on the whole terminal, and keys that change quotas, freeze and thaw.
//!
//! ```text
//!  keys ──► model ──► view ──► terminal
//!             ▲ │ a change
//!             │ ▼
//!            poll ──► broker
//! ```

mod model;
mod poll;
mod view;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use vramd_vm::signals::{install_hangup, is_stop_requested};

use super::control::socket;
use super::watch::seconds;
use model::{Hearing, Model, Order, Step};
use poll::Told;

/// Longest time in which neither a signal nor what the broker told is looked at.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Time between two looks, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Control socket of the broker [default: $VRAMD_CONTROL, or /run/vramd/control.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// The terminal while `top` has it. Dropped, it is as before; a panic does the same before its message.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows what is, until `q` or a signal.
pub(super) fn top(arguments: &Arguments) -> anyhow::Result<u8> {
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "top needs a terminal: `vramd list` prints a table, `vramd metrics` figures for programs"
    );
    install_hangup()?;
    let (socket, interval) = (socket(arguments.control.as_ref()), arguments.interval);
    let (order, orders) = channel();
    let (tell, told) = channel();
    // Left behind at the end: it may be waiting for a broker that does not answer.
    thread::Builder::new()
        .name("poll".into())
        .spawn(move || poll::run(&socket, interval, &orders, &tell))
        .context("cannot start a thread")?;
    let mut screen = Screen(ratatui::try_init().context("cannot set the terminal up")?);
    match run(&mut screen.0, &order, &told) {
        // The terminal itself went away.
        Err(_) if is_stop_requested() => Ok(0),
        ran => ran.map(|()| 0).context("cannot go on with the terminal"),
    }
}

fn run(terminal: &mut DefaultTerminal, order: &Sender<Order>, told: &Receiver<Told>) -> io::Result<()> {
    let (mut model, mut last) = (Model::new(), None);
    while !is_stop_requested() {
        loop {
            match told.try_recv() {
                Ok(told) => take(&mut model, told, &mut last),
                Err(TryRecvError::Empty) => break,
                // It has panicked, which has given the terminal back already.
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("nobody asks the broker any more"));
                }
            }
        }
        terminal.draw(|frame| view::draw(frame, &model))?;
        if !event::poll(LOOK)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match model.key(key) {
            Step::Stay => {}
            Step::Quit => return Ok(()),
            Step::Ask(asked) => {
                // If nobody takes it, that is seen above.
                let _ = order.send(asked);
            }
        }
    }
    Ok(())
}

/// `last` is when the broker told before.
fn take(model: &mut Model, told: Told, last: &mut Option<Instant>) {
    match told {
        Told::Picture { gpus, vms, gone, at } => {
            let since = last.replace(at).map(|last| at - last);
            model.heard(gpus, vms, since);
            model.gone = gone;
        }
        Told::Silence(why) => model.hearing = Hearing::Silent(why),
        Told::Changed(text) => model.status = Some((text, false)),
        Told::Refused(why) => model.status = Some((why, true)),
    }
}
