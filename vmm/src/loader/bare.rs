//! The RAM of a bare-metal guest: program, inputs, boot structures.
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

use linux_loader::loader::elf::start_info::hvm_modlist_entry;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::page_tables::{self, Access};
use super::start_info::{self, StartInfo};
use super::{Boot, Entry, INPUTS_MAX, Input, LEGACY_HOLE, LoadError, Mode, PAGE_BYTES, PROGRAM_START, elf};

/// Stack of the first vCPU, growing down.
pub(super) const STACK_END: u64 = 0x9_0000;
pub(super) const START_INFO: u64 = 0x9_0000;
const STRINGS: u64 = 0x9_3000;
const STRINGS_END: u64 = 0x9_7000;
pub(super) const PAGE_TABLES: u64 = 0x9_7000;

const _: () = assert!(START_INFO + start_info::BYTES <= STRINGS);
const _: () = assert!(PAGE_TABLES + page_tables::PAGES * PAGE_BYTES <= LEGACY_HOLE);

/// Fills `ram`, whose first range is `ram_bytes` from 0, all zeroes.
pub(super) fn load(ram: &GuestMemoryMmap, ram_bytes: u64, boot: Boot<'_>) -> Result<Entry, LoadError> {
    if let Some(initramfs) = boot.initramfs {
        return Err(LoadError::InitramfsUnused {
            name: initramfs.name().to_owned(),
            kernel: boot.kernel.name().to_owned(),
        });
    }
    let loaded = elf::load(ram, ram_bytes, boot.kernel)?;
    let mut strings = Strings::default();
    let cmdline_paddr = strings.push(boot.command_line)?;
    if boot.inputs.len() > INPUTS_MAX {
        return Err(LoadError::TooManyInputs {
            count: boot.inputs.len(),
        });
    }
    let mut next = loaded.kernel_end.max(PROGRAM_START);
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
    let info = StartInfo {
        at: START_INFO,
        cmdline_paddr,
        rsdp_paddr: 0,
        modules: &modules,
    };
    info.write(ram)?;
    page_tables::write(ram, PAGE_TABLES, Access::AllRingsButPageZero).map_err(LoadError::Write)?;
    Ok(Entry {
        mode: Mode::Long { cr3: PAGE_TABLES },
        rip: loaded.kernel_load.0,
        rsp: STACK_END,
        rdi: START_INFO,
        ..Entry::default()
    })
}

/// Copies `input` to the first page boundary from `next` on. Returns its address and size.
fn load_input(
    ram: &GuestMemoryMmap,
    ram_bytes: u64,
    next: u64,
    input: Input,
) -> Result<(u64, u64), LoadError> {
    let start = next.next_multiple_of(PAGE_BYTES);
    let room = ram_bytes.saturating_sub(start);
    let bytes = input.bytes;
    if bytes > room {
        let name = input.name;
        return Err(LoadError::InputTooLarge { name, bytes, room });
    }
    input.copy_to(ram, start)?;
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
        super::check_text(text)?;
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
