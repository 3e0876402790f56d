//! The vGPU's interrupt pin: a level, from the link to a line of the I/O APIC and back.
//!
//! ```text
//! link ──raised──► KVM: line up ──► guest's handler ──end of interrupt──► KVM: line down ──ended──► link unmasks
//!   ▲                                                                                                 │
//!   └──────────────────────────── raised once more while the vGPU still asks ◄────────────────────────┘
//! ```
//!
//! Both are eventfds that KVM serves by itself (irqfd with `KVM_IRQFD_FLAG_RESAMPLE`), so the VMM sees neither. The guest finds the line in ACPI's
//! `_PRT`. It uses the pin while it has MSI off; the vGPU knows which, from the guest's configuration space.

use kvm_ioctls::{Cap, VmFd};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::PciError;
use crate::link::VgpuLink;

/// Line of the I/O APIC that INTA of the vGPU leads to: its last, which nothing else has (`crate::virtio`).
pub(crate) const INTX_LINE: u32 = 23;

/// Joins pin and line for as long as the VM lives. `false` if the link has no interrupt pin, or KVM has no lines that are told of their end: the
/// guest then is shown no pin.
pub(super) fn connect(link: &dyn VgpuLink, vm: &VmFd) -> Result<bool, PciError> {
    if !vm.check_extension(Cap::IrqfdResample) {
        return Ok(false);
    }
    let eventfd = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(PciError::Interrupt);
    let (raised, ended) = (eventfd()?, eventfd()?);
    if !link.set_intx(&raised, &ended).map_err(PciError::Config)? {
        return Ok(false);
    }
    vm.register_irqfd_with_resample(&raised, &ended, INTX_LINE)
        .map_err(|error| PciError::Interrupt(error.into()))?;
    Ok(true)
}
