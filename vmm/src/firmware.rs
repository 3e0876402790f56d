//! Microcode of a real card's copy engines, from a folder that the operator names.
//!
//! Four files, named as nouveau looks for them below `nouveau/` (Linux `nvkm/engine/falcon.c`: chipset 0c0, first byte of
//! the falcon's registers >> 12, `c` code and `d` data), each the memory's words from 0 on, the low byte first. vramd has
//! none and copies none: they are made from nouveau's sources (`ce/fuc/gf100.fuc3`), whose methods the broker's own
//! channel uses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vgpu::{Microcode, MicrocodeError};

/// Falcons of copy engines 0 and 1, as in the files' names.
const FALCONS: [&str; 2] = ["104", "105"];

/// Why there is no microcode.
#[derive(Debug, thiserror::Error)]
pub enum FirmwareError {
    /// A file cannot be read.
    #[error("cannot read microcode {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// A file is not what a copy engine takes.
    #[error("microcode {}", path.display())]
    Unfit {
        /// The code's file; the data's lies beside it.
        path: PathBuf,
        /// What is wrong with either.
        #[source]
        source: MicrocodeError,
    },
}

/// Reads what both engines are given.
pub(crate) fn read(folder: &Path) -> Result<[Microcode; 2], FirmwareError> {
    let [first, second] = FALCONS.map(|falcon| read_one(folder, falcon));
    Ok([first?, second?])
}

fn read_one(folder: &Path, falcon: &str) -> Result<Microcode, FirmwareError> {
    let file = |part| folder.join(format!("nvc0_fuc{falcon}{part}"));
    let bytes = |path: &PathBuf| {
        fs::read(path).map_err(|source| FirmwareError::Read {
            path: path.clone(),
            source,
        })
    };
    let (code, data) = (file("c"), file("d"));
    let microcode = Microcode::new(&bytes(&code)?, &bytes(&data)?);
    microcode.map_err(|source| FirmwareError::Unfit { path: code, source })
}

#[cfg(test)]
mod tests {
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
