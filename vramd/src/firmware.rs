//! Microcode of a real card's copy engines, from a folder that the operator names.
//!
//! Four files, named as nouveau looks for them below `nouveau/` (Linux `nvkm/engine/falcon.c`: chipset 0c0, first
//! byte of the falcon's registers >> 12, `c` code and `d` data), each the memory's words from 0 on, the low byte
//! first. vramd contains and copies none: they are made from nouveau's sources (`ce/fuc/gf100.fuc3`), whose methods
//! the broker's own channel uses.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use vgpu::{Microcode, MicrocodeError};

/// Falcons of copy engines 0 and 1, as in the files' names.
const FALCONS: [&str; 2] = ["104", "105"];

/// Bound on a file's bytes; the falcon's memories are smaller still.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why the microcode cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareError {
    /// A file cannot be read.
    #[error("cannot read microcode {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// A file is not microcode for a copy engine.
    #[error("microcode {}", path.display())]
    Unfit {
        /// Path of the code's file; the data's lies beside it.
        path: PathBuf,
        /// The error in one of the two.
        #[source]
        source: MicrocodeError,
    },
}

/// Reads the microcode of both engines.
pub(crate) fn read(folder: &Path) -> Result<[Microcode; 2], FirmwareError> {
    let [first, second] = FALCONS.map(|falcon| read_one(folder, falcon));
    Ok([first?, second?])
}

fn read_one(folder: &Path, falcon: &str) -> Result<Microcode, FirmwareError> {
    let file = |part| folder.join(format!("nvc0_fuc{falcon}{part}"));
    let bytes = |path: &PathBuf| {
        contents(path).map_err(|source| FirmwareError::Read {
            path: path.clone(),
            source,
        })
    };
    let (code, data) = (file("c"), file("d"));
    let microcode = Microcode::new(&bytes(&code)?, &bytes(&data)?);
    microcode.map_err(|source| FirmwareError::Unfit { path: code, source })
}

/// Reads a regular file: a device or a pipe may have no end.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // Metadata first: opening a pipe without a writer would wait for one.
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        let reason = format!("it has {} bytes, more than any microcode", metadata.len());
        return Err(io::Error::other(reason));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, usize)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(folder.path().join(name), vec![0x5a; *bytes]).unwrap();
        }
        folder
    }

    const WHOLE: [(&str, usize); 4] = [
        ("nvc0_fuc104c", 0x600),
        ("nvc0_fuc104d", 0x400),
        ("nvc0_fuc105c", 0x600),
        ("nvc0_fuc105d", 0x400),
    ];

    #[test]
    fn folder_with_all_files_is_read() {
        assert!(read(folder(&WHOLE).path()).is_ok());
    }

    #[test]
    fn endless_and_huge_files_are_not_read() {
        let reason_of = |folder: &Path| {
            let error = read(folder).unwrap_err();
            assert!(error.to_string().ends_with("nvc0_fuc104c"), "{error}");
            std::error::Error::source(&error).unwrap().to_string()
        };
        let endless = folder(&WHOLE[1..]);
        std::os::unix::fs::symlink("/dev/zero", endless.path().join(WHOLE[0].0)).unwrap();
        assert_eq!(reason_of(endless.path()), "it is not a regular file");
        let huge = folder(&WHOLE);
        let file = File::options()
            .write(true)
            .open(huge.path().join(WHOLE[0].0))
            .unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(
            reason_of(huge.path()),
            "it has 1099511627776 bytes, more than any microcode"
        );
    }

    #[test]
    fn missing_cut_and_oversized_files_are_named() {
        let missing = read(folder(&WHOLE[..3]).path()).unwrap_err();
        assert!(missing.to_string().ends_with("nvc0_fuc105d"), "{missing}");
        for (bytes, reason) in [
            (0x5fe, "1534 bytes of code are not"),
            (0x1300, "4864 bytes of code do not fit"),
        ] {
            let mut files = WHOLE;
            files[2].1 = bytes;
            let error = read(folder(&files).path()).unwrap_err();
            let source = std::error::Error::source(&error).unwrap().to_string();
            assert!(error.to_string().ends_with("nvc0_fuc105c"), "{error}");
            assert!(source.starts_with(reason), "{source}");
        }
    }
}
