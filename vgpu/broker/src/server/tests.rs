use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fermi_spec::bar::Bar;
use fermi_spec::board::BAR0_BYTES;
use tempfile::TempDir;
use vfio_user_server::{ListenerError, SocketAccess};
use vgpu::VmConfig;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::*;
use crate::broker::Broker;
use crate::memory::RAM_MAPS_MAX;
use crate::testing::{FakeGpu, RAM_AT, TestCore, at, client_memory, setup, traces_of, vm_config};

mod descriptors;
mod doorbells;
mod intx;
mod seating;

const PAGE: u64 = 4096;
/// `VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER`
const CONNECT: u32 = 1 << 2 | 1 << 5;
const MSI: u32 = 1;
const CONFIG: u32 = 7;

fn socket(path: &Path, config: VmConfig) -> Result<VmSocket, StartError> {
    VmSocket::bind(path, &SocketAccess::default(), config)
}

struct Bench {
    directory: TempDir,
    gpu: FakeGpu,
    broker: Broker,
}

impl Bench {
    /// A broker with a socket for each name.
    fn new(core: TestCore, names: &[&str]) -> Self {
        Self::with(FakeGpu::default(), core, names)
    }

    fn with(gpu: FakeGpu, core: TestCore, names: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut setup = setup(core, &gpu, None);
        let socket = |name: &&str| socket(&directory.path().join(name), vm_config(name)).unwrap();
        setup.vms = names.iter().map(socket).collect();
        let broker = Broker::start(setup).unwrap();
        Self {
            directory,
            gpu,
            broker,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn client(&self, name: &str) -> vfio_user::Client {
        vfio_user::Client::new(&self.path(name)).unwrap()
    }

    fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(start.elapsed() < Duration::from_secs(10), "still not");
            std::thread::yield_now();
        }
    }

    fn attached(&self) -> usize {
        self.broker
            .snapshot()
            .vms
            .iter()
            .filter(|vm| vm.is_attached)
            .count()
    }
}

fn read(client: &mut vfio_user::Client, region: u32, offset: u64) -> u32 {
    let mut data = [0; 4];
    client.region_read(region, offset, &mut data).unwrap();
    u32::from_le_bytes(data)
}

/// A message with `body`, as a client would send it.
fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![7, 0];
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + body.len() as u32).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

fn read_message(region: u32, offset: u64, count: u32) -> Vec<u8> {
    let parts = [
        &offset.to_le_bytes()[..],
        &region.to_le_bytes(),
        &count.to_le_bytes(),
    ];
    message(9, 0, &parts.concat())
}

/// A client that has negotiated and says whatever the test wants.
fn raw_client(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&message(1, 0, b"\0\0\x01\0{}\0")).unwrap();
    let (_, error, _) = reply(&mut stream);
    assert_eq!(error, 0);
    stream
}

/// Command, error and body of the next reply.
fn reply(stream: &mut UnixStream) -> (u16, u32, Vec<u8>) {
    let mut header = [0; 16];
    stream.read_exact(&mut header).unwrap();
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let mut body = vec![0; word(4) as usize - 16];
    stream.read_exact(&mut body).unwrap();
    (u16::from_le_bytes([header[2], header[3]]), word(12), body)
}

/// Switches bus mastering and MSI on, as a guest's driver does.
fn enable_msi(client: &mut vfio_user::Client) {
    client.region_write(CONFIG, 4, &6u16.to_le_bytes()).unwrap();
    let mut capability = read(client, CONFIG, 0x34) & 0xff;
    while read(client, CONFIG, capability.into()) & 0xff != 5 {
        capability = read(client, CONFIG, capability.into()) >> 8 & 0xff;
    }
    client
        .region_write(CONFIG, u64::from(capability) + 2, &1u16.to_le_bytes())
        .unwrap();
}

#[test]
fn client_sees_the_board_and_its_bars() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    let sizes: Vec<_> = [0, 1, 2, 3, 6]
        .map(|region| client.region(region).map_or(0, |region| region.size))
        .into();
    assert_eq!(sizes, [BAR0_BYTES, 128 << 20, 0, 64 << 20, 0]);
    assert_eq!(client.get_irq_info(MSI).unwrap().count, 1);
    assert_eq!(read(&mut client, CONFIG, 0), 0x06c0_10de);
    // A BAR's size is probed by writing ones.
    client.region_write(CONFIG, 0x10, &[0xff; 4]).unwrap();
    assert_eq!(read(&mut client, CONFIG, 0x10), !(BAR0_BYTES as u32 - 1));
    // Reset brings the configuration back.
    client.reset().unwrap();
    assert_eq!(read(&mut client, CONFIG, 0x10), 0);
}

#[test]
fn accesses_reach_the_core_and_come_back() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    bench.gpu.card().registers.insert(0x104, 0xbeef);
    assert_eq!(read(&mut client, 0, at::ROUND_TRIP), 0xbeef);
    assert_eq!(read(&mut client, 0, at::POLL), 0);
    client.region_write(1, 0x1000, &[1; 9000]).unwrap();
    let mut data = vec![0; 9000];
    client.region_read(3, 0x2000, &mut data).unwrap();
    assert_eq!((data[1], data[4097], data[8999]), (1, 1, (8999 - 8192) as u8));
    let accesses = bench.broker.snapshot().vms[0].accesses;
    assert_eq!((accesses.bar1_writes, accesses.bar3_reads), (3, 3));
}

#[test]
fn client_ram_is_mapped_until_it_is_unmapped() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    let (file, _) = client_memory("socketram", 8 * PAGE);
    file.write_at(&[4, 3, 2, 1], 4 * PAGE).unwrap();
    client
        .dma_map(4 * PAGE, RAM_AT, 2 * PAGE, file.as_raw_fd())
        .unwrap();
    client.dma_map(0, 0, PAGE, file.as_raw_fd()).unwrap();
    assert_eq!(read(&mut client, 0, at::RAM), 0x0102_0304);
    client.dma_unmap(RAM_AT, 2 * PAGE).unwrap();
    assert_eq!(read(&mut client, 0, at::RAM), u32::MAX);
    assert_eq!(bench.gpu.card().maps.len(), 1);
    drop((client, file));
    bench.wait_until(|bench| bench.attached() == 0);
    bench.wait_until(|_| traces_of("socketram").is_empty());
    assert!(bench.gpu.card().maps.is_empty());
}

/// Mappings of this process that show a file of this name.
fn mappings_of(name: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name)).count()
}

#[test]
fn pages_of_one_file_share_its_mapping() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    let pages = RAM_MAPS_MAX as u64;
    let (file, _) = client_memory("pagebypage", pages * PAGE);
    let gpa = |page: u64| RAM_AT + 2 * page * PAGE;
    let mut map = |page: u64, of_file: u64| client.dma_map(of_file * PAGE, gpa(page), PAGE, file.as_raw_fd());
    // The last page of the file comes first.
    (0..pages).for_each(|page| map(page, pages - 1 - page).unwrap());
    // One more is refused, which this client does not look at.
    map(pages, 0).unwrap();
    assert_eq!(
        (mappings_of("pagebypage"), bench.gpu.card().maps.len()),
        (1, RAM_MAPS_MAX)
    );
    file.write_at(&[4, 3, 2, 1], (pages - 1) * PAGE).unwrap();
    assert_eq!(read(&mut client, 0, at::RAM), 0x0102_0304);
    // A file that has grown is mapped anew, beside the mapping that others still need.
    file.set_len((pages + 1) * PAGE).unwrap();
    client.dma_unmap(gpa(0), PAGE).unwrap();
    file.write_at(&[8, 7, 6, 5], pages * PAGE).unwrap();
    client
        .dma_map(pages * PAGE, RAM_AT, PAGE, file.as_raw_fd())
        .unwrap();
    assert_eq!(read(&mut client, 0, at::RAM), 0x0506_0708);
    assert_eq!(mappings_of("pagebypage"), 2);
    drop((client, file));
    bench.wait_until(|bench| bench.attached() == 0);
    bench.wait_until(|_| traces_of("pagebypage").is_empty());
}

#[test]
fn interrupt_waits_for_msi_and_bus_master() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut client = bench.client("a");
    let interrupt = EventFd::new(EFD_NONBLOCK).unwrap();
    client
        .set_irqs(MSI, CONNECT, 0, 1, &[interrupt.as_raw_fd()])
        .unwrap();
    read(&mut client, 0, at::INTERRUPT);
    assert!(interrupt.read().is_err(), "MSI is off");
    enable_msi(&mut client);
    // The one that was held, then a new one.
    bench.wait_until(|_| interrupt.read().is_ok());
    read(&mut client, 0, at::INTERRUPT);
    bench.wait_until(|_| interrupt.read().is_ok());
}

#[test]
fn foreign_interrupt_descriptor_that_blocks_delays_nobody_else() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let (mut hostile, mut friendly) = (bench.client("a"), bench.client("b"));
    // A full counter in blocking mode: the next write waits for a read that never comes.
    let full = EventFd::new(0).unwrap();
    full.write(u64::MAX - 1).unwrap();
    hostile.set_irqs(MSI, CONNECT, 0, 1, &[full.as_raw_fd()]).unwrap();
    enable_msi(&mut hostile);
    let start = Instant::now();
    (0..10).for_each(|_| assert_eq!(read(&mut hostile, 0, at::INTERRUPT), 0));
    (0..100).for_each(|_| assert_eq!(read(&mut friendly, 0, 0), 0x0302_0100));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn busy_path_is_refused_and_left_alone() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let error = socket(&bench.path("a"), vm_config("x")).unwrap_err();
    let StartError::Listen {
        name,
        source: ListenerError::Busy { .. },
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(name, "x");
    assert_eq!(read(&mut bench.client("a"), 0, 0), 0x0302_0100);
}

#[test]
fn stopped_broker_leaves_no_socket() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let _client = bench.client("a");
    let Bench {
        directory, broker, ..
    } = bench;
    drop(broker);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn contradicting_settings_of_a_socket_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let config = VmConfig {
        guest_vram: 5,
        ..vm_config("odd")
    };
    let error = socket(&directory.path().join("odd"), config)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("vm odd: guest_vram"), "{error}");
}

#[test]
fn denied_vm_is_hung_up_on_and_may_try_again() {
    let bench = Bench::new(TestCore::denying("a"), &["a", "b"]);
    for _ in 0..3 {
        let mut stream = UnixStream::connect(bench.path("a")).unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0, "hung up on");
    }
    assert_eq!(read(&mut bench.client("b"), 0, 0), 0x0302_0100);
}

#[test]
fn second_client_is_hung_up_on() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut first = bench.client("a");
    let mut second = UnixStream::connect(bench.path("a")).unwrap();
    assert_eq!(second.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(read(&mut first, 0, 0), 0x0302_0100);
}

#[test]
fn next_client_waits_until_nothing_of_the_last_is_left() {
    let bench = Bench::new(TestCore::keeping_detached(), &["a", "b"]);
    let mut other = bench.client("b");
    drop(raw_client(&bench.path("a")));
    let mut next = UnixStream::connect(bench.path("a")).unwrap();
    next.write_all(&message(1, 0, b"\0\0\x01\0{}\0")).unwrap();
    // The loop has had its turns, with the next client in its queue.
    (0..20).for_each(|_| assert_eq!(read(&mut other, 0, 0), 0x0302_0100));
    next.set_nonblocking(true).unwrap();
    assert!(next.read(&mut [0; 1]).is_err(), "not served yet");
    assert_eq!(bench.attached(), 2);
    other.region_write(0, at::LET_GO, &[0; 4]).unwrap();
    next.set_nonblocking(false).unwrap();
    assert_eq!(reply(&mut next).0, 1);
}

#[test]
fn client_gone_within_a_request_leaves_and_harms_nobody() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let mut other = bench.client("b");
    let mut stream = raw_client(&bench.path("a"));
    stream.write_all(&read_message(0, at::HELD, 4)).unwrap();
    bench.wait_until(|bench| {
        bench
            .broker
            .snapshot()
            .vms
            .iter()
            .any(|vm| vm.accesses.bar0_reads == 1)
    });
    drop(stream);
    bench.wait_until(|bench| bench.attached() == 1);
    // The late answer finds nobody.
    other.region_write(0, at::RELEASE, &[0; 4]).unwrap();
    assert_eq!(read(&mut other, 0, 0), 0x0302_0100);
    assert_eq!(read(&mut bench.client("a"), 0, 4), 0x0706_0504);
}

#[test]
fn client_cut_off_at_any_byte_leaves_room_for_the_next() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let talk = [
        message(1, 0, b"\0\0\x01\0{}\0"),
        read_message(0, 0, 4),
        message(13, 0, &[]),
    ]
    .concat();
    for length in 0..talk.len() {
        let mut stream = UnixStream::connect(bench.path("a")).unwrap();
        stream.write_all(&talk[..length]).unwrap();
        drop(stream);
    }
    bench.wait_until(|bench| bench.attached() == 0);
    assert_eq!(read(&mut bench.client("a"), 0, 0), 0x0302_0100);
}

#[test]
fn garbage_costs_the_session_of_its_sender_only() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let mut friendly = bench.client("b");
    let garbage: [&[u8]; 5] = [
        &[0xff; 64],
        &[0; 64],
        b"GET / HTTP/1.1\r\n\r\n",
        &[1; 16],
        &[9; 100_000],
    ];
    for bytes in garbage {
        let mut stream = UnixStream::connect(bench.path("a")).unwrap();
        // The broker may hang up before it has all of it.
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        let start = Instant::now();
        assert_eq!(read(&mut friendly, 0, 0), 0x0302_0100);
        assert!(start.elapsed() < Duration::from_secs(1));
    }
    assert_eq!(
        bench
            .broker
            .snapshot()
            .vms
            .iter()
            .filter(|vm| vm.is_attached)
            .count(),
        1
    );
}

#[test]
fn client_that_never_reads_is_held_back_and_others_go_on() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let mut friendly = bench.client("b");
    let mut deaf = raw_client(&bench.path("a"));
    deaf.set_nonblocking(true).unwrap();
    // As much as the broker takes; it stops when its replies pile up.
    let ask = read_message(1, 0, 64 << 10);
    let start = Instant::now();
    let mut sent = 0usize;
    let mut refused = 0;
    while refused < 50 {
        match deaf.write(&ask) {
            Ok(bytes) => (sent, refused) = (sent + bytes, 0),
            Err(_) => refused += 1,
        }
        assert_eq!(read(&mut friendly, 0, 0), 0x0302_0100);
        assert!(start.elapsed() < Duration::from_secs(20), "{sent} bytes taken");
    }
    let asked = sent / ask.len();
    let done = bench.broker.snapshot().vms[1].accesses.bar1_reads;
    assert!(
        done < 16 * asked as u64,
        "{done} of {asked} requests' pieces were done for a deaf client"
    );
    drop(deaf);
    bench.wait_until(|bench| bench.attached() == 1);
}

#[test]
fn refused_map_and_unmap_are_told_as_errors() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let mut stream = raw_client(&bench.path("a"));
    // An unmap of what was never mapped.
    let unmap = [
        24u32.to_le_bytes().to_vec(),
        vec![0; 4],
        RAM_AT.to_le_bytes().into(),
        PAGE.to_le_bytes().into(),
    ];
    stream.write_all(&message(3, 0, &unmap.concat())).unwrap();
    let (command, error, _) = reply(&mut stream);
    assert_eq!((command, error as i32), (3, libc::ENOENT));
    // A map without a file exists and cannot be reached.
    let map = [
        32u32.to_le_bytes().to_vec(),
        3u32.to_le_bytes().into(),
        vec![0; 8],
        RAM_AT.to_le_bytes().into(),
        PAGE.to_le_bytes().into(),
    ];
    stream.write_all(&message(2, 0, &map.concat())).unwrap();
    assert_eq!(reply(&mut stream).1, 0);
    stream.write_all(&read_message(0, at::RAM, 4)).unwrap();
    assert_eq!(reply(&mut stream).2[16..], [0xff; 4]);
    stream.write_all(&message(3, 0, &unmap.concat())).unwrap();
    assert_eq!(reply(&mut stream).1, 0);
    assert!(bench.gpu.card().maps.is_empty());
}

#[test]
fn truncated_ram_of_a_socket_client_ends_its_session() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let (mut hostile, mut friendly) = (bench.client("a"), bench.client("b"));
    let (file, _) = client_memory("ram", 16 * PAGE);
    hostile.dma_map(0, RAM_AT, 16 * PAGE, file.as_raw_fd()).unwrap();
    file.set_len(0).unwrap();
    let mut data = [0; 4];
    while hostile.region_read(0, at::RAM, &mut data).is_ok() {}
    bench.wait_until(|bench| bench.attached() == 1);
    assert_eq!(read(&mut friendly, 0, 0), 0x0302_0100);
    assert_eq!(read(&mut bench.client("a"), 0, 0), 0x0302_0100);
}

#[test]
fn lost_card_hangs_up_on_all_and_removes_the_sockets() {
    let bench = Bench::new(TestCore::default(), &["a", "b"]);
    let (mut a, mut b) = (raw_client(&bench.path("a")), raw_client(&bench.path("b")));
    bench.gpu.card().is_lost = true;
    a.write_all(&read_message(0, at::ROUND_TRIP, 4)).unwrap();
    for stream in [&mut a, &mut b] {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(bench.broker.wait_ended(Duration::from_secs(5)).is_some());
    bench.wait_until(|bench| std::fs::read_dir(bench.directory.path()).unwrap().count() == 0);
}

#[test]
fn local_and_socket_vms_share_one_card() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let link = bench.broker.attach(vm_config("local")).unwrap();
    let mut client = bench.client("a");
    std::thread::scope(|scope| {
        let held = scope.spawn(|| read(&mut client, 0, at::HELD));
        while !held.is_finished() {
            link.write(Bar::Bar0, at::RELEASE, &[0; 4]).unwrap();
        }
        assert_eq!(held.join().unwrap(), 0x5a5a_5a5a);
    });
}
