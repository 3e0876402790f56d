//! The contents of a guest's RAM at its start: program or kernel, boot structures, page tables.
//!
//! | content of the file | how it is entered | where things are |
//! |---|---|---|
//! | 64-bit ELF without notes of Xen's | at the ELF entry in 64-bit mode: the bare-metal guest | `bare` |
//! | bzImage | by Linux's 64-bit boot protocol | `linux` |
//! | 64-bit ELF with a PVH note | by PVH, in 32-bit mode | `linux` |
//!
//! The kind of a file is decided by its content alone ([`Kernel::kind`]). Files are as hostile as guests: a header
//! may hold any values, and the answer is a [`LoadError`] that names the file.

mod bare;
mod elf;
mod error;
mod initramfs;
mod kernel;
mod linux;
mod page_tables;
mod start_info;

use std::fs::File;
use std::io;
use std::path::Path;

use linux_loader::loader::elf::start_info::hvm_modlist_entry;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

pub use error::LoadError;
pub use initramfs::Initramfs;
pub use kernel::{KERNEL_BYTES_MAX, Kernel, KernelKind};

/// Least RAM of a VM: the part below the program, and one MiB for it.
pub const RAM_BYTES_MIN: u64 = 2 << 20;
/// Lowest address of a program.
const PROGRAM_START: u64 = 0x10_0000;
/// From here to [`PROGRAM_START`] a PC has its video memory and firmware.
const LEGACY_HOLE: u64 = 0xa_0000;
const PAGE_BYTES: u64 = 4096;
/// Inputs that the module list has room for.
pub const INPUTS_MAX: usize = PAGE_BYTES as usize / size_of::<hvm_modlist_entry>();

/// A file that the guest finds in its RAM.
#[derive(Debug)]
pub struct Input {
    name: String,
    bytes: u64,
    source: InputSource,
}

#[derive(Debug)]
enum InputSource {
    File(File),
    Memory(Vec<u8>),
}

impl Input {
    /// The regular file at `path`, which is also its name. It is read when the VM is built.
    pub fn open(path: &Path) -> Result<Input, LoadError> {
        let name = path.display().to_string();
        let failed = |source| LoadError::ReadInput {
            name: name.clone(),
            source,
        };
        let (file, bytes) = regular_file(path, failed)?;
        Ok(Input {
            name,
            bytes,
            source: InputSource::File(file),
        })
    }

    /// Bytes in memory.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Input {
        Input {
            name: name.to_owned(),
            bytes: bytes.len() as u64,
            source: InputSource::Memory(bytes),
        }
    }

    /// Its size when it was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies it to `start`, where the caller has found room.
    fn copy_to(self, ram: &GuestMemoryMmap, start: u64) -> Result<(), LoadError> {
        let Input { name, bytes, source } = self;
        let copied = match source {
            InputSource::Memory(data) => ram.write_slice(&data, GuestAddress(start)),
            InputSource::File(mut file) => {
                ram.read_exact_volatile_from(GuestAddress(start), &mut file, bytes as usize)
            }
        };
        copied.map_err(|source| LoadError::CopyInput { name, bytes, source })
    }
}

/// Opens a regular file and returns its size.
fn regular_file(path: &Path, failed: impl Fn(io::Error) -> LoadError) -> Result<(File, u64), LoadError> {
    // Metadata first: opening a pipe without a writer would wait for one.
    let metadata = path.metadata().map_err(&failed)?;
    if !metadata.is_file() {
        return Err(LoadError::NotAFile {
            name: path.display().to_string(),
        });
    }
    let file = File::open(path).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    Ok((file, bytes))
}

/// The parts of a guest's RAM.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) initramfs: Option<Initramfs>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) command_line: &'a str,
    /// Address of ACPI's root pointer; 0 without ACPI.
    pub(crate) rsdp: u64,
}

/// Mode in which the first vCPU starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// 32-bit protected mode without paging.
    #[default]
    Protected,
    /// 64-bit mode with page tables.
    Long {
        /// Root of the page tables.
        cr3: u64,
    },
}

/// State of the first vCPU. Registers that are not named are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) mode: Mode,
    pub(crate) rip: u64,
    pub(crate) rsp: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rbx: u64,
    /// Address of the segments' descriptors; without them the program loads its own.
    pub(crate) gdt: Option<u64>,
}

/// Fills `ram`, which begins with a range from 0, all zeroes but for ACPI tables.
///
/// All contents lie below the end of that range, which is `ram_bytes` for the loaders.
pub(crate) fn load(ram: &GuestMemoryMmap, boot: Boot<'_>) -> Result<Entry, LoadError> {
    let ram_bytes = ram.iter().next().map_or(0, GuestMemoryRegion::len);
    match boot.kernel.kind() {
        Some(KernelKind::Bare) => bare::load(ram, ram_bytes, boot),
        Some(KernelKind::BzImage) => linux::load_bzimage(ram, ram_bytes, boot),
        Some(KernelKind::Pvh) => linux::load_pvh(ram, ram_bytes, boot),
        None => Err(LoadError::UnknownKernel {
            name: boot.kernel.name().to_owned(),
            bytes: boot.kernel.bytes(),
        }),
    }
}

/// A range of a memory map.
struct MemoryRange {
    start: u64,
    end: u64,
    kind: MemoryKind,
}

enum MemoryKind {
    Ram,
    Reserved,
}

/// The ranges of RAM that a guest is told of.
fn memory_map(ram: &GuestMemoryMmap) -> Vec<MemoryRange> {
    let range = |start, end, kind| MemoryRange { start, end, kind };
    let mut map = vec![
        range(0, LEGACY_HOLE, MemoryKind::Ram),
        range(LEGACY_HOLE, PROGRAM_START, MemoryKind::Reserved),
    ];
    for region in ram.iter() {
        let start = region.start_addr().0;
        let end = start + region.len();
        map.push(range(start.max(PROGRAM_START), end, MemoryKind::Ram));
    }
    map
}

/// Whether a text has no NUL, which would end it early in the guest.
fn check_text(text: &str) -> Result<(), LoadError> {
    if text.contains('\0') {
        return Err(LoadError::TextHasNul {
            text: text.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
