//! A disk as its driver sees it, and what a hostile driver gets.

use std::io::Write as _;
use std::path::Path;

use proptest::prelude::*;
use virtio_bindings::virtio_blk::*;
use virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_STATUS};

use super::*;
use crate::virtio::QUEUE_SIZE;
use crate::virtio::fake_driver::{DATA, FakeDriver, LIVE, RAM_BYTES, Range, ram, readable, writable};

const SECTORS: u64 = 8;
const HEADER: u64 = DATA;
const STATUS: u64 = DATA + 0x100;
const BUFFER: u64 = DATA + 0x1000;
/// Value of a status byte before the device writes it.
const UNANSWERED: u8 = 0xaa;

struct Bench {
    disk: Disk,
    driver: FakeDriver,
    file: tempfile::NamedTempFile,
}

/// Each byte tells its sector.
fn content() -> Vec<u8> {
    (0..SECTORS * SECTOR_BYTES)
        .map(|at| (at / SECTOR_BYTES) as u8 + 1)
        .collect()
}

fn bench_with(is_read_only: bool) -> Bench {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&content()).unwrap();
    let image = DiskImage::open(file.path(), is_read_only).unwrap();
    let disk = Disk::new(image, ram(), EventFd::new(libc::EFD_NONBLOCK).unwrap()).unwrap();
    let mut driver = FakeDriver::new(disk.transport().clone());
    driver.bring_up();
    Bench { disk, driver, file }
}

fn bench() -> Bench {
    bench_with(false)
}

impl Bench {
    fn put_header(&self, kind: u32, sector: u64) {
        self.driver.put(HEADER, &kind.to_le_bytes());
        self.driver.put(HEADER + 4, &[0; 4]);
        self.driver.put(HEADER + 8, &sector.to_le_bytes());
        self.driver.put(STATUS, &[UNANSWERED]);
    }

    /// Has a request of these pieces of data served; its status and what it says was written.
    fn request(&mut self, kind: u32, sector: u64, data: &[Range]) -> (u32, u32) {
        self.put_header(kind, sector);
        let mut ranges = vec![readable(HEADER, 16)];
        ranges.extend(data);
        ranges.push(writable(STATUS, 1));
        self.offer(&ranges)
    }

    fn offer(&mut self, ranges: &[Range]) -> (u32, u32) {
        self.driver.offer(ranges);
        while self.disk.serve_next() == Served::One {}
        (self.driver.get(STATUS, 1)[0].into(), self.driver.used().1)
    }

    fn file(&self) -> Vec<u8> {
        std::fs::read(self.file.path()).unwrap()
    }

    fn needs_reset(&self) -> bool {
        self.driver.read(VIRTIO_MMIO_STATUS) == LIVE | VIRTIO_CONFIG_S_NEEDS_RESET
    }
}

#[test]
fn configuration_tells_size_and_limits() {
    let Bench { driver, .. } = bench();
    let words = [0, 4, 8, 12].map(|offset| driver.read(VIRTIO_MMIO_CONFIG + offset));
    assert_eq!(words, [SECTORS as u32, 0, 64 << 10, u32::from(QUEUE_SIZE) - 2]);
}

#[test]
fn sectors_are_read_into_all_pieces() {
    let mut bench = bench();
    let pieces = [writable(BUFFER, 512), writable(BUFFER + 0x1000, 1024)];
    assert_eq!(
        bench.request(VIRTIO_BLK_T_IN, 2, &pieces),
        (VIRTIO_BLK_S_OK, 1537)
    );
    assert_eq!(
        bench.driver.get(BUFFER, 513),
        [[3; 512].as_slice(), &[0]].concat()
    );
    assert_eq!(
        bench.driver.get(BUFFER + 0x1000, 1024),
        [[4; 512], [5; 512]].concat()
    );
}

#[test]
fn written_sectors_are_in_the_image_and_nothing_else_is() {
    let mut bench = bench();
    bench.driver.put(BUFFER, &[0x77; 1024]);
    let pieces = [readable(BUFFER, 100), readable(BUFFER, 924)];
    assert_eq!(bench.request(VIRTIO_BLK_T_OUT, 6, &pieces), (VIRTIO_BLK_S_OK, 1));
    let mut expected = content();
    expected[6 * 512..].fill(0x77);
    assert_eq!(bench.file(), expected);
}

#[test]
fn layout_of_descriptors_does_not_matter() {
    let mut bench = bench();
    bench.put_header(VIRTIO_BLK_T_OUT, 1);
    bench.driver.put(HEADER + 16, &[9; 512]);
    let status = bench.offer(&[
        readable(HEADER, 3),
        readable(0, 0),
        readable(HEADER + 3, 16 - 3 + 512),
        writable(STATUS, 1),
    ]);
    assert_eq!(status, (VIRTIO_BLK_S_OK, 1));
    assert_eq!(bench.file()[512..1024], [9; 512]);
    bench.put_header(VIRTIO_BLK_T_IN, 1);
    let status = bench.offer(&[readable(HEADER, 16), writable(STATUS - 512, 513)]);
    assert_eq!(status, (VIRTIO_BLK_S_OK, 513));
    assert_eq!(bench.driver.get(STATUS - 512, 512), [9; 512]);
}

#[test]
fn flush_and_identity_are_answered() {
    let mut bench = bench();
    assert_eq!(bench.request(VIRTIO_BLK_T_FLUSH, 0, &[]), (VIRTIO_BLK_S_OK, 1));
    let asked = [writable(BUFFER, 20)];
    assert_eq!(
        bench.request(VIRTIO_BLK_T_GET_ID, 0, &asked),
        (VIRTIO_BLK_S_OK, 21)
    );
    assert!(bench.driver.get(BUFFER, 20).starts_with(b"vramd-disk\0"));
}

#[test]
fn unknown_request_is_unsupported() {
    let mut bench = bench();
    assert_eq!(
        bench.request(VIRTIO_BLK_T_DISCARD, 0, &[]),
        (VIRTIO_BLK_S_UNSUPP, 1)
    );
}

#[test]
fn request_of_wrong_size_or_place_fails_and_changes_nothing() {
    let mut bench = bench();
    let failed = VIRTIO_BLK_S_IOERR;
    let mut status = |kind, sector, data: &[Range]| bench.request(kind, sector, data).0;
    assert_eq!(status(VIRTIO_BLK_T_OUT, 0, &[readable(BUFFER, 511)]), failed);
    assert_eq!(
        status(VIRTIO_BLK_T_OUT, SECTORS, &[readable(BUFFER, 512)]),
        failed
    );
    assert_eq!(
        status(VIRTIO_BLK_T_OUT, u64::MAX, &[readable(BUFFER, 512)]),
        failed
    );
    assert_eq!(
        status(VIRTIO_BLK_T_OUT, SECTORS - 1, &[readable(BUFFER, 1024)]),
        failed
    );
    assert_eq!(status(VIRTIO_BLK_T_OUT, 0, &[writable(BUFFER, 512)]), failed);
    assert_eq!(status(VIRTIO_BLK_T_IN, 0, &[readable(BUFFER, 512)]), failed);
    assert_eq!(status(VIRTIO_BLK_T_IN, 0, &[writable(BUFFER, 513)]), failed);
    assert_eq!(
        status(VIRTIO_BLK_T_IN, 0, &[writable(RAM_BYTES as u64, 512)]),
        failed
    );
    assert_eq!(
        status(VIRTIO_BLK_T_OUT, 0, &[readable(u64::MAX - 5, 512)]),
        failed
    );
    assert_eq!(status(VIRTIO_BLK_T_GET_ID, 0, &[writable(BUFFER, 19)]), failed);
    assert_eq!(status(VIRTIO_BLK_T_FLUSH, 0, &[writable(BUFFER, 1)]), failed);
    assert_eq!(bench.file(), content());
    assert!(!bench.needs_reset());
}

#[test]
fn header_that_is_cut_off_fails() {
    let mut bench = bench();
    bench.put_header(VIRTIO_BLK_T_IN, 0);
    let answer = bench.offer(&[readable(HEADER, 15), writable(STATUS, 1)]);
    assert_eq!(answer, (VIRTIO_BLK_S_IOERR, 1));
}

#[test]
fn write_to_a_read_only_disk_fails() {
    let mut bench = bench_with(true);
    let data = [readable(BUFFER, 512)];
    assert_eq!(bench.request(VIRTIO_BLK_T_OUT, 0, &data).0, VIRTIO_BLK_S_IOERR);
    assert_eq!(bench.file(), content());
}

#[test]
fn image_that_was_cut_off_meanwhile_fails() {
    let mut bench = bench();
    bench.file.as_file().set_len(512).unwrap();
    assert_eq!(
        bench.request(VIRTIO_BLK_T_IN, 0, &[writable(BUFFER, 512)]).0,
        VIRTIO_BLK_S_OK
    );
    assert_eq!(
        bench.request(VIRTIO_BLK_T_IN, 1, &[writable(BUFFER, 512)]),
        (VIRTIO_BLK_S_IOERR, 0)
    );
}

#[test]
fn chain_without_room_for_a_status_needs_a_reset() {
    let mut bench = bench();
    bench.put_header(VIRTIO_BLK_T_FLUSH, 0);
    bench.offer(&[readable(HEADER, 16)]);
    assert!(bench.needs_reset());
}

#[test]
fn chain_that_goes_in_circles_needs_a_reset() {
    let mut bench = bench();
    bench.driver.write_descriptor(0, HEADER, 16, 1, 0);
    bench.driver.offer_head(0);
    assert_eq!(bench.disk.serve_next(), Served::Nothing);
    assert!(bench.needs_reset());
}

#[test]
fn readable_piece_after_a_writable_one_needs_a_reset() {
    let mut bench = bench();
    bench.put_header(VIRTIO_BLK_T_FLUSH, 0);
    bench.offer(&[writable(STATUS, 1), readable(HEADER, 16), writable(STATUS, 1)]);
    assert!(bench.needs_reset());
}

#[test]
fn thread_serves_until_the_stop() {
    let Bench { disk, driver, .. } = bench();
    let mut driver = driver;
    driver.put(HEADER, &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    driver.offer(&[readable(HEADER, 16), writable(STATUS, 1)]);
    let stop = Arc::new(Stop::new(EventFd::new(libc::EFD_NONBLOCK).unwrap()));
    let seen = stop.clone();
    let thread = std::thread::spawn(move || Box::new(disk).run(&seen).is_none());
    driver.transport.notified().write(1).unwrap();
    while driver.used().0 == 0 {
        std::thread::yield_now();
    }
    stop.request(VmExit::Killed);
    assert!(thread.join().unwrap());
}

/// A slow and obvious disk: what a request does to it, and its status.
fn expected_write(disk: &mut [u8], sector: u64, data: &[u8]) -> u32 {
    let start = u128::from(sector) * 512;
    let end = start + data.len() as u128;
    if !data.len().is_multiple_of(512) || end > disk.len() as u128 {
        return VIRTIO_BLK_S_IOERR;
    }
    disk[start as usize..end as usize].copy_from_slice(data);
    VIRTIO_BLK_S_OK
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn writes_do_what_the_obvious_disk_does(
        requests in prop::collection::vec((0u64..10, prop::collection::vec(0u32..5, 1..4), -1i32..2, any::<u8>()), 1..12),
    ) {
        let (mut bench, mut disk) = (bench(), content());
        for (sector, sectors, off_by, fill) in requests {
            let bytes = sectors.iter().map(|count| count * 512);
            let mut sizes: Vec<u32> = bytes.collect();
            sizes[0] = sizes[0].saturating_add_signed(off_by);
            let data = vec![fill; sizes.iter().sum::<u32>() as usize];
            bench.driver.put(BUFFER, &data);
            let mut at = BUFFER;
            let mut pieces = Vec::new();
            for size in sizes {
                pieces.push(readable(at, size));
                at += u64::from(size);
            }
            let (status, _) = bench.request(VIRTIO_BLK_T_OUT, sector, &pieces);
            prop_assert_eq!(status, expected_write(&mut disk, sector, &data));
            prop_assert_eq!(bench.file(), disk.clone());
        }
    }

    /// Any descriptors at all: no panic, an image of the same size, and memory outside what was named untouched.
    #[test]
    fn any_table_of_descriptors_is_survived(
        table in prop::collection::vec(
            (prop_oneof![0u64..0x4_0000, any::<u64>()], prop_oneof![0u32..0x2000, any::<u32>()], 0u16..8, 0u16..20),
            1..16,
        ),
        header in prop::collection::vec(any::<u8>(), 16),
        kind in 0u8..16,
        heads in prop::collection::vec(0u16..20, 1..8),
    ) {
        let mut bench = bench();
        bench.driver.put(HEADER, &header);
        bench.driver.put(HEADER, &[kind, 0, 0, 0]);
        for (index, (address, bytes, flags, next)) in (0u16..).zip(table) {
            bench.driver.write_descriptor(index, address, bytes, flags, next);
        }
        let offered = heads.len();
        for head in heads {
            bench.driver.offer_head(head);
        }
        let served = (0..=offered).take_while(|_| bench.disk.serve_next() == Served::One).count();
        prop_assert!(served <= offered);
        prop_assert_eq!(bench.file().len(), content().len());
    }
}

#[test]
fn missing_image_is_named() {
    let error = DiskImage::open(Path::new("/nowhere/disk.img"), false).unwrap_err();
    assert_eq!(error.to_string(), "cannot open disk image /nowhere/disk.img");
}
