//! Virtio devices: the guest's devices beside its vGPU.
//!
//! ```text
//! driver ──registers──► Transport (mmio): features, status, where the queues lie
//!        ──QueueNotify─► ioeventfd ─► thread "vm/diskN", "vm/netN" ─► Transport::serve_next ─► block, net
//!        ◄──line of the I/O APIC── irqfd ◄───────────────────────────────────────────── used ring
//! ```
//!
//! Devices sit in `crate::pci::DEVICE_WINDOW` and are announced by ACPI. The layouts are those of Virtio 1.2 (OASIS
//! committee specification 01); rings are `virtio-queue`'s. The guest is an adversary: a request has at most
//! [`QUEUE_SIZE`] descriptors, sizes are checked before anything is done, and nothing is allocated by its numbers. A
//! driver that breaks the rules of its rings has a device that needs a reset, as the specification has it.

pub(crate) mod block;
mod chain;
#[cfg(test)]
mod fake_driver;
pub(crate) mod net;
pub(crate) mod transport;

use std::ops::Range;
use std::sync::Arc;

pub use block::{DiskError, DiskImage};
pub use net::{MacAddress, Network, ParseMacError, Tap, TapError, Traffic};

use crate::acpi::{Announced, Resource};
use crate::pci::DEVICE_WINDOW;
use crate::sandbox::Role;
use crate::vm::{Stop, VmExit};
use transport::Transport;

/// Entries of each queue.
pub(crate) const QUEUE_SIZE: u16 = 128;
/// Most devices of one VM: as many lines of the I/O APIC are reserved.
pub const DEVICES_MAX: usize = NAMES.len();

/// First line of the I/O APIC.
const FIRST_LINE: u32 = 5;
/// Guest-physical addresses of a device: its registers, and the rest of their page.
const DEVICE_BYTES: u32 = 0x1000;
/// Name of the devices in ACPI.
const NAMES: [&str; 8] = ["VIO0", "VIO1", "VIO2", "VIO3", "VIO4", "VIO5", "VIO6", "VIO7"];

/// A device as the VM sees it.
pub(crate) trait Device: Send {
    /// The registers and queues of the device.
    fn transport(&self) -> &Arc<Transport>;

    /// Filter of its thread.
    fn role(&self) -> Role;

    /// Body of its thread: serves the driver until the VM stops.
    fn run(self: Box<Self>, stop: &Stop) -> Option<VmExit>;
}

/// Addresses and interrupt line of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    /// Guest-physical addresses of its registers.
    pub(crate) gpas: Range<u32>,
    /// Line of the I/O APIC.
    pub(crate) line: u32,
}

/// Slots of `devices` devices, at most [`DEVICES_MAX`].
pub(crate) fn slots(devices: usize) -> impl Iterator<Item = Slot> {
    let first = DEVICE_WINDOW.start;
    (0u32..).take(devices.min(DEVICES_MAX)).map(move |index| Slot {
        gpas: first + index * DEVICE_BYTES..first + (index + 1) * DEVICE_BYTES,
        line: FIRST_LINE + index,
    })
}

/// The part of the window for devices that no virtio device takes.
pub(crate) fn left_of_window(devices: usize) -> Range<u32> {
    let start = slots(devices)
        .last()
        .map_or(DEVICE_WINDOW.start, |place| place.gpas.end);
    start..DEVICE_WINDOW.end
}

/// The devices as ACPI announces them: Linux's virtio_mmio looks for `LNRO0005`.
pub(crate) fn announced(devices: usize) -> impl Iterator<Item = Announced> {
    (0..)
        .zip(NAMES)
        .zip(slots(devices))
        .map(|((unique_id, name), place)| Announced {
            name,
            hardware_id: "LNRO0005",
            unique_id,
            resources: vec![Resource::Memory(place.gpas), Resource::Line(place.line)],
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_lie_side_by_side_and_leave_the_rest() {
        let slots: Vec<_> = slots(DEVICES_MAX + 1).collect();
        assert_eq!(slots.len(), DEVICES_MAX);
        assert!(
            slots
                .windows(2)
                .all(|pair| pair[0].gpas.end == pair[1].gpas.start && pair[0].line < pair[1].line)
        );
        assert_eq!(left_of_window(2), slots[1].gpas.end..DEVICE_WINDOW.end);
        assert_eq!(left_of_window(0), DEVICE_WINDOW);
        assert!(slots[DEVICES_MAX - 1].line < crate::pci::INTX_LINE);
    }
}
