//! GDM's memory management within a VM (Wang et al., *GDM: Device Memory Management for GPGPU Computing*, SIGMETRICS 2014), GPUswap's shares
//! between VMs.
//!
//! Who gives and who gets is in [`sharing`], so that shares are the same (decision 0017). Of a VM's chunks those are in VRAM that its launches
//! use: a launch waits until its own are there ([`Occasion::Held`]), and what has been used least recently goes for them.
//!
//! ```text
//! leaves VRAM first:  no launch used it ─► the launch that used it last came longest ago ─► … ─► of a launch that waits or runs: never
//! comes back first:   of the launch that waits ─► of those behind it, in queue order ─► the most recent
//! ```
//!
//! Of the paper's LRU-COST the first [`FACTOR`] of that order is judged at a time, and in it who needs no copy goes first. A set that
//! does not fit what the VM has stays partly in host RAM: the GPU reaches it there, which the paper's cards do not. That is also why loading
//! need not pay: what is used once before it has to go again is as well left in host RAM. [`switch`] finds out which it is.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;

use super::sharing::{self, Choice};
use super::{
    ChunkNo, ChunkView, Observation, Occasion, Policy, Proposal, Residence, Snapshot, Usage, VmView,
    WorkView, WorkWanted, Worth,
};
use crate::event::{Tick, VmId};
use crate::reason::MoveCause;

mod forecast;
mod switch;

use self::forecast::InVram;
use self::switch::{Found, Free, Switch};

/// One in so many chunks of the order is judged at a time: the paper's selection factor of 0.2.
const FACTOR: usize = 5;

#[derive(Default)]
pub(super) struct Gdm {
    /// Whether the work of each VM waits.
    switches: BTreeMap<VmId, Switch>,
}

/// The paper's own way: each launch waits until its memory is there.
pub(super) struct Always;

impl Gdm {
    /// A trial of this VM has begun or ended: what the work under way of others takes says nothing.
    fn disturb_others(&mut self, vm: VmId) {
        let others = self.switches.iter_mut().filter(|(other, _)| **other != vm);
        others.for_each(|(_, switch)| switch.disturb());
    }

    /// What a VM's switch says, which may begin or end a trial. `waits`: the work was looked at, and waits for its memory.
    fn free(&mut self, view: &Snapshot<'_>, vm: VmId, waits: bool) -> Option<Free> {
        let beside = self.others_try(vm, view.now);
        let switch = self.switches.entry(vm).or_default();
        let tried = switch.tries(view.now);
        let has = || in_vram(view, vm);
        let free = match waits {
            true => switch.free(view.now, has, beside),
            false => switch.due(view.now, has, beside),
        };
        if switch.tries(view.now) != tried {
            self.disturb_others(vm);
        }
        free
    }

    /// Whether another VM tries what loading brings: one at a time, because trials slow others down.
    fn others_try(&self, vm: VmId, now: Tick) -> bool {
        let mut others = self.switches.iter().filter(|(other, _)| **other != vm);
        others.any(|(_, switch)| switch.tries(now))
    }
}

/// The order of a VM's chunks by the launches that use them.
struct ByLaunch {
    now: Tick,
}

impl WorkView<'_> {
    fn is_next_or_runs(&self, chunk: ChunkNo) -> bool {
        self.next.contains(&chunk) || self.running.iter().any(|set| set.contains(&chunk))
    }
}

impl Choice for ByLaunch {
    fn is_idle_for_others(&self, _chunk: &ChunkView) -> bool {
        true
    }

    fn leaves(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        if vm
            .work
            .as_ref()
            .is_some_and(|work| work.is_next_or_runs(chunk.no))
        {
            return u64::MAX;
        }
        chunk.launched_at.map_or(0, |at| at.0.saturating_add(1))
    }

    fn returns(&self, vm: &VmView<'_>, chunk: &ChunkView) -> u64 {
        if let Some(work) = &vm.work {
            let mut queue = std::iter::once(&work.next).chain(&work.later);
            if let Some(turn) = queue.position(|set| set.contains(&chunk.no)) {
                return turn as u64;
            }
        }
        u64::MAX - chunk.launched_at.map_or(0, |at| at.0)
    }

    /// It is about to be used.
    fn asked(&self) -> u64 {
        self.now.0
    }
}

fn release(vm: VmId, Free { until, with_looks }: Free) -> Proposal {
    Proposal::Release {
        vm,
        until,
        with_looks,
    }
}

/// A VM's whole chunks in VRAM, by when launches used them.
fn in_vram(view: &Snapshot<'_>, of: VmId) -> InVram {
    let Some(vm) = view.vm(of) else {
        return InVram {
            chunk_bytes: 0,
            chunks: Vec::new(),
        };
    };
    let mut chunks: Vec<_> = vm.chunks().filter(ChunkView::is_spillable).collect();
    chunks.sort_by_key(|chunk| chunk.launched_at);
    InVram {
        chunk_bytes: vm.chunk_bytes,
        chunks: chunks.iter().map(|chunk| chunk.no).collect(),
    }
}

/// The next move for a launch that waits.
fn load(view: &Snapshot<'_>, of: VmId) -> Proposal {
    let Some(vm) = view.vm(of).filter(|vm| vm.may_move) else {
        return Proposal::Nothing;
    };
    let Some(work) = &vm.work else {
        return Proposal::Nothing;
    };
    let is_out = |chunk: &ChunkView| chunk.is_refillable() && !chunk.is_idle();
    let out: Vec<ChunkView> = vm
        .chunks()
        .filter(|chunk| is_out(chunk) && work.next.contains(&chunk.no))
        .collect();
    let cause = MoveCause::Launch { within: of };
    let room = room(view, of).min(vm.refill_bytes_max);
    let coming = fitting(&out, room);
    if !coming.is_empty() {
        let ahead = ahead(vm, work, room - bytes(&coming));
        let chunks = coming.iter().chain(&ahead).map(|chunk| chunk.no).collect();
        return Proposal::Refill {
            vm: of,
            chunks,
            cause,
        };
    }
    let for_whole = for_whole(vm, &out);
    let leave = leaving(vm, work, for_whole.len().min(vm.exchange_chunks_max));
    match leave.is_empty() {
        true => Proposal::Nothing,
        false => Proposal::Exchange {
            vm: of,
            come: for_whole.into_iter().take(leave.len()).collect(),
            leave,
            cause,
        },
    }
}

/// Free bytes that the VM may take without another one's doing without: what was collected for it, or all if nobody else wants any.
fn room(view: &Snapshot<'_>, of: VmId) -> u64 {
    let others = view.vms.iter().filter(|vm| vm.vm != of);
    let is_wanted = others.map(|vm| vm.wanted + vm.asked).sum::<u64>() > 0;
    match view.claim {
        _ if !is_wanted => view.free_for(of),
        Some((vm, bytes)) if vm == of => bytes.min(view.free),
        _ => 0,
    }
}

fn bytes(chunks: &[ChunkView]) -> u64 {
    chunks.iter().map(|chunk| chunk.bytes).sum()
}

/// The first chunks that fit.
fn fitting(chunks: &[ChunkView], room: u64) -> Vec<ChunkView> {
    let mut left = room;
    let fits = |chunk: &&ChunkView| {
        let fits = chunk.bytes <= left;
        left -= if fits { chunk.bytes } else { 0 };
        fits
    };
    chunks.iter().filter(fits).copied().collect()
}

/// Those that may come for whole chunks which leave: one that is less than that leaves the VM with less, which its `min` has to allow.
fn for_whole(vm: &VmView<'_>, chunks: &[ChunkView]) -> Vec<ChunkNo> {
    let mut spare = vm.spare;
    let may_come = |chunk: &&ChunkView| {
        let left = spare.checked_sub(vm.chunk_bytes.saturating_sub(chunk.bytes));
        spare = left.unwrap_or(spare);
        left.is_some()
    };
    chunks.iter().filter(may_come).map(|chunk| chunk.no).collect()
}

/// Chunks of launches behind the one that waits, in queue order, as far as there is room.
fn ahead(vm: &VmView<'_>, work: &WorkView<'_>, room: u64) -> Vec<ChunkView> {
    let all: Vec<ChunkView> = vm
        .chunks()
        .filter(|chunk| chunk.is_refillable() && !chunk.is_idle())
        .collect();
    let mut taken: BTreeSet<ChunkNo> = work.next.clone();
    let mut in_order = Vec::new();
    for set in &work.later {
        in_order.extend(
            all.iter()
                .filter(|chunk| set.contains(&chunk.no) && taken.insert(chunk.no)),
        );
    }
    fitting(&in_order, room)
}

/// So many whole chunks that go by LRU-COST: never of the launch that waits or of one that runs.
fn leaving(vm: &VmView<'_>, work: &WorkView<'_>, count: usize) -> Vec<ChunkNo> {
    let may_go = |chunk: &ChunkView| {
        chunk.is_spillable() && chunk.bytes == vm.chunk_bytes && !work.is_next_or_runs(chunk.no)
    };
    // Idle first; then those that no launch behind will use; then by age.
    let is_queued = |chunk: &ChunkView| work.later.iter().any(|set| set.contains(&chunk.no));
    let mut stack: Vec<ChunkView> = vm.chunks().filter(may_go).collect();
    stack.sort_by_key(|chunk| (!chunk.is_idle(), is_queued(chunk), chunk.launched_at));
    let mut chunks = Vec::new();
    while chunks.len() < count && !stack.is_empty() {
        let judged = stack.len().div_ceil(FACTOR);
        let clean = stack[..judged]
            .iter()
            .position(|chunk| chunk.residence == Residence::Both);
        chunks.push(stack.remove(clean.unwrap_or(0)).no);
    }
    chunks
}

impl Policy for Gdm {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        match occasion {
            Occasion::Due { vm } => self
                .free(view, vm, false)
                .map_or(Proposal::Nothing, |free| release(vm, free)),
            Occasion::Held { vm } => {
                if let Some(free) = self.free(view, vm, true) {
                    return release(vm, free);
                }
                let switch = self.switches.entry(vm).or_default();
                match load(view, vm) {
                    Proposal::Nothing => release(vm, switch.found_no_room(view.now)),
                    proposal => proposal,
                }
            }
            _ => sharing::propose(view, occasion, &ByLaunch { now: view.now }, rng),
        }
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        match *what {
            Observation::Work {
                vm,
                kind,
                at,
                chunks,
                look_ns,
            } => {
                let beside = self.others_try(vm, at);
                let found = chunks.map(|chunks| Found { chunks, look_ns });
                let switch = self.switches.entry(vm).or_default();
                let tried = switch.tries(at);
                switch.work(kind, at, found, beside);
                if switch.tries(at) != tried {
                    self.disturb_others(vm);
                }
            }
            Observation::Backed { vm, .. }
            | Observation::Moved { vm, .. }
            | Observation::RolledBack { vm, .. }
            | Observation::Synced { vm } => {
                if let Some(switch) = self.switches.get_mut(&vm) {
                    switch.disturb();
                }
            }
            Observation::Emptied { vm } => drop(self.switches.remove(&vm)),
            Observation::Reached { .. } | Observation::Idled { .. } | Observation::QuotaChanged { .. } => {}
        }
        sharing::worth(what)
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Waits
    }

    fn save(&self) -> String {
        serde_json::to_string(&self.switches).expect("numbers, and maps by numbers")
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        self.switches = serde_json::from_str(saved).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        sharing::wants_tick(usage)
    }
}

impl Policy for Always {
    fn propose(&mut self, view: &Snapshot<'_>, occasion: Occasion, rng: &mut ChaCha8Rng) -> Proposal {
        match occasion {
            Occasion::Held { vm } => load(view, vm),
            _ => sharing::propose(view, occasion, &ByLaunch { now: view.now }, rng),
        }
    }

    fn observe(&mut self, what: &Observation<'_>) -> Worth {
        sharing::worth(what)
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Waits
    }

    fn save(&self) -> String {
        String::new()
    }

    fn restore(&mut self, saved: &str) -> Result<(), String> {
        super::nothing_kept("gdm-always", saved)
    }

    fn wants_tick(&self, usage: Usage) -> bool {
        sharing::wants_tick(usage)
    }
}

#[cfg(test)]
mod tests;
