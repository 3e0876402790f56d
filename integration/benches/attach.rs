//! How long a VM waits for its vGPU, by the size of its VRAM, and how long others wait meanwhile.
//!
//! Nothing of it is touched before the VM does, so it should not go by the size. A neighbour reads a register all the time: the longest of
//! its waits is what an attach costs others.

#[path = "pairs/mod.rs"]
mod pairs;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use card::CardConfig;
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use pairs::Mode;
use vgpu::{GpuConfig, Quota, VmConfig};
use vramd::host::{CardChoice, HostSetup, start_broker};

const MIB: u64 = 1 << 20;
/// VRAM of the VM that attaches.
const SIZES: [u64; 5] = [64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB, 8192 * MIB];
const ROUNDS: usize = 21;

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

fn main() -> Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    let broker = start_broker(HostSetup {
        card: CardChoice::Model(CardConfig {
            board: Board::Gtx480,
            vram_bytes: 1536 * MIB,
            needs_microcode: false,
        }),
        settings: GpuConfig {
            host_ram: 16 << 30,
            seed: 1,
            ..GpuConfig::default()
        },
        firmware: None,
        flights: None,
        record: None,
        vms: Vec::new(),
    })?;
    let neighbour = broker.attach(config("neighbour", 64 * MIB))?;
    let (is_over, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    println!(
        "{:>8} {:>12} {:>12} {:>14} {:>22}",
        "VRAM", "attach ms", "longest ms", "detach ms", "neighbour waited ms"
    );
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
        let measured = SIZES.iter().try_for_each(|&size| -> Result<()> {
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
                longest.load(Ordering::Relaxed) as f64 / 1e6
            );
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}
