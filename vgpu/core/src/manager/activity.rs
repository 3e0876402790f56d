//! Which address spaces have work, by what the hardware shows anyway: recency, as far as Fermi has any.
//!
//! A doorbell says that its channel has work now. Work may last, so before each pass the card is asked after channels that
//! have not rung for a period: CHANNEL_STATE says whether something is in the ring or on the engine, and whether it waits for
//! a semaphore, which is no use of memory. Some channels of each VM are asked at a time, in turn, and the VM pays for it.
//!
//! A VM none of whose channels has work rests, and lends its memory after a while ([`Running::note_lenders`], decision 0037): soon, if it rests
//! for long as a habit (`device::activity`).

use fermi_spec::bar::Bar;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::ChannelState;
use planted::Fault;

use super::Cx;
use super::forecast::Forecast;
use super::running::Running;
use crate::device::{Channel, Said, Vgpu};
use crate::event::{Action, Tick, Token, VmId};
use crate::host::PhysChannel;
use crate::share::CHANNEL_ASKED;

/// Most channels of one VM that are asked about before a pass.
const ASKED_MAX: usize = 8;
/// A VM lends when it has rested for so many times as long as a copy of what it uses takes. Memory that goes to another VM and comes back is four
/// copies, so even if the rest ends at once they take half as long as it lasted: who waits until it has paid for what is to come does at
/// most so much worse than who knew.
const REST_FACTOR: u64 = 8;

impl Vgpu {
    /// A channel of the space got work. `true`: the VM had lent its memory.
    #[must_use]
    pub(super) fn note_doorbell(&mut self, v: u8, now: Tick) -> bool {
        self.activity.doorbells += 1;
        self.activity.rang_at = Some(now);
        if let Some(channel) = self.channels.get_mut(&v) {
            channel.note_rung(now);
            channel.is_blank = false;
        }
        if let Some(channel) = self.channels.get(&v)
            && let Some(space) = self.spaces.get_mut(&channel.space)
        {
            space.worked_at = Some(now);
        }
        self.uses_gpu(now)
    }

    /// Takes note of what the card says of a channel. A doorbell may have come since it was asked.
    pub(super) fn note_state(&mut self, v: u8, said: &Said, now: Tick) -> Option<&mut Channel> {
        let channel = self.channels.get_mut(&v)?;
        let has_rung = channel.has_work && channel.rung_at >= said.asked_at;
        let was_at_work = channel.is_at_work();
        channel.note_work(said, has_rung);
        // It was until now, as far as is known.
        if was_at_work || channel.is_at_work() {
            self.activity.used_at = now;
        }
        if channel.is_at_work() {
            self.activity.rests.found_at_work(now);
        }
        Some(channel)
    }

    /// Its guest uses the GPU, or is about to. `true`: the VM had lent its memory, which comes back with the next pass.
    pub(super) fn uses_gpu(&mut self, now: Tick) -> bool {
        self.activity.rests.end(now);
        self.activity.used_at = now;
        std::mem::take(&mut self.activity.lends)
    }

    /// An operator has let its channels go: those that rang meanwhile have work, whatever the card has said since. `true`: the VM had lent its memory.
    pub(super) fn note_let_go(&mut self, now: Tick) -> bool {
        self.activity.rests.forget();
        let due = self
            .channels
            .values_mut()
            .filter(|channel| channel.due().is_some());
        let mut has_work = false;
        for channel in due {
            channel.note_rung(now);
            has_work = true;
        }
        has_work && self.uses_gpu(now)
    }

    /// Whether something of its guest is on the card, or on its way there.
    fn is_at_work(&self) -> bool {
        let waits_for_number = self.parked.values().any(|parked| parked.wants_since.is_some());
        waits_for_number || self.channels.values().any(Channel::is_at_work)
    }

    /// Whether its guest has rested for as long as `lends_after_ns`, or as long as it has to if it rests for long as a habit; and in any case for as long
    /// as what it lends would take to be copied out and back.
    fn has_rested(&self, lends_after_ns: u64, pays_ns: u64, now: Tick) -> bool {
        let rests_ns = now.since(self.activity.used_at);
        rests_ns >= lends_after_ns.max(pays_ns) || self.activity.rests.has_begun_a_long_one(now)
    }

    /// Time of rest that pays for the copies of what it would lend.
    fn rest_pays_ns(&self, forecast: Forecast) -> u64 {
        let sums = self.chunks.sums();
        let copy_ns = forecast.copy_ns(sums.active + sums.wanted);
        copy_ns.saturating_mul(REST_FACTOR)
    }

    /// Channels that may have work of which nothing was heard since `before`: some, in turn.
    fn silent(&mut self, before: Tick) -> Vec<(u8, PhysChannel)> {
        let spaces = &self.spaces;
        let is_silent = |space: &crate::device::SpaceId| {
            let space = spaces.get(space);
            space.is_some_and(|space| space.worked_at.is_none_or(|at| at < before))
        };
        // Of a VM that an operator has suspended too: what it had may be done.
        let asked = self.channels.iter().filter(|(_, channel)| {
            let may_run = channel.in_table && channel.runnable && !channel.suspended && !channel.killed;
            may_run && !channel.stands && channel.has_work && is_silent(&channel.space)
        });
        let all: Vec<_> = asked.map(|(&v, channel)| (v, channel.physical)).collect();
        let from = all.partition_point(|(v, _)| *v < self.asked_from);
        let turn: Vec<_> = all[from..].iter().chain(&all[..from]).copied().collect();
        self.asked_from = turn.get(ASKED_MAX).map_or(0, |(v, _)| *v);
        turn.into_iter().take(ASKED_MAX).collect()
    }
}

impl Running {
    /// Asks the card after channels that may still be at work. Answers come before the next pass.
    pub(super) fn ask_activity(&mut self, cx: &mut Cx<'_>) {
        if !self.volatile.activity.is_empty() {
            return;
        }
        self.note_doorbells_to_come(cx.now);
        let before = Tick(cx.now.0.saturating_sub(self.config.refill_period_ns));
        // One that rests may lend to another.
        let is_short = self.vms.values().any(|vgpu| vgpu.chunks.spilled() > 0);
        for vgpu in self.vms.values_mut().filter(|_| is_short) {
            let silent = vgpu.silent(before);
            vgpu.share.charge(silent.len() as u64 * CHANNEL_ASKED);
            for (v, physical) in silent {
                let token = self.card.tokens.next();
                self.volatile
                    .activity
                    .insert(token, (vgpu.id, v, physical, cx.now));
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar0,
                    offset: PfifoReg::ChannelState(physical.0.into()).offset().into(),
                    bytes: 4,
                });
            }
        }
    }

    /// The card is to be asked after channels now. Those whose doorbells wait in a lane have work, whatever it says: it has not seen them.
    pub(super) fn note_doorbells_to_come(&mut self, now: Tick) {
        for (vm, v) in self.card.doorbells_to_come() {
            let vgpu = self.vms.get_mut(&vm);
            if let Some(channel) = vgpu.and_then(|vgpu| vgpu.channels.get_mut(&v)) {
                channel.rung_at = now;
            }
        }
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn activity_value(&mut self, token: Token, data: &[u8], now: Tick) -> bool {
        let Some((vm, v, physical, asked_at)) = self.volatile.activity.remove(&token) else {
            return false;
        };
        let state = ChannelState::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
        // The guest may have bound another one in its place meanwhile.
        if self.bound_as(physical.0) == Some((vm, v)) {
            let said = Said {
                state,
                is_on_engine: false,
                is_before_a_pass: true,
                asked_at,
            };
            self.note_answer((vm, v), &said, now);
        }
        true
    }

    fn note_answer(&mut self, (vm, v): (VmId, u8), said: &Said, now: Tick) {
        let lends_after_ns = self.config.lends_after_ns;
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let channel = vgpu.note_state(v, said, now);
        let works = |channel: &&mut Channel| said.state.pending() && !channel.waits;
        let Some(space) = channel.filter(works).map(|channel| channel.space) else {
            // Found at rest, and it will be for long.
            let lends_soon = !vgpu.is_at_work() && vgpu.activity.rests.has_begun_a_long_one(now);
            self.pass_wanted |= lends_soon && !vgpu.activity.lends && lends_after_ns > 0;
            return;
        };
        // A semaphore was released, perhaps.
        self.pass_wanted |= vgpu.activity.lends;
        // One that an operator has suspended has work and uses no memory.
        if !vgpu.hold.is_suspended
            && let Some(space) = vgpu.spaces.get_mut(&space)
        {
            space.worked_at = Some(now);
        }
    }

    /// Notes before a pass which VMs lend. Who lends does so until its guest uses the GPU.
    pub(super) fn note_lenders(&mut self, now: Tick) {
        let after = self.config.lends_after_ns;
        for vgpu in self.vms.values_mut().filter(|_| after > 0) {
            let (is_at_work, pays_ns) = (vgpu.is_at_work(), vgpu.rest_pays_ns(self.forecast));
            vgpu.activity.rests.note_pass(is_at_work, pays_ns);
            let rests = vgpu.activity.lends || vgpu.has_rested(after, pays_ns, now);
            vgpu.activity.lends = !is_at_work && rests && !planted::is(Fault::RestNotSeen);
        }
    }
}
