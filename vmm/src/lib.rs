//! One KVM virtual machine with a vGPU: memory, vCPUs, PCI bus, virtio devices, serial port, loader, sandbox.
//!
//! [`Vm::build`] joins a guest program, its inputs and a [`VgpuLink`] into a machine; [`Vm::start`] runs it;
//! [`RunningVm::wait`] tells how it ended. What the guest says arrives through [`Reports`].

mod acpi;
mod bus;
pub mod console;
pub mod link;
pub mod loader;
pub mod pci;
pub mod sandbox;
pub mod serial;
pub mod start_up;
mod vcpu;
mod virtio;
pub mod vm;

pub use bus::BusError;
pub use link::{LinkError, VfioUserLink, VgpuLink};
pub use loader::{Initramfs, Input, Kernel, KernelKind, LoadError};
pub use pci::MsiState;
pub use sandbox::{Sandbox, SandboxError};
pub use serial::{ReportQueue, Reports};
pub use vcpu::{Exits, KickError};
pub use virtio::{
    DEVICES_MAX, DiskError, DiskImage, MacAddress, Network, ParseMacError, Tap, TapError, Traffic,
};
pub use vm::{ResetCause, RunningVm, Vm, VmConfig, VmError, VmExit};

/// The bare-metal guest program (`guests/bare`), an ELF file built together with this crate.
pub(crate) fn guest_image() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/guest.elf"))
}
