//! Tests the GPU of a Linux guest through the DRM ioctls of nouveau, for a harness that reads lines.
//!
//! Each test runs in a process of its own ([`runner`]), so that one that hangs or is killed ends alone. What is tested
//! is in [`cases`]; the other modules give the driver's calls a meaning.

mod bench;
mod binding;
mod cases;
mod channel;
mod copy;
mod device;
mod hold;
mod interrupts;
mod layout;
mod pattern;
mod push;
mod runner;
mod syncobj;
mod sys;
mod uapi;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use report::Selection;

/// Tests the GPU of this machine through nouveau's ioctls.
///
/// One line for each test: "ok NAME MS", "skip NAME REASON" or "FAIL NAME REASON"; at the end "done" with the counts.
#[derive(Parser, Debug)]
struct Arguments {
    /// Name the tests and what each lets the kernel log say, and stop.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    selection: Selection,
    /// Measure instead of testing.
    #[arg(long, conflicts_with_all = ["only", "skip", "list"])]
    bench: bool,
    /// Fill VRAM, print "held", wait until this file exists, and verify: for a harness that suspends the machine.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "skip", "list", "bench"])]
    hold: Option<PathBuf>,
    /// The node to open.
    #[arg(long, value_name = "PATH", default_value = "/dev/dri/renderD128")]
    render: PathBuf,
    /// The card's other node.
    #[arg(long, value_name = "PATH", default_value = "/dev/dri/card0")]
    card: PathBuf,
    /// Seconds after which a test is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Run this one test in this process.
    #[arg(long, value_name = "NAME", hide = true)]
    inner: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let nodes = cases::Nodes {
        render: arguments.render,
        card: arguments.card,
    };
    if arguments.list {
        runner::list();
        return ExitCode::SUCCESS;
    }
    if arguments.bench {
        return runner::report("bench", bench::run(&nodes));
    }
    if let Some(sign) = arguments.hold {
        return runner::report("hold", hold::run(&nodes, &sign));
    }
    if let Some(name) = arguments.inner {
        return runner::run_here(&name, &nodes);
    }
    let limit = Duration::from_secs(arguments.limit);
    match runner::run_all(&arguments.selection, limit, &nodes) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nouveau-test: {error:#}");
            ExitCode::from(2)
        }
    }
}
