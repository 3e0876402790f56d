//! Preempting a channel (2634, "kick").
//!
//! ```text
//!   written ─► off the PBDMA ─► engines reach a switch point ─► saved ─► done: 2634 reads the id
//!                 │ PBDMA stopped by an error: waits for the acknowledgement
//!                 └ engine transfers: waits for its end; engine faulted, stopped or told to keep it: waits for that
//! ```
//!
//! Until it is done bit 20 of 2634 is set and the channel is not scheduled. A preempt that takes longer than
//! CHSW_TIMEOUT raises the scheduler interrupt once and goes on waiting. A second write replaces the first.

use crate::{model::FermiModel, pbdma::Activity, pfifo::ChannelId};
use fermi_spec::regs::pfifo::{PREEMPT_PENDING, scheduler_error};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Done,
    /// Something still holds the channel.
    Waiting,
    /// Saved; done at that time.
    Saving { done_at: u64 },
    /// Switched on by the embedder: never done.
    Refused,
}

/// The preempt register and what it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Preempt {
    /// As written, without bit 20.
    value: u32,
    channel: Option<ChannelId>,
    phase: Phase,
    /// When the switch time-out reports.
    timeout_at: Option<u64>,
    /// Bytes that the channel has copied while it was waited for.
    pub(crate) waited_bytes: u64,
}

impl Preempt {
    /// Value of PREEMPT (002634).
    pub(crate) fn register(&self) -> u32 {
        self.value
            | if self.phase == Phase::Done {
                0
            } else {
                PREEMPT_PENDING
            }
    }

    /// Whether the channel is being preempted.
    pub(crate) fn concerns(&self, id: ChannelId) -> bool {
        self.phase != Phase::Done && self.channel == Some(id)
    }

    /// When it will be done, if that only takes time.
    pub(crate) fn done_at(&self) -> Option<u64> {
        match self.phase {
            Phase::Saving { done_at } => Some(done_at),
            _ => None,
        }
    }

    /// When the switch time-out reports, if nothing happens before.
    pub(crate) fn timeout_at(&self) -> Option<u64> {
        self.timeout_at
    }

    /// Whether it waits for something other than time.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Refused)
    }
}

impl FermiModel {
    /// Starts a preempt, as a write of PREEMPT does.
    pub(crate) fn start_preempt(&mut self, value: u32) {
        let old = self.pfifo.preempt.channel;
        let limit = self.pfifo.switch_timeout;
        let enabled = limit & 1 << 31 != 0;
        let ns = u64::from(limit & 0x7fff_ffff) * 1_000;
        let channel = ChannelId::new(value & !PREEMPT_PENDING);
        self.pfifo.preempt = Preempt {
            value: value & !PREEMPT_PENDING,
            channel,
            phase: Phase::Waiting,
            timeout_at: enabled.then(|| self.clock.now().saturating_add(ns)),
            waited_bytes: 0,
        };
        if crate::faults::take(&mut self.faults.refused_preempts) {
            self.pfifo.preempt.phase = Phase::Refused;
        }
        for id in [old, channel].into_iter().flatten() {
            self.pfifo.refresh(id);
        }
        if let Some(id) = channel {
            self.hurry_copies(id);
        }
        self.advance_preempt();
    }

    /// Goes on with a preempt as far as possible. Called whenever something lets go of a channel.
    pub(crate) fn advance_preempt(&mut self) {
        if self.pfifo.preempt.phase != Phase::Waiting {
            return;
        }
        let now = self.clock.now();
        let mut duration = self.faults.preempt_delay_ns;
        if let Some(id) = self.pfifo.preempt.channel {
            if let Some(pbdma) = self.pfifo.channel(id).loaded {
                if matches!(self.pbdmas[pbdma].state, Activity::Stopped) {
                    return;
                }
                self.unload(pbdma);
                duration = duration.saturating_add(self.time_of(Some(id), self.timing.channel_switch_ns));
            }
            let held: Vec<usize> = (0..self.units.len())
                .filter(|&unit| self.units[unit].is_held_by(id))
                .collect();
            if held
                .iter()
                .any(|&unit| self.units[unit].enabled && !self.may_switch(unit))
            {
                return;
            }
            for unit in held {
                self.release_unit(unit);
            }
        }
        self.pfifo.preempt.phase = Phase::Saving {
            done_at: now.saturating_add(duration),
        };
    }

    /// The preempt's time has come.
    pub(crate) fn finish_preempt(&mut self) {
        let channel = self.pfifo.preempt.channel;
        self.pfifo.preempt.phase = Phase::Done;
        self.pfifo.preempt.timeout_at = None;
        self.mem.counters.preempts += 1;
        if let Some(id) = channel {
            self.pfifo.refresh(id);
        }
    }

    /// CHSW_TIMEOUT has passed: reported once.
    pub(crate) fn time_preempt_out(&mut self) {
        self.pfifo.preempt.timeout_at = None;
        self.pfifo.raise_scheduler_error(scheduler_error::SWITCH_TIMEOUT);
    }
}
