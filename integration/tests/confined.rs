//! A broker whose core panics under the filters of system calls of `vramd serve`: what happened is told and written all the same.

use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use broker::{Broker, Core, FlightFile, FlightFolder, HostRoom, Setup, SocketAccess, VmSocket};
use card::{CardConfig, ModelGpu};
use fermi_spec::board::Board;
use vfio_user_server::threads::confine_with;
use vfio_user_server::{Region, RemoteFunction};
use vgpu::inspect::Node;
use vgpu::{Actions, Event, GpuConfig, HostGpu as _, HostMemory, Manager, Quota, Request, Tick, VmConfig};
use vmm::sandbox::Sandbox;

/// Tells the process of a test where to work.
const FOLDER: &str = "VRAMD_TEST_FOLDER";
const VRAM: u64 = 32 << 20;
const WAIT: Duration = Duration::from_secs(60);
/// A store there has the core panic. No unit has a register at it.
const DEADLY: u64 = 0x00de_ad00;

/// A core with a fault.
struct Faulty(Manager);

impl Core for Faulty {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        let is_deadly = matches!(
            event,
            Event::Request {
                request: Request::Write { offset: DEADLY, .. },
                ..
            }
        );
        assert!(!is_deadly, "as the test wants it");
        self.0.apply(now, event, memory, actions);
    }

    fn inspect(&self, now: Tick, path: &str) -> Option<Node> {
        self.0.inspect(now, path)
    }
}

#[test]
#[ignore = "another test runs it as a process"]
fn as_a_broker() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let config = VmConfig {
        name: "a".to_owned(),
        guest_vram: 8 << 20,
        chunk_bytes: 2 << 20,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    };
    let socket = VmSocket::bind(&folder.join("a.sock"), &SocketAccess::default(), config).unwrap();
    Sandbox::enter_as_server().unwrap();
    confine_with(|kind| Sandbox::confine_serving(kind).map_err(io::Error::other));
    let board = Board::Gtx480;
    let gpu = ModelGpu::new(CardConfig {
        board,
        vram_bytes: VRAM,
        needs_microcode: false,
        strict: false,
        paced: false,
        workers: 0,
    });
    let gpu = gpu.unwrap();
    let capabilities = gpu.capabilities();
    let config = GpuConfig {
        board,
        bar1_bytes: capabilities.bar1_bytes,
        bar3_bytes: capabilities.bar3_bytes,
        frames_arrive_zeroed: capabilities.frames_arrive_zeroed,
        bus: capabilities.bus,
        ..GpuConfig::default()
    };
    let broker = Broker::start(Setup {
        core: Box::new(Faulty(Manager::new(config))),
        interrupt: Some(gpu.interrupt().unwrap()),
        gpu: Box::new(gpu),
        hangup: None,
        recorder: None,
        flights: Some(FlightFolder::new(folder, "g")),
        windows: vgpu::WindowMode::default(),
        room: HostRoom::default(),
        vms: vec![socket],
    });
    let broker = broker.unwrap();
    println!("serving");
    println!("ended: {:?}", broker.wait_ended(WAIT));
}

#[test]
fn panic_of_a_filtered_broker_is_told_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_broker", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        // It looks into files, which the thread may not.
        .env("RUST_BACKTRACE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("serving") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it does not serve");
    }
    let client = RemoteFunction::connect(&folder.path().join("a.sock"), WAIT).unwrap();
    // The broker hangs up instead of an answer.
    let _ = client.write(Region::Bar0, DEADLY, &[0; 4]);
    let (mut rest, mut told) = (String::new(), String::new());
    said.read_to_string(&mut rest).unwrap();
    process.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    let status = process.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{rest}{told}");
    assert!(rest.contains("panicked"), "{rest}{told}");
    assert!(told.contains("as the test wants it"), "{rest}{told}");
    let files = std::fs::read_dir(folder.path()).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    let flight = files
        .iter()
        .find(|file| file.extension().is_some_and(|end| end == "jsonl"));
    let flight = FlightFile::read(flight.unwrap_or_else(|| panic!("{files:?} {told}"))).unwrap();
    assert_eq!(flight.header.reason, "panic in the broker: as the test wants it");
}
