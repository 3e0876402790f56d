//! Against our own server with something that looks like a card; the software card itself is joined in `card`.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use vfio_user_server::serve::serve_client;
use vfio_user_server::{
    Accepted, Client, DmaMap, Errno, FunctionInfo, IrqChange, IrqEvent, IrqOperation, Listener, PciFunction,
    RegionInfo,
};
use vgpu::{ConfigSpace, GpuConfig};

use super::*;
use crate::mapping::{PAGE, map_shared, sealed_memfd};
use crate::pci_function::{BarSizes, function};
use crate::testing::{FakeGpu, TestCore, setup, vm_config};
use crate::{Broker, Setup};

const BARS: BarSizes = BarSizes {
    bar1: 128 << 20,
    bar3: 64 << 20,
};

/// Requests that it received, in words.
type Said = Sender<String>;

/// Registers that count the writes so far, a configuration space, an interrupt after each write of BAR0.
struct Board {
    config: ConfigSpace,
    /// Answers reads of configuration space instead.
    raw_config: Option<Vec<u8>>,
    writes: u32,
    interrupt: Option<IrqEvent>,
    /// It reads ones.
    is_dead: Arc<AtomicBool>,
    said: Said,
}

impl PciFunction for Board {
    fn read(&mut self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        if self.is_dead.load(Ordering::SeqCst) {
            data.fill(0xff);
            return Ok(());
        }
        match (region, &self.raw_config) {
            (Region::Config, Some(raw)) => data.copy_from_slice(&raw[offset as usize..][..data.len()]),
            (Region::Config, None) => self.config.read(offset, data),
            _ => data.copy_from_slice(&self.writes.to_le_bytes()[..data.len()]),
        }
        Ok(())
    }

    fn write(&mut self, region: Region, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if region == Region::Config {
            self.config.write(offset, data);
            return Ok(());
        }
        self.writes += 1;
        let _ = self
            .said
            .send(format!("{region:?} {offset:#x} {} bytes", data.len()));
        if let Some(interrupt) = self.interrupt.as_ref().filter(|_| region == Region::Bar0) {
            interrupt.signal()?;
        }
        Ok(())
    }

    fn change_irqs(&mut self, change: IrqChange) -> Result<(), Errno> {
        if let IrqChange::Vectors {
            operation: IrqOperation::Connect(events),
            index,
            ..
        } = change
        {
            let can_interrupt = self.config.can_interrupt();
            let _ = self.said.send(format!("{index:?}, enabled: {can_interrupt}"));
            self.interrupt = events.into_iter().next();
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        self.config.reset();
        let _ = self.said.send("reset".to_owned());
        Ok(())
    }

    fn dma_map(&mut self, map: &Arc<DmaMap>) -> Result<(), Errno> {
        let _ = self.said.send(format!(
            "map {:#x} at {:#x}",
            map.iova,
            map.file.as_ref().map_or(0, |file| file.offset)
        ));
        Ok(())
    }

    fn dma_unmap(&mut self, map: &Arc<DmaMap>) {
        let _ = self.said.send(format!("unmap {:#x}", map.iova));
    }
}

fn config() -> ConfigSpace {
    ConfigSpace::of(&GpuConfig {
        board: fermi_spec::board::Board::TeslaC2050,
        bar1_bytes: BARS.bar1,
        bar3_bytes: BARS.bar3,
        ..GpuConfig::default()
    })
}

fn info() -> FunctionInfo {
    function(BARS, None)
}

/// A server of one client, and what it is asked.
struct Serving {
    path: PathBuf,
    asked: Receiver<String>,
    /// Hangs up on the client.
    client: Arc<Mutex<Option<UnixStream>>>,
    is_dead: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Serving {
    fn card() -> Self {
        Self::of(info(), None)
    }

    fn of(info: FunctionInfo, raw_config: Option<Vec<u8>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card.sock");
        let mut listener = Listener::bind(&path).unwrap();
        let (said, asked) = channel();
        let client = Arc::new(Mutex::new(None));
        let accepted = client.clone();
        let is_dead = Arc::new(AtomicBool::new(false));
        let mut board = Board {
            config: config(),
            raw_config,
            writes: 0,
            interrupt: None,
            is_dead: is_dead.clone(),
            said,
        };
        let thread = std::thread::spawn(move || {
            let attached: Client = loop {
                if let Some(Accepted::Client(client)) = listener.accept(&info).unwrap() {
                    break *client;
                }
                std::thread::yield_now();
            };
            let stream = UnixStream::from(attached.as_fd().try_clone_to_owned().unwrap());
            *accepted.lock().unwrap() = Some(stream);
            serve_client(attached, &mut board).unwrap();
        });
        Self {
            path,
            asked,
            client,
            is_dead,
            thread,
            _folder: folder,
        }
    }

    fn hang_up(&self) {
        let stream = self.client.lock().unwrap().take().unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    /// Ends with the client.
    fn asked(self) -> Vec<String> {
        self.thread.join().unwrap();
        self.asked.iter().collect()
    }

    fn refusal(self) -> String {
        let error = RemoteGpu::connect(&self.path).unwrap_err();
        assert!(matches!(error, RemoteGpuError::NotACard { .. }), "{error}");
        error.to_string()
    }
}

#[test]
fn attached_card_was_reset_and_may_interrupt() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    assert_eq!(gpu.board(), fermi_spec::board::Board::TeslaC2050);
    let capabilities = gpu.capabilities();
    assert_eq!(
        (capabilities.bar1_bytes, capabilities.bar3_bytes),
        (128 << 20, 64 << 20)
    );
    assert!(!capabilities.frames_arrive_zeroed && !gpu.take_interrupt());
    gpu.write(Bar::Bar0, 0x140, &[1, 0, 0, 0]).unwrap();
    // The answer comes after the interrupt.
    gpu.read(Bar::Bar0, 0, &mut [0; 4]).unwrap();
    assert!(gpu.take_interrupt() && !gpu.take_interrupt());
    drop(gpu);
    assert_eq!(
        serving.asked(),
        ["reset", "Msi, enabled: true", "Bar0 0x140 4 bytes"]
    );
}

#[test]
fn load_sees_all_stores_before_it_and_registers_are_accessed_in_words() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    gpu.write(Bar::Bar3, 0x1000, &[1; 5000]).unwrap();
    gpu.write(Bar::Bar0, 0x70_0002, &[2; 7]).unwrap();
    let mut count = [0; 4];
    gpu.read(Bar::Bar1, 0, &mut count).unwrap();
    assert_eq!(u32::from_le_bytes(count), 4);
    drop(gpu);
    assert_eq!(
        serving.asked()[2..],
        [
            "Bar3 0x1000 5000 bytes",
            "Bar0 0x700002 2 bytes",
            "Bar0 0x700004 4 bytes",
            "Bar0 0x700008 1 bytes"
        ]
    );
}

#[test]
fn dma_map_names_the_file_and_the_place_in_it() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    let file = Arc::new(sealed_memfd("dma", 8 * PAGE).unwrap());
    let memory = DmaMemory {
        region: map_shared(file, 2 * PAGE, 4 * PAGE, true).unwrap(),
        offset: PAGE,
        bytes: 2 * PAGE,
    };
    gpu.map_dma(Iova(0x10_0000), memory.clone(), true).unwrap();
    let again = gpu.map_dma(Iova(0x10_1000), memory, true);
    assert!(matches!(again, Err(HostGpuError::Map { .. })), "{again:?}");
    gpu.unmap_dma(Iova(0x10_0000), 2 * PAGE).unwrap();
    let again = gpu.unmap_dma(Iova(0x10_0000), 2 * PAGE);
    assert!(matches!(again, Err(HostGpuError::Map { .. })), "{again:?}");
    drop(gpu);
    assert_eq!(serving.asked()[2], "map 0x100000 at 0x3000");
}

#[test]
fn memory_without_a_file_cannot_be_mapped() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    let memory = DmaMemory {
        region: Arc::new(vm_memory::MmapRegion::new(PAGE as usize).unwrap()),
        offset: 0,
        bytes: PAGE,
    };
    let outcome = gpu.map_dma(Iova(0), memory, true);
    assert!(matches!(outcome, Err(HostGpuError::Map { .. })), "{outcome:?}");
}

#[test]
fn server_that_hangs_up_is_a_lost_card() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    serving.hang_up();
    let error = gpu.read(Bar::Bar0, 0, &mut [0; 4]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the card is gone: the server closed the connection during RegionRead"
    );
    let error = gpu.flush().unwrap_err();
    assert!(matches!(error, HostGpuError::Lost { .. }));
}

#[test]
fn broker_ends_when_an_idle_card_hangs_up() {
    let serving = Serving::card();
    let gpu = RemoteGpu::connect(&serving.path).unwrap();
    let broker = Broker::start(Setup {
        interrupt: Some(gpu.interrupt().unwrap()),
        hangup: Some(gpu.hangup().unwrap()),
        gpu: Box::new(gpu),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    assert_eq!(broker.wait_ended(Duration::ZERO), None);
    serving.hang_up();
    let ended = broker.wait_ended(Duration::from_secs(20)).unwrap();
    assert!(ended.reason.contains("the card is gone"), "{ended}");
}

#[test]
fn card_that_reads_ones_ends_the_broker_and_gives_its_memory_back_first() {
    let serving = Serving::card();
    let mut gpu = RemoteGpu::connect(&serving.path).unwrap();
    let file = Arc::new(sealed_memfd("dma", PAGE).unwrap());
    let memory = DmaMemory {
        region: map_shared(file, 0, PAGE, true).unwrap(),
        offset: 0,
        bytes: PAGE,
    };
    gpu.map_dma(Iova(0x10_0000), memory, true).unwrap();
    let broker = Broker::start(Setup {
        interrupt: Some(gpu.interrupt().unwrap()),
        gpu: Box::new(gpu),
        ..setup(TestCore::default(), &FakeGpu::default(), None)
    })
    .unwrap();
    let _link = broker.attach(vm_config("a")).unwrap();
    assert_eq!(broker.wait_ended(Duration::ZERO), None);
    serving.is_dead.store(true, Ordering::SeqCst);
    let ended = broker.wait_ended(Duration::from_secs(20)).unwrap();
    assert!(ended.reason.contains("reads ones everywhere"), "{ended}");
    assert_eq!(serving.asked().last().unwrap(), "unmap 0x100000");
}

#[test]
fn function_of_another_vendor_is_no_card() {
    let mut raw = vec![0; 4096];
    raw[..4].copy_from_slice(&[0xf4, 0x1a, 0xd1, 0x06]);
    let refusal = Serving::of(info(), Some(raw)).refusal();
    assert!(
        refusal.ends_with("is not a GF100 card: its PCI id is 1af4:06d1"),
        "{refusal}"
    );
}

#[test]
fn capability_list_that_is_a_loop_has_no_msi() {
    let mut raw = vec![0; 4096];
    raw[..4].copy_from_slice(&[0xde, 0x10, 0xd1, 0x06]);
    raw[0x34] = 0x40;
    raw[0x40..0x42].copy_from_slice(&[1, 0x40]);
    let refusal = Serving::of(info(), Some(raw)).refusal();
    assert!(refusal.ends_with("it has no MSI capability"), "{refusal}");
}

#[test]
fn windows_of_wrong_sizes_are_no_card() {
    let with = |region, bytes| {
        Serving::of(info().with_region(region, RegionInfo::read_write(bytes)), None).refusal()
    };
    let refusals = [
        with(Region::Bar0, 1 << 20),
        with(Region::Bar1, 0),
        with(Region::Bar1, 3 << 26),
        with(Region::Bar3, u64::MAX),
    ];
    let named = [
        "its BAR0 has 0x100000",
        "its BAR1 has 0x0",
        "its BAR1 has 0xc000000",
        "its BAR3 has 0xfff",
    ];
    assert!(
        refusals
            .iter()
            .zip(named)
            .all(|(refusal, name)| refusal.contains(name)),
        "{refusals:?}"
    );
}

#[test]
fn card_that_cannot_be_reset_is_refused() {
    let serving = Serving::of(info().without_reset(), None);
    let error = RemoteGpu::connect(&serving.path).unwrap_err();
    let RemoteGpuError::Attach { source, .. } = error else {
        panic!("{error}");
    };
    assert!(matches!(source, RemoteError::Refused { .. }), "{source}");
}

#[test]
fn socket_that_is_not_there_is_named() {
    let error = RemoteGpu::connect(Path::new("/nonexistent.sock")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot attach to the card at /nonexistent.sock"
    );
}
