//! The registers of a virtio device in memory space, and its queues.
//!
//! ```text
//!          ACKNOWLEDGE, DRIVER        features accepted       queue ready, valid
//! reset ─────────────────────► known ───FEATURES_OK──► agreed ────DRIVER_OK────► live ──a broken ring──► NEEDS_RESET
//!   ▲                            │                        │                       │                          │
//!   └────────────────────────────┴────────── status = 0 ──┴───────────────────────┴──────────────────────────┘
//! ```
//!
//! Registers, "MMIO device register layout": Virtio 1.2 §4.2.2; initialisation §3.1; status bits §2.1. Queues are
//! numbered from 0 on, and one eventfd signals all of them. The lock is held while a request is served, so that a
//! reset is over only when the device no longer uses the guest's memory; requests are bounded.

mod live;

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

pub(crate) use live::{Answer, LiveQueue};

use super::QUEUE_SIZE;
use super::chain::BrokenChain;
use crate::bus::{BusError, MmioHandler};

/// "virt" (Virtio 1.2 §4.2.2).
const MAGIC: u32 = 0x7472_6976;
/// Version of the register layout.
const VERSION: u32 = 2;
/// "VRMD"; no driver asks.
const VENDOR: u32 = 0x444d_5256;
/// Length of an absent shared memory region (Virtio 1.2 §4.2.2).
const NO_SHARED_MEMORY: u32 = u32::MAX;
/// Features of the transport, beside those of the device.
const TRANSPORT_FEATURES: u64 = 1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX;

/// Register that a driver writes when it has added requests.
pub(crate) const QUEUE_NOTIFY_OFFSET: u64 = VIRTIO_MMIO_QUEUE_NOTIFY as u64;

/// Constant properties of a device.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Virtio device id.
    pub(crate) device_id: u32,
    /// Feature bits of its own.
    pub(crate) features: u64,
    /// Its configuration space.
    pub(crate) config: Vec<u8>,
    /// Number of its queues.
    pub(crate) queues: u32,
}

/// Outcome of looking for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// A request was served, and there may be more.
    One,
    /// The ring is empty; the driver will notify the next buffer.
    Nothing,
}

/// One queue, and the place that the driver has chosen for it.
struct Ring {
    descriptors: u64,
    available: u64,
    used: u64,
    queue: Queue,
}

impl Ring {
    fn after_reset() -> Ring {
        Ring {
            descriptors: 0,
            available: 0,
            used: 0,
            queue: Queue::new(QUEUE_SIZE).expect("the size is a power of two"),
        }
    }

    /// Stores the value of one of its layout registers.
    fn lay_out(&mut self, register: u32, value: u32) {
        match register {
            VIRTIO_MMIO_QUEUE_DESC_LOW => set_half(&mut self.descriptors, false, value),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => set_half(&mut self.descriptors, true, value),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => set_half(&mut self.available, false, value),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => set_half(&mut self.available, true, value),
            VIRTIO_MMIO_QUEUE_USED_LOW => set_half(&mut self.used, false, value),
            VIRTIO_MMIO_QUEUE_USED_HIGH => set_half(&mut self.used, true, value),
            VIRTIO_MMIO_QUEUE_NUM => {
                // An invalid size leaves the old one.
                let _ = u16::try_from(value).map(|size| self.queue.try_set_size(size));
            }
            _ => {}
        }
    }

    /// Puts the queue where the driver wants it; returns whether it can be there.
    fn set_ready(&mut self, memory: &GuestMemoryMmap, features: u64) -> bool {
        let queue = &mut self.queue;
        let laid_out = queue
            .try_set_desc_table_address(GuestAddress(self.descriptors))
            .and_then(|()| queue.try_set_avail_ring_address(GuestAddress(self.available)))
            .and_then(|()| queue.try_set_used_ring_address(GuestAddress(self.used)));
        queue.set_event_idx(features & 1 << VIRTIO_RING_F_EVENT_IDX != 0);
        queue.set_ready(true);
        let is_right = laid_out.is_ok() && queue.is_valid(memory);
        queue.set_ready(is_right);
        is_right
    }
}

/// The state that the driver has set.
struct Driver {
    status: u32,
    device_features_page: u32,
    driver_features_page: u32,
    features: u64,
    selected_queue: u32,
    rings: Vec<Ring>,
}

impl Driver {
    fn after_reset(queues: u32) -> Driver {
        Driver {
            status: 0,
            device_features_page: 0,
            driver_features_page: 0,
            features: 0,
            selected_queue: 0,
            rings: (0..queues).map(|_| Ring::after_reset()).collect(),
        }
    }

    fn has(&self, bits: u32) -> bool {
        self.status & bits == bits
    }

    fn is_live(&self) -> bool {
        self.has(VIRTIO_CONFIG_S_DRIVER_OK) && !self.has(VIRTIO_CONFIG_S_NEEDS_RESET)
    }

    /// Whether features can still be chosen.
    fn is_choosing(&self) -> bool {
        self.has(VIRTIO_CONFIG_S_DRIVER) && !self.has(VIRTIO_CONFIG_S_FEATURES_OK)
    }

    /// The selected queue, if the device has one of that number.
    fn selected(&mut self) -> Option<&mut Ring> {
        self.rings.get_mut(self.selected_queue as usize)
    }

    /// The selected queue, if it can be laid out.
    fn laid_out(&mut self) -> Option<&mut Ring> {
        let is_agreed = self.has(VIRTIO_CONFIG_S_FEATURES_OK);
        self.selected().filter(|ring| is_agreed && !ring.queue.ready())
    }
}

/// Replaces one half of an address.
fn set_half(address: &mut u64, is_high: bool, value: u32) {
    *address = if is_high {
        *address & u64::from(u32::MAX) | u64::from(value) << 32
    } else {
        *address & !u64::from(u32::MAX) | u64::from(value)
    };
}

/// One device's registers and queues.
pub(crate) struct Transport {
    identity: Identity,
    memory: GuestMemoryMmap,
    driver: Mutex<Driver>,
    /// Bits of InterruptStatus.
    pending: AtomicU32,
    interrupt: EventFd,
    notified: EventFd,
}

impl Transport {
    /// The device raises its line by `interrupt`.
    pub(crate) fn new(
        identity: Identity,
        memory: GuestMemoryMmap,
        interrupt: EventFd,
    ) -> io::Result<Transport> {
        let driver = Mutex::new(Driver::after_reset(identity.queues));
        Ok(Transport {
            identity,
            memory,
            driver,
            pending: AtomicU32::new(0),
            interrupt,
            notified: EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?,
        })
    }

    /// Readable when the driver has added requests to one of the queues: KVM writes it, or a register of this.
    pub(crate) fn notified(&self) -> &EventFd {
        &self.notified
    }

    /// Number of its queues.
    pub(crate) fn queues(&self) -> u32 {
        self.identity.queues
    }

    /// The RAM in which requests lie.
    pub(crate) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Takes one request of `queue`, lets `serve` answer it and notifies the driver. `serve` gets the agreed
    /// features, and returns the number of bytes that it wrote at the beginning of the driver's room for answers.
    pub(crate) fn serve_next(
        &self,
        queue: u32,
        serve: impl FnOnce(DescriptorChain<&GuestMemoryMmap>, u64) -> Result<u32, BrokenChain>,
    ) -> Served {
        let served = self.with_queue(queue, |live| {
            let Some(chain) = live.take()? else {
                return Ok(Served::Nothing);
            };
            let head = chain.head_index();
            let written = serve(chain, live.features())?;
            live.answer(&[Answer { head, written }])?;
            Ok(Served::One)
        });
        served.unwrap_or(Served::Nothing)
    }

    /// Lets `serve` work on `queue` if the driver has it live, and interrupts the driver if there are answers that
    /// it wants to know of. `None` if the queue is not live, or no longer because a rule was broken.
    pub(crate) fn with_queue<T>(
        &self,
        queue: u32,
        serve: impl FnOnce(&mut LiveQueue<'_>) -> Result<T, BrokenChain>,
    ) -> Option<T> {
        let mut driver = self.lock();
        let (is_live, features) = (driver.is_live(), driver.features);
        let ring = driver.rings.get_mut(queue as usize);
        let ring = ring.filter(|ring| is_live && ring.queue.ready())?;
        let mut live = LiveQueue::new(&mut ring.queue, &self.memory, features);
        let served = serve(&mut live);
        if live.wants_interrupt() {
            self.interrupt(VIRTIO_MMIO_INT_VRING);
        }
        if served.is_err() {
            self.need_reset(&mut driver);
        }
        served.ok()
    }

    /// Features that were agreed upon with a live driver.
    pub(crate) fn agreed_features(&self) -> Option<u64> {
        let driver = self.lock();
        driver.is_live().then_some(driver.features)
    }

    fn lock(&self) -> MutexGuard<'_, Driver> {
        // Each register stands for itself.
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interrupt(&self, bit: u32) {
        self.pending.fetch_or(bit, Ordering::SeqCst);
        // A counter that is full has enough interrupts.
        let _ = self.interrupt.write(1);
    }

    /// The driver broke the rules: nothing is served before it resets the device (Virtio 1.2 §2.1.2).
    fn need_reset(&self, driver: &mut Driver) {
        driver.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
        if driver.has(VIRTIO_CONFIG_S_DRIVER_OK) {
            self.interrupt(VIRTIO_MMIO_INT_CONFIG);
        }
    }

    fn offered(&self) -> u64 {
        self.identity.features | TRANSPORT_FEATURES
    }

    fn read_register(&self, register: u32) -> u32 {
        if register == VIRTIO_MMIO_INTERRUPT_STATUS {
            // An interrupt must not wait for a request that is being served.
            return self.pending.load(Ordering::SeqCst);
        }
        let mut driver = self.lock();
        match register {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.identity.device_id,
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => match driver.device_features_page {
                0 => self.offered() as u32,
                1 => (self.offered() >> 32) as u32,
                _ => 0,
            },
            // 0 where there is no such queue.
            VIRTIO_MMIO_QUEUE_NUM_MAX => driver.selected().map_or(0, |_| QUEUE_SIZE.into()),
            VIRTIO_MMIO_QUEUE_READY => driver.selected().is_some_and(|ring| ring.queue.ready()).into(),
            VIRTIO_MMIO_STATUS => driver.status,
            VIRTIO_MMIO_SHM_LEN_LOW | VIRTIO_MMIO_SHM_LEN_HIGH => NO_SHARED_MEMORY,
            VIRTIO_MMIO_SHM_BASE_LOW | VIRTIO_MMIO_SHM_BASE_HIGH => NO_SHARED_MEMORY,
            // The configuration never changes; the rest cannot be read.
            VIRTIO_MMIO_CONFIG_GENERATION => 0,
            _ => 0,
        }
    }

    fn write_register(&self, register: u32, value: u32) {
        if register == VIRTIO_MMIO_INTERRUPT_ACK {
            self.pending.fetch_and(!value, Ordering::SeqCst);
            return;
        }
        let mut driver = self.lock();
        let driver = &mut *driver;
        match register {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => driver.device_features_page = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => driver.driver_features_page = value,
            VIRTIO_MMIO_DRIVER_FEATURES if driver.is_choosing() && driver.driver_features_page <= 1 => {
                set_half(&mut driver.features, driver.driver_features_page == 1, value);
            }
            VIRTIO_MMIO_QUEUE_SEL => driver.selected_queue = value,
            VIRTIO_MMIO_QUEUE_NUM
            | VIRTIO_MMIO_QUEUE_DESC_LOW
            | VIRTIO_MMIO_QUEUE_DESC_HIGH
            | VIRTIO_MMIO_QUEUE_AVAIL_LOW
            | VIRTIO_MMIO_QUEUE_AVAIL_HIGH
            | VIRTIO_MMIO_QUEUE_USED_LOW
            | VIRTIO_MMIO_QUEUE_USED_HIGH => {
                if let Some(ring) = driver.laid_out() {
                    ring.lay_out(register, value);
                }
            }
            VIRTIO_MMIO_QUEUE_READY => self.set_ready(driver, value & 1 != 0),
            // KVM answers this one by itself where it can; the value is a queue.
            VIRTIO_MMIO_QUEUE_NOTIFY if value < self.identity.queues => self.notify(),
            VIRTIO_MMIO_STATUS => self.set_status(driver, value),
            // The register is read-only, absent, or not writable in this state.
            _ => {}
        }
    }

    fn set_ready(&self, driver: &mut Driver, is_ready: bool) {
        let features = driver.features;
        if !is_ready {
            if let Some(ring) = driver.selected() {
                ring.queue.set_ready(false);
            }
        } else if let Some(ring) = driver.laid_out()
            && !ring.set_ready(&self.memory, features)
        {
            self.need_reset(driver);
        }
    }

    /// Makes the device look at its queues.
    fn notify(&self) {
        // A counter that is full is readable.
        let _ = self.notified.write(1);
    }

    /// A driver adds bits; 0 resets.
    fn set_status(&self, driver: &mut Driver, value: u32) {
        if value == 0 {
            *driver = Driver::after_reset(self.identity.queues);
            self.pending.store(0, Ordering::SeqCst);
            return;
        }
        let mut added = value & !driver.status & !VIRTIO_CONFIG_S_NEEDS_RESET;
        if added & VIRTIO_CONFIG_S_FEATURES_OK != 0 {
            let has_version = driver.features & 1 << VIRTIO_F_VERSION_1 != 0;
            if driver.features & !self.offered() != 0 || !has_version {
                added &= !VIRTIO_CONFIG_S_FEATURES_OK;
            }
        }
        if (driver.status | added) & VIRTIO_CONFIG_S_FEATURES_OK == 0 {
            added &= !VIRTIO_CONFIG_S_DRIVER_OK;
        }
        driver.status |= added;
        if added & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            // Requests that were added before are served from now on.
            self.notify();
        }
    }
}

impl MmioHandler for Transport {
    fn mmio_read(&self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        let config = offset.checked_sub(VIRTIO_MMIO_CONFIG.into());
        match (config, data.len()) {
            (Some(from), _) => {
                let config = self.identity.config.get(from as usize..).unwrap_or_default();
                let mut config = config.iter();
                data.fill_with(|| config.next().copied().unwrap_or(0));
            }
            (None, 4) => data.copy_from_slice(&self.read_register(offset as u32).to_le_bytes()),
            // Registers have 32 bits and are read as such.
            (None, _) => data.fill(0),
        }
        Ok(())
    }

    /// Nothing in a configuration space of ours can be written.
    fn mmio_write(&self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        if let (0..0x100, Ok(value)) = (offset, <[u8; 4]>::try_from(data)) {
            self.write_register(offset as u32, u32::from_le_bytes(value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
