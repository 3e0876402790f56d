//! Archives in the format of Linux' initial file system ("newc", `Documentation/driver-api/early-userspace/buffer-format`).
//!
//! We write it ourselves because every other way to make a device node needs root, and because it
//! takes a hundred lines.

use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;
const TRAILER: &str = "TRAILER!!!";

/// An archive. Paths are relative to the root, and a folder comes before its contents.
pub(super) struct Archive<W: Write> {
    output: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(output: W) -> Self {
        Self { output, inode: 0 }
    }

    pub(super) fn folder(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, FOLDER, (0, 0), &[])
    }

    /// A file that may be executed.
    pub(super) fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.entry(path, PROGRAM, (0, 0), content)
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, LINK, (0, 0), target.as_bytes())
    }

    /// A character device by (major, minor).
    pub(super) fn device(&mut self, path: &str, numbers: (u32, u32)) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE, numbers, &[])
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.entry(TRAILER, 0, (0, 0), &[])?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let length =
            u32::try_from(content.len()).map_err(|_| io::Error::other("a file of more than 4 GiB"))?;
        let name_length = path.len() as u32 + 1;
        // inode, mode, user, group, links, time, length, device of the file, number of a device node, name, checksum.
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            device.0,
            device.1,
            name_length,
            0,
        ];
        let mut header = String::from("070701");
        for field in fields {
            header.push_str(&format!("{field:08x}"));
        }
        header.push_str(path);
        header.push('\0');
        self.padded(header.as_bytes())?;
        self.padded(content)
    }

    /// Everything begins at a multiple of four.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)?;
        let rest = bytes.len().next_multiple_of(4) - bytes.len();
        self.output.write_all(&[0; 3][..rest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_what_the_kernel_expects() {
        let mut archive = Archive::new(Vec::new());
        archive.folder("dev").unwrap();
        archive.device("dev/console", (5, 1)).unwrap();
        archive.file("init", b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let field = |start: usize, index: usize| {
            let at = start + 6 + 8 * index;
            u32::from_str_radix(std::str::from_utf8(&bytes[at..at + 8]).unwrap(), 16).unwrap()
        };
        assert_eq!((field(0, 1), field(0, 6), field(0, 11)), (FOLDER, 0, 4));
        assert_eq!(&bytes[110..116], b"dev\0\0\0".get(..6).unwrap());
        // 110 + 4 bytes of header and name, padded.
        let console = 116;
        assert_eq!((field(console, 9), field(console, 10)), (5, 1));
        // 110 + 12 bytes.
        let init = console + 124;
        assert_eq!((field(init, 1), field(init, 6)), (PROGRAM, 5));
        assert_eq!(&bytes[init + 116..init + 124], b"hello\0\0\0");
        assert_eq!(&bytes[init + 124..init + 130], b"070701");
        assert!(bytes.len().is_multiple_of(4));
        assert!(
            bytes
                .windows(TRAILER.len())
                .any(|part| part == TRAILER.as_bytes())
        );
    }
}
