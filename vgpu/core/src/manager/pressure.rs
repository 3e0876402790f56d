//! When VRAM is short, or could be used better: the policy is asked, and what limits leave of its answer is done.
//!
//! A demand is met, in this order: from free frames; from frames that the policy's spills set free; and when its time is
//! up, or the policy says so, in host RAM. It is never refused.
//!
//! The pass goes the other way: nobody demands anything, and the policy may bring chunks back or even out who holds what.
//! It comes every `refill_period_ns`, and as soon as the policy finds one worth while.

use std::collections::BTreeMap;

use super::Cx;
use super::limits::Limits;
use super::preparing::What;
use super::running::Running;
use crate::event::{Tick, VmId};
use crate::memory::ChunkNo;
use crate::policy::{Observation, Occasion, Proposal, Usage, Worth};
use crate::reason::MoveCause;
use crate::share::POLICY_ASKED;

/// How long a VM is passed over whose chunks could not even start to move.
const COULD_NOT_START_NS: u64 = 1_000_000_000;

impl Running {
    /// Meets demands as far as possible and starts the next move. `true` if anything changed.
    pub(super) fn relieve(&mut self, cx: &mut Cx<'_>) -> bool {
        self.drop_void_claim(cx.now);
        let mut changed = self.meet_from_free(cx);
        changed |= self.meet_late(cx);
        if !self.mover.is_idle() {
            return changed;
        }
        // Between two moves for windows others have their turn: a guest can want one for each of its chunks.
        let others_are_next = std::mem::take(&mut self.mover.was_for_window);
        if !others_are_next && self.move_to_show(cx) {
            return true;
        }
        if self.move_next_part(cx) {
            return true;
        }
        if let Some(vm) = self.limits(cx.now).above_max()
            && self.lower_to_max(vm, cx)
        {
            return true;
        }
        if !self.demands.is_empty() {
            let proposal = self.ask(Occasion::Demand, cx.now);
            changed |= self.carry_out(Occasion::Demand, proposal, cx);
        } else if let Some((vm, v)) = self.longest_held(cx.now).filter(|_| cx.now < self.pass_at) {
            // Passes come in between when they are due.
            let occasion = Occasion::Held { vm };
            let proposal = self.ask(occasion, cx.now);
            self.note_intent(&proposal);
            if !self.carry_out(occasion, proposal, cx) {
                self.give_as_it_is(vm, v, cx);
            }
            changed = true;
        } else if self.pass_wanted || cx.now >= self.pass_at {
            let occasion = match std::mem::take(&mut self.pass_wanted) {
                true => Occasion::Pass,
                false => Occasion::Tick,
            };
            self.pass_at = cx.now.after(self.config.refill_period_ns);
            self.ask_activity(cx);
            self.note_lenders(cx.now);
            let proposal = self.ask(occasion, cx.now);
            self.note_intent(&proposal);
            changed |= self.carry_out(occasion, proposal, cx);
        }
        changed || others_are_next && self.mover.is_idle() && self.move_to_show(cx)
    }

    /// `max` holds though the policy has no answer: then the VM's first chunk goes, an idle one if it has any.
    fn lower_to_max(&mut self, vm: VmId, cx: &mut Cx<'_>) -> bool {
        let occasion = Occasion::AboveMax { vm };
        let mut proposal = self.ask(occasion, cx.now);
        if proposal == Proposal::Nothing {
            let limits = self.limits(cx.now);
            let first = limits.vms.get(&vm).and_then(|vgpu| {
                let chunks = limits.view(vgpu)?.chunks();
                let movable = chunks.filter(|chunk| chunk.is_spillable());
                movable.min_by_key(|chunk| !chunk.is_idle())
            });
            let chunks: Vec<ChunkNo> = first.into_iter().map(|chunk| chunk.no).collect();
            let cause = MoveCause::AboveMax;
            (proposal, _) = limits.admit(occasion, Proposal::Spill { vm, chunks, cause });
        }
        self.carry_out(occasion, proposal, cx)
    }

    /// The policy's proposal, as far as limits allow it.
    fn ask(&mut self, occasion: Occasion, now: Tick) -> Proposal {
        let limits = Limits {
            figures: self.figures(now),
            vms: &self.vms,
            demands: &self.demands,
        };
        let snapshot = limits.snapshot(occasion);
        let proposal = self.policy.propose(&snapshot, occasion, &mut self.rng);
        let views = snapshot.vms.iter();
        let looked_up: Vec<(VmId, u64)> = views.map(|view| (view.vm, view.last_use.work())).collect();
        let (proposal, breach) = limits.admit(occasion, proposal);
        if let Some(breach) = breach {
            *self.breaches.entry(breach).or_default() += 1;
        }
        for (vm, work) in looked_up {
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                vgpu.share.charge(work);
            }
        }
        proposal
    }

    /// Whether work that a VM hands over waits for its memory is asked before it is looked at.
    pub(super) fn ask_before_look(&mut self, vm: VmId, now: Tick) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.share.charge(POLICY_ASKED);
        }
        let proposal = self.ask(Occasion::Due { vm }, now);
        if let Proposal::Release {
            vm,
            until,
            with_looks,
        } = proposal
        {
            self.release_work(vm, (until, with_looks), now);
        }
    }

    /// Starts a move, or gives demanded chunks host RAM. `false`: nothing changed.
    fn carry_out(&mut self, occasion: Occasion, proposal: Proposal, cx: &mut Cx<'_>) -> bool {
        match proposal {
            Proposal::Nothing => false,
            Proposal::Release {
                vm,
                until,
                with_looks,
            } => {
                self.release_work(vm, (until, with_looks), cx.now);
                true
            }
            Proposal::Spill { vm, chunks, cause } => {
                let started = self.start_move(vm, cause, What::Spill(chunks), cx);
                if !started && matches!(occasion, Occasion::Demand | Occasion::AboveMax { .. }) {
                    // No shadow table to point to host RAM with. Others next time.
                    self.pass_over(vm, cx.now);
                    return true;
                }
                started
            }
            Proposal::Refill { vm, chunks, cause } => {
                let mut frames = BTreeMap::new();
                for chunk in chunks {
                    let Some(vgpu) = self.vms.get(&vm) else {
                        return false;
                    };
                    let (base, count) = (vgpu.chunks.base(chunk), vgpu.chunks.frames_of(chunk));
                    let Some(taken) = self.take_frames(vm, base, count, cx) else {
                        // Limits count free frames, so this does not happen.
                        self.free_frames(vm, frames.into_values().flatten(), cx);
                        return false;
                    };
                    frames.insert(chunk, taken);
                }
                self.start_move(vm, cause, What::Refill(frames), cx)
            }
            Proposal::Exchange {
                vm,
                leave,
                come,
                cause,
            } => self.start_move(vm, cause, What::Exchange { leave, come }, cx),
            Proposal::HostRam { chunks } => {
                for (vm, chunks) in &chunks {
                    self.demands.take_to_host_ram(*vm, chunks);
                }
                for (vm, chunks) in chunks {
                    for chunk in chunks {
                        self.back(vm, chunk, true, cx);
                    }
                }
                self.finish_met(cx);
                true
            }
        }
    }

    /// Passes a VM over whose chunks could not start to move.
    pub(super) fn pass_over(&mut self, vm: VmId, now: Tick) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.passed_over_until = now.after(COULD_NOT_START_NS);
        }
    }

    /// Tells the policy, which may want a pass because of it.
    pub(super) fn observe(&mut self, what: &Observation<'_>) {
        self.pass_wanted |= self.policy.observe(what) == Worth::Pass;
    }

    /// Bytes of VRAM that nobody holds.
    pub(super) fn free_bytes(&self) -> u64 {
        u64::from(self.frames.free_count()) * fermi_spec::addr::FRAME
    }

    pub(super) fn usage(&self) -> Usage {
        let mut usage = Usage {
            free: self.free_bytes(),
            resident: 0,
            spilled: 0,
            above_high: 0,
        };
        for vgpu in self.vms.values() {
            usage.resident += vgpu.chunks.resident();
            usage.spilled += vgpu.chunks.spilled();
            let high = vgpu.quota().high;
            usage.above_high += vgpu.chunks.resident().saturating_sub(high);
        }
        usage
    }
}
