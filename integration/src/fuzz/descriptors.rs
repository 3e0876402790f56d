//! Descriptors of every kind in messages of every kind, from two clients of a broker in real time, beside a VM that verifies.
//!
//! What a client sends is truncated, punched, sealed and filled while the broker and the card use it. Whatever comes, the broker
//! goes on, the neighbour's bytes and grids are right, and nothing of what was sent stays in the process.

use std::fs::File;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use guests::GuestBus;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals, inotify, memfd_create,
    open,
};
use rustix::net::sockopt::set_socket_linger;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use super::input::Input;
use super::{PATIENCE, RETRY};
use crate::bench::RAM_BYTES;
use crate::commands::{DMA_MAP, DMA_UNMAP, REGION_READ, REGION_WRITE, SET_IRQS};
use crate::neighbour::Host;
use crate::raw_client::{RESET, RawClient};
use crate::rig::{self, DATA_VA, RAM_VA, Rig};
use sim_host::bus::WideBus;
use sim_host::narrow_accesses;

/// Name of the memory files, to find what is left of them.
const NAME: &str = "weapon";
/// Most actions of an input.
const ACTIONS_MAX: usize = 100;
const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 << 20;
/// VRAM that a client's tables show.
const DATA_BYTES: u64 = 1 << 20;
/// Bytes of its RAM that a client copies to VRAM: not where its channels' own words are.
const FROM_GPA: u64 = 8 << 20;
const COPIED: u32 = 256 << 10;
/// Loads until a copy that a client waits for is left alone.
const TURNS: u32 = 20;
/// Files that are kept to be spoilt.
const FILES_MAX: usize = 16;
/// Messages that are not the answer before a client gives up.
const OTHERS_MAX: usize = 64;
/// How long a socket lingers: longer than anybody here waits.
const LINGER: Duration = Duration::from_secs(60);
/// Blocks that the neighbour still does at the end.
const BLOCKS: u64 = 2;

/// What is kept of descriptors that were sent.
#[derive(Default)]
struct Kept {
    /// Memory, to be spoilt later.
    files: Vec<File>,
    /// Other ends. Without them a close would not wait.
    peers: Vec<OwnedFd>,
    /// Threads that close our own descriptors, as that may wait for a peer.
    closers: Vec<JoinHandle<()>>,
}

impl Kept {
    fn close(&mut self, descriptors: Vec<OwnedFd>) {
        self.closers.push(thread::spawn(move || drop(descriptors)));
    }

    /// Nothing that was sent waits for a peer any more. Before a reset: the thread that closes a client's descriptors
    /// empties its image too, and the client waits for that.
    fn let_close(&mut self) {
        self.peers.clear();
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.let_close();
        for closer in self.closers.drain(..) {
            closer.join().expect("a close does not panic");
        }
    }
}

fn memory(flags: MemfdFlags, bytes: u64) -> Option<File> {
    let file = File::from(memfd_create(NAME, flags | MemfdFlags::CLOEXEC).ok()?);
    file.set_len(bytes).ok()?;
    Some(file)
}

/// A connected socket whose close waits while its peer is there and reads nothing.
fn lingering(kept: &mut Kept) -> std::io::Result<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&stream, Some(LINGER))?;
    kept.peers.push(peer.into());
    Ok(stream.into())
}

/// An eventfd of any state: whoever adds one to a full one waits, if it blocks.
fn event(input: &mut Input<'_>) -> std::io::Result<OwnedFd> {
    let flags = match input.u8() & 3 {
        0 => EventfdFlags::NONBLOCK,
        1 => EventfdFlags::SEMAPHORE,
        _ => EventfdFlags::empty(),
    };
    let event = eventfd(0, flags | EventfdFlags::CLOEXEC)?;
    if input.u8() & 1 == 0 {
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes())?;
    }
    Ok(event)
}

/// Anything that is no memory and no eventfd.
fn oddity(input: &mut Input<'_>, kept: &mut Kept) -> std::io::Result<OwnedFd> {
    let opened = |path, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty());
    Ok(match input.u8() % 16 {
        0 | 1 => lingering(kept)?,
        2 => {
            let (one, other) = UnixStream::pair()?;
            kept.peers.push(other.into());
            one.into()
        }
        3 => TcpListener::bind("127.0.0.1:0")?.into(),
        4 => opened("/dev/zero", OFlags::RDWR)?,
        5 => opened("/dev/null", OFlags::PATH)?,
        6 => opened("/proc/self/mem", OFlags::RDWR)?,
        7 => opened("/proc/self/status", OFlags::RDONLY)?,
        8 => opened("/", OFlags::DIRECTORY)?,
        9 => epoll::create(epoll::CreateFlags::CLOEXEC)?,
        10 => timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
        11 => inotify::init(inotify::CreateFlags::CLOEXEC)?,
        12 => pidfd_open(Pid::INIT, PidfdFlags::empty())?,
        13 => tempfile::tempfile()?.into(),
        14 => {
            let folder = tempfile::tempdir()?;
            UnixListener::bind(folder.path().join("socket"))?.into()
        }
        _ => {
            let (read, write) = std::io::pipe()?;
            kept.peers.push(read.into());
            write.into()
        }
    })
}

/// A descriptor of any kind. Where the host has no such kind, it is an eventfd.
fn any_descriptor(input: &mut Input<'_>, kept: &mut Kept) -> OwnedFd {
    let pages = 1 + u64::from(input.u8() & 31);
    let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let file = match input.u8() & 15 {
        0..=3 => memory(MemfdFlags::empty(), pages * PAGE),
        4 => memory(MemfdFlags::ALLOW_SEALING, pages * PAGE),
        5 | 6 => memory(huge, (1 + (pages & 1)) * HUGE_PAGE),
        kind => {
            let other = if kind < 10 {
                event(input)
            } else {
                oddity(input, kept)
            };
            return other.unwrap_or_else(|_| eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"));
        }
    };
    let file = file.expect("memory");
    if kept.files.len() < FILES_MAX {
        kept.files.push(file.try_clone().expect("a second descriptor"));
    }
    file.into()
}

fn descriptors(input: &mut Input<'_>, kept: &mut Kept) -> Vec<OwnedFd> {
    let count = [0, 1, 1, 1, 1, 1, 2, 12][usize::from(input.u8() & 7)];
    (0..count).map(|_| any_descriptor(input, kept)).collect()
}

/// Takes memory away, or lets nobody change it, or gives back.
fn spoil(input: &mut Input<'_>, files: &[File]) {
    if files.is_empty() {
        return;
    }
    let file = &files[usize::from(input.u8()) % files.len()];
    let at = u64::from(input.u8() & 31) * PAGE;
    // Files of other kinds, and sealed ones, refuse: that is the input's own loss.
    let _ = match input.u8() & 7 {
        0 => file.set_len(0).is_ok(),
        1 => file.set_len(at).is_ok(),
        2 => {
            let seal = input.choose(&[
                SealFlags::SHRINK,
                SealFlags::GROW,
                SealFlags::WRITE,
                SealFlags::SEAL,
            ]);
            fcntl_add_seals(file, seal).is_ok()
        }
        3 => file.set_len(64 * PAGE).is_ok(),
        _ => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, 0, at + PAGE).is_ok()
        }
    };
}

fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn map_body(flags: u32, [offset, gpa, bytes]: [u64; 3]) -> Vec<u8> {
    let mut body = words32(&[32, flags]);
    body.extend([offset, gpa, bytes].iter().flat_map(|word| word.to_le_bytes()));
    body
}

/// A message of any kind: command and body.
fn message(input: &mut Input<'_>) -> (u16, Vec<u8>) {
    let pages = u64::from(input.u8() & 31);
    // Above the RAM that a guest of ours may have.
    let gpa = RAM_BYTES + u64::from(input.u8() & 15) * PAGE;
    match input.u8() & 15 {
        0..=5 => {
            let offset = u64::from(input.u8() & 3) * PAGE;
            (DMA_MAP, map_body(input.u32() & 3, [offset, gpa, pages * PAGE]))
        }
        6 => (
            DMA_MAP,
            map_body(3, [0, (gpa >> 21) << 21, (1 + pages % 3) * HUGE_PAGE]),
        ),
        7..=9 => {
            let action = input.choose(&[1u32, 2, 4]) | input.choose(&[8u32, 16, 32, 32]);
            let [index, start, count] = [7u8, 3, 3].map(|mask| u32::from(input.u8() & mask));
            (SET_IRQS, words32(&[20, action, index, start, count]))
        }
        10 => {
            let mut body = words32(&[24, 0]);
            body.extend([gpa, pages * PAGE].iter().flat_map(|word| word.to_le_bytes()));
            (DMA_UNMAP, body)
        }
        11 => (RESET, Vec::new()),
        12 => (
            REGION_READ,
            words32(&[u32::from(input.u16()) & !3, 0, u32::from(input.u8()) % 10, 4]),
        ),
        _ => (u16::from(input.u8()) % 20, input.counted(63).to_vec()),
    }
}

/// A guest's way to its device and its RAM, which may be gone. What fails reads zero.
struct Link<'a> {
    client: &'a mut RawClient,
    ram: &'a File,
    is_lost: bool,
}

impl Link<'_> {
    fn call(&mut self, command: u16, body: &[u8]) -> Vec<u8> {
        if !self.is_lost {
            match answer(self.client, command, body, &[]) {
                Ok(body) => return body,
                Err(_) => self.is_lost = true,
            }
        }
        Vec::new()
    }
}

/// Sends a message, and waits for its answer. An error's number is none of ours.
fn answer(client: &mut RawClient, command: u16, body: &[u8], files: &[OwnedFd]) -> Result<Vec<u8>> {
    let id = client.send(command, body, files)?;
    for _ in 0..OTHERS_MAX {
        let (of, _, body) = client.next()?;
        if of == id {
            return Ok(body);
        }
    }
    anyhow::bail!("many messages and no answer")
}

impl WideBus for Link<'_> {
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        let asked = [offset as u32, (offset >> 32) as u32, bar.number(), bytes as u32];
        let body = self.call(REGION_READ, &words32(&asked));
        let mut word = [0; 8];
        // Offset, region and count come back first.
        word.iter_mut()
            .zip(body.iter().skip(16))
            .for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(word)
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        let mut body = words32(&[
            offset as u32,
            (offset >> 32) as u32,
            bar.number(),
            data.len() as u32,
        ]);
        body.extend(data);
        self.call(REGION_WRITE, &body);
    }
}

impl GuestBus for Link<'_> {
    narrow_accesses!();

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        if self.ram.read_exact_at(data, gpa).is_err() {
            data.fill(0);
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        // Sealed memory stays as it is. What was cut off comes back, as empty as it is.
        let _ = self.ram.write_all_at(data, gpa);
    }

    fn relax(&mut self) {
        thread::yield_now();
    }

    fn now_ns(&mut self) -> u64 {
        0
    }

    fn report(&mut self, _line: &str) {}
}

/// A client that attacks.
struct Attacker {
    socket: PathBuf,
    client: Option<RawClient>,
    /// Its guest's RAM, and what that has made of its device.
    guest: Option<(File, Rig)>,
    kept: Kept,
}

impl Attacker {
    fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            client: None,
            guest: None,
            kept: Kept::default(),
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        let what = input.u8() & 15;
        if let 0 | 1 = what {
            return self.hang_up(input);
        }
        if self.client.is_none() {
            let client =
                connect(&self.socket).unwrap_or_else(|error| panic!("the broker lets nobody in: {error:#}"));
            self.client = Some(client);
        }
        let done = match what {
            2 => self.start_guest(input),
            3..6 => self.copy(),
            6..9 => {
                spoil(input, &self.kept.files);
                Ok(())
            }
            9 => {
                self.kept.let_close();
                Ok(())
            }
            _ => self.say(input),
        };
        if done.is_err() {
            // Given up, or too much of its own waits to be closed.
            self.leave();
        }
    }

    fn say(&mut self, input: &mut Input<'_>) -> Result<()> {
        let (command, body) = message(input);
        if command == RESET {
            self.kept.let_close();
        }
        let files = descriptors(input, &mut self.kept);
        let client = self.client.as_mut().context("no client")?;
        let answered = answer(client, command, &body, &files);
        self.kept.close(files);
        answered.map(|_| ())
    }

    /// Maps RAM of any kind, and makes a channel there.
    fn start_guest(&mut self, input: &mut Input<'_>) -> Result<()> {
        self.kept.let_close();
        let client = self.client.as_mut().context("no client")?;
        answer(client, RESET, &[], &[])?;
        let flags = match input.u8() & 3 {
            0 => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            _ => MemfdFlags::ALLOW_SEALING,
        };
        let ram = memory(flags, RAM_BYTES).context("no memory of that kind")?;
        let sent = vec![ram.try_clone()?.into()];
        answer(client, DMA_MAP, &map_body(3, [0, 0, RAM_BYTES]), &sent)?;
        self.kept.files.insert(0, ram.try_clone()?);
        self.kept.files.truncate(FILES_MAX);
        let mut link = Link {
            client,
            ram: &ram,
            is_lost: false,
        };
        let mut rig = Rig::start(&mut link, DATA_BYTES);
        rig.open(&mut link, 0);
        ensure!(!link.is_lost, "the vGPU is lost");
        self.guest = Some((ram, rig));
        Ok(())
    }

    /// A copy from its RAM, whatever that is by now.
    fn copy(&mut self) -> Result<()> {
        let (Some((ram, rig)), Some(client)) = (&mut self.guest, &mut self.client) else {
            return Ok(());
        };
        let mut link = Link {
            client,
            ram,
            is_lost: false,
        };
        let mut words = rig::bind_words(Engine::Copy0).to_vec();
        words.extend(rig::copy_words(RAM_VA + FROM_GPA, DATA_VA, COPIED, 1));
        let sequence = rig.submit_with_release(&mut link, 0, &words);
        rig.wait_turns(&mut link, 0, sequence, TURNS);
        ensure!(!link.is_lost, "the vGPU is lost");
        Ok(())
    }

    /// Goes, in the middle of what the broker does for it.
    fn hang_up(&mut self, input: &mut Input<'_>) {
        if let Some(client) = &mut self.client {
            let (command, body) = message(input);
            let files = descriptors(input, &mut self.kept);
            // The broker may have hung up before.
            let _ = client.send(command, &body, &files);
            self.kept.close(files);
        }
        self.leave();
    }

    /// Without its other ends nothing of it keeps the seat.
    fn leave(&mut self) {
        self.client = None;
        self.guest = None;
        self.kept.let_close();
    }
}

/// Connects once the broker has done away with what the client before has left.
fn connect(socket: &Path) -> Result<RawClient> {
    let start = Instant::now();
    loop {
        match RawClient::connect(socket) {
            Err(_) if start.elapsed() < PATIENCE => thread::sleep(RETRY),
            outcome => return outcome,
        }
    }
}

/// What this process has of the memory files: maps and descriptors.
fn traces() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has maps");
    let mut found: Vec<String> = maps
        .lines()
        .filter(|line| line.contains(NAME))
        .map(str::to_owned)
        .collect();
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("a process has descriptors");
    let names = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    found.extend(
        names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.contains(NAME)),
    );
    found
}

/// Body of the target `descriptors`.
pub(super) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let host = Host::start().unwrap_or_else(|error| panic!("no broker: {error:#}"));
    let mut victim = host.victim();
    let right = |outcome: Result<()>| outcome.unwrap_or_else(|error| panic!("the neighbour: {error:#}"));
    right(victim.wait_for(1));
    let mut attackers = host.others().map(Attacker::new);
    for _ in 0..ACTIONS_MAX {
        if input.is_empty() {
            break;
        }
        let who = usize::from(input.u8() & 1);
        attackers[who].act(&mut input);
    }
    right(victim.wait_for(BLOCKS));
    drop(attackers);
    right(victim.wait_for(BLOCKS));
    right(victim.end().map(|_| ()));
    let start = Instant::now();
    while !traces().is_empty() {
        assert!(start.elapsed() < PATIENCE, "left behind: {:#?}", traces());
        thread::sleep(RETRY);
    }
}
