//! A driver of one virtio device, for tests: it lays out a queue in guest memory and may break every rule.

use std::sync::Arc;

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FEATURES_OK,
};
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

use super::QUEUE_SIZE;
use super::transport::Transport;
use crate::bus::MmioHandler as _;

pub(crate) const RAM_BYTES: usize = 1 << 20;
pub(crate) const DESCRIPTORS: u64 = 0x1000;
pub(crate) const AVAILABLE: u64 = 0x2000;
pub(crate) const USED: u64 = 0x3000;
/// From here on memory is the test's.
pub(crate) const DATA: u64 = 0x1_0000;

pub(crate) const KNOWN: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER;
pub(crate) const LIVE: u32 = KNOWN | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK;

/// A range of guest memory in a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) bytes: u32,
    pub(crate) is_writable: bool,
}

pub(crate) fn readable(address: u64, bytes: u32) -> Range {
    Range {
        address,
        bytes,
        is_writable: false,
    }
}

pub(crate) fn writable(address: u64, bytes: u32) -> Range {
    Range {
        address,
        bytes,
        is_writable: true,
    }
}

pub(crate) fn ram() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), RAM_BYTES)]).unwrap()
}

pub(crate) struct FakeDriver {
    pub(crate) transport: Arc<Transport>,
    pub(crate) memory: GuestMemoryMmap,
    next: u16,
}

impl FakeDriver {
    pub(crate) fn new(transport: Arc<Transport>) -> FakeDriver {
        let memory = transport.memory().clone();
        FakeDriver {
            transport,
            memory,
            next: 0,
        }
    }

    pub(crate) fn read(&self, register: u32) -> u32 {
        let mut data = [0; 4];
        self.transport.mmio_read(register.into(), &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    pub(crate) fn write(&self, register: u32, value: u32) {
        self.transport
            .mmio_write(register.into(), &value.to_le_bytes())
            .unwrap();
    }

    /// Takes all features but those of `refused`.
    pub(crate) fn agree(&self, refused: u64) {
        self.write(VIRTIO_MMIO_STATUS, KNOWN);
        for page in 0..2 {
            self.write(VIRTIO_MMIO_DEVICE_FEATURES_SEL, page);
            self.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, page);
            let refused = (refused >> (page * 32)) as u32;
            self.write(
                VIRTIO_MMIO_DRIVER_FEATURES,
                self.read(VIRTIO_MMIO_DEVICE_FEATURES) & !refused,
            );
        }
        self.write(VIRTIO_MMIO_STATUS, KNOWN | VIRTIO_CONFIG_S_FEATURES_OK);
    }

    pub(crate) fn lay_out(&self) {
        self.write(VIRTIO_MMIO_QUEUE_SEL, 0);
        self.write(VIRTIO_MMIO_QUEUE_NUM, QUEUE_SIZE.into());
        let places = [
            (
                VIRTIO_MMIO_QUEUE_DESC_LOW,
                VIRTIO_MMIO_QUEUE_DESC_HIGH,
                DESCRIPTORS,
            ),
            (
                VIRTIO_MMIO_QUEUE_AVAIL_LOW,
                VIRTIO_MMIO_QUEUE_AVAIL_HIGH,
                AVAILABLE,
            ),
            (VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_QUEUE_USED_HIGH, USED),
        ];
        for (low, high, address) in places {
            self.write(low, address as u32);
            self.write(high, (address >> 32) as u32);
        }
        self.write(VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// From reset to a device that serves.
    pub(crate) fn bring_up(&self) {
        self.agree(0);
        self.lay_out();
        self.write(VIRTIO_MMIO_STATUS, LIVE);
        assert_eq!(self.read(VIRTIO_MMIO_STATUS), LIVE);
    }

    pub(crate) fn write_descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let at = DESCRIPTORS + u64::from(index) * 16;
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &bytes.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }

    /// Makes `ranges` one chain from descriptor 0 on, and offers it.
    pub(crate) fn offer(&mut self, ranges: &[Range]) {
        for (index, range) in (0u16..).zip(ranges) {
            let mut flags = if range.is_writable { VRING_DESC_F_WRITE } else { 0 };
            if usize::from(index) + 1 < ranges.len() {
                flags |= VRING_DESC_F_NEXT;
            }
            self.write_descriptor(index, range.address, range.bytes, flags as u16, index + 1);
        }
        self.offer_head(0);
    }

    pub(crate) fn offer_head(&mut self, head: u16) {
        let slot = u64::from(self.next % QUEUE_SIZE);
        self.put(AVAILABLE + 4 + slot * 2, &head.to_le_bytes());
        self.next = self.next.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.next.to_le_bytes());
    }

    /// Chains answered so far, and what the last one says was written.
    pub(crate) fn used(&self) -> (u16, u32) {
        let mut index = [0; 2];
        self.memory
            .read_slice(&mut index, GuestAddress(USED + 2))
            .unwrap();
        let index = u16::from_le_bytes(index);
        let slot = u64::from(index.wrapping_sub(1) % QUEUE_SIZE);
        let written = self
            .memory
            .read_obj(GuestAddress(USED + 4 + slot * 8 + 4))
            .unwrap();
        (index, written)
    }

    pub(crate) fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
    }

    pub(crate) fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_slice(&mut data, GuestAddress(address)).unwrap();
        data
    }
}
