//! What is run: the values of the paper, of its released code, or of a broker that nobody configured.

use vgpu::policy::PolicyName;
use vgpu::{GpuConfig, Quota, VmConfig};

use crate::experiments::Experiment;
use crate::traces::Trace;
use crate::{KIB, MIB, SCALE};

/// Values of a whole system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// As the paper says: chunks of 2 MB, a look at free memory every 50 ms, all chunks of a victim in one suspension.
    Paper,
    /// As the released code has it: chunks of 4 MB, a look every second, four chunks of a victim at a time.
    Released,
    /// A broker's defaults.
    Default,
}

impl Profile {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Released, Self::Default];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Released => "released",
            Self::Default => "default",
        }
    }

    /// Bytes of a chunk, unscaled.
    pub(crate) const fn chunk_bytes(self) -> u64 {
        match self {
            Self::Paper | Self::Default => 2 * MIB,
            Self::Released => 4 * MIB,
        }
    }

    /// The policy whose place in the figures is the profile's own.
    pub(crate) fn policy(self) -> PolicyName {
        match self {
            Self::Paper | Self::Released => PolicyName::Gpuswap,
            Self::Default => PolicyName::default(),
        }
    }

    /// Settings of the core, its sizes divided by `scale`. Chunks of a move: those that the profile takes of a victim at once.
    pub(crate) fn config(self, scale: u64, chunk_bytes: u64, usable: u64, seed: u64) -> GpuConfig {
        let default = GpuConfig::default();
        let batch_bytes = match self {
            Self::Paper => 128 * MIB,
            Self::Released => 4 * chunk_bytes,
            Self::Default => (default.batch_bytes / scale).max(chunk_bytes),
        };
        let refill_period_ns = match self {
            Self::Paper => 50_000_000,
            Self::Released => 1_000_000_000,
            Self::Default => default.refill_period_ns,
        };
        // The paper's shares go by what VMs hold, whether they work or not.
        let lends_after_ns = match self {
            Self::Paper | Self::Released => 0,
            Self::Default => default.lends_after_ns,
        };
        // The paper moves chunks as a whole, whatever their size.
        let part_bytes = match self {
            Self::Paper | Self::Released => *vgpu::CHUNK_BYTES.end(),
            Self::Default => default.part_bytes,
        };
        GpuConfig {
            part_bytes,
            lends_after_ns,
            frames_arrive_zeroed: true,
            host_ram: 4 << 30,
            guest_bytes_max: Some(usable),
            policy: self.policy(),
            seed,
            batch_bytes,
            refill_period_ns,
            ..default
        }
    }
}

/// Sizes that an experiment takes.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    pub(crate) between: std::ops::RangeInclusive<u64>,
    pub(crate) multiple: u64,
    pub(crate) is_power: bool,
    /// The same in words.
    pub(crate) wanted: &'static str,
}

/// How an experiment is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whose chunk size, periods and policy are used.
    pub profile: Profile,
    /// Runs of each point, each with draws of its own.
    pub seeds: u32,
    /// Fewer points and less work: seconds instead of minutes.
    pub quick: bool,
    /// Sizes of the points, as the experiment counts them; its own if there are none.
    pub sizes: Vec<u64>,
    /// Policies that are compared; all if there are none.
    pub policies: Vec<PolicyName>,
    /// Traces that are replayed instead of those of our programs.
    pub traces: Vec<Trace>,
}

impl Settings {
    /// The paper's runs of each point.
    pub const SEEDS: u32 = 10;
    /// The same of a quick run.
    pub const SEEDS_QUICK: u32 = 2;

    /// Settings under which each experiment takes its own sizes.
    pub const fn of(profile: Profile, seeds: u32, quick: bool) -> Self {
        Self {
            profile,
            seeds,
            quick,
            sizes: Vec::new(),
            policies: Vec::new(),
            traces: Vec::new(),
        }
    }

    /// Says what is wrong with the sizes, policies or traces, and what would be right.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn check(&self, experiment: Experiment) -> Result<(), String> {
        if !self.policies.is_empty() && !experiment.takes_policies() {
            return Err(format!(
                "--policies: {} does not compare some of them",
                experiment.name()
            ));
        }
        let is_twice = |(at, policy)| self.policies[..at].contains(policy);
        if let Some((_, twice)) = self.policies.iter().enumerate().find(|&one| is_twice(one)) {
            return Err(format!("--policies: {twice} is named twice"));
        }
        if !self.traces.is_empty() {
            let Some(least) = experiment.traces_min() else {
                return Err(format!("--traces: {} replays none", experiment.name()));
            };
            if (1..least).contains(&self.traces.len()) {
                return Err(format!(
                    "--traces: {} replays {least} traces or more at a time",
                    experiment.name()
                ));
            }
            let mut names: Vec<&str> = self.traces.iter().map(|trace| trace.name.as_str()).collect();
            names.sort_unstable();
            if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!(
                    "--traces: two are of a program of the same name, {}",
                    twice[0]
                ));
            }
        }
        let Some(bounds) = experiment.sizes() else {
            return match self.sizes.is_empty() {
                true => Ok(()),
                false => Err(format!("--sizes: {} takes none", experiment.name())),
            };
        };
        let fits = |bytes: &u64| {
            bounds.between.contains(bytes)
                && bytes.is_multiple_of(bounds.multiple)
                && (!bounds.is_power || bytes.is_power_of_two())
        };
        match self.sizes.iter().find(|bytes| !fits(bytes)) {
            None => Ok(()),
            Some(bytes) => Err(format!("--sizes: {} KiB is not {}", bytes / KIB, bounds.wanted)),
        }
    }

    /// `full`, or `quick` of a quick run.
    pub(crate) const fn choose(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// Bytes of a chunk on the scaled card.
    pub(crate) const fn chunk_bytes(&self) -> u64 {
        self.profile.chunk_bytes() / SCALE
    }

    /// The policies that are compared, in their order.
    pub(crate) fn compared(&self) -> Vec<PolicyName> {
        let is_compared = |policy: &PolicyName| self.policies.is_empty() || self.policies.contains(policy);
        PolicyName::ALL.into_iter().filter(is_compared).collect()
    }

    /// Seeds of the core's draws.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        1..=u64::from(self.seeds)
    }
}

/// A VM without a quota.
pub(crate) fn vm_config(name: &str, guest_vram: u64, chunk_bytes: u64) -> VmConfig {
    VmConfig {
        name: name.to_owned(),
        guest_vram: guest_vram.next_multiple_of(chunk_bytes.max(MIB)),
        chunk_bytes,
        quota: Quota::default(),
        ram: vgpu::RAM_DEFAULT,
        channels: vgpu::CHANNELS_DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(experiment: Experiment, sizes: &[u64]) -> Result<(), String> {
        let settings = Settings {
            sizes: sizes.to_vec(),
            ..Settings::of(Profile::Paper, 1, true)
        };
        settings.check(experiment)
    }

    #[test]
    fn size_of_nonsense_is_refused_with_what_would_be_allowed() {
        let said = checked(Experiment::ChunkSize, &[128 * KIB, 3 * MIB]).unwrap_err();
        assert_eq!(
            said,
            "--sizes: 3072 KiB is not a power of two between 128K and 64M"
        );
        let said = checked(Experiment::Oversubscribe, &[0]).unwrap_err();
        assert_eq!(
            said,
            "--sizes: 0 KiB is not a multiple of 2M between 4M and 1400M"
        );
        assert!(checked(Experiment::Oversubscribe, &[20 * MIB, 1400 * MIB]).is_ok());
    }

    #[test]
    fn some_policies_are_compared_where_that_says_something_and_each_once() {
        use PolicyName::{Adaptive, Gdm, Gpuswap};
        let of = |policies: &[PolicyName]| Settings {
            policies: policies.to_vec(),
            ..Settings::of(Profile::Paper, 1, true)
        };
        let some = of(&[Adaptive, Gpuswap]);
        assert_eq!(some.check(Experiment::Oversubscribe), Ok(()));
        assert_eq!(some.compared(), [Gpuswap, Adaptive]);
        assert_eq!(of(&[]).compared(), PolicyName::ALL);
        assert_eq!(
            some.check(Experiment::Systems).unwrap_err(),
            "--policies: systems does not compare some of them"
        );
        assert_eq!(
            of(&[Gdm, Adaptive, Gdm])
                .check(Experiment::Oversubscribe)
                .unwrap_err(),
            "--policies: gdm is named twice"
        );
    }

    #[test]
    fn experiment_without_sizes_takes_none() {
        assert_eq!(
            checked(Experiment::Turns, &[MIB]).unwrap_err(),
            "--sizes: turns takes none"
        );
        assert!(checked(Experiment::Turns, &[]).is_ok());
    }

    #[test]
    fn traces_are_for_experiments_that_replay_some_and_their_names_differ() {
        let text = "vramd-trace 1\nprogram a\ngpu-ns 9\nallocations 1\nkernel\nquantum 1\n0 0 1 0\n";
        let of = |name: &str| Trace::parse(&text.replace("program a", &format!("program {name}"))).unwrap();
        let checked = |experiment: Experiment, traces| {
            let settings = Settings {
                traces,
                ..Settings::of(Profile::Paper, 1, true)
            };
            settings.check(experiment)
        };
        assert_eq!(checked(Experiment::Adaptive, vec![of("a")]), Ok(()));
        assert_eq!(checked(Experiment::Link, vec![of("a"), of("b")]), Ok(()));
        for (experiment, traces, wanted) in [
            (Experiment::Turns, vec![of("a")], "--traces: turns replays none"),
            (
                Experiment::Link,
                vec![of("a")],
                "--traces: link replays 2 traces or more at a time",
            ),
            (
                Experiment::Adaptive,
                vec![of("a"), of("b"), of("a")],
                "--traces: two are of a program of the same name, a",
            ),
        ] {
            assert_eq!(checked(experiment, traces).unwrap_err(), wanted);
        }
    }
}
