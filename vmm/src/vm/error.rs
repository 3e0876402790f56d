//! Why a VM could not be built or started.

use std::io;

use kvm_ioctls::Cap;

use super::ram::RAM_BYTES_MAX;
use crate::link::LinkError;
use crate::loader::{LoadError, RAM_BYTES_MIN};
use crate::pci::PciError;
use crate::vcpu::KickError;
use crate::virtio::DEVICES_MAX;

pub(super) const CREATE_VM: &str = "create a VM";
pub(super) const CREATE_EVENTFD: &str = "create an eventfd";

/// Why a VM could not be built or started.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// There is no usable KVM.
    #[error("cannot open /dev/kvm")]
    OpenKvm(#[source] kvm_ioctls::Error),
    /// KVM lacks a feature.
    #[error("KVM of this host lacks {0:?}")]
    MissingCapability(Cap),
    /// KVM refused a step.
    #[error("KVM cannot {what}")]
    Kvm {
        /// The step that was refused.
        what: &'static str,
        /// Error of KVM.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// RAM size out of range.
    #[error("memory of {bytes} bytes is not whole 4K pages from {RAM_BYTES_MIN} to {RAM_BYTES_MAX} bytes")]
    RamSize {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// RAM beyond the addresses of the host's processor.
    #[error(
        "memory of {bytes} bytes ends at {end:#x}, and this host's guests have addresses of {bits} bits: \
         give the VM less memory"
    )]
    RamBeyondProcessor {
        /// Bytes that were asked for.
        bytes: u64,
        /// First address behind it.
        end: u64,
        /// Bits of a guest-physical address.
        bits: u32,
    },
    /// vCPU count out of range.
    #[error("{vcpus} vCPUs are not in 1 to {max}")]
    VcpuCount {
        /// Number that was asked for.
        vcpus: usize,
        /// Largest number for this host's KVM.
        max: usize,
    },
    /// More disks and networks than places for them.
    #[error("{devices} disks and networks are more than the {DEVICES_MAX} of a VM")]
    DeviceCount {
        /// Number that was asked for.
        devices: usize,
    },
    /// The memfd for RAM cannot be made.
    #[error("cannot create {bytes} bytes of guest RAM")]
    CreateRam {
        /// Size of the RAM in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
    /// The RAM cannot be mapped.
    #[error("cannot map {bytes} bytes of guest RAM")]
    MapRam {
        /// Size of the RAM in bytes.
        bytes: u64,
        /// Error of the host.
        #[source]
        source: vm_memory::mmap::FromRangesError,
    },
    /// The mapping has no host address.
    #[error("cannot find guest RAM in this process")]
    AddressRam(#[source] vm_memory::GuestMemoryError),
    /// KVM refuses the RAM.
    #[error("cannot give guest RAM to KVM")]
    RegisterRam(#[source] kvm_ioctls::Error),
    /// Program or inputs cannot be put into RAM.
    #[error("cannot load the guest")]
    Load(#[from] LoadError),
    /// The vGPU cannot be put on the bus.
    #[error("cannot attach the vGPU")]
    Pci(#[from] PciError),
    /// The vGPU refuses the RAM or the interrupt.
    #[error("cannot set up the vGPU")]
    Link(#[from] LinkError),
    /// The signal that stops vCPUs cannot be installed.
    #[error("cannot prepare to stop vCPUs")]
    Kick(#[from] KickError),
    /// Firmware tables cannot be put into RAM.
    #[error("cannot write ACPI tables to guest RAM")]
    Tables(#[source] vm_memory::GuestMemoryError),
    /// Out of descriptors or threads.
    #[error("cannot {what}")]
    Host {
        /// What was attempted.
        what: &'static str,
        /// Error of the host.
        #[source]
        source: io::Error,
    },
}

impl VmError {
    /// Whether this host cannot run any VM, so that a caller may do without KVM.
    pub fn is_host_without_kvm(&self) -> bool {
        matches!(self, VmError::OpenKvm(_) | VmError::MissingCapability(_))
            || matches!(self, VmError::Kvm { what: CREATE_VM, .. })
    }
}

pub(super) fn kvm_cannot(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> VmError {
    move |source| VmError::Kvm { what, source }
}

pub(super) fn host_cannot(what: &'static str) -> impl Fn(io::Error) -> VmError {
    move |source| VmError::Host { what, source }
}
