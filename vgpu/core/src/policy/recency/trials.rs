//! Trials: which of a VM's chunks are worth their place in VRAM, found out by exchanging some and looking whether the VM is
//! faster.
//!
//! ```text
//! Rest ─► Before ─► Changing ─► After ─┬─ faster: kept; the next exchange follows
//!           │ two windows,              ├─ slower: the same chunks change back (Changing)
//!           │ about equal               └─ no difference: kept, and tried more and more seldom
//! ```
//!
//! The figure is the time between doorbells: a guest that waits for its work before it submits more rings as often as work ends.
//! It needs nothing but what passes by the core. Bytes over the link would not do: a guest that waits for the link moves as many
//! in a second whether it needs ten chunks of host RAM or one, and only the last one to come in shows (decision 0019).
//!
//! A chunk that made a difference has a known *heat* then: by how much work takes longer while it is in host RAM. What came in
//! without making a difference is as hot as what went. So each chunk tells something once or twice and then rests; a VM whose
//! chunks are all alike is tried a few times and then seldom. Of a VM's frames none goes to another VM: as many chunks come as
//! went, in one move ([`Proposal::Exchange`]).

use std::collections::{BTreeMap, BTreeSet};

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::ByUse;
use super::record::{DOORBELLS, Pace, Record, UNIT};
use crate::event::{Tick, VmId};
use crate::policy::sharing::Choice;
use crate::policy::{ChunkNo, ChunkView, Observation, Proposal, Snapshot, VmView};
use crate::reason::MoveCause;

/// A window that many doorbells fit into is at least so long: the rhythm of a guest is more than a burst.
const WINDOW_NS: u64 = 4_000_000;
/// Longest time for the two windows before an exchange; a guest that is too slow or not steady is let alone then.
const PATIENCE_NS: u64 = 3_000_000_000;
/// A guest that has not rung for so long is not tried.
const RINGS_NS: u64 = 200_000_000;
/// Two windows that differ by more than one in so many are not steady.
const STEADY: u64 = 32;
/// Trials in a row without a difference until they become seldom.
const BARREN: u32 = 12;
/// The first wait from then on. It doubles up to 2^6 times.
const WAIT_NS: u64 = 1_000_000_000;
const DOUBLINGS: u32 = 6;
/// After so many exchanges other VMs have their turn.
const IN_A_ROW: u32 = 16;
/// One in so many of the chunks in host RAM comes in at a time, so that there is a difference to see.
const PART: usize = 16;
const CHUNKS_MAX: usize = 32;

/// The beginning of a window: at a doorbell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Mark {
    at: Tick,
    /// Doorbells of all VMs by then.
    counts: Vec<(VmId, u64)>,
}

/// Chunks of a VM that change places.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Exchange {
    vm: VmId,
    leave: Vec<ChunkNo>,
    come: Vec<ChunkNo>,
    /// The pace while nothing had changed its place yet.
    pace: Pace,
    /// VMs that had work meanwhile: a window beside others is no measure.
    beside: BTreeSet<VmId>,
    /// Exchanges of this VM so far.
    in_a_row: u32,
    /// It takes another one back, and is not looked at.
    is_undo: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
enum Stage {
    #[default]
    Rest,
    Before {
        vm: VmId,
        began: Tick,
        since: Tick,
        mark: Option<Mark>,
        first: Option<u64>,
    },
    Changing(Exchange),
    After {
        exchange: Exchange,
        since: Tick,
        mark: Option<Mark>,
    },
}

/// All trials: one is under way at a time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Trials {
    stage: Stage,
    vms: BTreeMap<VmId, Record>,
}

/// Whether a window from `mark` on is over; if not, it may begin now.
fn window(
    mark: &mut Option<Mark>,
    since: Tick,
    doorbells: u64,
    view: &Snapshot<'_>,
    vm: &VmView<'_>,
) -> Option<(u64, BTreeSet<VmId>)> {
    let rang = vm.rang_at.filter(|rang| *rang > since)?;
    let counts = || view.vms.iter().map(|of| (of.vm, of.doorbells)).collect();
    let Some(from) = mark else {
        *mark = Some(Mark {
            at: rang,
            counts: counts(),
        });
        return None;
    };
    let before = |of: VmId| {
        from.counts
            .iter()
            .find(|(vm, _)| *vm == of)
            .map(|(_, count)| *count)
    };
    let count = vm.doorbells.checked_sub(before(vm.vm)?)?;
    let span = rang.since(from.at);
    if count < doorbells || span < WINDOW_NS {
        return None;
    }
    let others = view.vms.iter().filter(|of| of.vm != vm.vm);
    let beside = others.filter(|of| before(of.vm) != Some(of.doorbells));
    Some((
        span.saturating_mul(UNIT) / count,
        beside.map(|of| of.vm).collect(),
    ))
}

impl Trials {
    /// By how much the VM's work takes longer while the chunk is in host RAM; `None` if that was not found out.
    pub(super) fn heat(&self, vm: VmId, chunk: ChunkNo) -> Option<u64> {
        self.vms.get(&vm)?.heat.get(&chunk).copied()
    }

    /// What is known of memory that is now used otherwise is void.
    pub(super) fn observe(&mut self, what: &Observation<'_>) {
        match *what {
            Observation::Emptied { vm } => {
                self.vms.remove(&vm);
                if self.vm() == Some(vm) {
                    self.stage = Stage::Rest;
                }
            }
            Observation::Idled { vm, chunk } | Observation::Backed { vm, chunk, .. } => {
                if let Some(record) = self.vms.get_mut(&vm) {
                    record.heat.remove(&chunk);
                }
            }
            _ => {}
        }
    }

    fn vm(&self) -> Option<VmId> {
        match &self.stage {
            Stage::Rest => None,
            Stage::Before { vm, .. } => Some(*vm),
            Stage::Changing(exchange) | Stage::After { exchange, .. } => Some(exchange.vm),
        }
    }

    /// Something else moves: a window at that time tells nothing.
    pub(super) fn disturb(&mut self, now: Tick) {
        match &mut self.stage {
            Stage::Before {
                since, mark, first, ..
            } => (*since, *mark, *first) = (now, None, None),
            Stage::After { exchange, .. } => {
                let vm = exchange.vm;
                self.rest(vm, now);
            }
            Stage::Rest | Stage::Changing(_) => {}
        }
    }

    /// Nothing moves: an exchange that was asked for is done, or was given up.
    pub(super) fn go_on(&mut self, view: &Snapshot<'_>) {
        let Stage::Changing(exchange) = &self.stage else {
            return;
        };
        let Some(vm) = view.vm(exchange.vm) else {
            return self.rest(exchange.vm, view.now);
        };
        if !vm.may_move {
            // It stands aside, or was rolled back just now.
            return;
        }
        let count = |chunks: &[ChunkNo], is: fn(&ChunkView) -> bool| {
            let all = vm.chunks();
            all.filter(|chunk| chunks.contains(&chunk.no) && is(chunk))
                .count()
        };
        let is_done = count(&exchange.leave, ChunkView::is_refillable) == exchange.leave.len()
            && count(&exchange.come, ChunkView::is_spillable) == exchange.come.len();
        if exchange.is_undo || !is_done {
            return self.rest(exchange.vm, view.now);
        }
        if let Stage::Changing(exchange) = std::mem::take(&mut self.stage) {
            let (since, mark) = (view.now, None);
            self.stage = Stage::After {
                exchange,
                since,
                mark,
            };
        }
    }

    /// Nothing else moves: looks at a window, or begins a trial.
    pub(super) fn try_some(&mut self, view: &Snapshot<'_>, rng: &mut ChaCha8Rng) -> Proposal {
        match std::mem::take(&mut self.stage) {
            Stage::Rest => {
                self.begin(view);
                Proposal::Nothing
            }
            Stage::Before {
                vm,
                began,
                since,
                mark,
                first,
            } => self.look_before(view, (vm, began), (since, mark, first), rng),
            Stage::After {
                exchange,
                since,
                mark,
            } => self.look_after(view, exchange, (since, mark), rng),
            Stage::Changing(exchange) => {
                self.stage = Stage::Changing(exchange);
                Proposal::Nothing
            }
        }
    }

    /// Two windows one after the other that are about equal say what an exchange is compared with.
    fn look_before(
        &mut self,
        view: &Snapshot<'_>,
        (vm, began): (VmId, Tick),
        (since, mut mark, first): (Tick, Option<Mark>, Option<u64>),
        rng: &mut ChaCha8Rng,
    ) -> Proposal {
        let Some(of) = view.vm(vm).filter(|of| is_tried(view.now, of)) else {
            self.rest(vm, view.now);
            return Proposal::Nothing;
        };
        let record = self.vms.entry(vm).or_default();
        let Some((ns, beside)) = window(&mut mark, since, record.doorbells, view, of) else {
            if view.now.since(began) > PATIENCE_NS {
                record.doorbells = DOORBELLS[0];
                record.next_at = view.now.after(WAIT_NS);
            } else {
                self.stage = Stage::Before {
                    vm,
                    began,
                    since,
                    mark,
                    first,
                };
            }
            return Proposal::Nothing;
        };
        let noise = first.map(|first| first.abs_diff(ns));
        if let Some(noise) = noise.filter(|noise| noise.saturating_mul(STEADY) <= ns) {
            let pace = Pace { ns, noise };
            record.meet(pace, &beside);
            return self.exchange(view, of, (pace, beside, 0), rng);
        }
        if noise.is_some() {
            record.doorbells = (2 * record.doorbells).min(DOORBELLS[1]);
        }
        // The next window begins where this one ended.
        let since = of.rang_at.unwrap_or(since);
        let mut mark = None;
        window(&mut mark, Tick(since.0.saturating_sub(1)), 0, view, of);
        self.stage = Stage::Before {
            vm,
            began,
            since,
            mark,
            first: Some(ns),
        };
        Proposal::Nothing
    }

    /// The window after an exchange says whether it is kept.
    fn look_after(
        &mut self,
        view: &Snapshot<'_>,
        exchange: Exchange,
        (since, mut mark): (Tick, Option<Mark>),
        rng: &mut ChaCha8Rng,
    ) -> Proposal {
        let Some(of) = view.vm(exchange.vm).filter(|of| is_tried(view.now, of)) else {
            self.rest(exchange.vm, view.now);
            return Proposal::Nothing;
        };
        let doorbells = self.vms.entry(exchange.vm).or_default().doorbells;
        match window(&mut mark, since, doorbells, view, of) {
            Some((ns, beside)) if beside == exchange.beside => self.judge(view, of, exchange, ns, rng),
            Some(_) => {
                self.rest(exchange.vm, view.now);
                Proposal::Nothing
            }
            None => {
                self.stage = Stage::After {
                    exchange,
                    since,
                    mark,
                };
                Proposal::Nothing
            }
        }
    }

    /// The VM that has waited for longest among those that may be tried.
    fn begin(&mut self, view: &Snapshot<'_>) {
        let next_at = |vm: &VmView<'_>| self.vms.get(&vm.vm).map_or(Tick::default(), |of| of.next_at);
        let due = view.vms.iter().filter(|vm| is_tried(view.now, vm));
        let due = due.filter(|vm| next_at(vm) <= view.now);
        if let Some(vm) = due.min_by_key(|vm| (next_at(vm), vm.vm)) {
            self.stage = Stage::Before {
                vm: vm.vm,
                began: view.now,
                since: view.now,
                mark: None,
                first: None,
            };
        }
    }

    fn judge(
        &mut self,
        view: &Snapshot<'_>,
        of: &VmView<'_>,
        exchange: Exchange,
        ns: u64,
        rng: &mut ChaCha8Rng,
    ) -> Proposal {
        let (before, tells) = (exchange.pace, exchange.pace.tells());
        let record = self.vms.entry(exchange.vm).or_default();
        let pace = Pace { ns, ..before };
        if ns.saturating_add(tells) < before.ns {
            record.learn(&exchange.come, &exchange.leave, before.ns - ns);
            record.barren = 0;
        } else if before.ns.saturating_add(tells) < ns {
            record.learn(&exchange.leave, &exchange.come, ns - before.ns);
            // Others may have taken what host RAM had left.
            if exchange.come.len() > of.exchange_chunks_max {
                self.rest(exchange.vm, view.now);
                return Proposal::Nothing;
            }
            let back = Exchange {
                leave: exchange.come,
                come: exchange.leave,
                is_undo: true,
                ..exchange
            };
            return self.change(back);
        } else if !record.are_alike(&exchange.leave, &exchange.come) {
            record.barren = record.barren.saturating_add(1);
        }
        record.pace = Some((pace, exchange.beside.clone()));
        match exchange.in_a_row < IN_A_ROW {
            true => self.exchange(view, of, (pace, exchange.beside, exchange.in_a_row + 1), rng),
            false => {
                self.rest(exchange.vm, view.now);
                Proposal::Nothing
            }
        }
    }

    /// The next exchange of the VM, if one may bring something and it is not too soon.
    fn exchange(
        &mut self,
        view: &Snapshot<'_>,
        vm: &VmView<'_>,
        (pace, beside, in_a_row): (Pace, BTreeSet<VmId>, u32),
        rng: &mut ChaCha8Rng,
    ) -> Proposal {
        let is_due = self.vms.entry(vm.vm).or_default().barren < BARREN || in_a_row == 0;
        let picked = is_due.then(|| self.pick(view, vm, pace, rng)).flatten();
        let Some((leave, come)) = picked else {
            self.rest(vm.vm, view.now);
            return Proposal::Nothing;
        };
        self.change(Exchange {
            vm: vm.vm,
            leave,
            come,
            pace,
            beside,
            in_a_row,
            is_undo: false,
        })
    }

    fn change(&mut self, exchange: Exchange) -> Proposal {
        let within = exchange.vm;
        let (leave, come) = (exchange.leave.clone(), exchange.come.clone());
        self.stage = Stage::Changing(exchange);
        Proposal::Exchange {
            vm: within,
            leave,
            come,
            cause: MoveCause::Exchange { within },
        }
    }

    /// Chunks to go and chunks to come, as many. `None` if nothing is to be won by what is known.
    fn pick(
        &self,
        view: &Snapshot<'_>,
        vm: &VmView<'_>,
        pace: Pace,
        rng: &mut ChaCha8Rng,
    ) -> Option<(Vec<ChunkNo>, Vec<ChunkNo>)> {
        let by_use = ByUse {
            now: view.now,
            trials: self,
        };
        let whole = |chunk: &ChunkView| !chunk.is_idle() && chunk.bytes == vm.chunk_bytes;
        let chunks = |is: fn(&ChunkView) -> bool| vm.chunks().filter(move |chunk| is(chunk) && whole(chunk));
        let out: Vec<ChunkView> = chunks(ChunkView::is_refillable).collect();
        let part = (out.len() / PART).clamp(1, CHUNKS_MAX);
        let mut come = best(out.iter().copied(), |chunk| by_use.returns(vm, chunk));
        let leave = best(chunks(ChunkView::is_spillable), |chunk| by_use.leaves(vm, chunk));
        let (goes, comes) = (leave.first()?, come.first()?);
        let (heat_goes, mut heat_comes) = (self.heat(vm.vm, goes.no), self.heat(vm.vm, comes.no));
        let age = by_use.age(vm, comes);
        if heat_goes.is_none() && heat_comes.is_none() && age == by_use.age(vm, goes) {
            // Two that nothing is known of may be alike, and then tell nothing. Against one that is cold each tells what it is.
            let is_cold = |chunk: &ChunkView| self.heat(vm.vm, chunk.no) == Some(0);
            let cold: Vec<ChunkView> = out.iter().copied().filter(is_cold).collect();
            if !cold.is_empty() {
                (come, heat_comes) = (cold, Some(u64::MAX));
            }
        }
        let may_win = match age.cmp(&by_use.age(vm, goes)) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal => match (heat_goes, heat_comes) {
                (Some(goes), Some(comes)) => comes > goes.saturating_add(pace.tells()),
                (Some(goes), None) => goes <= pace.tells(),
                (None, Some(comes)) => comes > pace.tells(),
                (None, None) => true,
            },
        };
        let count = [part, leave.len(), come.len(), vm.exchange_chunks_max];
        let count = count.into_iter().min().filter(|count| may_win && *count > 0)?;
        Some((some(&leave, count, rng), some(&come, count, rng)))
    }

    /// The VM is not looked at for a while, which is the longer the less there was to see.
    fn rest(&mut self, vm: VmId, now: Tick) {
        self.stage = Stage::Rest;
        let record = self.vms.entry(vm).or_default();
        let doublings = record.barren.saturating_sub(BARREN).min(DOUBLINGS);
        let wait = match record.barren < BARREN {
            true => WAIT_NS / 8,
            false => WAIT_NS << doublings,
        };
        record.next_at = now.after(wait);
    }
}

/// Whether there is anything to be found out about the VM now.
fn is_tried(now: Tick, vm: &VmView<'_>) -> bool {
    let rings = vm.rang_at.is_some_and(|at| now.since(at) < RINGS_NS);
    rings && vm.may_move && vm.wanted > 0 && vm.active > 0 && vm.asked == 0 && vm.exchange_chunks_max > 0
}

/// Those of the lowest rank, in order.
fn best(chunks: impl Iterator<Item = ChunkView>, rank: impl Fn(&ChunkView) -> u64) -> Vec<ChunkView> {
    let (mut lowest, mut best) = (u64::MAX, Vec::new());
    for chunk in chunks {
        let of = rank(&chunk);
        if of < lowest {
            best.clear();
            lowest = of;
        }
        if of == lowest {
            best.push(chunk);
        }
    }
    best
}

/// So many from a random one on: what lies together is often used together.
fn some(chunks: &[ChunkView], count: usize, rng: &mut ChaCha8Rng) -> Vec<ChunkNo> {
    let from = rng.random_range(0..=chunks.len() - count);
    chunks[from..from + count].iter().map(|chunk| chunk.no).collect()
}

#[cfg(test)]
mod tests;
