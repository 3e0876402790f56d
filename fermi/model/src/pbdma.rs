//! A PBDMA: fetches GPFIFO entries and pushbuffer words of the channel loaded on it.
//!
//! ```text
//!   idle ──load or doorbell──► running ──ring empty──► idle
//!                                │ ▲
//!             engine busy ──► stalled   acquire fails ──► acquiring      error ──► stopped
//!             own copy ──► finishing               (tried again)          (40108 acknowledged)
//!             (until it is idle)
//! ```
//!
//! Its registers are the channel's RAMFC, word for word: loading reads them from the instance block, unloading writes
//! back those that the hardware owns. An entry's place in the ring counts as taken (GP_GET) once its last method is
//! done; GP_FETCH is one ahead while its segment, GET to PUT, is executed.

use crate::{
    host::Outcome,
    memory::Place,
    mmu::{AddressSpace, Refusal},
    model::FermiModel,
    pfifo::{Acquire, ChannelId},
    slices::Slice,
    userd::userd_place,
};
use fermi_spec::{
    addr::{GpuVa, VA_BITS},
    engine::{Engine, PBDMAS},
    fault::{client, unit},
    instance::{RAMFC_SAVED, SIGNATURE, Subdevice, offset, userd},
    pushbuffer::{SubdeviceOp, Target},
    regs::pbdma::pbdma_intr,
};

/// Words of the register file that RAMFC holds.
pub(crate) const WORDS: usize = 64;
/// Words fetched ahead.
pub(crate) const FETCH_WORDS: usize = 64;
pub(crate) const VA_HIGH: u32 = (1 << (VA_BITS - 32)) - 1;
/// In PB_FETCH_HI: the segment forbids switches. assumption: hardware keeps it elsewhere.
const NO_SWITCH: u32 = 1 << 31;
/// PBDMA_METHOD0 is valid.
const LATCHED: u32 = 1 << 31;

/// What a PBDMA does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activity {
    /// Nothing; a channel may still be loaded.
    Idle,
    /// Goes on at that time.
    Running { at: u64 },
    /// The next method waits for transfers that the channel itself started.
    Finishing,
    /// The next method has waited since then for an engine that another channel has, or that takes no methods.
    Stalled { engine: Engine, since: u64 },
    /// An acquire failed and does not give way; tried again at `at`.
    /// `seen` is how much the card had written by then.
    Acquiring { at: u64, acquire: Acquire, seen: u64 },
    /// An error was raised.
    Stopped,
}

/// The state of one PBDMA.
pub(crate) struct Pbdma {
    channel: Option<ChannelId>,
    pub(crate) state: Activity,
    pub(crate) regs: [u32; WORDS],
    pub(crate) space: AddressSpace,
    instance: Place,
    pub(crate) slice: Slice,
    /// The slice was renewed for a wait since the channel was loaded.
    pub(crate) made_up: bool,
    /// The slice was renewed for a segment in which the channel does not give way.
    overtime: bool,
    pub(crate) words: [u32; FETCH_WORDS],
    pub(crate) words_at: GpuVa,
    pub(crate) words_len: usize,
    /// Value of PBDMA_INTR (040108 + 2000·n).
    pub(crate) intr: u32,
    /// Value of PBDMA_INTR_ENABLE (04010c + 2000·n).
    pub(crate) intr_enable: u32,
    /// Value of PBDMA_STALL; only stored.
    pub(crate) stall: u32,
    /// Shadows of the words that failed: entry low and high, header.
    pub(crate) shadows: [u32; 3],
}

impl Pbdma {
    pub(crate) fn new() -> Self {
        Self {
            channel: None,
            state: Activity::Idle,
            regs: [0; WORDS],
            space: AddressSpace {
                directory: Place::default(),
                limit: 0,
            },
            instance: Place::default(),
            slice: Slice::default(),
            made_up: false,
            overtime: false,
            words: [0; FETCH_WORDS],
            words_at: GpuVa(0),
            words_len: 0,
            intr: 0,
            intr_enable: 0,
            stall: 0,
            shadows: [0; 3],
        }
    }

    /// The channel loaded on it.
    pub(crate) fn channel(&self) -> Option<ChannelId> {
        self.channel
    }

    /// Instance block of the channel loaded on it.
    pub(crate) fn instance(&self) -> Place {
        self.instance
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == Activity::Idle
    }

    /// A RAMFC word by its offset.
    pub(crate) fn reg(&self, at: u64) -> u32 {
        self.regs.get(at as usize / 4).copied().unwrap_or(0)
    }

    pub(crate) fn set_reg(&mut self, at: u64, value: u32) {
        if let Some(word) = self.regs.get_mut(at as usize / 4) {
            *word = value;
        }
    }

    pub(crate) fn set_put(&mut self, put: u32) {
        self.regs[0] = put;
    }

    pub(crate) fn address(&self, low: u64) -> GpuVa {
        GpuVa(u64::from(self.reg(low)) | u64::from(self.reg(low + 4) & VA_HIGH) << 32)
    }

    pub(crate) fn set_address(&mut self, low: u64, va: GpuVa) {
        self.set_reg(low, va.0 as u32);
        self.set_reg(low + 4, (va.0 >> 32) as u32 & VA_HIGH);
    }

    pub(crate) fn entries_log2(&self) -> u32 {
        self.reg(offset::GP_BASE_HI) >> 16 & 0x1f
    }

    /// Engine bound to a subchannel.
    pub(crate) fn bound_engine(&self, subchannel: u8) -> u8 {
        let word = self.reg(offset::SUBCHANNELS_LO + u64::from(subchannel & 4));
        (word >> (8 * u32::from(subchannel & 3))) as u8 & 0x1f
    }

    /// Binds an engine to a subchannel.
    pub(crate) fn bind_engine(&mut self, subchannel: u8, engine: u8) {
        let at = offset::SUBCHANNELS_LO + u64::from(subchannel & 4);
        let shift = 8 * u32::from(subchannel & 3);
        let word = self.reg(at) & !(0xff << shift) | u32::from(engine) << shift;
        self.set_reg(at, word);
    }

    fn subdevice(&self) -> Subdevice {
        Subdevice::from_bits(self.reg(offset::SUBDEVICE))
    }

    /// Whether methods are for this board.
    pub(crate) fn is_selected(&self) -> bool {
        self.subdevice().active()
    }

    /// Applies a header's operation on the mask of boards.
    pub(crate) fn select_board(&mut self, op: SubdeviceOp) {
        let old = self.subdevice();
        let new = match op {
            SubdeviceOp::Set(mask) => old.selected_by(mask),
            SubdeviceOp::Store(mask) => old.with_stored(mask),
            SubdeviceOp::Use => old.selected_by(old.stored()),
        };
        self.set_reg(offset::SUBDEVICE, new.into_bits());
    }

    /// Whether the current segment forbids that another channel runs before its end.
    pub(crate) fn is_no_switch(&self) -> bool {
        self.reg(offset::PB_FETCH_HI) & NO_SWITCH != 0
    }

    /// Notes whether the segment that starts forbids switches.
    pub(crate) fn set_no_switch(&mut self, forbids: bool) {
        self.set_reg(offset::PB_FETCH_HI, if forbids { NO_SWITCH } else { 0 });
        self.overtime = false;
    }

    /// Engine that the last method went to.
    pub(crate) fn target(&self) -> Option<Engine> {
        Engine::from_number(self.reg(offset::TARGET) as u8 & 0x1f)
    }

    fn userd(&self) -> Place {
        userd_place(self.reg(offset::USERD_LO), self.reg(offset::USERD_HI))
    }
}

impl FermiModel {
    /// Puts a channel on a free PBDMA.
    pub(crate) fn load(&mut self, pbdma: usize, id: ChannelId) {
        let instance = self.pfifo.channel(id).instance();
        let mut regs = [0; WORDS];
        for (index, word) in regs.iter_mut().enumerate() {
            *word = self.mem.read_u32(instance.offset(4 * index as u64));
        }
        let space = AddressSpace::load(&mut self.mem, instance);
        let switch_ns = self.time_of(Some(id), self.timing.channel_switch_ns);
        let unit = &mut self.pbdmas[pbdma];
        unit.channel = Some(id);
        unit.instance = instance;
        unit.regs = regs;
        unit.space = space;
        unit.words_len = 0;
        let userd_put = unit.userd().offset(userd::GP_PUT);
        unit.regs[0] = self.mem.read_u32(userd_put);
        let start = self.clock.now().saturating_add(switch_ns);
        unit.state = Activity::Running { at: start };
        let slice = self
            .pfifo
            .timeslice_ns(unit.reg(offset::TIMESLICE), unit.target());
        unit.slice = Slice::new(start, slice);
        unit.made_up = false;
        unit.overtime = false;
        let channel = self.pfifo.channel_mut(id);
        (channel.loaded, channel.stalled_on) = (Some(pbdma), None);
        self.pfifo.refresh(id);
        self.mem.counters.channel_loads += 1;
        if unit.reg(offset::SIGNATURE) as u16 != SIGNATURE as u16 {
            self.stop_pbdma(pbdma, pbdma_intr::SIGNATURE);
        }
    }

    /// Takes the channel off a PBDMA and saves it; it stays ready if it has work.
    pub(crate) fn unload(&mut self, pbdma: usize) {
        let unit = &mut self.pbdmas[pbdma];
        let Some(id) = unit.channel.take() else { return };
        if let Activity::Stalled { engine, .. } = unit.state {
            self.pfifo.channel_mut(id).stalled_on = Some(engine);
        }
        unit.state = Activity::Idle;
        unit.words_len = 0;
        let (regs, instance) = (unit.regs, unit.instance);
        for at in RAMFC_SAVED {
            self.mem.write_u32(instance.offset(at), regs[at as usize / 4]);
        }
        let target = unit.target();
        self.write_back(pbdma);
        let channel = self.pfifo.channel_mut(id);
        channel.loaded = None;
        channel.target = target;
        self.pfifo.refresh(id);
    }

    /// Writes the channel's position to USERD for the driver.
    pub(crate) fn write_back(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let page = unit.userd();
        let words = [
            (userd::GET_LO, unit.reg(offset::GET_LO)),
            (userd::GET_HI, unit.reg(offset::GET_HI)),
            (userd::TOP_GET_LO, unit.reg(offset::TOP_GET_LO)),
            (userd::TOP_GET_HI, unit.reg(offset::TOP_GET_HI)),
            (userd::GP_GET, unit.reg(offset::GP_GET)),
        ];
        for (at, word) in words {
            self.mem.write_u32(page.offset(at), word);
        }
    }

    /// Writes the operand of SET_REFERENCE to the driver's page.
    pub(crate) fn write_reference(&mut self, pbdma: usize, value: u32) {
        self.pbdmas[pbdma].set_reg(offset::REF, value);
        let page = self.pbdmas[pbdma].userd();
        self.mem.write_u32(page.offset(userd::REF), value);
    }

    /// Raises an error of a PBDMA; it stops until the interrupt is acknowledged.
    pub(crate) fn stop_pbdma(&mut self, pbdma: usize, bit: u32) {
        self.mem.counters.pbdma_errors += 1;
        let unit = &mut self.pbdmas[pbdma];
        unit.intr |= bit;
        unit.state = Activity::Stopped;
        unit.shadows[2] = unit.reg(offset::PB_HEADER);
    }

    /// Writes PBDMA_INTR: with the last error acknowledged the PBDMA goes on.
    pub(crate) fn acknowledge_pbdma(&mut self, pbdma: usize, mask: u32) {
        let now = self.clock.now();
        let unit = &mut self.pbdmas[pbdma];
        let had_signature_error = unit.intr & mask & pbdma_intr::SIGNATURE != 0;
        unit.intr &= !mask;
        if unit.state != Activity::Stopped || unit.intr != 0 {
            return;
        }
        unit.state = Activity::Running { at: now };
        if let Some(id) = unit.channel
            // There is no channel behind a block without a signature to go on with.
            && (had_signature_error || self.pfifo.channel(id).halted)
        {
            self.halt_channel(id);
        }
        self.advance_preempt();
    }

    /// PBDMAs with an enabled interrupt.
    pub(crate) fn pbdma_sources(&self) -> u32 {
        (0..PBDMAS)
            .filter(|&pbdma| self.pbdmas[pbdma].intr & self.pbdmas[pbdma].intr_enable != 0)
            .fold(0, |mask, pbdma| mask | 1 << pbdma)
    }

    /// All PBDMAs as after power-on.
    pub(crate) fn reset_pbdmas(&mut self) {
        self.pbdmas = std::array::from_fn(|_| Pbdma::new());
    }

    /// The next event of a running PBDMA: an entry, a header or a method.
    pub(crate) fn run_pbdma(&mut self, pbdma: usize) {
        let Some(id) = self.pbdmas[pbdma].channel else {
            self.pbdmas[pbdma].state = Activity::Idle;
            return;
        };
        // A PBDMA that has waited for an engine uses it first.
        let waited = matches!(self.pbdmas[pbdma].state, Activity::Stalled { .. });
        if !waited && self.end_slice(pbdma, id) {
            return;
        }
        if self.has_paused(pbdma) && !self.pfifo.is_eligible(id) {
            return self.unload(pbdma);
        }
        match self.resume_transfer(pbdma, id) {
            None => {}
            Some(Outcome::Done { ns }) => return self.later(pbdma, ns),
            Some(outcome) => return self.hold_back(pbdma, outcome),
        }
        let latch = self.pbdmas[pbdma].reg(offset::METHOD0);
        if latch & LATCHED != 0 {
            return self.run_latched(pbdma, latch);
        }
        let unit = &self.pbdmas[pbdma];
        if unit.reg(offset::GP_FETCH) != unit.reg(offset::GP_GET) {
            return self.run_segment(pbdma);
        }
        if unit.reg(offset::GP_GET) != unit.regs[0] {
            return self.fetch_entry(pbdma);
        }
        self.write_back(pbdma);
        self.pbdmas[pbdma].state = Activity::Idle;
        self.pfifo.channel_mut(id).has_work = false;
        self.pfifo.refresh(id);
        self.unload_ineligible();
    }

    /// At the end of its slice the channel gives way, if another channel wants the PBDMA; returns whether it did.
    fn end_slice(&mut self, pbdma: usize, id: ChannelId) -> bool {
        let now = self.clock.now();
        if now < self.slice_end(pbdma) {
            return false;
        }
        if !self.pfifo.is_eligible(id) {
            self.unload(pbdma);
            return true;
        }
        if self.pfifo.has_candidate(pbdma) {
            if self.works_overtime(pbdma) {
                return false;
            }
            self.give_way(pbdma);
            return true;
        }
        let target = self.pbdmas[pbdma].target();
        if !target.is_some_and(|engine| self.is_awaited(engine, pbdma)) {
            self.renew_slice(pbdma);
        }
        false
    }

    /// At the end of the slice, in a segment that forbids switches: whether the channel goes on for another slice.
    ///
    /// assumption: one more is all it gets, so that no user keeps a PBDMA from the others.
    fn works_overtime(&mut self, pbdma: usize) -> bool {
        let unit = &mut self.pbdmas[pbdma];
        let goes_on = unit.is_no_switch() && !std::mem::replace(&mut unit.overtime, true);
        if goes_on {
            self.renew_slice(pbdma);
        }
        goes_on
    }

    /// The slice of the channel on the PBDMA is over, and another wants to run.
    pub(crate) fn give_way(&mut self, pbdma: usize) {
        if self.pbdmas[pbdma].is_no_switch() {
            if !self.works_overtime(pbdma) {
                self.stop_pbdma(pbdma, pbdma_intr::NO_SWITCH_SEGMENT);
            }
            return;
        }
        let unit = &self.pbdmas[pbdma];
        let (id, state) = (unit.channel, unit.state);
        self.unload(pbdma);
        if let (Some(id), Activity::Acquiring { acquire, .. }) = (id, state) {
            self.block_channel(id, acquire);
        }
    }

    /// Starts the channel's slice anew.
    pub(crate) fn renew_slice(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let slice = self
            .pfifo
            .timeslice_ns(unit.reg(offset::TIMESLICE), unit.target());
        self.pbdmas[pbdma].slice = Slice::new(self.clock.now(), slice);
    }

    pub(crate) fn later(&mut self, pbdma: usize, ns: u64) {
        let channel = self.pbdmas[pbdma].channel;
        if channel.is_some() {
            let at = self.clock.now().saturating_add(self.time_of(channel, ns));
            self.pbdmas[pbdma].state = Activity::Running { at };
        }
    }

    pub(crate) fn run_method(&mut self, pbdma: usize, target: Target, data: u32) {
        match self.execute(pbdma, target, data) {
            Outcome::Done { ns } => self.consume(pbdma, ns),
            Outcome::GiveWay => {
                self.consume(pbdma, self.timing.method_ns);
                self.pbdmas[pbdma].slice.end = self.clock.now();
            }
            Outcome::Error(bit) => {
                self.consume(pbdma, self.timing.method_ns);
                self.latch(pbdma, target, data);
                self.stop_pbdma(pbdma, bit);
            }
            other => self.hold_back(pbdma, other),
        }
    }

    /// Runs the method that an error left in the latch, as the driver replaced it.
    fn run_latched(&mut self, pbdma: usize, latch: u32) {
        let target = Target {
            subchannel: (latch >> 16 & 7) as u8,
            method: latch as u16 & 0x3ffc,
        };
        let data = self.pbdmas[pbdma].reg(offset::METHOD0 + 4);
        match self.execute(pbdma, target, data) {
            Outcome::Done { ns } => {
                self.pbdmas[pbdma].set_reg(offset::METHOD0, latch & !LATCHED);
                self.later(pbdma, ns);
            }
            Outcome::GiveWay => {
                self.pbdmas[pbdma].set_reg(offset::METHOD0, latch & !LATCHED);
                self.later(pbdma, self.timing.method_ns);
                self.pbdmas[pbdma].slice.end = self.clock.now();
            }
            Outcome::Error(bit) => self.stop_pbdma(pbdma, bit),
            other => self.hold_back(pbdma, other),
        }
    }

    fn latch(&mut self, pbdma: usize, target: Target, data: u32) {
        let method = LATCHED | u32::from(target.subchannel) << 16 | u32::from(target.method);
        self.pbdmas[pbdma].set_reg(offset::METHOD0, method);
        self.pbdmas[pbdma].set_reg(offset::METHOD0 + 4, data);
    }

    /// A method that cannot be done now stays where it is.
    fn hold_back(&mut self, pbdma: usize, outcome: Outcome) {
        match outcome {
            Outcome::Unfinished => self.pbdmas[pbdma].state = Activity::Finishing,
            Outcome::Stalled(engine) => {
                let since = match self.pbdmas[pbdma].state {
                    Activity::Stalled {
                        engine: awaited,
                        since,
                    } if awaited == engine => since,
                    _ => self.clock.now(),
                };
                self.pbdmas[pbdma].state = Activity::Stalled { engine, since };
            }
            Outcome::Acquiring(acquire) => {
                let at = self.clock.now().saturating_add(self.acquire_retry_ns(pbdma));
                self.pbdmas[pbdma].state = Activity::Acquiring {
                    at,
                    acquire,
                    seen: self.mem.stores,
                };
            }
            Outcome::Blocked(_) if self.pbdmas[pbdma].is_no_switch() => {
                self.stop_pbdma(pbdma, pbdma_intr::NO_SWITCH_SEGMENT);
            }
            Outcome::Blocked(acquire) => {
                if let Some(id) = self.pbdmas[pbdma].channel {
                    self.unload(pbdma);
                    self.block_channel(id, acquire);
                }
            }
            Outcome::WrongPbdma => self.unload(pbdma),
            Outcome::Fault(refusal) => self.fault_pbdma(pbdma, refusal),
            Outcome::Done { .. } | Outcome::GiveWay | Outcome::Error(_) | Outcome::Halted => {}
        }
    }

    /// The MMU refused an access of the PBDMA: the channel halts, the PBDMA is free for others.
    pub(crate) fn fault_pbdma(&mut self, pbdma: usize, refusal: Refusal) {
        let instance = self.pbdmas[pbdma].instance;
        self.record_fault(unit::PBDMA0 + pbdma as u8, client::PFIFO, Some(instance), refusal);
        if let Some(id) = self.pbdmas[pbdma].channel {
            self.halt_channel(id);
        }
    }
}
