//! Pages that live in another file than their own, and are seen in one mapping all the same.
//!
//! A file, its *home*, is mapped whole. A run of its pages can be *lent*: it then lives in another file, whose mapping somebody else
//! has, and the mapping shows it from there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use vm_memory::MmapRegion;

use crate::mapping::punch_hole;
use crate::remap::show;

/// Bytes moved at once.
const MOVE_BYTES: usize = 128 << 10;

/// A run of whole pages and the place that they are lent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loan {
    /// First byte in the home and in its mapping.
    pub at: u64,
    /// First byte in the other file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Loan {
    /// Lets a run that is at home live in `file` from now on, with its bytes. Nobody may store to it meanwhile.
    ///
    /// # Errors
    /// Those of the host. The mapping then shows the run from one of the two.
    pub fn lend(self, home: &File, mapping: &MmapRegion, file: &File) -> io::Result<()> {
        let Self { at, offset, bytes } = self;
        punch_hole(file, offset, bytes)?;
        move_bytes(home, at, file, offset, bytes)?;
        show(mapping, at, bytes, file, offset)?;
        punch_hole(home, at, bytes)
    }

    /// Takes a run back that lives in `file`; there it reads as zero then. Nobody may store to it meanwhile, or that is lost.
    ///
    /// # Errors
    /// Those of the host. The mapping then shows the run from one of the two.
    pub fn take_back(self, home: &File, mapping: &MmapRegion, file: &File) -> io::Result<()> {
        let Self { at, offset, bytes } = self;
        move_bytes(file, offset, home, at, bytes)?;
        show(mapping, at, bytes, home, at)?;
        punch_hole(file, offset, bytes)
    }
}

/// Copies the parts of the source that are not holes; the target is one hole.
fn move_bytes(source: &File, from: u64, target: &File, to: u64, bytes: u64) -> io::Result<()> {
    let end = from + bytes;
    let mut at = from;
    let mut buffer = vec![0; MOVE_BYTES.min(bytes as usize)];
    while at < end {
        at = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) if data < end => data,
            // The rest is a hole.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        // Holes within a piece are copied as zeros, which costs less than to look for them.
        let part = buffer.len().min((end - at) as usize);
        source.read_exact_at(&mut buffer[..part], at)?;
        target.write_all_at(&buffer[..part], to + (at - from))?;
        at += part as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vm_memory::{Bytes as _, VolatileMemory as _};

    use super::*;
    use crate::mapping::{map_shared, sealed_memfd};

    struct Home {
        file: Arc<File>,
        region: Arc<MmapRegion>,
        window: File,
    }

    fn home() -> Home {
        let file = Arc::new(sealed_memfd("home", 1 << 20).unwrap());
        Home {
            region: map_shared(file.clone(), 0, 1 << 20, true).unwrap(),
            file,
            window: sealed_memfd("window", 0x10000).unwrap(),
        }
    }

    impl Home {
        fn lend(&self) {
            LOAN.lend(&self.file, &self.region, &self.window).unwrap();
        }

        fn write(&self, at: usize, bytes: &[u8]) {
            self.region.as_volatile_slice().write_slice(bytes, at).unwrap();
        }

        fn read(&self, at: usize) -> [u8; 4] {
            let mut bytes = [0; 4];
            self.region
                .as_volatile_slice()
                .read_slice(&mut bytes, at)
                .unwrap();
            bytes
        }

        fn read_window(&self, at: u64) -> [u8; 4] {
            let mut bytes = [0; 4];
            self.window.read_exact_at(&mut bytes, at).unwrap();
            bytes
        }
    }

    const LOAN: Loan = Loan {
        at: 0x5000,
        offset: 0x2000,
        bytes: 0x3000,
    };

    #[test]
    fn lent_pages_are_the_same_bytes_in_both_places() {
        let home = home();
        home.write(0x6ffc, &[1, 2, 3, 4]);
        home.lend();
        assert_eq!(home.read_window(0x3ffc), [1, 2, 3, 4]);
        home.window.write_all_at(&[5; 4], 0x4000).unwrap();
        home.write(0x7004, &[6; 4]);
        assert_eq!((home.read(0x7000), home.read_window(0x4004)), ([5; 4], [6; 4]));
    }

    #[test]
    fn pages_taken_back_keep_their_bytes_and_leave_zeros() {
        let home = home();
        home.lend();
        home.window.write_all_at(&[7; 4], 0x2000).unwrap();
        LOAN.take_back(&home.file, &home.region, &home.window).unwrap();
        home.window.write_all_at(&[8; 4], 0x3000).unwrap();
        assert_eq!(home.read(0x5000), [7; 4]);
        assert_eq!(home.read_window(0x2000), [0; 4]);
        assert_eq!(
            home.read(0x6000),
            [0; 4],
            "no store to the window arrives any more"
        );
    }

    #[test]
    fn what_stood_in_the_file_before_does_not_come_home() {
        let home = home();
        home.window.write_all_at(&[9; 0x3000], 0x2000).unwrap();
        home.lend();
        assert_eq!(home.read(0x6000), [0; 4]);
    }
}
