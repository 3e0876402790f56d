//! Figure 4: two programs that allocate, one after the other, until each has more than the card; then the first ends.
//!
//! 1400 MB for guests, objects and chunks of 32 MB, 64 of them for each program. So 43 fit, and 85 of 128 are selected for host
//! RAM: some are copied there, some get it at once because their program is its own victim.

use std::collections::BTreeMap;

use vgpu::{Direction, Notice, VmId};

use super::{Experiment, PAIR};
use crate::host::{Host, LabError, Moment};
use crate::jobs::{self, Onlooker};
use crate::programs::{Objects, vram_start};
use crate::report::{Chart, Report, Series, Spread, Table};
use crate::settings::{Settings, vm_config};
use crate::statistics::spread;
use crate::{MIB, SCALE};

const PAPER: &str = "\"alloc1's amount of GPU memory decreases at the same rate as the amount of GPU memory allocated to alloc2 \
    increases until both instances own approximately the same amount\"; \"alloc2 ends up with one more chunk than alloc1\"";

/// Memory for guests: 1400 MB.
const USABLE: u64 = 1400 * MIB / SCALE;
/// A chunk and an object: 32 MB.
const CHUNK: u64 = 32 * MIB / SCALE;
/// Objects of a program: 2 GB.
const OBJECTS: u64 = 64;
/// Chunks that fit.
const FIT: u64 = USABLE / CHUNK;
/// Chunks of both programs that do not.
const SELECTED: u64 = 2 * OBJECTS - FIT;
/// From the first program's start to the second one's, and to its end: 20 s, of which only the passes matter.
const WAIT_NS: u64 = 2_000_000_000;

/// Who has what after an allocation, or at the end of a phase. Chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    at: u64,
    /// In VRAM, of the first program and of the second.
    held: [u64; 2],
    /// In host RAM.
    spilled: [u64; 2],
}

/// All that is read out of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Run {
    /// After each allocation, both programs' in their order.
    steps: Vec<State>,
    /// Before the first program ends, and when memory has come to rest after that.
    rest: [State; 2],
    /// Chunks that were copied to host RAM.
    copied: u64,
    /// Chunks that were placed there at once.
    direct: u64,
    /// Bytes that the copy engine moved to host RAM.
    copied_bytes: u64,
    /// Chunks brought back before the first program ended, and afterwards.
    refilled: [u64; 2],
    /// How many of them more than once.
    refilled_twice: u64,
}

/// The first program's VM, and the second one's.
type Order = [VmId; 2];

fn objects(host: &mut Host<'_>, vm: VmId) -> Result<Box<Objects>, LabError> {
    let task = host.start(vm, |bus| {
        let mut program = Objects::start(bus)?;
        for kind in 0..OBJECTS {
            let object = program.allocate(bus, CHUNK)?;
            program.fill(bus, object, kind)?;
            guests::GuestBus::report(bus, "allocated");
        }
        Ok(program)
    });
    host.join(task)
}

/// Reads the states out of what was told: usage at the moments of the guests' lines.
fn states(host: &Host<'_>, order: Order, moments: &[Moment]) -> Vec<State> {
    let mut usage: BTreeMap<VmId, (u64, u64)> = BTreeMap::new();
    let mut seen = 0;
    let mut states = Vec::new();
    for moment in moments {
        for (_, notice) in &host.world.notices[seen..moment.notices] {
            if let Notice::Usage {
                vm,
                resident,
                spilled,
                ..
            } = notice
            {
                usage.insert(*vm, (*resident / CHUNK, *spilled / CHUNK));
            }
        }
        seen = moment.notices;
        let of = |vm: VmId| usage.get(&vm).copied().unwrap_or_default();
        states.push(State {
            at: moment.now.0,
            held: order.map(|vm| of(vm).0),
            spilled: order.map(|vm| of(vm).1),
        });
    }
    states
}

fn run_once(settings: &Settings, order: Order, seed: u64, onlooker: &dyn Onlooker) -> Result<Run, LabError> {
    let config = settings.profile.config(SCALE, CHUNK, USABLE, seed);
    let period = config.refill_period_ns;
    let mut host = Host::new(config, onlooker);
    let [first, second] = order;
    for vm in PAIR {
        let guest_vram = vram_start() + OBJECTS * CHUNK;
        host.attach(vm, vm_config(&vm.to_string(), guest_vram, CHUNK))?;
    }
    let early = objects(&mut host, first)?;
    host.pass(WAIT_NS)?;
    let mut late = objects(&mut host, second)?;
    host.pass(WAIT_NS)?;
    let before = host.moment();
    let mut moments: Vec<Moment> = host.lines.iter().map(|line| line.at).collect();
    moments.push(before);
    drop(early);
    host.detach(first)?;
    host.pass(WAIT_NS.max(8 * period))?;
    moments.push(host.moment());
    // What was moved to and fro is what it was.
    host.run(second, move |bus| {
        (0..OBJECTS).try_for_each(|kind| late.check(bus, kind as usize, kind))
    })?;
    let mut steps = states(&host, order, &moments);
    let rest = [steps.len() - 2, steps.len() - 1].map(|at| steps[at]);
    steps.truncate(steps.len() - 2);
    let mut run = Run {
        steps,
        rest,
        copied: 0,
        direct: 0,
        copied_bytes: 0,
        refilled: [0; 2],
        refilled_twice: 0,
    };
    for (at, (_, notice)) in host.world.notices.iter().enumerate() {
        match notice {
            Notice::Moved {
                direction: Direction::Spill,
                chunks,
                copied,
                ..
            } => {
                run.copied += u64::from(*chunks);
                run.copied_bytes += copied;
            }
            Notice::Moved {
                direction: Direction::Refill,
                chunks,
                ..
            } => run.refilled[usize::from(at >= before.notices)] += u64::from(*chunks),
            Notice::Backed { resident: false, .. } => run.direct += 1,
            _ => {}
        }
    }
    run.refilled_twice = run.refilled[1].saturating_sub(FIT.saturating_sub(rest[0].held[1]));
    Ok(run)
}

/// What each program has to have after each allocation.
fn expected(step: u64) -> [u64; 2] {
    let taken = step + 1;
    match taken.checked_sub(OBJECTS) {
        None | Some(0) => [taken.min(FIT), 0],
        Some(late) => {
            let late = late.min(FIT.div_ceil(2));
            [FIT - late, late]
        }
    }
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let orders: [(&str, Order); 2] = [("vm0 first", PAIR), ("vm1 first", [PAIR[1], PAIR[0]])];
    let jobs: Vec<(usize, u64)> = (0..orders.len())
        .flat_map(|order| settings.seeds().map(move |seed| (order, seed)))
        .collect();
    let name = |&(order, seed): &(usize, u64)| format!("{}, seed {seed}", orders[order].0);
    let runs = jobs::all(&jobs, onlooker, name, |&(order, seed), onlooker| {
        run_once(settings, orders[order].1, seed, onlooker)
    })?;
    let mut report = Experiment::Fairness.report("Figure 4 of GPUswap's paper", PAPER, settings);
    claims(&mut report, &runs);
    let per_order = |order: usize| jobs.iter().zip(&runs).filter(move |(job, _)| job.0 == order);
    let mut rows = Vec::new();
    for (order, (name, _)) in orders.iter().enumerate() {
        let of = |figure: fn(&Run) -> u64| {
            let values: Vec<f64> = per_order(order).map(|(_, run)| figure(run) as f64).collect();
            spread(&values)
        };
        let figures: [fn(&Run) -> u64; 7] = [
            |run| run.rest[0].held[0],
            |run| run.rest[0].held[1],
            |run| run.copied,
            |run| run.direct,
            |run| run.refilled[0],
            |run| run.refilled[1],
            |run| run.rest[1].held[1],
        ];
        let mut row = vec![(*name).into()];
        row.extend(figures.map(|figure| of(figure).into()));
        rows.push(row);
    }
    let columns = [
        "order",
        "alloc1 holds",
        "alloc2 holds",
        "copied out",
        "placed directly",
        "back before the end",
        "back after it",
        "alloc2 then holds",
    ];
    report.tables.push(Table {
        title: "chunks of 32 MB / 16".to_owned(),
        columns: columns.map(str::to_owned).to_vec(),
        rows,
    });
    report.charts = runs.first().map(chart).into_iter().collect();
    Ok(report)
}

/// The first allocation after which somebody held other than what is fair.
fn unfair(run: &Run) -> Option<String> {
    let steps = run.steps.len() as u64;
    if steps != 2 * OBJECTS {
        return Some(format!("{steps} allocations were seen"));
    }
    let mut steps = (0..).zip(&run.steps);
    let (step, state) = steps.find(|(step, state)| state.held != expected(*step))?;
    let ([first, second], wanted) = (state.held, expected(step));
    Some(format!(
        "after allocation {} the programs hold {first} and {second} chunks, where {wanted:?} are fair",
        step + 1
    ))
}

fn claims(report: &mut Report, runs: &[Run]) {
    let all = |holds: &dyn Fn(&Run) -> bool| runs.iter().all(holds);
    let unfair = runs.iter().find_map(unfair);
    report.claim(
        unfair.is_none(),
        unfair.unwrap_or_else(|| {
            format!(
                "after each of {} allocations both programs hold what is fair, to the chunk",
                2 * OBJECTS
            )
        }),
    );
    report.claim(
        all(&|run| run.copied + run.direct == SELECTED),
        format!("{SELECTED} selections: chunks that were copied out and chunks placed in host RAM directly"),
    );
    report.claim(
        all(&|run| run.copied_bytes == run.copied * CHUNK),
        "the copy engine moved what was copied out, and nothing of what was placed directly".to_owned(),
    );
    report.claim(
        all(&|run| run.rest[0].held[1] == run.rest[0].held[0] + 1),
        "alloc2 ends up with one more chunk than alloc1, whichever VM it is".to_owned(),
    );
    report.claim(
        all(&|run| run.refilled[0] == 0),
        "nothing comes back before the first program ends".to_owned(),
    );
    report.claim(
        all(&|run| run.rest[1].held[1] == FIT && run.refilled_twice == 0),
        format!("then all that fits comes back, once: alloc2 holds {FIT} chunks"),
    );
}

/// Memory over time, as the paper shows it.
fn chart(run: &Run) -> Chart {
    let states = || run.steps.iter().chain(&run.rest);
    let line = |name: &str, of: fn(&State) -> u64| Series {
        name: name.to_owned(),
        points: states()
            .map(|state| {
                let mean = (of(state) * CHUNK * SCALE / MIB) as f64;
                (state.at as f64 / 1e6, Spread { mean, deviation: 0.0 })
            })
            .collect(),
        is_line: true,
    };
    Chart {
        title: "Figure 4: memory of two programs (paper's scale)".to_owned(),
        x: "time of the card, ms".to_owned(),
        y: "MB".to_owned(),
        is_doubling: false,
        series: vec![
            line("alloc1 in VRAM", |state| state.held[0]),
            line("alloc2 in VRAM", |state| state.held[1]),
            line("alloc1 in host RAM", |state| state.spilled[0]),
            line("alloc2 in host RAM", |state| state.spilled[1]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    fn holds_under(profile: Profile) {
        let settings = Settings::of(profile, 1, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
        let svg = report.to_svg().unwrap();
        assert!(svg.contains("alloc2 in host RAM") && svg.contains("</svg>"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["claims"].as_array().unwrap().len(), 6);
    }

    #[test]
    fn figure_4_is_chunk_exact_under_the_papers_values() {
        holds_under(Profile::Paper);
    }

    #[test]
    fn figure_4_is_chunk_exact_under_the_released_codes_values() {
        holds_under(Profile::Released);
    }

    #[test]
    fn figure_4_is_chunk_exact_under_the_defaults() {
        holds_under(Profile::Default);
    }
}
