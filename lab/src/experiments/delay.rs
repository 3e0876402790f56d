//! Figure 6: how long a request for memory waits, how long who gives it up is stopped, and how long the copies take.
//!
//! 100 MB for guests. One program of the six is at work on memory that it has all of; another allocates objects of many sizes.

use vgpu::{Direction, MoveStage, Notice, VmId};

use super::Experiment;
use crate::host::{Host, LabError};
use crate::jobs::{self, Onlooker};
use crate::programs::{Kernel, Objects, SIX, vram_start};
use crate::report::{Chart, Report, Series, Spread, Table};
use crate::settings::{Settings, vm_config};
use crate::statistics::{Fit, fit, spread};
use crate::{KIB, MIB, SCALE};

const PAPER: &str = "requests \"were generally delayed by less than 100 ms\"; \"the delay experienced by other applications is dominated by \
    the time needed for the DMA transfer, which can be seen from the mostly linear relationship between the amount of relocated memory and \
    the delay\"";

/// Memory for guests: 100 MB.
const USABLE: u64 = 100 * MIB / SCALE;
/// Sizes of the objects that are asked for, in turn.
const OBJECTS: [u64; 8] = [128, 512, 256, 1024, 384, 640, 128, 1536];
/// What explains nearly all of a delay.
const LINEAR: f64 = 0.98;
const WORKER: VmId = VmId(0);
const ASKER: VmId = VmId(1);

/// Time by bytes.
type Points = Vec<(f64, f64)>;

/// What was seen in one run: bytes, and microseconds.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Of a request: bytes that were copied for it.
    requests: Points,
    /// Of a suspension, without the wait for what was under way.
    pauses: Points,
    /// Of the copies themselves.
    copies: Points,
    /// Wait for what was under way: microseconds.
    drains: Vec<f64>,
    /// Most that an access waited: nanoseconds.
    longest_ns: u64,
}

fn run_once(
    settings: &Settings,
    kernel: Kernel,
    seed: u64,
    onlooker: &dyn Onlooker,
) -> Result<Seen, LabError> {
    let chunk_bytes = settings.chunk_bytes();
    let config = settings.profile.config(SCALE, chunk_bytes, USABLE, seed);
    let mut host = Host::new(config, onlooker);
    host.attach(WORKER, vm_config("worker", kernel.guest_vram(), chunk_bytes))?;
    let asked: u64 = OBJECTS.iter().map(|kib| kib * KIB).sum();
    host.attach(ASKER, vm_config("asker", vram_start() + asked, chunk_bytes))?;
    // It works for longer than the other asks, and is stopped where it is.
    let _worker = host.start(WORKER, move |bus| kernel.run(bus));
    let is_at_work = |host: &Host<'_>| {
        host.lines
            .iter()
            .any(|line| Kernel::marks(&line.text) == Some(false))
    };
    host.turn_until("the first program's inputs", |host| is_at_work(host))?;
    host.world.notices.clear();
    host.run(ASKER, move |bus| {
        let mut program = Objects::start(bus)?;
        for kib in OBJECTS {
            program.allocate(bus, kib * KIB)?;
        }
        Ok(())
    })?;
    Ok(read(&host))
}

fn read(host: &Host<'_>) -> Seen {
    let mut seen = Seen::default();
    // Bytes copied since the request began to wait; of the move under way, time of its copies and of its suspension.
    let (mut copied_for, mut copying, mut paused) = (0, 0, None);
    for (_, notice) in &host.world.notices {
        match notice {
            Notice::DemandWaits { .. } => copied_for = 0,
            Notice::DemandEnded { waited_ns, .. } => {
                seen.longest_ns = seen.longest_ns.max(*waited_ns);
                if copied_for > 0 {
                    seen.requests
                        .push((copied_for as f64 / KIB as f64, *waited_ns as f64 / 1e3));
                }
            }
            Notice::MoveStarted { .. } => (copying, paused) = (0, None),
            Notice::MoveStage {
                stage: MoveStage::Copying,
                took_ns,
                ..
            } => copying = *took_ns,
            Notice::Resumed {
                suspended_ns,
                drained_ns,
                is_rolled_back: false,
                ..
            } => paused = Some((*suspended_ns, *drained_ns)),
            Notice::Moved {
                direction: Direction::Spill,
                copied,
                ..
            } if *copied > 0 => {
                copied_for += copied;
                let kib = *copied as f64 / KIB as f64;
                seen.copies.push((kib, copying as f64 / 1e3));
                if let Some((suspended, drained)) = paused.take() {
                    seen.pauses
                        .push((kib, suspended.saturating_sub(drained) as f64 / 1e3));
                    seen.drains.push(drained as f64 / 1e3);
                }
            }
            _ => {}
        }
    }
    seen
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let jobs: Vec<(Kernel, u64)> = SIX
        .iter()
        .flat_map(|&name| {
            let kernel = Kernel {
                name,
                footprint: 5 * MIB / 2,
                repeats: 1000,
            };
            settings.seeds().map(move |seed| (kernel, seed))
        })
        .collect();
    let name = |(kernel, seed): &(Kernel, u64)| format!("{}, seed {seed}", kernel.name);
    let runs = jobs::all(&jobs, onlooker, name, |&(kernel, seed), onlooker| {
        run_once(settings, kernel, seed, onlooker)
    })?;
    let all =
        |of: fn(&Seen) -> &Points| -> Points { runs.iter().flat_map(|seen| of(seen).clone()).collect() };
    let figures: [(&str, Points); 3] = [
        ("6a: a request waits", all(|seen| &seen.requests)),
        (
            "6b: who gives it up is stopped, without the drain",
            all(|seen| &seen.pauses),
        ),
        ("6c: copies", all(|seen| &seen.copies)),
    ];
    let mut report = Experiment::Delay.report("Figure 6 of GPUswap's paper", PAPER, settings);
    report.tables.push(table(&figures));
    let drains: Vec<f64> = runs.iter().flat_map(|seen| seen.drains.clone()).collect();
    let longest = runs.iter().map(|seen| seen.longest_ns).max().unwrap_or(0);
    report.notes.push(format!(
        "the drain, which is the wait for the grid under way, is in no line: {} µs",
        crate::report::Cell::from(spread(&drains))
    ));
    for (name, points) in &figures[1..] {
        let r2 = fit(points).map_or(0.0, |fit| fit.r2);
        report.claim(
            r2 >= LINEAR,
            format!("{name}: linear in bytes (R² = {r2:.4}, {} points)", points.len()),
        );
    }
    report.claim(
        longest < 100_000_000 && !figures[0].1.is_empty(),
        format!(
            "no request waits for 100 ms: the longest for {:.2} ms",
            longest as f64 / 1e6
        ),
    );
    report.charts = figures.iter().map(|(name, points)| chart(name, points)).collect();
    Ok(report)
}

/// A line through the points of each figure.
fn table(figures: &[(&str, Points)]) -> Table {
    let rows = figures.iter().map(|(name, points)| {
        let longest = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let Fit { offset, slope, r2 } = fit(points).unwrap_or(Fit {
            offset: f64::NAN,
            slope: f64::NAN,
            r2: 0.0,
        });
        vec![
            (*name).into(),
            (points.len() as u64).into(),
            offset.into(),
            (slope * 1024.0).into(),
            format!("{r2:.4}").into(),
            longest.into(),
        ]
    });
    let columns = [
        "delay",
        "points",
        "at 0 bytes, µs",
        "each MiB, µs",
        "R²",
        "longest, µs",
    ];
    Table {
        title: "delays as lines over bytes copied, time of the card".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

fn chart(name: &str, points: &Points) -> Chart {
    let points = points
        .iter()
        .map(|&(x, mean)| (x, Spread { mean, deviation: 0.0 }));
    Chart {
        title: format!("Figure {name}"),
        x: "KiB copied".to_owned(),
        y: "µs of the card".to_owned(),
        is_doubling: false,
        series: vec![Series {
            name: "all six programs".to_owned(),
            points: points.collect(),
            is_line: false,
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn delay_is_linear_in_bytes() {
        let report = run(&Settings::of(Profile::Paper, 1, true), &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }
}
