//! Two instances of one kernel, started at the same time.

use vgpu::{Direction, GpuConfig, Notice, VmId};

use super::PAIR;
use crate::host::{Host, LabError};
use crate::jobs::Onlooker;
use crate::programs::Kernel;
use crate::settings::vm_config;

/// What became of a pair.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// How long the main computation step took each of them, nanoseconds.
    pub(super) took_ns: [u64; 2],
    /// Chunks moved to host RAM, and back.
    pub(super) moved: [u64; 2],
    /// For how long channels were off the card for moves, each time.
    pub(super) stopped_ns: Vec<u64>,
    /// For how long accesses waited for memory, each time.
    pub(super) waits_ns: Vec<u64>,
}

impl Pair {
    /// The slower one's time: what the paper shows.
    pub(super) fn slower_ns(&self) -> u64 {
        self.took_ns[0].max(self.took_ns[1])
    }
}

/// When the VM's plan began and ended.
fn main_step(host: &Host<'_>, vm: VmId) -> Option<u64> {
    let marks = |ends: bool| {
        let mut lines = host.lines.iter().filter(|line| line.vm == vm);
        lines.find(|line| Kernel::marks(&line.text) == Some(ends))
    };
    let (start, end) = (marks(false)?, marks(true)?);
    Some(end.at.now.since(start.at.now))
}

/// Runs a pair to its end; both find their results right.
pub(super) fn run(
    kernel: Kernel,
    config: GpuConfig,
    chunk_bytes: u64,
    onlooker: &dyn Onlooker,
) -> Result<Pair, LabError> {
    let mut host = Host::new(config, onlooker);
    for vm in PAIR {
        host.attach(vm, vm_config(&vm.to_string(), kernel.guest_vram(), chunk_bytes))?;
    }
    let tasks = PAIR.map(|vm| host.start(vm, move |bus| kernel.run(bus)));
    for task in tasks {
        host.join(task)?;
    }
    let mut pair = Pair {
        took_ns: [0; 2],
        moved: [0; 2],
        stopped_ns: Vec::new(),
        waits_ns: Vec::new(),
    };
    for (took, vm) in pair.took_ns.iter_mut().zip(PAIR) {
        *took = main_step(&host, vm).ok_or_else(|| LabError::Guest {
            vm,
            what: "its kernel has told neither start nor end".to_owned(),
        })?;
    }
    for (_, notice) in &host.world.notices {
        match notice {
            Notice::Moved {
                direction, chunks, ..
            } => {
                pair.moved[usize::from(*direction == Direction::Refill)] += u64::from(*chunks);
            }
            Notice::Resumed { suspended_ns, .. } => pair.stopped_ns.push(*suspended_ns),
            Notice::DemandEnded { waited_ns, .. } => pair.waits_ns.push(*waited_ns),
            _ => {}
        }
    }
    Ok(pair)
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
        let pair = run(SHORT_LAUNCHES, config, chunk_bytes, &Patient).expect("right results");
        assert!(pair.moved[0] > 50, "nothing was short: {:?}", pair.moved);
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
