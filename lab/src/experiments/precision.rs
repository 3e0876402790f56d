//! No figure: how well what launches reach is known before they run.
//!
//! Every kernel of the guests runs on a bare card. At each doorbell its channels are looked at, and what is found is held
//! against what the card executes afterwards.

use std::collections::BTreeMap;
use std::ops::Range;

use guests::{KernelSummary, Workload};
use kernel_sets::Bound;
use launches::{Launch, Opaque, Work};
use vgpu::VmId;

use super::Experiment;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::observed::{Executed, ObservedMachine, Touched};
use crate::programs::Kernel;
use crate::report::{Report, Table};
use crate::settings::Settings;
use crate::{KIB, MIB};

const PAPER: &str = "GDM and AMM take it from compilers and drivers which objects a kernel loads and stores";
const VM: VmId = VmId(0);
/// Launches that have to be known, in percent.
const KNOWN_PERCENT: u64 = 95;

/// What came of one kernel.
#[derive(Clone, Debug, Default)]
struct Outcome {
    summary: KernelSummary,
    /// Instructions with a global access by their worst bound: exact, run, anywhere.
    accesses: [u64; 3],
    launches: u64,
    /// Launches of which nothing is known.
    opaque: u64,
    /// Launches that were found and executed in other order, or with another grid or code.
    unlike: u64,
    /// Instructions of a launch that reached what was not said.
    outside: u64,
    /// Launches that did not store all of what they were said to.
    short: u64,
    /// Bytes of all launches together.
    predicted: u64,
    predicted_exact: u64,
    touched: u64,
    touched_exact: u64,
    overwritten: u64,
    stored: u64,
    /// Bytes that copies were found to move.
    copied: u64,
    why: BTreeMap<String, u64>,
}

/// Runs a kernel, and compares.
fn observe(kernel: Kernel) -> Result<Outcome, LabError> {
    let mut machine = ObservedMachine::new(kernel.bare_machine()?);
    let summary = kernel
        .run(&mut machine)
        .map_err(|what| LabError::Guest { vm: VM, what })?;
    let mut outcome = Outcome {
        summary,
        ..Outcome::default()
    };
    outcome.compare(&machine);
    Ok(outcome)
}

/// Bytes of ranges that may overlap.
fn length(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_by_key(|range| range.start);
    let (mut bytes, mut end) = (0, 0);
    for range in ranges {
        bytes += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    bytes
}

impl Outcome {
    fn compare(&mut self, machine: &ObservedMachine) {
        let mut found: Vec<Option<&Launch>> = Vec::new();
        for (_, item) in &machine.found {
            match &item.work {
                Work::Launch(launch) => found.push(Some(launch)),
                Work::Copy(copy) if copy.from.is_some() => self.copied += copy.to.line * copy.to.lines,
                Work::Opaque(why) => {
                    *self.why.entry(why.to_string()).or_default() += 1;
                    // Those of copies and the like are no launches.
                    let is_launch = matches!(
                        why,
                        Opaque::Kernel(_) | Opaque::State | Opaque::AddressTable | Opaque::Condition
                    );
                    found.extend(is_launch.then_some(None));
                }
                _ => {}
            }
        }
        let executed = machine.executed();
        self.launches = executed.len() as u64;
        self.unlike = found.len().abs_diff(executed.len()) as u64;
        let mut bounds: BTreeMap<(u64, u32), Bound> = BTreeMap::new();
        for (launch, executed) in found.iter().zip(&executed) {
            match launch {
                Some(launch) => self.compare_launch(launch, executed, machine, &mut bounds),
                None => self.opaque += 1,
            }
        }
        for bound in bounds.into_values() {
            self.accesses[bound as usize] += 1;
        }
    }

    fn compare_launch(
        &mut self,
        launch: &Launch,
        executed: &Executed,
        machine: &ObservedMachine,
        bounds: &mut BTreeMap<(u64, u32), Bound>,
    ) {
        let start = executed.start;
        let is_alike = (launch.code.0, launch.entry, launch.grid, launch.block)
            == (start.code, start.entry, start.grid, start.block);
        self.unlike += u64::from(!is_alike);
        self.opaque += u64::from(launch.bound() == Bound::Space);
        let within = |access: &kernel_sets::Access| access.within(|at| machine.run_of(at));
        for access in &launch.sets.accesses {
            let worst = bounds.entry((start.code, access.pc)).or_insert(access.bound);
            *worst = access.bound.max(*worst);
        }
        let (mut all, mut exact, mut stored) = (Touched::default(), Touched::default(), Touched::default());
        for (pc, [loads, stores]) in &executed.reached {
            let own = || launch.sets.accesses.iter().filter(|access| access.pc == *pc);
            let loadable: Vec<_> = own().filter(|access| access.is_load).map(within).collect();
            let storable: Vec<_> = own().filter(|access| access.is_store).map(within).collect();
            let holds = loads.is_within(&loadable) && stores.is_within(&storable);
            self.outside += u64::from(!holds);
            let is_exact = own().all(|access| access.bound == Bound::Exact);
            for touched in [loads, stores] {
                all.extend(touched);
                if is_exact {
                    exact.extend(touched);
                }
            }
            stored.extend(stores);
        }
        let of_bound = |is_wanted: fn(Bound) -> bool| {
            let accesses = launch.sets.accesses.iter();
            length(
                accesses
                    .filter(|access| is_wanted(access.bound))
                    .map(within)
                    .collect(),
            )
        };
        self.predicted += of_bound(|_| true);
        self.predicted_exact += of_bound(|bound| bound == Bound::Exact);
        self.touched += all.bytes();
        self.touched_exact += exact.bytes();
        let overwritten = length(launch.overwrites().to_vec());
        self.overwritten += overwritten;
        self.stored += stored.bytes();
        self.short += u64::from(!stored.has_all(launch.overwrites()));
    }
}

fn ratio(predicted: u64, touched: u64) -> f64 {
    predicted as f64 / touched.max(1) as f64
}

fn table(kernels: &[Kernel], outcomes: &[Outcome]) -> Table {
    let columns = [
        "kernel",
        "exact",
        "run",
        "anywhere",
        "launches",
        "opaque",
        "predicted/touched",
        "exact ones",
        "overwritten/stored",
    ];
    let rows = kernels.iter().zip(outcomes).map(|(kernel, outcome)| {
        let [exact, run, space] = outcome.accesses;
        vec![
            kernel.name.into(),
            exact.into(),
            run.into(),
            space.into(),
            outcome.launches.into(),
            outcome.opaque.into(),
            ratio(outcome.predicted, outcome.touched).into(),
            ratio(outcome.predicted_exact, outcome.touched_exact).into(),
            ratio(outcome.overwritten, outcome.stored).into(),
        ]
    });
    Table {
        title: "instructions with a global access by bound; launches; bytes by bytes".to_owned(),
        rows: rows.collect(),
        columns: columns.map(str::to_owned).to_vec(),
    }
}

fn claims(report: &mut Report, kernels: &[Kernel], outcomes: &[Outcome]) {
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let named = |of: fn(&Outcome) -> u64| {
        let bad = kernels
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| of(outcome) != 0);
        let bad: Vec<&str> = bad.map(|(kernel, _)| kernel.name).collect();
        if bad.is_empty() {
            "none".to_owned()
        } else {
            bad.join(", ")
        }
    };
    let accesses = sum(|outcome| outcome.accesses.iter().sum());
    report.claim(
        accesses > 0 && sum(|outcome| outcome.accesses[2]) == 0,
        format!(
            "every global access is exact or in the run of its pointer ({accesses} instructions; anywhere: {})",
            named(|outcome| outcome.accesses[2])
        ),
    );
    let (launches, opaque) = (sum(|outcome| outcome.launches), sum(|outcome| outcome.opaque));
    report.claim(
        launches > 0 && (launches - opaque) * 100 >= launches * KNOWN_PERCENT,
        format!("{KNOWN_PERCENT} % of the guests' launches are not opaque ({opaque} of {launches} are)"),
    );
    report.claim(
        sum(|outcome| outcome.unlike) == 0,
        format!(
            "launches are found as they are executed: order, code, grid ({})",
            named(|outcome| outcome.unlike)
        ),
    );
    report.claim(
        sum(|outcome| outcome.outside) == 0,
        format!(
            "nothing is reached but what was said ({})",
            named(|outcome| outcome.outside)
        ),
    );
    report.claim(
        sum(|outcome| outcome.short) == 0,
        format!(
            "what was said to be overwritten is stored, every byte ({})",
            named(|outcome| outcome.short)
        ),
    );
    let unlike = |outcome: &Outcome| outcome.copied.abs_diff(outcome.summary.bytes_copied);
    report.claim(
        outcomes
            .iter()
            .all(|outcome| unlike(outcome) == 0 && outcome.copied > 0),
        format!(
            "copies are found with all their bytes ({} MiB)",
            sum(|outcome| outcome.copied) / MIB
        ),
    );
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let names =
        Workload::names().filter(|name| !matches!(Workload::named(name), Some(Workload::Files) | None));
    let kernels: Vec<Kernel> = names
        .map(|name| Kernel {
            name,
            footprint: settings.choose(1024, 128) * KIB,
            repeats: 1,
        })
        .collect();
    let name = |kernel: &Kernel| kernel.name.to_owned();
    let outcomes = jobs::all(&kernels, onlooker, name, |&kernel, _| observe(kernel))?;
    let mut report = Experiment::Precision.report("no figure", PAPER, settings);
    report.tables.push(table(&kernels, &outcomes));
    claims(&mut report, &kernels, &outcomes);
    for (kernel, outcome) in kernels.iter().zip(&outcomes) {
        for (why, count) in &outcome.why {
            report.notes.push(format!("{}: {count} times {why}", kernel.name));
        }
    }
    report.notes.push(
        "a pointer's run is all that the guest has mapped side by side, which is its VRAM: `exact ones` leaves these accesses out".to_owned(),
    );
    report.notes.push(
        "shares of nouveau's and Mesa's launches are not measured: their channels are those of QEMU's guests, which no lab runs".to_owned(),
    );
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn what_launches_reach_is_known_before_they_run() {
        let settings = Settings::of(Profile::Default, 1, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }

    #[test]
    fn overlapping_ranges_count_once() {
        assert_eq!(length(vec![8..12, 0..4, 2..10, 20..20]), 12);
    }
}
