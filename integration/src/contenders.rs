//! VMs that want an engine together, and what each gets of it, counted by its own work: how many pieces of it ended, and how much there is to do
//! in one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fermi_spec::engine::Engine;
use vgpu::{Event, Quota, VmId};

use crate::bench::{Bench, gpu_config, vm_config};
use crate::checkers::Violation;
use crate::keeper::{counting_grid, works};
use crate::rig::{self, DATA_VA};
use sim_host::bus::SimBus;

const MS: u64 = 1_000_000;
/// Time before a part of a run that is looked at: debts from before are paid.
pub const BEFORE_NS: u64 = 200 * MS;

/// A VM that works: what each piece of its work is, on how many channels, and its weight.
#[derive(Clone, Copy)]
pub struct Works {
    /// A piece of its work.
    pub piece: Piece,
    /// Channels that each have such a piece at a time.
    pub channels: u8,
    /// Its weight beside the others', as in a quota.
    pub weight: u32,
}

/// A piece of work.
#[derive(Clone, Copy)]
pub enum Piece {
    /// A grid of so many steps.
    Grid(u32),
    /// So many copies of 2 MiB within VRAM.
    Copy(u32),
}

impl Piece {
    /// What it is worth beside other pieces of its kind.
    pub fn units(self) -> u64 {
        match self {
            Self::Grid(units) | Self::Copy(units) => units.into(),
        }
    }

    /// What a guest submits for it.
    pub fn words(self, bus: &mut SimBus) -> Vec<u32> {
        const LINE: u32 = 32 << 10;
        match self {
            Self::Grid(steps) => counting_grid(bus, steps),
            Self::Copy(count) => {
                let mut words = rig::bind_words(Engine::Copy0).to_vec();
                let copy = rig::copy_words(DATA_VA, DATA_VA + (2 << 20), LINE, (2 << 20) / LINE);
                (0..count).for_each(|_| words.extend(&copy));
                words
            }
        }
    }
}

/// So many VMs on a card.
pub fn bench(vms: usize) -> Bench {
    let mut bench = Bench::with(128, gpu_config(), &vec![vm_config(16); vms]);
    bench.is_checked = false;
    bench
}

/// Sets a VM's weight.
pub fn weigh(bench: &mut Bench, vm: VmId, weight: u32) {
    let quota = Quota {
        weight,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm, quota });
}

/// Pieces of each VM's work that ended in each of so many parts of the time; weights are changed between them as told.
pub fn pieces(vms: &[Works], run_ns: u64, parts: usize, change: impl Fn(usize, &mut Bench)) -> Vec<Vec<u64>> {
    let mut bench = bench(vms.len());
    let stop = Arc::new(AtomicBool::new(false));
    let mut counts = Vec::new();
    let mut tasks = Vec::new();
    for (vm, of) in (0..).zip(vms) {
        weigh(&mut bench, VmId(vm), of.weight);
        let piece = of.piece;
        let (task, count) = works(&mut bench, VmId(vm), of.channels, &stop, move |bus| {
            piece.words(bus)
        });
        tasks.push(task);
        counts.push(count);
    }
    let mut all = Vec::new();
    for part in 0..parts {
        change(part, &mut bench);
        bench.pass(BEFORE_NS);
        let before: Vec<u64> = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        bench.pass(run_ns);
        let done = counts
            .iter()
            .zip(before)
            .map(|(count, before)| count.load(Ordering::Relaxed) - before);
        all.push(done.collect());
    }
    stop.store(true, Ordering::Relaxed);
    tasks.into_iter().for_each(|task| {
        bench.join(task);
    });
    bench.is_checked = true;
    bench.end();
    all
}

/// Each VM's part of what all got, in thousandths, where a step takes all the same time.
pub fn parts(vms: &[Works], grids: &[u64]) -> Vec<u64> {
    let got: Vec<u64> = vms
        .iter()
        .zip(grids)
        .map(|(vm, grids)| vm.piece.units() * grids)
        .collect();
    let sum: u64 = got.iter().sum();
    got.iter().map(|got| got * 1000 / sum).collect()
}

fn grids(steps: u32, weight: u32) -> Works {
    Works {
        piece: Piece::Grid(steps),
        channels: 1,
        weight,
    }
}

/// Whether an engine is shared by weight, though the one of less weight has grids twenty times as long; and whether it is used, though one VM's
/// grids are over at once.
pub fn engine_is_shared_by_weight() -> Result<(), Violation> {
    let vms = [grids(200_000, 100), grids(10_000, 300)];
    let done = &pieces(&vms, 300 * MS, 1, |_, _| ())[0];
    let parts = parts(&vms, done);
    if parts[0].abs_diff(250) > 100 {
        return Err(Violation(format!(
            "of an engine that is shared 1 to 3, VMs get {parts:?} thousandths"
        )));
    }
    let one = grids(100_000, 100);
    let alone = pieces(&[one], 300 * MS, 1, |_, _| ())[0][0];
    let beside = pieces(&[one, grids(50, 100)], 300 * MS, 1, |_, _| ())[0][0];
    match beside * 10 >= alone * 8 {
        true => Ok(()),
        false => Err(Violation(format!(
            "beside grids that are over at once a VM does {beside} of the {alone} grids that it does alone"
        ))),
    }
}
