//! A queue while its device works on it.

use std::sync::atomic::Ordering;

use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::{Address as _, Bytes as _, GuestAddress, GuestMemoryMmap};

use crate::virtio::chain::BrokenChain;

/// Bytes of the used ring: flags and index, and one of its elements (Virtio 1.2 §2.7.8).
const USED_HEADER_BYTES: u64 = 4;
const USED_ELEMENT_BYTES: u64 = 8;

/// Record that a chain is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// Number of its first descriptor.
    pub(crate) head: u16,
    /// Bytes written from the beginning of its writable part on.
    pub(crate) written: u32,
}

/// A ring, or a chain in it, that breaks the rules; which one does not matter to the driver.
fn broken(_: Error) -> BrokenChain {
    BrokenChain
}

/// One queue of a live device. Nothing else happens to the device as long as this exists.
pub(crate) struct LiveQueue<'a> {
    queue: &'a mut Queue,
    memory: &'a GuestMemoryMmap,
    features: u64,
    wants_interrupt: bool,
}

impl<'a> LiveQueue<'a> {
    pub(super) fn new(queue: &'a mut Queue, memory: &'a GuestMemoryMmap, features: u64) -> LiveQueue<'a> {
        LiveQueue {
            queue,
            memory,
            features,
            wants_interrupt: false,
        }
    }

    /// Features agreed upon.
    pub(crate) fn features(&self) -> u64 {
        self.features
    }

    /// Most chains that the driver can have offered.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
    }

    /// The next chain. After a `None` the driver notifies when it adds one.
    pub(crate) fn take(&mut self) -> Result<Option<DescriptorChain<&'a GuestMemoryMmap>>, BrokenChain> {
        let next = self.queue.next_avail();
        let available = self.queue.avail_idx(self.memory, Ordering::Acquire);
        let is_empty = available.map_err(broken)?.0 == next;
        if is_empty && !self.queue.enable_notification(self.memory).map_err(broken)? {
            return Ok(None);
        }
        let chain = self.queue.iter(self.memory).map_err(broken)?.next();
        let size = self.queue.size();
        let chain = chain.filter(|chain| chain.head_index() < size);
        chain.map(Some).ok_or(BrokenChain)
    }

    /// Makes the last `chains` chains that were taken the next ones again.
    pub(crate) fn put_back(&mut self, chains: u16) {
        let next = self.queue.next_avail().wrapping_sub(chains);
        self.queue.set_next_avail(next);
    }

    /// Gives taken chains back to the driver, which sees all of them at once: it never finds a part of a
    /// frame in several chains.
    pub(crate) fn answer(&mut self, answers: &[Answer]) -> Result<(), BrokenChain> {
        let Some((last, earlier)) = answers.split_last() else {
            return Ok(());
        };
        let mut slot = self.queue.next_used();
        for Answer { head, written } in earlier {
            let offset = USED_HEADER_BYTES + u64::from(slot % self.queue.size()) * USED_ELEMENT_BYTES;
            let at = GuestAddress(self.queue.used_ring()).checked_add(offset);
            let element = u64::from(*head) | u64::from(*written) << 32;
            let put = self
                .memory
                .write_slice(&element.to_le_bytes(), at.ok_or(BrokenChain)?);
            put.map_err(|_| BrokenChain)?;
            slot = slot.wrapping_add(1);
        }
        // The ring's index, which the driver goes by, is written with the last one.
        self.queue.set_next_used(slot);
        let added = self.queue.add_used(self.memory, last.head, last.written);
        added.map_err(broken)?;
        let is_wanted = self.queue.needs_notification(self.memory).map_err(broken)?;
        // The queue counts the last one only, so its answer is unsure where there are others. One interrupt
        // too many is allowed.
        self.wants_interrupt |= is_wanted || !earlier.is_empty();
        Ok(())
    }

    pub(super) fn wants_interrupt(&self) -> bool {
        self.wants_interrupt
    }
}
