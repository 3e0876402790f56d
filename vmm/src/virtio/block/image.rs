//! Disk images: raw files and block devices, each of one VM at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;

use vm_memory::{Bytes as _, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use super::SECTOR_BYTES;

/// First bytes of images that are not raw, and their names: a guest would see their tables as its disk.
const OTHER_FORMATS: [(&[u8], &str); 4] = [
    (b"QFI\xfb", "qcow2"),
    (b"KDMV", "VMDK"),
    (b"vhdxfile", "VHDX"),
    (b"conectix", "VHD"),
];
const MAGIC_BYTES: usize = 8;

/// Why a disk image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file cannot be opened or examined.
    #[error("cannot open disk image {path}")]
    Open {
        /// Path of the image.
        path: String,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// The path names a folder or a pipe.
    #[error("disk image {path} is neither a regular file nor a block device")]
    NotADisk {
        /// Path of the image.
        path: String,
    },
    /// No disk can have this size.
    #[error(
        "disk image {path} has {bytes} bytes, which are not one or more whole sectors of {SECTOR_BYTES}: it is truncated, or \
         not a raw image"
    )]
    Size {
        /// Path of the image.
        path: String,
        /// Size in bytes.
        bytes: u64,
    },
    /// The image is not raw.
    #[error("disk image {path} is a {format} image: convert it with `qemu-img convert -O raw`")]
    Format {
        /// Path of the image.
        path: String,
        /// Name of its format.
        format: &'static str,
    },
    /// Another VM has the image.
    #[error("disk image {path} is in use; several VMs can share it only if all have it read-only")]
    InUse {
        /// Path of the image.
        path: String,
    },
}

/// An image that is open and locked: by one VM, or by several that only read it. The lock is flock(2)'s.
#[derive(Debug)]
pub struct DiskImage {
    file: File,
    sectors: u64,
    is_read_only: bool,
}

impl DiskImage {
    /// Opens the image at `path`.
    pub fn open(path: &Path, is_read_only: bool) -> Result<DiskImage, DiskError> {
        let name = path.display().to_string();
        let failed = |source| DiskError::Open {
            path: name.clone(),
            source,
        };
        // Metadata first: opening a pipe without a writer would wait for one.
        let kind = path.metadata().map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(DiskError::NotADisk { path: name });
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(!is_read_only)
            .open(path)
            .map_err(failed)?;
        let locked = if is_read_only {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse { path: name }),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        // Metadata of a block device do not have its size.
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
        if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(DiskError::Size { path: name, bytes });
        }
        let mut magic = [0; MAGIC_BYTES];
        file.read_exact_at(&mut magic, 0).map_err(failed)?;
        if let Some((_, format)) = OTHER_FORMATS
            .iter()
            .find(|(magic_of, _)| magic.starts_with(magic_of))
        {
            return Err(DiskError::Format { path: name, format });
        }
        Ok(DiskImage {
            file,
            sectors: bytes / SECTOR_BYTES,
            is_read_only,
        })
    }

    /// Its size when it was opened.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Sets the place where the next transfers begin.
    pub(super) fn seek(&self, sector: u64) -> io::Result<()> {
        let byte = sector * SECTOR_BYTES;
        (&self.file).seek(SeekFrom::Start(byte)).map(drop)
    }

    /// Reads `bytes` bytes straight into guest memory.
    pub(super) fn read_to(
        &self,
        memory: &GuestMemoryMmap,
        address: GuestAddress,
        bytes: usize,
    ) -> Result<(), GuestMemoryError> {
        memory.read_exact_volatile_from(address, &mut &self.file, bytes)
    }

    /// Writes `bytes` bytes straight out of guest memory.
    pub(super) fn write_from(
        &self,
        memory: &GuestMemoryMmap,
        address: GuestAddress,
        bytes: usize,
    ) -> Result<(), GuestMemoryError> {
        memory.write_all_volatile_to(address, &mut &self.file, bytes)
    }

    /// Returns when all written data are on the disk.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    fn complaint(path: &Path) -> String {
        DiskImage::open(path, false).unwrap_err().to_string()
    }

    #[test]
    fn size_is_counted_in_sectors() {
        let file = image(&[0; 1536]);
        assert_eq!(DiskImage::open(file.path(), true).unwrap().sectors(), 3);
    }

    #[test]
    fn image_of_no_whole_sectors_is_refused() {
        assert!(complaint(image(&[0; 513]).path()).contains("has 513 bytes"));
        assert!(complaint(image(&[]).path()).contains("has 0 bytes"));
    }

    #[test]
    fn image_of_another_format_is_refused_by_name() {
        let mut content = vec![0; 512];
        content[..4].copy_from_slice(b"QFI\xfb");
        assert!(complaint(image(&content).path()).contains("is a qcow2 image"));
    }

    #[test]
    fn what_is_no_disk_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(complaint(folder.path()).contains("neither a regular file nor a block device"));
        assert!(complaint(&folder.path().join("missing")).contains("cannot open"));
    }

    #[test]
    fn image_in_use_is_refused_until_it_is_let_go() {
        let file = image(&[0; 512]);
        let first = DiskImage::open(file.path(), false).unwrap();
        assert!(complaint(file.path()).contains("is in use"));
        assert!(DiskImage::open(file.path(), true).is_err());
        drop(first);
        assert!(DiskImage::open(file.path(), false).is_ok());
    }

    #[test]
    fn readers_share_an_image() {
        let file = image(&[0; 512]);
        let _first = DiskImage::open(file.path(), true).unwrap();
        assert!(DiskImage::open(file.path(), true).is_ok());
        assert!(complaint(file.path()).contains("is in use"));
    }
}
