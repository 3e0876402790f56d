//! A network device as its driver and its wire see it, and what a hostile driver gets.

use std::os::fd::RawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET;
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_net::{VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4};
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT};

use super::*;
use crate::virtio::fake_driver::{DATA, FakeDriver, LIVE, RAM_BYTES, Range, ram, readable, writable};

const MTU: u16 = 1500;
const HEADER: u64 = HEADER_BYTES as u64;
/// Where a frame of the driver's lies, and where it wants frames.
const OUTGOING: u64 = DATA;
const INCOMING: u64 = DATA + 0x2_0000;
/// In a header: a frame in one chain.
const ONE_CHAIN: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// A wire that a test holds the other end of.
struct FakeWire {
    socket: UnixDatagram,
    told: Arc<Told>,
}

#[derive(Default)]
struct Told {
    offloads: Mutex<Vec<c_uint>>,
    is_gone: AtomicBool,
}

impl FakeWire {
    fn check(&self) -> io::Result<()> {
        if self.told.is_gone.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EBADFD));
        }
        Ok(())
    }
}

impl AsRawFd for FakeWire {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Wire for FakeWire {
    fn receive(&mut self, frame: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.recv(frame)
    }

    fn send(&mut self, frame: &[u8]) -> io::Result<usize> {
        self.check()?;
        self.socket.send(frame)
    }

    fn set_offloads(&mut self, offloads: c_uint) -> io::Result<()> {
        self.told.offloads.lock().unwrap().push(offloads);
        Ok(())
    }

    fn mtu(&self) -> u16 {
        MTU
    }
}

struct Bench {
    net: Net<FakeWire>,
    driver: FakeDriver,
    /// The wire's other end.
    host: UnixDatagram,
    told: Arc<Told>,
    interrupt: EventFd,
}

/// A device that is not up.
fn cold_bench() -> Bench {
    let (socket, host) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    host.set_nonblocking(true).unwrap();
    let told = Arc::new(Told::default());
    let wire = FakeWire {
        socket,
        told: told.clone(),
    };
    let interrupt = EventFd::new(libc::EFD_NONBLOCK).unwrap();
    let mac = "52:54:00:12:34:56".parse().unwrap();
    let net = Net::new(wire, mac, Arc::default(), ram(), interrupt.try_clone().unwrap()).unwrap();
    let driver = FakeDriver::new(net.transport().clone());
    Bench {
        net,
        driver,
        host,
        told,
        interrupt,
    }
}

fn bench_without(refused: u64) -> Bench {
    let mut bench = cold_bench();
    bench.driver.bring_up_without(refused);
    bench
}

fn bench() -> Bench {
    bench_without(0)
}

/// Bytes that tell where they are.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

impl Bench {
    fn offer(&mut self, queue: u32, first: u16, ranges: &[Range]) {
        self.driver.queue = queue;
        self.driver.offer_from(first, ranges);
    }

    /// Has a frame in one piece sent, behind `header`.
    fn send(&mut self, header: [u8; 12], frame: &[u8]) {
        self.driver.put(OUTGOING, &[header.as_slice(), frame].concat());
        let bytes = HEADER as u32 + frame.len() as u32;
        self.offer(TRANSMIT, 0, &[readable(OUTGOING, bytes)]);
        self.net.turn();
    }

    /// The next frame from the wire, header included.
    fn sent(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 1 << 17];
        let bytes = self.host.recv(&mut frame).ok()?;
        frame.truncate(bytes);
        Some(frame)
    }

    /// Puts a frame into the wire.
    fn arrive(&self, header: [u8; 12], frame: &[u8]) {
        self.host.send(&[header.as_slice(), frame].concat()).unwrap();
    }

    /// Offers `count` buffers of `bytes` bytes each, side by side.
    fn offer_buffers(&mut self, first: u16, count: u16, bytes: u32) {
        for index in first..first + count {
            let at = INCOMING + u64::from(index) * u64::from(bytes);
            self.offer(RECEIVE, index, &[writable(at, bytes)]);
        }
    }

    /// How many frames the driver was given back, and answers of the last.
    fn used(&mut self, queue: u32) -> (u16, u32) {
        self.driver.queue = queue;
        self.driver.used()
    }

    fn traffic(&self) -> Traffic {
        self.net.counters.read()
    }

    fn needs_reset(&self) -> bool {
        self.driver.read(VIRTIO_MMIO_STATUS) == LIVE | VIRTIO_CONFIG_S_NEEDS_RESET
    }
}

/// Header of a frame that is several packets of 1,448 bytes.
fn segmented() -> [u8; 12] {
    let (flags, kind) = (VIRTIO_NET_HDR_F_NEEDS_CSUM as u8, VIRTIO_NET_HDR_GSO_TCPV4 as u8);
    [flags, kind, 54, 0, 0xa8, 5, 34, 0, 16, 0, 1, 0]
}

#[test]
fn configuration_tells_address_and_mtu() {
    let Bench { driver, .. } = bench();
    let words = [0, 4, 8].map(|offset| driver.read(VIRTIO_MMIO_CONFIG + offset));
    assert_eq!(words, [0x1200_5452, 0x5634, u32::from(MTU) << 16]);
}

#[test]
fn frame_of_the_driver_reaches_the_wire() {
    let mut bench = bench();
    let frame = content(1514);
    bench.send(ONE_CHAIN, &frame);
    assert_eq!(bench.sent().unwrap(), [ONE_CHAIN.as_slice(), &frame].concat());
    assert_eq!(bench.used(TRANSMIT), (1, 0));
    assert_eq!((bench.traffic().sent, bench.traffic().sent_bytes), (1, 1514));
}

#[test]
fn layout_of_descriptors_does_not_matter() {
    let mut bench = bench();
    let frame = content(100);
    bench
        .driver
        .put(OUTGOING, &[ONE_CHAIN.as_slice(), &frame].concat());
    let cuts = [(0, 3), (3, 0), (3, 10), (13, 98), (111, 1)];
    let pieces = cuts.map(|(at, bytes)| readable(OUTGOING + at, bytes));
    bench.offer(TRANSMIT, 0, &pieces);
    bench.net.turn();
    assert_eq!(bench.sent().unwrap()[12..], frame);
}

#[test]
fn segments_go_both_ways_as_agreed() {
    let mut bench = bench();
    let frame = content(60_000);
    bench.send(segmented(), &frame);
    assert_eq!(bench.sent().unwrap(), [segmented().as_slice(), &frame].concat());
    bench.arrive(segmented(), &frame);
    bench.offer_buffers(0, 1, 65_562);
    bench.net.turn();
    assert_eq!(bench.used(RECEIVE), (1, 60_012));
    assert_eq!(
        bench.driver.get(INCOMING, 60_012),
        [segmented().as_slice(), &frame].concat()
    );
    let all = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    assert_eq!(*bench.told.offloads.lock().unwrap(), [all]);
}

#[test]
fn segments_that_were_not_agreed_upon_are_dropped() {
    let features = [VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_CSUM];
    let mut bench = bench_without(features.into_iter().map(|feature| 1 << feature).sum());
    bench.offer_buffers(0, 1, 65_562);
    bench.arrive(segmented(), &content(3000));
    bench.send(segmented(), &content(3000));
    assert_eq!(bench.sent(), None);
    assert_eq!((bench.used(RECEIVE), bench.used(TRANSMIT)), ((0, 0), (1, 0)));
    let traffic = bench.traffic();
    assert_eq!((traffic.dropped_sent, traffic.dropped_received), (1, 1));
    assert!(bench.told.offloads.lock().unwrap().is_empty());
    // The buffer is still the next one's.
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert_eq!(bench.used(RECEIVE), (1, 72));
}

#[test]
fn frame_for_the_driver_fills_as_many_buffers_as_it_takes() {
    let mut bench = bench();
    bench.offer_buffers(0, 4, 500);
    let frame = content(1400);
    bench.arrive(ONE_CHAIN, &frame);
    bench.net.turn();
    let mut header = ONE_CHAIN;
    header[10] = 3;
    assert_eq!(
        bench.driver.get(INCOMING, 1412),
        [header.as_slice(), &frame].concat()
    );
    bench.driver.queue = RECEIVE;
    let answers = [0, 1, 2].map(|number| bench.driver.answer(number));
    assert_eq!(
        (answers, bench.driver.used().0),
        ([(0, 500), (1, 500), (2, 412)], 3)
    );
    assert!(bench.interrupt.read().unwrap() > 0);
    assert_eq!(
        (bench.traffic().received, bench.traffic().received_bytes),
        (1, 1400)
    );
}

#[test]
fn count_of_buffers_is_found_in_pieces_of_one_byte() {
    let mut bench = bench();
    let header = (0..HEADER).map(|at| writable(INCOMING + 0x100 + at, 1));
    bench.offer(RECEIVE, 0, &header.collect::<Vec<_>>());
    bench.offer(RECEIVE, 20, &[writable(INCOMING + 0x200, 100)]);
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert_eq!(bench.driver.get(INCOMING + 0x100 + 10, 2), [2, 0]);
    assert_eq!(bench.used(RECEIVE), (2, 60));
}

#[test]
fn frame_waits_for_room_and_the_wire_with_it() {
    let mut bench = bench();
    bench.offer_buffers(0, 1, 100);
    for fill in 1..4 {
        bench.arrive(ONE_CHAIN, &[fill; 150]);
    }
    bench.net.turn();
    assert_eq!(
        (bench.used(RECEIVE).0, bench.net.incoming.waiting),
        (0, Some(162))
    );
    let stop = Stop::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let _ = bench.net.transport.notified().read();
    let start = std::time::Instant::now();
    bench.net.wait(&stop, Some(Duration::from_millis(20)));
    assert!(
        start.elapsed() >= Duration::from_millis(20),
        "the wire was looked at"
    );
    bench.offer_buffers(1, 3, 100);
    bench.driver.write(VIRTIO_MMIO_QUEUE_NOTIFY, RECEIVE);
    bench.net.wait(&stop, None);
    bench.net.turn();
    assert_eq!(
        (bench.used(RECEIVE).0, bench.net.incoming.waiting),
        (4, Some(162))
    );
    assert_eq!(bench.driver.get(INCOMING + 12, 150), [1; 150]);
    assert_eq!(bench.driver.get(INCOMING + 212, 150), [2; 150]);
    assert_eq!(bench.traffic().dropped_received, 0);
}

#[test]
fn frame_for_which_no_ring_has_room_is_dropped() {
    let mut bench = bench();
    bench.offer_buffers(0, QUEUE_SIZE, 12);
    bench.arrive(segmented(), &content(3000));
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert_eq!(
        (bench.traffic().dropped_received, bench.traffic().received),
        (1, 1)
    );
    assert_eq!(bench.used(RECEIVE).0, 6);
}

#[test]
fn driver_that_does_not_merge_loses_what_its_buffer_does_not_hold() {
    let mut bench = bench_without(1 << VIRTIO_NET_F_MRG_RXBUF);
    bench.offer_buffers(0, 2, 500);
    bench.arrive(ONE_CHAIN, &content(489));
    bench.arrive(ONE_CHAIN, &content(488));
    bench.net.turn();
    assert_eq!(
        (bench.traffic().dropped_received, bench.traffic().received),
        (1, 1)
    );
    assert_eq!(bench.used(RECEIVE), (1, 500));
    assert_eq!(bench.driver.get(INCOMING, 12), ONE_CHAIN);
}

#[test]
fn frames_that_are_longer_than_agreed_are_dropped_and_counted() {
    let mut bench = bench();
    bench.offer_buffers(0, 4, 65_562);
    bench.arrive(ONE_CHAIN, &content(1519));
    bench.arrive(segmented(), &content(FRAME_BYTES_MAX + 1));
    bench.arrive(ONE_CHAIN, &content(1518));
    bench.send(ONE_CHAIN, &content(1519));
    bench.send(segmented(), &content(FRAME_BYTES_MAX + 1));
    bench.send(ONE_CHAIN, &content(1518));
    assert_eq!(bench.sent().unwrap().len(), 1530);
    let traffic = bench.traffic();
    assert_eq!((traffic.dropped_sent, traffic.dropped_received), (2, 2));
    assert_eq!((traffic.sent, traffic.received), (1, 1));
}

#[test]
fn request_without_a_frame_or_outside_ram_is_dropped() {
    let mut bench = bench();
    let pieces = [
        [readable(OUTGOING, 11)],
        [readable(OUTGOING, 12 + 13)],
        [readable(RAM_BYTES as u64 - 50, 100)],
        [readable(u64::MAX - 5, 100)],
        [readable(OUTGOING, u32::MAX)],
        [writable(OUTGOING, 100)],
    ];
    for pieces in pieces {
        bench.offer(TRANSMIT, 0, &pieces);
        bench.net.turn();
    }
    assert_eq!((bench.used(TRANSMIT), bench.sent()), ((6, 0), None));
    assert_eq!(bench.traffic().dropped_sent, 6);
    assert!(!bench.needs_reset());
}

#[test]
fn buffer_without_room_for_a_header_needs_a_reset() {
    let mut bench = bench();
    bench.offer(RECEIVE, 0, &[writable(INCOMING, 11)]);
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert!(bench.needs_reset());
}

#[test]
fn buffer_outside_ram_needs_a_reset() {
    let mut bench = bench();
    bench.offer(RECEIVE, 0, &[writable(RAM_BYTES as u64 - 20, 100)]);
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert!(bench.needs_reset());
}

#[test]
fn chains_that_go_in_circles_need_a_reset() {
    for queue in [RECEIVE, TRANSMIT] {
        let mut bench = bench();
        bench.driver.queue = queue;
        bench
            .driver
            .write_descriptor(0, OUTGOING, 1, VRING_DESC_F_NEXT as u16, 0);
        bench.driver.offer_head(0);
        bench.arrive(ONE_CHAIN, &content(60));
        bench.net.turn();
        assert!(bench.needs_reset());
    }
}

#[test]
fn indirect_tables_are_bounded() {
    let mut bench = bench();
    let (table, indirect) = (DATA + 0x8000, VRING_DESC_F_INDIRECT as u16);
    bench.driver.queue = TRANSMIT;
    // A table that names itself, and one that is longer than a ring and goes in circles.
    bench.driver.put(table, &table.to_le_bytes());
    bench
        .driver
        .put(table + 8, &[16, 0, 0, 0, indirect as u8, 0, 0, 0]);
    bench.driver.write_descriptor(0, table, 16, indirect, 0);
    bench.driver.offer_head(0);
    bench.net.turn();
    assert!(bench.needs_reset());
    let mut bench = self::bench();
    bench.driver.queue = TRANSMIT;
    bench.driver.put(table, &OUTGOING.to_le_bytes());
    bench
        .driver
        .put(table + 8, &[1, 0, 0, 0, VRING_DESC_F_NEXT as u8, 0, 0, 0]);
    bench.driver.write_descriptor(0, table, 16 * 1024, indirect, 0);
    bench.driver.offer_head(0);
    bench.net.turn();
    assert!(bench.needs_reset());
}

#[test]
fn reset_while_a_frame_waits_gives_it_to_the_next_driver() {
    let mut bench = bench();
    bench.arrive(ONE_CHAIN, &content(60));
    bench.net.turn();
    assert!(bench.net.incoming.waiting.is_some());
    bench.driver.write(VIRTIO_MMIO_STATUS, 0);
    bench.net.turn();
    let mut driver = FakeDriver::new(bench.net.transport().clone());
    for table in [0x2000, 0x3000] {
        driver.put(table, &[0; 0x400]);
    }
    driver.bring_up();
    bench.driver = driver;
    bench.offer_buffers(0, 1, 100);
    bench.net.turn();
    assert_eq!(bench.used(RECEIVE), (1, 72));
}

#[test]
fn queue_that_is_taken_away_is_let_alone() {
    let mut bench = bench();
    bench.offer_buffers(0, 1, 100);
    bench.driver.write(VIRTIO_MMIO_QUEUE_SEL, RECEIVE);
    bench.driver.write(VIRTIO_MMIO_QUEUE_READY, 0);
    bench.arrive(ONE_CHAIN, &content(60));
    bench.send(ONE_CHAIN, &content(60));
    assert!(bench.sent().is_some());
    assert_eq!(bench.used(RECEIVE).0, 0);
    assert!(bench.net.incoming.waiting.is_some());
}

#[test]
fn wire_that_is_gone_is_not_looked_at_and_frames_for_it_are_dropped() {
    let mut bench = bench();
    bench.told.is_gone.store(true, Ordering::SeqCst);
    bench.arrive(ONE_CHAIN, &content(60));
    bench.send(ONE_CHAIN, &content(60));
    assert!(!bench.net.has_wire);
    assert_eq!((bench.used(TRANSMIT), bench.traffic().dropped_sent), ((1, 0), 1));
    let stop = Stop::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    let _ = bench.net.transport.notified().read();
    let start = std::time::Instant::now();
    bench.net.wait(&stop, Some(Duration::from_millis(20)));
    assert!(
        start.elapsed() >= Duration::from_millis(20),
        "the wire was looked at"
    );
}

#[test]
fn turn_is_bounded_and_says_that_there_is_more() {
    let mut bench = bench();
    bench.driver.put(OUTGOING, &[0; 100]);
    for _ in 0..QUEUE_SIZE {
        bench.offer(TRANSMIT, 0, &[readable(OUTGOING, 11)]);
    }
    assert!(bench.net.turn());
    assert!(!bench.net.turn());
    assert_eq!(bench.used(TRANSMIT).0, QUEUE_SIZE);
}

#[test]
fn thread_serves_until_the_stop() {
    let mut bench = bench();
    bench.offer_buffers(0, 1, 100);
    bench.arrive(ONE_CHAIN, &content(60));
    let stop = Arc::new(Stop::new(EventFd::new(libc::EFD_NONBLOCK).unwrap()));
    let (seen, net) = (stop.clone(), Box::new(bench.net));
    let thread = std::thread::spawn(move || net.run(&seen).is_none());
    bench.driver.queue = RECEIVE;
    while bench.driver.used().0 == 0 {
        std::thread::yield_now();
    }
    stop.request(VmExit::Killed);
    assert!(thread.join().unwrap());
}

/// A driver that resets the device while frames flow gets its memory back with the reset.
#[test]
fn memory_is_the_drivers_again_after_a_reset_in_mid_flight() {
    const FILL: [u8; 0x400] = [0xee; 0x400];
    let Bench {
        net,
        mut driver,
        host,
        ..
    } = cold_bench();
    let stop = Arc::new(Stop::new(EventFd::new(libc::EFD_NONBLOCK).unwrap()));
    let (seen, transport) = (stop.clone(), net.transport().clone());
    let thread = std::thread::spawn(move || Box::new(net).run(&seen).is_none());
    let frame = [ONE_CHAIN.as_slice(), &content(900)].concat();
    let rings = [0x2000, 0x3000, 0x6000, 0x7000];
    let mut delivered = 0;
    for round in 0..400 {
        rings.into_iter().for_each(|ring| driver.put(ring, &[0; 0x400]));
        driver = FakeDriver::new(transport.clone());
        driver.bring_up();
        driver.put(OUTGOING, &frame);
        for index in 0..8 {
            driver.queue = RECEIVE;
            driver.offer_from(index, &[writable(INCOMING + u64::from(index) * 0x80, 0x80)]);
            driver.queue = TRANSMIT;
            driver.offer_from(index, &[readable(OUTGOING, frame.len() as u32)]);
            // Its queue may be full.
            let _ = host.send(&frame);
            driver.write(VIRTIO_MMIO_QUEUE_NOTIFY, u32::from(index % 2));
        }
        for _ in 0..round % 7 {
            std::thread::yield_now();
        }
        driver.queue = RECEIVE;
        while round % 7 == 6 && driver.used().0 == 0 {
            std::thread::yield_now();
        }
        driver.write(VIRTIO_MMIO_STATUS, 0);
        delivered += u64::from(driver.used().0);
        let places = rings.into_iter().chain([INCOMING]);
        places.clone().for_each(|place| driver.put(place, &FILL));
        std::thread::yield_now();
        assert!(
            places
                .into_iter()
                .all(|place| driver.get(place, FILL.len()) == FILL)
        );
        while host.recv(&mut [0; 2000]).is_ok() {}
    }
    assert!(delivered > 0);
    stop.request(VmExit::Killed);
    assert!(thread.join().unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the driver cuts its buffers, frames arrive whole and in order.
    #[test]
    fn frames_arrive_as_they_were_sent(
        frames in prop::collection::vec(14usize..1518, 1..12),
        buffers in prop::collection::vec(prop::collection::vec(0u32..700, 1..4), 1..60),
    ) {
        let mut bench = bench();
        for (index, bytes) in frames.iter().enumerate() {
            bench.arrive(ONE_CHAIN, &vec![index as u8 + 1; *bytes]);
        }
        let mut at = INCOMING;
        let mut places = Vec::new();
        for (index, mut buffer) in buffers.into_iter().enumerate() {
            buffer[0] += HEADER as u32;
            let ranges: Vec<_> = buffer.iter().scan(at, |at, bytes| {
                let range = writable(*at, *bytes);
                *at += u64::from(*bytes);
                Some(range)
            }).collect();
            places.push(at);
            at += buffer.iter().map(|bytes| u64::from(*bytes)).sum::<u64>();
            // A descriptor of its own for each piece; a ring has enough for two in three.
            let first = (index as u16 * 2) % 120;
            bench.offer(RECEIVE, first, &ranges[..ranges.len().min(2)]);
            bench.net.turn();
        }
        let mut answer = 0;
        let used = bench.used(RECEIVE).0;
        for (index, bytes) in frames.iter().take(bench.traffic().received as usize).enumerate() {
            let count = u16::from_le_bytes(bench.driver.get(places[usize::from(answer)] + 10, 2).try_into().unwrap());
            let mut taken = Vec::new();
            for number in answer..answer + count {
                let (_, written) = bench.driver.answer(number);
                taken.extend(bench.driver.get(places[usize::from(number)], written as usize));
            }
            prop_assert_eq!(&taken[12..], vec![index as u8 + 1; *bytes]);
            answer += count;
        }
        prop_assert_eq!(answer, used);
        prop_assert_eq!(bench.traffic().dropped_received, 0);
    }

    /// Any descriptors in both queues, with frames on the wire: no panic, an end, and nothing but answers.
    #[test]
    fn any_table_of_descriptors_is_survived(
        tables in prop::collection::vec(prop::collection::vec(
            (prop_oneof![0u64..0x4_0000, any::<u64>()], prop_oneof![0u32..0x2000, any::<u32>()], 0u16..8, 0u16..20),
            1..16,
        ), 2),
        noise in prop::collection::vec(any::<u8>(), 0x200),
        heads in prop::collection::vec((0u32..2, 0u16..20), 1..12),
        frames in prop::collection::vec((any::<[u8; 12]>(), 0usize..3000), 0..6),
        refused: u64,
    ) {
        let mut bench = bench_without(refused & !(1 << 32));
        bench.driver.put(OUTGOING, &noise);
        for (queue, table) in (0..).zip(tables) {
            bench.driver.queue = queue;
            for (index, (address, bytes, flags, next)) in (0u16..).zip(table) {
                bench.driver.write_descriptor(index, address, bytes, flags, next);
            }
        }
        let offered = heads.len() as u64;
        let arrived = frames.len() as u64;
        for (header, bytes) in frames {
            bench.arrive(header, &content(bytes));
        }
        for (queue, head) in heads {
            bench.driver.queue = queue;
            bench.driver.offer_head(head);
        }
        let capacities = (bench.net.outgoing.capacity(), bench.net.incoming.answers.capacity());
        let turns = (0..20).take_while(|_| bench.net.turn()).count();
        prop_assert!(turns < 20);
        let traffic = bench.traffic();
        prop_assert!(traffic.sent + traffic.dropped_sent <= offered);
        prop_assert!(traffic.received + traffic.dropped_received <= arrived);
        prop_assert_eq!((bench.net.outgoing.capacity(), bench.net.incoming.answers.capacity()), capacities);
    }
}
