//! What a guest finds in RAM when it starts: program, inputs, boot structures, page tables.
//!
//! ```text
//! 0000_0000  page not mapped: a null pointer, or a stack run over its end, faults
//! 0000_1000  stack of the first vCPU, down from 0009_0000
//! 0009_0000  hvm_start_info (its address is in RDI), memory map, module list, strings
//! 0009_7000  page tables: 4 GiB mapped one to one, writable and user-accessible
//! 0010_0000  program, at the addresses in its ELF program headers
//!     …      inputs in the order given, each from a page boundary on
//!     …      free up to the end of RAM
//! ```
//!
//! The boot structures are those of Xen's PVH boot (xen/include/public/arch-x86/hvm/start_info.h): the command line,
//! a memory map, and a module for each input whose own command line is the input's name. Unlike a PVH kernel the
//! program starts at its ELF entry in 64-bit mode and ring 0, with SSE enabled for whichever ring it moves to.
//! `guests/bare/README.md` describes the same from the guest's side.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Cursor};
use std::path::Path;

use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::Elf;
use linux_loader::loader::elf::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use linux_loader::loader::{self, KernelLoader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

/// Least RAM of a VM: what lies below the program, and one MiB for it.
pub const RAM_BYTES_MIN: u64 = 2 << 20;
/// Lowest address of a program.
const PROGRAM_START: u64 = 0x10_0000;
/// Stack of the first vCPU, growing down.
const STACK_END: u64 = 0x9_0000;
const START_INFO: u64 = 0x9_0000;
const MEMORY_MAP: u64 = 0x9_1000;
const MODULE_LIST: u64 = 0x9_2000;
const STRINGS: u64 = 0x9_3000;
const STRINGS_END: u64 = 0x9_7000;
const PAGE_TABLES: u64 = 0x9_7000;
/// From here to [`PROGRAM_START`] a PC has its video memory and firmware.
const LEGACY_HOLE: u64 = 0xa_0000;

const PAGE_BYTES: u64 = 4096;
/// Inputs that the module list has room for.
pub const INPUTS_MAX: usize = ((STRINGS - MODULE_LIST) as usize) / size_of::<hvm_modlist_entry>();

/// hvm_start_info.magic ("xEn3" with the top bit of E set).
const START_MAGIC: u32 = 0x336e_c578;
/// Version 1 is the first with a memory map.
const START_VERSION: u32 = 1;
const MEMORY_IS_RAM: u32 = 1;
const MEMORY_IS_RESERVED: u32 = 2;

/// Offsets of class and machine, and their values (System V ABI, ELF-64 object file format).
const ELF_MAGIC: [u8; 4] = *b"\x7fELF";
const ELF_CLASS_OFFSET: usize = 4;
const ELF_CLASS_64: u8 = 2;
const ELF_MACHINE_OFFSET: usize = 18;
const ELF_MACHINE_X86_64: u16 = 62;
const ELF_HEADER_BYTES: usize = 64;

/// Page-table entry bits (Intel SDM vol. 3 §5.5.4).
const PRESENT_WRITABLE_USER: u64 = 0b111;
const LARGE_PAGE: u64 = 1 << 7;
const TABLE_ENTRIES: u64 = 512;
const LARGE_PAGE_BYTES: u64 = 2 << 20;
/// Page directories, of 1 GiB each: RAM and the PCI window below 4 GiB.
const DIRECTORIES: u64 = 4;

/// Why a guest could not be put into its RAM.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The program cannot be opened or read.
    #[error("cannot read kernel {name}")]
    ReadKernel {
        /// Its path.
        name: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// The program is something else.
    #[error("kernel {name} ({bytes} bytes) is no 64-bit x86 ELF file")]
    NotElf {
        /// Its path.
        name: String,
        /// Its size.
        bytes: usize,
    },
    /// The program is damaged, or one of its segments lies outside RAM.
    #[error("kernel {name} ({bytes} bytes) is truncated or does not fit {ram_bytes} bytes of RAM")]
    BadKernel {
        /// Its path.
        name: String,
        /// Its size.
        bytes: usize,
        /// RAM of the VM.
        ram_bytes: u64,
        /// Which step failed.
        #[source]
        source: loader::Error,
    },
    /// The program's uninitialised data reaches past the end of RAM.
    #[error("kernel {name} needs RAM up to {end:#x}, the VM has {ram_bytes:#x} bytes")]
    KernelTooLarge {
        /// Its path.
        name: String,
        /// First address after it.
        end: u64,
        /// RAM of the VM.
        ram_bytes: u64,
    },
    /// An input cannot be opened or read.
    #[error("cannot read input {name}")]
    ReadInput {
        /// Its path.
        name: String,
        /// What the host said.
        #[source]
        source: io::Error,
    },
    /// A kernel or input is a directory, a pipe or a device, whose size is not known.
    #[error("{name} is not a regular file")]
    NotAFile {
        /// Its path.
        name: String,
    },
    /// An input became shorter while it was read.
    #[error("cannot copy input {name} ({bytes} bytes) into guest RAM")]
    CopyInput {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
        /// What the host said.
        #[source]
        source: GuestMemoryError,
    },
    /// RAM ends before an input does.
    #[error("input {name} of {bytes} bytes does not fit the {room} bytes of RAM that are left")]
    InputTooLarge {
        /// Its path.
        name: String,
        /// Its size.
        bytes: u64,
        /// Room for it.
        room: u64,
    },
    /// More inputs than the module list holds.
    #[error("{count} inputs, the boot structures hold {INPUTS_MAX}")]
    TooManyInputs {
        /// How many were given.
        count: usize,
    },
    /// The command line and the inputs' names together are too long, or hold a NUL.
    #[error("command line and input names need {bytes} bytes, the boot structures hold {max}")]
    TextTooLong {
        /// Bytes with their terminators.
        bytes: usize,
        /// Room for them.
        max: usize,
    },
    /// A string would end early in the guest.
    #[error("{text:?} contains a NUL")]
    TextHasNul {
        /// The string.
        text: String,
    },
    /// The boot structures cannot be written.
    #[error("cannot write boot structures to guest RAM")]
    BootStructures(#[source] linux_loader::configurator::Error),
    /// Page tables or strings cannot be written.
    #[error("cannot write to guest RAM")]
    Write(#[source] GuestMemoryError),
}

/// A program to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    name: String,
    image: Cow<'static, [u8]>,
}

impl Kernel {
    /// The bare-metal guest that comes with this crate.
    pub fn bare() -> Kernel {
        Kernel {
            name: "(built-in)".to_owned(),
            image: Cow::Borrowed(crate::guest_image()),
        }
    }

    /// The ELF file at `path`, which must be a regular file: a device or a pipe may have no end.
    pub fn open(path: &Path) -> Result<Kernel, LoadError> {
        let name = path.display().to_string();
        let image = match path.metadata() {
            Ok(metadata) if !metadata.is_file() => return Err(LoadError::NotAFile { name }),
            Ok(_) => std::fs::read(path),
            Err(source) => Err(source),
        };
        match image {
            Ok(image) => Ok(Kernel {
                name,
                image: Cow::Owned(image),
            }),
            Err(source) => Err(LoadError::ReadKernel { name, source }),
        }
    }

    /// An ELF file in memory, called `name` in errors.
    pub fn from_bytes(name: &str, image: Vec<u8>) -> Kernel {
        Kernel {
            name: name.to_owned(),
            image: Cow::Owned(image),
        }
    }

    fn is_elf(&self) -> bool {
        let at = |offset: usize| self.image.get(offset).copied().unwrap_or(0);
        let machine = u16::from_le_bytes([at(ELF_MACHINE_OFFSET), at(ELF_MACHINE_OFFSET + 1)]);
        self.image.len() >= ELF_HEADER_BYTES
            && self.image.starts_with(&ELF_MAGIC)
            && at(ELF_CLASS_OFFSET) == ELF_CLASS_64
            && machine == ELF_MACHINE_X86_64
    }
}

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
    /// The regular file at `path`, which is also its name. Read when the VM is built.
    pub fn open(path: &Path) -> Result<Input, LoadError> {
        let name = path.display().to_string();
        let failed = |source| LoadError::ReadInput {
            name: name.clone(),
            source,
        };
        // Metadata first: opening a pipe without a writer would wait for one.
        let metadata = path.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(LoadError::NotAFile { name });
        }
        let file = File::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
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
}

/// What goes into a guest's RAM.
pub(crate) struct Boot<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) inputs: Vec<Input>,
    pub(crate) command_line: &'a str,
}

/// Register values of the first vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// ELF entry.
    pub(crate) rip: u64,
    /// End of the stack.
    pub(crate) rsp: u64,
    /// Address of hvm_start_info.
    pub(crate) rdi: u64,
    /// Root of the page tables.
    pub(crate) cr3: u64,
}

/// Fills `ram`, which is one range of `ram_bytes` from 0, all zeroes.
pub(crate) fn load(ram: &GuestMemoryMmap, ram_bytes: u64, boot: Boot<'_>) -> Result<Entry, LoadError> {
    let (rip, program_end) = load_kernel(ram, ram_bytes, boot.kernel)?;
    let mut strings = Strings::default();
    let command_line = strings.push(boot.command_line)?;
    if boot.inputs.len() > INPUTS_MAX {
        return Err(LoadError::TooManyInputs {
            count: boot.inputs.len(),
        });
    }
    let mut next = program_end;
    let mut modules = Vec::new();
    for input in boot.inputs {
        let cmdline_paddr = strings.push(&input.name)?;
        let (paddr, size) = load_input(ram, ram_bytes, next, input)?;
        modules.push(hvm_modlist_entry {
            paddr,
            size,
            cmdline_paddr,
            reserved: 0,
        });
        next = paddr + size;
    }
    ram.write_slice(&strings.bytes, GuestAddress(STRINGS))
        .map_err(LoadError::Write)?;
    write_boot_structures(ram, ram_bytes, command_line, &modules)?;
    write_page_tables(ram).map_err(LoadError::Write)?;
    Ok(Entry {
        rip,
        rsp: STACK_END,
        rdi: START_INFO,
        cr3: PAGE_TABLES,
    })
}

/// Returns the entry point and the first address after the program.
fn load_kernel(ram: &GuestMemoryMmap, ram_bytes: u64, kernel: &Kernel) -> Result<(u64, u64), LoadError> {
    let (name, bytes) = (&kernel.name, kernel.image.len());
    if !kernel.is_elf() {
        return Err(LoadError::NotElf {
            name: name.clone(),
            bytes,
        });
    }
    let mut image = Cursor::new(kernel.image.as_ref());
    let loaded = Elf::load(ram, None, &mut image, Some(GuestAddress(PROGRAM_START))).map_err(|source| {
        LoadError::BadKernel {
            name: name.clone(),
            bytes,
            ram_bytes,
            source,
        }
    })?;
    let end = loaded.kernel_end;
    if end > ram_bytes {
        return Err(LoadError::KernelTooLarge {
            name: name.clone(),
            end,
            ram_bytes,
        });
    }
    Ok((loaded.kernel_load.0, end.max(PROGRAM_START)))
}

/// Copies `input` to the first page boundary from `next` on. Returns its address and size.
fn load_input(
    ram: &GuestMemoryMmap,
    ram_bytes: u64,
    next: u64,
    input: Input,
) -> Result<(u64, u64), LoadError> {
    let Input { name, bytes, source } = input;
    let start = next.next_multiple_of(PAGE_BYTES);
    let room = ram_bytes.saturating_sub(start);
    if bytes > room {
        return Err(LoadError::InputTooLarge { name, bytes, room });
    }
    let copied = match source {
        InputSource::Memory(data) => ram.write_slice(&data, GuestAddress(start)),
        InputSource::File(mut file) => {
            ram.read_exact_volatile_from(GuestAddress(start), &mut file, bytes as usize)
        }
    };
    copied.map_err(|source| LoadError::CopyInput { name, bytes, source })?;
    Ok((start, bytes))
}

/// The NUL-terminated strings of the boot structures.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
}

impl Strings {
    /// Returns the guest-physical address that `text` will have.
    fn push(&mut self, text: &str) -> Result<u64, LoadError> {
        if text.contains('\0') {
            return Err(LoadError::TextHasNul {
                text: text.to_owned(),
            });
        }
        let at = STRINGS + self.bytes.len() as u64;
        self.bytes.extend_from_slice(text.as_bytes());
        self.bytes.push(0);
        let max = (STRINGS_END - STRINGS) as usize;
        if self.bytes.len() > max {
            return Err(LoadError::TextTooLong {
                bytes: self.bytes.len(),
                max,
            });
        }
        Ok(at)
    }
}

fn write_boot_structures(
    ram: &GuestMemoryMmap,
    ram_bytes: u64,
    cmdline_paddr: u64,
    modules: &[hvm_modlist_entry],
) -> Result<(), LoadError> {
    let range = |addr: u64, end: u64, type_| hvm_memmap_table_entry {
        addr,
        size: end - addr,
        type_,
        reserved: 0,
    };
    let memory_map = [
        range(0, LEGACY_HOLE, MEMORY_IS_RAM),
        range(LEGACY_HOLE, PROGRAM_START, MEMORY_IS_RESERVED),
        range(PROGRAM_START, ram_bytes, MEMORY_IS_RAM),
    ];
    let start_info = hvm_start_info {
        magic: START_MAGIC,
        version: START_VERSION,
        nr_modules: modules.len() as u32,
        modlist_paddr: MODULE_LIST,
        cmdline_paddr,
        memmap_paddr: MEMORY_MAP,
        memmap_entries: memory_map.len() as u32,
        ..Default::default()
    };
    let mut params = BootParams::new(&start_info, GuestAddress(START_INFO));
    params.set_sections(&memory_map, GuestAddress(MEMORY_MAP));
    params.set_modules(modules, GuestAddress(MODULE_LIST));
    PvhBootConfigurator::write_bootparams(&params, ram).map_err(LoadError::BootStructures)
}

/// One root, one table of directories, four directories of large pages, and one table for the first large page, which
/// leaves out page 0.
fn write_page_tables(ram: &GuestMemoryMmap) -> Result<(), GuestMemoryError> {
    let table = |index: u64| PAGE_TABLES + index * PAGE_BYTES;
    let (root, pointers, directories, first_pages) = (table(0), table(1), table(2), table(2 + DIRECTORIES));
    let write = |at: u64, index: u64, entry: u64| ram.write_obj(entry.to_le(), GuestAddress(at + 8 * index));
    write(root, 0, pointers | PRESENT_WRITABLE_USER)?;
    for index in 0..DIRECTORIES {
        write(
            pointers,
            index,
            (directories + index * PAGE_BYTES) | PRESENT_WRITABLE_USER,
        )?;
    }
    for index in 0..DIRECTORIES * TABLE_ENTRIES {
        write(
            directories,
            index,
            (index * LARGE_PAGE_BYTES) | LARGE_PAGE | PRESENT_WRITABLE_USER,
        )?;
    }
    for index in 1..TABLE_ENTRIES {
        write(first_pages, index, (index * PAGE_BYTES) | PRESENT_WRITABLE_USER)?;
    }
    write(directories, 0, first_pages | PRESENT_WRITABLE_USER)
}

const _: () = assert!(PAGE_TABLES + (3 + DIRECTORIES) * PAGE_BYTES <= LEGACY_HOLE);

#[cfg(test)]
mod tests;
