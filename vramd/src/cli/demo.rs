//! The verb `vramd demo`.

use std::io::Write as _;

use anyhow::Context as _;

use super::DemoArguments;
use crate::demo::{DemoOptions, Screen, run};
use guests::Workload;
use vramd_vm::guest::RunsOn;
use vramd_vm::program::{FAILED, WRONG_USAGE, complain};
use vramd_vm::signals::is_stop_requested;

/// VRAM of a software card without a given size: little, so that a few VMs use more.
const VRAM_DEFAULT: u64 = 256 << 20;

/// VMs if no number is given: one for each of [`WORKLOADS_DEFAULT`].
const VMS_DEFAULT: usize = 4;
/// The workloads if none are given, in turn.
const WORKLOADS_DEFAULT: [&str; VMS_DEFAULT] = ["hotspot", "bfs", "matrix", "files"];

/// The workloads of the VMs, in turn. Files go to the workloads that take files.
fn workloads(arguments: &DemoArguments) -> Result<Vec<Workload>, &'static str> {
    match (arguments.workload.is_empty(), arguments.input.is_empty()) {
        (true, true) => Ok(WORKLOADS_DEFAULT
            .into_iter()
            .filter_map(Workload::named)
            .collect()),
        (true, false) => Ok(vec![Workload::Files]),
        (false, false) if !arguments.workload.contains(&Workload::Files) => {
            Err("--input is for the workload files, which is not among the workloads")
        }
        (false, _) => Ok(arguments.workload.clone()),
    }
}

pub(super) fn demo(arguments: &DemoArguments) -> anyhow::Result<u8> {
    let card = arguments.gpu.clone().with_vram(arguments.vram, |_| VRAM_DEFAULT);
    let card = match card {
        Ok(card) => card,
        Err(reason) => {
            complain(&format!("--vram: {reason}"));
            return Ok(WRONG_USAGE);
        }
    };
    let workloads = match workloads(arguments) {
        Ok(workloads) => workloads,
        Err(reason) => {
            complain(reason);
            return Ok(WRONG_USAGE);
        }
    };
    let options = DemoOptions {
        vms: arguments
            .vms
            .map_or(workloads.len().max(VMS_DEFAULT), usize::from),
        workloads,
        card,
        guest_vram: arguments.guest_vram,
        inputs: arguments.input.clone(),
        windows: arguments.windows,
        shadow: arguments.shadow,
        seed: arguments.seed,
        rounds: arguments.rounds,
        record: arguments.record.clone(),
        place: if arguments.no_kvm {
            RunsOn::Threads
        } else {
            RunsOn::Kvm
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
