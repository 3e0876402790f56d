//! The vGPU's message-signalled interrupt: from the eventfd that the link signals to the guest.
//!
//! ```text
//! Held ──guest enables MSI with a local-APIC address──► Routed
//!   ▲                                                     │ address or data changes: route replaced
//!   └──────────guest disables MSI, or other address───────┘
//! ```
//!
//! *Held*: the VMM keeps the eventfd, and its count ends a wait of the guest (`crate::vm::ports`). *Routed*:
//! KVM takes each count as the guest's message (irqfd), and the VMM does not see it. A message to an address
//! outside the local APICs is a store to nowhere, so a guest without interrupt handlers writes such an address
//! to get the first state.

use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{
    KVM_IRQ_ROUTING_IRQCHIP, KVM_IRQ_ROUTING_MSI, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER,
    KVM_IRQCHIP_PIC_SLAVE, KvmIrqRouting, kvm_irq_routing_entry, kvm_irq_routing_entry__bindgen_ty_1,
    kvm_irq_routing_irqchip, kvm_irq_routing_msi,
};
use kvm_ioctls::VmFd;
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

use crate::bus::BusError;

/// Pins of the I/O APIC, and the first interrupt number after them.
const IOAPIC_PINS: u32 = 24;
/// KVM's number for the vGPU's interrupt.
const MSI_GSI: u32 = IOAPIC_PINS;
/// Pins of each of the two 8259.
const PIC_PINS: u32 = 8;
/// Address bits 20 to 31 that reach the local APICs (Intel SDM vol. 3, "Message Address Register Format").
const APIC_ADDRESS: u64 = 0xfee;

/// Receiver of the vGPU's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsiState {
    /// The VMM; it ends a wait of the guest.
    Held,
    /// The guest's local APIC, through KVM.
    Routed {
        /// Address of the message.
        address: u64,
        /// Data of the message.
        data: u32,
    },
}

/// The guest's programming of the MSI capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MsiMessage {
    pub(crate) is_enabled: bool,
    pub(crate) address: u64,
    pub(crate) data: u32,
}

impl MsiMessage {
    fn wanted(self) -> MsiState {
        if self.is_enabled && self.address >> 20 == APIC_ADDRESS {
            MsiState::Routed {
                address: self.address,
                data: self.data,
            }
        } else {
            MsiState::Held
        }
    }
}

/// The route of one interrupt in one VM.
pub(crate) struct MsiRoute {
    vm: Arc<VmFd>,
    eventfd: EventFd,
    state: Mutex<MsiState>,
}

impl MsiRoute {
    /// The link signals `eventfd`. Starts as *Held*.
    pub(crate) fn new(vm: Arc<VmFd>, eventfd: EventFd) -> MsiRoute {
        MsiRoute {
            vm,
            eventfd,
            state: Mutex::new(MsiState::Held),
        }
    }

    pub(crate) fn state(&self) -> MsiState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the values that the guest has written.
    pub(crate) fn program(&self, message: MsiMessage) -> Result<(), BusError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = message.wanted();
        if *state == wanted {
            return Ok(());
        }
        self.switch(*state, wanted).map_err(BusError::Route)?;
        *state = wanted;
        Ok(())
    }

    fn switch(&self, from: MsiState, to: MsiState) -> Result<(), errno::Error> {
        let MsiState::Routed { address, data } = to else {
            return self.vm.unregister_irqfd(&self.eventfd, MSI_GSI);
        };
        let mut routes = default_routes();
        routes.push(msi_route(address, data));
        let routing = KvmIrqRouting::from_entries(&routes).map_err(|_| errno::Error::new(libc::E2BIG))?;
        self.vm.set_gsi_routing(&routing)?;
        match from {
            MsiState::Held => self.vm.register_irqfd(&self.eventfd, MSI_GSI),
            MsiState::Routed { .. } => Ok(()),
        }
    }
}

/// KVM's own routes, which setting any route replaces: the PICs and the I/O APIC, each line to both.
fn default_routes() -> Vec<kvm_irq_routing_entry> {
    let pic = (0..2 * PIC_PINS).map(|gsi| {
        let chip = if gsi < PIC_PINS {
            KVM_IRQCHIP_PIC_MASTER
        } else {
            KVM_IRQCHIP_PIC_SLAVE
        };
        chip_route(gsi, chip, gsi % PIC_PINS)
    });
    let ioapic = (0..IOAPIC_PINS).map(|gsi| chip_route(gsi, KVM_IRQCHIP_IOAPIC, gsi));
    pic.chain(ioapic).collect()
}

fn chip_route(gsi: u32, irqchip: u32, pin: u32) -> kvm_irq_routing_entry {
    kvm_irq_routing_entry {
        gsi,
        type_: KVM_IRQ_ROUTING_IRQCHIP,
        u: kvm_irq_routing_entry__bindgen_ty_1 {
            irqchip: kvm_irq_routing_irqchip { irqchip, pin },
        },
        ..Default::default()
    }
}

fn msi_route(address: u64, data: u32) -> kvm_irq_routing_entry {
    let msi = kvm_irq_routing_msi {
        address_lo: address as u32,
        address_hi: (address >> 32) as u32,
        data,
        ..Default::default()
    };
    kvm_irq_routing_entry {
        gsi: MSI_GSI,
        type_: KVM_IRQ_ROUTING_MSI,
        u: kvm_irq_routing_entry__bindgen_ty_1 { msi },
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_message_to_local_apic_is_routed() {
        let message = MsiMessage {
            is_enabled: true,
            address: 0xfee0_1000,
            data: 0x41,
        };
        assert_eq!(
            message.wanted(),
            MsiState::Routed {
                address: 0xfee0_1000,
                data: 0x41
            }
        );
    }

    #[test]
    fn disabled_message_is_held() {
        let message = MsiMessage {
            is_enabled: false,
            address: 0xfee0_0000,
            data: 0x41,
        };
        assert_eq!(message.wanted(), MsiState::Held);
    }

    #[test]
    fn message_to_nowhere_is_held() {
        let message = MsiMessage {
            is_enabled: true,
            address: 0x1_fee0_0000,
            data: 0,
        };
        assert_eq!(message.wanted(), MsiState::Held);
    }

    #[test]
    fn default_routes_cover_every_legacy_line() {
        let routes = default_routes();
        assert_eq!(routes.iter().filter(|route| route.gsi < 16).count(), 32);
        assert_eq!(routes.iter().filter(|route| route.gsi >= 16).count(), 8);
    }
}
