//! Replayable faults, a capability: warps wait for pages that are missing, the host maps them, and they go on.
//!
//! ```text
//!   warp ─► looks ahead ─ all pages there ─► executes the instruction
//!               ▲   └ one is missing ─► waits (AtPages), all that are missing go into the buffer
//!               └──── replay ◄─ replay_faults ◄─ maps pages ◄─ take_faults ─┘   (the host; other warps go on)
//! ```
//!
//! Rules:
//! 1. An instruction of a warp that would reach a page without a valid entry, or store to one that is read-only, does not begin. All pages of
//!    all its lanes are translated before any part of it is executed: nothing is loaded, stored or counted by the lanes
//!    whose pages are there. When it is executed it is executed whole and once, atomic operations too. Code that is not mapped waits in the same way.
//! 2. What mapping cannot help stays an error that ends the grid, as without the capability: addresses beyond the limit, pages of privilege,
//!    kinds that do not exist, tables that are too short. So does an entry that disappears between the look and the access.
//! 3. Faults of copies, M2MF, fills, inline data, PBDMAs, semaphores, contexts, and of descriptors that a launch reads end as they always do.
//! 4. A buffer holds a fault for each missing page of each waiting instruction. If it is full the warp waits without an entry, and reports after the
//!    next replay, as its instruction is looked at anew. So nothing is lost, and nothing grows.
//! 5. A replay flushes the TLBs and lets every waiting warp go on. Between the first fault of a group and the replay lies the handling
//!    time at least, and after it what the host says that it moved. A grid whose warps all wait takes no time beside that.
//! 6. A waiting grid keeps PGRAPH as a running one does: a preempt waits for it, the watchdog ends it, a reset of the unit or the card drops it
//!    and its faults.

use std::collections::VecDeque;

use fermi_spec::{
    addr::{Aperture, GpuVa, PhysAddr},
    engine::Engine,
    fault::{Reason, client},
};

use crate::{
    capabilities::ReplayableFaults, compute::Reach, engine::Unit, graph::UNIT, mmu::Refusal,
    model::FermiModel,
};

/// A page that a warp waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplayableFault {
    /// First byte in the page that was asked for.
    pub va: GpuVa,
    /// A lane stores there, perhaps after a load.
    pub is_store: bool,
    /// Client of the MMU ([`fermi_spec::fault::client`]): the L1 or the texture cache.
    pub client: u8,
    /// Engine whose grid it is.
    pub engine: Engine,
    /// Memory and address of the instance block of the channel.
    pub instance: (Aperture, PhysAddr),
    /// GPU time at which the instruction was looked at, in nanoseconds.
    pub at_ns: u64,
}

/// A fault as the grid knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    va: u64,
    is_store: bool,
    client: u8,
    at_ns: u64,
}

/// Faults of a grid, and the replay that it waits for.
#[derive(Debug, Default)]
pub(crate) struct FaultBuffer {
    /// `None`: a card without the capability.
    parameters: Option<ReplayableFaults>,
    entries: VecDeque<Waiting>,
    /// When the first fault since the last replay was.
    first_at: Option<u64>,
    /// When the replay that was asked for takes effect.
    replay_at: Option<u64>,
    /// No warp of the grid can go on.
    pub(crate) is_at_rest: bool,
    /// Faults that came, and those that found no room, since they were last counted.
    pub(crate) came: u64,
    pub(crate) stalled: u64,
}

/// Whether the host can do something about it.
pub(crate) fn is_replayable(refusal: Refusal) -> bool {
    matches!(
        refusal.reason,
        Reason::PdeNotPresent | Reason::PageNotPresent | Reason::ReadOnly
    )
}

impl FaultBuffer {
    /// An empty one; of a card without the capability it stays so.
    pub(crate) fn new(parameters: Option<ReplayableFaults>) -> Self {
        Self {
            parameters,
            ..Self::default()
        }
    }

    /// Whether faults can be replayed.
    pub(crate) fn is_on(&self) -> bool {
        self.parameters.is_some()
    }

    /// A warp waits for a page from `now` on.
    pub(crate) fn add(&mut self, va: u64, is_store: bool, client: u8, now: u64) {
        let room = self.parameters.map_or(0, |of| of.buffer_entries as usize);
        self.first_at.get_or_insert(now);
        if self.entries.len() >= room {
            self.stalled += 1;
            return;
        }
        self.came += 1;
        self.entries.push_back(Waiting {
            va,
            is_store,
            client,
            at_ns: now,
        });
    }

    /// Whether the grid does nothing before the host asks for a replay.
    pub(crate) fn needs_host(&self) -> bool {
        self.is_at_rest && self.replay_at.is_none()
    }

    /// When the replay that was asked for takes effect.
    pub(crate) fn replay_at(&self) -> Option<u64> {
        self.replay_at
    }

    /// The host asks for a replay at `now` and has moved bytes for so long. Without a fault there is nothing to replay.
    fn ask(&mut self, now: u64, moved_ns: u64) {
        let (Some(first), Some(parameters)) = (self.first_at, self.parameters) else {
            return;
        };
        let handled = first.saturating_add(parameters.handling_ns).max(now);
        let at = handled.max(self.replay_at.unwrap_or(0));
        self.replay_at = Some(at.saturating_add(moved_ns));
    }

    /// Takes the replay, if its time has come.
    pub(crate) fn take_replay(&mut self, now: u64) -> bool {
        let is_due = self.replay_at.take_if(|at| *at <= now).is_some();
        if is_due {
            self.first_at = None;
            self.is_at_rest = false;
        }
        is_due
    }
}

impl Unit {
    /// Whether the grid on the engine does nothing before the host asks for a replay.
    pub(crate) fn needs_host(&self) -> bool {
        self.grid.as_ref().is_some_and(|grid| grid.faults.needs_host())
    }
}

/// The client of an instruction's accesses.
pub(crate) fn client_of(reach: &Reach) -> u8 {
    match reach.is_texture {
        true => client::GPC_T1,
        false => client::GPC_L1,
    }
}

impl FermiModel {
    /// Takes the faults of the grid that runs out of the buffer, oldest first; none without the capability. There is one for each missing page of an
    /// instruction, so several warps name a page that they all wait for.
    ///
    /// Faults that came while the buffer was full are not among them: they come after the next replay.
    pub fn take_faults(&mut self) -> Vec<ReplayableFault> {
        let unit = &mut self.units[UNIT];
        let engine = unit.engine;
        let (Some(grid), Some(holder)) = (&mut unit.grid, unit.holder) else {
            return Vec::new();
        };
        let entries = grid.faults.entries.drain(..);
        let fault = |waiting: Waiting| ReplayableFault {
            va: GpuVa(waiting.va),
            is_store: waiting.is_store,
            client: waiting.client,
            engine,
            instance: (holder.instance.aperture, holder.instance.at),
            at_ns: waiting.at_ns,
        };
        entries.map(fault).collect()
    }

    /// Flushes the TLBs, and lets every warp that waits for pages execute its instruction anew: once the handling time since the first
    /// fault is over, and `moved_ns` nanoseconds later, which is what the host's own transfers took. Without a waiting warp it only flushes.
    pub fn replay_faults(&mut self, moved_ns: u64) {
        let flushed = self.mmu.flush_all(&mut self.mem);
        self.note_tlb_flushed(flushed);
        let now = self.clock.now();
        let unit = &mut self.units[UNIT];
        let Some(grid) = &mut unit.grid else { return };
        // What ran before all warps waited is over at `at`.
        let now = match grid.faults.is_at_rest {
            true => now.max(unit.at),
            false => now,
        };
        grid.faults.ask(now, moved_ns);
        if let Some(at) = grid.faults.replay_at.filter(|_| grid.faults.is_at_rest) {
            unit.at = at;
        }
    }
}
