//! Runs the card: chooses the next event and performs it.
//!
//! Events happen in the order of their times, ties in the order of the list in [`FermiModel::next_event`]. An event
//! that makes progress by itself moves the clock to its time at once. An event that only waits (time-outs, acquires
//! that failed since the card last stored anything) never moves it: alone, it happens when the host's time has come
//! that far, or the next step gives it another try.
//!
//! Every event moves the clock or changes the card, so no work is spent for ever on one that does neither. Builds with debug
//! assertions check that (`FermiModel::run`).
//!
//! Which channel gets an engine, and why none waits for ever (`sharing.rs`):
//! 1. A channel uses one engine, that of its last method (TARGET). It changes engines only when its transfers are done.
//! 2. It keeps that engine from others only while its PBDMA runs or waits for the channel's own transfers, and
//!    until its slice is over (`slices.rs`: by GPU time or by work). So a channel that keeps an engine waits for no other, and there is no cycle of waits.
//!    A copy gives way between two of its pieces then (`paused.rs`), a grid at its end.
//! 3. Of the PBDMAs that wait for an engine the first gets it, before a channel whose slice is over goes on with it.
//! 4. A channel that waits for an engine in service is not taken off before it has used it: whenever a channel is
//!    loaded, some of its words are executed. The wait is at most a slice and a piece of a copy, or a grid, of each of the
//!    other PBDMAs.
//!    A channel that waits for its own transfer gives way at the end of its slice, as does one whose engine is out of
//!    service (off, faulted, stopped, without microcode): such a channel is not loaded again before the engine is back. One
//!    that only used that engine last is: what it has for PFIFO itself is done.
//! 5. A wait that outlasts the slice is made up for by another slice, once in a load, so that the others' turn comes.
//!    The exception is a channel whose work is done at once (`at_once.rs`): it comes before all others.
//! 6. Each PBDMA takes the channels in turn, and a new runlist changes nothing about whose turn it is.

use crate::{
    counters::Counters,
    engine::Unit,
    model::{FermiModel, Stepped},
    pbdma::{Activity, WORDS},
    pfifo::{ChannelId, Pfifo},
};
use fermi_spec::engine::{Engine, PBDMAS};

/// Something that happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    RunlistTaken,
    TlbFlushed,
    PreemptDone,
    /// A piece of a copy or a grid, or its end; a register list.
    Unit(usize),
    /// A PBDMA's next entry, header or method.
    Pbdma(usize),
    /// A channel waits on a PBDMA beyond its slice while another could run.
    SliceOver(usize),
    /// A PBDMA has nothing to do and a channel is ready.
    Load(usize),
    /// A failed acquire is tried again.
    Retry(usize),
    /// The semaphores of blocked channels are looked at.
    Poll,
    PreemptTimedOut,
}

/// The earlier of two; the first when they are at the same time.
fn earlier(best: Option<(u64, Event)>, at: u64, event: Event) -> Option<(u64, Event)> {
    match best {
        Some((first, _)) if first <= at => best,
        _ => Some((at, event)),
    }
}

impl Pfifo {
    /// Whether an engine takes no method until a driver does something.
    pub(crate) fn is_dead(&self, engine: Engine) -> bool {
        self.dead_engines & 1 << engine.number() != 0
    }

    /// Whether PBDMA `pbdma` may take the channel.
    pub(crate) fn may_use(&self, id: ChannelId, pbdma: usize) -> bool {
        let channel = self.channel(id);
        if channel
            .paused
            .or(channel.stalled_on)
            .is_some_and(|engine| self.is_dead(engine))
        {
            return false;
        }
        match channel.target {
            None => self.block == 0,
            Some(engine) => {
                let is_blocked = self.block & 1 << engine.number() != 0;
                !is_blocked && self.engine_may_use(engine, pbdma)
            }
        }
    }

    /// Whether PBDMA `pbdma` is allowed to drive `engine` (2208 + 4e).
    pub(crate) fn engine_may_use(&self, engine: Engine, pbdma: usize) -> bool {
        self.engine_pbdma_mask[usize::from(engine.number())] & 1 << pbdma == 0
    }
}

impl FermiModel {
    /// The next event that happens by itself.
    fn next_progress(&self) -> Option<(u64, Event)> {
        let mut next = None;
        if let Some(at) = self.pfifo.commit.as_ref().and_then(|commit| commit.done_at) {
            next = earlier(next, at, Event::RunlistTaken);
        }
        if let Some(at) = self.mmu.flush_done_at() {
            next = earlier(next, at, Event::TlbFlushed);
        }
        if let Some(at) = self.pfifo.preempt.done_at() {
            next = earlier(next, at, Event::PreemptDone);
        }
        for (index, unit) in self.units.iter().enumerate() {
            if unit.is_working() && !unit.needs_host() {
                next = earlier(next, unit.at, Event::Unit(index));
            }
        }
        for (index, pbdma) in self.pbdmas.iter().enumerate() {
            match pbdma.state {
                Activity::Idle | Activity::Finishing | Activity::Acquiring { .. }
                    if self.has_paused(index) =>
                {
                    next = earlier(next, self.clock.now(), Event::Pbdma(index));
                }
                Activity::Running { at } => next = earlier(next, at, Event::Pbdma(index)),
                Activity::Finishing => {
                    if !pbdma.channel().is_some_and(|id| self.works_for(id)) {
                        next = earlier(next, self.clock.now(), Event::Pbdma(index));
                    } else if self.pfifo.has_candidate(index) {
                        next = earlier(next, self.slice_end(index), Event::SliceOver(index));
                    }
                }
                Activity::Stalled { engine, .. } => {
                    if let Some(at) = self.engine_free_at(index, engine) {
                        next = earlier(next, at, Event::Pbdma(index));
                    } else if (self.pfifo.is_dead(engine) || self.pfifo.first_waits(index))
                        && self.pfifo.has_candidate(index)
                    {
                        next = earlier(next, self.slice_end(index), Event::SliceOver(index));
                    }
                }
                Activity::Acquiring { at, seen, .. } => {
                    if seen != self.mem.stores {
                        next = earlier(next, at, Event::Retry(index));
                    }
                    if self.pfifo.has_candidate(index) {
                        next = earlier(next, self.slice_end(index), Event::SliceOver(index));
                    }
                }
                Activity::Idle if self.pfifo.has_candidate(index) => {
                    next = earlier(next, self.clock.now(), Event::Load(index));
                }
                Activity::Idle | Activity::Stopped => {}
            }
        }
        if self.pfifo.blocked != 0 && self.pfifo.poll_seen != self.mem.stores {
            next = earlier(next, self.pfifo.poll_at, Event::Poll);
        }
        next
    }

    /// The next event of those that only wait.
    fn next_waiting(&self) -> Option<(u64, Event)> {
        let mut next = None;
        for (index, pbdma) in self.pbdmas.iter().enumerate() {
            if let Activity::Acquiring { at, acquire, .. } = pbdma.state {
                let at = acquire.deadline.map_or(at, |deadline| deadline.min(at));
                next = earlier(next, at, Event::Retry(index));
            }
        }
        if self.pfifo.blocked != 0 {
            next = earlier(next, self.pfifo.poll_at, Event::Poll);
        }
        for (index, unit) in self.units.iter().enumerate() {
            if let Some(grid) = unit.grid.as_ref().filter(|_| unit.needs_host()) {
                let watchdog_at = grid.started.saturating_add(self.timing.shaders.watchdog_ns);
                next = earlier(next, watchdog_at, Event::Unit(index));
            }
        }
        if let Some(at) = self.pfifo.preempt.timeout_at() {
            next = earlier(next, at, Event::PreemptTimedOut);
        }
        next
    }

    /// GPU time of what engines do next, `None` while they rest.
    pub fn next_at(&self) -> Option<u64> {
        self.next_event().map(|(at, _)| at)
    }

    fn next_event(&self) -> Option<(u64, Event)> {
        let waiting = self.next_waiting();
        match self.next_progress() {
            Some((at, event)) => match waiting {
                Some((before, _)) if before < at => waiting,
                _ => Some((at, event)),
            },
            None => waiting.filter(|(at, _)| *at <= self.clock.now()),
        }
    }

    /// Performs an event; the units of work it took, at least one.
    fn perform(&mut self, event: Event) -> u32 {
        match event {
            Event::RunlistTaken => self.take_runlist_over(),
            Event::TlbFlushed => self.finish_flush(),
            Event::PreemptDone => self.finish_preempt(),
            Event::PreemptTimedOut => self.time_preempt_out(),
            Event::Unit(unit) => {
                let engine = &self.units[unit];
                let work = match (engine.list.is_some(), engine.grid.is_some()) {
                    (true, _) => self.run_list(),
                    (false, true) => self.run_grid(unit),
                    (false, false) => self.run_transfer(unit),
                };
                self.charge_unit(unit, work);
                return work;
            }
            Event::Pbdma(pbdma) => {
                self.charge_pbdma(pbdma);
                self.run_pbdma(pbdma);
            }
            // Not charged: how often a failed acquire is tried again depends on the host's steps.
            Event::Retry(pbdma) => self.run_pbdma(pbdma),
            Event::SliceOver(pbdma) => self.give_way(pbdma),
            Event::Load(pbdma) => {
                self.unload(pbdma);
                if let Some(id) = self.pfifo.take_candidate(pbdma) {
                    self.load(pbdma, id);
                }
            }
            Event::Poll => self.poll_blocked(),
        }
        1
    }

    /// What an event changes that is due again at the same time: something is counted or stored, or the PBDMA
    /// goes on in its segment.
    fn progress_of(&self, event: Event) -> (Counters, u64, Option<[u32; WORDS]>) {
        let words = match event {
            Event::Pbdma(pbdma) | Event::Retry(pbdma) => Some(self.pbdmas[pbdma].regs),
            _ => None,
        };
        (self.mem.counters, self.mem.stores, words)
    }

    /// Runs the engines, see [`FermiModel::step`].
    pub(crate) fn run(&mut self, now_ns: u64, work: u32) -> Stepped {
        let elapsed = self.host_ns.map_or(0, |before| now_ns.saturating_sub(before));
        self.host_ns = Some(self.host_ns.map_or(now_ns, |before| before.max(now_ns)));
        if self.stepped != Stepped::Busy {
            self.clock.advance_by(elapsed);
            self.retry_acquires();
        }
        let mut spent = 0u32;
        let mut next = self.next_event();
        while let Some((at, event)) = next.filter(|_| spent < work) {
            self.clock.advance_to(at);
            let before = self.progress_of(event);
            spent = spent.saturating_add(self.perform(event));
            next = self.next_event();
            debug_assert!(
                next != Some((at, event)) || self.progress_of(event) != before,
                "{event:?} at {at} ns changed neither the clock nor the card"
            );
        }
        self.stepped = self.rest_or_busy();
        self.update_line();
        self.stepped
    }

    fn rest_or_busy(&self) -> Stepped {
        if self.next_progress().is_some() {
            return Stepped::Busy;
        }
        let occupied = (0..PBDMAS).any(|pbdma| !self.pbdmas[pbdma].is_idle());
        if occupied
            || self.pfifo.blocked != 0
            || self.pfifo.has_ready()
            || self.pfifo.preempt.is_waiting()
            || self.units.iter().any(Unit::needs_host)
            || self.clock.is_alarm_pending()
        {
            Stepped::Waiting
        } else {
            Stepped::Idle
        }
    }
}
