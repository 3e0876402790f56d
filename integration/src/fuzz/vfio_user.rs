//! Messages to a served card: right and wrong ones, in pieces, with descriptors, by two clients.
//!
//! Whatever messages come, the server survives and gives the next client the card as after power-on.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::input::Input;
use crate::commands::{DMA_MAP, DMA_UNMAP, REGION_READ, REGION_WRITE, SET_IRQS, VERSION};
use card::{BoundSocket, CardConfig, GpuServer, GpuSetup, SocketAccess};
use fermi_spec::board::Board;
use fermi_spec::regs::{Bar0Reg, PmcReg};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

const VRAM_BYTES: u64 = 1 << 20;
/// Most actions of an input.
const ACTIONS_MAX: usize = 400;
/// Bytes of a file that a client offers.
const FILE_BYTES: u64 = 0x1_0000;
/// Longest wait for the server.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two attempts to connect while the server still ends the session of another client.
const RETRY: Duration = Duration::from_micros(200);

/// A server on a thread of its own.
struct Server {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the socket");
        let setup = GpuSetup {
            card: CardConfig {
                board: Board::Gtx480,
                vram_bytes: VRAM_BYTES,
                needs_microcode: false,
                strict: true,
                paced: false,
                workers: 0,
            },
            is_all_trapped: false,
            trace: None,
        };
        let socket = BoundSocket::bind(&folder.path().join("gpu"), &SocketAccess::default());
        let mut server = GpuServer::on(socket.expect("the folder is new"), &setup).expect("a served card");
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            server
                .serve(|| asked.load(Ordering::Relaxed), || false)
                .expect("no client ends the server");
        });
        Self {
            folder,
            stop,
            thread: Some(thread),
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("gpu")
    }

    /// Ends the server, and checks that it did not end by itself.
    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The server checks for its end when a client connects.
        drop(UnixStream::connect(self.socket()));
        let thread = self.thread.take().expect("ended once");
        thread.join().expect("the server did not panic");
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the server listens");
    stream
        .set_nonblocking(true)
        .expect("a socket can be non-blocking");
    stream
}

fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend(id.to_le_bytes());
    bytes.extend(command.to_le_bytes());
    bytes.extend((16 + body.len() as u32).to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn body(words: &[u32], data: &[u8]) -> Vec<u8> {
    words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .chain(data.iter().copied())
        .collect()
}

fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    body(&[offset as u32, (offset >> 32) as u32, region, count], data)
}

fn hello() -> Vec<u8> {
    message(0, VERSION, 0, &[0, 0, 1, 0])
}

fn offset(input: &mut Input<'_>) -> u64 {
    match input.u8() & 3 {
        0 => input.u64(),
        1 => u64::from(input.u16()),
        2 => u64::from(input.u32() & 0x1ff_fffc),
        _ => u64::from(
            Bar0Reg::all()
                .nth(usize::from(input.u16()) % 600)
                .map_or(0, Bar0Reg::offset),
        ),
    }
}

/// An address in the space of DMA.
fn iova(input: &mut Input<'_>) -> [u32; 2] {
    match input.u8() & 3 {
        0 => [input.u32(), input.u32()],
        _ => [u32::from(input.u8() & 0x1f) << 12, 0],
    }
}

fn file() -> OwnedFd {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a file in memory");
    ftruncate(&file, FILE_BYTES).expect("a file can grow");
    file
}

fn map(input: &mut Input<'_>, id: u16, flags: u32) -> (Vec<u8>, Vec<OwnedFd>) {
    let [low, high] = iova(input);
    let bytes = u32::from(input.u8() & 0x1f) << 12;
    let (access, offset) = (input.u32() & 7, u32::from(input.u8()) << 12);
    let has_file = input.u8() & 3 != 0;
    let words = [32, access, offset, 0, low, high, bytes, 0];
    let files = has_file.then(file).into_iter().collect();
    (message(id, DMA_MAP, flags, &body(&words, &[])), files)
}

fn unmap(input: &mut Input<'_>, id: u16, flags: u32) -> (Vec<u8>, Vec<OwnedFd>) {
    let [low, high] = iova(input);
    let bytes = u32::from(input.u8() & 0x1f) << 12;
    let words = [24, input.u32() & 3, low, high, bytes, 0];
    (message(id, DMA_UNMAP, flags, &body(&words, &[])), Vec::new())
}

fn set_irqs(input: &mut Input<'_>, id: u16, flags: u32) -> (Vec<u8>, Vec<OwnedFd>) {
    let action = input.choose(&[1u32, 2, 4]) | input.choose(&[8u32, 16, 32]);
    let index = u32::from(input.u8() % 6);
    let [start, count] = [(); 2].map(|()| u32::from(input.u8() & 3));
    let events = (0..input.u8() & 1).map(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
    let words = [20, action, index, start, count];
    (message(id, SET_IRQS, flags, &body(&words, &[])), events.collect())
}

/// One message and the descriptors that go with it.
fn said(input: &mut Input<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let (id, flags) = (input.u16(), if input.u8() & 7 == 0 { 1 << 4 } else { 0 });
    match input.u8() % 10 {
        0 => (input.counted(u8::MAX).to_vec(), Vec::new()),
        1 => {
            let (command, flags) = (u16::from(input.u8()) % 20, input.u32());
            let data = input.counted(u8::MAX);
            let files = (0..input.u8() & 3).map(|_| file()).collect();
            (message(id, command, flags, data), files)
        }
        2 => {
            let mut bytes = message(id, u16::from(input.u8()) % 20, 0, input.counted(u8::MAX));
            bytes[4..8].copy_from_slice(&input.u32().to_le_bytes());
            (bytes, Vec::new())
        }
        3 => map(input, id, flags),
        4 => unmap(input, id, flags),
        5 => set_irqs(input, id, flags),
        6 | 7 => {
            let (region, count) = (u32::from(input.u8() % 10), u32::from(input.u16() & 0x1ff));
            (
                message(id, REGION_READ, flags, &access(offset(input), region, count, &[])),
                Vec::new(),
            )
        }
        _ => {
            let (region, at) = (u32::from(input.u8() % 10), offset(input));
            let data = input.counted(31);
            (
                message(
                    id,
                    REGION_WRITE,
                    flags,
                    &access(at, region, data.len() as u32, data),
                ),
                Vec::new(),
            )
        }
    }
}

/// Sends as much as there is room for. A server that hung up is not an error of the client's.
fn send(stream: &UnixStream, bytes: &[u8], files: &[OwnedFd]) {
    let raw: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let _ = if raw.is_empty() {
        (&*stream).write(bytes).is_ok()
    } else {
        stream.send_with_fds(&[bytes], &raw).is_ok()
    };
}

/// Reads replies and drops them.
fn drain(stream: &UnixStream) {
    let mut bytes = [0; 4096];
    while matches!((&*stream).read(&mut bytes), Ok(count) if count > 0) {}
}

/// Connects as the next client until the server accepts it, and asks for the card's name.
fn ask_for_boot0(path: &Path) -> u32 {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "the server lets nobody in");
        match try_boot0(path) {
            Ok(boot0) => return boot0,
            Err(error) => assert!(is_refusal(&error), "no answer: {error}"),
        }
        thread::sleep(RETRY);
    }
}

/// The server still ends the session before, and hangs up.
fn is_refusal(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

fn try_boot0(path: &Path) -> std::io::Result<u32> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&hello())?;
    reply(&mut stream)?;
    let boot0 = access(u64::from(PmcReg::Boot0.offset()), 0, 4, &[]);
    stream.write_all(&message(1, REGION_READ, 0, &boot0))?;
    let words = reply(&mut stream)?;
    let word = words.last_chunk().copied().expect("a reply with data");
    Ok(u32::from_le_bytes(word))
}

fn reply(stream: &mut UnixStream) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 16];
    stream.read_exact(&mut header)?;
    let [.., a, b, c, d] = header[..8] else {
        unreachable!("eight bytes")
    };
    let mut rest = vec![0; u32::from_le_bytes([a, b, c, d]) as usize - header.len()];
    stream.read_exact(&mut rest)?;
    assert_eq!(header[8] & 0x2f, 1, "a reply without an error");
    Ok(rest)
}

/// Body of the target `vfio_user`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let server = Server::start();
    let path = server.socket();
    let mut clients = [connect(&path), connect(&path)];
    send(&clients[0], &hello(), &[]);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let who = usize::from(input.u8() & 15 == 0);
        match input.u8() & 31 {
            0 => {
                clients[who] = connect(&path);
                send(&clients[who], &hello(), &[]);
            }
            // Other replies may come in between.
            1 => thread::yield_now(),
            _ => {
                let (bytes, files) = said(&mut input);
                send(&clients[who], &bytes, &files);
            }
        }
        clients.iter().for_each(drain);
    }
    drop(clients);
    assert_eq!(ask_for_boot0(&path), Board::Gtx480.boot0());
    server.end();
}
