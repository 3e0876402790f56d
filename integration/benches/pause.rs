//! How long a VM's channels stand still while its memory moves, at a broker in real time.
//!
//! * One chunk of 2 MiB at a time: a VM keeps the shader cores busy with grids, one after the other; its quota is lowered by a chunk and
//!   raised again. A pause is from the channel off the card to its doorbell written again, moves that were given up included. The drain is
//!   the part that the grid under way takes; what is left is ours. "Back" is from the quota that allows it to the chunk in VRAM.
//! * Chunks that change places: grids use three chunks in turn, two fit, and each grid waits for its own. A pause has two copies in it.
//! * One chunk of 32 MiB at a time, as a whole and in parts: how long it takes, and how long the VM stands still at a time.
//! * 256 MiB at once: the same with 128 chunks. The first time out and back is not in the figures: it touches pages of the host that are
//!   new.
//!
//! Copies of as many bytes by the CPU, between memories of which no page is new, say what the machine is worth in the same run.

#[path = "pairs/mod.rs"]
mod pairs;

use std::fs::File;
use std::hint::black_box;

use anyhow::Result;
use broker::VmStats;
use integration::neighbour::Host;
use pairs::{Mode, nanoseconds};
use rustix::fs::{MemfdFlags, memfd_create};
use vgpu::policy::PolicyName;
use vm_memory::{Bytes as _, FileOffset, MmapRegion, VolatileMemory as _};

/// Moves in each direction.
const MOVES: usize = 200;
/// Relocations in each direction.
const RELOCATIONS: usize = 8;
/// Grids before the clock runs.
const WARM_UP: u64 = 20;
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 2 * MIB;
const LARGE: u64 = 256 * MIB;
/// A chunk that takes longer than a suspension may.
const LARGE_CHUNK: u64 = 32 * MIB;
/// Moves of it in each direction.
const LARGE_MOVES: usize = 40;

fn main() -> Result<()> {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return Ok(());
    }
    chunks(mode)?;
    exchanges(mode)?;
    parts(mode)?;
    large(mode)
}

/// Pauses for a chunk that is moved as a whole, and in parts.
fn parts(mode: Mode) -> Result<()> {
    println!(
        "{:<22} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "32 MiB, microseconds", "pauses", "median", "p99", "longest", "in vain", "out", "back"
    );
    let in_parts = vgpu::GpuConfig::default().part_bytes;
    for (name, part_bytes) in [("as a whole", LARGE_CHUNK), ("in parts", in_parts)] {
        let host = Host::with_chunks(448 * MIB, 352 * MIB, LARGE_CHUNK, part_bytes)?;
        let mut vm = host.large_grinder();
        vm.wait_for(WARM_UP)?;
        // Pages of the host that are new are no part of it.
        for is_out in [true, false] {
            host.relocate(LARGE_CHUNK, is_out)?;
        }
        let mut took = [Vec::new(), Vec::new()];
        for _ in 0..mode.rounds(LARGE_MOVES) {
            for (is_out, took) in [true, false].into_iter().zip(&mut took) {
                took.push(host.relocate(LARGE_CHUNK, is_out)?.2.as_nanos() as u64);
            }
        }
        let stats = host.stats()?;
        vm.end()?;
        let micro = |ns: u64| ns as f64 / 1e3;
        let [out, back] = took.map(|mut took| micro(median(&mut took)));
        println!(
            "{name:<22} {:>6} {:>9.0} {:>9.0} {:>9.0} {:>9} {out:>9.0} {back:>9.0}",
            stats.pauses.count,
            micro(stats.pauses.p50_ns),
            micro(stats.pauses.p99_ns),
            micro(stats.pauses.max_ns),
            stats.pauses_in_vain,
        );
    }
    Ok(())
}

/// Pauses in which a chunk leaves and another one comes.
fn exchanges(mode: Mode) -> Result<()> {
    println!(
        "{:<22} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
        "exchanges", "pauses", "median", "p99", "longest", "drain", "p99", "in vain", "each way"
    );
    let host = Host::looking(PolicyName::GdmAlways)?;
    let mut vm = host.rotator();
    vm.wait_for(WARM_UP)?;
    let before = host.stats_of_other()?;
    let wanted = mode.rounds(MOVES) as u64;
    let mut stats = before.clone();
    while count(&stats) - count(&before) < wanted {
        vm.wait_for(1)?;
        stats = host.stats_of_other()?;
    }
    vm.end()?;
    let pauses = count(&stats) - count(&before);
    let moved = |stats: &VmStats| stats.spilled_out_bytes + stats.refilled_bytes;
    let micro = |ns: u64| ns as f64 / 1e3;
    println!(
        "{:<22} {pauses:>6} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>8} {:>9.2}",
        "microseconds",
        micro(stats.pauses.p50_ns),
        micro(stats.pauses.p99_ns),
        micro(stats.pauses.max_ns),
        micro(stats.drains.p50_ns),
        micro(stats.drains.p99_ns),
        stats.pauses_in_vain,
        (moved(&stats) - moved(&before)) as f64 / (2 * CHUNK * pauses) as f64,
    );
    Ok(())
}

fn chunks(mode: Mode) -> Result<()> {
    println!("memcpy of a chunk: {:.0} µs", memcpy(CHUNK as usize) / 1e3);
    println!(
        "{:<22} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9}",
        "microseconds",
        "pauses",
        "median",
        "p99",
        "longest",
        "drain",
        "p99",
        "less it",
        "in vain",
        "back",
        "longest"
    );
    for (name, has_long_grids) in [("grids of 0.3 ms", false), ("grids of 10 to 20 ms", true)] {
        let host = Host::start()?;
        let mut vm = host.grinder(has_long_grids);
        vm.wait_for(WARM_UP)?;
        let (mut less, mut back) = (Vec::new(), Vec::new());
        for _ in 0..mode.rounds(MOVES) {
            for is_out in [true, false] {
                let (_, stats, took) = host.relocate(CHUNK, is_out)?;
                less.push(stats.pauses.last_ns.saturating_sub(stats.drains.last_ns));
                if !is_out {
                    back.push(took.as_nanos() as u64);
                }
            }
        }
        let stats = host.stats()?;
        vm.end()?;
        let micro = |ns: u64| ns as f64 / 1e3;
        println!(
            "{name:<22} {:>6} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>9.0} {:>8} {:>9.0} {:>9.0}",
            stats.pauses.count,
            micro(stats.pauses.p50_ns),
            micro(stats.pauses.p99_ns),
            micro(stats.pauses.max_ns),
            micro(stats.drains.p50_ns),
            micro(stats.drains.p99_ns),
            micro(median(&mut less)),
            stats.pauses_in_vain,
            micro(median(&mut back)),
            micro(back.last().copied().unwrap_or(0)),
        );
    }
    Ok(())
}

fn large(mode: Mode) -> Result<()> {
    println!("memcpy of 256 MiB: {:.1} ms", memcpy(LARGE as usize) / 1e6);
    println!(
        "the same between memory files: {:.1} ms",
        between_files(LARGE as usize)? / 1e6
    );
    println!(
        "{:<22} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "256 MiB, milliseconds", "copies", "pauses", "longest", "whole", "MiB/s"
    );
    let host = Host::with_vram(448 * MIB, 352 * MIB)?;
    let mut vm = host.large_grinder();
    vm.wait_for(WARM_UP)?;
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for round in 0..=mode.rounds(RELOCATIONS) {
        for is_out in [true, false] {
            let (before, after, took) = host.relocate(LARGE, is_out)?;
            let figures = (
                after.copying_ns - before.copying_ns,
                count(&after) - count(&before),
                took,
            );
            match (round, is_out) {
                (0, _) => {}
                (_, true) => out.push(figures),
                (_, false) => back.push(figures),
            }
        }
    }
    let longest = host.stats()?.pauses.max_ns;
    vm.end()?;
    for (name, mut all) in [("to host RAM", out), ("back", back)] {
        all.sort_unstable();
        let (copying_ns, pauses, took) = all[all.len() / 2];
        println!(
            "{name:<22} {:>9.1} {pauses:>9} {:>9.1} {:>9.1} {:>9.0}",
            copying_ns as f64 / 1e6,
            longest as f64 / 1e6,
            took.as_secs_f64() * 1e3,
            LARGE as f64 / MIB as f64 / (copying_ns as f64 / 1e9),
        );
    }
    Ok(())
}

fn count(stats: &VmStats) -> u64 {
    stats.pauses.count
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// The same between memory files as VRAM and images are, all of whose pages are there.
fn between_files(bytes: usize) -> Result<f64> {
    let [source, target] = [mapped(bytes)?, mapped(bytes)?];
    let (source, target) = (source.as_volatile_slice(), target.as_volatile_slice());
    let mut times: Vec<f64> = (0..16)
        .map(|_| nanoseconds(|| source.copy_to_volatile_slice(target)))
        .collect();
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn mapped(bytes: usize) -> Result<MmapRegion> {
    let file = File::from(memfd_create("pause", MemfdFlags::CLOEXEC)?);
    file.set_len(bytes as u64)?;
    let region = MmapRegion::from_file(FileOffset::new(file, 0), bytes)?;
    region.as_volatile_slice().write_slice(&vec![1; bytes], 0)?;
    Ok(region)
}

/// Median time to copy so many bytes, in nanoseconds. The C library stores past the caches where it is worth while.
fn memcpy(bytes: usize) -> f64 {
    let whole = bytes.max(16 * CHUNK as usize);
    let (source, mut target) = (vec![1_u8; whole], vec![2_u8; whole]);
    let mut times: Vec<f64> = (0..16)
        .map(|number| {
            let start = number % (whole / bytes) * bytes;
            let range = start..start + bytes;
            // Nobody looks at the target otherwise, and a copy that nobody looks at is left out.
            nanoseconds(|| black_box(&mut target[range.clone()]).copy_from_slice(black_box(&source[range])))
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
