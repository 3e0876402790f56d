//! Memory for chunks that need some, and the refill pass.
//!
//! A demand is met, in this order: from free frames; by spilling idle chunks, for which nobody need stop; by spilling
//! the victim's, a random chunk of the VM that holds most (GPUswap §4.3); and when its time is up, or there is no
//! victim, in host RAM. It is never refused.
//!
//! The pass (GPUswap §4.5, every 50 ms and whenever something becomes free or idle) goes the other way: the VM that
//! holds least gets a chunk back, into free frames, in exchange for an idle chunk, or for fairness from one that holds
//! more. It ends when no VM with spilled chunks is more than a chunk below its share.

use std::collections::BTreeMap;

use rand::RngExt;

use super::Cx;
use super::demands::Demand;
use super::moves::{COPY_CHECK_NS, Stage};
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Action, Tick, VmId};
use crate::memory::{ChunkNo, ChunkPlace, Reach};
use crate::notice::Direction;
use crate::policy::Holding;
use crate::reason::MoveCause;

impl Running {
    /// Meets demands as far as possible and starts the next move. `true` if anything changed.
    pub(super) fn relieve(&mut self, cx: &mut Cx<'_>) -> bool {
        let mut changed = self.meet_from_free(cx);
        changed |= self.meet_late(cx);
        if self.moving.is_some() {
            return changed;
        }
        if let Some(vm) = self.above_max(cx.now)
            && self.spill_some(vm, MoveCause::AboveMax, 1, cx)
        {
            return true;
        }
        if !self.demands.is_empty() {
            changed |= self.make_room(cx);
        } else if self.pass_wanted || cx.now >= self.pass_at {
            self.pass_wanted = false;
            self.pass_at = cx.now.after(self.config.refill_period_ns);
            changed |= self.refill_pass(cx);
        }
        changed
    }

    /// Starts a spill for the demands that wait, or gives them host RAM if there is no victim.
    fn make_room(&mut self, cx: &mut Cx<'_>) -> bool {
        let needed: u64 = self.demands.iter().map(|demand| self.demanded(demand)).sum();
        let free = u64::from(self.frames.free_count()) * fermi_spec::addr::FRAME;
        let short = needed.saturating_sub(free);
        let Some(demander) = self.demands.iter().next().map(|demand| demand.vm) else {
            return false;
        };
        if let Some(vm) = self.most_idle(cx.now) {
            let wanted = self.chunks_for(vm, short);
            let taken_for = demander;
            if self.spill_some(vm, MoveCause::Idle { taken_for }, wanted, cx) {
                return true;
            }
        }
        let holdings = self.holdings(cx.now);
        let Some(victim) = self.policy.victim(&holdings) else {
            return self.give_host_ram(cx);
        };
        // The demander may be its own victim: then a chunk it asks for is as good a choice as one it holds, and goes to
        // host RAM without a copy.
        if let Some(demand) = self.demands.of(victim) {
            let asked = demand.chunks.len();
            let held = self
                .vms
                .get(&victim)
                .map_or(0, |vgpu| candidates(vgpu, false).len());
            if self.rng.random_range(0..asked + held) < asked {
                let chunk = demand.chunks[self.rng.random_range(0..asked)];
                self.demands.take(victim, &[chunk]);
                self.back(victim, chunk, true, cx);
                self.finish_met();
                return true;
            }
        }
        let wanted = self.fair_count(&holdings, victim, self.chunks_for(victim, short));
        if self.spill_some(victim, MoveCause::Demand { of: demander }, wanted, cx) {
            return true;
        }
        // It could not even start: no shadow table to point to host RAM with. Others next time.
        if let Some(vgpu) = self.vms.get_mut(&victim) {
            vgpu.passed_over_until = cx.now.after(1_000_000_000);
        }
        true
    }

    /// How many chunks the victim may lose before another one holds more.
    fn fair_count(&self, holdings: &[Holding], victim: VmId, wanted: usize) -> usize {
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

    fn give_host_ram(&mut self, cx: &mut Cx<'_>) -> bool {
        let demands = self.demands.iter();
        let all: Vec<_> = demands.map(|demand| (demand.vm, demand.chunks.clone())).collect();
        for (vm, chunks) in all {
            self.demands.take(vm, &chunks);
            for chunk in chunks {
                self.back(vm, chunk, true, cx);
            }
        }
        self.finish_met()
    }

    fn demanded(&self, demand: &Demand) -> u64 {
        self.vms.get(&demand.vm).map_or(0, |vgpu| {
            demand.chunks.iter().map(|&chunk| vgpu.chunks.bytes(chunk)).sum()
        })
    }

    fn chunks_for(&self, vm: VmId, bytes: u64) -> usize {
        let chunk = self.vms.get(&vm).map_or(u64::MAX, |vgpu| vgpu.config.chunk_bytes);
        bytes.div_ceil(chunk).max(1) as usize
    }

    /// Spills up to `wanted` random chunks of a VM, idle ones or reached ones, as the cause says. `false`: none could be.
    fn spill_some(&mut self, vm: VmId, cause: MoveCause, wanted: usize, cx: &mut Cx<'_>) -> bool {
        let idle = matches!(cause, MoveCause::Idle { .. });
        let Some(vgpu) = self.vms.get(&vm) else {
            return false;
        };
        let mut candidates = candidates(vgpu, idle);
        if candidates.is_empty() && !idle {
            candidates = self::candidates(vgpu, true);
        }
        let spare = vgpu.chunks.resident().saturating_sub(vgpu.config.quota.min);
        let most = self.batch_bytes_max().min(spare);
        let count =
            (most / vgpu.config.chunk_bytes).max(u64::from(spare >= vgpu.config.chunk_bytes)) as usize;
        let count = if vgpu.was_refused { count.min(1) } else { count };
        let mut chosen = Vec::new();
        while chosen.len() < wanted.min(count) && !candidates.is_empty() {
            let pick = self.policy.chunk(&candidates, &mut self.rng);
            chosen.push(candidates.swap_remove(pick));
        }
        !chosen.is_empty() && self.start_move(vm, (Direction::Spill, cause), chosen, BTreeMap::new(), cx)
    }

    fn above_max(&self, now: Tick) -> Option<VmId> {
        self.vms
            .values()
            .filter(|vgpu| now >= vgpu.passed_over_until && !vgpu.leaves())
            .find(|vgpu| vgpu.chunks.resident() > vgpu.config.quota.max)
            .map(|vgpu| vgpu.id)
    }

    /// The VM with most idle bytes in VRAM that it may lose, of those whose last move was not rolled back just now.
    fn most_idle(&self, now: Tick) -> Option<VmId> {
        self.vms
            .values()
            .filter(|vgpu| !vgpu.leaves() && now >= vgpu.passed_over_until)
            .map(|vgpu| {
                let idle: u64 = candidates(vgpu, true)
                    .into_iter()
                    .map(|chunk| vgpu.chunks.bytes(chunk))
                    .sum();
                let spare = vgpu.chunks.resident().saturating_sub(vgpu.config.quota.min);
                (if spare >= vgpu.config.chunk_bytes { idle } else { 0 }, vgpu.id)
            })
            .filter(|(idle, _)| *idle > 0)
            .max()
            .map(|(_, vm)| vm)
    }

    fn holdings(&self, now: Tick) -> Vec<Holding> {
        let asked = |vm: VmId| -> u64 { self.demands.of(vm).map_or(0, |demand| self.demanded(demand)) };
        self.vms
            .values()
            .filter(|vgpu| !vgpu.leaves())
            .map(|vgpu| holding(vgpu, asked(vgpu.id), now))
            .collect()
    }

    fn refill_pass(&mut self, cx: &mut Cx<'_>) -> bool {
        let holdings = self.holdings(cx.now);
        let Some(winner) = self.policy.winner(&holdings) else {
            return false;
        };
        if self.refill_some(winner, &holdings, cx) {
            return true;
        }
        // No room: an idle chunk gives way, then one of a VM that holds more than its share.
        if let Some(vm) = self.most_idle(cx.now) {
            let wanted = self.chunks_for(winner, 1);
            return self.spill_some(vm, MoveCause::Idle { taken_for: winner }, wanted, cx);
        }
        match self.policy.giver(&holdings, winner) {
            Some(giver) => self.spill_some(giver, MoveCause::Fairness { toward: winner }, 1, cx),
            None => false,
        }
    }

    /// Refills random spilled chunks of the winner into free frames, as many as fairness and the batch allow.
    fn refill_some(&mut self, winner: VmId, holdings: &[Holding], cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get(&winner) else {
            return false;
        };
        let mut candidates: Vec<ChunkNo> = vgpu
            .chunks
            .all()
            .filter(|&chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Spilled)
            .filter(|&chunk| vgpu.chunks.reach(chunk) != Reach::None)
            .collect();
        let own = holdings.iter().find(|h| h.vm == winner).map_or(0, |h| h.claim);
        let next = holdings
            .iter()
            .filter(|h| h.vm != winner && h.wanted > 0)
            .map(|h| h.claim)
            .min();
        let lead = next.map_or(u64::MAX, |next| {
            next.saturating_sub(own) + vgpu.config.chunk_bytes
        });
        let room = vgpu.config.quota.max.saturating_sub(vgpu.chunks.resident());
        let mut left = self
            .batch_bytes_max()
            .max(vgpu.config.chunk_bytes)
            .min(lead)
            .min(room);
        let mut frames = BTreeMap::new();
        while !candidates.is_empty() {
            let pick = self.policy.chunk(&candidates, &mut self.rng);
            let chunk = candidates.swap_remove(pick);
            let Some(vgpu) = self.vms.get(&winner) else { break };
            let (bytes, base, count) = (
                vgpu.chunks.bytes(chunk),
                vgpu.chunks.base(chunk),
                vgpu.chunks.frames_of(chunk),
            );
            if bytes > left {
                break;
            }
            let Some(taken) = self.take_frames(winner, base, count, cx) else {
                break;
            };
            left -= bytes;
            frames.insert(chunk, taken);
        }
        if frames.is_empty() {
            return false;
        }
        let chunks = frames.keys().copied().collect();
        self.start_move(
            winner,
            (Direction::Refill, MoveCause::FreeRoom),
            chunks,
            frames,
            cx,
        )
    }

    /// Old copies in images go as soon as all images together hold more than the pool.
    pub(super) fn trim_images(&mut self, cx: &mut Cx<'_>) {
        let total = |vms: &std::collections::BTreeMap<VmId, Vgpu>| -> u64 {
            vms.values().map(|vgpu| vgpu.chunks.image_bytes()).sum()
        };
        while total(&self.vms) > self.config.host_ram {
            let Some((vgpu, chunk)) = self
                .vms
                .values_mut()
                .find_map(|vgpu| vgpu.chunks.take_stale().map(|chunk| (vgpu, chunk)))
            else {
                return;
            };
            let base = vgpu.chunks.base(chunk);
            for (start, bytes) in vgpu.chunks.data_runs(chunk) {
                cx.actions.push(Action::DropImage {
                    vm: vgpu.id,
                    at: base.offset(start),
                    bytes,
                });
            }
        }
    }

    /// When something is due that no event announces.
    pub(super) fn next_wake(&self, now: Tick) -> Option<Tick> {
        let spilled = self.vms.values().any(|vgpu| vgpu.chunks.spilled() > 0);
        let pass = (spilled && self.moving.is_none()).then_some(self.pass_at);
        let demand = self.demands.next_deadline();
        let copy = self
            .moving
            .as_ref()
            .filter(|moving| matches!(moving.stage, Stage::Copying | Stage::Abandoned))
            .map(|moving| {
                Tick(now.0.max(moving.copying_since.0) / COPY_CHECK_NS * COPY_CHECK_NS).after(COPY_CHECK_NS)
            });
        let above = self
            .vms
            .values()
            .filter(|vgpu| vgpu.chunks.resident() > vgpu.config.quota.max && self.moving.is_none())
            .map(|vgpu| vgpu.passed_over_until)
            .min();
        let notify = self
            .vms
            .values()
            .filter(|vgpu| !vgpu.notify_engines.is_empty())
            .map(|vgpu| vgpu.notify_at)
            .min();
        [pass, demand, copy, above, notify, self.look_at()]
            .into_iter()
            .flatten()
            .min()
            .map(|at| at.max(now))
    }
}

/// Resident chunks that may be spilled: idle ones, or the others.
fn candidates(vgpu: &Vgpu, idle: bool) -> Vec<ChunkNo> {
    vgpu.chunks
        .all()
        .filter(|&chunk| {
            matches!(
                vgpu.chunks.place(chunk),
                ChunkPlace::Resident(_) | ChunkPlace::Both(_)
            )
        })
        .filter(|&chunk| vgpu.chunks.is_idle(chunk) == idle && !vgpu.chunks.is_moving(chunk))
        .collect()
}

fn holding(vgpu: &Vgpu, asked: u64, now: Tick) -> Holding {
    let bytes =
        |chunks: Vec<ChunkNo>| -> u64 { chunks.into_iter().map(|chunk| vgpu.chunks.bytes(chunk)).sum() };
    let active = bytes(candidates(vgpu, false));
    let wanted = vgpu
        .chunks
        .all()
        .filter(|&chunk| *vgpu.chunks.place(chunk) == ChunkPlace::Spilled)
        .filter(|&chunk| vgpu.chunks.reach(chunk) != Reach::None)
        .map(|chunk| vgpu.chunks.bytes(chunk))
        .sum();
    let passed_over = now < vgpu.passed_over_until;
    Holding {
        vm: vgpu.id,
        claim: active + asked,
        resident: vgpu.chunks.resident(),
        movable: if passed_over { 0 } else { active },
        wanted: if passed_over { 0 } else { wanted },
        chunk: vgpu.config.chunk_bytes,
        quota: vgpu.config.quota,
    }
}
