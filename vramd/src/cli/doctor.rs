//! `vramd doctor`: prints what the host has and lacks.

use std::io::Write as _;

use anyhow::Context as _;

use crate::doctor::Diagnosis;

#[derive(clap::Parser, Debug)]
pub(super) struct Arguments {
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
}

pub(super) fn doctor(arguments: &Arguments) -> anyhow::Result<u8> {
    let diagnosis = Diagnosis::of_host();
    let text = if arguments.json {
        serde_json::to_string(&diagnosis).context("cannot write JSON")? + "\n"
    } else {
        diagnosis.text()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to stdout")?;
    Ok(if diagnosis.is_usable() {
        0
    } else {
        vramd_vm::program::FAILED
    })
}
