//! Kernels of the GPU as files: machine code from text, text from machine code.
//!
//! `docs/kernels.md` is the manual.

mod program;
mod words;

pub(crate) use program::Program;
pub(crate) use words::disassemble;

use std::io::Read as _;
use std::path::{Path, PathBuf};

use fermi_spec::isa::assembler::{AssemblyError, SOURCE_BYTES_MAX};

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
    /// More than any kernel has.
    #[error("{} is longer than {bytes_max} bytes", path.display())]
    TooLong { path: PathBuf, bytes_max: usize },
    /// The text of a program.
    #[error("{}:{}:{}: {}", path.display(), error.line, error.column, error.message)]
    Assembly { path: PathBuf, error: AssemblyError },
    /// A line that should be a word.
    #[error("{}:{line}: {text:?} is not {expected}", path.display())]
    Word {
        path: PathBuf,
        line: usize,
        /// As given, cut.
        text: String,
        expected: &'static str,
    },
    /// Nothing to run or to show.
    #[error("{} has no instruction", path.display())]
    Empty { path: PathBuf },
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
