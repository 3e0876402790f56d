//! How long a VM waits for its vGPU, by the size of its VRAM, and for maps of its RAM, page by page; and how long others wait meanwhile.
//!
//! Nothing of it is touched before the VM does, so it should not go by the size. A neighbour reads a register all the time: the longest of
//! its waits is what an attach costs others.

#[path = "pairs/mod.rs"]
mod pairs;

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use broker::{Broker, SocketAccess, VmSocket};
use card::CardConfig;
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use pairs::Mode;
use vgpu::{GpuConfig, Quota, VmConfig};
use vmm::{VfioUserLink, VgpuLink as _};
use vramd::host::{CardChoice, HostSetup, start_broker};

const MIB: u64 = 1 << 20;
/// VRAM of the VM that attaches.
const SIZES: [u64; 5] = [64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB, 8192 * MIB];
const ROUNDS: usize = 21;
/// Maps of the VM that maps page by page, as of a guest with an IOMMU.
const MAPS: [u64; 3] = [512, 4096, 16_384];
const PAGE: u64 = 4096;

fn config(name: &str, guest_vram: u64) -> VmConfig {
    VmConfig {
        name: name.to_owned(),
        guest_vram,
        chunk_bytes: 2 * MIB,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// A VM of each size attaches and detaches.
fn by_size(mode: Mode, broker: &Broker, longest: &AtomicU64) -> Result<()> {
    println!(
        "{:>8} {:>12} {:>12} {:>14} {:>22}",
        "VRAM", "attach ms", "longest ms", "detach ms", "neighbour waited ms"
    );
    for size in SIZES {
        let (mut attached, mut detached) = (Vec::new(), Vec::new());
        longest.store(0, Ordering::Relaxed);
        for _ in 0..mode.rounds(ROUNDS) {
            let start = Instant::now();
            let link = broker.attach(config("attaching", size))?;
            attached.push(start.elapsed());
            let start = Instant::now();
            link.detach()?;
            detached.push(start.elapsed());
        }
        attached.sort_unstable();
        detached.sort_unstable();
        let middle = attached.len() / 2;
        println!(
            "{:>7}M {:>12.2} {:>12.2} {:>14.2} {:>22.2}",
            size / MIB,
            1e3 * attached[middle].as_secs_f64(),
            1e3 * attached[attached.len() - 1].as_secs_f64(),
            1e3 * detached[middle].as_secs_f64(),
            ms(longest.load(Ordering::Relaxed))
        );
    }
    Ok(())
}

/// A client maps so many pages one by one, every second page of a file, and goes.
fn by_maps(mode: Mode, broker: &Broker, socket: &Path, longest: &AtomicU64) -> Result<()> {
    println!(
        "\n{:>8} {:>12} {:>22} {:>12} {:>22}",
        "maps", "µs a map", "neighbour waited ms", "gone ms", "neighbour waited ms"
    );
    let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, 2 * MAPS[MAPS.len() - 1] * PAGE)?;
    for maps in MAPS {
        for _ in 0..mode.rounds(3) {
            let link = VfioUserLink::connect(socket)?;
            longest.store(0, Ordering::Relaxed);
            let start = Instant::now();
            for page in 0..maps {
                link.dma_map(2 * page * PAGE, PAGE, file.as_fd(), 2 * page * PAGE)
                    .with_context(|| format!("map {page}"))?;
            }
            let each = start.elapsed().as_secs_f64() * 1e6 / maps as f64;
            let waited = longest.swap(0, Ordering::Relaxed);
            let start = Instant::now();
            drop(link);
            while broker
                .snapshot()
                .vms
                .iter()
                .any(|vm| vm.is_attached && vm.name == "pages")
            {
                std::thread::yield_now();
            }
            println!(
                "{maps:>8} {each:>12.1} {:>22.2} {:>12.2} {:>22.2}",
                ms(waited),
                1e3 * start.elapsed().as_secs_f64(),
                ms(longest.load(Ordering::Relaxed))
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("pages.sock");
    let broker = start_broker(HostSetup {
        card: CardChoice::Model(CardConfig {
            board: Board::Gtx480,
            vram_bytes: 1536 * MIB,
            needs_microcode: false,
            strict: true,
            paced: false,
            workers: 0,
        }),
        settings: GpuConfig {
            host_ram: 16 << 30,
            seed: 1,
            ..GpuConfig::default()
        },
        firmware: None,
        flights: None,
        record: None,
        vms: vec![VmSocket::bind(
            &socket,
            &SocketAccess::default(),
            config("pages", 64 * MIB),
        )?],
    })?;
    let neighbour = broker.attach(config("neighbour", 64 * MIB))?;
    let (is_over, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                if neighbour.read(Bar::Bar0, 0, &mut [0; 4]).is_err() {
                    return;
                }
                let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                longest.fetch_max(ns, Ordering::Relaxed);
            }
        });
        let measured =
            by_size(mode, &broker, &longest).and_then(|()| by_maps(mode, &broker, &socket, &longest));
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}
