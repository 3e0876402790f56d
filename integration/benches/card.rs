//! One access of the broker to its card, in this process and over a vfio-user socket.
//!
//! The served card's thread stays on the first processor. The rows say whether the broker shares it: waking the
//! other one costs far more across cores, whichever program does it.

#[path = "pairs/cores.rs"]
mod cores;
#[path = "pairs/mod.rs"]
mod pairs;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use broker::RemoteGpu;
use card::{BoundSocket, CardConfig, GpuServer, GpuSetup, ModelGpu, SocketAccess};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::regs::{PbusReg, PmcReg};
use pairs::{Measure, Mode, Table, Way, nanoseconds};
use vgpu::HostGpu;

const ROUNDS: usize = 31;
/// Accesses in one round.
const BATCH: u32 = 500;
/// Stores between two moments at which the broker is idle: those of a redirect, of a channel's bind.
const GATHERED: u32 = 50;
const CARD: CardConfig = CardConfig {
    board: Board::Gtx480,
    vram_bytes: 64 << 20,
    needs_microcode: false,
    strict: false,
    paced: false,
    workers: 0,
};

/// A card that a thread of this process serves.
struct Served {
    gpu: RefCell<RemoteGpu>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start() -> anyhow::Result<Served> {
        let folder = tempfile::tempdir()?;
        let setup = GpuSetup {
            card: CARD,
            is_all_trapped: true,
            trace: None,
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let (stop, socket) = (Arc::clone(&is_over), folder.path().join("card.sock"));
        let bound = BoundSocket::bind(&socket, &SocketAccess::default())?;
        let (listening, is_listening) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut server = GpuServer::on(bound, &setup).expect("a card of usual size");
            listening.send(()).expect("somebody waits for it");
            server
                .serve(|| stop.load(Ordering::Relaxed), || false)
                .expect("the card works");
        });
        is_listening.recv()?;
        Ok(Served {
            gpu: RefCell::new(RemoteGpu::connect(&socket)?),
            is_over,
            thread: Some(thread),
            _folder: folder,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

fn loads(gpu: &RefCell<impl HostGpu>) -> f64 {
    let (mut gpu, mut data) = (gpu.borrow_mut(), [0; 4]);
    let at = u64::from(PmcReg::Boot0.offset());
    let total = nanoseconds(|| {
        for _ in 0..BATCH {
            gpu.read(Bar::Bar0, at, &mut data).expect("the card answers");
        }
    });
    assert_eq!(data, Board::Gtx480.boot0().to_le_bytes());
    total / f64::from(BATCH) / 1e3
}

/// Stores, `gathered` at a time; the last load waits until all have been done.
fn stores(gpu: &RefCell<impl HostGpu>, gathered: u32) -> f64 {
    let mut gpu = gpu.borrow_mut();
    let at = u64::from(PbusReg::PraminBase.offset());
    let mut data = [0; 4];
    let total = nanoseconds(|| {
        for value in 1..=BATCH {
            gpu.write(Bar::Bar0, at, &(value % 16).to_le_bytes())
                .expect("the card answers");
            if value % gathered == 0 {
                gpu.flush().expect("the card answers");
            }
        }
        gpu.read(Bar::Bar0, at, &mut data).expect("the card answers");
    });
    assert_eq!(data, (BATCH % 16).to_le_bytes());
    total / f64::from(BATCH) / 1e3
}

/// `work` on one of the processors.
fn on(cpu: usize, work: impl FnOnce() -> f64) -> f64 {
    cores::pin(&[cpu]);
    work()
}

fn compare(mode: Mode, embedded: &RefCell<ModelGpu>, served: &Served, cpu: usize, cores: &str) {
    let remote = &served.gpu;
    let ways: Vec<Way<'_>> = vec![
        ("load, in process", Box::new(move || on(cpu, || loads(embedded)))),
        (
            "store, in process",
            Box::new(move || on(cpu, || stores(embedded, 1))),
        ),
        ("load, socket", Box::new(move || on(cpu, || loads(remote)))),
        (
            "store alone, socket",
            Box::new(move || on(cpu, || stores(remote, 1))),
        ),
        (
            "store gathered, socket",
            Box::new(move || on(cpu, || stores(remote, GATHERED))),
        ),
    ];
    Table {
        title: &format!("one access of the broker to its card, served card on {cores}"),
        unit: "µs",
        measure: Measure::Time,
        bases: &["load, in process", "store, in process"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
}

fn main() -> anyhow::Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    let cpus = cores::processors();
    // The threads of both cards stay where they are started.
    cores::pin(&cpus[..1]);
    let embedded = RefCell::new(ModelGpu::new(CARD)?);
    let served = Served::start()?;
    cores::pin(&cpus);
    compare(mode, &embedded, &served, cpus[0], "the same core");
    match cpus.get(1) {
        Some(&other) => compare(mode, &embedded, &served, other, "another core"),
        None => println!("\nserved card on another core: SKIPPED (one processor)"),
    }
    Ok(())
}
