//! Ganguly's counters (*Adaptive Memory Management for CPU-GPU Heterogeneous Systems*, thesis, University of Pittsburgh, 2020, chapter 5), GPUswap's
//! shares between VMs.
//!
//! Who gives and who gets is in [`sharing`], so that shares are the same (decision 0017). Which of a VM's chunks are in VRAM, how often they are
//! used decides:
//!
//! ```text
//! leaves VRAM first:  fewest launches used it ─► of two alike what is mapped for loads only ─► what was used least recently
//! comes back first:   most launches used it
//! changes places:     the first to leave with one outside that more launches used, and at least t_s · (r + 1) · p (equation 1)
//! ```
//!
//! A Fermi counts no accesses, so launches stand for them: those of an entry of a ring count once for each chunk that they are known to use, wherever that is.
//! `r` is how often the chunk came back. A launch that stores brings nothing at once, as a store does in the thesis: the launch has begun by then.
//! The thesis's trees and patterns are in the crate `adaptive`, which has the threshold for both.

use adaptive::{Fill, Migration};
use rand_chacha::ChaCha8Rng;

use super::sharing::{self, Choice};
use super::{
    ChunkNo, ChunkView, Observation, Occasion, Policy, Proposal, Reach, Snapshot, Usage, VmView, WorkWanted,
    Worth,
};
use crate::reason::MoveCause;

/// Launches are told apart up to this many, as by the thesis's counters of 27 bits.
const LAUNCHES_MAX: u32 = (1 << 27) - 1;
/// What was used is told apart by milliseconds, and by so many of them.
const MS: u64 = 1_000_000;
const AGES_MAX: u64 = (1 << 35) - 1;

/// Launches after which chunks come: the thesis's t_s and p.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Adaptive {
    migration: Migration,
}

impl Adaptive {
    pub(super) fn new(after: u64, penalty: u64) -> Self {
        let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            migration: Migration::Dynamic {
                base: number(after),
                penalty: number(penalty),
            },
        }
    }

    /// Whether so many launches are enough for a chunk in host RAM.
    fn is_hot(&self, chunk: &ChunkView) -> bool {
        // Something of the VM is in host RAM.
        let fill = Fill {
            used: 1,
            total: 1,
            is_oversubscribed: true,
        };
        let threshold = self.migration.threshold(fill, chunk.moves / 2);
        threshold.is_some_and(|threshold| u64::from(chunk.launches) >= threshold)
    }

    /// Chunks of a VM change places with as many that are used more, for the first VM that has any.
    fn exchange(&self, view: &Snapshot<'_>) -> Proposal {
        let first = view.vms.iter().filter(|vm| vm.may_move).find_map(|vm| {
            let pairs = self.pairs(vm);
            (!pairs.is_empty()).then_some((vm.vm, pairs))
        });
        first.map_or(Proposal::Nothing, |(within, pairs)| {
            let (leave, come) = pairs.into_iter().unzip();
            let cause = MoveCause::Exchange { within };
            Proposal::Exchange {
                vm: within,
                leave,
                come,
                cause,
            }
        })
    }

    /// Whole chunks in VRAM, each with one in host RAM that is hot and that more launches used.
    fn pairs(&self, vm: &VmView<'_>) -> Vec<(ChunkNo, ChunkNo)> {
        let is_whole = |chunk: &ChunkView| chunk.bytes == vm.chunk_bytes;
        let comes = |chunk: &ChunkView| chunk.is_refillable() && !chunk.is_idle() && is_whole(chunk);
        let mut hot: Vec<ChunkView> = vm
            .chunks()
            .filter(|chunk| comes(chunk) && self.is_hot(chunk))
            .collect();
        if hot.is_empty() {
            return Vec::new();
        }
        hot.sort_by_key(|chunk| (std::cmp::Reverse(chunk.launches), chunk.no));
        let mut cold: Vec<ChunkView> = vm
            .chunks()
            .filter(|chunk| chunk.is_spillable() && is_whole(chunk))
            .collect();
        cold.sort_by_key(|chunk| (coldness(chunk), chunk.no));
        let pairs = hot.iter().zip(&cold).take(vm.exchange_chunks_max);
        pairs
            .take_while(|(hot, cold)| cold.launches < hot.launches)
            .map(|(hot, cold)| (cold.no, hot.no))
            .collect()
    }
}

/// The least goes first: launches, whether channels may store to it, when it was used.
fn coldness(chunk: &ChunkView) -> u64 {
    let used_at = chunk.launched_at.map_or(0, |at| at.0 / MS).min(AGES_MAX);
    let may_store = u64::from(chunk.reach == Reach::Writable);
    u64::from(chunk.launches.min(LAUNCHES_MAX)) << 36 | may_store << 35 | used_at
}

struct ByLaunches;

impl Choice for ByLaunches {
    fn is_idle_for_others(&self, _chunk: &ChunkView) -> bool {
        true
    }

    fn leaves(&self, _vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        coldness(chunk)
    }

    fn returns(&self, _vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        u64::MAX - coldness(chunk)
    }

    /// No launch has used it yet.
    fn asked(&self) -> u64 {
        0
    }
}

impl Policy for Adaptive {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        let proposal = sharing::propose(view, occasion, &ByLaunches, rng);
        let is_calm = matches!(occasion, Occasion::Pass | Occasion::Tick);
        match proposal {
            Proposal::Nothing if is_calm => self.exchange(view),
            proposal => proposal,
        }
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        sharing::worth(what)
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Looks
    }

    fn save(&self) -> String {
        String::new()
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        super::nothing_kept("adaptive", saved)
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        sharing::wants_tick(usage)
    }
}

#[cfg(test)]
mod tests;
