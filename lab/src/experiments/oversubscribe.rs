//! Figure 5: run time of pairs of programs on less and less memory.

use vgpu::policy::PolicyName;

use super::Experiment;
use super::pair;
use crate::host::LabError;
use crate::jobs::{self, Onlooker};
use crate::programs::{Kernel, SIX};
use crate::report::{Chart, Report, Series, Spread, Table};
use crate::settings::Settings;
use crate::statistics::{geometric_mean, spread};
use crate::{MIB, SCALE};

const PAPER: &str = "\"the runtime of all applications increases significantly - from 50% for backprop to 786% for bfs\" at 20 MB; \"the \
    overhead appears to decrease exponentially as we add more GPU memory\"; runtimes \"fluctuate heavily\"";

/// Memory for guests, MB of the paper.
const SIZES: [u64; 11] = [20, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500];
const SIZES_QUICK: [u64; 3] = [20, 100, 250];
/// Memory with which everything fits, MB of the paper.
const PLENTY: u64 = 1400;

/// One run of a pair.
#[derive(Clone, Copy, Debug)]
struct Job {
    kernel: Kernel,
    /// Memory for guests, bytes of ours.
    usable: u64,
    policy: PolicyName,
    seed: u64,
}

impl Job {
    fn name(&self) -> String {
        let mib = self.usable as f64 / MIB as f64;
        format!(
            "{}, {mib} MiB, {}, seed {}",
            self.kernel.name, self.policy, self.seed
        )
    }
}

/// Its result: nanoseconds of the slower one, and chunks moved out.
#[derive(Clone, Debug)]
struct Outcome {
    took_ns: f64,
    spilled: u64,
}

fn do_job(settings: &Settings, job: &Job, onlooker: &dyn Onlooker) -> Result<Outcome, LabError> {
    let chunk_bytes = settings.chunk_bytes();
    let mut config = settings.profile.config(SCALE, chunk_bytes, job.usable, job.seed);
    config.policy = job.policy;
    let pair = pair::run([job.kernel; 2], config, chunk_bytes, onlooker)?;
    Ok(Outcome {
        took_ns: pair.slower_ns() as f64,
        spilled: pair.effects.chunks[0],
    })
}

/// The six programs, as large and as long as their experiments have them.
pub(super) fn kernels(settings: &Settings) -> [Kernel; 6] {
    SIX.map(|name| Kernel {
        name,
        footprint: settings.choose(12, 3) * MIB,
        repeats: settings.choose(3, 2) as u32,
    })
}

/// All jobs of the experiment and where each belongs.
fn jobs_of(settings: &Settings) -> Vec<Job> {
    let mut jobs = Vec::new();
    let one = |kernel, usable, policy, seed| Job {
        kernel,
        usable,
        policy,
        seed,
    };
    for kernel in kernels(settings) {
        // Without pressure nothing is drawn.
        jobs.push(one(kernel, PLENTY * MIB / SCALE, settings.profile.policy(), 1));
        for usable in usable(settings) {
            for policy in settings.compared() {
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
        policies: settings.compared(),
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
    policies: Vec<PolicyName>,
}

impl Results {
    fn plenty(&self, name: &str) -> f64 {
        let mut all = self.jobs.iter().zip(&self.outcomes);
        let found = all.find(|(job, _)| job.kernel.name == name && job.usable == PLENTY * MIB / SCALE);
        found.map_or(f64::NAN, |(_, outcome)| outcome.took_ns)
    }

    /// Times as multiples of those with plenty of memory, one for each seed.
    fn slowdowns(&self, name: &str, usable: u64, policy: PolicyName) -> Vec<(u64, f64)> {
        let plenty = self.plenty(name);
        let all = self.jobs.iter().zip(&self.outcomes);
        all.filter(|(job, _)| job.kernel.name == name && job.usable == usable && job.policy == policy)
            .map(|(job, outcome)| (job.seed, outcome.took_ns / plenty))
            .collect()
    }

    fn spread(&self, name: &str, usable: u64, policy: PolicyName) -> Spread {
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
        let all = SIX.iter().flat_map(|&name| {
            self.sizes
                .iter()
                .flat_map(move |&size| self.slowdowns(name, size, policy))
        });
        let of_seed = all.filter(|(of, _)| *of == seed);
        geometric_mean(&of_seed.map(|(_, slowdown)| slowdown).collect::<Vec<f64>>())
    }

    fn tables(&self, report: &mut Report, settings: &Settings) {
        for &policy in &self.policies {
            let mut columns = vec!["program".to_owned()];
            columns.extend(self.sizes.iter().map(|size| format!("{} MB", size * SCALE / MIB)));
            let rows = SIX.iter().map(|&name| {
                let mut row = vec![name.into()];
                row.extend(
                    self.sizes
                        .iter()
                        .map(|&size| self.spread(name, size, policy).into()),
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
        let of_switch = [PolicyName::Gpuswap, PolicyName::Gdm, PolicyName::GdmAlways];
        if of_switch.iter().all(|policy| self.policies.contains(policy)) {
            report.tables.push(self.switch());
        }
        let Some(&first) = self.policies.first() else {
            return;
        };
        let rows = self.policies.iter().map(|&policy| {
            let means: Vec<f64> = settings.seeds().map(|seed| self.mean(policy, seed)).collect();
            let ratios = settings
                .seeds()
                .map(|seed| self.mean(policy, seed) / self.mean(first, seed));
            vec![
                policy.to_string().into(),
                spread(&means).into(),
                spread(&ratios.collect::<Vec<f64>>()).into(),
            ]
        });
        report.tables.push(Table {
            title: "policies: geometric mean of all the multiples above, over seeds".to_owned(),
            columns: vec![
                "policy".to_owned(),
                "geometric mean".to_owned(),
                format!("of {first}'s"),
            ],
            rows: rows.collect(),
        });
    }

    /// Whether `gdm` chooses the better one: its times, as multiples of the lesser mean of the two that it chooses from.
    fn switch(&self) -> Table {
        let rows = SIX.iter().map(|&name| {
            let mut row = vec![name.into()];
            row.extend(self.sizes.iter().map(|&size| {
                let mean = |policy| self.spread(name, size, policy).mean;
                let better = mean(PolicyName::Gpuswap).min(mean(PolicyName::GdmAlways));
                let times = self.slowdowns(name, size, PolicyName::Gdm).into_iter();
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
        let at_least = at_least.filter(|(job, _)| job.usable == least);
        let finished = at_least.filter(|(_, outcome)| outcome.took_ns > 0.0).count();
        let wanted = SIX.len() * self.policies.len() * settings.seeds as usize;
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
            let series = self.policies.iter().map(|&policy| Series {
                name: policy.to_string(),
                points: self
                    .sizes
                    .iter()
                    .map(|&size| ((size * SCALE / MIB) as f64, self.spread(name, size, policy)))
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
