//! `vramd demo`.

use std::io::Write as _;

use anyhow::Context as _;

use super::signals::is_stop_requested;
use super::{DemoArguments, FAILED, complain};
use crate::demo::{DemoOptions, Screen, run};
use crate::guest::Place;

pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<u8> {
    // `--workload` chooses nothing as long as there is one: clap refuses any other name.
    let options = DemoOptions {
        vms: arguments.vms.into(),
        vram: arguments.vram,
        guest_vram: arguments.guest_vram,
        inputs: arguments.input.clone(),
        seed: arguments.seed,
        rounds: arguments.rounds,
        record: arguments.record.clone(),
        place: if arguments.no_kvm {
            Place::Threads
        } else {
            Place::Kvm
        },
    };
    let mut screen = Screen::new(is_stop_requested);
    let report = run(&options, &mut screen)?;
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string(&report)?)
    } else {
        report.to_string()
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to stdout")?;
    if !report.ok {
        complain(&report.notes.join("; "));
        return Ok(FAILED);
    }
    Ok(0)
}
