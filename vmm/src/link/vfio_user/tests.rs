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

/// What the crate's server was asked for.
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

    let link = VfioUserLink::connect(&path).unwrap();
    assert_eq!(
        [0, 1, 3, 7, 8, 99].map(|region| link.region_size(region)),
        [32 << 20, 128 << 20, 64 << 20, 4096, 0, 0]
    );
    let mut data = [0; 8];
    link.region_read(1, 0x40, &mut data).unwrap();
    assert_eq!(data, [0x41; 8]);
    link.region_write(0, 0x140, &[1, 0, 0, 0]).unwrap();
    let file = tempfile::tempfile().unwrap();
    link.dma_map(0x1000, 0x2000, file.as_fd(), 0x3000).unwrap();
    link.dma_unmap(0x1000, 0x2000).unwrap();
    link.set_msi(&EventFd::new(0).unwrap()).unwrap();
    link.reset().unwrap();
    link.close();
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
            let mut body = vec![0; header.message_bytes.get() as usize - size_of::<Header>()];
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
    let message_bytes = U32::new((size_of::<Header>() + body.len()) as u32);
    let header = Header {
        message_bytes,
        flags: U32::new(flags),
        error: U32::new(error),
        ..request
    };
    [header.as_bytes(), body].concat()
}

/// A well-behaved start: version, a PCI device without regions.
fn greet(number: usize, request: Header) -> Option<Vec<u8>> {
    let info = [16u32, DEVICE_IS_PCI, 0, 0].map(u32::to_le_bytes).concat();
    match number {
        0 => Some(reply(request, FLAGS_REPLY, 0, b"\0\0\x01\0{}\0")),
        1 => Some(reply(request, FLAGS_REPLY, 0, &info)),
        _ => None,
    }
}

/// Connects, then has the first load answered by `answer`.
fn load_answered_by(answer: fn(Header) -> Option<Vec<u8>>) -> (VfioUserLink, Result<(), LinkError>) {
    let (stream, _serving) = serve(move |number, request| greet(number, request).or_else(|| answer(request)));
    let link = VfioUserLink::over(stream, Duration::from_millis(300)).unwrap();
    let outcome = link.region_read(0, 0, &mut [0; 4]);
    (link, outcome)
}

fn is_down(link: &VfioUserLink) -> bool {
    matches!(link.region_read(0, 0, &mut [0; 4]), Err(LinkError::Down))
}

#[test]
fn error_reply_refuses_and_keeps_the_link() {
    let (link, outcome) =
        load_answered_by(|request| Some(reply(request, FLAGS_REPLY | FLAGS_ERROR, 22, &[])));
    assert!(matches!(
        outcome,
        Err(LinkError::Refused {
            command: Command::RegionRead,
            errno: 22
        })
    ));
    assert!(matches!(
        link.reset(),
        Err(LinkError::Refused {
            command: Command::DeviceReset,
            errno: 22
        })
    ));
}

#[test]
fn hang_up_takes_the_link_down() {
    let (link, outcome) = load_answered_by(|_| None);
    assert!(matches!(outcome, Err(LinkError::HungUp { .. })), "{outcome:?}");
    assert!(is_down(&link));
}

#[test]
fn silence_times_out() {
    let start = Instant::now();
    let (link, outcome) = load_answered_by(|_| Some(Vec::new()));
    assert!(matches!(outcome, Err(LinkError::TimedOut { .. })), "{outcome:?}");
    assert!(start.elapsed() < Duration::from_secs(5) && is_down(&link));
}

fn breaks_protocol(answer: fn(Header) -> Option<Vec<u8>>) -> bool {
    let (link, outcome) = load_answered_by(answer);
    matches!(outcome, Err(LinkError::Protocol { .. })) && is_down(&link)
}

#[test]
fn answer_to_another_request_breaks_the_protocol() {
    assert!(breaks_protocol(|request| {
        let other = Header {
            message_id: U16::new(request.message_id.get() + 1),
            ..request
        };
        Some(reply(other, FLAGS_REPLY, 0, &[0; 20]))
    }));
}

#[test]
fn command_instead_of_reply_breaks_the_protocol() {
    assert!(breaks_protocol(|request| Some(reply(request, 0, 0, &[0; 20]))));
}

#[test]
fn length_of_four_gigabytes_breaks_the_protocol_without_allocation() {
    assert!(breaks_protocol(|request| {
        let huge = Header {
            message_bytes: U32::new(u32::MAX),
            flags: U32::new(FLAGS_REPLY),
            ..request
        };
        Some(huge.as_bytes().to_vec())
    }));
}

#[test]
fn length_below_the_header_breaks_the_protocol() {
    assert!(breaks_protocol(|request| {
        let short = Header {
            message_bytes: U32::new(3),
            flags: U32::new(FLAGS_REPLY),
            ..request
        };
        Some(short.as_bytes().to_vec())
    }));
}

#[test]
fn too_little_and_too_much_data_break_the_protocol() {
    assert!(breaks_protocol(|request| Some(reply(
        request,
        FLAGS_REPLY,
        0,
        &[0; 16]
    ))));
    assert!(breaks_protocol(|request| Some(reply(
        request,
        FLAGS_REPLY,
        0,
        &[0; 400]
    ))));
}

#[test]
fn device_that_is_not_pci_is_refused() {
    let (stream, _serving) = serve(|number, request| match number {
        0 => greet(0, request),
        _ => Some(reply(request, FLAGS_REPLY, 0, &[0; 16])),
    });
    let outcome = VfioUserLink::over(stream, Duration::from_millis(300));
    assert!(matches!(
        outcome,
        Err(LinkError::Protocol {
            command: Command::DeviceGetInfo,
            ..
        })
    ));
}

#[test]
fn close_wakes_a_call_that_waits() {
    let (stream, _serving) = serve(|number, request| greet(number, request).or(Some(Vec::new())));
    let link = Arc::new(VfioUserLink::over(stream, Duration::from_secs(60)).unwrap());
    let waiting = link.clone();
    let (about_to_wait, is_waiting) = channel();
    let call = thread::spawn(move || {
        about_to_wait.send(()).unwrap();
        waiting.region_read(0, 0, &mut [0; 4])
    });
    is_waiting.recv().unwrap();
    let start = Instant::now();
    link.close();
    assert!(matches!(call.join().unwrap(), Err(LinkError::Down)));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn nobody_at_the_socket_names_it() {
    let error = VfioUserLink::connect(Path::new("/nonexistent.sock"))
        .err()
        .unwrap();
    assert_eq!(
        error.to_string(),
        "cannot connect to the vGPU socket /nonexistent.sock"
    );
}
