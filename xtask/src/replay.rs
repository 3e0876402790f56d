//! `cargo xtask replay`: feeds a recording to a fresh core, which must ask for the same actions.

use std::path::PathBuf;

use anyhow::Context;
use broker::{Compared, Replay};
use vgpu::Manager;

/// Recording to replay, and how to compare.
#[derive(clap::Args)]
pub(crate) struct ReplayArguments {
    /// File that `vramd demo --record` wrote.
    file: PathBuf,
    /// Leave notices out, which tell and do nothing: for a recording that another version made.
    #[arg(long)]
    without_notices: bool,
}

pub(crate) fn run(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let name = arguments.file.display();
    let replay = Replay::open(&arguments.file).with_context(|| format!("cannot replay {name}"))?;
    let mut manager = Manager::new(replay.config().clone());
    let compared = if arguments.without_notices {
        Compared::AllButNotices
    } else {
        Compared::Everything
    };
    let summary = replay
        .comparing(compared)
        .run(&mut manager)
        .with_context(|| format!("{name} does not repeat"))?;
    println!("{name}: same actions from the same events: {summary:?}");
    Ok(())
}
