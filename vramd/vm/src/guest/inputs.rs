//! Files for a guest, with the digests that must be the same after their way through VRAM.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

/// Why a file cannot be an input.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The file cannot be opened or read.
    #[error("cannot read input {name}")]
    Read {
        /// Path of the file.
        name: String,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// The path names a directory, a pipe or a device.
    #[error("input {name} is not a regular file")]
    NotAFile {
        /// Path of the file.
        name: String,
    },
    /// The file has no bytes to check.
    #[error("input {name} is empty")]
    Empty {
        /// Path of the file.
        name: String,
    },
    /// The file does not fit its destination.
    #[error("input {name} of {bytes} bytes is too large: {limit} bytes fit {what}")]
    TooLarge {
        /// Path of the file.
        name: String,
        /// Size in bytes.
        bytes: u64,
        /// Bytes that fit.
        limit: u64,
        /// Name of the destination.
        what: &'static str,
    },
}

/// A file in memory. Cloning shares it.
#[derive(Clone, Debug)]
pub struct InputFile {
    name: String,
    data: Arc<Vec<u8>>,
    sha256: [u8; 32],
}

impl InputFile {
    /// Reads the regular file at `path`, at most `limit` bytes, the size of the destination `what`.
    pub fn open(path: &Path, limit: u64, what: &'static str) -> Result<InputFile, InputError> {
        let name = path.display().to_string();
        let (file, bytes) = open(path, &name)?;
        if bytes > limit {
            return Err(InputError::TooLarge {
                name,
                bytes,
                limit,
                what,
            });
        }
        InputFile::read(file, name, limit)
    }

    /// This program's own executable, or as much of it as `limit` bytes hold.
    pub fn own_executable(limit: u64) -> Result<InputFile, InputError> {
        let path = Path::new("/proc/self/exe");
        let name = "(this program)".to_owned();
        let (file, bytes) = open(path, &name)?;
        let name = if bytes > limit {
            format!("(first {limit} bytes of this program)")
        } else {
            name
        };
        InputFile::read(file, name, limit)
    }

    /// Bytes in memory.
    pub(crate) fn from_bytes(name: &str, data: Vec<u8>) -> InputFile {
        InputFile {
            name: name.to_owned(),
            sha256: Sha256::digest(&data).into(),
            data: Arc::new(data),
        }
    }

    /// At most `limit` bytes, however the file grows meanwhile.
    fn read(file: File, name: String, limit: u64) -> Result<InputFile, InputError> {
        let mut data = Vec::new();
        match file.take(limit).read_to_end(&mut data) {
            Ok(0) => Err(InputError::Empty { name }),
            Ok(_) => Ok(InputFile::from_bytes(&name, data)),
            Err(source) => Err(InputError::Read { name, source }),
        }
    }

    /// Path of the file, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Contents of the file.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// SHA-256 of the contents.
    pub fn sha256(&self) -> [u8; 32] {
        self.sha256
    }
}

fn open(path: &Path, name: &str) -> Result<(File, u64), InputError> {
    let failed = |source| InputError::Read {
        name: name.to_owned(),
        source,
    };
    // Metadata first: opening a pipe without a writer would wait for one.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(InputError::NotAFile {
            name: name.to_owned(),
        });
    }
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_by_name() {
        let error = |path: &str| {
            InputFile::open(Path::new(path), 10, "RAM")
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error("/nonexistent"), "cannot read input /nonexistent");
        assert_eq!(error("/dev/zero"), "input /dev/zero is not a regular file");
        assert_eq!(error("/"), "input / is not a regular file");
    }

    #[test]
    fn file_that_does_not_fit_is_refused() {
        let error = InputFile::open(Path::new("/proc/self/exe"), 10, "guest VRAM")
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("is too large: 10 bytes fit guest VRAM"),
            "{error}"
        );
    }

    #[test]
    fn own_executable_is_cut_and_says_so() {
        let own = InputFile::own_executable(1000).unwrap();
        assert_eq!((own.bytes(), &own.data()[..4]), (1000, &b"\x7fELF"[..]));
        assert_eq!(own.name(), "(first 1000 bytes of this program)");
    }
}
