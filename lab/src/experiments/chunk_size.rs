//! Figures 7 to 9, unscaled: run times of two programs, and the delay of requests, by the size of a chunk.
//!
//! 100 MiB for guests. A program holds all of it, another asks for objects as programs do, each by itself; then pairs of the
//! two programs of Figures 7 and 8 run on it.

use vgpu::{Notice, VmId};

use super::pair;
use super::{Experiment, PAIR};
use crate::host::{Host, LabError};
use crate::jobs::{self, Onlooker};
use crate::programs::{Kernel, Objects, vram_start};
use crate::report::{Chart, Report, Series, Spread, Table};
use crate::settings::{Settings, vm_config};
use crate::statistics::spread;
use crate::{KIB, MIB};

const PAPER: &str = "\"a chunk size of 2 MB minimizes the allocation delay. At smaller chunk sizes, GPUswap must consider a large number of \
    chunks, which leads to a high computational overhead [...] while at larger chunk sizes, the delay is dominated by long DMA transfer times\"; \
    backprop benefits from small chunks, heartwall prefers larger ones";

/// Memory for guests.
const USABLE: u64 = 100 * MIB;
/// Sizes of a chunk: 128 KiB to 64 MiB, each twice the one before.
const SIZES: [u64; 10] = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
/// The same of a quick run.
const SIZES_QUICK: [u64; 5] = [128, 512, 2048, 8192, 65536];
/// Objects of the program that asks, KiB: the sizes of buffers of the six programs at 250 MB, each once.
const OBJECTS: [u64; 10] = [128, 512, 1024, 2048, 4096, 6144, 8192, 10240, 12288, 1024];
/// What the program that is there already has.
const HELD: u64 = 128 * MIB;
/// Programs of Figures 7 and 8.
const PROGRAMS: [&str; 2] = ["backprop", "heartwall"];

#[derive(Clone, Copy, Debug)]
struct Job {
    /// The pair to run; without one it is the delay.
    kernel: Option<Kernel>,
    chunk_bytes: u64,
    seed: u64,
}

impl Job {
    fn name(&self) -> String {
        let name = self.kernel.map_or("delay", |kernel| kernel.name);
        format!(
            "{name}, chunks of {} KiB, seed {}",
            self.chunk_bytes / KIB,
            self.seed
        )
    }
}

/// Milliseconds: of the slower of a pair, or of a request on average.
fn do_job(settings: &Settings, job: &Job, onlooker: &dyn Onlooker) -> Result<f64, LabError> {
    let config = settings.profile.config(1, job.chunk_bytes, USABLE, job.seed);
    match job.kernel {
        Some(kernel) => {
            let pair = pair::run([kernel; 2], config, job.chunk_bytes, onlooker)?;
            Ok(pair.slower_ns() as f64 / 1e6)
        }
        None => delay(Host::new(config, onlooker), job.chunk_bytes),
    }
}

/// How long a request waits on average; one that finds memory does not wait.
fn delay(mut host: Host<'_>, chunk_bytes: u64) -> Result<f64, LabError> {
    let [holder, asker]: [VmId; 2] = PAIR;
    let asked: u64 = OBJECTS.iter().map(|kib| kib * KIB).sum();
    host.attach(holder, vm_config("holder", vram_start() + HELD, chunk_bytes))?;
    host.attach(asker, vm_config("asker", vram_start() + asked, chunk_bytes))?;
    let _held = host.run(holder, |bus| {
        let mut program = Objects::start(bus)?;
        (0..HELD / (4 * MIB)).try_for_each(|_| program.allocate(bus, 4 * MIB).map(|_| ()))?;
        Ok(program)
    })?;
    host.world.notices.clear();
    host.run(asker, |bus| {
        let mut program = Objects::start(bus)?;
        OBJECTS
            .iter()
            .try_for_each(|kib| program.allocate(bus, kib * KIB).map(|_| ()))?;
        Ok(())
    })?;
    let waits = host.world.notices.iter().map(|(_, notice)| match notice {
        Notice::DemandEnded { waited_ns, .. } => *waited_ns,
        _ => 0,
    });
    Ok(waits.sum::<u64>() as f64 / 1e6 / OBJECTS.len() as f64)
}

/// Sizes of a chunk at each point.
fn sizes(settings: &Settings) -> Vec<u64> {
    let own: &[u64] = match settings.quick {
        true => &SIZES_QUICK,
        false => &SIZES,
    };
    match settings.sizes.is_empty() {
        true => own.iter().map(|kib| kib * KIB).collect(),
        false => settings.sizes.clone(),
    }
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let sizes = sizes(settings);
    let kernels = PROGRAMS.map(|name| Kernel {
        name,
        footprint: settings.choose(80, 60) * MIB,
        repeats: settings.choose(2, 1) as u32,
    });
    let mut jobs = Vec::new();
    for kernel in [None].into_iter().chain(kernels.map(Some)) {
        for &chunk_bytes in &sizes {
            // Of two whole programs a quick run has time for one run each.
            let runs = match (settings.quick, kernel) {
                (true, Some(_)) => 1,
                _ => settings.seeds as usize,
            };
            jobs.extend(settings.seeds().take(runs).map(|seed| Job {
                kernel,
                chunk_bytes,
                seed,
            }));
        }
    }
    let figures = jobs::all(&jobs, onlooker, Job::name, |job, onlooker| {
        do_job(settings, job, onlooker)
    })?;
    let point = |name: Option<&str>, size: u64| {
        let runs = jobs.iter().zip(&figures);
        let runs =
            runs.filter(|(job, _)| job.kernel.map(|kernel| kernel.name) == name && job.chunk_bytes == size);
        spread(&runs.map(|(_, figure)| *figure).collect::<Vec<f64>>())
    };
    let mut report = Experiment::ChunkSize.report("Figures 7 to 9 of GPUswap's paper", PAPER, settings);
    let rows = sizes.iter().map(|&size| {
        let mut row = vec![(size / KIB).into()];
        row.extend(PROGRAMS.map(|name| point(Some(name), size).into()));
        row.push(point(None, size).into());
        row
    });
    let columns = [
        "chunk, KiB",
        "backprop, ms",
        "heartwall, ms",
        "delay of a request, ms",
    ];
    report.tables.push(Table {
        title: "unscaled: 100 MiB for guests".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    });
    let delays: Vec<(u64, Spread)> = sizes.iter().map(|&size| (size, point(None, size))).collect();
    report.notes.push(minimum(&delays));
    report.claim(
        delays.iter().any(|(_, delay)| delay.mean > 0.0),
        "requests had to wait".to_owned(),
    );
    report.charts = charts(&sizes, point);
    Ok(report)
}

fn charts(sizes: &[u64], point: impl Fn(Option<&str>, u64) -> Spread) -> Vec<Chart> {
    let names = [Some("backprop"), Some("heartwall"), None];
    let titles = [
        ("Figure 7: run time of backprop", "ms of the card"),
        ("Figure 8: run time of heartwall", "ms of the card"),
        ("Figure 9: delay of a request", "ms of the card"),
    ];
    names
        .into_iter()
        .zip(titles)
        .map(|(name, (title, y))| Chart {
            title: title.to_owned(),
            x: "chunk, KiB".to_owned(),
            y: y.to_owned(),
            is_doubling: true,
            series: vec![Series {
                name: "vramd".to_owned(),
                points: sizes
                    .iter()
                    .map(|&size| ((size / KIB) as f64, point(name, size)))
                    .collect(),
                is_line: true,
            }],
        })
        .collect()
}

/// Where the delay is least, and why if that is an end.
fn minimum(delays: &[(u64, Spread)]) -> String {
    let mut sorted: Vec<&(u64, Spread)> = delays.iter().collect();
    sorted.sort_by_key(|(size, _)| *size);
    let least = sorted.iter().enumerate();
    let least = least.min_by(|(_, one), (_, other)| one.1.mean.total_cmp(&other.1.mean));
    let Some((at, (size, delay))) = least else {
        return "no size was measured".to_owned();
    };
    let found = format!(
        "the delay is least with chunks of {} KiB ({:.3} ms)",
        size / KIB,
        delay.mean
    );
    match at {
        0 => format!(
            "{found}, the smallest: what made small chunks slow in the paper, the reducer's look at each of them in the context of the \
             request, takes no time on the card's clock (docs/performance.md has it in the host's), and all chunks of a decision are copied \
             in one suspension, so that a chunk more costs a copy's start-up alone"
        ),
        at if at + 1 == sorted.len() => {
            format!(
                "{found}, the largest: the start-up of copies outweighs the bytes that are copied needlessly"
            )
        }
        _ => format!(
            "{found}: below it the start-up of copies and moves is more, above it bytes that nobody asked for"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;

    #[test]
    fn requests_wait_longer_for_the_largest_chunks_than_for_the_papers() {
        let delay_of = |chunk_bytes: u64| {
            let config = crate::Profile::Paper.config(1, chunk_bytes, USABLE, 1);
            delay(Host::new(config, &Patient), chunk_bytes).unwrap()
        };
        let (papers, largest) = (delay_of(2 * MIB), delay_of(64 * MIB));
        assert!(0.0 < papers && papers < largest, "{papers} {largest}");
    }

    #[test]
    fn minimum_at_an_end_says_which_cost_is_gone() {
        let delays = [(128, 1.0), (256, 2.0)].map(|(kib, mean)| (kib * KIB, Spread { mean, deviation: 0.0 }));
        assert!(minimum(&delays).contains("the reducer's look"));
        let delays = [(128, 3.0), (256, 1.0), (512, 2.0)];
        let delays = delays.map(|(kib, mean)| (kib * KIB, Spread { mean, deviation: 0.0 }));
        assert!(minimum(&delays).contains("256 KiB (1.000 ms): below it"));
    }
}
