//! Figures 2 and 6 of the paper on coherence, for three programs: which copies between RAM and VRAM are made, and which
//! of them in vain.
//!
//! Pai, Govindarajan, Thazhuthaveetil: Fast and Efficient Automatic Memory Management for GPUs using Compiler-Assisted Runtime
//! Coherence Scheme, PACT'12. A guest on a bare card runs each program under each scheme of `guests::coherence`. What the
//! guest's library counts is held against what the machine shows (`two_copies`).

use fermi_model::CopyMicrocode;
use guests::coherence::{Class, Classes, Direction, Scheme, Sets};
use guests::{Machine, ManagedArray, ManagedSummary, Managing, Options, run_managed};
use kernels::{Buffers, Instance, Noise, Role, Srad};
use vgpu::VmId;

use super::Experiment;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::{DMA, bare_machine};
use crate::report::{Cell, Report, Table};
use crate::settings::Settings;
use crate::two_copies::{Trace, TracedMachine};
use crate::{KIB, MIB};

const PAPER: &str = "Pai, Govindarajan, Thazhuthaveetil, PACT'12: in srad J is copied in once and out when it is read, private arrays never; \
                     of what a naive scheme copies 12 % is useful";
const VM: VmId = VmId(0);
const VRAM_BYTES: u64 = 64 * MIB;
/// The paper's, after Rodinia's.
const ITERATIONS: u32 = 100;
const SEED: u64 = 1;
/// Numbers of srad's arrays.
const J: usize = 0;
const E_C: usize = 1;
/// Launches of an iteration of srad.
const LAUNCHES: usize = 2;

/// A program on managed buffers.
#[derive(Clone, Debug)]
enum Program {
    Srad(Srad),
    Other(&'static str, Instance),
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Srad(_) => "srad",
            Self::Other(name, _) => name,
        }
    }

    fn kernel(&self) -> &dyn kernels::Kernel {
        match self {
            Self::Srad(srad) => srad,
            Self::Other(_, instance) => instance.kernel(),
        }
    }
}

/// One run of a program under a scheme.
#[derive(Clone, Debug)]
struct Job {
    program: Program,
    managing: Managing,
}

impl Job {
    fn name(&self) -> String {
        let read = if self.managing.reads_results {
            ""
        } else {
            ", not read"
        };
        format!("{} {}{read}", self.program.name(), self.managing.scheme.name())
    }
}

/// What came of it.
struct Outcome {
    summary: ManagedSummary,
    arrays: Vec<ManagedArray>,
    trace: Trace,
    plan_ns: u64,
    /// Words of results in VRAM that are wrong, where the processor does not read them.
    wrong_in_vram: u64,
}

impl Outcome {
    /// Copies of an array to the GPU and to the processor.
    fn moved(&self, array: usize) -> [u64; 2] {
        let classes = self.arrays.get(array).map(|array| array.classes);
        Direction::ALL.map(|direction| classes.unwrap_or_default().direction(direction).count)
    }

    /// Copies in both directions of all arrays but J.
    fn moved_private(&self) -> u64 {
        let others = self.arrays.iter().skip(E_C);
        others.map(|array| array.classes.all().count).sum()
    }

    fn wrong(&self) -> u64 {
        self.summary.kernel.mismatches + self.wrong_in_vram
    }

    fn bytes(&self, class: Class) -> u64 {
        self.summary.classes.class(class).bytes
    }

    /// Whether the machine saw each array copied as often as the guest's library says, and the same come of it. Where a
    /// grid did not store what its code may, they may differ in what came of it: the guest has to count it as stored.
    fn is_as_seen(&self) -> bool {
        let mut arrays = self.arrays.iter().enumerate();
        arrays.all(|(number, array)| {
            let (own, seen) = (array.classes, self.trace.history.classes(number));
            let counts = |classes: Classes| Direction::ALL.map(|direction| classes.direction(direction));
            own == seen || self.trace.unchanged >> number & 1 != 0 && counts(own) == counts(seen)
        })
    }

    /// Bytes in vain by what the machine saw.
    fn vain_as_seen(&self) -> u64 {
        let classes = self.trace.history.all();
        classes.all().bytes - classes.class(Class::Useful).bytes
    }

    /// Copies of some arrays by the paper's rule for its naive scheme (section 3), from what the launches touched: what
    /// they load goes in before, what they store comes out behind.
    fn by_section_3(&self, arrays: u16) -> u64 {
        let launches = self.trace.launches.iter();
        let copies = launches
            .map(|launch| (launch.loads & arrays).count_ones() + (launch.stores & arrays).count_ones());
        copies.map(u64::from).sum()
    }
}

fn run_job(job: &Job, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let machine = bare_machine(VRAM_BYTES, CopyMicrocode::Nouveau)?;
    let mut traced = TracedMachine::new(machine, onlooker);
    let kernel = job.program.kernel();
    let mut scratch = vec![0; kernel.reference_words()];
    let machine = Machine {
        dma: DMA,
        scratch: &mut scratch,
        inputs: &[],
        options: Options {
            seed: SEED,
            rounds: 1,
            ..Options::default()
        },
    };
    let guest = |what: String| LabError::Guest { vm: VM, what };
    let summary =
        run_managed(&mut traced, machine, job.program.name(), kernel, job.managing).map_err(|error| {
            match onlooker.wants_to_stop() {
                true => LabError::Stopped,
                false => guest(error.to_string()),
            }
        })?;
    let arrays: Vec<ManagedArray> = summary.arrays.into_iter().flatten().collect();
    let wrong_in_vram = match job.managing.reads_results {
        true => 0,
        false => wrong_in_vram(&traced, kernel, &arrays, &scratch).map_err(guest)?,
    };
    let plan_ns = traced.plan_ns();
    Ok(Outcome {
        summary,
        trace: traced.trace(&arrays),
        arrays,
        plan_ns: plan_ns.ok_or_else(|| guest("the plan reported no end".to_owned()))?,
        wrong_in_vram,
    })
}

/// Words of results that are wrong in VRAM, which no guest's code reads for it. `reference` is as the run left it.
fn wrong_in_vram(
    traced: &TracedMachine<'_>,
    kernel: &dyn kernels::Kernel,
    arrays: &[ManagedArray],
    reference: &[u32],
) -> Result<u64, String> {
    let mut wrong = 0;
    for (number, buffer) in Buffers::of(kernel).iter() {
        let Some(array) = arrays.get(number).filter(|_| buffer.role == Role::Output) else {
            continue;
        };
        let got = traced.vram(array.vram, buffer.words);
        let got = got.ok_or_else(|| format!("{} is not in VRAM", buffer.name))?;
        let mut want = vec![0; buffer.words];
        kernel.expected(Noise::new(SEED), reference, number, 0, &mut want);
        let matching = kernel.matching(number);
        let pairs = want.iter().zip(&got);
        wrong += pairs.filter(|(want, got)| !matching.holds(**want, **got)).count() as u64;
    }
    Ok(wrong)
}

/// Runs of srad with its results read and not, and of the others with them read.
fn jobs(settings: &Settings) -> Vec<Job> {
    let side = settings.choose(256, 64) as usize;
    let srad = Program::Srad(Srad::new(side, ITERATIONS, Noise::new(SEED)));
    let footprint = settings.choose(2048, 256) * KIB;
    let other = |name| Some(Program::Other(name, kernels::make(name, footprint)?));
    let others = ["hotspot", "kmeans"].into_iter().filter_map(other);
    let all = [(srad.clone(), false), (srad, true)]
        .into_iter()
        .chain(others.map(|program| (program, true)));
    let each = |(program, reads_results): (Program, bool)| {
        Scheme::ALL.map(|scheme| Job {
            program: program.clone(),
            managing: Managing {
                scheme,
                reads_results,
            },
        })
    };
    all.flat_map(each).collect()
}

fn kib(bytes: u64) -> Cell {
    (bytes as f64 / KIB as f64).into()
}

fn is_srad(job: &Job) -> bool {
    matches!(job.program, Program::Srad(_))
}

/// Copies of srad by array.
fn by_array(runs: &[(&Job, &Outcome)]) -> Table {
    let rows = runs.iter().filter(|(job, _)| is_srad(job)).map(|(job, outcome)| {
        let Managing {
            scheme,
            reads_results,
        } = job.managing;
        let cells = [J, E_C].map(|array| outcome.moved(array)).into_iter().flatten();
        let others = outcome.moved_private() - outcome.moved(E_C).iter().sum::<u64>();
        let mut row: Vec<Cell> = vec![
            scheme.name().into(),
            if reads_results { "yes" } else { "no" }.into(),
        ];
        row.extend(cells.chain([others, outcome.summary.checks]).map(Cell::from));
        row
    });
    let columns = [
        "scheme",
        "J read after",
        "J in",
        "J out",
        "E_c in",
        "E_c out",
        "four others",
        "checks",
    ];
    Table {
        title: format!("srad, {ITERATIONS} iterations: copies by array"),
        rows: rows.collect(),
        columns: columns.map(str::to_owned).to_vec(),
    }
}

/// Bytes by class, and time.
fn by_class(runs: &[(&Job, &Outcome)]) -> Table {
    let rows = runs.iter().map(|(job, outcome)| {
        let manual = runs.iter().find(|(other, _)| {
            let Managing {
                scheme,
                reads_results,
            } = other.managing;
            scheme == Scheme::Manual
                && reads_results == job.managing.reads_results
                && other.program.name() == job.program.name()
        });
        let relative = |of: fn(&Outcome) -> u64| -> Cell {
            manual.map_or("none".into(), |(_, manual)| {
                (of(outcome) as f64 / of(manual).max(1) as f64).into()
            })
        };
        let mut row: Vec<Cell> = vec![job.name().into()];
        row.extend(Class::ALL.map(|class| kib(outcome.bytes(class))));
        row.push(kib(outcome.summary.classes.all().bytes));
        row.push(relative(|outcome| outcome.summary.classes.all().bytes));
        row.push((outcome.plan_ns as f64 / 1e6).into());
        row.push(relative(|outcome| outcome.plan_ns));
        row
    });
    let columns = [
        "program and scheme",
        "useful",
        "eager",
        "non-stale",
        "private",
        "all",
        "÷ manual",
        "ms",
        "÷ manual",
    ];
    Table {
        title: "KiB copied by class, and time of grids and copies on the card's clock".to_owned(),
        rows: rows.collect(),
        columns: columns.map(str::to_owned).to_vec(),
    }
}

/// The run of srad under a scheme.
fn srad<'a>(runs: &[(&Job, &'a Outcome)], scheme: Scheme, reads_results: bool) -> Option<&'a Outcome> {
    let wanted = Managing {
        scheme,
        reads_results,
    };
    let mut runs = runs.iter();
    let found = runs.find(|(job, _)| is_srad(job) && job.managing == wanted)?;
    Some(found.1)
}

/// What has to hold of the copies of srad.
fn srad_claims(report: &mut Report, runs: &[(&Job, &Outcome)]) {
    let iterations = u64::from(ITERATIONS);
    let wanted = [
        (Scheme::Amm, false, [1, iterations - 1]),
        (Scheme::Amm, true, [1, iterations]),
        (Scheme::Manual, false, [iterations, iterations]),
        (Scheme::Manual, true, [iterations, iterations]),
        (Scheme::Naive, false, [2 * iterations, 2 * iterations]),
        (Scheme::Naive, true, [2 * iterations, 2 * iterations]),
    ];
    for (scheme, reads_results, wanted) in wanted {
        let outcome = srad(runs, scheme, reads_results);
        let moved = outcome.map_or([0; 2], |outcome| outcome.moved(J));
        let private = outcome.map_or(u64::MAX, Outcome::moved_private);
        let is_private_right = (private == 0) == (scheme != Scheme::Naive);
        let [into, out] = moved;
        let read = if reads_results {
            "read after the loop"
        } else {
            "not read after the loop"
        };
        report.claim(
            moved == wanted && is_private_right,
            format!(
                "srad {}, {read}: J is copied in {into} times and out {out} times, the five private arrays {private} times",
                scheme.name()
            ),
        );
    }
    let Some(naive) = srad(runs, Scheme::Naive, false) else {
        return;
    };
    let is_listing = |launches: &[Sets]| match launches {
        [first, second] => {
            first.loads >> J & 1 == 1
                && first.stores >> E_C & 1 == 1
                && second.loads >> E_C & 1 == 1
                && second.stores >> J & 1 == 1
        }
        _ => false,
    };
    let launches = &naive.trace.launches;
    let per = |copies: u64| copies as f64 / f64::from(ITERATIONS);
    report.claim(
        launches.len() == LAUNCHES * ITERATIONS as usize && launches.chunks(LAUNCHES).all(is_listing),
        format!(
            "each iteration loads J, stores E_c, loads E_c, stores J, as listing 3 has it: four copies by the rule of section 3, and what \
             the second launch loads of J a fifth ({} of both arrays, {} of all six)",
            per(naive.by_section_3(1 << J | 1 << E_C)),
            per(naive.by_section_3(u16::MAX)),
        ),
    );
}

/// The total of a figure over all runs, and the runs in which it is not 0.
fn named(runs: &[(&Job, &Outcome)], of: impl Fn(&Outcome) -> u64) -> (u64, String) {
    let bad = runs.iter().filter(|(_, outcome)| of(outcome) != 0);
    let names: Vec<String> = bad.map(|(job, _)| job.name()).collect();
    let total = runs.iter().map(|(_, outcome)| of(outcome)).sum();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    (total, names)
}

fn claims(report: &mut Report, runs: &[(&Job, &Outcome)]) {
    srad_claims(report, runs);
    let in_vain = [Class::Eager, Class::NonStale, Class::Private];
    let of_scheme = |scheme| -> Vec<(&Job, &Outcome)> {
        let runs = runs.iter().copied();
        runs.filter(|(job, _)| job.managing.scheme == scheme).collect()
    };
    let vain = |outcome: &Outcome| in_vain.map(|class| outcome.bytes(class)).iter().sum::<u64>();
    let amm = of_scheme(Scheme::Amm);
    let (bytes, names) = named(&amm, vain);
    report.claim(
        bytes == 0 && !amm.is_empty(),
        format!("amm copies no byte eagerly, that is not stale, or that is private ({names})"),
    );
    let naive = of_scheme(Scheme::Naive);
    let sums = naive.iter().fold(Classes::default(), |all, (_, outcome)| {
        all.plus(&outcome.summary.classes)
    });
    report.claim(
        in_vain.iter().all(|class| sums.class(*class).bytes > 0),
        format!(
            "naive copies bytes of all three classes, and {:.0} % of its bytes are useful",
            100.0 * sums.class(Class::Useful).bytes as f64 / sums.all().bytes.max(1) as f64
        ),
    );
    let (wrong, names) = named(runs, Outcome::wrong);
    report.claim(wrong == 0, format!("every result is the reference's ({names})"));
    let (_, names) = named(runs, |outcome| u64::from(!outcome.is_as_seen()));
    report.claim(
        names == "none",
        format!(
            "the machine sees the copies that the guest counts, array by array and class by class ({names})"
        ),
    );
    let (breaches, names) = named(runs, |outcome| {
        outcome.summary.breaches + outcome.trace.history.breaches() + outcome.trace.odd_copies
    });
    report.claim(
        breaches == 0,
        format!("nobody touches an old copy, and nothing goes over a new one ({names})"),
    );
    let (unsaid, names) = named(runs, |outcome| outcome.trace.unsaid);
    let (grids, _) = named(runs, |outcome| outcome.trace.grids);
    report.claim(
        unsaid == 0 && grids > 0,
        format!("what each of {grids} grids touches is in the sets that its code gave ({names})"),
    );
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let jobs = jobs(settings);
    let outcomes = jobs::all(&jobs, onlooker, Job::name, run_job)?;
    let runs: Vec<(&Job, &Outcome)> = jobs.iter().zip(&outcomes).collect();
    let mut report = Experiment::Amm.report("no figure", PAPER, settings);
    report.tables.push(by_array(&runs));
    report.tables.push(by_class(&runs));
    claims(&mut report, &runs);
    let (vain, names) = named(&runs, |outcome| outcome.trace.said_in_vain);
    report.notes.push(format!(
        "arrays in a grid's sets that it does not touch: {vain} ({names})"
    ));
    let amm = runs.iter().copied();
    let amm: Vec<_> = amm
        .filter(|(job, _)| job.managing.scheme == Scheme::Amm)
        .collect();
    let (bytes, names) = named(&amm, Outcome::vain_as_seen);
    report.notes.push(format!(
        "bytes that amm copies because a kernel may have stored and did not: {bytes} ({names})"
    ));
    report.seeds = 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn copies_are_those_of_the_paper() {
        let settings = Settings::of(Profile::Default, 1, true);
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
    }
}
