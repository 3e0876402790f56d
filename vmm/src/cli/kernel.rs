//! `vramd kernel`: machine code of the GPU from text and back.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};

use crate::kernel::{Program, disassemble, read_text};

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

pub(super) fn kernel(arguments: &Arguments) -> anyhow::Result<u8> {
    match &arguments.action {
        Action::Asm(arguments) => asm(arguments),
        Action::Disasm(arguments) => disasm(arguments),
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
    std::fs::write(output, &hex).with_context(|| format!("cannot write {}", output.display()))?;
    print(&format!("{}: {program}\n", output.display()))
}

fn disasm(arguments: &DisasmArguments) -> anyhow::Result<u8> {
    let text = read_text(&arguments.words)?;
    print(&disassemble(&arguments.words, &text, arguments.program)?)
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
