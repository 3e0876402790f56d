//! What a shell completes and what `man` shows, both from the definition of the command line, so that neither can say anything else.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::Cli;

#[derive(Args, Debug)]
pub(super) struct CompletionsArguments {
    /// The shell that will read it
    shell: Shell,
}

#[derive(Args, Debug)]
pub(super) struct ManArguments {
    /// Folder for the pages, made if it is missing; pages of these names that are there are written anew
    folder: PathBuf,
}

/// `vramd completions SHELL`: prints the shell's script.
pub(super) fn completions(arguments: &CompletionsArguments) -> anyhow::Result<u8> {
    let (mut command, mut script) = (Cli::command(), Vec::new());
    generate(arguments.shell, &mut command, "vramd", &mut script);
    let mut out = std::io::stdout().lock();
    let written = out.write_all(&script).and_then(|()| out.flush());
    written.context("cannot write to stdout")?;
    Ok(0)
}

/// `vramd man DIR`: a page for the program, and one for each verb.
pub(super) fn man(arguments: &ManArguments) -> anyhow::Result<u8> {
    let folder = &arguments.folder;
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("cannot make folder {shown}"))?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("cannot write pages to {shown}"))?;
    Ok(0)
}
