//! `cargo xtask replay`: feeds a recording to a fresh core, which must ask for the same actions.

use std::path::PathBuf;

use anyhow::Context;
use broker::{Compared, Core, Replay};
use integration::rewrite::{Rewriter, Rewrites, Rewritten};
use vgpu::Manager;

/// Recording to replay, and how to compare.
#[derive(clap::Args)]
pub(crate) struct ReplayArguments {
    /// File that `vramd demo --record` wrote.
    file: PathBuf,
    /// Leave notices out, which tell and do nothing: for a recording that another version made.
    #[arg(long)]
    without_notices: bool,
    /// Stop after this line of the file, counted from 1, and print the state of the core as a tree.
    #[arg(long, value_name = "LINE")]
    inspect_at: Option<u64>,
    /// Write and read the core before each n-th event.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rewrite_every: Option<u64>,
    /// Print only this part of the tree, such as `vms/vm0/chunks/list`.
    #[arg(long, value_name = "PATH", requires = "inspect_at", default_value = "")]
    path: String,
}

pub(crate) fn run(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let name = arguments.file.display();
    let replay = Replay::open(&arguments.file).with_context(|| format!("cannot replay {name}"))?;
    let manager = Manager::new(replay.config().clone());
    let rewriter = arguments
        .rewrite_every
        .map(|every| Rewriter::new(Rewrites::Every(every), replay.config(), None));
    let mut core = Rewritten { manager, rewriter };
    let compared = if arguments.without_notices {
        Compared::AllButNotices
    } else {
        Compared::Everything
    };
    let summary = replay
        .comparing(compared)
        .until(arguments.inspect_at.unwrap_or(u64::MAX))
        .run(&mut core)
        .with_context(|| format!("{name} does not repeat"))?;
    if arguments.inspect_at.is_some() {
        let path = &arguments.path;
        let state = core.inspect(summary.now, path);
        print!(
            "{}",
            state.with_context(|| format!("there is nothing at {path}"))?
        );
        return Ok(());
    }
    println!("{name}: same actions from the same events: {summary:?}");
    if let Some(rewriter) = &core.rewriter {
        println!("the core was written and read {} times", rewriter.done);
    }
    Ok(())
}
