//! Who gives VRAM and who gets it, by shares: the part that policies of GPUswap's family have in common.
//!
//! GPUswap §4.3: the victim is who holds most, pending demand included; §4.5: the winner of a refill is who holds least.
//! Here "most" and "least" are measured against a VM's share ([`shares`]): what it should hold by weights, by the protections
//! of cgroup v2, and by what all want. Added are idle chunks, which go before the victim's because nobody need stop for them;
//! and the pass, so that shares are kept after frees too (decision 0017):
//!
//! 1. A VM that is a chunk of its own below its share collects frames until that chunk fits: idle ones, then from those
//!    above theirs. Who gives was above its share and is less than a chunk below it afterwards; who gets is not above
//!    it. So nobody gives twice what it got, and it ends. It begins only if others can give that much: what they hold above their shares
//!    may be less than a chunk of theirs above their `min`, or stand still for the moment.
//! 2. Then free and idle frames go to whoever has a chunk that fits, furthest below its share first. That takes from
//!    nobody, so it undoes nothing.
//!
//! A VM that rests lends what neither its `min` nor its `low` protects: it counts as if it wanted no more (decision 0037). That changes its share
//! and nothing else; it keeps what nobody who works wants.
//!
//! Each move stops a VM, so a decision takes and brings as many chunks as the same rules would one after the other, as far as
//! one move may carry them.
//!
//! Which of a VM's chunks these are is a [`Choice`], and random among those that it has no preference for.

mod demands;

use planted::Fault;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use self::demands::make_room;
use super::shares::{Party, shares};
use super::{ChunkNo, ChunkView, Observation, Occasion, Proposal, Snapshot, Usage, VmView, Worth};
use crate::reason::MoveCause;

/// Which chunks of a VM move. Of two, the one of the lower rank goes first.
pub(super) trait Choice {
    /// Whether an idle chunk counts as one for other VMs.
    fn is_idle_for_others(&self, chunk: &ChunkView) -> bool;

    /// The chunk's rank among those that leave VRAM.
    fn leaves(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64;

    /// Its rank among those that come back.
    fn returns(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64;

    /// A chunk that is asked for gets host RAM only if all others of its VM in VRAM have this rank at least.
    fn asked(&self) -> u64;
}

/// A choice, and the draws among what it leaves open.
struct Which<'c> {
    choice: &'c dyn Choice,
    rng: &'c mut ChaCha8Rng,
}

impl Which<'_> {
    /// Chunks in VRAM that may be spilled for another VM: idle ones, or the others.
    fn spillable(&self, vm: &VmView<'_>, idle: bool) -> Vec<ChunkView> {
        spillable(vm, |chunk| {
            (chunk.is_idle() && self.choice.is_idle_for_others(chunk)) == idle
        })
    }
}

fn spillable(vm: &VmView<'_>, is: impl Fn(&ChunkView) -> bool) -> Vec<ChunkView> {
    vm.chunks()
        .filter(|chunk| chunk.is_spillable() && is(chunk))
        .collect()
}

/// Chunks in the order of their ranks, and in a random one among equals.
struct Draw {
    /// The best ones last.
    ranks: Vec<Vec<ChunkView>>,
}

impl Draw {
    fn of(chunks: Vec<ChunkView>, rank: impl Fn(&ChunkView) -> u64) -> Self {
        let mut ranks: std::collections::BTreeMap<u64, Vec<ChunkView>> = Default::default();
        for chunk in chunks {
            ranks.entry(rank(&chunk)).or_default().push(chunk);
        }
        let ranks = ranks.into_values().rev().collect();
        Self { ranks }
    }

    fn next(&mut self, rng: &mut ChaCha8Rng) -> Option<ChunkView> {
        while let Some(equals) = self.ranks.last_mut() {
            if !equals.is_empty() {
                return Some(equals.swap_remove(rng.random_range(0..equals.len())));
            }
            self.ranks.pop();
        }
        None
    }
}

/// What a policy of the family answers. `view` counts as idle what the choice says is.
pub(super) fn propose(
    view: &Snapshot<'_>,
    occasion: Occasion,
    choice: &dyn Choice,
    rng: &mut ChaCha8Rng,
) -> Proposal {
    let which = &mut Which { choice, rng };
    match occasion {
        Occasion::AboveMax { vm } => view.vm(vm).map_or(Proposal::Nothing, |vm| {
            let above = vm.resident.saturating_sub(vm.quota.max);
            spill(vm, MoveCause::AboveMax, chunks_for(vm, above), which)
        }),
        Occasion::Demand => make_room(view, which),
        Occasion::Pass | Occasion::Tick => pass(view, which),
        // For policies that go by launches.
        Occasion::Held { .. } | Occasion::Due { .. } => Proposal::Nothing,
    }
}

/// A pass is worth while when something became free or idle, when a VM may hold more than before, and when one has a
/// chunk in host RAM that it could have in VRAM.
pub(super) fn worth(what: &Observation<'_>) -> Worth {
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
        | Observation::Work { .. }
        | Observation::RolledBack { .. }
        | Observation::Reached { .. }
        | Observation::Idled { .. } => Worth::Nothing,
    }
}

/// Nothing comes back while nothing is out, and what a demand brought above `high` goes.
pub(super) fn wants_tick(usage: Usage) -> bool {
    usage.spilled > 0 || usage.above_high > 0
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

    /// Bytes that it has above its share: what it claims, and idle ones that its `min` keeps from others.
    fn excess(&self) -> u64 {
        let kept = self.view.idle.saturating_sub(takeable_idle(self.view));
        (self.claim() + kept).saturating_sub(self.share)
    }

    /// Bytes that it is below its share.
    fn deficit(&self) -> u64 {
        self.share.saturating_sub(self.claim())
    }

    /// A chunk that it wants may come in, as far as the VM is concerned, perhaps in exchange for an idle one of its own.
    fn may_take(&self) -> bool {
        let view = self.view;
        view.may_move && view.wanted > 0 && (!self.is_at_limit() || view.idle > 0)
    }

    /// Nothing comes in before something of its own goes.
    fn is_at_limit(&self) -> bool {
        self.view.smallest_wanted > self.view.refill_bytes_max
    }

    /// A chunk that it wants may come in, and needs no more than that room.
    fn fits(&self, room: u64) -> bool {
        self.may_take() && !self.is_at_limit() && self.view.smallest_wanted <= room
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

    /// Bytes that one move could bring it within its share, of those that can be had: whole chunks, at least one. `None`: none.
    fn collectable(&self, obtainable: u64) -> Option<u64> {
        let view = self.view;
        let most = self.deficit().min(view.wanted).min(view.refill_bytes_max);
        let whole = most.min(obtainable) / view.chunk_bytes * view.chunk_bytes;
        (view.smallest_wanted <= obtainable).then_some(whole.max(view.smallest_wanted))
    }

    /// Bytes of active chunks that it can give until it is at its share or below: whole ones, and then its short last one.
    fn givable(&self) -> u64 {
        let view = self.view;
        if !self.may_give() || self.excess() == 0 {
            return 0;
        }
        let short = view.short(|chunk| !chunk.is_idle());
        let whole = (view.active - short).min(self.chunks_above() as u64 * view.chunk_bytes);
        leaving(view, whole, short, self.excess())
    }

    /// Chunks that it gives who is `short` of so many bytes: at least one, and of more no part that is its own by its share.
    fn gives(&self, short: u64) -> usize {
        let above = (self.excess() / self.view.chunk_bytes).max(1);
        chunks_for(self.view, short).min(above as usize)
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
    let used = vm.active + vm.wanted;
    // Who rests lends what nothing protects.
    let used = match vm.lends {
        true if planted::is(Fault::LowLent) => used.min(min),
        true => used.min(min.max(whole(quota.low))),
        false => used,
    };
    Party {
        weight,
        fixed: if vm.may_move { 0 } else { vm.resident },
        min,
        low: whole(quota.low),
        cap: quota.high.min(quota.max),
        // `min` keeps idle memory too.
        wanted: (used + vm.asked).max(min.min(vm.resident)),
    }
}

/// Who is below its share by a chunk collects; then what is left goes to whoever can take it.
fn pass(view: &Snapshot<'_>, which: &mut Which<'_>) -> Proposal {
    if let Some(proposal) = lower_to_high(view, which) {
        return proposal;
    }
    let mut holders = holders(view);
    // Who began to collect goes on; then the furthest below.
    let claims = |holder: &Holder<'_, '_>| view.claim.is_some_and(|(vm, _)| vm == holder.view.vm);
    holders.sort_by_key(|holder| {
        let below = i128::from(holder.share) - i128::from(holder.claim());
        (!claims(holder), -below, holder.view.vm)
    });
    // An idle chunk of its own has gone for one that it wants.
    let exchanges = |holder: &&Holder<'_, '_>| claims(holder) && !holder.collects() && holder.fits(view.free);
    if let Some(Holder { view: vm, .. }) = holders.first().filter(exchanges) {
        return refill(vm, refillable(view, vm, vm.chunk_bytes, which));
    }
    let collectors = holders.iter().filter(|holder| holder.collects());
    for collector in collectors {
        let proposal = collect(view, &holders, collector, which);
        if proposal != Proposal::Nothing {
            return proposal;
        }
    }
    match planted::is(Fault::RestLeftFree) {
        true => Proposal::Nothing,
        false => leftover(view, &holders, which),
    }
}

/// What is above `high` goes, whether somebody needs the frames or not.
fn lower_to_high(view: &Snapshot<'_>, which: &mut Which<'_>) -> Option<Proposal> {
    let above = |vm: &&VmView<'_>| vm.may_move && vm.resident > vm.quota.high && vm.spill_chunks_max > 0;
    let vm = view.vms.iter().find(above)?;
    if planted::is(Fault::HighIgnored) {
        return None;
    }
    let count = chunks_for(vm, vm.resident - vm.quota.high);
    let proposal = spill(vm, MoveCause::AboveHigh, count, which);
    (proposal != Proposal::Nothing).then_some(proposal)
}

/// Takes what the collector's chunks need, then brings them.
fn collect(
    view: &Snapshot<'_>,
    holders: &[Holder<'_, '_>],
    collector: &Holder<'_, '_>,
    which: &mut Which<'_>,
) -> Proposal {
    let Some(wanted) = collector.collectable(obtainable(view, holders, collector)) else {
        return Proposal::Nothing;
    };
    let taken = match wanted.saturating_sub(view.free) {
        0 if !collector.is_at_limit() => Proposal::Nothing,
        short => take_for(view, holders, collector, short, which),
    };
    if taken != Proposal::Nothing {
        return taken;
    }
    let chunks = refillable(view, collector.view, collector.deficit(), which);
    refill(collector.view, chunks)
}

/// Bytes that a collector can have: what is free, idle, or held above their shares by those who can give it.
fn obtainable(view: &Snapshot<'_>, holders: &[Holder<'_, '_>], collector: &Holder<'_, '_>) -> u64 {
    let others = holders
        .iter()
        .filter(|holder| holder.view.vm != collector.view.vm);
    let given: u64 = others
        .map(|holder| takeable_idle(holder.view) + holder.givable())
        .sum();
    view.free + collector.view.idle + given
}

/// A spill for a VM that is so many bytes short: of idle chunks, its own where only it may take them, then from those above
/// their shares.
fn take_for(
    view: &Snapshot<'_>,
    holders: &[Holder<'_, '_>],
    collector: &Holder<'_, '_>,
    short: u64,
    which: &mut Which<'_>,
) -> Proposal {
    let winner = collector.view;
    let taken_for = winner.vm;
    let idle = most_idle(view);
    // Its own idle memory stands in its way: at its `max`, or where its `min` protects it from everybody.
    if winner.idle > 0 && (collector.is_at_limit() || takeable_idle(winner) == 0 && idle.is_none()) {
        return spill(winner, MoveCause::Idle { taken_for }, 1, which);
    }
    if let Some(idle) = idle {
        let count = chunks_for(idle, short);
        return spill(idle, MoveCause::Idle { taken_for }, count, which);
    }
    let givers = holders
        .iter()
        .filter(|holder| holder.view.vm != winner.vm && holder.excess() > 0 && holder.may_give());
    let giver = givers.max_by_key(|holder| (holder.excess(), holder.view.vm));
    giver.map_or(Proposal::Nothing, |giver| {
        let toward = winner.vm;
        spill(
            giver.view,
            MoveCause::Fairness { toward },
            giver.gives(short),
            which,
        )
    })
}

/// What nobody is entitled to by a whole chunk: no frame stays free or idle that holds a chunk which somebody wants.
fn leftover(view: &Snapshot<'_>, holders: &[Holder<'_, '_>], which: &mut Which<'_>) -> Proposal {
    let idle: u64 = view.vms.iter().map(takeable_idle).sum();
    let room = view.free.saturating_add(idle);
    let mut takers = holders.iter().filter(|holder| holder.fits(room));
    let Some(taker) = takers.next().map(|taker| taker.view) else {
        return own_exchange(view, holders, which);
    };
    // One chunk each in turn, or all at once if nobody else takes any.
    let most = match takers.next() {
        Some(_) => taker.chunk_bytes,
        None => u64::MAX,
    };
    let chunks = refillable(view, taker, most, which);
    if !chunks.is_empty() {
        return refill(taker, chunks);
    }
    most_idle(view).map_or(Proposal::Nothing, |idle| {
        let short = taker.smallest_wanted.saturating_sub(view.free);
        let (taken_for, count) = (taker.vm, chunks_for(idle, short));
        spill(idle, MoveCause::Idle { taken_for }, count, which)
    })
}

/// An idle chunk that nobody else may have goes for one that its own VM wants.
fn own_exchange(view: &Snapshot<'_>, holders: &[Holder<'_, '_>], which: &mut Which<'_>) -> Proposal {
    let keeps = |holder: &&Holder<'_, '_>| {
        let vm = holder.view;
        let short = vm.short(ChunkView::is_idle);
        let goes = if vm.idle > short { vm.chunk_bytes } else { short };
        holder.may_take() && vm.may_exchange && vm.idle > 0 && vm.smallest_wanted <= view.free + goes
    };
    let taker = holders.iter().find(keeps).map(|holder| holder.view);
    taker.map_or(Proposal::Nothing, |vm| {
        let taken_for = vm.vm;
        spill(vm, MoveCause::Idle { taken_for }, 1, which)
    })
}

fn refill(winner: &VmView<'_>, chunks: Vec<ChunkNo>) -> Proposal {
    match chunks.is_empty() {
        true => Proposal::Nothing,
        false => Proposal::Refill {
            vm: winner.vm,
            chunks,
            cause: MoveCause::FreeRoom,
        },
    }
}

/// Bytes of whole idle chunks that may be taken from the VM.
fn takeable_idle(vm: &VmView<'_>) -> u64 {
    let short = vm.short(ChunkView::is_idle);
    match vm.may_move && vm.spill_chunks_max > 0 {
        true => leaving(vm, vm.idle.saturating_sub(short), short, u64::MAX),
        false => 0,
    }
}

/// What a VM can lose above its `min` of so many bytes in whole chunks, and of its `short` last one if these are not `enough`.
fn leaving(vm: &VmView<'_>, whole: u64, short: u64, enough: u64) -> u64 {
    let whole = whole.min(vm.spare) / vm.chunk_bytes * vm.chunk_bytes;
    match whole < enough && whole + short <= vm.spare {
        true => whole + short,
        false => whole,
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

/// Up to `count` chunks of a VM: idle ones if that is the cause, or first if its own quota is; else reached ones.
fn spill(view: &VmView<'_>, cause: MoveCause, count: usize, which: &mut Which<'_>) -> Proposal {
    let (idle, own) = match cause {
        MoveCause::Idle { taken_for } => (true, taken_for == view.vm),
        MoveCause::AboveMax | MoveCause::AboveHigh => (true, true),
        MoveCause::Demand { .. }
        | MoveCause::Fairness { .. }
        | MoveCause::FreeRoom
        | MoveCause::Exchange { .. }
        | MoveCause::Launch { .. }
        | MoveCause::Shown => (false, false),
    };
    // For one that it wants, an idle chunk of its own goes whatever its `min`.
    let is_exchange = own && view.may_exchange && matches!(cause, MoveCause::Idle { .. });
    let (most, mut spare) = match is_exchange {
        true => (view.spill_chunks_max.max(1), view.spare.max(view.chunk_bytes)),
        false => (view.spill_chunks_max, view.spare),
    };
    let mut candidates = match own {
        // A VM's own memory goes as soon as nothing reaches it.
        true => spillable(view, ChunkView::is_idle),
        false => which.spillable(view, idle),
    };
    candidates.retain(|chunk| chunk.bytes <= spare);
    if candidates.is_empty() && !matches!(cause, MoveCause::Idle { .. }) {
        candidates = spillable(view, |chunk| chunk.is_idle() != idle);
    }
    let most = count.min(most);
    // A short chunk last: whole ones are what others lack, and it may go where none of these may.
    let (whole, short): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|chunk| chunk.bytes == view.chunk_bytes);
    let mut chunks = Vec::new();
    for candidates in [whole, short] {
        let mut candidates = Draw::of(candidates, |chunk| which.choice.leaves(view, chunk));
        while chunks.len() < most
            && let Some(chunk) = candidates.next(which.rng)
            && chunk.bytes <= spare
        {
            spare -= chunk.bytes;
            chunks.push(chunk.no);
        }
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

/// Reached chunks of the VM in host RAM that fit free frames, `most` bytes and one move.
fn refillable(view: &Snapshot<'_>, vm: &VmView<'_>, most: u64, which: &mut Which<'_>) -> Vec<ChunkNo> {
    let wanted = vm
        .chunks()
        .filter(|chunk| chunk.is_refillable() && !chunk.is_idle());
    let mut candidates = Draw::of(wanted.collect(), |chunk| which.choice.returns(vm, chunk));
    let mut left = vm.refill_bytes_max.min(most).min(view.free);
    let mut chunks = Vec::new();
    while left >= vm.smallest_wanted
        && let Some(chunk) = candidates.next(which.rng)
    {
        if chunk.bytes <= left {
            left -= chunk.bytes;
            chunks.push(chunk.no);
        }
    }
    chunks
}
