//! A channel whose work is done at once: in the host's time, and in none of the GPU's.
//!
//! The GPU's clock stands still while the host computes what a grid does, so 350 µs of a copy beside grids are some ten
//! milliseconds of the host's. Who shares the card moves a guest's memory while the guest is stopped, and pays for that time with
//! pauses that no real card makes. So the embedder may name one channel that
//!
//! * is taken before the others, and takes their PBDMA and their copy engine at the next piece of a copy, as if a slice had ended;
//! * takes no GPU time itself. What it moves still takes its time on the links, where others' traffic waits for it.
//!
//! A grid gives way to nobody, and a segment that forbids switches does not either. What others compute stays the same.
//!
//! Where such a channel is named, a copy that a preempt (2634) waits for ends at once, too, for the same reason: 512 KiB over PCIe are 90 µs
//! of the GPU's time, and beside grids 20 ms of the host's, for which the guest whose memory is to move stands still. What is beyond a few MiB
//! of it takes its time: a guest may have a copy of any length under way, and nothing else of the card goes on before it.

use crate::{model::FermiModel, pfifo::ChannelId};

/// Bytes of copies that end at once because a preempt waits for them.
const HURRIED_MAX: u64 = 4 << 20;

impl FermiModel {
    /// Does the work of `channel` at once from now on; of no channel if there is none of that number.
    pub fn do_at_once(&mut self, channel: u32) {
        self.pfifo.at_once = ChannelId::new(channel);
    }

    /// Whether the channel's work is done at once.
    pub(crate) fn is_at_once(&self, id: Option<ChannelId>) -> bool {
        id.is_some() && id == self.pfifo.at_once
    }

    /// GPU time of what takes `ns` when another channel does it.
    pub(crate) fn time_of(&self, id: Option<ChannelId>, ns: u64) -> u64 {
        match self.is_at_once(id) || id.is_some_and(|id| self.is_hurried(id)) {
            true => 0,
            false => ns,
        }
    }

    /// Whether a preempt waits for the channel, and what it has under way ends at once for that.
    fn is_hurried(&self, id: ChannelId) -> bool {
        // An engine that is told to be slow stays so.
        self.pfifo.at_once.is_some()
            && self.faults.copy_slowdown <= 1
            && self.pfifo.preempt.concerns(id)
            && self.pfifo.preempt.waited_bytes < HURRIED_MAX
    }

    /// A preempt of the channel begins: copies of it that are under way go on now.
    pub(crate) fn hurry_copies(&mut self, id: ChannelId) {
        if !self.is_hurried(id) {
            return;
        }
        let now = self.clock.now();
        for unit in &mut self.units {
            if unit.is_held_by(id) && unit.transfer.is_some() {
                unit.at = unit.at.min(now);
            }
        }
    }

    /// When the slice of the channel on the PBDMA is over: now, if the one whose work is done at once waits for its place.
    pub(crate) fn slice_end(&self, pbdma: usize) -> u64 {
        let unit = &self.pbdmas[pbdma];
        match self.pfifo.first_waits(pbdma) && !unit.is_no_switch() {
            true => self.clock.now(),
            false => unit.slice.end,
        }
    }
}
