//! How the operator's files are read; `vm.toml` of a VM.
//!
//! A file is read in two steps: serde refuses a file of another structure (unknown fields included), then
//! `validate` refuses impossible values. Both name the line and the field. `docs/examples` has a commented
//! file of each kind.

mod vm;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
pub use vm::{DiskFile, NetFile, VmFile};

/// Bytes of the largest file read. Real ones have a few hundred.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Unit of VRAM sizes.
pub const MIB: u64 = 1 << 20;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        #[source]
        source: std::io::Error,
    },
    /// The file is too long for a configuration.
    #[error("{} is longer than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// A field is missing, unknown or wrong.
    #[error("{}:{line}: {field}: {reason}", path.display())]
    Field {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Name of the field, or the text in its place.
        field: String,
        /// The error, and the values that would be right.
        reason: String,
    },
}

/// The error of a field, before the file and line are known.
#[derive(Debug)]
pub struct Wrong {
    span: Range<usize>,
    field: String,
    reason: String,
}

impl Wrong {
    /// Says that the field `field`, whose value is at `span` of the text, is wrong for `reason`.
    pub fn new(span: Range<usize>, field: impl Into<String>, reason: impl fmt::Display) -> Wrong {
        Wrong {
            span,
            field: field.into(),
            reason: reason.to_string(),
        }
    }
}

/// A kind of configuration file: its structure for serde, and its validated form.
pub trait ConfigFile: Sized {
    /// The file's structure.
    type Raw: DeserializeOwned;

    /// Checks the values, after serde has checked the structure.
    fn validate(raw: Self::Raw) -> Result<Self, Wrong>;
}

/// Reads and checks a file.
pub fn load<T: ConfigFile>(path: &Path) -> Result<T, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(std::io::Error::other("it is not a regular file")));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(ConfigError::TooLong {
            path: path.to_owned(),
        });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse(path, &text)
}

/// Checks the text of a file; `path` is for messages.
pub fn parse<T: ConfigFile>(path: &Path, text: &str) -> Result<T, ConfigError> {
    let wrong = match toml::from_str::<T::Raw>(text) {
        Ok(raw) => match T::validate(raw) {
            Ok(config) => return Ok(config),
            Err(wrong) => wrong,
        },
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            Wrong::new(span.clone(), key_at(text, span.start), one_line(error.message()))
        }
    };
    Err(ConfigError::Field {
        path: path.to_owned(),
        line: line_of(text, wrong.span.start),
        field: wrong.field,
        reason: wrong.reason,
    })
}

fn before(text: &str, offset: usize) -> &str {
    text.get(..offset).unwrap_or(text)
}

fn line_of(text: &str, offset: usize) -> usize {
    before(text, offset).matches('\n').count() + 1
}

/// The key on the line at `offset`, or the whole line where there is none.
fn key_at(text: &str, offset: usize) -> String {
    let line = text.lines().nth(line_of(text, offset) - 1).unwrap_or_default();
    let key = line.split_once('=').map_or(line, |(key, _)| key).trim();
    let key = if key.is_empty() { "end of file" } else { key };
    one_line(&key.chars().take(40).collect::<String>())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a name can stand in messages, file names and labels.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || name.len() > 32 || !name.chars().all(is_plain) {
        return Err(format!(
            "{name:?} is not 1 to 32 letters, digits, '-', '_' or '.'"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
