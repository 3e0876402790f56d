//! Microcode of a real card's copy engines and of its PGRAPH, from a folder that the operator names.
//!
//! Files named as nouveau looks for them below `nouveau/` (Linux `nvkm/engine/falcon.c`, `gr/gf100.c`: chipset 0c0, first byte of the falcon's
//! registers >> 12, `c` code and `d` data), each the memory's words from 0 on, the low byte first. vramd contains and copies
//! none: they are made from nouveau's sources (`ce/fuc/gf100.fuc3`, `gr/fuc/hubgf100.fuc3` and `gpcgf100.fuc3`), whose methods and answers the
//! broker uses. PGRAPH's may be left out, all four of them. Beside them lie lists of registers in the format that linux-firmware has for
//! later chips (`nvkm/engine/gr/gk20a.c`); what is not there is empty.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use vgpu::{GraphLists, GraphMicrocode, GraphStores, Microcode, MicrocodeError};

/// Falcons of copy engines 0 and 1, as in the files' names.
const COPY: [&str; 2] = ["104", "105"];
/// Those of FECS and of the GPCs.
const FECS: &str = "409";
const GPCCS: &str = "41a";

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
    /// A file is not microcode for its falcon.
    #[error("microcode {}", path.display())]
    Unfit {
        /// Path of the code's file; the data's lies beside it.
        path: PathBuf,
        /// The error in one of the two.
        #[source]
        source: MicrocodeError,
    },
    /// A list of registers is not whole entries.
    #[error("{}: {bytes} bytes are not whole entries of {entry}", path.display())]
    List {
        /// Path of the file.
        path: PathBuf,
        /// Bytes of it.
        bytes: usize,
        /// Bytes of an entry.
        entry: usize,
    },
}

/// What a folder has.
#[derive(Debug)]
pub(crate) struct Firmware {
    /// Microcode of copy engines 0 and 1.
    pub(crate) copy: [Microcode; 2],
    /// That of PGRAPH.
    pub(crate) graph: Option<GraphMicrocode>,
}

/// Reads what a folder has.
pub(crate) fn read(folder: &Path) -> Result<Firmware, FirmwareError> {
    let [first, second] = COPY.map(|falcon| {
        let [code, data] = paths(folder, falcon);
        let microcode = Microcode::new(&bytes_of(&code)?, &bytes_of(&data)?);
        microcode.map_err(|source| FirmwareError::Unfit { path: code, source })
    });
    Ok(Firmware {
        copy: [first?, second?],
        graph: read_graph(folder)?,
    })
}

fn read_graph(folder: &Path) -> Result<Option<GraphMicrocode>, FirmwareError> {
    let files = [FECS, GPCCS].map(|falcon| paths(folder, falcon));
    if !files.as_flattened().iter().any(|path| path.exists()) {
        return Ok(None);
    }
    let [[fecs, fecs_data], [gpccs, gpccs_data]] = &files;
    let (code, data) = (bytes_of(fecs)?, bytes_of(fecs_data)?);
    let (code_of_gpcs, data_of_gpcs) = (bytes_of(gpccs)?, bytes_of(gpccs_data)?);
    let lists = GraphLists {
        non_context: list(folder, "sw_nonctx.bin", [0, 8], 12)?,
        context: list(folder, "sw_ctx.bin", [0, 8], 12)?,
        bundles: list(folder, "sw_bundle_init.bin", [0, 4], 8)?,
        methods: list(folder, "sw_method_init.bin", [0, 4], 8)?,
    };
    let microcode = GraphMicrocode::new([&code, &data], [&code_of_gpcs, &data_of_gpcs], lists);
    let microcode = microcode.map_err(|source| FirmwareError::Unfit {
        path: fecs.clone(),
        source,
    })?;
    Ok(Some(microcode))
}

/// The files of a falcon's code and data.
fn paths(folder: &Path, falcon: &str) -> [PathBuf; 2] {
    ["c", "d"].map(|part| folder.join(format!("nvc0_fuc{falcon}{part}")))
}

/// The stores of a list whose entries have `entry` bytes, the register and its value at these offsets.
fn list(
    folder: &Path,
    name: &str,
    [reg, value]: [usize; 2],
    entry: usize,
) -> Result<GraphStores, FirmwareError> {
    let path = folder.join(name);
    if !path.exists() {
        return Ok(GraphStores::new());
    }
    let bytes = bytes_of(&path)?;
    if bytes.len() % entry != 0 {
        let bytes = bytes.len();
        return Err(FirmwareError::List { path, bytes, entry });
    }
    let word = |entry: &[u8], at: usize| u32::from_le_bytes(std::array::from_fn(|byte| entry[at + byte]));
    let entries = bytes.chunks_exact(entry);
    Ok(entries
        .map(|entry| (word(entry, reg), word(entry, value)))
        .collect())
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, FirmwareError> {
    contents(path).map_err(|source| FirmwareError::Read {
        path: path.to_owned(),
        source,
    })
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

    const OF_PGRAPH: [(&str, usize); 6] = [
        ("nvc0_fuc409c", 0x900),
        ("nvc0_fuc409d", 0x800),
        ("nvc0_fuc41ac", 0x700),
        ("nvc0_fuc41ad", 0x600),
        ("sw_ctx.bin", 24),
        ("sw_method_init.bin", 16),
    ];

    #[test]
    fn folder_with_all_files_is_read() {
        let firmware = read(folder(&WHOLE).path()).unwrap();
        assert!(firmware.graph.is_none());
        let files = [&WHOLE[..], &OF_PGRAPH[..]].concat();
        assert!(read(folder(&files).path()).unwrap().graph.is_some());
        // Lists may be left out.
        let files = [&WHOLE[..], &OF_PGRAPH[..4]].concat();
        assert!(read(folder(&files).path()).unwrap().graph.is_some());
    }

    #[test]
    fn microcode_of_pgraph_that_is_not_whole_is_named() {
        for (left_out, name) in [
            (0, "nvc0_fuc409c"),
            (1, "nvc0_fuc409d"),
            (2, "nvc0_fuc41ac"),
            (3, "nvc0_fuc41ad"),
        ] {
            let mut files = [&WHOLE[..], &OF_PGRAPH[..4]].concat();
            files.remove(WHOLE.len() + left_out);
            let error = read(folder(&files).path()).unwrap_err();
            assert!(error.to_string().ends_with(name), "{error}");
        }
        let mut files = [&WHOLE[..], &OF_PGRAPH[..]].concat();
        files[WHOLE.len() + 4].1 = 23;
        let error = read(folder(&files).path()).unwrap_err().to_string();
        assert!(
            error.ends_with("sw_ctx.bin: 23 bytes are not whole entries of 12"),
            "{error}"
        );
        files[WHOLE.len()].1 = 0x4004;
        let error = read(folder(&files).path()).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("sw_ctx.bin: 23 bytes are not whole entries of 12")
        );
        files[WHOLE.len() + 4].1 = 24;
        let error = read(folder(&files).path()).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(source, "16388 bytes of code do not fit the falcon's 16384");
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
