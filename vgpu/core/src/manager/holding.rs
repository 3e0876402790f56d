//! Work waits until its memory is in VRAM: GDM's launches (Wang et al., SIGMETRICS 2014), by what a Fermi shows.
//!
//! ```text
//!  doorbell ─► looked at ([`super::ahead`]) ─► all chunks of the next launch in VRAM ──► the card gets GP_PUT behind its entry
//!      │                                         └ no: the policy is asked (Occasion::Held) ─ a move, then again
//!      │                                                └ it has no answer, or [`HOLD_NS`] are over: given as it is
//!      └ the policy is asked first (Occasion::Due): it may say that nothing waits for a while
//! ```
//!
//! A VM that has no memory in host RAM waits for nothing: the card gets its doorbell at once, and its ring is read so that what its channels
//! have set is known when memory becomes short. Who waited in vain is not held for [`DIRECT_NS`]. Only policies that want it
//! ([`Policy::wants_work`](crate::policy::Policy::wants_work)) have this: under one that wants looks alone nothing waits, and under the others no ring is read.

use fermi_spec::instance::offset;
use planted::Fault;

use super::Cx;
use super::ahead::{Look, Lookup};
use super::channels::word_at;
use super::running::Running;
use crate::device::Vgpu;
use crate::device::work::ChannelWork;
use crate::event::{Tick, VmId};
use crate::memory::ChunkNo;
use crate::notice::Notice;
use crate::policy::WorkWanted;

/// Longest time that an entry waits.
const HOLD_NS: u64 = 20_000_000;
/// For so long the work of a VM is not held after it waited in vain, and no longer because a policy says so.
const DIRECT_NS: u64 = 1_000_000_000;

impl Vgpu {
    /// Whether its work waits for its memory.
    fn holds_work(&self, now: Tick) -> bool {
        self.chunks.spilled() > 0 && now >= self.work.direct_until && !self.leaves()
    }

    /// Whether it is looked up which chunks its work uses.
    fn looks_up(&mut self, now: Tick) -> Lookup {
        match self.holds_work(now) {
            true => Lookup::Held,
            false if !self.work.is_looked_up || self.chunks.spilled() == 0 || self.leaves() => Lookup::No,
            false if self.work.looks.may_look(now) => Lookup::Paid,
            false => Lookup::No,
        }
    }

    fn are_in_vram<'c>(&self, mut chunks: impl Iterator<Item = &'c ChunkNo>) -> bool {
        // What has no memory yet reads as zero, and has no place that it could come from.
        chunks.all(|&chunk| !self.chunks.is_out(chunk))
    }

    /// The channel whose work has waited for longest for memory that is in host RAM, and since when.
    pub(crate) fn held_work(&self) -> Option<(u8, Tick)> {
        let waiting = self.work.channels.iter().filter_map(|(&v, work)| {
            let since = work.waits_since()?;
            let is_out = work.next().is_some_and(|set| !self.are_in_vram(set.iter()));
            is_out.then_some((v, since))
        });
        waiting.min_by_key(|(v, since)| (*since, *v))
    }
}

impl Running {
    /// A channel is bound whose instance block this is: its work begins where its ring stands.
    pub(super) fn begin_work(&mut self, vm: VmId, v: u8, block: &[u8]) {
        let wanted = self.policy.wants_work();
        if wanted == WorkWanted::Nothing {
            return;
        }
        let base = [offset::GP_BASE_LO, offset::GP_BASE_HI].map(|at| word_at(block, at));
        let work = ChannelWork::new(base, word_at(block, offset::GP_GET));
        if let (Some(vgpu), Some(work)) = (self.vms.get_mut(&vm), work) {
            vgpu.work.channels.insert(v, work);
            vgpu.work.let_wait(wanted == WorkWanted::Waits);
        }
        self.volatile.ahead.forget(vm, v);
    }

    /// The channel is unbound.
    pub(super) fn end_work(&mut self, vm: VmId, v: u8) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.work.channels.remove(&v);
        }
        self.volatile.ahead.forget(vm, v);
    }

    /// GP_PUT that the card may have of a channel while the rest waits; `None` if nothing of it has to.
    pub(super) fn held_at(&self, vm: VmId, v: u8, now: Tick) -> Option<u32> {
        let vgpu = self.vms.get(&vm)?;
        let work = vgpu.work.channels.get(&v)?;
        vgpu.holds_work(now).then(|| work.given_put())
    }

    /// The same of a channel that gets a number on the card with this GP_PUT.
    pub(super) fn held_at_bind(&self, vm: VmId, v: u8, gp_put: Option<u32>, now: Tick) -> Option<u32> {
        let held = self.held_at(vm, v, now)?;
        gp_put.filter(|put| *put != held).map(|_| held)
    }

    /// The guest has stored GP_PUT of a bound channel.
    pub(super) fn work_came(&mut self, vm: VmId, v: u8, now: Tick) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(channel) = vgpu.channels.get_mut(&v) else {
            return;
        };
        let (Some(put), Some(work)) = (channel.gp_put, vgpu.work.channels.get_mut(&v)) else {
            return;
        };
        let ahead = &mut self.volatile.ahead;
        if !work.submit(put, now) {
            ahead.forget(vm, v);
        }
        match (channel.given, work.is_behind()) {
            (Some(_), true) => {
                work.wait(now);
            }
            (Some(_), false) => channel.given = None,
            (None, _) => {
                work.give_all();
            }
        }
        ahead.note_more(vm, v);
        ahead.due.insert((vm, v));
        self.volatile.ready.insert(vm);
    }

    /// Goes on with the work of a VM's channels. It is the VM's turn.
    pub(super) fn serve_work(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        loop {
            let mut due = self.volatile.ahead.due.range((vm, 0)..=(vm, u8::MAX));
            let Some(&(_, v)) = due.next() else { return };
            if !self.has_turn(vm, cx.now) {
                return;
            }
            self.volatile.ahead.due.remove(&(vm, v));
            self.go_on_with_work(vm, v, cx);
        }
    }

    fn go_on_with_work(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        if self.is_due(vm, v, cx.now) {
            self.ask_before_look(vm, cx.now);
        }
        let vgpu = self.vms.get_mut(&vm);
        let lookup = vgpu.map_or(Lookup::No, |vgpu| vgpu.looks_up(cx.now));
        let look = self.look_ahead(vm, v, lookup, cx);
        let has_given = self.give_work(vm, v, cx);
        // One look at a time: the next one needs the VM's turn too.
        if look == Look::GoesOn || look == Look::Done && has_given {
            self.volatile.ahead.due.insert((vm, v));
        }
        self.tell_given(vm, v, cx);
    }

    /// Whether the channel has work that would wait for a look, and none yet that waits for its memory.
    fn is_due(&self, vm: VmId, v: u8, now: Tick) -> bool {
        let vgpu = self.vms.get(&vm).filter(|vgpu| vgpu.holds_work(now));
        let work = vgpu.and_then(|vgpu| vgpu.work.channels.get(&v));
        work.is_some_and(|work| !work.is_next_seen() && work.next_look(1).is_some())
    }

    /// Gives the card what may go. `true`: more has to be looked at because of it.
    fn give_work(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        let is_held = vgpu.holds_work(cx.now);
        let Some(mut work) = vgpu.work.channels.remove(&v) else {
            return false;
        };
        let before = work.given();
        let since = work.waits_since().filter(|_| work.is_behind());
        let is_late = since.is_some_and(|since| cx.now >= since.after(HOLD_NS));
        let is_late = is_late && !planted::is(Fault::HeldForGood);
        if is_late {
            vgpu.work.direct_until = cx.now.after(DIRECT_NS);
            vgpu.work.is_looked_up = false;
        }
        let mut used = Vec::new();
        if is_late || !is_held {
            used.extend(work.give_all());
        }
        while work.is_behind() && work.is_next_seen() {
            if work.next().is_some_and(|set| !vgpu.are_in_vram(set.iter())) {
                break;
            }
            used.extend(work.give());
        }
        if work.is_behind() {
            work.wait(cx.now);
        }
        let has_given = work.given() != before;
        if let Some(since) = since.filter(|_| has_given) {
            let waited_ns = cx.now.since(since);
            cx.tell(Notice::WorkWaited {
                vm,
                waited_ns,
                in_vain: is_late,
            });
        }
        for chunk in used {
            vgpu.chunks.note_launched(chunk, 1, cx.now);
        }
        vgpu.work.channels.insert(v, work);
        has_given
    }

    /// The VM's work is not held for a while. `with_looks`: what it uses is looked up all the same.
    pub(super) fn release_work(&mut self, vm: VmId, (until, with_looks): (Tick, bool), now: Tick) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.work.is_looked_up = with_looks;
            // Past `now`, or it would be held again at once.
            vgpu.work.direct_until = until.clamp(now.after(1), now.after(DIRECT_NS));
        }
    }

    /// The policy has no answer: the next entry goes as it is.
    pub(super) fn give_as_it_is(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(work) = vgpu.work.channels.get_mut(&v) else {
            return;
        };
        for chunk in work.give() {
            vgpu.chunks.note_launched(chunk, 1, cx.now);
        }
        self.volatile.ahead.due.insert((vm, v));
        self.volatile.ready.insert(vm);
        self.tell_given(vm, v, cx);
    }

    /// Rings the channel, if the card may have more of it than it has.
    fn tell_given(&mut self, vm: VmId, v: u8, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let (Some(work), Some(channel)) = (vgpu.work.channels.get(&v), vgpu.channels.get_mut(&v)) else {
            return;
        };
        let Some(before) = channel.given else { return };
        let now = work.is_behind().then(|| work.given_put());
        channel.given = now;
        if now == Some(before) {
            return;
        }
        // While it was held the card may have said that there is none.
        channel.note_rung(cx.now);
        if vgpu.hold.is_suspended || !channel.may_run() {
            return;
        }
        if let Some(put) = channel.due().filter(|_| !planted::is(Fault::HeldWorkLost)) {
            match channel.in_table {
                true => self.card.ring(channel.physical, put, cx.actions),
                false => self.card.ring_later(channel.physical, put),
            }
        }
    }

    /// Looks at work that waits: its memory may be there, or its time over. `true`: some goes on.
    pub(super) fn check_held(&mut self, now: Tick) -> bool {
        if self.policy.wants_work() != WorkWanted::Waits {
            return false;
        }
        let mut changed = false;
        for vgpu in self.vms.values().filter(|vgpu| vgpu.share.turn_at().is_none()) {
            for (&v, work) in &vgpu.work.channels {
                let Some(since) = work.waits_since().filter(|_| work.is_behind()) else {
                    continue;
                };
                let is_late = now >= since.after(HOLD_NS) && !planted::is(Fault::HeldForGood);
                let is_there =
                    work.is_next_seen() && work.next().is_none_or(|set| vgpu.are_in_vram(set.iter()));
                if is_late || is_there || !vgpu.holds_work(now) {
                    self.volatile.ahead.due.insert((vgpu.id, v));
                    self.volatile.ready.insert(vgpu.id);
                    changed = true;
                }
            }
        }
        changed
    }

    /// When work that waits is given whatever its memory.
    pub(super) fn next_held(&self) -> Option<Tick> {
        if self.policy.wants_work() != WorkWanted::Waits || planted::is(Fault::HeldForGood) {
            return None;
        }
        let vms = self.vms.values().filter(|vgpu| vgpu.share.turn_at().is_none());
        let waiting = vms.flat_map(|vgpu| vgpu.work.channels.values());
        let since = waiting
            .filter(|work| work.is_behind())
            .filter_map(ChannelWork::waits_since);
        since.min().map(|since| since.after(HOLD_NS))
    }

    /// The VM whose work has waited for longest for memory, and the channel.
    pub(super) fn longest_held(&self, now: Tick) -> Option<(VmId, u8)> {
        if self.policy.wants_work() != WorkWanted::Waits || planted::is(Fault::HeldForGood) {
            return None;
        }
        // One that is out of turn gives nothing to the card now, whatever the answer.
        let held = self.vms.values();
        let held = held.filter(|vgpu| vgpu.holds_work(now) && vgpu.share.turn_at().is_none());
        let held = held.filter_map(|vgpu| vgpu.held_work().map(|(v, since)| (since, vgpu.id, v)));
        held.min().map(|(_, vm, v)| (vm, v))
    }
}
