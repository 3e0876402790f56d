//! `vramd gpu` as a foreign VMM sees it: configuration space, registers, interrupts, DMA, windows, and what a client that
//! does it wrong is told.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use all of it")]
mod process;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fermi_spec::board::{BAR3_BYTES, Board};
use fermi_spec::engine::pmc_enable;
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PfifoReg, PmcReg, PtimerReg};
use process::{Process, complaint, output, text, write_input};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vfio_user_server::remote::RemoteFunction;
use vfio_user_server::{IrqIndex, Region};
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

const WAIT: Duration = Duration::from_secs(10);
const REPLY_ERROR: u32 = 1 << 5;

const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const GET_REGION_INFO: u16 = 5;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;

const EINVAL: u32 = 22;
const EOPNOTSUPP: u32 = 95;

/// A served card of 32M.
struct Card {
    folder: tempfile::TempDir,
    process: Process,
}

impl Card {
    fn start(more: &[&str]) -> Card {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("card.sock");
        let arguments = ["gpu", "--socket", socket.to_str().unwrap(), "--vram", "32M"];
        let mut process = Process::start(&[&arguments[..], more].concat());
        let line = process.next_line();
        assert!(line.starts_with("gtx480: 32M VRAM at "), "{line}");
        Card { folder, process }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("card.sock")
    }

    fn attach(&self) -> RemoteFunction {
        RemoteFunction::connect(&self.socket(), WAIT).unwrap()
    }

    /// Ended by a signal, without a complaint; what it said on stdout.
    fn end(mut self) -> String {
        let socket = self.socket();
        let output = self.process.terminate();
        assert_eq!(
            (output.status.code(), text(&output.stderr)),
            (Some(0), String::new())
        );
        assert!(!socket.exists());
        text(&output.stdout)
    }
}

fn read_register(card: &RemoteFunction, register: impl Into<Bar0Reg>) -> u32 {
    let mut word = [0; 4];
    card.read(Region::Bar0, register.into().offset().into(), &mut word)
        .unwrap();
    u32::from_le_bytes(word)
}

fn write_register(card: &RemoteFunction, register: impl Into<Bar0Reg>, value: u32) {
    card.write(
        Region::Bar0,
        register.into().offset().into(),
        &value.to_le_bytes(),
    )
    .unwrap();
}

/// A client that says anything.
struct Raw {
    stream: UnixStream,
}

impl Raw {
    fn connect(path: &Path) -> Raw {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        Raw { stream }
    }

    fn attach(path: &Path) -> Raw {
        let mut raw = Raw::connect(path);
        let version = [&[0, 0, 0, 0][..], b"{\"capabilities\":{\"max_msg_fds\":8}}\0"].concat();
        assert_eq!(raw.call(1, &version, &[]).0, 0);
        raw
    }

    fn send(&mut self, command: u16, bytes: u32, body: &[u8], descriptors: &[RawFd]) {
        let mut message = vec![7, 0];
        message.extend(command.to_le_bytes());
        message.extend(bytes.to_le_bytes());
        message.extend([0; 8]);
        message.extend(body);
        let sent = self.stream.send_with_fds(&[&message[..]], descriptors).unwrap();
        assert_eq!(sent, message.len());
    }

    /// The error of the reply, what follows its header, and the descriptor that came along.
    fn call_for_file(
        &mut self,
        command: u16,
        body: &[u8],
        descriptors: &[RawFd],
    ) -> (u32, Vec<u8>, Option<File>) {
        self.send(command, 16 + body.len() as u32, body, descriptors);
        let mut header = [0; 16];
        let (bytes, file) = self.stream.recv_with_fd(&mut header).unwrap();
        assert_eq!(bytes, 16);
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut payload = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut payload).unwrap();
        let error = if word(8) & REPLY_ERROR != 0 { word(12) } else { 0 };
        (error, payload, file)
    }

    fn call(&mut self, command: u16, body: &[u8], descriptors: &[RawFd]) -> (u32, Vec<u8>) {
        let (error, payload, _) = self.call_for_file(command, body, descriptors);
        (error, payload)
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> (u32, Vec<u8>) {
        let (error, payload) = self.call(REGION_READ, &access(region, offset, count, &[]), &[]);
        (error, payload.get(16..).unwrap_or_default().to_vec())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> u32 {
        let body = access(region, offset, data.len() as u32, data);
        self.call(REGION_WRITE, &body, &[]).0
    }

    fn write_register(&mut self, register: impl Into<Bar0Reg>, value: u32) {
        assert_eq!(
            self.write(0, register.into().offset().into(), &value.to_le_bytes()),
            0
        );
    }

    /// SET_IRQS of vector 0 without or with an eventfd.
    fn set_irq(&mut self, flags: u32, index: u32, event: Option<&OwnedFd>) -> u32 {
        let words = [20, flags, index, 0, 1_u32];
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let descriptors: Vec<RawFd> = event.iter().map(|event| event.as_raw_fd()).collect();
        self.call(SET_IRQS, &body, &descriptors).0
    }

    fn dma(&mut self, command: u16, iova: u64, bytes: u64, file: Option<&File>) -> u32 {
        let mut body = Vec::new();
        let flags = if command == DMA_MAP { 3 } else { 0_u32 };
        body.extend(32_u32.to_le_bytes());
        body.extend(flags.to_le_bytes());
        if command == DMA_MAP {
            body.extend(0_u64.to_le_bytes());
        }
        body.extend(iova.to_le_bytes());
        body.extend(bytes.to_le_bytes());
        let descriptors: Vec<RawFd> = file.iter().map(|file| file.as_raw_fd()).collect();
        self.call(command, &body, &descriptors).0
    }

    /// Whether the server has hung up.
    fn is_hung_up(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

fn access(region: u32, offset: u64, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = offset.to_le_bytes().to_vec();
    body.extend(region.to_le_bytes());
    body.extend(count.to_le_bytes());
    body.extend(data);
    body
}

fn memory(bytes: u64) -> File {
    let file = rustix::fs::memfd_create("client", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(file);
    file.set_len(bytes).unwrap();
    file
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn signal(event: &OwnedFd) {
    rustix::io::write(event, &1_u64.to_ne_bytes()).unwrap();
}

/// Whether the eventfd has been signalled since the last look.
fn was_signalled(event: &OwnedFd) -> bool {
    rustix::io::read(event, &mut [0; 8]).is_ok()
}

/// Whether it is signalled before long.
fn is_signalled(event: &OwnedFd) -> bool {
    let limit = Timespec {
        tv_sec: WAIT.as_secs() as i64,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&limit)).unwrap() == 1 && was_signalled(event)
}

/// Lets the bus unit's interrupt through to the pin.
const BUS_INTERRUPT: [(Bar0Reg, u32); 4] = [
    (Bar0Reg::Pbus(PbusReg::PbusIntrEnable), u32::MAX),
    (Bar0Reg::Pmc(PmcReg::PmcIntrMask(0)), u32::MAX),
    (Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0)), 1),
    (Bar0Reg::Pmc(PmcReg::PmcEnable), !pmc_enable::PFIFO),
];
/// A register of PFIFO, which is off: the access raises the bus unit's interrupt.
const REGISTER_OF_A_UNIT_THAT_IS_OFF: Bar0Reg = Bar0Reg::Pfifo(PfifoReg::RunlistBase);

const TRIGGER_EVENTFD: u32 = 1 << 2 | 1 << 5;
const UNMASK: u32 = 1 | 1 << 4;
const UNMASK_EVENTFD: u32 = 1 << 2 | 1 << 4;
const INTX: u32 = 0;
const MSI: u32 = 1;

#[test]
fn client_finds_the_card_by_registers_and_configuration_space() {
    let card = Card::start(&[]);
    let client = card.attach();
    assert_eq!(read_register(&client, PmcReg::Boot0), Board::Gtx480.boot0());
    let mut ids = [0; 12];
    client.read(Region::Config, 0, &mut ids).unwrap();
    assert_eq!(
        (&ids[..4], &ids[9..]),
        (&[0xde, 0x10, 0xc0, 0x06][..], &[0, 2, 3][..])
    );
    drop(client);
    let said = card.end();
    assert!(said.contains("1/0 PROM 0/0 PRAMIN 0/0"), "{said}");
}

#[test]
fn guest_s_driver_copies_on_the_bare_card() {
    let card = Card::start(&[]);
    let (input, digest) = write_input(card.folder.path(), "input", 500_001);
    let config = card.folder.path().join("vm.toml");
    let text_of_config = format!(
        "name = \"a\"\nmemory = \"64M\"\ninputs = [{input:?}]\noptions = \"vramd.rounds=2 vramd.interrupts=1\"\n\
         [vgpu]\nsocket = {:?}\n",
        card.socket()
    );
    std::fs::write(&config, text_of_config).unwrap();
    let ran = output(&["run", "--no-kvm", config.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    assert!(text(&ran.stdout).contains(&digest));
    let said = card.end();
    // The guest on a thread has no PCI bus, so it lets no messages through; they are sent all the same.
    assert!(!said.contains("messages without a receiver: 0"), "{said}");
}

#[test]
fn message_is_signalled_when_the_guest_lets_it_through() {
    let card = Card::start(&[]);
    let client = card.attach();
    let msi = event();
    client.connect_irq(IrqIndex::Msi, &msi).unwrap();
    // Bus master.
    client.write(Region::Config, 4, &[0b110, 0]).unwrap();
    for (register, value) in BUS_INTERRUPT {
        write_register(&client, register, value);
    }
    read_register(&client, REGISTER_OF_A_UNIT_THAT_IS_OFF);
    assert!(is_signalled(&msi));
}

#[test]
fn alarm_of_an_idle_card_is_signalled_without_an_access() {
    let card = Card::start(&[]);
    let client = card.attach();
    let msi = event();
    client.connect_irq(IrqIndex::Msi, &msi).unwrap();
    client.write(Region::Config, 4, &[0b110, 0]).unwrap();
    for (register, value) in [
        (Bar0Reg::Ptimer(PtimerReg::PtimerIntrEnable), 1),
        (Bar0Reg::Pmc(PmcReg::PmcIntrMask(0)), u32::MAX),
        (Bar0Reg::Pmc(PmcReg::PmcIntrEnable(0)), 1),
    ] {
        write_register(&client, register, value);
    }
    let now = read_register(&client, PtimerReg::PtimerLow);
    write_register(&client, PtimerReg::PtimerAlarm, now.wrapping_add(20_000_000));
    assert!(is_signalled(&msi));
}

#[test]
fn level_is_signalled_once_and_again_when_unmasked_while_high() {
    let card = Card::start(&[]);
    let mut client = Raw::attach(&card.socket());
    let (intx, unmask) = (event(), event());
    assert_eq!(client.set_irq(TRIGGER_EVENTFD, INTX, Some(&intx)), 0);
    for (register, value) in BUS_INTERRUPT {
        client.write_register(register, value);
    }
    assert!(!was_signalled(&intx));
    let raise = u64::from(REGISTER_OF_A_UNIT_THAT_IS_OFF.offset());
    client.read(0, raise, 4);
    assert!(is_signalled(&intx));
    client.read(0, raise, 4);
    assert!(!was_signalled(&intx), "it masks itself");
    assert_eq!(client.set_irq(UNMASK, INTX, None), 0);
    assert!(is_signalled(&intx), "the pin is high still");
    // The client's own eventfd does it, as with KVM.
    assert_eq!(client.set_irq(UNMASK_EVENTFD, INTX, Some(&unmask)), 0);
    signal(&unmask);
    assert!(is_signalled(&intx));
    client.write_register(PbusReg::PbusIntr, u32::MAX);
    assert_eq!(client.set_irq(UNMASK, INTX, None), 0);
    assert!(!was_signalled(&intx), "the pin is low");
}

#[test]
fn message_cannot_be_masked() {
    let card = Card::start(&[]);
    let mut client = Raw::attach(&card.socket());
    assert_eq!(client.set_irq(UNMASK, MSI, None), EINVAL);
}

#[test]
fn window_s_file_shows_what_messages_show() {
    let card = Card::start(&[]);
    let mut client = Raw::attach(&card.socket());
    let ask: Vec<u8> = [256, 0, 3, 0, 0, 0, 0, 0_u32]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let (error, _, file) = client.call_for_file(GET_REGION_INFO, &ask, &[]);
    let file = file.unwrap();
    assert_eq!(
        (error, file.metadata().unwrap().len()),
        (0, BAR3_BYTES + (1 << 20))
    );
    client.write_register(PbusReg::PraminBase, 0x10);
    file.write_all_at(&[1, 2, 3, 4], BAR3_BYTES + 8).unwrap();
    assert_eq!(
        client.read(0, u64::from(PRAMIN_BASE) + 8, 4),
        (0, vec![1, 2, 3, 4])
    );
    assert_eq!(client.write(0, u64::from(PRAMIN_BASE) + 12, &[5; 4]), 0);
    let mut word = [0; 4];
    file.read_exact_at(&mut word, BAR3_BYTES + 12).unwrap();
    assert_eq!(word, [5; 4]);
    // The next client finds nothing, and the file is of no more use to a process that kept it.
    drop(client);
    let mut next = Raw::attach(&card.socket());
    next.write_register(PbusReg::PraminBase, 0x10);
    file.write_all_at(&[6; 4], BAR3_BYTES + 8).unwrap();
    assert_eq!(next.read(0, u64::from(PRAMIN_BASE) + 8, 8), (0, vec![0; 8]));
}

#[test]
fn all_trapped_card_offers_no_file() {
    let card = Card::start(&["--all-trapped"]);
    let mut client = Raw::attach(&card.socket());
    let ask: Vec<u8> = [256, 0, 3, 0, 0, 0, 0, 0_u32]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let (error, payload, file) = client.call_for_file(GET_REGION_INFO, &ask, &[]);
    assert_eq!((error, payload[4]), (0, 3));
    assert!(file.is_none());
}

#[test]
fn client_maps_single_pages_of_more_memory_than_two_vms_have() {
    let served = Card::start(&[]);
    let card = served.attach();
    let file = memory(4096);
    // Beyond the 65,535 that a kernel admits: QEMU's IOMMU goes on when one is refused, and loads of that page read ones.
    let addresses = (0..70_000).map(|page| 0x1_0000_0000 + page * 4096);
    for at in addresses.clone() {
        card.dma_map(at, 4096, &file, 0, true).unwrap();
    }
    for at in addresses {
        card.dma_unmap(at, 4096).unwrap();
    }
    served.end();
}

#[test]
fn second_client_is_hung_up_on_and_the_first_goes_on() {
    let mut card = Card::start(&[]);
    let first = card.attach();
    let mut second = Raw::connect(&card.socket());
    assert!(second.is_hung_up());
    card.process.wait_for_words();
    assert_eq!(read_register(&first, PmcReg::Boot0), Board::Gtx480.boot0());
}

#[test]
fn bad_messages_are_refused_and_the_client_goes_on() {
    let card = Card::start(&[]);
    let mut client = Raw::attach(&card.socket());
    let file = memory(0x2000);
    assert_eq!(client.call(99, &[], &[]).0, EOPNOTSUPP);
    assert_eq!(client.call(DMA_MAP, &[0; 4], &[]).0, EINVAL, "short");
    assert_eq!(client.read(0, u64::MAX, 4).0, EINVAL, "beyond the region");
    assert_eq!(client.read(2, 0, 4).0, EINVAL, "no such region");
    assert_eq!(
        client.dma(DMA_MAP, 0x1000, 0x3000, Some(&file)),
        EINVAL,
        "beyond the file"
    );
    assert_eq!(
        client.dma(DMA_MAP, 0x1001, 0x1000, Some(&file)),
        EINVAL,
        "misaligned"
    );
    assert_eq!(client.dma(DMA_MAP, 0x1000, 0x2000, Some(&file)), 0);
    assert_ne!(client.dma(DMA_MAP, 0x2000, 0x1000, Some(&file)), 0, "overlaps");
    assert_ne!(client.dma(DMA_UNMAP, 0x1000, 0x1000, None), 0, "part of a map");
    assert_eq!(client.dma(DMA_UNMAP, 0x1000, 0x2000, None), 0);
    assert_eq!(
        client.read(0, 0, 4),
        (0, Board::Gtx480.boot0().to_le_bytes().to_vec())
    );
}

#[test]
fn client_that_breaks_off_leaves_a_card_that_serves_the_next() {
    let card = Card::start(&[]);
    let mut oversized = Raw::attach(&card.socket());
    oversized.send(REGION_WRITE, u32::MAX, &[], &[]);
    // The refusal, then the end.
    let mut rest = Vec::new();
    oversized.stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 16);
    drop(oversized);
    let mut torn = Raw::attach(&card.socket());
    torn.send(REGION_WRITE, 100, &[0; 10], &[]);
    drop(torn);
    let mut silent = Raw::connect(&card.socket());
    silent.stream.write_all(&[1, 2, 3]).unwrap();
    drop(silent);
    assert_eq!(
        read_register(&card.attach(), PmcReg::Boot0),
        Board::Gtx480.boot0()
    );
}

#[test]
fn trace_names_registers_and_tells_of_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let card = Card::start(&["--trace", path.to_str().unwrap()]);
    let client = card.attach();
    for _ in 0..3 {
        read_register(&client, PmcReg::Boot0);
    }
    write_register(&client, PbusReg::PraminBase, 0x10);
    drop(client);
    let said = card.end();
    assert!(
        said.contains("longest run of reads of one register: 3 of Boot0"),
        "{said}"
    );
    let trace = std::fs::read_to_string(path).unwrap();
    assert!(
        trace.contains(" write BAR0   0x00001700  4 0x00000010 PraminBase\n"),
        "{trace}"
    );
}

#[test]
fn wrong_words_are_wrong_usage() {
    complaint(&["gpu"], 2);
    let line = complaint(&["gpu", "--socket", "x", "--model", "gtx999"], 2);
    assert!(line.contains("choose gtx480, quadro6000 or c2050"), "{line}");
    complaint(&["gpu", "--socket", "x", "--vram", "3"], 2);
}

#[test]
fn place_that_cannot_be_a_socket_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let line = complaint(&["gpu", "--socket", file.to_str().unwrap()], 1);
    assert!(line.contains("is not a socket"), "{line}");
}
