//! One virtual CPU: its start state, and the loop that answers its exits.
//!
//! Each vCPU has a thread. The loop leaves KVM with an exit, hands the access to the bus that it belongs to, and goes
//! back in, until the VM stops. Stopping follows two rules:
//! 1. `Stop::request` sets its flag first, then kicks the thread (`kick`).
//! 2. The loop arms the kick first, then looks at the flag. So a stop is either seen or interrupts KVM_RUN.

mod kick;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, kvm_segment};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};

pub use kick::KickError;
pub(crate) use kick::{kick, prepare_kicks};

use crate::loader::Entry;
use crate::vm::{Machine, VmExit, ports};

/// Control register and EFER bits (Intel SDM vol. 3 §2.5, AMD APM vol. 2 §3.1.7): 64-bit mode, SSE for all rings.
const CR0_PE_MP_ET_NE_PG: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 31;
const CR4_PAE_OSFXSR_OSXMMEXCPT: u64 = 1 << 5 | 1 << 9 | 1 << 10;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
/// The bit of RFLAGS that is always set. Interrupts are off.
const RFLAGS_FIXED: u64 = 1 << 1;
/// Selectors and types of flat ring 0 segments (Intel SDM vol. 3 §3.4.5.1). The descriptors exist in the CPU only,
/// until the program loads a GDT of its own.
const CODE_SELECTOR: u16 = 0x08;
const DATA_SELECTOR: u16 = 0x10;
const TYPE_CODE_ACCESSED: u8 = 11;
const TYPE_DATA_ACCESSED: u8 = 3;
/// CPUID leaves that name the CPU's own APIC id.
const LEAF_FEATURES: u32 = 1;
const LEAF_TOPOLOGY: u32 = 0xb;

/// How often a VM left KVM, by reason. Running totals.
#[derive(Default)]
pub(crate) struct ExitCounters {
    mmio_reads: AtomicU64,
    mmio_writes: AtomicU64,
    port_reads: AtomicU64,
    port_writes: AtomicU64,
    waits: AtomicU64,
    others: AtomicU64,
}

/// A reading of a VM's exit counters, all since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Loads outside RAM.
    pub mmio_reads: u64,
    /// Stores outside RAM.
    pub mmio_writes: u64,
    /// I/O port reads.
    pub port_reads: u64,
    /// I/O port writes but waits.
    pub port_writes: u64,
    /// Writes to the wait port.
    pub waits: u64,
    /// Signals, and whatever ended the VM.
    pub others: u64,
}

impl Exits {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.mmio_reads + self.mmio_writes + self.port_reads + self.port_writes + self.waits + self.others
    }
}

impl ExitCounters {
    pub(crate) fn read(&self) -> Exits {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Exits {
            mmio_reads: value(&self.mmio_reads),
            mmio_writes: value(&self.mmio_writes),
            port_reads: value(&self.port_reads),
            port_writes: value(&self.port_writes),
            waits: value(&self.waits),
            others: value(&self.others),
        }
    }

    fn count(&self, exit: &Result<VcpuExit<'_>, kvm_ioctls::Error>) {
        let counter = match exit {
            Ok(VcpuExit::MmioRead(..)) => &self.mmio_reads,
            Ok(VcpuExit::MmioWrite(..)) => &self.mmio_writes,
            Ok(VcpuExit::IoIn(..)) => &self.port_reads,
            Ok(VcpuExit::IoOut(ports::WAIT, _)) => &self.waits,
            Ok(VcpuExit::IoOut(..)) => &self.port_writes,
            _ => &self.others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A vCPU that has not started.
pub(crate) struct Vcpu {
    index: usize,
    fd: VcpuFd,
}

impl Vcpu {
    /// Takes `fd`, the vCPU that KVM made with id `index`, and tells it what it is.
    pub(crate) fn new(kvm: &Kvm, index: usize, fd: VcpuFd) -> Result<Vcpu, kvm_ioctls::Error> {
        let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
        name_apic(&mut cpuid, index as u32);
        fd.set_cpuid2(&cpuid)?;
        Ok(Vcpu { index, fd })
    }

    /// Frequency of the guest's time-stamp counter.
    pub(crate) fn tsc_khz(&self) -> Result<u32, kvm_ioctls::Error> {
        self.fd.get_tsc_khz()
    }

    /// Puts the vCPU at `entry`: 64-bit mode, ring 0, interrupts off. vCPUs without an entry wait for the guest to
    /// start them, as on hardware.
    pub(crate) fn enter_at(&self, entry: Entry) -> Result<(), kvm_ioctls::Error> {
        let code = flat_segment(CODE_SELECTOR, TYPE_CODE_ACCESSED);
        let data = flat_segment(DATA_SELECTOR, TYPE_DATA_ACCESSED);
        let mut sregs = self.fd.get_sregs()?;
        sregs.cs = kvm_segment { l: 1, db: 0, ..code };
        (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
        (sregs.cr0, sregs.cr3, sregs.cr4) = (CR0_PE_MP_ET_NE_PG, entry.cr3, CR4_PAE_OSFXSR_OSXMMEXCPT);
        sregs.efer = EFER_LME_LMA;
        self.fd.set_sregs(&sregs)?;
        let mut regs = self.fd.get_regs()?;
        (regs.rip, regs.rsp, regs.rdi, regs.rflags) = (entry.rip, entry.rsp, entry.rdi, RFLAGS_FIXED);
        self.fd.set_regs(&regs)
    }

    /// Runs until the VM stops, and says why if this vCPU is the reason.
    pub(crate) fn run(mut self, machine: &Arc<Machine>) -> Option<VmExit> {
        let armed = kick::Armed::new(&mut self.fd);
        let mut ended = None;
        while ended.is_none() && !machine.stop.is_requested() {
            ended = self.step(machine).err();
        }
        drop(armed);
        ended
    }

    fn step(&mut self, machine: &Machine) -> Result<(), VmExit> {
        let exit = self.fd.run();
        machine.counters.count(&exit);
        match exit {
            Ok(VcpuExit::MmioRead(gpa, data)) => machine.mmio.read(gpa, data)?,
            Ok(VcpuExit::MmioWrite(gpa, data)) => machine.mmio.write(gpa, data)?,
            Ok(VcpuExit::IoIn(port, data)) => machine.pio.read(port, data)?,
            Ok(VcpuExit::IoOut(ports::EXIT, data)) => return Err(VmExit::Guest(ports::value(data))),
            Ok(VcpuExit::IoOut(port, data)) => machine.pio.write(port, data)?,
            Ok(VcpuExit::Shutdown) => {
                return Err(VmExit::TripleFault {
                    vcpu: self.index,
                    rip: self.rip(),
                });
            }
            Ok(VcpuExit::Intr) => {}
            // EAGAIN: a vCPU that the guest has not started was woken.
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => {}
            Ok(other) => {
                let what = format!("{other:?}");
                return Err(VmExit::Unexpected {
                    vcpu: self.index,
                    rip: self.rip(),
                    what,
                });
            }
            Err(source) => {
                return Err(VmExit::Run {
                    vcpu: self.index,
                    source,
                });
            }
        }
        Ok(())
    }

    /// Where the vCPU stands, for an error text.
    fn rip(&self) -> u64 {
        self.fd.get_regs().map_or(0, |regs| regs.rip)
    }
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

fn name_apic(cpuid: &mut CpuId, index: u32) {
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            LEAF_FEATURES => entry.ebx = (entry.ebx & 0x00ff_ffff) | index << 24,
            LEAF_TOPOLOGY => entry.edx = index,
            _ => {}
        }
    }
}
