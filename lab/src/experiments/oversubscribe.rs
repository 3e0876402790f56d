//! Figure 5: run time of pairs of programs on less and less memory; and a program alone that uses what would fit.

use vgpu::VmId;
use vgpu::policy::PolicyName;

use super::Experiment;
use super::hot_set::Hot;
use super::pair::{self, Pair};
use crate::host::{Host, LabError};
use crate::jobs::{self, Onlooker};
use crate::programs::{Kernel, SIX, vram_start};
use crate::report::{Chart, Report, Series, Spread, Table};
use crate::settings::{Settings, vm_config};
use crate::statistics::{geometric_mean, spread};
use crate::{KIB, MIB, SCALE};

const PAPER: &str = "\"the runtime of all applications increases significantly - from 50% for backprop to 786% for bfs\" at 20 MB; \"the \
    overhead appears to decrease exponentially as we add more GPU memory\"; runtimes \"fluctuate heavily\"";

/// Memory for guests, MB of the paper.
const SIZES: [u64; 11] = [20, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500];
const SIZES_QUICK: [u64; 3] = [20, 100, 250];
/// Memory with which everything fits, MB of the paper.
const PLENTY: u64 = 1400;

/// A policy other than the paper's has to be better by one part in so many to be the default.
const TELLS: f64 = 20.0;

/// The program alone: objects, how many of them fit, and how many it uses.
const OBJECT: u64 = 512 * KIB;
const OBJECTS: u64 = 64;
const FIT: u64 = 43;
const USED: usize = 30;

/// One run of a pair, or of the program alone without a kernel.
#[derive(Clone, Copy, Debug)]
struct Job {
    kernel: Option<Kernel>,
    /// Memory for guests, bytes of ours.
    usable: u64,
    policy: PolicyName,
    seed: u64,
}

impl Job {
    fn name(&self) -> String {
        let name = self.kernel.map_or("alone", |kernel| kernel.name);
        let mib = self.usable as f64 / MIB as f64;
        format!("{name}, {mib} MiB, {}, seed {}", self.policy, self.seed)
    }
}

/// Its result: nanoseconds of the slower one, or of a round; chunks moved out; of pairs bytes moved both ways, and pauses.
#[derive(Clone, Debug)]
struct Outcome {
    took_ns: f64,
    spilled: u64,
    moved_bytes: u64,
    stopped_ns: Vec<u64>,
}

fn do_job(settings: &Settings, job: &Job, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let Some(kernel) = job.kernel else {
        return alone(settings, job, onlooker);
    };
    let chunk_bytes = settings.chunk_bytes();
    let mut config = settings.profile.config(SCALE, chunk_bytes, job.usable, job.seed);
    config.policy = job.policy;
    let pair: Pair = pair::run(kernel, config, chunk_bytes, onlooker)?;
    Ok(Outcome {
        took_ns: pair.slower_ns() as f64,
        spilled: pair.moved[0],
        moved_bytes: (pair.moved[0] + pair.moved[1]) * chunk_bytes,
        stopped_ns: pair.stopped_ns,
    })
}

/// A program alone that uses less than fits: time of a round when memory has had time to come to rest.
fn alone(settings: &Settings, job: &Job, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let vm = VmId(0);
    let mut config = settings.profile.config(SCALE, OBJECT, job.usable, job.seed);
    config.policy = job.policy;
    let mut host = Host::new(config, onlooker);
    host.attach(vm, vm_config("alone", vram_start() + OBJECTS * OBJECT, OBJECT))?;
    // Scattered over all that it has: what it uses is in no order that a policy could guess.
    let first = (job.seed as usize * 7) % (OBJECTS as usize - USED);
    let hot = Hot::start(&mut host, vm, (OBJECTS, OBJECT), first..first + USED)?;
    let settle = settings.choose(4_000_000_000, 1_500_000_000);
    let (hot, _) = hot.work(&mut host, vm, settle)?;
    let (hot, rounds) = hot.work(&mut host, vm, settle / 10)?;
    hot.check(&mut host, vm)?;
    let spilled = host.usage(vm).1 / OBJECT;
    let took_ns = rounds.iter().sum::<u64>() as f64 / rounds.len().max(1) as f64;
    Ok(Outcome {
        took_ns,
        spilled,
        moved_bytes: 0,
        stopped_ns: Vec::new(),
    })
}

/// All jobs of the experiment and where each belongs.
fn jobs_of(settings: &Settings) -> Vec<Job> {
    let kernels = SIX.map(|name| Kernel {
        name,
        footprint: settings.choose(12, 3) * MIB,
        repeats: settings.choose(3, 2) as u32,
    });
    let mut jobs = Vec::new();
    let one = |kernel, usable, policy, seed| Job {
        kernel,
        usable,
        policy,
        seed,
    };
    for kernel in kernels.into_iter().map(Some).chain([None]) {
        // Without pressure nothing is drawn.
        jobs.push(one(kernel, PLENTY * MIB / SCALE, settings.profile.policy(), 1));
        let sizes: Vec<u64> = match kernel {
            Some(_) => usable(settings),
            None => vec![FIT * OBJECT],
        };
        for usable in sizes {
            for policy in PolicyName::ALL {
                jobs.extend(settings.seeds().map(|seed| one(kernel, usable, policy, seed)));
            }
        }
    }
    jobs
}

/// Memory for guests at each point, bytes of ours.
fn usable(settings: &Settings) -> Vec<u64> {
    let sizes = match (settings.sizes.is_empty(), settings.quick) {
        (false, _) => settings.sizes.clone(),
        (true, true) => SIZES_QUICK.map(|megabytes| megabytes * MIB).to_vec(),
        (true, false) => SIZES.map(|megabytes| megabytes * MIB).to_vec(),
    };
    sizes.into_iter().map(|bytes| bytes / SCALE).collect()
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let jobs = jobs_of(settings);
    let outcomes = jobs::all(&jobs, onlooker, Job::name, |job, onlooker| {
        do_job(settings, job, onlooker)
    })?;
    let mut report = Experiment::Oversubscribe.report("Figure 5 of GPUswap's paper", PAPER, settings);
    let results = Results {
        jobs,
        outcomes,
        sizes: usable(settings),
    };
    results.tables(&mut report, settings);
    results.claims(&mut report, settings);
    results.charts(&mut report);
    Ok(report)
}

struct Results {
    jobs: Vec<Job>,
    outcomes: Vec<Outcome>,
    sizes: Vec<u64>,
}

impl Results {
    fn plenty(&self, name: Option<&str>) -> f64 {
        let mut all = self.jobs.iter().zip(&self.outcomes);
        let found = all.find(|(job, _)| {
            job.kernel.map(|kernel| kernel.name) == name && job.usable == PLENTY * MIB / SCALE
        });
        found.map_or(f64::NAN, |(_, outcome)| outcome.took_ns)
    }

    /// Times as multiples of those with plenty of memory, one for each seed.
    fn slowdowns(&self, name: Option<&str>, usable: u64, policy: PolicyName) -> Vec<(u64, f64)> {
        let plenty = self.plenty(name);
        let all = self.jobs.iter().zip(&self.outcomes);
        all.filter(|(job, _)| {
            job.kernel.map(|kernel| kernel.name) == name && job.usable == usable && job.policy == policy
        })
        .map(|(job, outcome)| (job.seed, outcome.took_ns / plenty))
        .collect()
    }

    fn spread(&self, name: Option<&str>, usable: u64, policy: PolicyName) -> Spread {
        let slowdowns = self.slowdowns(name, usable, policy);
        spread(
            &slowdowns
                .iter()
                .map(|(_, slowdown)| *slowdown)
                .collect::<Vec<f64>>(),
        )
    }

    /// Geometric mean over programs and sizes, for one seed.
    fn mean(&self, policy: PolicyName, seed: u64) -> f64 {
        let means: Vec<f64> = SIX.iter().map(|&name| self.program(name, policy, seed)).collect();
        geometric_mean(&means)
    }

    /// The same of one program over sizes.
    fn program(&self, name: &str, policy: PolicyName, seed: u64) -> f64 {
        let slowdowns = self
            .sizes
            .iter()
            .flat_map(|&size| self.slowdowns(Some(name), size, policy));
        let of_seed = slowdowns.filter(|(of, _)| *of == seed);
        geometric_mean(&of_seed.map(|(_, slowdown)| slowdown).collect::<Vec<f64>>())
    }

    /// Geometric mean over the six programs in pairs and the one that is alone, each counted once, for one seed.
    fn mean_of_all(&self, policy: PolicyName, seed: u64) -> f64 {
        let alone = self.slowdowns(None, FIT * OBJECT, policy).into_iter();
        let alone = alone.filter(|(of, _)| *of == seed).map(|(_, slowdown)| slowdown);
        let pairs = SIX.iter().map(|&name| self.program(name, policy, seed));
        geometric_mean(&pairs.chain(alone).collect::<Vec<f64>>())
    }

    fn tables(&self, report: &mut Report, settings: &Settings) {
        for policy in PolicyName::ALL {
            let mut columns = vec!["program".to_owned()];
            columns.extend(self.sizes.iter().map(|size| format!("{} MB", size * SCALE / MIB)));
            let rows = SIX.iter().map(|&name| {
                let mut row = vec![name.into()];
                row.extend(
                    self.sizes
                        .iter()
                        .map(|&size| self.spread(Some(name), size, policy).into()),
                );
                row
            });
            report.tables.push(Table {
                title: format!(
                    "time of the slower of two, as a multiple of that without pressure; policy {}",
                    policy
                ),
                columns,
                rows: rows.collect(),
            });
        }
        report.tables.push(self.switch());
        report.tables.push(self.all());
        let rows = PolicyName::ALL.iter().map(|&policy| {
            let means: Vec<f64> = settings.seeds().map(|seed| self.mean(policy, seed)).collect();
            let of_random = |mean: &dyn Fn(PolicyName, u64) -> f64| {
                let ratios = settings
                    .seeds()
                    .map(|seed| mean(policy, seed) / mean(PolicyName::Gpuswap, seed));
                spread(&ratios.collect::<Vec<f64>>())
            };
            let pairs = of_random(&|policy, seed| self.mean(policy, seed));
            let all = of_random(&|policy, seed| self.mean_of_all(policy, seed));
            let speeds = self.slowdowns(None, FIT * OBJECT, policy).into_iter();
            let speeds: Vec<f64> = speeds.map(|(_, slowdown)| 100.0 / slowdown).collect();
            vec![
                policy.to_string().into(),
                spread(&means).into(),
                pairs.into(),
                spread(&speeds).into(),
                all.into(),
            ]
        });
        let columns = [
            "policy",
            "geometric mean of pairs",
            "of random's",
            "alone, hot set fits, % of full speed",
            "geometric mean of pairs and alone, of random's",
        ];
        report.tables.push(Table {
            title: format!(
                "policies: geometric mean of all the multiples above, over seeds; a program alone that uses 30 of 64 chunks, 43 fit; and that of the six \
                 programs and the one alone, each counted once. The rule (the least of the last, and the paper's own unless another is better by a \
                 {TELLS}th) says {}",
                self.by_rule(settings)
            ),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        });
    }

    /// All policies on all programs: what the default is chosen from.
    fn all(&self) -> Table {
        let mut rows = Vec::new();
        for name in SIX {
            for &size in &self.sizes {
                for policy in PolicyName::ALL {
                    let all = self.jobs.iter().zip(&self.outcomes).filter(|(job, _)| {
                        let kernel = job.kernel.map(|kernel| kernel.name);
                        kernel == Some(name) && job.usable == size && job.policy == policy
                    });
                    let outcomes: Vec<&Outcome> = all.map(|(_, outcome)| outcome).collect();
                    let each = |value: &dyn Fn(&Outcome) -> f64| {
                        spread(
                            &outcomes
                                .iter()
                                .map(|outcome| value(outcome))
                                .collect::<Vec<f64>>(),
                        )
                    };
                    let stopped_ms = |outcome: &Outcome| outcome.stopped_ns.iter().sum::<u64>() as f64 / 1e6;
                    let longest_ms = |outcome: &Outcome| {
                        outcome.stopped_ns.iter().max().map_or(0.0, |&ns| ns as f64 / 1e6)
                    };
                    rows.push(vec![
                        format!("{name}, {} MB", size * SCALE / MIB).into(),
                        policy.to_string().into(),
                        self.spread(Some(name), size, policy).into(),
                        each(&|outcome| outcome.moved_bytes as f64 / MIB as f64).into(),
                        each(&|outcome| outcome.stopped_ns.len() as f64).into(),
                        each(&stopped_ms).into(),
                        each(&longest_ms).into(),
                    ]);
                }
            }
        }
        let columns = [
            "program",
            "policy",
            "time, without pressure = 1",
            "moved, MiB",
            "pauses",
            "stopped, ms",
            "longest pause, ms",
        ];
        Table {
            title: "all policies and programs: pairs, by the card's clock; moved both ways, and how often and for how long the two were off \
                    the card for it"
                .to_owned(),
            columns: columns.map(str::to_owned).to_vec(),
            rows,
        }
    }

    /// The policy that the rule makes the default: the least geometric mean of times of the six programs in pairs and the one alone; but the paper's
    /// own, which looks at nothing and keeps nothing, unless another one is better by more than one part in [`TELLS`].
    fn by_rule(&self, settings: &Settings) -> PolicyName {
        let mean = |policy: PolicyName| {
            let means = settings.seeds().map(|seed| self.mean_of_all(policy, seed));
            geometric_mean(&means.collect::<Vec<f64>>())
        };
        let best = PolicyName::ALL
            .into_iter()
            .min_by(|a, b| mean(*a).total_cmp(&mean(*b)));
        let tells = mean(PolicyName::Gpuswap) * (1.0 - 1.0 / TELLS);
        best.filter(|&policy| mean(policy) < tells)
            .unwrap_or(PolicyName::Gpuswap)
    }

    /// Whether `gdm` chooses the better one: its times, as multiples of the lesser mean of the two that it chooses from.
    fn switch(&self) -> Table {
        let rows = SIX.iter().map(|&name| {
            let mut row = vec![name.into()];
            row.extend(self.sizes.iter().map(|&size| {
                let mean = |policy| self.spread(Some(name), size, policy).mean;
                let better = mean(PolicyName::Gpuswap).min(mean(PolicyName::GdmAlways));
                let times = self.slowdowns(Some(name), size, PolicyName::Gdm).into_iter();
                let times: Vec<f64> = times.map(|(_, slowdown)| slowdown / better).collect();
                spread(&times).into()
            }));
            row
        });
        let mut columns = vec!["program".to_owned()];
        columns.extend(self.sizes.iter().map(|size| format!("{} MB", size * SCALE / MIB)));
        Table {
            title:
                "policy gdm: time as a multiple of the mean of gpuswap or of gdm-always, whichever is less"
                    .to_owned(),
            columns,
            rows: rows.collect(),
        }
    }

    fn claims(&self, report: &mut Report, settings: &Settings) {
        let least = self.sizes.iter().min().copied().unwrap_or(0);
        let at_least = self.jobs.iter().zip(&self.outcomes);
        let at_least = at_least.filter(|(job, _)| job.kernel.is_some() && job.usable == least);
        let finished = at_least.filter(|(_, outcome)| outcome.took_ns > 0.0).count();
        let wanted = SIX.len() * PolicyName::ALL.len() * settings.seeds as usize;
        report.claim(
            finished == wanted,
            format!(
                "all six finish with right results on {} MB / {SCALE} ({finished} of {wanted} runs)",
                least * SCALE / MIB
            ),
        );
        let spilled: u64 = self.outcomes.iter().map(|outcome| outcome.spilled).sum();
        report.claim(
            spilled > 0,
            format!("memory was moved: {spilled} chunks left VRAM"),
        );
    }

    fn charts(&self, report: &mut Report) {
        for name in SIX {
            let series = PolicyName::ALL.iter().map(|&policy| Series {
                name: policy.to_string(),
                points: self
                    .sizes
                    .iter()
                    .map(|&size| ((size * SCALE / MIB) as f64, self.spread(Some(name), size, policy)))
                    .collect(),
                is_line: true,
            });
            report.charts.push(Chart {
                title: format!("Figure 5: {name}"),
                x: "memory for guests, MB of the paper".to_owned(),
                y: "time, without pressure = 1".to_owned(),
                is_doubling: false,
                series: series.collect(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn all_six_finish_on_the_least_memory_and_are_slower_than_on_plenty() {
        let settings = Settings {
            sizes: vec![20 * MIB],
            ..Settings::of(Profile::Default, 1, true)
        };
        let report = run(&settings, &Patient).unwrap();
        assert!(report.holds(), "{report}");
        let slower = |series: &Series| series.points.iter().all(|(_, slowdown)| slowdown.mean > 1.0);
        assert!(
            report.charts.iter().all(|chart| chart.series.iter().all(slower)),
            "{report}"
        );
    }
}
