//! No figure: every policy on every kind of work, in VMs through the broker. By it the default is chosen.
//!
//! Pairs of the same program as in Figure 5, pairs of different programs of GDM's sizes, a program alone whose hot set fits, and two that take
//! turns. Each is one workload, and counts once.

use vgpu::GpuConfig;
use vgpu::policy::PolicyName;

use super::effects::Effects;
use super::hot_set::{self, FIT, OBJECT, OBJECTS};
use super::{Experiment, gdm, oversubscribe, pair, turns};
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::Kernel;
use crate::report::{Report, Table};
use crate::settings::Settings;
use crate::statistics::{geometric_mean, spread};
use crate::{KIB, MIB, SCALE};

const PAPER: &str = "no paper runs all of them. GPUswap: \"we currently revert to selecting a random chunk owned by the victim\"; GDM: 21 % more \
    throughput than copies at once with LRU; Ganguly: an engine that tells patterns apart is 28 and 30 % faster than the driver";

/// A policy other than the paper's has to be better by one part in so many to be the default.
const TELLS: f64 = 20.0;

/// Memory for pairs of the same program, MB of the paper: a quarter of what two of them want.
const TWINS_MB: u64 = 100;
/// Memory with which twins, and all others, have enough. Bytes of ours.
const TWINS_PLENTY: u64 = 1400 * MIB / SCALE;
const PLENTY: u64 = 400 * MIB;

/// Pairs of GDM's programs that want more than its card has, each program in one or more.
const PAIRS: [[&str; 2]; 7] = [
    ["backprop", "hashjoin"],
    ["hashjoin", "kmeans"],
    ["kmeans", "hotspot"],
    ["hotspot", "srad2"],
    ["srad2", "nn"],
    ["nn", "matrix"],
    ["matrix", "hotspot"],
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    /// Two programs at a time.
    Pair([Kernel; 2]),
    /// One alone whose hot set fits.
    Alone,
    /// Two that take turns.
    Turns,
}

/// What is run, with memory that is short and with plenty. Bytes of ours.
#[derive(Clone, Copy, Debug)]
struct Workload {
    work: Work,
    short: u64,
    plenty: u64,
}

impl Workload {
    fn name(&self) -> String {
        match self.work {
            Work::Pair([one, other]) if one == other => format!("{} twice", one.name),
            Work::Pair([one, other]) => format!("{} + {}", one.name, other.name),
            Work::Alone => "alone, hot set fits".to_owned(),
            Work::Turns => "in turns".to_owned(),
        }
    }
}

fn workloads(settings: &Settings) -> Vec<Workload> {
    let twins = oversubscribe::kernels(settings).map(|kernel| Workload {
        work: Work::Pair([kernel; 2]),
        short: TWINS_MB * MIB / SCALE,
        plenty: TWINS_PLENTY,
    });
    let divisor = settings.choose(1, gdm::QUICK);
    let kernel = |name: &str| {
        let found = gdm::PROGRAMS.iter().find(|(of, _)| *of == name);
        found.map(|&(name, tenths)| Kernel {
            name,
            footprint: tenths * MIB / 10 / divisor,
            repeats: 1,
        })
    };
    let pairs = PAIRS.into_iter().filter_map(|[one, other]| {
        Some(Workload {
            work: Work::Pair([kernel(one)?, kernel(other)?]),
            short: gdm::CARD_KIB * KIB / divisor,
            plenty: PLENTY,
        })
    });
    let others = [
        (Work::Alone, FIT * OBJECT, 2 * OBJECTS * OBJECT),
        (Work::Turns, turns::FIT * OBJECT, turns::PLENTY * OBJECT),
    ];
    let others = others.map(|(work, short, plenty)| Workload { work, short, plenty });
    twins.into_iter().chain(pairs).chain(others).collect()
}

/// One run of a workload.
#[derive(Clone, Copy, Debug)]
struct Job {
    workload: usize,
    policy: PolicyName,
    seed: u64,
    is_short: bool,
}

/// Its result: nanoseconds from the start of both programs to the end of the last, or of a round; and what was done for it.
#[derive(Clone, Debug)]
struct Outcome {
    time_ns: f64,
    effects: Vec<Effects>,
}

impl Outcome {
    fn sum(&self, value: impl Fn(&Effects) -> f64) -> f64 {
        self.effects.iter().map(value).sum()
    }

    fn longest_ms(&self) -> f64 {
        let stopped = self.effects.iter().flat_map(|effects| &effects.stopped_ns);
        stopped.max().map_or(0.0, |&ns| ns as f64 / 1e6)
    }

    /// Milliseconds for which work and accesses waited for memory.
    fn waited_ms(&self) -> f64 {
        self.sum(|effects| (effects.waits_ns.iter().sum::<u64>() + effects.held_ns) as f64 / 1e6)
    }

    fn stopped_ms(&self) -> f64 {
        self.sum(|effects| effects.stopped_ns.iter().sum::<u64>() as f64 / 1e6)
    }
}

fn do_job(
    settings: &Settings,
    workload: &Workload,
    job: &Job,
    onlooker: &dyn Onlooker,
) -> Result<Outcome, LabError> {
    let usable = if job.is_short {
        workload.short
    } else {
        workload.plenty
    };
    let config = |chunk_bytes| GpuConfig {
        policy: job.policy,
        ..settings.profile.config(SCALE, chunk_bytes, usable, job.seed)
    };
    match workload.work {
        Work::Pair(kernels) => {
            let chunk_bytes = settings.chunk_bytes();
            let pair = pair::run(kernels, config(chunk_bytes), chunk_bytes, onlooker)?;
            Ok(Outcome {
                time_ns: pair.ended_ns.into_iter().max().unwrap_or(0) as f64,
                effects: vec![pair.effects],
            })
        }
        Work::Alone => {
            let settle_ns = settings.choose(4_000_000_000, 1_500_000_000);
            let alone = hot_set::alone(config(OBJECT), settle_ns, onlooker)?;
            let rounds = alone.rounds_ns.len().max(1) as f64;
            Ok(Outcome {
                time_ns: alone.rounds_ns.iter().sum::<u64>() as f64 / rounds,
                effects: vec![alone.effects],
            })
        }
        Work::Turns => {
            let taken = turns::take(config(OBJECT), turns::length(settings), onlooker)?;
            Ok(Outcome {
                time_ns: spread(&taken.round_ns).mean,
                effects: taken.effects,
            })
        }
    }
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let workloads = workloads(settings);
    let mut jobs = Vec::new();
    for workload in 0..workloads.len() {
        let job = |policy, seed, is_short| Job {
            workload,
            policy,
            seed,
            is_short,
        };
        // Without pressure nothing is drawn.
        jobs.push(job(settings.profile.policy(), 1, false));
        for policy in PolicyName::ALL {
            jobs.extend(settings.seeds().map(|seed| job(policy, seed, true)));
        }
    }
    let name = |job: &Job| {
        let how = if job.is_short { "short" } else { "plenty" };
        let what = workloads[job.workload].name();
        format!("{what}, {how} of memory, {}, seed {}", job.policy, job.seed)
    };
    let outcomes = jobs::all(&jobs, onlooker, name, |job, onlooker| {
        do_job(settings, &workloads[job.workload], job, onlooker)
    })?;
    let results = Results {
        workloads,
        jobs,
        outcomes,
        seeds: settings.seeds().collect(),
    };
    let mut report = Experiment::Systems.report("no figure", PAPER, settings);
    report.tables = vec![results.all(), results.switch(), results.policies()];
    results.claims(&mut report, settings);
    Ok(report)
}

struct Results {
    workloads: Vec<Workload>,
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    seeds: Vec<u64>,
}

impl Results {
    fn of(&self, workload: usize, policy: PolicyName) -> impl Iterator<Item = (u64, &Outcome)> {
        let all = self.jobs.iter().zip(&self.outcomes);
        let short =
            all.filter(move |(job, _)| job.is_short && job.workload == workload && job.policy == policy);
        short.map(|(job, outcome)| (job.seed, outcome))
    }

    /// Its time as a multiple of that with plenty of memory. What counts of two programs is when both are over: one that is kept waiting for memory
    /// leaves the GPU to the other, which is over sooner than beside it, and nothing is won by that.
    fn slowdown(&self, workload: usize, outcome: &Outcome) -> f64 {
        let mut all = self.jobs.iter().zip(&self.outcomes);
        let plenty = all.find(|(job, _)| job.workload == workload && !job.is_short);
        plenty.map_or(f64::NAN, |(_, plenty)| outcome.time_ns / plenty.time_ns)
    }

    fn slowdowns(&self, workload: usize, policy: PolicyName) -> Vec<f64> {
        self.of(workload, policy)
            .map(|(_, outcome)| self.slowdown(workload, outcome))
            .collect()
    }

    /// Geometric mean over the workloads that are chosen, each counted once, for one seed.
    fn mean(&self, policy: PolicyName, seed: u64, chosen: impl Fn(&Workload) -> bool) -> f64 {
        let workloads = self.workloads.iter().enumerate();
        let chosen = workloads.filter(|(_, workload)| chosen(workload));
        let slowdowns = chosen.flat_map(|(at, _)| {
            let of_seed = self.of(at, policy).filter(move |(of, _)| *of == seed);
            of_seed.map(move |(_, outcome)| self.slowdown(at, outcome))
        });
        geometric_mean(&slowdowns.collect::<Vec<f64>>())
    }

    /// Everything, by workload and policy.
    fn all(&self) -> Table {
        let mut rows = Vec::new();
        for (at, workload) in self.workloads.iter().enumerate() {
            for policy in PolicyName::ALL {
                let each = |value: &dyn Fn(&Outcome) -> f64| {
                    let values = self.of(at, policy).map(|(_, outcome)| value(outcome));
                    spread(&values.collect::<Vec<f64>>()).into()
                };
                let copied = |effects: &Effects| effects.copied as f64 / MIB as f64;
                let pauses = |effects: &Effects| effects.stopped_ns.len() as f64;
                rows.push(vec![
                    workload.name().into(),
                    policy.to_string().into(),
                    spread(&self.slowdowns(at, policy)).into(),
                    each(&|outcome| outcome.sum(copied)),
                    each(&|outcome| outcome.sum(pauses)),
                    each(&Outcome::stopped_ms),
                    each(&Outcome::longest_ms),
                    each(&Outcome::waited_ms),
                ]);
            }
        }
        let columns = [
            "work",
            "policy",
            "time, without pressure = 1",
            "copied, MiB",
            "pauses",
            "stopped, ms",
            "longest pause, ms",
            "waited for memory, ms",
        ];
        Table {
            title: "all policies on all workloads, by the card's clock: time from the start of both programs to the end of the last; bytes copied both ways; how often \
                    and for how long programs were off the card for it; how long their accesses and work waited for memory"
                .to_owned(),
            columns: columns.map(str::to_owned).to_vec(),
            rows,
        }
    }

    /// Whether `gdm` chooses the better one: its times, as multiples of the lesser mean of the two that it chooses from.
    fn switch(&self) -> Table {
        let rows = self.workloads.iter().enumerate().map(|(at, workload)| {
            let mean = |policy| spread(&self.slowdowns(at, policy)).mean;
            let better = mean(PolicyName::Gpuswap).min(mean(PolicyName::GdmAlways));
            let times = self.slowdowns(at, PolicyName::Gdm).into_iter();
            let times: Vec<f64> = times.map(|slowdown| slowdown / better).collect();
            vec![workload.name().into(), spread(&times).into()]
        });
        Table {
            title:
                "policy gdm: time as a multiple of the mean of gpuswap or of gdm-always, whichever is less"
                    .to_owned(),
            columns: ["work", "multiple"].map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }
    }

    fn policies(&self) -> Table {
        type Chosen = fn(&Workload) -> bool;
        let groups: [(&str, Chosen); 5] = [
            (
                "same program twice",
                |of| matches!(of.work, Work::Pair([one, other]) if one == other),
            ),
            (
                "two programs",
                |of| matches!(of.work, Work::Pair([one, other]) if one != other),
            ),
            ("alone", |of| of.work == Work::Alone),
            ("in turns", |of| of.work == Work::Turns),
            ("all", |_| true),
        ];
        let rows = PolicyName::ALL.iter().map(|&policy| {
            let mut row = vec![policy.to_string().into()];
            row.extend(groups.map(|(_, chosen)| {
                let ratios = self.seeds.iter().map(|&seed| {
                    self.mean(policy, seed, chosen) / self.mean(PolicyName::Gpuswap, seed, chosen)
                });
                spread(&ratios.collect::<Vec<f64>>()).into()
            }));
            row
        });
        let mut columns = vec!["policy".to_owned()];
        columns.extend(groups.map(|(name, _)| name.to_owned()));
        Table {
            title: format!(
                "policies: geometric mean over workloads, each counted once, of gpuswap's. The rule (the least of all, and the paper's own unless \
                 another is better by a {TELLS}th) says {}",
                self.by_rule()
            ),
            columns,
            rows: rows.collect(),
        }
    }

    /// The policy that the rule makes the default: the least geometric mean of times over all workloads; but the paper's own, which looks at
    /// nothing and keeps nothing, unless another one is better by more than one part in [`TELLS`].
    fn by_rule(&self) -> PolicyName {
        let mean = |policy: PolicyName| {
            let means = self.seeds.iter().map(|&seed| self.mean(policy, seed, |_| true));
            geometric_mean(&means.collect::<Vec<f64>>())
        };
        let best = PolicyName::ALL
            .into_iter()
            .min_by(|a, b| mean(*a).total_cmp(&mean(*b)));
        let tells = mean(PolicyName::Gpuswap) * (1.0 - 1.0 / TELLS);
        best.filter(|&policy| mean(policy) < tells)
            .unwrap_or(PolicyName::Gpuswap)
    }

    fn claims(&self, report: &mut Report, settings: &Settings) {
        let short = self
            .jobs
            .iter()
            .zip(&self.outcomes)
            .filter(|(job, _)| job.is_short);
        let (ran, spilled) = short.fold((0, 0), |(ran, spilled), (_, outcome)| {
            let chunks = outcome.effects.iter().map(|effects| effects.chunks[0]);
            (ran + 1, spilled + chunks.sum::<u64>())
        });
        report.claim(
            spilled > 0,
            format!(
                "all {ran} runs end with right results, and memory was moved: {spilled} chunks left VRAM"
            ),
        );
        // Small programs on small cards are judged by other costs than those that the default is for.
        if !settings.quick {
            let (rule, default) = (self.by_rule(), PolicyName::default());
            report.claim(
                rule == default,
                format!("the default, {default}, is what the rule says: {rule}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Profile;

    #[test]
    fn pairs_want_more_than_there_is_and_every_program_is_in_one() {
        let settings = Settings::of(Profile::Default, 1, false);
        let mut found = Vec::new();
        for workload in workloads(&settings) {
            if let Work::Pair(kernels) = workload.work {
                let wanted: u64 = kernels.iter().map(|kernel| kernel.footprint).sum();
                assert!(wanted > workload.short, "{}", workload.name());
                assert!(wanted < workload.plenty, "{}", workload.name());
                found.extend(kernels.map(|kernel| kernel.name));
            }
        }
        for (name, _) in gdm::PROGRAMS {
            assert!(found.contains(&name), "{name}");
        }
        assert_eq!(workloads(&settings).len(), 6 + PAIRS.len() + 2);
    }
}
