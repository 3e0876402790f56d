//! No figure of the paper: two programs that take turns. What one has in VRAM while it rests is of no use to it.
//!
//! Together they have half as many chunks again as fit. Each in turn uses all of its own while the other rests.

use vgpu::GpuConfig;
use vgpu::policy::PolicyName;

use super::effects::Effects;
use super::hot_set::{Hot, OBJECT};
use super::{Experiment, PAIR};
use crate::SCALE;
use crate::host::{Host, LabError};
use crate::jobs::{self, Onlooker};
use crate::programs::vram_start;
use crate::report::{Chart, Report, Series, Table};
use crate::settings::{Settings, vm_config};
use crate::statistics::spread;

const PAPER: &str = "\"typical algorithms used to achieve a good selection - such as LRU or LFU - are unusable on GPUs\"; \"we currently revert to \
    selecting a random chunk owned by the victim\"";

/// Objects of each program, all of which it uses.
const OBJECTS: u64 = 32;
/// Chunks that fit.
pub(super) const FIT: u64 = 43;
/// Chunks that fit where there is plenty of memory.
pub(super) const PLENTY: u64 = 128;

/// Turns that show what each program's habit is (decision 0037): it works, and has rested twice. They are not counted.
const HABIT: usize = 6;

/// A policy on a card where so many chunks fit.
#[derive(Clone, Copy, Debug)]
struct Job {
    policy: PolicyName,
    fit: u64,
    seed: u64,
    /// Whether who rests lends its memory, as a broker has it that nobody configured.
    lends: bool,
}

/// What became of turns after those that show the programs' habits.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Nanoseconds of a round, for each turn.
    pub(super) round_ns: Vec<f64>,
    /// What was done in each of them.
    pub(super) effects: Vec<Effects>,
}

impl Turns {
    fn moved(&self) -> impl Iterator<Item = f64> {
        self.effects.iter().map(|effects| effects.moved() as f64)
    }
}

/// So many turns of so many nanoseconds.
pub(super) fn take(
    config: GpuConfig,
    (turns, turn_ns): (usize, u64),
    onlooker: &dyn Onlooker,
) -> Result<Turns, LabError> {
    let mut host = Host::new(config, onlooker);
    let guest_vram = vram_start() + OBJECTS * OBJECT;
    for vm in PAIR {
        host.attach(vm, vm_config(&vm.to_string(), guest_vram, OBJECT))?;
    }
    let start = |host: &mut Host<'_>, vm| Hot::start(host, vm, (OBJECTS, OBJECT), 0..OBJECTS as usize);
    let mut resting = vec![start(&mut host, PAIR[0])?, start(&mut host, PAIR[1])?];
    let mut taken = Turns {
        round_ns: Vec::new(),
        effects: Vec::new(),
    };
    for turn in 0..turns {
        let vm = PAIR[turn % 2];
        let before = host.world.notices.len();
        let hot = resting.remove(0);
        let (hot, rounds) = hot.work(&mut host, vm, turn_ns)?;
        resting.push(hot);
        if turn >= HABIT {
            let notices = host.world.notices[before..].iter();
            taken.effects.push(Effects::of(notices.map(|(_, notice)| notice)));
            let mean = rounds.iter().sum::<u64>() as f64 / rounds.len().max(1) as f64;
            taken.round_ns.push(mean);
        }
    }
    for (turn, hot) in (turns..).zip(resting) {
        hot.check(&mut host, PAIR[turn % 2])?;
    }
    Ok(taken)
}

/// Settings of the core under which so many chunks of a policy's fit.
pub(super) fn config(settings: &Settings, (policy, fit, seed): (PolicyName, u64, u64)) -> GpuConfig {
    GpuConfig {
        policy,
        ..settings.profile.config(SCALE, OBJECT, fit * OBJECT, seed)
    }
}

/// How many turns there are, and their length.
pub(super) fn length(settings: &Settings) -> (usize, u64) {
    (
        HABIT + settings.choose(10, 4) as usize,
        settings.choose(1_000_000_000, 300_000_000),
    )
}

/// A card with plenty of memory first; then each policy, without lending and with.
fn jobs_of(settings: &Settings) -> Vec<Job> {
    let mut jobs = vec![Job {
        policy: settings.profile.policy(),
        fit: PLENTY,
        seed: 1,
        lends: false,
    }];
    for policy in PolicyName::ALL {
        for lends in [false, true] {
            jobs.extend(settings.seeds().map(|seed| Job {
                policy,
                fit: FIT,
                seed,
                lends,
            }));
        }
    }
    jobs
}

pub(super) fn run(settings: &Settings, onlooker: &dyn Onlooker) -> Result<Report, LabError> {
    let jobs = jobs_of(settings);
    let name = |job: &Job| {
        let lends = if job.lends { ", lends" } else { "" };
        format!("{}, {} fit, seed {}{lends}", job.policy, job.fit, job.seed)
    };
    let outcomes = jobs::all(&jobs, onlooker, name, |job, onlooker| {
        let mut config = config(settings, (job.policy, job.fit, job.seed));
        config.lends_after_ns = match job.lends {
            true => GpuConfig::default().lends_after_ns,
            false => 0,
        };
        take(config, length(settings), onlooker)
    })?;
    let of = |policy: PolicyName, lends: bool| {
        let runs = jobs.iter().zip(&outcomes);
        runs.filter(move |(job, _)| job.policy == policy && job.fit == FIT && job.lends == lends)
            .map(|(_, outcome)| outcome)
    };
    let mut report = Experiment::Turns.report("no figure", PAPER, settings);
    report
        .tables
        .push(table(spread(&outcomes[0].round_ns).mean, |policy, lends| {
            of(policy, lends).cloned().collect()
        }));
    let still = outcomes[0].moved().all(|moved| moved == 0.0);
    report.claim(still, "nothing moves while there is memory enough".to_owned());
    for policy in PolicyName::ALL {
        let mean = |lends| {
            let rounds = of(policy, lends).flat_map(|outcome| outcome.round_ns.clone());
            spread(&rounds.collect::<Vec<f64>>()).mean
        };
        let is_faster = mean(true) < mean(false);
        report.claim(
            is_faster,
            format!("under {policy} turns are faster if who rests lends"),
        );
    }
    let series = PolicyName::ALL.iter().map(|&policy| {
        let turns = of(policy, true)
            .map(|outcome| outcome.effects.len())
            .max()
            .unwrap_or(0);
        let at = |turn: usize| {
            let moved = of(policy, true).filter_map(|outcome| outcome.moved().nth(turn));
            spread(&moved.collect::<Vec<f64>>())
        };
        Series {
            name: policy.to_string(),
            points: (0..turns)
                .map(|turn| ((turn + HABIT + 1) as f64, at(turn)))
                .collect(),
            is_line: true,
        }
    });
    report.charts.push(Chart {
        title: "chunks moved in each turn, who rests lends".to_owned(),
        x: "turn".to_owned(),
        y: "chunks, either way".to_owned(),
        is_doubling: false,
        series: series.collect(),
    });
    Ok(report)
}

/// A row for each policy: what moved in a turn and how fast it was, without lending and with.
fn table(plenty_ns: f64, of: impl Fn(PolicyName, bool) -> Vec<Turns>) -> Table {
    let rows = PolicyName::ALL.iter().map(|&policy| {
        let mut row = vec![policy.to_string().into()];
        for lends in [false, true] {
            let outcomes = of(policy, lends);
            let moved: Vec<f64> = outcomes.iter().flat_map(Turns::moved).collect();
            let rounds = outcomes.iter().flat_map(|outcome| &outcome.round_ns);
            let speeds: Vec<f64> = rounds.map(|ns| 100.0 * plenty_ns / ns).collect();
            row.extend([spread(&moved).into(), spread(&speeds).into()]);
        }
        row
    });
    let columns = [
        "policy",
        "chunks moved in a turn",
        "% of full speed",
        "moved, if who rests lends",
        "% of full speed then",
    ];
    Table {
        title: format!("two programs of {OBJECTS} chunks each take turns, {FIT} chunks fit"),
        columns: columns.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;

    #[test]
    fn nothing_moves_between_turns_with_memory_enough() {
        let report = run(&Settings::of(Profile::Default, 1, true), &Patient).unwrap();
        assert!(report.holds(), "{report}");
        assert_eq!(report.tables[0].rows.len(), PolicyName::ALL.len());
    }
}
