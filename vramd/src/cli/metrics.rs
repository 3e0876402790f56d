//! `vramd metrics`: the figures of a running broker for monitoring.

use std::path::PathBuf;

use clap::Args;
use control::client;

use super::control::socket;
use super::watch::Watch;
use crate::control::ask_text;

#[derive(Args, Debug)]
pub(super) struct Arguments {
    #[command(flatten)]
    watch: Watch,
    /// Control socket of the broker [default: $VRAMD_CONTROL, or /run/vramd/control.sock]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

/// Prints them as they are served.
pub(super) fn metrics(arguments: &Arguments) -> anyhow::Result<u8> {
    let socket = socket(arguments.control.as_ref());
    arguments
        .watch
        .show(false, || ask_text(&socket, &client::metrics()))
}
