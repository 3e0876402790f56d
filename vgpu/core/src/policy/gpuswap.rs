//! GPUswap: spread VRAM evenly, move what chance picks (Kehne, Metter, Bellosa, VEE'15).
//!
//! GPUswap §4.3: the victim is who holds most, pending demand included, and without reference bits a random chunk is as
//! good as any; §4.5: the winner of a refill is who holds least. Here "most" and "least" are measured against a VM's share
//! ([`shares`]): what it should hold by weights, by the protections of cgroup v2, and by what all want. Added are idle
//! chunks, which go before the victim's because nobody need stop for them; and the pass, so that shares are kept after
//! frees too (decision 0017):
//!
//! 1. A VM that is a chunk of its own below its share collects frames until that chunk fits: idle ones, then from those
//!    above theirs. Who gives was above its share and is less than a chunk below it afterwards; who gets is not above
//!    it. So nobody gives twice what it got, and it ends.
//! 2. Then free and idle frames go to whoever has a chunk that fits, furthest below its share first. That takes from
//!    nobody, so it undoes nothing.
//!
//! It keeps no state. The order of its draws is part of a recording: a change of it makes older ones repeat otherwise.

use planted::Fault;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::shares::{Party, shares};
use super::{ChunkNo, Observation, Occasion, Policy, Proposal, Snapshot, Usage, VmView, Worth};
use crate::reason::MoveCause;

pub(super) struct Gpuswap;

impl Policy for Gpuswap {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        match occasion {
            Occasion::AboveMax { vm } => view
                .vm(vm)
                .map_or(Proposal::Nothing, |vm| spill(vm, MoveCause::AboveMax, 1, rng)),
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

    /// Nothing comes back while nothing is out, and what a demand brought above `high` goes.
    fn wants_tick(&self, usage: Usage) -> bool {
        usage.spilled > 0 || usage.above_high > 0
    }
}

/// A VM and its share.
#[derive(Clone, Copy, Debug)]
struct Holder<'v, 'a> {
    view: &'v VmView<'a>,
    share: u64,
}

impl<'v, 'a> Holder<'v, 'a> {
    /// In VRAM and not idle, plus what the VM asks for.
    fn claim(&self) -> u64 {
        self.view.active + self.view.asked
    }

    /// Bytes that its claim is above its share.
    fn excess(&self) -> u64 {
        self.claim().saturating_sub(self.share)
    }

    /// Bytes that it is below its share.
    fn deficit(&self) -> u64 {
        self.share.saturating_sub(self.claim())
    }

    /// A chunk that it wants may come in, as far as the VM is concerned, perhaps in exchange for an idle one of its own.
    fn may_take(&self) -> bool {
        let view = self.view;
        view.may_move && view.wanted > 0 && (view.smallest_wanted <= view.refill_bytes_max || view.idle > 0)
    }

    /// It is below its share by a chunk that it wants.
    fn collects(&self) -> bool {
        self.may_take() && self.view.smallest_wanted <= self.deficit()
    }

    /// It may lose an active chunk.
    fn may_give(&self) -> bool {
        let view = self.view;
        view.may_move && view.active > 0 && view.spill_chunks_max > 0
    }

    /// Most chunks that may go until it is at its share or below.
    fn chunks_above(&self) -> usize {
        chunks_for(self.view, self.excess())
    }
}

/// All VMs and what each should hold of the memory that is theirs or free.
fn holders<'v, 'a>(view: &'v Snapshot<'a>) -> Vec<Holder<'v, 'a>> {
    let capacity = view.vms.iter().map(|vm| vm.resident).sum::<u64>() + view.free;
    let parties: Vec<Party> = view.vms.iter().map(party).collect();
    let shares = shares(capacity, &parties).into_iter();
    let holders = view.vms.iter().zip(shares);
    holders.map(|(view, share)| Holder { view, share }).collect()
}

fn party(vm: &VmView<'_>) -> Party {
    // Chunks come and go whole: what keeps a part of one keeps all of it.
    let whole = |bytes: u64| bytes.checked_next_multiple_of(vm.chunk_bytes).unwrap_or(u64::MAX);
    let (min, quota) = (whole(vm.quota.min), vm.quota);
    let weight = match planted::is(Fault::WeightsIgnored) {
        true => 1,
        false => quota.weight,
    };
    Party {
        weight,
        fixed: if vm.may_move { 0 } else { vm.resident },
        min,
        low: whole(quota.low),
        cap: quota.high.min(quota.max),
        // `min` keeps idle memory too.
        wanted: (vm.active + vm.asked + vm.wanted).max(min.min(vm.resident)),
    }
}

/// Idle chunks first, then the victim's; without a victim all demands are met in host RAM.
fn make_room(view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Proposal {
    let Some((of, waits_for_own)) = view
        .demands
        .first()
        .map(|demand| (demand.vm, demand.waits_for_own))
    else {
        return Proposal::Nothing;
    };
    if let Some(own) = view.vm(of).filter(|_| waits_for_own) {
        return spill(own, MoveCause::Idle { taken_for: of }, 1, rng);
    }
    let short = view.demanded().saturating_sub(view.free_for(of));
    if let Some(idle) = most_idle(view) {
        let count = chunks_for(idle, short);
        return spill(idle, MoveCause::Idle { taken_for: of }, count, rng);
    }
    let holders = holders(view);
    let Some(victim) = victim(&holders) else {
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
    let vm = victim.view.vm;
    if let Some(demand) = view.demands.iter().find(|demand| demand.vm == vm) {
        let asked = demand.chunks.len();
        let held = match victim.may_give() {
            true => spillable(victim.view, false).len(),
            false => 0,
        };
        if rng.random_range(0..asked + held) < asked {
            let pick = rng.random_range(0..asked);
            return Proposal::HostRam {
                chunks: vec![(vm, vec![demand.chunks[pick]])],
            };
        }
    }
    let count = chunks_for(victim.view, short).min(victim.chunks_above());
    spill(victim.view, MoveCause::Demand { of }, count, rng)
}

/// Who is furthest above its share, what it asks for included. Of two that are equally far it is who asks for nothing.
fn victim<'h, 'v, 'a>(holders: &'h [Holder<'v, 'a>]) -> Option<&'h Holder<'v, 'a>> {
    holders
        .iter()
        .filter(|holder| holder.excess() > 0 && (holder.may_give() || holder.view.asked > 0))
        .max_by_key(|holder| (holder.excess(), holder.view.asked == 0, holder.view.vm))
}

/// Who is below its share by a chunk collects; then what is left goes to whoever can take it.
fn pass(view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Proposal {
    if let Some(proposal) = lower_to_high(view, rng) {
        return proposal;
    }
    let mut holders = holders(view);
    // Who began to collect goes on; then the furthest below.
    let claims = |holder: &Holder<'_, '_>| view.claim.is_some_and(|(vm, _)| vm == holder.view.vm);
    holders.sort_by_key(|holder| {
        let below = i128::from(holder.share) - i128::from(holder.claim());
        (!claims(holder), -below, holder.view.vm)
    });
    let collectors = holders.iter().filter(|holder| holder.collects());
    for collector in collectors {
        let proposal = collect(view, &holders, collector, rng);
        if proposal != Proposal::Nothing {
            return proposal;
        }
    }
    match planted::is(Fault::RestLeftFree) {
        true => Proposal::Nothing,
        false => leftover(view, &holders, rng),
    }
}

/// What is above `high` goes, whether somebody needs the frames or not.
fn lower_to_high(view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Option<Proposal> {
    let above = |vm: &&VmView<'_>| vm.may_move && vm.resident > vm.quota.high && vm.spill_chunks_max > 0;
    let vm = view.vms.iter().find(above)?;
    if planted::is(Fault::HighIgnored) {
        return None;
    }
    let count = chunks_for(vm, vm.resident - vm.quota.high);
    let proposal = spill(vm, MoveCause::AboveHigh, count, rng);
    (proposal != Proposal::Nothing).then_some(proposal)
}

/// Brings the collector chunks if they fit; else takes what they need from others.
fn collect(
    view: &Snapshot<'_>,
    holders: &[Holder<'_, '_>],
    collector: &Holder<'_, '_>,
    rng: &mut ChaCha8Rng,
) -> Proposal {
    let winner = collector.view;
    let chunks = refillable(view, winner, collector.deficit(), rng);
    if !chunks.is_empty() {
        return refill(winner, chunks);
    }
    // Its own idle memory stands in its way: at its `max`, or where its `min` protects it from everybody.
    let at_limit = winner.smallest_wanted > winner.refill_bytes_max;
    if winner.idle > 0 && (at_limit || takeable_idle(winner) == 0 && most_idle(view).is_none()) {
        let taken_for = winner.vm;
        return spill(winner, MoveCause::Idle { taken_for }, 1, rng);
    }
    let short = winner.smallest_wanted.saturating_sub(view.free);
    if let Some(idle) = most_idle(view) {
        let taken_for = winner.vm;
        return spill(idle, MoveCause::Idle { taken_for }, chunks_for(idle, short), rng);
    }
    let givers = holders
        .iter()
        .filter(|holder| holder.view.vm != winner.vm && holder.excess() > 0 && holder.may_give());
    let giver = givers.max_by_key(|holder| (holder.excess(), holder.view.vm));
    giver.map_or(Proposal::Nothing, |giver| {
        let count = chunks_for(giver.view, short).min(giver.chunks_above());
        let toward = winner.vm;
        spill(giver.view, MoveCause::Fairness { toward }, count, rng)
    })
}

/// What nobody is entitled to by a whole chunk: no frame stays free or idle that holds a chunk which somebody wants.
fn leftover(view: &Snapshot<'_>, holders: &[Holder<'_, '_>], rng: &mut ChaCha8Rng) -> Proposal {
    let idle: u64 = view.vms.iter().map(takeable_idle).sum();
    let fits = |holder: &&Holder<'_, '_>| {
        let smallest = holder.view.smallest_wanted;
        holder.may_take()
            && smallest <= holder.view.refill_bytes_max
            && smallest <= view.free.saturating_add(idle)
    };
    let mut takers = holders.iter().filter(fits);
    let Some(taker) = takers.next().map(|taker| taker.view) else {
        return Proposal::Nothing;
    };
    // One chunk each in turn, or all at once if nobody else takes any.
    let most = match takers.next() {
        Some(_) => taker.chunk_bytes,
        None => u64::MAX,
    };
    let chunks = refillable(view, taker, most, rng);
    if !chunks.is_empty() {
        return refill(taker, chunks);
    }
    most_idle(view).map_or(Proposal::Nothing, |idle| {
        let short = taker.smallest_wanted.saturating_sub(view.free);
        let taken_for = taker.vm;
        spill(idle, MoveCause::Idle { taken_for }, chunks_for(idle, short), rng)
    })
}

fn refill(winner: &VmView<'_>, chunks: Vec<ChunkNo>) -> Proposal {
    Proposal::Refill {
        vm: winner.vm,
        chunks,
        cause: MoveCause::FreeRoom,
    }
}

/// Bytes of whole idle chunks that may be taken from the VM.
fn takeable_idle(vm: &VmView<'_>) -> u64 {
    match vm.may_move && vm.spill_chunks_max > 0 {
        true => vm.idle.min(vm.spare / vm.chunk_bytes * vm.chunk_bytes),
        false => 0,
    }
}

/// The VM with most idle bytes in VRAM that it may lose.
fn most_idle<'v, 'a>(view: &'v Snapshot<'a>) -> Option<&'v VmView<'a>> {
    view.vms
        .iter()
        .filter(|vm| takeable_idle(vm) > 0)
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

/// Up to `count` random chunks of a VM: idle ones if that is the cause, or first if its own quota is; else reached ones.
fn spill(view: &VmView<'_>, cause: MoveCause, count: usize, rng: &mut ChaCha8Rng) -> Proposal {
    let (idle, own) = match cause {
        MoveCause::Idle { taken_for } => (true, taken_for == view.vm),
        MoveCause::AboveMax | MoveCause::AboveHigh => (true, true),
        MoveCause::Demand { .. } | MoveCause::Fairness { .. } | MoveCause::FreeRoom => (false, false),
    };
    let mut candidates = spillable(view, idle);
    if candidates.is_empty() && !matches!(cause, MoveCause::Idle { .. }) {
        candidates = spillable(view, !idle);
    }
    let most = count.min(view.spill_chunks_max.max(usize::from(own)));
    let mut chunks = Vec::new();
    while chunks.len() < most && !candidates.is_empty() {
        chunks.push(candidates.swap_remove(rng.random_range(0..candidates.len())));
    }
    match chunks.is_empty() {
        true => Proposal::Nothing,
        false => Proposal::Spill {
            vm: view.vm,
            chunks,
            cause,
        },
    }
}

/// Random reached chunks of the VM in host RAM that fit free frames, `most` bytes and one move.
fn refillable(view: &Snapshot<'_>, vm: &VmView<'_>, most: u64, rng: &mut ChaCha8Rng) -> Vec<ChunkNo> {
    let wanted = vm
        .chunks()
        .filter(|chunk| chunk.is_refillable() && !chunk.is_idle());
    let mut candidates: Vec<_> = wanted.map(|chunk| (chunk.no, chunk.bytes)).collect();
    let mut left = vm.refill_bytes_max.min(most).min(view.free);
    let mut chunks = Vec::new();
    while left >= vm.smallest_wanted && !candidates.is_empty() {
        let (chunk, bytes) = candidates.swap_remove(rng.random_range(0..candidates.len()));
        if bytes <= left {
            left -= bytes;
            chunks.push(chunk);
        }
    }
    chunks
}

#[cfg(test)]
mod tests;
