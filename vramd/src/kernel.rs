//! Kernels of the GPU as files: machine code from text, text from machine code, and launches on a bare card.
//!
//! ```text
//! FILE.asm ─► Program ─► FILE.hex          words ─► disassemble ─► text
//! LAUNCH.toml ─► LaunchFile ─► Plan ─► BareMachine, guests::driver ─► Outcome ─► report
//!                                        └► Tracer: the instructions of one warp
//! ```
//!
//! A launch goes the way of any driver's: page tables in VRAM, a channel, methods of class 90c0. Only the contents
//! of buffers, code and constants are put directly into memory. `docs/kernels.md` is the manual.

mod launch_file;
mod plan;
mod program;
mod report;
mod run;
mod trace;
mod value;
mod words;

pub(crate) use program::Program;
pub(crate) use report::{complaint, to_json, to_text};
pub(crate) use run::{RunChoice, run};
pub(crate) use trace::TraceChoice;
pub(crate) use words::disassemble;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fermi_model::BareCardError;
use fermi_spec::isa::assembler::{AssemblyError, SOURCE_BYTES_MAX};
use guests::DriverError;

use vramd_vm::config::ConfigError;

/// Why a file of a kernel cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KernelError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The file has more bytes than any kernel.
    #[error("{} is longer than {bytes_max} bytes", path.display())]
    TooLong { path: PathBuf, bytes_max: usize },
    /// The text of a program.
    #[error("{}:{}:{}: {}", path.display(), error.line, error.column, error.message)]
    Assembly { path: PathBuf, error: AssemblyError },
    /// A line is not an instruction word.
    #[error("{}:{line}: {text:?} is not {expected}", path.display())]
    Word {
        path: PathBuf,
        line: usize,
        /// As given, cut.
        text: String,
        expected: &'static str,
    },
    /// The file has no words.
    #[error("{} has no instruction", path.display())]
    Empty { path: PathBuf },
    /// The name ends neither like a source nor like words.
    #[error("{} is neither FILE.asm, a source, nor FILE.hex, words", path.display())]
    Extension { path: PathBuf },
}

/// Why a launch cannot be run. An error of the kernel itself is none: see [`run::Fault`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The launch file itself is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The code, or a file with content, cannot be used.
    #[error(transparent)]
    Kernel(KernelError),
    /// The launch file does not fit the files that it names.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        path: PathBuf,
        field: String,
        reason: String,
    },
    /// The grid does not have the warp to trace.
    #[error(
        "there is no warp {block}.{warp} to trace: blocks are 0 to {}, warps of a block 0 to {}",
        blocks - 1,
        warps - 1
    )]
    NoSuchWarp {
        block: u64,
        warp: u32,
        blocks: u64,
        warps: u32,
    },
    /// There is no such card, or no memory for it.
    #[error(transparent)]
    Card(#[from] BareCardError),
    /// The driver failed at a step.
    #[error("cannot {what}")]
    Driver {
        what: String,
        #[source]
        source: DriverError,
    },
    /// The host's time for it is used up.
    #[error(
        "the launch is not done after {} s of host time: let it run longer with --host-time-limit SECONDS, or let it do less",
        limit.as_secs()
    )]
    HostTime { limit: Duration },
}

/// Reads a source or a file of words.
pub(crate) fn read_text(path: &Path) -> Result<String, KernelError> {
    let bytes = read_bytes(path, SOURCE_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| KernelError::Read {
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not text (UTF-8)"),
    })
}

/// Reads a file of at most `bytes_max` bytes, or what comes out of a pipe.
pub(crate) fn read_bytes(path: &Path, bytes_max: usize) -> Result<Vec<u8>, KernelError> {
    let failed = |source| KernelError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() > bytes_max {
        return Err(KernelError::TooLong {
            path: path.to_owned(),
            bytes_max,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
