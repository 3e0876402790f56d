//! A driver of one virtio device, for tests: it lays out queues in guest memory and may break every rule.

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
/// From one queue's tables to the next one's.
const QUEUE_STRIDE: u64 = 0x4000;
/// Most queues that have their tables below the test's memory.
const QUEUES_MAX: usize = 3;
/// First address of the test's own memory.
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
    /// Number of the selected queue.
    pub(crate) queue: u32,
    next: [u16; QUEUES_MAX],
}

impl FakeDriver {
    pub(crate) fn new(transport: Arc<Transport>) -> FakeDriver {
        let memory = transport.memory().clone();
        assert!(transport.queues() as usize <= QUEUES_MAX);
        FakeDriver {
            transport,
            memory,
            queue: 0,
            next: [0; QUEUES_MAX],
        }
    }

    /// Address for the selected queue of the part that the first one has at `address`.
    fn of_queue(&self, address: u64) -> u64 {
        address + u64::from(self.queue) * QUEUE_STRIDE
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
        self.write(VIRTIO_MMIO_QUEUE_SEL, self.queue);
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
            let address = self.of_queue(address);
            self.write(low, address as u32);
            self.write(high, (address >> 32) as u32);
        }
        self.write(VIRTIO_MMIO_QUEUE_READY, 1);
    }

    /// Takes the device from reset to serving.
    pub(crate) fn bring_up(&mut self) {
        self.bring_up_without(0);
    }

    /// Does the same without the features of `refused`.
    pub(crate) fn bring_up_without(&mut self, refused: u64) {
        self.agree(refused);
        let queue = self.queue;
        for queue in 0..self.transport.queues() {
            self.queue = queue;
            self.lay_out();
        }
        self.queue = queue;
        self.write(VIRTIO_MMIO_STATUS, LIVE);
        assert_eq!(self.read(VIRTIO_MMIO_STATUS), LIVE);
    }

    pub(crate) fn write_descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let at = self.of_queue(DESCRIPTORS) + u64::from(index) * 16;
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &bytes.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }

    /// Makes `ranges` one chain from descriptor 0 on, and offers it.
    pub(crate) fn offer(&mut self, ranges: &[Range]) {
        self.offer_from(0, ranges);
    }

    /// Does the same from descriptor `first` on.
    pub(crate) fn offer_from(&mut self, first: u16, ranges: &[Range]) {
        for (index, range) in (first..).zip(ranges) {
            let mut flags = if range.is_writable { VRING_DESC_F_WRITE } else { 0 };
            if usize::from(index - first) + 1 < ranges.len() {
                flags |= VRING_DESC_F_NEXT;
            }
            self.write_descriptor(index, range.address, range.bytes, flags as u16, index + 1);
        }
        self.offer_head(first);
    }

    pub(crate) fn offer_head(&mut self, head: u16) {
        let next = self.next[self.queue as usize];
        let slot = u64::from(next % QUEUE_SIZE);
        let available = self.of_queue(AVAILABLE);
        self.put(available + 4 + slot * 2, &head.to_le_bytes());
        let next = next.wrapping_add(1);
        self.next[self.queue as usize] = next;
        self.put(available + 2, &next.to_le_bytes());
    }

    /// Number of chains answered so far, and the written length of the last one.
    pub(crate) fn used(&self) -> (u16, u32) {
        let index = u16::from_le_bytes(self.get(self.of_queue(USED) + 2, 2).try_into().unwrap());
        (index, self.answer(index.wrapping_sub(1)).1)
    }

    /// Head and length of the answer of that number.
    pub(crate) fn answer(&self, number: u16) -> (u32, u32) {
        let at = self.of_queue(USED) + 4 + u64::from(number % QUEUE_SIZE) * 8;
        let words = [at, at + 4].map(|at| self.memory.read_obj(GuestAddress(at)).unwrap());
        (words[0], words[1])
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
