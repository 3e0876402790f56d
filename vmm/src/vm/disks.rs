//! Disks of a VM: a virtio device for each image, joined to KVM and to the bus.

use kvm_ioctls::{IoEventAddress, VmFd};

use super::ram::Ram;
use super::{CREATE_EVENTFD, VmError, eventfd, host_cannot, kvm_cannot};
use crate::bus::{MmioBus, Window};
use crate::virtio::block::Disk;
use crate::virtio::transport::QUEUE_NOTIFY_OFFSET;
use crate::virtio::{self, DEVICES_MAX, DiskImage};

/// Makes a disk of each image, with its interrupt and its notifications connected.
pub(super) fn build(images: Vec<DiskImage>, vm: &VmFd, ram: &Ram) -> Result<Vec<Disk>, VmError> {
    if images.len() > DEVICES_MAX {
        return Err(VmError::DiskCount { disks: images.len() });
    }
    let places = virtio::places(images.len());
    let disks = images.into_iter().zip(places).map(|(image, place)| {
        let interrupt = eventfd()?;
        vm.register_irqfd(&interrupt, place.line)
            .map_err(kvm_cannot("connect a disk's interrupt"))?;
        let disk = Disk::new(image, ram.memory().clone(), interrupt).map_err(host_cannot(CREATE_EVENTFD))?;
        let at = IoEventAddress::Mmio(u64::from(place.gpas.start) + QUEUE_NOTIFY_OFFSET);
        vm.register_ioevent(disk.transport().notified(), &at, 0u32)
            .map_err(kvm_cannot("connect a disk's notifications"))?;
        Ok(disk)
    });
    disks.collect()
}

/// Puts their registers where ACPI says that they are.
pub(super) fn place(disks: &[Disk], bus: &MmioBus) {
    for (disk, place) in disks.iter().zip(virtio::places(disks.len())) {
        bus.insert(Window {
            gpas: place.gpas.start.into()..place.gpas.end.into(),
            handler: disk.transport().clone(),
        });
    }
}
