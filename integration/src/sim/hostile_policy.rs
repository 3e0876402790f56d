//! A policy that proposes at random, sense and nonsense alike: limits have to hold whatever it says.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use vgpu::policy::{
    ChunkNo, Observation, Occasion, Policy, Proposal, Snapshot, Usage, VmView, WorkWanted, Worth,
};
use vgpu::{MoveCause, VmId};

/// Draws for itself, so that a seed gives one run.
pub(super) struct HostilePolicy {
    rng: ChaCha8Rng,
}

impl HostilePolicy {
    /// The policy of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// One that is told by `restore` where it stands.
    pub(super) fn fresh() -> Box<dyn Policy> {
        Box::new(Self::new(0))
    }

    /// Chunks that fit the purpose, in any order and perhaps twice, with strangers among them.
    fn chunks(&mut self, vm: Option<&VmView<'_>>, spill: bool) -> Vec<ChunkNo> {
        let mut chunks = Vec::new();
        for _ in 0..self.rng.random_range(0..12u32) {
            let fitting = vm
                .into_iter()
                .flat_map(VmView::chunks)
                .filter(|chunk| match spill {
                    true => chunk.is_spillable(),
                    false => chunk.is_refillable(),
                });
            let fitting: Vec<ChunkNo> = fitting.map(|chunk| chunk.no).collect();
            chunks.push(match fitting.len() {
                0 => ChunkNo(self.rng.random()),
                _ if self.rng.random_range(0..8u32) == 0 => ChunkNo(self.rng.random_range(0..400)),
                count => fitting[self.rng.random_range(0..count)],
            });
        }
        chunks
    }

    fn release(&mut self, vm: VmId, view: &Snapshot<'_>) -> Proposal {
        let for_ns = 1 << self.rng.random_range(0..30u32);
        Proposal::Release {
            vm,
            until: view.now.after(for_ns),
            with_looks: self.rng.random(),
        }
    }

    fn move_some(&mut self, number: u32, vm: VmId, view: &Snapshot<'_>, cause: MoveCause) -> Proposal {
        match number {
            0..=1 => {
                let chunks = self.chunks(view.vm(vm), true);
                Proposal::Spill { vm, chunks, cause }
            }
            2..=3 => {
                let chunks = self.chunks(view.vm(vm), false);
                Proposal::Refill { vm, chunks, cause }
            }
            4 => self.host_ram(view),
            5 => Proposal::Exchange {
                vm,
                leave: self.chunks(view.vm(vm), true),
                come: self.chunks(view.vm(vm), false),
                cause,
            },
            _ => Proposal::Nothing,
        }
    }

    fn host_ram(&mut self, view: &Snapshot<'_>) -> Proposal {
        let mut chunks: Vec<_> = view
            .demands
            .iter()
            .map(|demand| {
                let wanted = demand.chunks.iter().copied();
                let wanted = wanted.filter(|_| self.rng.random_range(0..3u32) != 0);
                (demand.vm, wanted.collect())
            })
            .collect();
        if self.rng.random_range(0..4u32) == 0 {
            chunks.push((
                VmId(self.rng.random_range(0..6)),
                vec![ChunkNo(self.rng.random_range(0..400))],
            ));
        }
        Proposal::HostRam { chunks }
    }
}

impl Policy for HostilePolicy {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, _rng: &mut ChaCha8Rng) -> Proposal {
        let vm = VmId(self.rng.random_range(0..5));
        let cause = MoveCause::FreeRoom;
        match (self.rng.random_range(0..8u32), occasion) {
            // Switched to work that runs directly, and held again at any moment.
            (6, Occasion::Held { vm } | Occasion::Due { vm }) => self.release(vm, view),
            (7, _) => self.release(vm, view),
            (number, _) => self.move_some(number, vm, view, cause),
        }
    }

    fn observe(&mut self, _what: &Observation<'_>) -> Worth {
        match self.rng.random_range(0..3u32) {
            0 => Worth::Pass,
            _ => Worth::Nothing,
        }
    }

    /// Work waits for what it proposes, and for nothing.
    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Waits
    }

    fn save(&self) -> String {
        serde_json::to_string(&self.rng).expect("a seed and a position")
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        self.rng = serde_json::from_str(saved).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn wants_tick(&self, _usage: Usage) -> bool {
        true
    }
}
