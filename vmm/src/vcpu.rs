//! One virtual CPU: its start state, and the loop that answers its exits.
//!
//! Each vCPU has a thread. The loop leaves KVM with an exit, hands the access to the bus that it belongs to, and goes
//! back in, until the VM stops. Stopping follows two rules:
//! 1. `Stop::request` sets its flag first, then kicks the thread (`kick`).
//! 2. The loop arms the kick first, then looks at the flag. So a stop is either seen or interrupts KVM_RUN.

pub(crate) mod cpuid;
mod kick;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};

pub use kick::KickError;
pub(crate) use kick::{kick, prepare_kicks};

use crate::loader::Entry;
use crate::pci::DoorbellTrap;
use crate::vm::{Machine, VmExit, ports, power};

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
    /// Signals, and the exit that ended the VM.
    pub others: u64,
}

impl Exits {
    /// Exits of all reasons.
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

/// Whether a vCPU left KVM because it stored to memory that the host may not store to. A kernel from 6.8 on may say more of it.
fn is_memory_fault(exit: &Result<VcpuExit<'_>, kvm_ioctls::Error>) -> bool {
    match exit {
        Ok(exit) => matches!(exit, VcpuExit::MemoryFault { .. }),
        Err(error) => error.errno() == libc::EFAULT,
    }
}

/// A vCPU that has not started.
pub(crate) struct Vcpu {
    index: usize,
    fd: VcpuFd,
}

impl Vcpu {
    /// Takes `fd`, the vCPU that KVM made with id `index`, one of `count`, and sets its CPUID.
    pub(crate) fn new(kvm: &Kvm, index: usize, count: usize, fd: VcpuFd) -> Result<Vcpu, kvm_ioctls::Error> {
        fd.set_cpuid2(&cpuid::of_vcpu(kvm, index as u32, count as u32)?)?;
        Ok(Vcpu { index, fd })
    }

    /// Sets the registers that an operating system expects firmware to have set.
    pub(crate) fn set_as_by_firmware(&self) -> Result<(), kvm_ioctls::Error> {
        start::set_msrs(&self.fd)
    }

    /// Frequency of the guest's time-stamp counter.
    pub(crate) fn tsc_khz(&self) -> Result<u32, kvm_ioctls::Error> {
        self.fd.get_tsc_khz()
    }

    /// Puts the vCPU at `entry`. vCPUs without an entry wait for the guest to start them, as on hardware.
    pub(crate) fn enter_at(&self, entry: Entry) -> Result<(), kvm_ioctls::Error> {
        start::enter_at(&self.fd, entry)
    }

    /// Runs until the VM stops, and returns the reason if this vCPU caused it.
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
        let changes = machine.doorbells.as_ref().map(DoorbellTrap::changes);
        let exit = self.fd.run();
        machine.counters.count(&exit);
        if is_memory_fault(&exit)
            && let Some((trap, changes)) = machine.doorbells.as_ref().zip(changes)
            && trap.met(changes)?
        {
            return Ok(());
        }
        match exit {
            Ok(VcpuExit::MmioRead(gpa, data)) => machine.mmio.read(gpa, data)?,
            Ok(VcpuExit::MmioWrite(gpa, data)) => machine.mmio.write(gpa, data)?,
            Ok(VcpuExit::IoIn(port, data)) => machine.pio.read(port, data)?,
            Ok(VcpuExit::IoOut(ports::EXIT, data)) => return Err(VmExit::Guest(ports::value(data))),
            Ok(VcpuExit::IoOut(port, data)) => match power::end_by(port, data) {
                Some(end) => return Err(end),
                None => machine.pio.write(port, data)?,
            },
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

    /// Address of the vCPU's next instruction, for an error text.
    fn rip(&self) -> u64 {
        self.fd.get_regs().map_or(0, |regs| regs.rip)
    }
}
