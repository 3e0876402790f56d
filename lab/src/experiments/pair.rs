//! Two programs, started at the same time.

use vgpu::{GpuConfig, Tick, VmId};

use super::PAIR;
use super::effects::Effects;
use crate::host::{Host, LabError};
use crate::jobs::Onlooker;
use crate::programs::Kernel;
use crate::settings::vm_config;

/// What became of a pair.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// How long the main computation step took each of them, nanoseconds.
    pub(super) took_ns: [u64; 2],
    /// When that step was over, from the start of both. Under pressure one may begin later, and then both have less of the GPU to share: that makes
    /// the step shorter and this longer.
    pub(super) ended_ns: [u64; 2],
    pub(super) effects: Effects,
}

impl Pair {
    /// The slower one's time: what the paper shows.
    pub(super) fn slower_ns(&self) -> u64 {
        self.took_ns[0].max(self.took_ns[1])
    }
}

/// When the VM's plan began and ended.
fn main_step(host: &Host<'_>, vm: VmId) -> Option<(Tick, Tick)> {
    let marks = |ends: bool| {
        let mut lines = host.lines.iter().filter(|line| line.vm == vm);
        lines.find(|line| Kernel::marks(&line.text) == Some(ends))
    };
    Some((marks(false)?.at.now, marks(true)?.at.now))
}

/// Runs a pair to its end; both find their results right.
pub(super) fn run(
    kernels: [Kernel; 2],
    config: GpuConfig,
    chunk_bytes: u64,
    onlooker: &dyn Onlooker,
) -> Result<Pair, LabError> {
    let mut host = Host::new(config, onlooker);
    for (vm, kernel) in PAIR.into_iter().zip(kernels) {
        host.attach(vm, vm_config(&vm.to_string(), kernel.guest_vram(), chunk_bytes))?;
    }
    let (both, [one, other]) = (host.world.now, kernels);
    let tasks = [
        host.start(PAIR[0], move |bus| one.run(bus)),
        host.start(PAIR[1], move |bus| other.run(bus)),
    ];
    for task in tasks {
        host.join(task)?;
    }
    let (mut took_ns, mut ended_ns) = ([0; 2], [0; 2]);
    for ((took, ended), vm) in took_ns.iter_mut().zip(&mut ended_ns).zip(PAIR) {
        let (start, end) = main_step(&host, vm).ok_or_else(|| LabError::Guest {
            vm,
            what: "its kernel has told neither start nor end".to_owned(),
        })?;
        (*took, *ended) = (end.since(start), end.since(both));
    }
    let effects = Effects::of(host.world.notices.iter().map(|(_, notice)| notice));
    Ok(Pair {
        took_ns,
        ended_ns,
        effects,
    })
}

#[cfg(test)]
mod tests {
    use vgpu::policy::PolicyName;

    use super::*;
    use crate::jobs::tests::Patient;
    use crate::settings::Profile;
    use crate::{KIB, MIB, SCALE};

    /// Hundreds of launches, each shorter than the time that it takes to find out what it uses, and with parameters of its own.
    const SHORT_LAUNCHES: Kernel = Kernel {
        name: "heartwall",
        footprint: 12 * MIB,
        repeats: 1,
    };

    fn slower_ns(policy: PolicyName) -> f64 {
        let chunk_bytes = 128 * KIB;
        let mut config = Profile::Default.config(SCALE, chunk_bytes, 100 * MIB / SCALE, 1);
        config.policy = policy;
        let pair = run([SHORT_LAUNCHES; 2], config, chunk_bytes, &Patient).expect("right results");
        let spilled = pair.effects.chunks[0];
        assert!(spilled > 50, "nothing was short: {spilled}");
        pair.slower_ns() as f64
    }

    #[test]
    fn looks_at_launches_take_their_part_of_the_time() {
        let by_chance = slower_ns(PolicyName::Gpuswap);
        for policy in [PolicyName::Adaptive, PolicyName::Gdm] {
            let times = slower_ns(policy) / by_chance;
            assert!(times < 1.25, "{policy} takes {times:.2} times as long as chance");
        }
    }
}
