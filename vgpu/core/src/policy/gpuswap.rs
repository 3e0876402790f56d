//! GPUswap: spread VRAM evenly, move what chance picks (Kehne, Metter, Bellosa, VEE'15).
//!
//! GPUswap §4.3: the victim is who holds most, pending demand included, and without reference bits a random chunk is as
//! good as any; §4.5: the winner of a refill is who holds least. Added are weights and the protections of cgroup v2; idle
//! chunks, which go before the victim's because nobody need stop for them; and the giver, so that the promise of a fair
//! share holds after frees too.
//!
//! It keeps no state. The order of its draws is part of a recording: a change of it makes older ones repeat otherwise.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{ChunkNo, Observation, Occasion, Policy, Proposal, Reach, Snapshot, Usage, VmView, Worth};
use crate::config::Quota;
use crate::event::VmId;
use crate::reason::MoveCause;

pub(super) struct Gpuswap;

impl Policy for Gpuswap {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        match occasion {
            Occasion::AboveMax { vm } => spill(view, vm, MoveCause::AboveMax, 1, rng),
            Occasion::Demand => make_room(view, rng),
            Occasion::Pass | Occasion::Tick => pass(view, rng),
        }
    }

    /// A pass is worth while when something became free or idle, when a VM may hold more than before, and when one has a
    /// chunk in host RAM that it could have in VRAM.
    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        match what {
            Observation::Moved { .. }
            | Observation::Synced { .. }
            | Observation::QuotaChanged { .. }
            | Observation::Emptied { .. }
            | Observation::Backed {
                resident: false,
                over_max: false,
                ..
            } => Worth::Pass,
            // The VM is passed over; a chunk's reach is followed by that of all the VM's.
            Observation::Backed { .. }
            | Observation::RolledBack { .. }
            | Observation::Reached { .. }
            | Observation::Idled { .. } => Worth::Nothing,
        }
    }

    fn save(&self) -> String {
        String::new()
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        match saved {
            "" => Ok(()),
            other => Err(format!("GPUswap keeps nothing, and is told {other:?}")),
        }
    }

    /// Nothing comes back while nothing is out.
    fn wants_tick(&self, usage: Usage) -> bool {
        usage.spilled > 0
    }
}

/// One VM, as a choice between VMs sees it; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    vm: VmId,
    /// In VRAM and not idle, plus what the VM is asking for.
    claim: u64,
    /// Chunks in VRAM, idle ones too.
    resident: u64,
    /// In VRAM, not idle, and may be moved out now.
    movable: u64,
    /// Reached chunks in host RAM that may be moved in now.
    wanted: u64,
    /// Size of the VM's largest chunk.
    chunk: u64,
    quota: Quota,
}

impl Holding {
    fn of(vm: &VmView<'_>) -> Self {
        Self {
            vm: vm.vm,
            claim: vm.active + vm.asked,
            resident: vm.resident,
            movable: if vm.may_move { vm.active } else { 0 },
            wanted: if vm.may_move { vm.wanted } else { 0 },
            chunk: vm.chunk_bytes,
            quota: vm.quota,
        }
    }

    /// Bytes by weight, scaled so that weight 100 is one.
    fn weighted(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 100 / u128::from(self.quota.weight)) as u64
    }

    /// Whether a chunk can go without leaving less than `protected` bytes.
    fn may_lose(&self, chunk: u64, protected: u64) -> bool {
        self.movable >= chunk && self.resident.saturating_sub(chunk) >= protected
    }
}

fn holdings(view: &Snapshot<'_>) -> Vec<Holding> {
    view.vms.iter().map(Holding::of).collect()
}

/// Idle chunks first, then the victim's; without a victim all demands are met in host RAM.
fn make_room(view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Proposal {
    let Some(of) = view.demands.first().map(|demand| demand.vm) else {
        return Proposal::Nothing;
    };
    let short = view.demanded().saturating_sub(view.free);
    if let Some(idle) = most_idle(view) {
        let count = chunks_for(idle, short);
        return spill(view, idle.vm, MoveCause::Idle { taken_for: of }, count, rng);
    }
    let holdings = holdings(view);
    let Some(victim) = victim(&holdings).and_then(|vm| view.vm(vm)) else {
        let all = view
            .demands
            .iter()
            .map(|demand| (demand.vm, demand.chunks.to_vec()));
        return Proposal::HostRam {
            chunks: all.collect(),
        };
    };
    // The demander may be its own victim: then a chunk it asks for is as good a choice as one it holds, and goes to
    // host RAM without a copy.
    if let Some(demand) = view.demands.iter().find(|demand| demand.vm == victim.vm) {
        let asked = demand.chunks.len();
        let held = spillable(victim, false).len();
        if rng.random_range(0..asked + held) < asked {
            let pick = rng.random_range(0..asked);
            return Proposal::HostRam {
                chunks: vec![(victim.vm, vec![demand.chunks[pick]])],
            };
        }
    }
    let count = fair_count(&holdings, victim.vm, chunks_for(victim, short));
    spill(view, victim.vm, MoveCause::Demand { of }, count, rng)
}

/// The VM that holds least gets chunks back: into free frames, else in exchange for an idle chunk, else for one of a VM
/// that holds more.
fn pass(view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Proposal {
    let holdings = holdings(view);
    let Some(winner) = winner(&holdings).and_then(|vm| view.vm(vm)) else {
        return Proposal::Nothing;
    };
    let chunks = refillable(view, winner, lead(&holdings, winner), rng);
    if !chunks.is_empty() {
        return Proposal::Refill {
            vm: winner.vm,
            chunks,
            cause: MoveCause::FreeRoom,
        };
    }
    if let Some(idle) = most_idle(view) {
        let taken_for = winner.vm;
        return spill(view, idle.vm, MoveCause::Idle { taken_for }, 1, rng);
    }
    let toward = winner.vm;
    giver(&holdings, toward).map_or(Proposal::Nothing, |giver| {
        spill(view, giver, MoveCause::Fairness { toward }, 1, rng)
    })
}

/// The victim of a demand: first anybody above `high`, then the largest weighted claim above `low`, then above `min`.
fn victim(holdings: &[Holding]) -> Option<VmId> {
    let largest = |keep: &dyn Fn(&&Holding) -> bool| {
        holdings
            .iter()
            .filter(keep)
            .max_by_key(|h| (h.weighted(h.claim), h.vm))
            .map(|h| h.vm)
    };
    largest(&|h| h.resident > h.quota.high && h.may_lose(h.chunk, h.quota.min))
        .or_else(|| largest(&|h| h.may_lose(h.chunk, h.quota.low.max(h.quota.min))))
        .or_else(|| largest(&|h| h.may_lose(h.chunk, h.quota.min)))
}

/// How many chunks the victim may lose before another one holds more.
fn fair_count(holdings: &[Holding], victim: VmId, wanted: usize) -> usize {
    let Some(own) = holdings.iter().find(|h| h.vm == victim) else {
        return 1;
    };
    let next = holdings
        .iter()
        .filter(|h| h.vm != victim)
        .map(|h| h.claim)
        .max()
        .unwrap_or(0);
    let excess = own.claim.saturating_sub(next) / own.chunk.max(1);
    wanted.min(excess as usize + 1)
}

/// The smallest weighted claim among those that want a chunk and may hold it.
fn winner(holdings: &[Holding]) -> Option<VmId> {
    holdings
        .iter()
        .filter(|h| h.wanted > 0 && h.resident.saturating_add(h.chunk) <= h.quota.max)
        .min_by_key(|h| (h.weighted(h.claim), h.vm))
        .map(|h| h.vm)
}

/// Bytes that the winner may take before it is a chunk ahead of the next VM that wants some.
fn lead(holdings: &[Holding], winner: &VmView<'_>) -> u64 {
    let own = holdings.iter().find(|h| h.vm == winner.vm).map_or(0, |h| h.claim);
    let next = holdings
        .iter()
        .filter(|h| h.vm != winner.vm && h.wanted > 0)
        .map(|h| h.claim)
        .min();
    next.map_or(u64::MAX, |next| next.saturating_sub(own) + winner.chunk_bytes)
}

/// Who gives a chunk to the winner though nobody needs one now: somebody who would still hold at least as much, by weight,
/// as the winner then does. Leaves nobody with spilled chunks more than one chunk below the fair share, and cannot
/// oscillate.
fn giver(holdings: &[Holding], winner: VmId) -> Option<VmId> {
    let won = holdings.iter().find(|h| h.vm == winner)?;
    let after_winning = won.weighted(won.claim.saturating_add(won.chunk));
    holdings
        .iter()
        .filter(|h| h.vm != winner && h.may_lose(h.chunk, h.quota.low.max(h.quota.min)))
        .filter(|h| h.weighted(h.claim.saturating_sub(h.chunk)) >= after_winning)
        .max_by_key(|h| (h.weighted(h.claim), h.vm))
        .map(|h| h.vm)
}

/// The VM with most idle bytes in VRAM that it may lose.
fn most_idle<'v, 'a>(view: &'v Snapshot<'a>) -> Option<&'v VmView<'a>> {
    view.vms
        .iter()
        .filter(|vm| vm.may_move && vm.idle > 0 && vm.spill_chunks_max > 0)
        .max_by_key(|vm| (vm.idle, vm.vm))
}

/// Chunks of the VM that hold so many bytes, at least one.
fn chunks_for(vm: &VmView<'_>, bytes: u64) -> usize {
    bytes.div_ceil(vm.chunk_bytes).max(1) as usize
}

/// Chunks in VRAM that may be spilled: idle ones, or the others.
fn spillable(vm: &VmView<'_>, idle: bool) -> Vec<ChunkNo> {
    let wanted = vm
        .chunks()
        .filter(|chunk| chunk.is_spillable() && chunk.is_idle() == idle);
    wanted.map(|chunk| chunk.no).collect()
}

/// Up to `count` random chunks of a VM: idle ones if that is the cause; else reached ones, or idle ones if it has no others.
fn spill(view: &Snapshot<'_>, vm: VmId, cause: MoveCause, count: usize, rng: &mut ChaCha8Rng) -> Proposal {
    let Some(view) = view.vm(vm) else {
        return Proposal::Nothing;
    };
    let idle = matches!(cause, MoveCause::Idle { .. });
    let mut candidates = spillable(view, idle);
    if candidates.is_empty() && !idle {
        candidates = spillable(view, true);
    }
    let mut chunks = Vec::new();
    while chunks.len() < count.min(view.spill_chunks_max) && !candidates.is_empty() {
        chunks.push(candidates.swap_remove(rng.random_range(0..candidates.len())));
    }
    match chunks.is_empty() {
        true => Proposal::Nothing,
        false => Proposal::Spill { vm, chunks, cause },
    }
}

/// Random reached chunks of the VM in host RAM that fit free frames, as many as its lead and one move allow.
fn refillable(view: &Snapshot<'_>, vm: &VmView<'_>, lead: u64, rng: &mut ChaCha8Rng) -> Vec<ChunkNo> {
    let wanted = vm
        .chunks()
        .filter(|chunk| chunk.is_refillable() && chunk.reach != Reach::None);
    let mut candidates: Vec<_> = wanted.map(|chunk| (chunk.no, chunk.bytes)).collect();
    let mut left = vm.refill_bytes_max.min(lead).min(view.free);
    let mut chunks = Vec::new();
    while !candidates.is_empty() {
        let (chunk, bytes) = candidates.swap_remove(rng.random_range(0..candidates.len()));
        if bytes > left {
            break;
        }
        left -= bytes;
        chunks.push(chunk);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holding(vm: u16, claim: u64) -> Holding {
        Holding {
            vm: VmId(vm),
            claim,
            resident: claim,
            movable: claim,
            wanted: 1 << 30,
            chunk: 2,
            quota: Quota::default(),
        }
    }

    #[test]
    fn largest_claim_is_the_victim() {
        assert_eq!(
            victim(&[holding(1, 10), holding(2, 20), holding(3, 6)]),
            Some(VmId(2))
        );
    }

    #[test]
    fn protected_memory_is_never_taken() {
        let mut only = holding(1, 10);
        only.quota.min = 10;
        assert_eq!(victim(&[only]), None);
    }

    #[test]
    fn who_is_above_high_goes_before_the_largest() {
        let mut over = holding(1, 10);
        over.quota.high = 8;
        assert_eq!(victim(&[over, holding(2, 20)]), Some(VmId(1)));
    }

    #[test]
    fn weight_divides_the_claim() {
        let mut heavy = holding(1, 20);
        heavy.quota.weight = 400;
        assert_eq!(victim(&[heavy, holding(2, 10)]), Some(VmId(2)));
    }

    #[test]
    fn equal_holders_do_not_trade() {
        assert_eq!(giver(&[holding(1, 10), holding(2, 10)], VmId(1)), None);
    }

    proptest! {
        #[test]
        fn giving_ends_within_a_chunk_of_equal(start in proptest::collection::vec(0u64..60, 2..6)) {
            let mut holdings: Vec<_> = start.iter().enumerate().map(|(i, &n)| holding(i as u16, n * 2)).collect();
            for _ in 0..10_000 {
                let Some(won) = winner(&holdings) else { break };
                let Some(gave) = giver(&holdings, won) else { break };
                for h in &mut holdings {
                    let change = |bytes: u64| match h.vm {
                        vm if vm == won => bytes + 2,
                        vm if vm == gave => bytes - 2,
                        _ => bytes,
                    };
                    (h.claim, h.resident, h.movable) = (change(h.claim), change(h.resident), change(h.movable));
                }
            }
            let most = holdings.iter().map(|h| h.claim).max().unwrap();
            let least = holdings.iter().map(|h| h.claim).min().unwrap();
            prop_assert!(most - least <= 2, "{:?}", holdings);
        }
    }
}
