//! The processor and the VMM as seen from ring 3: port and memory accesses, boot structures, the end.

// UNSAFETY: the program owns its machine; it reaches ports, devices and boot structures by number and address.
#![expect(unsafe_code)]

use core::arch::{asm, global_asm, x86_64};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

global_asm!(include_str!("boot.s"));
global_asm!(include_str!("memory.s"));

/// Data port of COM1.
const COM1_DATA: u16 = 0x3f8;
/// Line status register.
const COM1_STATUS: u16 = 0x3fd;
/// Configuration mechanism #1.
const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;
const CONFIG_ENABLE: u32 = 1 << 31;
/// Ports of the VMM's own (README.md).
const EXIT_PORT: u16 = 0xf4;
const WAIT_PORT: u16 = 0xf8;

/// Vector of the only interrupt (boot.s).
pub(crate) const INTERRUPT_VECTOR: u32 = 0x20;
/// Spurious interrupt register of the local APIC, and its enable bit with vector 0xff (Intel SDM vol. 3 §12.9).
const LOCAL_APIC_SPURIOUS: u64 = 0xfee0_00f0;
const LOCAL_APIC_ENABLE: u32 = 0x1ff;

/// hvm_start_info, version 1 (Xen, xen/include/public/arch-x86/hvm/start_info.h).
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    module_count: u32,
    modules: u64,
    command_line: u64,
    acpi_root: u64,
    memory_map: u64,
    memory_map_count: u32,
    reserved: u32,
}

const START_MAGIC: u32 = 0x336e_c578;

/// One entry of the memory map, `hvm_memmap_table_entry` of Xen's PVH boot protocol.
#[repr(C)]
struct MemoryRange {
    start: u64,
    bytes: u64,
    kind: u32,
    reserved: u32,
}

const MEMORY_IS_RAM: u32 = 1;

/// One loaded file, `hvm_modlist_entry` of Xen's PVH boot protocol.
#[repr(C)]
struct Module {
    start: u64,
    bytes: u64,
    name: u64,
    reserved: u64,
}

/// The boot structures that the VMM put into RAM.
#[derive(Clone, Copy)]
pub(crate) struct Boot(&'static StartInfo);

impl Boot {
    /// Takes the address that the VMM left in RDI. `None` if no boot structure is there.
    pub(crate) fn at(start_info: u64) -> Option<Boot> {
        // SAFETY: the boot contract: RDI is the address of a start info that is not written again, and everything that
        // it points at lies in mapped RAM below this program. The magic guards against another loader.
        let info = unsafe { &*(start_info as *const StartInfo) };
        (info.magic == START_MAGIC && info.version >= 1).then_some(Boot(info))
    }

    /// Words for this program.
    pub(crate) fn command_line(self) -> &'static str {
        text_at(self.0.command_line)
    }

    /// The inputs: name, address, bytes.
    pub(crate) fn inputs(self) -> impl Iterator<Item = (&'static str, u64, u64)> + Clone {
        let first = self.0.modules as *const Module;
        (0..self.0.module_count as usize).map(move |index| {
            // SAFETY: the boot contract says that `module_count` entries lie at `modules`.
            let module = unsafe { &*first.add(index) };
            (text_at(module.name), module.start, module.bytes)
        })
    }

    /// End of the RAM range that this program lies in.
    pub(crate) fn ram_end(self) -> u64 {
        let first = self.0.memory_map as *const MemoryRange;
        // SAFETY: the boot contract says that `memory_map_count` entries lie at `memory_map`.
        let ranges = (0..self.0.memory_map_count as usize).map(|index| unsafe { &*first.add(index) });
        let here = program_end();
        let own = ranges.filter(|range| range.kind == MEMORY_IS_RAM);
        own.map(|range| (range.start, range.start + range.bytes))
            .find(|(start, end)| (*start..*end).contains(&here))
            .map_or(here, |(_, end)| end)
    }
}

fn text_at(address: u64) -> &'static str {
    // SAFETY: the boot contract says that strings end with NUL and are not written again.
    let text = unsafe { core::ffi::CStr::from_ptr(address as *const core::ffi::c_char) };
    text.to_str().unwrap_or("?")
}

/// First address after this program.
pub(crate) fn program_end() -> u64 {
    unsafe extern "C" {
        /// Set by link.ld.
        static program_end: u8;
    }
    (&raw const program_end) as u64
}

fn out8(port: u16, value: u8) {
    // SAFETY: an I/O port access touches no memory of this program; boot.s opened the ports below 0x1000 to ring 3.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) }
}

fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: as for `out8`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) }
    value
}

fn out32(port: u16, value: u32) {
    // SAFETY: as for `out8`. Memory may change while the VMM waits, so no `nomem`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as for `out8`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) }
    value
}

/// Value of COM1's line status register.
pub(crate) fn serial_status() -> u8 {
    in8(COM1_STATUS)
}

/// Sends one byte to COM1, whose transmitter is always ready.
pub(crate) fn serial_byte(byte: u8) {
    out8(COM1_DATA, byte);
}

/// Ends the virtual machine. 0 is success.
pub(crate) fn exit(status: u32) -> ! {
    out32(EXIT_PORT, status);
    loop {
        core::hint::spin_loop();
    }
}

/// Sleeps up to `microseconds`, or until the vGPU's interrupt.
pub(crate) fn wait(microseconds: u32) {
    out32(WAIT_PORT, microseconds);
}

/// Selects a register of function 0 of `device` on bus 0 and reads it. `register` is a multiple of 4.
pub(crate) fn config_read(device: u32, register: u32) -> u32 {
    out32(CONFIG_ADDRESS, CONFIG_ENABLE | device << 11 | register);
    in32(CONFIG_DATA)
}

/// The same for a write.
pub(crate) fn config_write(device: u32, register: u32, value: u32) {
    out32(CONFIG_ADDRESS, CONFIG_ENABLE | device << 11 | register);
    out32(CONFIG_DATA, value);
}

/// Makes the local APIC pass interrupts on.
pub(crate) fn enable_interrupts() {
    store32(LOCAL_APIC_SPURIOUS, LOCAL_APIC_ENABLE);
}

/// Interrupts taken so far.
pub(crate) fn interrupts() -> u32 {
    unsafe extern "C" {
        /// Counted by boot.s.
        static interrupt_count: u32;
    }
    load32((&raw const interrupt_count) as u64)
}

/// The time-stamp counter.
pub(crate) fn timestamp() -> u64 {
    // SAFETY: every x86-64 CPU has it, and ring 3 may read it while CR4.TSD is clear, as at reset.
    unsafe { x86_64::_rdtsc() }
}

/// One 32-bit load from a device or from RAM that a device writes. `address` is a multiple of 4.
pub(crate) fn load32(address: u64) -> u32 {
    // SAFETY: the page tables map the first 4 GiB but page 0, and callers pass no address outside; whatever lies
    // there, a 32-bit value is valid.
    unsafe { (address as *const u32).read_volatile() }
}

/// One 32-bit store to a device.
pub(crate) fn store32(address: u64, value: u32) {
    // SAFETY: callers pass addresses inside a BAR, which is memory of no Rust object.
    unsafe { (address as *mut u32).write_volatile(value) }
}

/// One 64-bit store to a device.
pub(crate) fn store64(address: u64, value: u64) {
    // SAFETY: as for `store32`.
    unsafe { (address as *mut u64).write_volatile(value) }
}

/// One 64-bit load from a device.
pub(crate) fn load64(address: u64) -> u64 {
    // SAFETY: as for `load32`.
    unsafe { (address as *const u64).read_volatile() }
}

/// Copies RAM at `address` to `data`.
pub(crate) fn ram_read(address: u64, data: &mut [u8]) {
    // SAFETY: a string copy by the CPU itself, so a device that writes the source at the same time makes the bytes
    // old or new and nothing else. The target is exclusively ours.
    unsafe {
        asm!("rep movsb", inout("rcx") data.len() => _, inout("rsi") address => _,
            inout("rdi") data.as_mut_ptr() => _, options(nostack, preserves_flags));
    }
}

/// Copies `data` to RAM at `address`.
pub(crate) fn ram_write(address: u64, data: &[u8]) {
    // SAFETY: as for `ram_read`; callers pass free RAM or an input's, which no Rust object lies in.
    unsafe {
        asm!("rep movsb", inout("rcx") data.len() => _, inout("rsi") data.as_ptr() => _,
            inout("rdi") address => _, options(nostack, preserves_flags));
    }
}

/// Free RAM as memory of this program, for good. Called once, with RAM that nothing else uses.
pub(crate) fn take_words(ram: Range<u64>) -> &'static mut [u32] {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let start = ram.start.next_multiple_of(8);
    let words = ram.end.saturating_sub(start) / 4;
    if words == 0 || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return &mut [];
    }
    // SAFETY: the page tables map RAM one to one, the range lies in free RAM behind this program and its inputs, where
    // no Rust object and no DMA memory is, and it is handed out once. Whatever lies there, a 32-bit value is valid.
    unsafe { core::slice::from_raw_parts_mut(start as *mut u32, words as usize) }
}

/// First instruction in ring 3.
#[unsafe(no_mangle)]
extern "C" fn ring3_main(start_info: u64) -> ! {
    crate::main(start_info)
}

/// Called by boot.s on a stack of its own when an instruction faulted.
#[unsafe(no_mangle)]
extern "C" fn ring3_exception(vector: u64, error: u64, address: u64, target: u64) -> ! {
    crate::exception(vector, error, address, target)
}

/// The precompiled `core` names it; with `panic = "abort"` it is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
