//! `cargo xtask replay`: a recording is fed to a fresh core, which must want the same things done.

use std::path::PathBuf;

use anyhow::Context;
use broker::Replay;
use vgpu::Manager;

/// Which recording.
#[derive(clap::Args)]
pub(crate) struct ReplayArguments {
    /// File that `vramd demo --record` wrote.
    file: PathBuf,
}

pub(crate) fn run(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let name = arguments.file.display();
    let replay = Replay::open(&arguments.file).with_context(|| format!("cannot replay {name}"))?;
    let mut manager = Manager::new(replay.config().clone());
    let summary = replay
        .run(&mut manager)
        .with_context(|| format!("{name} does not repeat"))?;
    println!("{name}: same actions from the same events: {summary:?}");
    Ok(())
}
