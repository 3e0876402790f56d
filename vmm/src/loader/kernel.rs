//! A kernel as a file that is read where it is needed: in parts to find its kind, and straight into guest RAM.
//!
//! A kernel takes tens of megabytes, so none of it stays in this process; the open file does, for a VM that is reset.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use linux_loader::loader::{self, KernelLoader, KernelLoaderResult};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{LoadError, elf, linux, regular_file};

/// Largest kernel file.
pub const KERNEL_BYTES_MAX: u64 = 1 << 30;

/// A program to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    name: String,
    image: Image,
    kind: Option<KernelKind>,
}

#[derive(Clone, Debug)]
enum Image {
    Memory(Cow<'static, [u8]>),
    File {
        file: Arc<File>,
        /// Size when it was opened.
        bytes: u64,
    },
}

/// Kind of a kernel file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelKind {
    /// A program that knows this VMM.
    Bare,
    /// Linux, compressed, with its boot header.
    BzImage,
    /// Linux or another kernel that boots by PVH.
    Pvh,
}

impl KernelKind {
    /// Whether it expects a PC with firmware tables, and an operator at its console.
    pub fn is_operating_system(self) -> bool {
        self != KernelKind::Bare
    }
}

impl Kernel {
    /// The bare-metal guest that is built into this crate.
    pub fn bare() -> Kernel {
        Kernel::new(
            "(built-in)".to_owned(),
            Image::Memory(Cow::Borrowed(crate::guest_image())),
        )
    }

    /// The file at `path`, which must be a regular one: a device or a pipe may have no end.
    pub fn open(path: &Path) -> Result<Kernel, LoadError> {
        let name = path.display().to_string();
        let failed = |source| LoadError::ReadKernel {
            name: name.clone(),
            source,
        };
        let (file, bytes) = regular_file(path, failed)?;
        if bytes > KERNEL_BYTES_MAX {
            return Err(LoadError::KernelFileTooLarge { name, bytes });
        }
        // From here on, bytes that cannot be read count as absent.
        (&file)
            .read_exact(&mut [0][..bytes.min(1) as usize])
            .map_err(failed)?;
        let file = Arc::new(file);
        let kernel = Kernel::new(name.clone(), Image::File { file, bytes });
        if kernel.kind.is_none() {
            let bytes = kernel.bytes();
            return Err(LoadError::UnknownKernel { name, bytes });
        }
        Ok(kernel)
    }

    /// A file in memory, called `name` in errors.
    pub fn from_bytes(name: &str, image: Vec<u8>) -> Kernel {
        Kernel::new(name.to_owned(), Image::Memory(Cow::Owned(image)))
    }

    fn new(name: String, image: Image) -> Kernel {
        let mut kernel = Kernel {
            name,
            image,
            kind: None,
        };
        kernel.kind = if linux::is_bzimage(&kernel) {
            Some(KernelKind::BzImage)
        } else if !elf::is_elf(&kernel) {
            None
        } else if elf::has_xen_notes(&kernel) {
            Some(KernelKind::Pvh)
        } else {
            Some(KernelKind::Bare)
        };
        kernel
    }

    /// The way in which it is booted; `None` if it is not a kernel.
    pub fn kind(&self) -> Option<KernelKind> {
        self.kind
    }

    /// Name of the kernel in errors.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> usize {
        match &self.image {
            Image::Memory(image) => image.len(),
            Image::File { bytes, .. } => *bytes as usize,
        }
    }

    /// The bytes at `offset`, if the file has that many.
    pub(super) fn array<const BYTES: usize>(&self, offset: u64) -> Option<[u8; BYTES]> {
        let mut array = [0; BYTES];
        self.read(offset, &mut array).then_some(array)
    }

    /// The bytes from `offset` on: `bytes_max`, or fewer if it ends before.
    pub(super) fn part(&self, offset: u64, bytes_max: usize) -> Vec<u8> {
        let left = (self.bytes() as u64).saturating_sub(offset);
        let mut part = vec![0; left.min(bytes_max as u64) as usize];
        if !self.read(offset, &mut part) {
            part.clear();
        }
        part
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        match &self.image {
            Image::Memory(image) => {
                let rest = usize::try_from(offset)
                    .ok()
                    .and_then(|offset| image.get(offset..));
                let found = rest.and_then(|rest| rest.get(..target.len()));
                found.inspect(|found| target.copy_from_slice(found)).is_some()
            }
            Image::File { file, .. } => file.read_exact_at(target, offset).is_ok(),
        }
    }

    /// Lets `L` put it into `ram`, with the arguments that [`KernelLoader::load`] has.
    pub(super) fn load<L: KernelLoader>(
        &self,
        ram: &GuestMemoryMmap,
        start: Option<GuestAddress>,
        program_start: Option<GuestAddress>,
    ) -> loader::Result<KernelLoaderResult> {
        match &self.image {
            Image::Memory(image) => L::load(ram, start, &mut Cursor::new(image.as_ref()), program_start),
            Image::File { file, .. } => L::load(ram, start, &mut file.as_ref(), program_start),
        }
    }
}
