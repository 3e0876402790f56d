//! How long a channel keeps what others wait for: its slice, in GPU time, and in work.
//!
//! A copy engine of the card moves 160 MB in a slice of 2 ms; the software card takes some 20 ms of the host's time for them, and
//! longer for elements that change on the way. Another channel that needs the engine for a moment would wait for all of that. So a
//! slice has as much time for its work as it has GPU time, and is over when either is used up. Work has nominal times, so that
//! a run is the same on any host.
//!
//! A segment that forbids switches is judged by GPU time alone: what it may do does not depend on who runs it.

use crate::{engine::Unit, model::FermiModel, pbdma::Pbdma};

/// Nominal time of a unit of work: 4 KiB copied, or 16 warp instructions.
const UNIT_NS: u64 = 500;
/// Nominal time of an event of a PBDMA: an entry, a header or a method.
const METHOD_NS: u64 = 100;

/// What is left of a channel's slice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    /// GPU time at which it is over.
    pub(crate) end: u64,
    /// Nominal time that its work may still take.
    work_ns: u64,
}

impl Slice {
    /// `ns` from `start` on.
    pub(crate) fn new(start: u64, ns: u64) -> Self {
        Self {
            end: start.saturating_add(ns),
            work_ns: ns,
        }
    }

    /// Takes the time of some work; without any left the slice ends at `at`, unless it does so before.
    fn spend(&mut self, ns: u64, at: u64) {
        self.work_ns = self.work_ns.saturating_sub(ns);
        if self.work_ns == 0 {
            self.end = self.end.min(at);
        }
    }
}

impl FermiModel {
    /// The engine did `units` of work for the channel that has it, whether a PBDMA still has that channel too or not.
    pub(crate) fn charge_unit(&mut self, unit: usize, units: u32) {
        let Unit { holder, turn, at, .. } = &mut self.units[unit];
        let ns = u64::from(units) * UNIT_NS;
        turn.spend(ns, *at);
        if let Some(loaded) = holder.and_then(|holder| self.pfifo.channel(holder.channel).loaded) {
            charge(&mut self.pbdmas[loaded], ns, *at);
        }
    }

    /// The PBDMA took a word of its channel.
    pub(crate) fn charge_pbdma(&mut self, pbdma: usize) {
        charge(&mut self.pbdmas[pbdma], METHOD_NS, self.clock.now());
    }
}

fn charge(pbdma: &mut Pbdma, ns: u64, at: u64) {
    if !pbdma.is_no_switch() {
        pbdma.slice.spend(ns, at);
    }
}
