//! Copies that give way: between two pieces of a copy an engine may go to another channel, when the slice of the copy's own
//! channel is over.
//!
//! ```text
//!   copying ──slice over, another channel wants the engine──► paused ──loaded, engine free──► copying
//!                                                               └ entry of the channel changed: dropped
//! ```
//!
//! assumption: microcode of a copy engine can leave a copy between two lines and keep in its context where it was. The model
//! keeps the position with the channel. A preempt (2634) still waits for the end of a copy, as nouveau's microcode makes it.
//! A grid gives way at its end only.

use crate::{engine::unit_of, host::Outcome, model::FermiModel, pfifo::ChannelId, slices::Slice};

impl FermiModel {
    /// A copy begins or goes on: it gives way to nobody before its channel's slice is over.
    pub(crate) fn begin_turn(&mut self, unit: usize) {
        let loaded = self.units[unit]
            .holder
            .and_then(|holder| self.pfifo.channel(holder.channel).loaded);
        let mut turn = loaded.map_or(Slice::default(), |pbdma| self.pbdmas[pbdma].slice);
        // Behind the next piece: without it a copy might wait for ever.
        turn.end = turn.end.max(self.units[unit].at.saturating_add(1));
        self.units[unit].turn = turn;
    }

    /// The engine goes to another channel: what it copies waits with the channel, which is due again. One that waits for a
    /// semaphore tries that again when it is loaded, as the copy itself may be what releases it.
    pub(crate) fn pause_transfer(&mut self, unit: usize) {
        let Some((transfer, holder)) = self.units[unit].transfer.take().zip(self.units[unit].holder) else {
            return;
        };
        let engine = self.units[unit].engine;
        let channel = self.pfifo.channel_mut(holder.channel);
        channel.paused = Some((engine, transfer));
        channel.acquire = None;
        self.pfifo.refresh(holder.channel);
        self.mem.counters.paused_copies += 1;
    }

    /// Whether the channel on the PBDMA has a copy to go on with, and nothing else to wait for.
    pub(crate) fn has_paused(&self, pbdma: usize) -> bool {
        let channel = self.pbdmas[pbdma].channel();
        channel.is_some_and(|id| self.pfifo.channel(id).paused.is_some())
    }

    /// Goes on with the copy of the channel on the PBDMA, once it has the engine; `None` if there is none.
    pub(crate) fn resume_transfer(&mut self, pbdma: usize, id: ChannelId) -> Option<Outcome> {
        let (engine, transfer) = self.pfifo.channel(id).paused?;
        let unit = unit_of(engine)?;
        if !self.pfifo.engine_may_use(engine, pbdma) {
            return Some(Outcome::WrongPbdma);
        }
        let now = self.clock.now();
        if self.engine_free_at(pbdma, engine).is_none_or(|at| at > now) {
            return Some(Outcome::Stalled(engine));
        }
        let instance = self.pbdmas[pbdma].instance();
        self.pfifo.channel_mut(id).paused = None;
        let Some(ns) = self.switch_unit(unit, id, instance) else {
            return Some(Outcome::Halted);
        };
        if self.units[unit].is_working() {
            // FECS writes the registers that the context names first.
            self.pfifo.channel_mut(id).paused = Some((engine, transfer));
            return Some(Outcome::Stalled(engine));
        }
        // A whole slice, whatever the wait has used up. Before the next wait the channel gives way to others on its PBDMA.
        self.renew_slice(pbdma);
        self.units[unit].transfer = Some(transfer);
        self.units[unit].at = now.saturating_add(ns);
        self.begin_turn(unit);
        Some(Outcome::Done { ns })
    }
}
