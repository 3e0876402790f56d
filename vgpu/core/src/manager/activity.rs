//! Which address spaces have work, by what the hardware shows anyway: recency, as far as Fermi has any.
//!
//! A doorbell says that its channel has work now. Work may last, so before each pass the card is asked after channels that
//! have not rung for a period: CHANNEL_STATE says whether something is in the ring or on the engine, and whether it waits for
//! a semaphore, which is no use of memory. Some channels of each VM are asked at a time, in turn, and the VM pays for it.

use fermi_spec::bar::Bar;
use fermi_spec::regs::PfifoReg;
use fermi_spec::regs::pfifo::ChannelState;

use super::Cx;
use super::running::Running;
use crate::device::Vgpu;
use crate::event::{Action, Tick, Token, VmId};
use crate::host::PhysChannel;
use crate::share::CHANNEL_ASKED;

/// Most channels of one VM that are asked about before a pass.
const ASKED_MAX: usize = 8;

impl Vgpu {
    /// A channel of the space got work.
    pub(super) fn note_doorbell(&mut self, v: u8, now: Tick) {
        self.doorbells.count += 1;
        self.doorbells.last_at = Some(now);
        if let Some(channel) = self.channels.get_mut(&v) {
            (channel.has_work, channel.is_blank) = (true, false);
        }
        if let Some(channel) = self.channels.get(&v)
            && let Some(space) = self.spaces.get_mut(&channel.space)
        {
            space.worked_at = Some(now);
        }
    }

    /// Channels that may have work of which nothing was heard since `before`: some, in turn.
    fn silent(&mut self, before: Tick) -> Vec<(u8, PhysChannel)> {
        let spaces = &self.spaces;
        let is_silent = |space: &crate::device::SpaceId| {
            let space = spaces.get(space);
            space.is_some_and(|space| space.worked_at.is_none_or(|at| at < before))
        };
        let is_held = self.hold.is_suspended;
        let asked = self.channels.iter().filter(|(_, channel)| {
            let may_run = channel.in_table && channel.runnable && !channel.suspended && !channel.killed;
            may_run && !channel.stands && !is_held && channel.gp_put.is_some() && is_silent(&channel.space)
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
        let before = Tick(cx.now.0.saturating_sub(self.config.refill_period_ns));
        for vgpu in self.vms.values_mut().filter(|vgpu| vgpu.chunks.spilled() > 0) {
            let silent = vgpu.silent(before);
            vgpu.share.charge(silent.len() as u64 * CHANNEL_ASKED);
            for (v, physical) in silent {
                let token = self.card.tokens.next();
                self.volatile.activity.insert(token, (vgpu.id, v, physical));
                cx.actions.push(Action::HostRead {
                    token,
                    bar: Bar::Bar0,
                    offset: PfifoReg::ChannelState(physical.0.into()).offset().into(),
                    bytes: 4,
                });
            }
        }
    }

    /// Takes an answer; `false` if the value belongs to another question.
    pub(super) fn activity_value(&mut self, token: Token, data: &[u8], now: Tick) -> bool {
        let Some((vm, v, physical)) = self.volatile.activity.remove(&token) else {
            return false;
        };
        let state = ChannelState::from_bits(u32::from_le_bytes(data.try_into().unwrap_or_default()));
        if state.pending() && !state.acquire_pending() {
            self.note_work(vm, v, physical, now);
        }
        true
    }

    fn note_work(&mut self, vm: VmId, v: u8, physical: PhysChannel, now: Tick) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        // The guest may have bound another one in its place meanwhile.
        let channel = vgpu
            .channels
            .get(&v)
            .filter(|channel| channel.physical == physical);
        if let Some(space) = channel.and_then(|channel| vgpu.spaces.get_mut(&channel.space)) {
            space.worked_at = Some(now);
        }
    }
}
