//! Engines among the channels that several PBDMAs drive; the rules are in `schedule.rs`.

use crate::{engine::unit_of, model::FermiModel, pbdma::Activity, pfifo::ChannelId};
use fermi_spec::engine::{Engine, PBDMAS};

impl FermiModel {
    /// Whether an engine performs a transfer of the channel.
    pub(crate) fn works_for(&self, id: ChannelId) -> bool {
        self.units
            .iter()
            .any(|unit| unit.is_held_by(id) && unit.is_working())
    }

    /// Whether an engine may change contexts now.
    pub(crate) fn may_switch(&self, unit: usize) -> bool {
        self.units[unit].is_ready() && !self.keeps_context(unit)
    }

    /// Whether a driver has told the engine to keep its context.
    fn keeps_context(&self, unit: usize) -> bool {
        self.units[unit].engine == Engine::Graph && self.graph.fecs.holds_context
    }

    /// When the channel on `pbdma` may send a method to `engine`; `None` when something else has to happen first.
    pub(crate) fn engine_free_at(&self, pbdma: usize, engine: Engine) -> Option<u64> {
        let index = unit_of(engine)?;
        let unit = &self.units[index];
        let id = self.pbdmas[pbdma].channel()?;
        let closed = engine == Engine::Graph && !self.graph.takes_methods();
        let now = self.clock.now();
        let own = unit.is_held_by(id);
        // A copy of another channel gives way at the end of its turn.
        let comes_first = self.is_at_once(Some(id));
        let ready_at = match unit.gives_way_at() {
            Some(_) if !own && comes_first => now,
            Some(at) if !own => at,
            _ if unit.is_ready() => now,
            _ => return None,
        };
        if closed {
            return None;
        }
        if own && now < self.pbdmas[pbdma].slice.end {
            return Some(now);
        }
        let is_blocked = self.pfifo.block & 1 << engine.number() != 0;
        if !own && (is_blocked || self.keeps_context(index)) {
            return None;
        }
        if comes_first {
            return Some(now);
        }
        let holder = unit
            .holder
            .map(|holder| holder.channel)
            .filter(|holder| *holder != id);
        if let Some(end) = holder.and_then(|holder| self.kept_until(holder, engine)) {
            return Some(end.max(ready_at));
        }
        (!self.is_preceded(pbdma, engine)).then_some(ready_at.max(now))
    }

    /// Until when `holder` keeps `engine` from others.
    fn kept_until(&self, holder: ChannelId, engine: Engine) -> Option<u64> {
        let unit = &self.pbdmas[self.pfifo.channel(holder).loaded?];
        let uses = unit.target() == Some(engine)
            && matches!(unit.state, Activity::Running { .. } | Activity::Finishing);
        (uses && unit.slice.end > self.clock.now()).then_some(unit.slice.end)
    }

    /// Since when `pbdma` has waited for `engine`.
    fn waits_since(&self, pbdma: usize, engine: Engine) -> Option<u64> {
        match self.pbdmas[pbdma].state {
            Activity::Stalled {
                engine: awaited,
                since,
            } if awaited == engine => Some(since),
            _ => None,
        }
    }

    /// Whether another PBDMA has waited longer for `engine`.
    fn is_preceded(&self, pbdma: usize, engine: Engine) -> bool {
        let since = self.waits_since(pbdma, engine).unwrap_or(self.clock.now());
        (0..PBDMAS)
            .filter_map(|other| Some((self.waits_since(other, engine)?, other)))
            .any(|place| place < (since, pbdma))
    }

    /// Whether a PBDMA other than `pbdma` waits for `engine`.
    pub(crate) fn is_awaited(&self, engine: Engine, pbdma: usize) -> bool {
        (0..PBDMAS).any(|other| other != pbdma && self.waits_since(other, engine).is_some())
    }

    /// A wait for an engine, over now, has used the slice up: the channel gets another, once in a load.
    pub(crate) fn make_up_for_wait(&mut self, pbdma: usize) {
        let unit = &mut self.pbdmas[pbdma];
        let waited = matches!(unit.state, Activity::Stalled { .. });
        if waited && unit.slice.end <= self.clock.now() && !unit.made_up {
            unit.made_up = true;
            self.renew_slice(pbdma);
        }
    }
}
