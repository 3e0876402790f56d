//! Against the `vfio_user` crate's server, so that both ends are not ours, and against servers that misbehave.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use vfio_bindings::bindings::vfio::vfio_region_info;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use super::*;
use vmm_sys_util::eventfd::EventFd;

use crate::Errno;
use crate::bounds::DATA_BYTES_MAX;
use crate::client::Client;
use crate::function::{FunctionInfo, MappableRegion, PciFunction, RegionInfo};
use crate::irq::IrqChange;
use crate::message::{DMA_WRITE, FLAG_ERROR, FLAG_NO_REPLY, FLAG_REPLY, Header};
use crate::serve::serve_client;
use crate::testing::gpu_like;

/// Requests that the crate's server received.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Write {
        region: u32,
        offset: u64,
        data: Vec<u8>,
    },
    Map {
        offset: u64,
        address: u64,
        size: u64,
        has_file: bool,
    },
    Unmap {
        address: u64,
        size: u64,
    },
    Irqs {
        index: u32,
        fds: usize,
    },
    Reset,
}

struct Backend(Sender<Asked>);

impl Backend {
    fn note(&self, asked: Asked) -> io::Result<()> {
        self.0.send(asked).map_err(io::Error::other)
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        data.fill(region as u8 + offset as u8);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Asked::Write {
            region,
            offset,
            data: data.to_vec(),
        })
    }

    fn dma_map(
        &mut self,
        _: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        file: Option<File>,
    ) -> io::Result<()> {
        self.note(Asked::Map {
            offset,
            address,
            size,
            has_file: file.is_some(),
        })
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.note(Asked::Unmap { address, size })
    }

    fn reset(&mut self) -> io::Result<()> {
        self.note(Asked::Reset)
    }

    fn set_irqs(&mut self, index: u32, _: u32, _: u32, _: u32, fds: Vec<File>) -> io::Result<()> {
        self.note(Asked::Irqs {
            index,
            fds: fds.len(),
        })
    }
}

fn region(index: u32) -> ServerRegion {
    let sizes = [32 << 20, 128 << 20, 0, 64 << 20, 0, 0, 0, 4096, 0];
    let region_info = vfio_region_info {
        argsz: size_of::<vfio_region_info>() as u32,
        index,
        size: sizes[index as usize],
        ..Default::default()
    };
    ServerRegion {
        region_info,
        sparse_areas: Vec::new(),
        mmap_fd: None,
    }
}

#[test]
fn foreign_server_understands_every_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vgpu.sock");
    let irqs = (0..5)
        .map(|index| IrqInfo {
            index,
            flags: 1,
            count: 1,
        })
        .collect();
    let server = Server::new(&path, true, irqs, (0..9).map(region).collect()).unwrap();
    let (asked, inbox) = channel();
    let serving = thread::spawn(move || server.run(&mut Backend(asked)));

    let function = RemoteFunction::connect(&path, ANSWER_WAIT).unwrap();
    assert_eq!(
        [
            Region::Bar0,
            Region::Bar1,
            Region::Bar3,
            Region::Config,
            Region::Vga
        ]
        .map(|region| function.region_bytes(region)),
        [32 << 20, 128 << 20, 64 << 20, 4096, 0]
    );
    let mut data = [0; 8];
    function.read(Region::Bar1, 0x40, &mut data).unwrap();
    assert_eq!(data, [0x41; 8]);
    function.write(Region::Bar0, 0x140, &[1, 0, 0, 0]).unwrap();
    let file = tempfile::tempfile().unwrap();
    function.dma_map(0x1000, 0x2000, &file, 0x3000, true).unwrap();
    function.dma_unmap(0x1000, 0x2000).unwrap();
    function
        .connect_irq(IrqIndex::Msi, &EventFd::new(0).unwrap())
        .unwrap();
    function.reset().unwrap();
    function.close();
    let _ = serving.join().unwrap();

    let expected = [
        Asked::Write {
            region: 0,
            offset: 0x140,
            data: vec![1, 0, 0, 0],
        },
        Asked::Map {
            offset: 0x3000,
            address: 0x1000,
            size: 0x2000,
            has_file: true,
        },
        Asked::Unmap {
            address: 0x1000,
            size: 0x2000,
        },
        Asked::Irqs { index: 1, fds: 1 },
        Asked::Reset,
    ];
    assert_eq!(inbox.iter().collect::<Vec<_>>(), expected);
}

/// Answers each request with what `answer` makes of the header and its number; `None` hangs up.
fn serve(answer: impl Fn(usize, Header) -> Option<Vec<u8>> + Send + 'static) -> (UnixStream, JoinHandle<()>) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        for number in 0.. {
            let mut header = [0; size_of::<Header>()];
            if theirs.read_exact(&mut header).is_err() {
                return;
            }
            let header = Header::read_from_bytes(&header).unwrap();
            let mut body = vec![0; header.message_bytes as usize - size_of::<Header>()];
            theirs.read_exact(&mut body).unwrap();
            match answer(number, header) {
                Some(reply) => theirs.write_all(&reply).unwrap(),
                None => return,
            }
        }
    });
    (ours, serving)
}

fn reply(request: Header, flags: u32, error: u32, body: &[u8]) -> Vec<u8> {
    let message_bytes = (size_of::<Header>() + body.len()) as u32;
    let header = Header {
        message_bytes,
        flags,
        error,
        ..request
    };
    [header.as_bytes(), body].concat()
}

/// A well-behaved start: version, a PCI device without regions.
fn greet(number: usize, request: Header) -> Option<Vec<u8>> {
    let info = [16u32, DEVICE_IS_PCI, 0, 0].map(u32::to_le_bytes).concat();
    match number {
        0 => Some(reply(request, FLAG_REPLY, 0, b"\0\0\x01\0{}\0")),
        1 => Some(reply(request, FLAG_REPLY, 0, &info)),
        _ => None,
    }
}

/// Connects, then has the first load answered by `answer`.
fn load_answered_by(answer: fn(Header) -> Option<Vec<u8>>) -> (RemoteFunction, Result<(), RemoteError>) {
    let (stream, _serving) = serve(move |number, request| greet(number, request).or_else(|| answer(request)));
    let function = RemoteFunction::over(stream, Duration::from_millis(300)).unwrap();
    let outcome = function.read(Region::Bar0, 0, &mut [0; 4]);
    (function, outcome)
}

fn is_down(function: &RemoteFunction) -> bool {
    matches!(
        function.read(Region::Bar0, 0, &mut [0; 4]),
        Err(RemoteError::Down)
    )
}

#[test]
fn error_reply_refuses_and_keeps_the_link() {
    let (function, outcome) =
        load_answered_by(|request| Some(reply(request, FLAG_REPLY | FLAG_ERROR, 22, &[])));
    assert!(matches!(
        outcome,
        Err(RemoteError::Refused {
            command: CommandCode::RegionRead,
            errno: 22
        })
    ));
    assert!(matches!(
        function.reset(),
        Err(RemoteError::Refused {
            command: CommandCode::Reset,
            errno: 22
        })
    ));
}

#[test]
fn hang_up_takes_the_link_down() {
    let (function, outcome) = load_answered_by(|_| None);
    assert!(matches!(outcome, Err(RemoteError::HungUp { .. })), "{outcome:?}");
    assert!(is_down(&function));
}

#[test]
fn silence_times_out() {
    let start = Instant::now();
    let (function, outcome) = load_answered_by(|_| Some(Vec::new()));
    assert!(
        matches!(outcome, Err(RemoteError::TimedOut { .. })),
        "{outcome:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(5) && is_down(&function));
}

fn breaks_protocol(answer: fn(Header) -> Option<Vec<u8>>) -> bool {
    let (function, outcome) = load_answered_by(answer);
    matches!(outcome, Err(RemoteError::Protocol { .. })) && is_down(&function)
}

#[test]
fn answer_to_another_request_breaks_the_protocol() {
    assert!(breaks_protocol(|request| {
        let other = Header {
            message_id: request.message_id + 1,
            ..request
        };
        Some(reply(other, FLAG_REPLY, 0, &[0; 20]))
    }));
}

#[test]
fn command_instead_of_reply_breaks_the_protocol() {
    assert!(breaks_protocol(|request| Some(reply(request, 0, 0, &[0; 20]))));
}

/// A server's store of that many bytes.
fn store(bytes: usize) -> Vec<u8> {
    let header = Header {
        command: DMA_WRITE,
        flags: FLAG_NO_REPLY,
        ..Header::default()
    };
    reply(header, FLAG_NO_REPLY, 0, &vec![0xff; 16 + bytes])
}

#[test]
fn stores_of_the_server_before_its_answer_are_passed_over() {
    let (function, outcome) = load_answered_by(|request| {
        let refusal = reply(request, FLAG_REPLY | FLAG_ERROR, 22, &[]);
        Some([store(0), store(4), store(4096), store(9), refusal].concat())
    });
    assert!(
        matches!(outcome, Err(RemoteError::Refused { errno: 22, .. })),
        "{outcome:?}"
    );
    assert!(!is_down(&function));
}

/// Waits until whoever has the other end has read everything.
fn wait_until_read(end: &UnixStream) {
    while rustix::io::ioctl_fionread(end).unwrap() > 0 {
        thread::yield_now();
    }
}

/// Answers loads with their number, a store of 64 bytes right behind each answer. The bytes are sent in two parts: the
/// second after the first `cut` bytes were read, or with the next answer if the client needs no more than them.
fn store_behind_every_answer(mut socket: UnixStream, client: &UnixStream, cut: usize) {
    let mut late = Vec::new();
    let mut loads = 0u32;
    for number in 0.. {
        let mut header = [0; size_of::<Header>()];
        if socket.read_exact(&mut header).is_err() {
            return;
        }
        let header = Header::read_from_bytes(&header).unwrap();
        let mut body = vec![0; header.message_bytes as usize - size_of::<Header>()];
        socket.read_exact(&mut body).unwrap();
        socket.write_all(&std::mem::take(&mut late)).unwrap();
        if let Some(reply) = greet(number, header) {
            socket.write_all(&reply).unwrap();
            continue;
        }
        body.extend_from_slice(&loads.to_le_bytes());
        loads += 1;
        let answer = reply(header, FLAG_REPLY, 0, &body);
        let needed = answer.len();
        let all = [answer, store(64)].concat();
        let (now, then) = all.split_at(cut.min(all.len()));
        socket.write_all(now).unwrap();
        if now.len() < needed {
            wait_until_read(client);
            socket.write_all(then).unwrap();
        } else {
            late = then.to_vec();
        }
    }
}

#[test]
fn store_behind_an_answer_is_passed_over_wherever_the_bytes_are_cut() {
    let answer = size_of::<Header>() + size_of::<RegionAccessWire>() + 4;
    for cut in 1..=answer + store(64).len() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = ours.try_clone().unwrap();
        let serving = thread::spawn(move || store_behind_every_answer(theirs, &client, cut));
        let function = RemoteFunction::over(ours, ANSWER_WAIT).unwrap();
        for load in 0..4u32 {
            let mut word = [0; 4];
            function.read(Region::Bar0, 0, &mut word).unwrap();
            assert_eq!(u32::from_le_bytes(word), load, "cut after {cut} bytes");
        }
        function.close();
        serving.join().unwrap();
    }
}

#[test]
fn server_that_goes_on_storing_times_out() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        for number in 0.. {
            let mut header = [0; size_of::<Header>()];
            theirs.read_exact(&mut header).unwrap();
            let header = Header::read_from_bytes(&header).unwrap();
            let mut body = vec![0; header.message_bytes as usize - size_of::<Header>()];
            theirs.read_exact(&mut body).unwrap();
            match greet(number, header) {
                Some(reply) => theirs.write_all(&reply).unwrap(),
                None => break,
            }
        }
        while theirs.write_all(&store(64)).is_ok() {}
    });
    let function = RemoteFunction::over(ours, Duration::from_millis(300)).unwrap();
    let outcome = function.read(Region::Bar0, 0, &mut [0; 4]);
    assert!(
        matches!(outcome, Err(RemoteError::TimedOut { .. })),
        "{outcome:?}"
    );
    drop(function);
    serving.join().unwrap();
}

#[test]
fn length_of_four_gigabytes_breaks_the_protocol_without_allocation() {
    assert!(breaks_protocol(|request| {
        let huge = Header {
            message_bytes: u32::MAX,
            flags: FLAG_REPLY,
            ..request
        };
        Some(huge.as_bytes().to_vec())
    }));
}

#[test]
fn length_below_the_header_breaks_the_protocol() {
    assert!(breaks_protocol(|request| {
        let short = Header {
            message_bytes: 3,
            flags: FLAG_REPLY,
            ..request
        };
        Some(short.as_bytes().to_vec())
    }));
}

#[test]
fn too_little_and_too_much_data_break_the_protocol() {
    assert!(breaks_protocol(|request| Some(reply(
        request, FLAG_REPLY, 0, &[0; 16]
    ))));
    assert!(breaks_protocol(|request| Some(reply(
        request, FLAG_REPLY, 0, &[0; 400]
    ))));
}

#[test]
fn device_that_is_not_pci_is_refused() {
    let (stream, _serving) = serve(|number, request| match number {
        0 => greet(0, request),
        _ => Some(reply(request, FLAG_REPLY, 0, &[0; 16])),
    });
    let outcome = RemoteFunction::over(stream, Duration::from_millis(300));
    assert!(matches!(
        outcome,
        Err(RemoteError::Protocol {
            command: CommandCode::GetInfo,
            ..
        })
    ));
}

#[test]
fn close_wakes_a_call_that_waits() {
    let (stream, _serving) = serve(|number, request| greet(number, request).or(Some(Vec::new())));
    let function = Arc::new(RemoteFunction::over(stream, Duration::from_secs(60)).unwrap());
    let waiting = function.clone();
    let (about_to_wait, is_waiting) = channel();
    let call = thread::spawn(move || {
        about_to_wait.send(()).unwrap();
        waiting.read(Region::Bar0, 0, &mut [0; 4])
    });
    is_waiting.recv().unwrap();
    let start = Instant::now();
    function.close();
    assert!(matches!(call.join().unwrap(), Err(RemoteError::Down)));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn nobody_at_the_socket_names_it() {
    let error = RemoteFunction::connect(Path::new("/nonexistent.sock"), ANSWER_WAIT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot connect to the vfio-user socket /nonexistent.sock"
    );
}

#[test]
fn listener_that_accepts_nobody_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("full.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let wait = Duration::from_millis(100);
    let start = Instant::now();
    // The first connection fills the queue; the second cannot even be made.
    let outcomes = [(); 2].map(|()| RemoteFunction::connect(&path, wait).map(drop));
    assert!(
        matches!(
            outcomes,
            [
                Err(RemoteError::TimedOut { .. }),
                Err(RemoteError::TimedOut { .. } | RemoteError::Connect { .. })
            ]
        ),
        "{outcomes:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn server_that_answers_byte_by_byte_does_not_stretch_the_bound() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let dribble = || theirs.write_all(&[0]);
        std::iter::repeat_with(dribble)
            .inspect(|_| thread::sleep(Duration::from_millis(20)))
            .take_while(Result::is_ok)
            .count()
    });
    let start = Instant::now();
    let outcome = RemoteFunction::over(ours, Duration::from_millis(100)).map(drop);
    assert!(
        matches!(outcome, Err(RemoteError::TimedOut { .. })),
        "{outcome:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(serving.join().unwrap() < 100);
}

#[test]
fn posts_that_nobody_takes_time_out() {
    let (stream, serving) = serve(greet);
    let function = RemoteFunction::over(stream, Duration::from_millis(100)).unwrap();
    // The server hangs up at the first of them, or takes them no more.
    let data = vec![0; DATA_BYTES_MAX as usize];
    let failed = (0..1000).find_map(|_| function.post(Region::Bar1, 0, &data).err());
    assert!(failed.is_some() && is_down(&function));
    serving.join().unwrap();
}

#[test]
fn posts_to_a_server_that_sleeps_time_out() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let greeting = theirs.try_clone().unwrap();
    let serving = thread::spawn(move || {
        let mut greeting = greeting;
        for number in 0..2 {
            let mut header = [0; size_of::<Header>()];
            greeting.read_exact(&mut header).unwrap();
            let header = Header::read_from_bytes(&header).unwrap();
            let mut body = vec![0; header.message_bytes as usize - size_of::<Header>()];
            greeting.read_exact(&mut body).unwrap();
            greeting.write_all(&greet(number, header).unwrap()).unwrap();
        }
    });
    let function = RemoteFunction::over(ours, Duration::from_millis(100)).unwrap();
    serving.join().unwrap();
    let data = vec![0; DATA_BYTES_MAX as usize];
    let failed = (0..1000).find_map(|_| function.post(Region::Bar1, 0, &data).err());
    assert!(matches!(failed, Some(RemoteError::TimedOut { .. })), "{failed:?}");
    assert!(is_down(&function));
    drop(theirs);
}

#[test]
fn version_data_that_is_no_json_breaks_the_protocol() {
    let (stream, _serving) = serve(|_, request| Some(reply(request, FLAG_REPLY, 0, b"\0\0\x01\0[1\0")));
    let outcome = RemoteFunction::over(stream, Duration::from_millis(300)).map(drop);
    assert!(
        matches!(outcome, Err(RemoteError::Protocol { .. })),
        "{outcome:?}"
    );
}

/// Writes to our own server, in order. A read gives the number of writes so far.
#[derive(Default)]
struct Log(Vec<(Region, u64, Vec<u8>)>);

impl PciFunction for Log {
    fn read(&mut self, _: Region, _: u64, data: &mut [u8]) -> Result<(), Errno> {
        data.fill(self.0.len() as u8);
        Ok(())
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.0.push((region, offset, data.to_vec()));
        Ok(())
    }

    fn change_irqs(&mut self, _: IrqChange) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        Err(Errno::BUSY)
    }
}

fn logging_server() -> (RemoteFunction, JoinHandle<Log>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let mut log = Log::default();
        serve_client(Client::new(theirs, gpu_like()).unwrap(), &mut log).unwrap();
        log
    });
    (
        RemoteFunction::over(ours, Duration::from_secs(20)).unwrap(),
        serving,
    )
}

#[test]
fn read_sees_every_posted_write_and_their_order_is_kept() {
    let (function, serving) = logging_server();
    let long = vec![7; 3 * DATA_BYTES_MAX as usize / 2];
    for round in 0..70 {
        function.post(Region::Bar0, 4 * round, &[1; 4]).unwrap();
        function.post(Region::Bar3, 8 * round, &[2; 8]).unwrap();
        function.post(Region::Bar0, round, &[3]).unwrap();
    }
    function.post(Region::Bar1, 0x1000, &long).unwrap();
    function.post(Region::Bar0, 0x140, &[4; 4]).unwrap();
    let mut count = [0];
    function.read(Region::Bar0, 0, &mut count).unwrap();
    assert_eq!(count, [213]);
    drop(function);

    let mut expected: Vec<(Region, u64, Vec<u8>)> = (0..70)
        .flat_map(|round| {
            [
                (Region::Bar0, 4 * round, vec![1; 4]),
                (Region::Bar3, 8 * round, vec![2; 8]),
                (Region::Bar0, round, vec![3]),
            ]
        })
        .collect();
    let most = DATA_BYTES_MAX as usize;
    expected.push((Region::Bar1, 0x1000, vec![7; most]));
    expected.push((Region::Bar1, 0x1000 + most as u64, vec![7; most / 2]));
    expected.push((Region::Bar0, 0x140, vec![4; 4]));
    assert!(serving.join().unwrap().0 == expected);
}

#[test]
fn flushed_posts_arrive_without_a_request() {
    let (function, serving) = logging_server();
    function.post(Region::Bar0, 8, &[1; 4]).unwrap();
    function.flush().unwrap();
    drop(function);
    assert_eq!(serving.join().unwrap().0, [(Region::Bar0, 8, vec![1; 4])]);
}

#[test]
fn refused_post_is_not_told_and_the_next_request_works() {
    let (function, serving) = logging_server();
    // Beyond the end of the region.
    function.post(Region::Config, 4096, &[1; 4]).unwrap();
    assert!(matches!(function.reset(), Err(RemoteError::Refused { errno, .. }) if errno == 16));
    drop(function);
    assert_eq!(serving.join().unwrap().0, []);
}

/// A function of which BAR3 and a part of BAR0 are memory, in this order in one file.
fn with_memory(areas: Vec<Area>) -> FunctionInfo {
    let descriptor = Arc::new(crate::testing::memory((64 << 20) + 0x2000));
    let mut bar0 = RegionInfo::read_write(32 << 20);
    bar0.mappable = Some(MappableRegion {
        descriptor: descriptor.clone(),
        offset: (64_u64 << 20).wrapping_sub(0x70_0000),
        areas,
    });
    let mut bar3 = RegionInfo::read_write(64 << 20);
    bar3.mappable = Some(MappableRegion {
        descriptor,
        offset: 0,
        areas: Vec::new(),
    });
    gpu_like()
        .with_region(Region::Bar0, bar0)
        .with_region(Region::Bar3, bar3)
}

/// The parts of BAR0, BAR1 and BAR3 that the client of such a function is offered.
fn offered(areas: Vec<Area>) -> [Option<Vec<MemoryPart>>; 3] {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let client = Client::new(theirs, with_memory(areas)).unwrap();
    let serving = thread::spawn(move || serve_client(client, &mut Log::default()).map(|_| ()));
    let function = RemoteFunction::over(ours, Duration::from_secs(20)).unwrap();
    let parts = [Region::Bar0, Region::Bar1, Region::Bar3].map(|region| {
        let memory = function.region_memory(region).unwrap()?;
        let bytes = File::from(memory.descriptor).metadata().unwrap().len();
        assert_eq!(bytes, (64 << 20) + 0x2000);
        Some(memory.parts)
    });
    drop(function);
    serving.join().unwrap().unwrap();
    parts
}

#[test]
fn memory_behind_a_region_comes_with_its_parts() {
    let area = |offset, bytes| Area { offset, bytes };
    let [bar0, bar1, bar3] = offered(vec![area(0x70_0000, 0x2000)]);
    let part = |offset, bytes, file_offset| MemoryPart {
        offset,
        bytes,
        file_offset,
    };
    assert_eq!(bar0, Some(vec![part(0x70_0000, 0x2000, 64 << 20)]));
    assert_eq!(bar1, None);
    assert_eq!(bar3, Some(vec![part(0, 64 << 20, 0)]));
}

#[test]
fn memory_that_contradicts_its_region_is_not_offered() {
    let area = |offset, bytes| Area { offset, bytes };
    for areas in [
        vec![area(32 << 20, 0x1000)],
        vec![area(0x70_0000, 0x800)],
        vec![area(0x70_0000, 0)],
        vec![area(u64::MAX - 0xfff, 0x1000)],
        vec![area(0x70_1000, 0x1000), area(0x70_0000, 0x1000)],
        vec![area(0x70_0000, 0x1000); 2],
        (0..17).map(|i| area(0x70_0000 + 0x1000 * i, 0x1000)).collect(),
    ] {
        let [bar0, ..] = offered(areas.clone());
        assert_eq!(bar0, None, "{areas:?}");
    }
}
