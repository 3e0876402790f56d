//! Virtio block device: a raw disk image, served by a thread of its own.
//!
//! Device type 2, configuration and requests: Virtio 1.2 §5.2. A driver that takes the flush feature has writes reach
//! the disk when it flushes; for one that does not, each write does before it is answered.

mod image;
mod request;

use std::io;
use std::sync::Arc;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_BLOCK;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

pub use image::{DiskError, DiskImage};
use request::{SEGMENT_BYTES_MAX, SEGMENTS_MAX, Server};

use super::Device;
use super::transport::{Identity, Served, Transport};
use crate::sandbox::Role;
use crate::vm::{Stop, VmExit, wait_readable};

/// The only queue.
const QUEUE: u32 = 0;
/// Unit of a disk's size and of addresses on it, whatever its real sectors are.
pub(crate) const SECTOR_BYTES: u64 = 512;

/// One disk of a VM.
pub(crate) struct Disk {
    transport: Arc<Transport>,
    server: Server,
}

impl Disk {
    /// A disk that raises its line by `interrupt`.
    pub(crate) fn new(image: DiskImage, memory: GuestMemoryMmap, interrupt: EventFd) -> io::Result<Disk> {
        let transport = Transport::new(identity(&image), memory, interrupt)?;
        Ok(Disk {
            transport: Arc::new(transport),
            server: Server::new(image),
        })
    }

    fn serve_next(&mut self) -> Served {
        let (server, memory) = (&mut self.server, self.transport.memory());
        self.transport
            .serve_next(QUEUE, |chain, features| server.serve(chain, memory, features))
    }
}

impl Device for Disk {
    fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    fn role(&self) -> Role {
        Role::Disk
    }

    fn run(mut self: Box<Self>, stop: &Stop) -> Option<VmExit> {
        while !stop.is_requested() {
            wait_readable([self.transport.notified(), stop.eventfd()], None);
            // Cleared before the queue is read: a later request is notified again. It is empty if only the
            // stop woke this thread.
            let _ = self.transport.notified().read();
            while !stop.is_requested() && self.serve_next() == Served::One {}
        }
        None
    }
}

fn identity(image: &DiskImage) -> Identity {
    let mut features = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_SIZE_MAX;
    if image.is_read_only() {
        features |= 1 << VIRTIO_BLK_F_RO;
    }
    // struct virtio_blk_config: capacity, size_max, seg_max; the other fields belong to features
    // that are not offered.
    let mut config = image.sectors().to_le_bytes().to_vec();
    config.extend(SEGMENT_BYTES_MAX.to_le_bytes());
    config.extend(SEGMENTS_MAX.to_le_bytes());
    Identity {
        device_id: VIRTIO_ID_BLOCK,
        features,
        config,
        queues: 1,
    }
}

#[cfg(test)]
mod tests;
