//! GPUswap: spread VRAM evenly, move what chance picks (Kehne, Metter, Bellosa, VEE'15).
//!
//! Who gives and who gets is in [`sharing`]. GPUswap §4.3: without reference bits a random chunk is as good as any.
//!
//! It keeps no state. The order of its draws is part of a recording: a change of it makes older ones repeat otherwise.

use rand_chacha::ChaCha8Rng;

use super::sharing::{self, Choice};
use super::{ChunkView, Observation, Occasion, Policy, Proposal, Snapshot, Usage, VmView, WorkWanted, Worth};

pub(super) struct Gpuswap;

/// No chunk is better than another, and idle is idle.
struct Random;

impl Choice for Random {
    fn is_idle_for_others(&self, _chunk: &ChunkView) -> bool {
        true
    }

    fn leaves(&self, _vm: &VmView<'_>, _chunk: &ChunkView) -> u64 {
        0
    }

    fn returns(&self, _vm: &VmView<'_>, _chunk: &ChunkView) -> u64 {
        0
    }

    fn asked(&self) -> u64 {
        0
    }
}

impl Policy for Gpuswap {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        sharing::propose(view, occasion, &Random, rng)
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        sharing::worth(what)
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Nothing
    }

    fn save(&self) -> String {
        String::new()
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        super::nothing_kept("gpuswap", saved)
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        sharing::wants_tick(usage)
    }
}

#[cfg(test)]
mod tests;
