//! The registers as a driver sees them, and the answers to a hostile one.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::virtio::QUEUE_SIZE as QUEUE;
use crate::virtio::fake_driver::{
    AVAILABLE, DATA, FakeDriver, KNOWN, LIVE, RAM_BYTES, ram, readable, writable,
};

const QUEUES: u32 = 2;

struct Bench {
    driver: FakeDriver,
    interrupt: EventFd,
}

fn eventfd() -> EventFd {
    EventFd::new(libc::EFD_NONBLOCK).unwrap()
}

fn bench() -> Bench {
    let interrupt = eventfd();
    let identity = Identity {
        device_id: 2,
        features: 1 << 5,
        config: vec![1, 2, 3, 4, 5, 6, 7, 8, 9],
        queues: QUEUES,
    };
    let transport = Transport::new(identity, ram(), interrupt.try_clone().unwrap()).unwrap();
    Bench {
        driver: FakeDriver::new(Arc::new(transport)),
        interrupt,
    }
}

impl Bench {
    /// Serves the first queue by taking every chain apart and saying that 7 bytes were written.
    fn serve(&self) -> Served {
        self.serve_queue(0)
    }

    fn serve_queue(&self, queue: u32) -> Served {
        self.driver.transport.serve_next(queue, |chain, _| {
            let _ = chain.count();
            Ok(7)
        })
    }

    fn status(&self) -> u32 {
        self.driver.read(VIRTIO_MMIO_STATUS)
    }
}

#[test]
fn device_tells_what_it_is() {
    let Bench { driver, .. } = bench();
    let words = [
        VIRTIO_MMIO_MAGIC_VALUE,
        VIRTIO_MMIO_VERSION,
        VIRTIO_MMIO_DEVICE_ID,
        VIRTIO_MMIO_QUEUE_NUM_MAX,
    ]
    .map(|register| driver.read(register));
    assert_eq!(words, [0x7472_6976, 2, 2, 128]);
    driver.write(VIRTIO_MMIO_QUEUE_SEL, QUEUES);
    assert_eq!(driver.read(VIRTIO_MMIO_QUEUE_NUM_MAX), 0);
}

#[test]
fn configuration_is_read_in_any_width_and_ends_with_zeroes() {
    let Bench { driver, .. } = bench();
    let (mut wide, mut past) = ([0; 8], [1; 4]);
    driver.transport.mmio_read(0x101, &mut wide).unwrap();
    driver.transport.mmio_read(0x108, &mut past).unwrap();
    assert_eq!((wide, past), ([2, 3, 4, 5, 6, 7, 8, 9], [9, 0, 0, 0]));
}

#[test]
fn features_are_agreed_upon_once() {
    let Bench { driver, .. } = bench();
    driver.agree(0);
    assert_eq!(
        driver.read(VIRTIO_MMIO_STATUS),
        KNOWN | VIRTIO_CONFIG_S_FEATURES_OK
    );
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 0);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 0);
    assert_eq!(driver.transport.lock().features, driver.transport.offered());
}

#[test]
fn driver_of_another_version_is_not_agreed_with() {
    let Bench { driver, .. } = bench();
    driver.agree(1 << VIRTIO_F_VERSION_1);
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), KNOWN);
    driver.write(VIRTIO_MMIO_STATUS, LIVE & !VIRTIO_CONFIG_S_FEATURES_OK);
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), KNOWN);
}

#[test]
fn feature_that_was_not_offered_is_refused() {
    let Bench { driver, .. } = bench();
    driver.write(VIRTIO_MMIO_STATUS, KNOWN);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, 1);
    driver.write(VIRTIO_MMIO_DRIVER_FEATURES, 1 | 1 << 20);
    driver.write(VIRTIO_MMIO_STATUS, KNOWN | VIRTIO_CONFIG_S_FEATURES_OK);
    assert_eq!(driver.read(VIRTIO_MMIO_STATUS), KNOWN);
}

#[test]
fn request_is_served_and_interrupts() {
    let mut bench = bench();
    bench.driver.bring_up();
    assert_eq!(bench.serve(), Served::Nothing);
    bench.driver.offer(&[readable(DATA, 16), writable(DATA + 16, 1)]);
    assert_eq!((bench.serve(), bench.serve()), (Served::One, Served::Nothing));
    assert_eq!(bench.driver.used(), (1, 7));
    assert_eq!(bench.interrupt.read().unwrap(), 1);
    assert_eq!(
        bench.driver.read(VIRTIO_MMIO_INTERRUPT_STATUS),
        VIRTIO_MMIO_INT_VRING
    );
    bench
        .driver
        .write(VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INT_VRING);
    assert_eq!(bench.driver.read(VIRTIO_MMIO_INTERRUPT_STATUS), 0);
}

#[test]
fn notification_of_each_queue_arrives_and_of_another_does_not() {
    let Bench { driver, .. } = bench();
    driver.write(VIRTIO_MMIO_QUEUE_NOTIFY, QUEUES);
    assert!(driver.transport.notified().read().is_err());
    driver.write(VIRTIO_MMIO_QUEUE_NOTIFY, 0);
    driver.write(VIRTIO_MMIO_QUEUE_NOTIFY, 1);
    assert_eq!(driver.transport.notified().read().unwrap(), 2);
}

#[test]
fn requests_from_before_the_driver_is_ok_are_looked_for() {
    let mut bench = bench();
    bench.driver.bring_up();
    assert_eq!(bench.driver.transport.notified().read().unwrap(), 1);
}

#[test]
fn queues_are_served_apart() {
    let mut bench = bench();
    bench.driver.bring_up();
    bench.driver.queue = 1;
    bench.driver.offer(&[writable(DATA, 8)]);
    assert_eq!(bench.serve_queue(0), Served::Nothing);
    assert_eq!(bench.serve_queue(1), Served::One);
    assert_eq!(bench.serve_queue(QUEUES), Served::Nothing);
    assert_eq!(bench.driver.used(), (1, 7));
    bench.driver.queue = 0;
    assert_eq!(bench.driver.used().0, 0);
}

#[test]
fn queue_that_is_not_ready_is_not_served_and_the_other_is() {
    let mut bench = bench();
    bench.driver.bring_up();
    bench.driver.offer(&[writable(DATA, 8)]);
    bench.driver.write(VIRTIO_MMIO_QUEUE_SEL, 1);
    bench.driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
    assert_eq!(
        (bench.serve_queue(1), bench.serve_queue(0)),
        (Served::Nothing, Served::One)
    );
}

#[test]
fn chains_are_answered_at_once_and_what_was_put_back_comes_again() {
    let mut bench = bench();
    bench.driver.bring_up();
    for head in 0..4 {
        bench.driver.offer_from(head, &[writable(DATA, 8)]);
    }
    let serve = |takes: usize, keeps: usize| {
        let served = bench.driver.transport.with_queue(0, |live| {
            let heads: Vec<_> = (0..takes)
                .map(|_| live.take().unwrap().unwrap().head_index())
                .collect();
            live.put_back((takes - keeps) as u16);
            let answers = heads.into_iter().take(keeps);
            let answers: Vec<_> = answers
                .map(|head| Answer {
                    head,
                    written: u32::from(head) + 1,
                })
                .collect();
            live.answer(&answers)
        });
        assert_eq!(served, Some(()));
    };
    serve(4, 1);
    serve(3, 3);
    let answers = [0, 1, 2, 3].map(|number| bench.driver.answer(number));
    assert_eq!(answers, [(0, 1), (1, 2), (2, 3), (3, 4)]);
    assert_eq!(bench.driver.used().0, 4);
    assert_eq!(bench.serve(), Served::Nothing);
}

#[test]
fn queue_outside_ram_needs_a_reset_and_is_not_served() {
    let Bench { driver, .. } = bench();
    driver.agree(0);
    driver.write(VIRTIO_MMIO_QUEUE_DESC_LOW, RAM_BYTES as u32 - 16);
    driver.write(VIRTIO_MMIO_QUEUE_READY, 1);
    assert_eq!(driver.read(VIRTIO_MMIO_QUEUE_READY), 0);
    assert_ne!(driver.read(VIRTIO_MMIO_STATUS) & VIRTIO_CONFIG_S_NEEDS_RESET, 0);
}

#[test]
fn more_entries_than_the_ring_has_need_a_reset_until_the_driver_resets() {
    let mut bench = bench();
    bench.driver.bring_up();
    bench.driver.put(AVAILABLE + 2, &(QUEUE + 1).to_le_bytes());
    assert_eq!(bench.serve(), Served::Nothing);
    assert_eq!(bench.status(), LIVE | VIRTIO_CONFIG_S_NEEDS_RESET);
    assert_eq!(
        bench.driver.read(VIRTIO_MMIO_INTERRUPT_STATUS),
        VIRTIO_MMIO_INT_CONFIG
    );
    bench.driver.write(VIRTIO_MMIO_STATUS, 0);
    assert_eq!(
        (bench.status(), bench.driver.read(VIRTIO_MMIO_INTERRUPT_STATUS)),
        (0, 0)
    );
    bench.driver.put(AVAILABLE + 2, &0u16.to_le_bytes());
    bench.driver.bring_up();
}

#[test]
fn head_outside_the_table_needs_a_reset() {
    let mut bench = bench();
    bench.driver.bring_up();
    bench.driver.offer_head(QUEUE);
    assert_eq!(bench.serve(), Served::Nothing);
    assert_ne!(bench.status() & VIRTIO_CONFIG_S_NEEDS_RESET, 0);
}

proptest! {
    /// Whatever is written to the registers and whatever lies in memory, the device neither panics nor serves without
    /// end, and touches no memory but its queue's.
    #[test]
    fn any_driver_is_survived(
        writes in prop::collection::vec((0u64..0x140, any::<u32>(), 1usize..9), 0..40),
        statuses in prop::collection::vec(0u32..256, 0..4),
        ring in prop::collection::vec(any::<u8>(), 0x300),
        is_up: bool,
    ) {
        let mut bench = bench();
        if is_up {
            bench.driver.bring_up();
        }
        bench.driver.put(AVAILABLE, &ring);
        bench.driver.put(0x1000, &ring);
        for (offset, value, bytes) in writes {
            let mut data = [0; 8];
            data[..4].copy_from_slice(&value.to_le_bytes());
            bench.driver.transport.mmio_write(offset & !3, &data[..bytes]).unwrap();
            bench.driver.transport.mmio_read(offset, &mut data[..bytes]).unwrap();
        }
        for status in statuses {
            bench.driver.write(VIRTIO_MMIO_STATUS, status);
        }
        // A driver that stands still has a ring of requests at most.
        let served = (0..=QUEUE).take_while(|_| bench.serve() == Served::One).count();
        prop_assert!(served <= usize::from(QUEUE));
    }
}
