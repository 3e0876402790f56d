//! `vramd kernel`: machine code of the GPU from text and back, and launches of it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};

use crate::kernel::{
    Program, RunChoice, TraceChoice, complaint, disassemble, read_text, run, to_json, to_text,
};
use vramd_vm::program::{FAILED, complain};
use vramd_vm::signals;

/// Host time of a launch if no other is given, in seconds. Who simulates for longer than an hour says so.
const HOST_TIME_LIMIT_DEFAULT: u64 = 3600;
/// Most lines of a trace.
const TRACE_LINES_MAX: u32 = 1_000_000;

#[derive(Parser, Debug)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Assemble a kernel: one word of 16 hexadecimal digits a line
    Asm(AsmArguments),
    /// Say what words mean: one line `WORD<TAB>TEXT` for each
    Disasm(DisasmArguments),
    /// Run a kernel on a software card and show what it wrote
    Run(RunArguments),
}

#[derive(Parser, Debug)]
struct AsmArguments {
    /// The source (docs/kernels.md)
    #[arg(value_name = "FILE.asm")]
    source: PathBuf,
    /// Write the words to a file instead of stdout
    #[arg(short, long, value_name = "FILE.hex")]
    output: Option<PathBuf>,
}

#[derive(Parser, Debug)]
struct DisasmArguments {
    /// One word a line: 16 hexadecimal digits, or 8 of a short form
    #[arg(value_name = "FILE.hex")]
    words: PathBuf,
    /// Take the file for a program: count the bytes, and branch targets from its start
    #[arg(long)]
    program: bool,
}

#[derive(Parser, Debug)]
struct RunArguments {
    /// The launch (docs/kernels.md; docs/examples/kernels has some)
    #[arg(value_name = "LAUNCH.toml")]
    launch: PathBuf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Show each instruction of one warp with what it wrote
    #[arg(long)]
    trace: bool,
    /// Which warp: a block's number (x fastest) and a warp of it
    #[arg(long, value_name = "BLOCK.WARP", default_value = "0.0", value_parser = traced_warp, requires = "trace")]
    trace_warp: (u64, u32),
    /// Show what one lane got, instead of all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..32), requires = "trace")]
    trace_lane: Option<u8>,
    /// Most instructions shown
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(TRACE_LINES_MAX)), requires = "trace")]
    trace_limit: u32,
    /// Seconds of the host's time after which the launch is given up
    #[arg(long, value_name = "SECONDS", default_value_t = HOST_TIME_LIMIT_DEFAULT,
        value_parser = clap::value_parser!(u64).range(1..))]
    host_time_limit: u64,
}

fn traced_warp(text: &str) -> Result<(u64, u32), String> {
    let parsed = text
        .split_once('.')
        .and_then(|(block, warp)| Some((block.parse().ok()?, warp.parse().ok()?)));
    parsed.ok_or_else(|| "a block's number, a point and a warp's, such as 0.0, are wanted".to_owned())
}

pub(super) fn kernel(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.action {
        Action::Asm(arguments) => asm(arguments),
        Action::Disasm(arguments) => disasm(arguments),
        Action::Run(arguments) => launch(arguments),
    }
}

fn asm(arguments: &AsmArguments) -> anyhow::Result<u8> {
    let program = Program::assemble(&arguments.source)?;
    let hex = program.to_hex();
    let Some(output) = &arguments.output else {
        return print(&hex);
    };
    if is_same(output, &arguments.source) {
        bail!(
            "{} is the source: name another file for the words",
            output.display()
        );
    }
    write_whole(output, &hex).with_context(|| format!("cannot write {}", output.display()))?;
    print(&format!("{}: {program}\n", output.display()))
}

fn disasm(arguments: &DisasmArguments) -> anyhow::Result<u8> {
    let text = read_text(&arguments.words)?;
    print(&disassemble(&arguments.words, &text, arguments.program)?)
}

fn launch(arguments: &RunArguments) -> anyhow::Result<u8> {
    let (block, warp) = arguments.trace_warp;
    let trace = arguments.trace.then_some(TraceChoice {
        block,
        warp,
        lane: arguments.trace_lane,
        lines_max: arguments.trace_limit as usize,
    });
    let choice = RunChoice {
        trace,
        host_time_limit: Duration::from_secs(arguments.host_time_limit),
    };
    let outcome = run(&arguments.launch, choice)?;
    if arguments.json {
        print(&format!("{}\n", to_json(&outcome)))?;
    } else {
        print(&to_text(&outcome))?;
    }
    Ok(match complaint(&outcome) {
        None => 0,
        Some(fault) => {
            complain(&fault);
            FAILED
        }
    })
}

/// Writes a file that a signal leaves as it was or whole. A pipe or a device may wait for its reader: there a signal ends the
/// program as ever.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    if !fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        signals::install()?;
    }
    fs::write(path, text)?;
    Ok(())
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

fn print(text: &str) -> anyhow::Result<u8> {
    std::io::stdout()
        .write_all(text.as_bytes())
        .context("cannot write to stdout")?;
    Ok(0)
}
