//! `vramd demo`.

use std::io::Write as _;

use anyhow::Context as _;

use super::signals::is_stop_requested;
use super::{DemoArguments, FAILED, WRONG_USAGE, complain};
use crate::demo::{DemoOptions, Screen, run};
use crate::guest::Place;

/// VRAM of a software card that no size is named for: little, so that a few VMs use more.
const VRAM_DEFAULT: u64 = 256 << 20;

pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<u8> {
    let card = arguments.gpu.clone().with_vram(arguments.vram, |_| VRAM_DEFAULT);
    let card = match card {
        Ok(card) => card,
        Err(reason) => {
            complain(&format!("--vram: {reason}"));
            return Ok(WRONG_USAGE);
        }
    };
    // `--workload` chooses nothing as long as there is one: clap refuses any other name.
    let options = DemoOptions {
        vms: arguments.vms.into(),
        card,
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
