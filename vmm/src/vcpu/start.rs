//! The state in which vCPUs start: registers of the first one, and the settings of firmware on all.

use kvm_bindings::{Msrs, kvm_msr_entry, kvm_segment};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::errno;

use crate::loader::{Entry, Mode};

/// Control register and EFER bits (Intel SDM vol. 3 §2.5, AMD APM vol. 2 §3.1.7): 64-bit mode, SSE for all rings.
const CR0_PE_MP_ET_NE: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE_OSFXSR_OSXMMEXCPT: u64 = 1 << 5 | 1 << 9 | 1 << 10;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
/// The bit of RFLAGS that is always set. Interrupts are off.
const RFLAGS_FIXED: u64 = 1 << 1;
/// Selectors and types of flat ring 0 segments (Intel SDM vol. 3 §3.4.5.1), the selectors as in Linux's boot protocol.
/// Without a table in RAM the descriptors exist in the CPU only, until the program loads one of its own.
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;
const TYPE_CODE_ACCESSED: u8 = 11;
const TYPE_DATA_ACCESSED: u8 = 3;
const TASK_SELECTOR: u16 = 0x20;
const TYPE_TASK_32_BUSY: u8 = 11;
/// Descriptors that an entry's table has.
const DESCRIPTORS: u16 = 4;

/// Registers that firmware sets on each processor (Intel SDM vol. 4): string instructions may be fast; all memory
/// without an MTRR of its own is write-back, and MTRRs are on.
const MSR_MISC_ENABLE: u32 = 0x1a0;
const FAST_STRINGS: u64 = 1;
const MSR_MTRR_DEFAULT: u32 = 0x2ff;
const MTRRS_ON_WRITE_BACK: u64 = 1 << 11 | 6;

/// Leaves the vCPU as firmware does.
pub(super) fn set_msrs(fd: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let entry = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    let entries = [
        entry(MSR_MISC_ENABLE, FAST_STRINGS),
        entry(MSR_MTRR_DEFAULT, MTRRS_ON_WRITE_BACK),
    ];
    let msrs = Msrs::from_entries(&entries).map_err(|_| errno::Error::new(libc::E2BIG))?;
    match fd.set_msrs(&msrs)? {
        set if set == entries.len() => Ok(()),
        // KVM stops at the first that it does not know.
        _ => Err(errno::Error::new(libc::EINVAL)),
    }
}

/// Sets the vCPU's registers to `entry`: ring 0, interrupts off.
pub(super) fn enter_at(fd: &VcpuFd, entry: Entry) -> Result<(), kvm_ioctls::Error> {
    let code = flat_segment(CODE_SELECTOR, TYPE_CODE_ACCESSED);
    let data = flat_segment(DATA_SELECTOR, TYPE_DATA_ACCESSED);
    let mut sregs = fd.get_sregs()?;
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    match entry.mode {
        Mode::Long { cr3 } => {
            sregs.cs = kvm_segment { l: 1, db: 0, ..code };
            (sregs.cr0, sregs.cr3) = (CR0_PE_MP_ET_NE | CR0_PG, cr3);
            (sregs.cr4, sregs.efer) = (CR4_PAE_OSFXSR_OSXMMEXCPT, EFER_LME_LMA);
        }
        Mode::Protected => {
            // PVH: protected mode alone, and a task register with valid contents.
            (sregs.cr0, sregs.cr4) = (1, 0);
            sregs.tr = kvm_segment {
                limit: 0x67,
                selector: TASK_SELECTOR,
                type_: TYPE_TASK_32_BUSY,
                present: 1,
                ..Default::default()
            };
        }
    }
    if let Some(gdt) = entry.gdt {
        (sregs.gdt.base, sregs.gdt.limit) = (gdt, DESCRIPTORS * size_of::<u64>() as u16 - 1);
    }
    fd.set_sregs(&sregs)?;
    let mut regs = fd.get_regs()?;
    (regs.rip, regs.rsp, regs.rflags) = (entry.rip, entry.rsp, RFLAGS_FIXED);
    (regs.rdi, regs.rsi, regs.rbx) = (entry.rdi, entry.rsi, entry.rbx);
    fd.set_regs(&regs)
}

fn flat_segment(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}
