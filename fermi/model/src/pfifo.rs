//! PFIFO: the channel table, the runlist and the choice of the next channel.
//!
//! ```text
//!                     ┌────────── doorbell ──────────┐
//!   idle ─────────────┘                              ▼
//!    ▲                                  ready ──load──► loaded ──slice over──► ready
//!    └────────── ring empty ◄───────────────────────────┤
//!                              blocked ◄──acquire fails─┤   (ready again once it would succeed)
//!                               halted ◄───MMU fault────┘   (until restarted or bound anew)
//! ```
//!
//! A channel is *eligible* when it is on the runlist, valid, runnable, not halted and not being preempted, and *ready*
//! when it is eligible, has work, is not blocked and is on no PBDMA. Doorbells are edges: a channel bound anew has no
//! work until GP_PUT is stored again.

use crate::{
    memory::Place,
    mmu::{AddressSpace, Refusal},
    mmu_fault::{Culprit, FaultRecords},
    model::FermiModel,
    pbdma::Activity,
    preempt::Preempt,
};
use fermi_spec::{
    addr::GpuVa,
    engine::{ENGINE_NONE, ENGINES, Engine, PBDMAS},
    instance::{CHANNELS, Timeslice},
    methods::SemaphoreOp,
    regs::pfifo::{self as bits, ChannelInstance, ChannelState, RunlistBase, RunlistCommit, intr},
};

/// Time slice of a channel that has none, and of engines' defaults after a reset: about 1 ms.
pub(crate) const DEFAULT_TIMESLICE: u32 = 0x1000_3080;
/// CHSW_TIMEOUT (2a18) after a reset: on, about 16.8 s.
const DEFAULT_SWITCH_TIMEOUT: u32 = 0x80ff_ffff;

/// A channel id, below [`CHANNELS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ChannelId(u8);

impl ChannelId {
    /// The id; `None` for a number that no channel has.
    pub(crate) fn new(number: u32) -> Option<Self> {
        (number < CHANNELS as u32).then_some(Self(number as u8))
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn number(self) -> u32 {
        u32::from(self.0)
    }

    fn mask(self) -> u128 {
        1 << self.0
    }
}

/// A semaphore acquire that failed and waits off the PBDMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acquire {
    pub(crate) space: AddressSpace,
    pub(crate) at: GpuVa,
    pub(crate) op: SemaphoreOp,
    pub(crate) payload: u32,
    /// GPU time at which it times out.
    pub(crate) deadline: Option<u64>,
}

/// An entry of the channel table, with what the scheduler knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channel {
    pub(crate) table: ChannelInstance,
    pub(crate) runnable: bool,
    /// Engine of the last method, the one that decides on the PBDMA.
    pub(crate) target: Option<Engine>,
    on_list: bool,
    /// There was a doorbell since the ring was last seen empty.
    pub(crate) has_work: bool,
    /// Stopped by an MMU fault.
    pub(crate) halted: bool,
    /// PBDMA that the channel is on.
    pub(crate) loaded: Option<usize>,
    pub(crate) acquire: Option<Acquire>,
    /// The engine that did not take its next method when it left its PBDMA. Only with such a method does a channel wait for an engine that is
    /// dead: what it has for PFIFO itself goes on.
    pub(crate) stalled_on: Option<Engine>,
    /// The engine with a copy that gave way to another channel's work; the channel's context there says where it is.
    pub(crate) paused: Option<Engine>,
}

impl Channel {
    /// Whether it needs a PBDMA: for what is in its ring, or to go on with a copy.
    fn wants_to_run(&self) -> bool {
        self.has_work && self.acquire.is_none() || self.paused.is_some()
    }

    /// Where the instance block is.
    pub(crate) fn instance(&self) -> Place {
        Self::at(self.table)
    }

    /// Where an entry says that the instance block is.
    fn at(table: ChannelInstance) -> Place {
        Place {
            aperture: table.aperture(),
            at: table.instance(),
        }
    }

    /// Its state with the engine of its last method.
    fn state(&self, engine: Option<Engine>) -> ChannelState {
        ChannelState::new()
            .with_runnable(self.runnable)
            .with_acquire_pending(self.acquire.is_some())
            .with_loaded(self.loaded.is_some())
            .with_engine(engine.map_or(ENGINE_NONE, Engine::number))
            .with_pending(self.has_work || self.paused.is_some())
    }
}

/// A runlist commit on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    base: RunlistBase,
    count: u16,
    /// `None` for one that never completes.
    pub(crate) done_at: Option<u64>,
}

/// Registers and scheduling state of PFIFO.
pub(crate) struct Pfifo {
    pub(crate) channels: Vec<Channel>,
    list: Vec<ChannelId>,
    /// The channel that comes before all others (`at_once.rs`).
    pub(crate) at_once: Option<ChannelId>,
    /// For each PBDMA the place on the list where its next turn starts.
    cursors: [usize; PBDMAS],
    ready: u128,
    /// Channels whose acquire failed and that are on no PBDMA.
    pub(crate) blocked: u128,
    /// When the blocked channels' semaphores are looked at next.
    pub(crate) poll_at: u64,
    /// How much the card had written when they were looked at last.
    pub(crate) poll_seen: u64,
    pub(crate) commit: Option<Commit>,
    current: (RunlistBase, u16),
    pub(crate) preempt: Preempt,
    /// Engines that take no method until a driver does something, one bit each.
    pub(crate) dead_engines: u32,
    pub(crate) faults: FaultRecords,
    pub(crate) enabled: bool,
    pub(crate) freeze: u32,
    pub(crate) block: u32,
    pub(crate) pbdmas: u32,
    pub(crate) userd_base: u32,
    pub(crate) runlist_base: u32,
    pub(crate) runlist_commit: u32,
    pub(crate) engine_pbdma_mask: [u32; ENGINES],
    pub(crate) timeslice: [u32; ENGINES],
    pub(crate) timeslice_pb: [u32; ENGINES],
    intr: u32,
    pub(crate) intr_enable: u32,
    pub(crate) intr_enable_nonstall: u32,
    pub(crate) table_error: u32,
    pub(crate) scheduler_error: u32,
    pub(crate) runlist_intr: u32,
    pub(crate) engine_intr: [u32; ENGINES],
    pub(crate) engine_intr_enable: u32,
    pub(crate) timeouts: [u32; 3],
    pub(crate) switch_timeout: u32,
    pub(crate) inject: [u32; ENGINES],
    bypass_status: u32,
}

impl Pfifo {
    pub(crate) fn new() -> Self {
        Self {
            channels: vec![Channel::default(); CHANNELS],
            list: Vec::new(),
            at_once: None,
            cursors: [0; PBDMAS],
            ready: 0,
            blocked: 0,
            poll_at: 0,
            poll_seen: 0,
            commit: None,
            current: (RunlistBase::default(), 0),
            preempt: Preempt::default(),
            dead_engines: 0,
            faults: FaultRecords::default(),
            enabled: false,
            freeze: 0,
            block: 0,
            pbdmas: 0,
            userd_base: 0,
            runlist_base: 0,
            runlist_commit: 0,
            engine_pbdma_mask: [0; ENGINES],
            timeslice: [DEFAULT_TIMESLICE; ENGINES],
            timeslice_pb: [0x1000_0010; ENGINES],
            intr: 0,
            intr_enable: 0,
            intr_enable_nonstall: 0,
            table_error: 0,
            scheduler_error: 0,
            runlist_intr: 0,
            engine_intr: [0; ENGINES],
            engine_intr_enable: 0,
            timeouts: [0x8001_ffff, 0x80ff_ffff, u32::MAX],
            switch_timeout: DEFAULT_SWITCH_TIMEOUT,
            inject: [0; ENGINES],
            bypass_status: 0,
        }
    }

    pub(crate) fn channel(&self, id: ChannelId) -> &Channel {
        &self.channels[id.index()]
    }

    pub(crate) fn channel_mut(&mut self, id: ChannelId) -> &mut Channel {
        &mut self.channels[id.index()]
    }

    /// Whether the scheduler may put or keep the channel on a PBDMA.
    pub(crate) fn is_eligible(&self, id: ChannelId) -> bool {
        let channel = self.channel(id);
        channel.on_list
            && channel.table.valid()
            && channel.runnable
            && !channel.halted
            && !self.preempt.concerns(id)
    }

    /// Recomputes whether the channel is ready, after anything about it changed.
    pub(crate) fn refresh(&mut self, id: ChannelId) {
        let channel = self.channel(id);
        let off = channel.loaded.is_none();
        let ready = off && channel.wants_to_run() && self.is_eligible(id);
        let blocked = off && channel.acquire.is_some() && self.is_eligible(id);
        self.ready = self.ready & !id.mask() | if ready { id.mask() } else { 0 };
        self.blocked = self.blocked & !id.mask() | if blocked { id.mask() } else { 0 };
    }

    /// Whether a channel is ready, even if no PBDMA may take it now.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready != 0
    }

    /// The next channel in turn that may run on PBDMA `pbdma`; with its place on the list.
    fn candidate_at(&self, pbdma: usize) -> Option<(usize, ChannelId)> {
        let schedules = self.enabled && self.freeze & 1 == 0 && self.pbdmas & 1 << pbdma != 0;
        if self.ready == 0 || !schedules {
            return None;
        }
        let count = self.list.len();
        let may_run = |id: &ChannelId| self.ready & id.mask() != 0 && self.may_use(*id, pbdma);
        if let Some(first) = self.at_once.filter(may_run) {
            // Whose turn it is among the others does not change.
            return Some((self.cursors[pbdma].wrapping_sub(1), first));
        }
        (0..count)
            .map(|step| (self.cursors[pbdma] + step) % count)
            .map(|place| (place, self.list[place]))
            .find(|(_, id)| may_run(id))
    }

    /// Whether the channel that comes before all others waits for PBDMA `pbdma`, which another one has.
    pub(crate) fn first_waits(&self, pbdma: usize) -> bool {
        self.at_once.is_some()
            && self
                .candidate_at(pbdma)
                .is_some_and(|(_, id)| Some(id) == self.at_once)
    }

    /// Whether a channel waits that PBDMA `pbdma` could take.
    pub(crate) fn has_candidate(&self, pbdma: usize) -> bool {
        self.candidate_at(pbdma).is_some()
    }

    /// Takes the next channel in turn for PBDMA `pbdma`.
    pub(crate) fn take_candidate(&mut self, pbdma: usize) -> Option<ChannelId> {
        let (place, id) = self.candidate_at(pbdma)?;
        self.cursors[pbdma] = place.wrapping_add(1);
        Some(id)
    }

    /// Takes a new list over; each PBDMA's turn goes on behind the channel that had the last one.
    fn replace_list(&mut self, list: Vec<ChannelId>) {
        for cursor in &mut self.cursors {
            let last = cursor.checked_sub(1).and_then(|place| self.list.get(place));
            let place = last.and_then(|last| list.iter().position(|id| id == last));
            *cursor = place.map_or(0, |place| place + 1);
        }
        self.list = list;
    }

    /// GPU time that the slice in a RAMFC word lasts.
    pub(crate) fn timeslice_ns(&self, word: u32, target: Option<Engine>) -> u64 {
        let own = Timeslice::from_bits(word);
        // assumption: a channel without a slice of its own gets its engine's default, so that it ends at all.
        let default = target.map_or(DEFAULT_TIMESLICE, |e| self.timeslice[usize::from(e.number())]);
        let slice = if own.enable() {
            own
        } else {
            Timeslice::from_bits(default)
        };
        (u64::from(slice.timeout()).max(1) << slice.scale()) * 1_000
    }

    /// PFIFO_INTR; `pbdmas` are the PBDMAs with an interrupt.
    pub(crate) fn interrupts(&self, pbdmas: u32) -> u32 {
        let level = |on: bool, bit: u32| if on { bit } else { 0 };
        self.intr
            | level(self.faults.units() != 0, intr::MMU_FAULT)
            | level(pbdmas != 0, intr::PBDMA)
            | level(self.runlist_intr != 0, intr::RUNLIST)
            | level(self.engine_sources() != 0, intr::ENGINE)
    }

    /// Acknowledges interrupts, as a write of PFIFO_INTR does.
    pub(crate) fn acknowledge(&mut self, mask: u32) {
        self.intr &= !mask;
    }

    /// ENGINE_INTR_SOURCE: engines with an enabled interrupt.
    pub(crate) fn engine_sources(&self) -> u32 {
        // 2628 enables the four bits of each of the eight groups.
        let enable = (self.engine_intr_enable & bits::ENGINE_INTR_STORED) * 0x1111_1111;
        (0..ENGINES)
            .filter(|&engine| self.engine_intr[engine] & enable != 0)
            .fold(0, |mask, engine| mask | 1 << engine)
    }

    /// Raises the notify (non-stall) interrupt of an engine.
    pub(crate) fn notify_engine(&mut self, engine: Engine) {
        self.engine_intr[usize::from(engine.number())] |= 1;
    }

    /// Value of RUNLIST_CURRENT (002278).
    pub(crate) fn runlist_current(&self) -> u32 {
        self.commit
            .map_or(self.current.0, |commit| commit.base)
            .into_bits()
    }

    /// Value of RUNLIST_STATUS (00227c).
    pub(crate) fn runlist_status(&self) -> u32 {
        match self.commit {
            Some(commit) => bits::RUNLIST_PENDING | u32::from(commit.count),
            None => u32::from(self.current.1),
        }
    }

    /// Value of BYPASS_STATUS, the bypass's interrupts.
    pub(crate) fn bypass_status(&self) -> u32 {
        self.bypass_status
    }

    /// Acknowledges bits of BYPASS_STATUS, as a write does.
    pub(crate) fn acknowledge_bypass(&mut self, mask: u32) {
        self.bypass_status &= !mask;
    }

    /// BYPASS_DATA was written. Nothing is known of how drivers would use the bypass; here it is never enabled.
    pub(crate) fn refuse_bypass(&mut self) {
        self.bypass_status |= bits::bypass::NOT_ENABLED;
        self.intr |= intr::BYPASS;
    }

    pub(crate) fn raise_scheduler_error(&mut self, code: u32) {
        self.intr |= intr::SCHEDULER;
        self.scheduler_error = code;
    }

    fn raise_table_error(&mut self, code: u32) {
        self.intr |= intr::CHANNEL_TABLE;
        self.table_error = code;
    }
}

impl FermiModel {
    /// Value of CHANNEL_STATE (003004 + 8·id). What a PBDMA has loaded knows better than the channel's entry.
    pub(crate) fn channel_state(&self, id: ChannelId) -> u32 {
        let channel = self.pfifo.channel(id);
        let loaded = channel.loaded.map(|pbdma| self.pbdmas[pbdma].target());
        channel.state(loaded.unwrap_or(channel.target)).into_bits()
    }

    /// Binds a channel, as a write of CHANNEL_INSTANCE does.
    pub(crate) fn bind_channel(&mut self, id: ChannelId, value: u32) {
        let table = ChannelInstance::from_bits(value);
        let old = self.pfifo.channel(id).table;
        let error = if let Some(code) = self.loss_error(id, table) {
            Some(code)
        } else if table.valid() && table.aperture() == fermi_spec::addr::Aperture::Peer {
            Some(bits::table_error::INVALID_TARGET)
        } else if table.valid() && table.poll() && self.pfifo.userd_base & bits::USERD_BASE_VALID == 0 {
            Some(bits::table_error::NO_USERD)
        } else {
            None
        };
        if let Some(code) = error {
            self.pfifo.raise_table_error(code);
            return;
        }
        if table == old {
            return;
        }
        if let Some(pbdma) = self.pfifo.channel(id).loaded {
            self.unload(pbdma);
        }
        self.forget_contexts(id, [self.pfifo.channel(id).instance(), Channel::at(table)]);
        if let Some(watcher) = &mut self.doorbell_watcher {
            watcher.bound(Some(id.number()));
        }
        let on_list = self.pfifo.channel(id).on_list;
        let paused = self.kept_pause(table.valid().then(|| Channel::at(table)));
        self.mem.counters.carried_copies += u64::from(paused.is_some());
        *self.pfifo.channel_mut(id) = Channel {
            table,
            on_list,
            paused,
            ..Channel::default()
        };
        self.pfifo.refresh(id);
    }

    /// Why `table` cannot replace the channel of an entry.
    ///
    /// Codes as envytools lists them; assumption: the entry then stays as it is.
    fn loss_error(&self, id: ChannelId, table: ChannelInstance) -> Option<u32> {
        let channel = self.pfifo.channel(id);
        if !channel.table.valid() || table == channel.table {
            None
        } else if self.is_channel_busy(id) {
            Some(bits::table_error::ACTIVE)
        } else if table.valid() {
            Some(bits::table_error::IN_USE)
        } else if channel.on_list && channel.runnable {
            Some(bits::table_error::RUNNABLE)
        } else if channel.on_list && channel.has_work {
            Some(bits::table_error::PENDING)
        } else {
            None
        }
    }

    /// Whether the hardware still uses the channel, so that its entry must stay.
    fn is_channel_busy(&self, id: ChannelId) -> bool {
        let on_pbdma = self
            .pfifo
            .channel(id)
            .loaded
            .is_some_and(|pbdma| !self.pbdmas[pbdma].is_idle());
        on_pbdma
            || self
                .units
                .iter()
                .any(|unit| unit.is_held_by(id) && unit.is_working())
    }

    /// Writes CHANNEL_STATE: runnable and engine; a start ends a halt.
    pub(crate) fn write_channel_state(&mut self, id: ChannelId, value: u32) {
        let state = ChannelState::from_bits(value);
        let channel = self.pfifo.channel_mut(id);
        channel.runnable = state.runnable();
        if state.runnable() {
            channel.halted = false;
            channel.acquire = None;
        }
        self.pfifo.refresh(id);
        self.unload_ineligible();
    }

    /// An MMU fault stops the channel: its PBDMA is free for others, it runs no more until started again.
    ///
    /// A PBDMA that an error of the channel has stopped shows the channel until the error is acknowledged: drivers
    /// read there which channel caused the error.
    pub(crate) fn halt_channel(&mut self, id: ChannelId) {
        self.pfifo.channel_mut(id).halted = true;
        if let Some(pbdma) = self.pfifo.channel(id).loaded
            && self.pbdmas[pbdma].state != Activity::Stopped
        {
            self.unload(pbdma);
        }
        self.pfifo.refresh(id);
    }

    /// Takes channels off PBDMAs where they have no work and may not start any.
    pub(crate) fn unload_ineligible(&mut self) {
        for pbdma in 0..PBDMAS {
            if let Some(id) = self.pbdmas[pbdma].channel()
                && self.pbdmas[pbdma].is_idle()
                && !self.pfifo.is_eligible(id)
            {
                self.unload(pbdma);
            }
        }
    }

    /// Starts a commit, as a write of RUNLIST_COMMIT does.
    pub(crate) fn commit_runlist(&mut self, value: u32) {
        self.pfifo.runlist_commit = value;
        let duration = self
            .timing
            .runlist_ns
            .saturating_add(self.faults.runlist_delay_ns);
        let is_lost = crate::faults::has_come(&mut self.faults.lost_runlist_in);
        self.pfifo.commit = Some(Commit {
            base: RunlistBase::from_bits(self.pfifo.runlist_base),
            count: RunlistCommit::from_bits(value).count(),
            done_at: (!is_lost).then(|| self.clock.now().saturating_add(duration)),
        });
    }

    /// The commit's time has come: the list is read and taken over.
    pub(crate) fn take_runlist_over(&mut self) {
        let Some(commit) = self.pfifo.commit.take() else {
            return;
        };
        let base = Place {
            aperture: commit.base.aperture(),
            at: commit.base.address(),
        };
        let mut list = Vec::new();
        let mut listed = 0u128;
        for index in 0..u64::from(commit.count) {
            let entry = self.mem.read_u32(base.offset(index * bits::RUNLIST_ENTRY_BYTES));
            match ChannelId::new(entry & 0xfff) {
                Some(id) if listed & id.mask() == 0 => {
                    listed |= id.mask();
                    list.push(id);
                }
                Some(_) => {}
                None => self
                    .pfifo
                    .raise_scheduler_error(bits::scheduler_error::INACTIVE_CHANNEL),
            }
        }
        if list.iter().any(|id| !self.pfifo.channel(*id).table.valid()) {
            self.pfifo
                .raise_scheduler_error(bits::scheduler_error::INACTIVE_CHANNEL);
        }
        self.pfifo.replace_list(list);
        self.pfifo.current = (commit.base, commit.count);
        self.pfifo.runlist_intr |= bits::RUNLIST_DONE;
        self.mem.counters.runlists += 1;
        for number in 0..CHANNELS as u8 {
            let id = ChannelId(number);
            self.pfifo.channel_mut(id).on_list = listed & id.mask() != 0;
            self.pfifo.refresh(id);
        }
        self.unload_ineligible();
    }

    /// A reset by PMC_ENABLE: channels, runlist, PBDMAs and registers start anew; engines keep what they do.
    pub(crate) fn reset_pfifo(&mut self) {
        // What the embedder named is nothing that a reset clears.
        let at_once = self.pfifo.at_once;
        self.pfifo = Pfifo {
            at_once,
            ..Pfifo::new()
        };
        self.reset_pbdmas();
        self.note_dead_engines();
    }

    /// Records an MMU fault of a unit and counts it.
    pub(crate) fn record_fault(&mut self, unit: u8, client: u8, instance: Option<Place>, refusal: Refusal) {
        self.mem.counters.mmu_faults += 1;
        let instance = instance.unwrap_or_default();
        if !self.pfifo.faults.record(
            Culprit {
                unit,
                client,
                instance,
            },
            refusal,
        ) {
            self.pfifo.intr |= intr::DROPPED_FAULT;
        }
    }
}
