//! The boot structures of Xen's PVH boot: start info, memory map, module list (xen/include/public/arch-x86/hvm/
//! start_info.h).

use linux_loader::configurator::pvh::PvhBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::elf::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::{GuestAddress, GuestMemoryMmap};

use super::{INPUTS_MAX, LoadError, MemoryKind, PAGE_BYTES, memory_map};

/// hvm_start_info.magic ("xEn3" with the top bit of E set).
pub(super) const MAGIC: u32 = 0x336e_c578;
/// Version 1 is the first with a memory map.
const VERSION: u32 = 1;

const MEMORY_MAP_OFFSET: u64 = PAGE_BYTES;
const MODULE_LIST_OFFSET: u64 = 2 * PAGE_BYTES;
/// Bytes that the structures take.
pub(super) const BYTES: u64 = 3 * PAGE_BYTES;

const _: () = assert!(INPUTS_MAX * size_of::<hvm_modlist_entry>() <= PAGE_BYTES as usize);

/// Contents of the structures.
pub(super) struct StartInfo<'a> {
    /// Address of the structures, [`BYTES`] bytes.
    pub(super) at: u64,
    /// Address of the NUL-terminated command line.
    pub(super) cmdline_paddr: u64,
    /// ACPI's root pointer; 0 if there is none.
    pub(super) rsdp_paddr: u64,
    /// The inputs, at most [`INPUTS_MAX`].
    pub(super) modules: &'a [hvm_modlist_entry],
}

impl StartInfo<'_> {
    pub(super) fn write(&self, ram: &GuestMemoryMmap) -> Result<(), LoadError> {
        let map = memory_map(ram).into_iter();
        let entries = map.map(|range| hvm_memmap_table_entry {
            addr: range.start,
            size: range.end - range.start,
            type_: match range.kind {
                MemoryKind::Ram => 1,
                MemoryKind::Reserved => 2,
            },
            reserved: 0,
        });
        let entries: Vec<_> = entries.collect();
        let start_info = hvm_start_info {
            magic: MAGIC,
            version: VERSION,
            nr_modules: self.modules.len() as u32,
            modlist_paddr: self.at + MODULE_LIST_OFFSET,
            cmdline_paddr: self.cmdline_paddr,
            rsdp_paddr: self.rsdp_paddr,
            memmap_paddr: self.at + MEMORY_MAP_OFFSET,
            memmap_entries: entries.len() as u32,
            ..Default::default()
        };
        let mut params = BootParams::new(&start_info, GuestAddress(self.at));
        params.set_sections(&entries, GuestAddress(self.at + MEMORY_MAP_OFFSET));
        params.set_modules(self.modules, GuestAddress(self.at + MODULE_LIST_OFFSET));
        PvhBootConfigurator::write_bootparams(&params, ram).map_err(LoadError::BootStructures)
    }
}
