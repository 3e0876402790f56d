//! Room for chunks that are demanded: who gives for them, and which of them get host RAM.

use rand::RngExt;

use super::{Holder, Which, chunks_for, holders, most_idle, spill};
use crate::policy::{DemandView, Proposal, Snapshot};
use crate::reason::MoveCause;

/// Idle chunks first, then the victim's; without a victim all demands are met in host RAM.
pub(super) fn make_room(view: &Snapshot<'_>, which: &mut Which<'_>) -> Proposal {
    let Some(first) = view.demands.first() else {
        return Proposal::Nothing;
    };
    let of = first.vm;
    if let Some(own) = view.vm(of).filter(|_| first.waits_for_own) {
        return spill(own, MoveCause::Idle { taken_for: of }, 1, which);
    }
    let short = view.demanded().saturating_sub(view.free_for(of));
    if let Some(idle) = most_idle(view) {
        let count = chunks_for(idle, short);
        return spill(idle, MoveCause::Idle { taken_for: of }, count, which);
    }
    let holders = holders(view);
    let Some(mut victim) = victim(&holders) else {
        let all = view
            .demands
            .iter()
            .map(|demand| (demand.vm, demand.chunks.to_vec()));
        return Proposal::HostRam {
            chunks: all.collect(),
        };
    };
    // A victim that asks itself may have its part in host RAM, without a copy.
    if victim.view.asked == 0 && is_in_vain(view, first, &holders) {
        let gives = |own: &&Holder<'_, '_>| own.view.vm == of && own.excess() > 0 && own.may_give();
        match holders.iter().find(gives) {
            Some(own) => victim = own,
            None => return one_in_host_ram(first, which),
        }
    }
    // The demander may be its own victim: then a chunk it asks for is as good a choice as one it holds, and goes to
    // host RAM without a copy.
    let vm = victim.view.vm;
    if let Some(demand) = view.demands.iter().find(|demand| demand.vm == vm) {
        let asked = demand.chunks.len();
        let held = match victim.may_give() {
            true => which.spillable(victim.view, false),
            false => Vec::new(),
        };
        let is_less_in_use = |chunk| which.choice.leaves(victim.view, chunk) < which.choice.asked();
        let rng = &mut *which.rng;
        if !held.iter().any(is_less_in_use) && rng.random_range(0..asked + held.len()) < asked {
            return one_in_host_ram(demand, which);
        }
    }
    let count = chunks_for(victim.view, short).min(victim.chunks_above());
    spill(victim.view, MoveCause::Demand { of }, count, which)
}

/// One of the chunks that a VM demands gets host RAM.
fn one_in_host_ram(demand: &DemandView<'_>, which: &mut Which<'_>) -> Proposal {
    let pick = which.rng.random_range(0..demand.chunks.len());
    Proposal::HostRam {
        chunks: vec![(demand.vm, vec![demand.chunks[pick]])],
    }
}

/// Whether what others have above their shares and what is free are together less than the chunk that is demanded: what went for it would come back.
fn is_in_vain(view: &Snapshot<'_>, demand: &DemandView<'_>, holders: &[Holder<'_, '_>]) -> bool {
    let others = holders.iter().filter(|holder| holder.view.vm != demand.vm);
    let obtainable = view.free_for(demand.vm) + others.map(Holder::givable).sum::<u64>();
    let chunk = view
        .vm(demand.vm)
        .map_or(0, |vm| vm.chunk_bytes.min(demand.bytes));
    obtainable < chunk && !demand.chunks.is_empty()
}

/// Who is furthest above its share, what it asks for included. Of two that are equally far it is who asks for nothing.
fn victim<'h, 'v, 'a>(holders: &'h [Holder<'v, 'a>]) -> Option<&'h Holder<'v, 'a>> {
    holders
        .iter()
        .filter(|holder| holder.excess() > 0 && (holder.may_give() || holder.view.asked > 0))
        .max_by_key(|holder| (holder.excess(), holder.view.asked == 0, holder.view.vm))
}
