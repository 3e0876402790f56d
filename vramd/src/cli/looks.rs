//! Verbs that look into a running broker: the state of what decides, and what happened last to a VM.

use anyhow::{Context as _, bail};
use clap::Args;
use control::{Gpus, State, Trace, TraceLine, client};
use serde::Serialize;
use vgpu::inspect::Node;

use super::control::{Asked, gone_lines, json_lines};
use super::watch::{Watch, write};

/// How long one request of those who follow waits, in milliseconds.
const WAIT_MS: u32 = 10_000;
/// Most entries of one answer.
const LINES_MAX: u32 = 1000;

#[derive(Args, Debug)]
pub(super) struct InspectArguments {
    /// Name of a connected VM [default: all cards, with all their VMs]
    #[arg(value_name = "VM")]
    vm: Option<String>,
    /// Part of the state, such as chunks/list; what says "shown if this path is asked for" is shown by its path
    #[arg(value_name = "PATH")]
    path: Option<String>,
    /// State of this card; what is named then is a PATH of it, such as card/arena
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    #[command(flatten)]
    watch: Watch,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args, Debug)]
pub(super) struct TraceArguments {
    /// Name of a connected VM
    vm: String,
    /// Go on as more happens; with --json, one entry a line
    #[arg(long)]
    follow: bool,
    /// Begin with so many entries of what is kept
    #[arg(long, value_name = "N", default_value_t = LINES_MAX, value_parser = clap::value_parser!(u32).range(1..=i64::from(LINES_MAX)))]
    last: u32,
    #[command(flatten)]
    asked: Asked,
}

/// What `inspect --json` prints: the document of one card or VM, or those of all cards.
#[derive(Serialize)]
#[serde(untagged)]
enum Inspected {
    One(State),
    All {
        states: Vec<State>,
        gone: Vec<control::GoneGpu>,
    },
}

/// `vramd inspect`: the state of what decides, or a part of it.
pub(super) fn inspect(arguments: &InspectArguments) -> anyhow::Result<u8> {
    let InspectArguments {
        vm, path, gpu, asked, ..
    } = arguments;
    let look = || -> anyhow::Result<Inspected> {
        Ok(match (gpu, vm, path) {
            (Some(_), Some(_), Some(_)) => {
                bail!("with --gpu the only other word is a PATH: it has the VMs of the card under vms/")
            }
            (Some(gpu), path, None) => {
                let path = path.as_deref().unwrap_or_default();
                Inspected::One(asked.ask(&client::gpu_state(gpu, path))?)
            }
            (_, Some(vm), path) => {
                let path = path.as_deref().unwrap_or_default();
                Inspected::One(asked.ask(&client::vm_state(vm, path))?)
            }
            (_, None, _) => {
                let Gpus { gpus, gone } = asked.ask(&client::gpus())?;
                let states = gpus
                    .iter()
                    .map(|gpu| asked.ask(&client::gpu_state(&gpu.name, "")));
                Inspected::All {
                    states: states.collect::<anyhow::Result<_>>()?,
                    gone,
                }
            }
        })
    };
    asked.show(&arguments.watch, look, inspected)
}

fn inspected(inspected: &Inspected) -> anyhow::Result<String> {
    match inspected {
        Inspected::One(state) => tree(state),
        Inspected::All { states, gone } => {
            let pages = states
                .iter()
                .map(|state| Ok(format!("gpu {}\n{}", state.gpu, tree(state)?)));
            let pages = pages.collect::<anyhow::Result<Vec<_>>>()?;
            Ok(pages.join("\n") + &gone_lines(gone))
        }
    }
}

/// The state as a flight file's is shown.
fn tree(state: &State) -> anyhow::Result<String> {
    let node: Node = serde_json::from_str(state.state.get())
        .context("the broker's state is none that this program reads")?;
    let cut = if state.is_cut {
        "(more is not shown at a time)\n"
    } else {
        ""
    };
    Ok(format!("{node}{cut}"))
}

/// `vramd trace VM`: what happened last to a VM.
pub(super) fn trace(arguments: &TraceArguments) -> anyhow::Result<u8> {
    let asked = &arguments.asked;
    let mut told = asked.ask(&client::trace(&arguments.vm, None, arguments.last, 0))?;
    if !arguments.follow {
        return asked.print(&told, || lines(&told));
    }
    loop {
        write(&match asked.json {
            true => json_lines(&told.lines)?,
            false => lines(&told),
        })?;
        told = asked.ask(&client::trace(
            &arguments.vm,
            Some(&told.cursor),
            LINES_MAX,
            WAIT_MS,
        ))?;
    }
}

fn lines(told: &Trace) -> String {
    let gap = if told.has_gap {
        "(some may not be kept any more)\n"
    } else {
        ""
    };
    let line = |line: &TraceLine| format!("{}\n", line.text);
    gap.to_owned() + &told.lines.iter().map(line).collect::<String>()
}
