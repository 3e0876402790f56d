//! Virtio devices of a VM: one for each disk and each network, joined to KVM and to the bus.

use std::io;
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, VmFd};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use super::ram::Ram;
use super::{CREATE_EVENTFD, VmError, eventfd, host_cannot, kvm_cannot};
use crate::bus::{MmioBus, Window};
use crate::virtio::block::Disk;
use crate::virtio::net::{Net, TrafficCounters};
use crate::virtio::transport::QUEUE_NOTIFY_OFFSET;
use crate::virtio::{self, DEVICES_MAX, Device, DiskImage, Network};

/// The parts that devices are made of.
pub(super) struct Parts {
    pub(super) disks: Vec<DiskImage>,
    pub(super) networks: Vec<Network>,
}

impl Parts {
    /// Number of devices that they make.
    pub(super) fn count(&self) -> usize {
        self.disks.len() + self.networks.len()
    }
}

/// A device with the name of its thread.
pub(super) struct NamedDevice {
    pub(super) name: String,
    pub(super) device: Box<dyn Device>,
}

/// All devices, disks first.
pub(super) struct Devices {
    pub(super) devices: Vec<NamedDevice>,
    /// Counters of the networks, in their order.
    pub(super) counters: Vec<Arc<TrafficCounters>>,
}

impl Devices {
    /// Makes the devices, with their interrupts and their notifications connected.
    pub(super) fn build(parts: Parts, vm: &VmFd, ram: &Ram) -> Result<Devices, VmError> {
        let count = parts.count();
        if count > DEVICES_MAX {
            return Err(VmError::DeviceCount { devices: count });
        }
        let mut built = Devices {
            devices: Vec::new(),
            counters: Vec::new(),
        };
        for (index, image) in parts.disks.into_iter().enumerate() {
            built.add(format!("disk{index}"), vm, ram, count, |memory, interrupt| {
                Disk::new(image, memory, interrupt)
            })?;
        }
        for (index, Network { tap, mac }) in parts.networks.into_iter().enumerate() {
            let counters = Arc::new(TrafficCounters::default());
            built.counters.push(counters.clone());
            built.add(format!("net{index}"), vm, ram, count, |memory, interrupt| {
                Net::new(tap, mac, counters, memory, interrupt)
            })?;
        }
        Ok(built)
    }

    /// Makes the next device and connects it.
    fn add<D: Device + 'static>(
        &mut self,
        name: String,
        vm: &VmFd,
        ram: &Ram,
        count: usize,
        make: impl FnOnce(GuestMemoryMmap, EventFd) -> io::Result<D>,
    ) -> Result<(), VmError> {
        let Some(place) = virtio::slots(count).nth(self.devices.len()) else {
            return Err(VmError::DeviceCount { devices: count });
        };
        let interrupt = eventfd()?;
        vm.register_irqfd(&interrupt, place.line)
            .map_err(kvm_cannot("connect a device's interrupt"))?;
        let device = make(ram.memory().clone(), interrupt).map_err(host_cannot(CREATE_EVENTFD))?;
        let at = IoEventAddress::Mmio(u64::from(place.gpas.start) + QUEUE_NOTIFY_OFFSET);
        for queue in 0..device.transport().queues() {
            vm.register_ioevent(device.transport().notified(), &at, queue)
                .map_err(kvm_cannot("connect a device's notifications"))?;
        }
        let device = Box::new(device);
        self.devices.push(NamedDevice { name, device });
        Ok(())
    }

    /// Puts their registers where ACPI announces them.
    pub(super) fn place(&self, bus: &MmioBus) {
        for (NamedDevice { device, .. }, place) in self.devices.iter().zip(virtio::slots(self.devices.len()))
        {
            bus.insert(Window {
                gpas: place.gpas.start.into()..place.gpas.end.into(),
                handler: device.transport().clone(),
            });
        }
    }
}
