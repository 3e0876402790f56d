//! `vramd metrics`: the figures of a running broker for monitoring.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use control::client;

use super::control::socket;
use crate::control::ask_text;

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Control socket of the broker [default: $VRAMD_CONTROL, or /run/vramd/control.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Prints them as they are served.
pub(super) fn metrics(arguments: &Arguments) -> anyhow::Result<u8> {
    let text = ask_text(&socket(arguments.control.as_ref()), &client::metrics())?;
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("cannot write to stdout")?;
    Ok(0)
}
