//! Programs that use a part of their objects, and rest now and then.

use vgpu::{GpuConfig, VmId};

use super::effects::Effects;
use crate::KIB;
use crate::host::{Host, LabError};
use crate::jobs::Onlooker;
use crate::programs::{Objects, vram_start};
use crate::settings::vm_config;

/// Time between two rounds.
const REST_NS: u64 = 2_000_000;

/// The program that is alone: an object and a chunk; objects, how many of them fit, and how many it uses.
pub(super) const OBJECT: u64 = 512 * KIB;
pub(super) const OBJECTS: u64 = 64;
pub(super) const FIT: u64 = 43;
pub(super) const USED: usize = 30;

/// A program alone that uses less than fits: the time of each round when memory has had time to come to rest, which is `settle_ns`.
pub(super) fn alone(config: GpuConfig, settle_ns: u64, onlooker: &dyn Onlooker) -> Result<Alone, LabError> {
    let vm = VmId(0);
    // Scattered over all that it has: what it uses is in no order that a policy could guess.
    let first = (config.seed as usize * 7) % (OBJECTS as usize - USED);
    let mut host = Host::new(config, onlooker);
    host.attach(vm, vm_config("alone", vram_start() + OBJECTS * OBJECT, OBJECT))?;
    let hot = Hot::start(&mut host, vm, (OBJECTS, OBJECT), first..first + USED)?;
    let (hot, _) = hot.work(&mut host, vm, settle_ns)?;
    let (hot, rounds_ns) = hot.work(&mut host, vm, settle_ns / 10)?;
    hot.check(&mut host, vm)?;
    let effects = Effects::of(host.world.notices.iter().map(|(_, notice)| notice));
    Ok(Alone { rounds_ns, effects })
}

/// What became of it.
pub(super) struct Alone {
    pub(super) rounds_ns: Vec<u64>,
    pub(super) effects: Effects,
}

/// Objects of a VM, and those of them that it uses.
pub(super) struct Hot {
    program: Box<Objects>,
    used: std::ops::Range<usize>,
}

impl Hot {
    /// Allocates all objects and fills those that will be used: the second half of them with the bytes of the first.
    pub(super) fn start(
        host: &mut Host<'_>,
        vm: VmId,
        (objects, bytes): (u64, u64),
        used: std::ops::Range<usize>,
    ) -> Result<Self, LabError> {
        let half = (used.len() / 2).max(1);
        let wanted = used.clone();
        let program = host.run(vm, move |bus| {
            let mut program = Objects::start(bus)?;
            for _ in 0..objects {
                program.allocate(bus, bytes)?;
            }
            wanted
                .clone()
                .try_for_each(|at| program.fill(bus, at, ((at - wanted.start) % half) as u64))?;
            Ok(program)
        })?;
        Ok(Self { program, used })
    }

    /// Uses its objects again and again for so long; gives the time of each round.
    pub(super) fn work(
        mut self,
        host: &mut Host<'_>,
        vm: VmId,
        for_ns: u64,
    ) -> Result<(Self, Vec<u64>), LabError> {
        let end = host.world.now.after(for_ns);
        let mut rounds = Vec::new();
        while host.world.now < end {
            let (mut program, used) = (self.program, self.used.clone());
            let start = host.world.now;
            self.program = host.run(vm, move |bus| {
                program.stream(bus, used)?;
                Ok(program)
            })?;
            rounds.push(host.world.now.since(start));
            host.pass(REST_NS)?;
        }
        Ok((self, rounds))
    }

    /// Every object that is used has its bytes.
    pub(super) fn check(self, host: &mut Host<'_>, vm: VmId) -> Result<(), LabError> {
        let (mut program, used) = (self.program, self.used);
        let half = (used.len() / 2).max(1);
        host.run(vm, move |bus| {
            let start = used.start;
            used.into_iter()
                .try_for_each(|at| program.check(bus, at, ((at - start) % half) as u64))
        })
    }
}
