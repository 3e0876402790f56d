//! The RAM of a Linux guest, and the ways into it: the 64-bit boot protocol of a bzImage, and PVH of an ELF file.
//!
//! ```text
//! 0000_0500  descriptors of the boot protocol's segments
//! 0000_2000  boot_params (RSI), or hvm_start_info with memory map and module list (EBX)
//! 0000_8000  stack of the first instructions, down from 0000_9000
//! 0000_9000  page tables: 4 GiB mapped one to one (bzImage)
//! 0002_0000  command line
//! 000e_0000  ACPI tables (crate::acpi)
//! 0010_0000  kernel, where its header wants it (mostly 0100_0000)
//!     …      initramfs, as high as it goes
//! ```
//!
//! Sources: Linux Documentation/arch/x86/boot.rst ("64-bit Boot Protocol", "The Real-Mode Kernel Header") and
//! zero-page.rst; Xen docs/misc/pvh.pandoc.

use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::bzimage::BzImage;
use linux_loader::loader::elf::PvhBootCapability;
use linux_loader::loader::elf::start_info::hvm_modlist_entry;
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

use super::page_tables::{self, Access};
use super::start_info::{self, StartInfo};
use super::{
    Boot, Entry, Kernel, LoadError, MemoryKind, Mode, PAGE_BYTES, PROGRAM_START, check_text, elf, memory_map,
};

const GDT: u64 = 0x500;
const BOOT_STRUCTURES: u64 = 0x2000;
const STACK_END: u64 = 0x9000;
const PAGE_TABLES: u64 = 0x9000;
const COMMAND_LINE: u64 = 0x2_0000;
/// Room for a command line with its terminator.
const COMMAND_LINE_BYTES_MAX: usize = 0x1_0000;

const _: () = assert!(BOOT_STRUCTURES + start_info::BYTES <= STACK_END);
const _: () = assert!(PAGE_TABLES + page_tables::PAGES * PAGE_BYTES <= COMMAND_LINE);

/// A null descriptor, an unused one, and flat segments of ring 0 for code (64 bits) and data, at the selectors that the
/// boot protocol names (`vcpu::start`).
const DESCRIPTORS: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// The real-mode header in a bzImage: where it is, its magic, and that of a boot sector.
const HEADER_OFFSET: usize = 0x1f1;
const HEADER_MAGIC: u32 = 0x5372_6448;
const BOOT_FLAG: u16 = 0xaa55;
/// Place of the jump over the header; its second byte counts from the byte after it to the header's end.
const JUMP_OFFSET: usize = 0x200;
const SECTOR_BYTES: u64 = 512;
/// Number for a boot loader that has none of its own.
const LOADER_OTHER: u8 = 0xff;
/// First protocol with `xloadflags`, and the flag for an entry in 64-bit mode, which is at this offset.
const VERSION_MIN: u16 = 0x20c;
const XLOADFLAG_KERNEL_64: u16 = 1 << 0;
const ENTRY_64_OFFSET: u64 = 0x200;
/// Types of memory in boot_params.
const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;

/// Whether the file begins as a bzImage does, of any protocol version.
pub(super) fn is_bzimage(kernel: &Kernel) -> bool {
    header(kernel).is_some_and(|header| {
        let (magic, flag) = (header.header, header.boot_flag);
        magic == HEADER_MAGIC && flag == BOOT_FLAG
    })
}

fn header(kernel: &Kernel) -> Option<setup_header> {
    let bytes: [u8; size_of::<setup_header>()] = kernel.array(HEADER_OFFSET as u64)?;
    setup_header::from_slice(&bytes).copied()
}

/// The fields of a bzImage's header that decide where its parts go.
struct Wishes {
    load: u64,
    /// First address after what the kernel uses before it knows of memory.
    end: u64,
    initramfs_end: u64,
    command_line_bytes: usize,
}

/// Reads and checks the header.
fn wishes(kernel: &Kernel, ram_bytes: u64) -> Result<Wishes, LoadError> {
    let name = || kernel.name().to_owned();
    let bytes = kernel.bytes();
    let bad = |reason| LoadError::KernelHeader { name: name(), reason };
    let header = header(kernel).ok_or(bad("it has no header"))?;
    if header.version < VERSION_MIN || header.xloadflags & XLOADFLAG_KERNEL_64 == 0 {
        return Err(bad(
            "it has no 64-bit entry: give an x86-64 kernel, Linux 3.8 or later",
        ));
    }
    let setup_sectors = match header.setup_sects {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let system_bytes = u64::from(header.syssize) * 16;
    let needed = (setup_sectors + 1) * SECTOR_BYTES + system_bytes;
    if needed > bytes as u64 {
        let name = name();
        return Err(LoadError::KernelTruncated { name, bytes, needed });
    }
    let (load, alignment) = (header.pref_address, u64::from(header.kernel_alignment));
    if load < PROGRAM_START || !alignment.is_power_of_two() || !load.is_multiple_of(alignment) {
        return Err(bad("it wants to be loaded to an address that no kernel has"));
    }
    let used = u64::from(header.init_size).max(bytes as u64);
    let end = load.saturating_add(used);
    if end > ram_bytes {
        let name = name();
        return Err(LoadError::KernelTooLarge { name, end, ram_bytes });
    }
    Ok(Wishes {
        load,
        end,
        initramfs_end: ram_bytes.min(u64::from(header.initrd_addr_max) + 1),
        command_line_bytes: (header.cmdline_size as usize).saturating_add(1),
    })
}

/// Fills `ram`, whose first range is `ram_bytes` from 0, for a bzImage.
pub(super) fn load_bzimage(
    ram: &GuestMemoryMmap,
    ram_bytes: u64,
    boot: Boot<'_>,
) -> Result<Entry, LoadError> {
    refuse_inputs(&boot)?;
    let kernel = boot.kernel;
    let wishes = wishes(kernel, ram_bytes)?;
    let loaded = kernel.load::<BzImage>(ram, Some(GuestAddress(wishes.load)), None);
    let loaded = loaded.map_err(|source| LoadError::BadKernel {
        name: kernel.name().to_owned(),
        bytes: kernel.bytes(),
        ram_bytes,
        source,
    })?;
    let mut header = known_part(loaded.setup_header.unwrap_or_default(), kernel);
    header.type_of_loader = LOADER_OTHER;
    header.cmd_line_ptr = COMMAND_LINE as u32;
    write_command_line(ram, kernel, boot.command_line, wishes.command_line_bytes)?;
    if let Some(initramfs) = boot.initramfs {
        let (start, bytes) = initramfs.copy_below(ram, wishes.end, wishes.initramfs_end)?;
        // Both are below 4 GiB, as `ram_bytes` is.
        (header.ramdisk_image, header.ramdisk_size) = (start as u32, bytes as u32);
    }
    let mut params = boot_params {
        hdr: header,
        acpi_rsdp_addr: boot.rsdp,
        ..Default::default()
    };
    let mut ranges = 0;
    for (range, entry) in memory_map(ram).into_iter().zip(&mut params.e820_table) {
        *entry = boot_e820_entry {
            addr: range.start,
            size: range.end - range.start,
            r#type: match range.kind {
                MemoryKind::Ram => E820_RAM,
                MemoryKind::Reserved => E820_RESERVED,
            },
        };
        ranges += 1;
    }
    params.e820_entries = ranges;
    let params = BootParams::new(&params, GuestAddress(BOOT_STRUCTURES));
    LinuxBootConfigurator::write_bootparams(&params, ram).map_err(LoadError::BootStructures)?;
    page_tables::write(ram, PAGE_TABLES, Access::Ring0).map_err(LoadError::Write)?;
    write_descriptors(ram)?;
    Ok(Entry {
        mode: Mode::Long { cr3: PAGE_TABLES },
        rip: wishes.load + ENTRY_64_OFFSET,
        rsp: STACK_END,
        rsi: BOOT_STRUCTURES,
        gdt: Some(GDT),
        ..Entry::default()
    })
}

/// The header without the fields that an older protocol lacks: there the file holds code already.
fn known_part(mut header: setup_header, kernel: &Kernel) -> setup_header {
    let [jump] = kernel.array(JUMP_OFFSET as u64 + 1).unwrap_or_default();
    let end = JUMP_OFFSET + 2 + usize::from(jump) - HEADER_OFFSET;
    if let Some(unknown) = header.as_mut_slice().get_mut(end..) {
        unknown.fill(0);
    }
    header
}

/// Fills `ram` in the same way for an ELF file with a PVH entry.
pub(super) fn load_pvh(ram: &GuestMemoryMmap, ram_bytes: u64, boot: Boot<'_>) -> Result<Entry, LoadError> {
    refuse_inputs(&boot)?;
    let kernel = boot.kernel;
    let loaded = elf::load(ram, ram_bytes, kernel)?;
    let rip = match loaded.pvh_boot_cap {
        PvhBootCapability::PvhEntryPresent(entry) if entry.0 < ram_bytes => entry.0,
        _ => {
            return Err(LoadError::KernelHeader {
                name: kernel.name().to_owned(),
                reason: "it has Xen's notes but no PVH entry in RAM: build it with CONFIG_PVH, or give a bzImage",
            });
        }
    };
    write_command_line(ram, kernel, boot.command_line, COMMAND_LINE_BYTES_MAX)?;
    let mut modules = Vec::new();
    if let Some(initramfs) = boot.initramfs {
        let (paddr, size) = initramfs.copy_below(ram, loaded.kernel_end.max(PROGRAM_START), ram_bytes)?;
        modules.push(hvm_modlist_entry {
            paddr,
            size,
            ..Default::default()
        });
    }
    let info = StartInfo {
        at: BOOT_STRUCTURES,
        cmdline_paddr: COMMAND_LINE,
        rsdp_paddr: boot.rsdp,
        modules: &modules,
    };
    info.write(ram)?;
    Ok(Entry {
        mode: Mode::Protected,
        rip,
        rsp: STACK_END,
        rbx: BOOT_STRUCTURES,
        ..Entry::default()
    })
}

fn refuse_inputs(boot: &Boot<'_>) -> Result<(), LoadError> {
    if boot.inputs.is_empty() {
        return Ok(());
    }
    Err(LoadError::InputsUnused {
        name: boot.kernel.name().to_owned(),
        count: boot.inputs.len(),
    })
}

fn write_command_line(
    ram: &GuestMemoryMmap,
    kernel: &Kernel,
    text: &str,
    bytes_max: usize,
) -> Result<(), LoadError> {
    check_text(text)?;
    let max = bytes_max.min(COMMAND_LINE_BYTES_MAX);
    let bytes = text.len() + 1;
    if bytes > max {
        let name = kernel.name().to_owned();
        return Err(LoadError::CommandLineTooLong { name, bytes, max });
    }
    // RAM is zeroes, and a zero ends the text.
    ram.write_slice(text.as_bytes(), GuestAddress(COMMAND_LINE))
        .map_err(LoadError::Write)
}

fn write_descriptors(ram: &GuestMemoryMmap) -> Result<(), LoadError> {
    let bytes = DESCRIPTORS.map(u64::to_le_bytes).concat();
    ram.write_slice(&bytes, GuestAddress(GDT))
        .map_err(LoadError::Write)
}

#[cfg(test)]
mod tests;
