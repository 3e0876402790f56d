//! GPUswap's shares, and of a VM's chunks those that were not used last.
//!
//! Who gives and who gets is in [`sharing`], so that shares are the same (decision 0017). Which chunk it is:
//!
//! ```text
//! leaves VRAM first:  space without work for longest ─► cold ─► nothing known ─► hot, the least first ─► came in just now
//! comes back first:   space with work most recently  ─► hot, the most first ─► nothing known ─► cold
//! ```
//!
//! Spaces are told apart by when they had work ([`VmView::used_at`]), by powers of two of a time: what both did lately is no
//! difference. What is hot within a space, trials find out ([`trials`]). Among equals it is chance, as with GPUswap.
//!
//! A chunk that nothing reaches is still its VM's for a while: who unmaps it between two pieces of work does not lose it to a
//! neighbour, only to get it back in a moment (decision 0019).

use rand_chacha::ChaCha8Rng;

mod record;
mod trials;

use self::trials::Trials;
use super::sharing::{self, Choice};
use super::{ChunkView, Observation, Occasion, Policy, Proposal, Snapshot, Usage, VmView, WorkWanted, Worth};
use crate::event::Tick;

/// For so long an idle chunk counts as its VM's. About what it takes to move ten chunks of 2 MiB out and in again: to wait for as
/// long as the exchange would cost is at most twice as bad as to know how long the VM will do without.
const LINGERS_NS: u64 = 50_000_000;
/// For so long a chunk that came in stays, if another can go.
const STAYS_NS: u64 = 100_000_000;
/// What had work within this time is in use.
const IN_USE_NS: u64 = 100_000_000;
/// Ages are told apart up to 2^40 times that.
const AGES: u64 = 40;

/// Ranks of heat within those of an age: cold, unknown, hot.
const HEATS: u64 = 128;
const UNKNOWN: u64 = 1;

#[derive(Default)]
pub(super) struct Recency {
    trials: Trials,
}

/// The order of a VM's chunks by what is known of their use.
struct ByUse<'t> {
    now: Tick,
    trials: &'t Trials,
}

impl ByUse<'_> {
    fn heat(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        match self.trials.heat(vm.vm, chunk.no) {
            None => UNKNOWN,
            Some(0) => 0,
            Some(heat) => UNKNOWN + 1 + u64::from(heat.ilog2()),
        }
    }

    /// 0: in use. Else how often the time without work has doubled.
    fn age(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        let used_at = match chunk.is_idle() {
            true => Some(chunk.reach_since),
            false => vm.used_at(chunk.no),
        };
        let Some(used_at) = used_at else { return AGES };
        match self.now.since(used_at) / IN_USE_NS {
            0 => 0,
            times => (u64::from(times.ilog2()) + 1).min(AGES),
        }
    }
}

impl Choice for ByUse<'_> {
    fn is_idle_for_others(&self, chunk: &ChunkView) -> bool {
        !lingers(self.now, chunk)
    }

    fn leaves(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        let came_in = chunk.moved_at.filter(|_| chunk.is_spillable());
        if came_in.is_some_and(|at| self.now.since(at) < STAYS_NS) {
            return (AGES + 1) * HEATS;
        }
        (AGES - self.age(vm, chunk)) * HEATS + self.heat(vm, chunk)
    }

    fn returns(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        self.age(vm, chunk) * HEATS + (HEATS - 1 - self.heat(vm, chunk))
    }

    /// It is about to be used.
    fn asked(&self) -> u64 {
        AGES * HEATS + UNKNOWN
    }
}

/// Whether the chunk was reached until just now.
fn lingers(now: Tick, chunk: &ChunkView) -> bool {
    chunk.is_idle() && now.since(chunk.reach_since) < LINGERS_NS
}

/// The same picture, where chunks that linger are not idle.
fn with_lingering<'a>(view: &Snapshot<'a>) -> Snapshot<'a> {
    let mut view = view.clone();
    for vm in view.vms.iter_mut().filter(|vm| vm.idle > 0) {
        let is_one = |chunk: &ChunkView| chunk.is_spillable() && lingers(view.now, chunk);
        let bytes: u64 = vm.chunks().filter(is_one).map(|chunk| chunk.bytes).sum();
        vm.idle -= bytes;
        vm.active += bytes;
    }
    view
}

impl Policy for Recency {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        let view = &with_lingering(view);
        let is_calm = matches!(occasion, Occasion::Pass | Occasion::Tick);
        if is_calm {
            self.trials.go_on(view);
        }
        let choice = ByUse {
            now: view.now,
            trials: &self.trials,
        };
        let proposal = sharing::propose(view, occasion, &choice, rng);
        if !is_calm || proposal != Proposal::Nothing {
            self.trials.disturb(view.now);
            return proposal;
        }
        self.trials.try_some(view, rng)
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        self.trials.observe(what);
        sharing::worth(what)
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Nothing
    }

    fn save(&self) -> String {
        serde_json::to_string(&self.trials).expect("numbers, lists, and maps by numbers")
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        self.trials = serde_json::from_str(saved).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        sharing::wants_tick(usage)
    }
}

#[cfg(test)]
mod tests;
