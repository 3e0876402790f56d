//! A PBDMA: fetches GPFIFO entries and pushbuffer words of the channel loaded on it.
//!
//! ```text
//!   idle ──load or doorbell──► running ──ring empty──► idle
//!                                │ ▲
//!             engine busy ──► stalled   acquire fails ──► acquiring      error ──► stopped
//!                         (engine wakes it)        (tried again)          (40108 acknowledged)
//! ```
//!
//! Its registers are the channel's RAMFC, word for word: loading reads them from the instance block, unloading writes
//! back those that the hardware owns. An entry's place in the ring counts as taken (GP_GET) once its last method is
//! done; GP_FETCH is one ahead while its segment, GET to PUT, is executed.

use crate::{
    host::Outcome,
    memory::Place,
    mmu::{Access, AddressSpace, Refusal},
    model::FermiModel,
    pfifo::{Acquire, ChannelId},
    userd::userd_place,
};
use fermi_spec::{
    addr::{GpuVa, VA_BITS},
    engine::{Engine, PBDMAS},
    fault::{client, unit},
    gpfifo::{ControlOp, ENTRIES_LOG2_MAX, ENTRY_BYTES, GpEntry},
    instance::{SIGNATURE, offset, userd},
    pushbuffer::{self, Header, Target},
    regs::pfifo::pbdma_intr,
};

/// Words of the register file that RAMFC holds.
const WORDS: usize = 64;
/// Words fetched ahead.
const FETCH_WORDS: usize = 64;
const VA_HIGH: u32 = (1 << (VA_BITS - 32)) - 1;
/// PB_HEADER, kept as a new-form header: non-incrementing.
const NON_INCREMENTING: u32 = 3 << 29;
const INCREMENTING: u32 = 1 << 29;
/// PBDMA_METHOD0 is valid.
const LATCHED: u32 = 1 << 31;

/// Words that the hardware owns: written back when a channel is unloaded.
const SAVED: [u64; 29] = [
    0x00,
    offset::GP_GET,
    offset::GET_LO,
    offset::GET_HI,
    offset::TOP_GET_LO,
    offset::TOP_GET_HI,
    offset::REF,
    offset::ACQUIRE_DEADLINE,
    offset::SEMAPHORE_A,
    offset::SEMAPHORE_A + 4,
    offset::SEMAPHORE_A + 8,
    offset::SEMAPHORE_A + 12,
    offset::GP_FETCH,
    offset::PB_FETCH_HI,
    offset::PUT_LO,
    offset::PUT_HI,
    offset::PB_HEADER,
    offset::PB_COUNT,
    offset::SUBCHANNELS_LO,
    offset::SUBCHANNELS_HI,
    offset::TARGET,
    offset::METHOD0,
    offset::METHOD0 + 4,
    offset::METHOD0 + 8,
    offset::METHOD0 + 12,
    0xd0,
    0xd4,
    0xd8,
    0xdc,
];

/// What a PBDMA is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Nothing; a channel may still be loaded.
    Idle,
    /// Goes on at that time.
    Running { at: u64 },
    /// The next method waits for the engine to become idle; at `until`, if given, it is tried again.
    Stalled { engine: Engine, until: Option<u64> },
    /// An acquire failed and does not give way; tried again at `at`.
    Acquiring { at: u64, acquire: Acquire },
    /// An error was raised.
    Stopped,
}

/// One PBDMA.
pub(crate) struct Pbdma {
    channel: Option<ChannelId>,
    pub(crate) state: State,
    pub(crate) regs: [u32; WORDS],
    pub(crate) space: AddressSpace,
    instance: Place,
    pub(crate) slice_end: u64,
    words: [u32; FETCH_WORDS],
    words_at: GpuVa,
    words_len: usize,
    /// PBDMA_INTR.
    pub(crate) intr: u32,
    /// PBDMA_INTR_ENABLE.
    pub(crate) intr_enable: u32,
    /// PBDMA_STALL; stored.
    pub(crate) stall: u32,
    /// Shadows of what failed: entry low and high, header.
    pub(crate) shadows: [u32; 3],
}

impl Pbdma {
    pub(crate) fn new() -> Self {
        Self {
            channel: None,
            state: State::Idle,
            regs: [0; WORDS],
            space: AddressSpace {
                directory: Place::default(),
                limit: 0,
            },
            instance: Place::default(),
            slice_end: 0,
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
        self.state == State::Idle
    }

    /// Whether its channel makes progress by itself.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, State::Running { .. } | State::Stalled { .. })
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

    fn address(&self, low: u64) -> GpuVa {
        GpuVa(u64::from(self.reg(low)) | u64::from(self.reg(low + 4) & VA_HIGH) << 32)
    }

    fn set_address(&mut self, low: u64, va: GpuVa) {
        self.set_reg(low, va.0 as u32);
        self.set_reg(low + 4, (va.0 >> 32) as u32 & VA_HIGH);
    }

    fn entries_log2(&self) -> u32 {
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

    /// Engine that the last method went to.
    pub(crate) fn target(&self) -> Option<Engine> {
        Engine::from_number(self.reg(offset::TARGET) as u8 & 0x1f)
    }

    fn userd(&self) -> Place {
        userd_place(self.reg(offset::USERD_LO), self.reg(offset::USERD_HI))
    }
}

/// The word that a step works on.
enum Word {
    /// Data for the current header.
    Data(Target, u32),
    Header(u32),
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
        let unit = &mut self.pbdmas[pbdma];
        unit.channel = Some(id);
        unit.instance = instance;
        unit.regs = regs;
        unit.space = space;
        unit.words_len = 0;
        let userd_put = unit.userd().offset(userd::GP_PUT);
        unit.regs[0] = self.mem.read_u32(userd_put);
        let start = self.clock.now().saturating_add(self.timing.channel_switch_ns);
        unit.state = State::Running { at: start };
        let slice = self
            .pfifo
            .timeslice_ns(unit.reg(offset::TIMESLICE), unit.target());
        unit.slice_end = start.saturating_add(slice);
        self.pfifo.channel_mut(id).loaded = Some(pbdma);
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
        unit.state = State::Idle;
        unit.words_len = 0;
        let (regs, instance) = (unit.regs, unit.instance);
        for at in SAVED {
            self.mem.write_u32(instance.offset(at), regs[at as usize / 4]);
        }
        let target = unit.target();
        self.write_back(pbdma);
        let channel = self.pfifo.channel_mut(id);
        channel.loaded = None;
        channel.target = target;
        self.pfifo.refresh(id);
    }

    /// Shows the driver how far the channel is.
    fn write_back(&mut self, pbdma: usize) {
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

    /// SET_REFERENCE reached the driver's page.
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
        unit.state = State::Stopped;
        unit.shadows[2] = unit.reg(offset::PB_HEADER);
    }

    /// Writes PBDMA_INTR: with the last error acknowledged the PBDMA goes on.
    pub(crate) fn acknowledge_pbdma(&mut self, pbdma: usize, mask: u32) {
        let now = self.clock.now();
        let unit = &mut self.pbdmas[pbdma];
        let had_signature_error = unit.intr & mask & pbdma_intr::SIGNATURE != 0;
        unit.intr &= !mask;
        if unit.state != State::Stopped || unit.intr != 0 {
            return;
        }
        unit.state = State::Running { at: now };
        if let (true, Some(id)) = (had_signature_error, unit.channel) {
            // There is no channel behind such a block to go on with.
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

    /// Lets PBDMAs that waited for an engine try again.
    pub(crate) fn wake_pbdmas(&mut self, engine: Engine) {
        let at = self.clock.now();
        for unit in &mut self.pbdmas {
            if matches!(unit.state, State::Stalled { engine: awaited, .. } if awaited == engine) {
                unit.state = State::Running { at };
            }
        }
    }

    /// All PBDMAs as after power-on.
    pub(crate) fn reset_pbdmas(&mut self) {
        self.pbdmas = std::array::from_fn(|_| Pbdma::new());
    }

    /// The next event of a running PBDMA: an entry, a header or a method.
    pub(crate) fn run_pbdma(&mut self, pbdma: usize) {
        let Some(id) = self.pbdmas[pbdma].channel else {
            self.pbdmas[pbdma].state = State::Idle;
            return;
        };
        if self.end_slice(pbdma, id) {
            return;
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
        self.pbdmas[pbdma].state = State::Idle;
        self.pfifo.channel_mut(id).has_work = false;
        self.pfifo.refresh(id);
        self.unload_ineligible();
    }

    /// At the end of its slice the channel gives way, if there is who wants the PBDMA; whether it did.
    fn end_slice(&mut self, pbdma: usize, id: ChannelId) -> bool {
        let now = self.clock.now();
        if now < self.pbdmas[pbdma].slice_end {
            return false;
        }
        if !self.pfifo.is_eligible(id) || self.pfifo.has_candidate(pbdma) {
            self.unload(pbdma);
            return true;
        }
        self.renew_slice(pbdma);
        false
    }

    /// The slice of a channel that waits on the PBDMA is over, and another wants to run.
    pub(crate) fn give_way(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let (id, state) = (unit.channel, unit.state);
        self.unload(pbdma);
        if let (Some(id), State::Acquiring { acquire, .. }) = (id, state) {
            self.block_channel(id, acquire);
        }
    }

    /// Starts the channel's slice anew.
    pub(crate) fn renew_slice(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let slice = self
            .pfifo
            .timeslice_ns(unit.reg(offset::TIMESLICE), unit.target());
        self.pbdmas[pbdma].slice_end = self.clock.now().saturating_add(slice);
    }

    fn fetch_entry(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let log2 = unit.entries_log2();
        let get = unit.reg(offset::GP_GET);
        let put = unit.regs[0];
        if log2 > ENTRIES_LOG2_MAX || get >> log2 != 0 || put >> log2 != 0 {
            // An empty ring at the acknowledgement: there is nothing sensible to go on with.
            self.pbdmas[pbdma].regs[0] = get;
            return self.stop_pbdma(pbdma, pbdma_intr::GP_POINTER);
        }
        let base = GpuVa(
            u64::from(unit.reg(offset::GP_BASE_LO) & !7)
                | u64::from(unit.reg(offset::GP_BASE_HI) & VA_HIGH) << 32,
        );
        let at = base.offset(u64::from(get) * ENTRY_BYTES);
        let mut raw = [0; ENTRY_BYTES as usize];
        let space = unit.space;
        if let Err(refusal) = self.mmu.read(&mut self.mem, &space, Access::READ, at, &mut raw) {
            return self.fault_pbdma(pbdma, refusal);
        }
        self.mem.counters.gp_entries += 1;
        let raw = u64::from_le_bytes(raw);
        self.start_entry(pbdma, raw, (get + 1) & ((1 << log2) - 1));
        if let State::Running { at } = &mut self.pbdmas[pbdma].state {
            *at = self.clock.now().saturating_add(self.timing.fetch_ns);
        }
    }

    fn start_entry(&mut self, pbdma: usize, raw: u64, next: u32) {
        let unit = &mut self.pbdmas[pbdma];
        unit.set_reg(offset::GP_FETCH, next);
        match GpEntry::from_bits(raw) {
            GpEntry::Fetch(segment) => {
                let end = segment.at.offset(u64::from(segment.words) * 4);
                unit.set_address(offset::GET_LO, segment.at);
                unit.set_address(offset::PUT_LO, end);
                unit.set_reg(offset::PB_COUNT, 0);
                unit.words_len = 0;
                if !segment.subroutine {
                    unit.set_address(offset::TOP_GET_LO, segment.at);
                    let high = unit.reg(offset::TOP_GET_HI) | 1 << 31;
                    unit.set_reg(offset::TOP_GET_HI, high);
                }
            }
            // The checksums are not modelled: comparing them does nothing.
            GpEntry::Control(ControlOp::Nop | ControlOp::GpCrc | ControlOp::PbCrc) => {
                self.retire_entry(pbdma)
            }
            GpEntry::Control(op) => {
                unit.shadows[0] = raw as u32;
                unit.shadows[1] = (raw >> 32) as u32;
                self.retire_entry(pbdma);
                let bit = if op == ControlOp::Illegal {
                    pbdma_intr::GPFIFO
                } else {
                    pbdma_intr::GP_ENTRY
                };
                self.stop_pbdma(pbdma, bit);
            }
        }
    }

    /// The entry is done with: its place in the ring is the driver's again.
    fn retire_entry(&mut self, pbdma: usize) {
        let unit = &mut self.pbdmas[pbdma];
        let fetched = unit.reg(offset::GP_FETCH);
        unit.set_reg(offset::GP_GET, fetched);
        self.write_back(pbdma);
    }

    fn run_segment(&mut self, pbdma: usize) {
        let unit = &self.pbdmas[pbdma];
        let (get, put) = (unit.address(offset::GET_LO), unit.address(offset::PUT_LO));
        // A PUT before GET only comes from a forged RAMFC; the segment then counts as executed.
        if get >= put {
            return self.retire_entry(pbdma);
        }
        let word = match self.peek(pbdma, get, put) {
            Ok(word) => word,
            Err(refusal) => return self.fault_pbdma(pbdma, refusal),
        };
        let unit = &self.pbdmas[pbdma];
        let header = unit.reg(offset::PB_HEADER);
        let target = Target {
            subchannel: (header >> 13 & 7) as u8,
            method: (header as u16 & 0xfff) << 2,
        };
        let word = if unit.reg(offset::PB_COUNT) > 0 {
            Word::Data(target, word)
        } else {
            Word::Header(word)
        };
        match word {
            Word::Data(target, data) => self.run_method(pbdma, target, data),
            Word::Header(header) => self.run_header(pbdma, header),
        }
    }

    /// The pushbuffer word at `get`, from the words fetched ahead where they have it.
    fn peek(&mut self, pbdma: usize, get: GpuVa, put: GpuVa) -> Result<u32, Refusal> {
        let unit = &mut self.pbdmas[pbdma];
        let ahead = get.0.wrapping_sub(unit.words_at.0) / 4;
        if ahead < unit.words_len as u64 {
            return Ok(unit.words[ahead as usize]);
        }
        let wanted = (put.0 - get.0).min(4 * FETCH_WORDS as u64);
        let (place, run) = self
            .mmu
            .translate(&mut self.mem, &unit.space, Access::READ, get, wanted)?;
        let mut bytes = [0; 4 * FETCH_WORDS];
        // GET is a multiple of 4 unless RAMFC was forged: then a word may end beyond the run, and is read as it is.
        let run = (run as usize).clamp(4, bytes.len()) & !3;
        self.mem.read(place, &mut bytes[..run]);
        for (word, bytes) in unit.words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u32::from_le_bytes(*bytes);
        }
        unit.words_at = get;
        unit.words_len = run / 4;
        Ok(unit.words[0])
    }

    fn run_header(&mut self, pbdma: usize, word: u32) {
        match Header::from_bits(word) {
            // Subdevice masks select among linked boards; there is one.
            Header::Nop | Header::Subdevice(_) => self.consume(pbdma, self.timing.method_ns),
            Header::Incrementing(target, count) => self.start_methods(pbdma, INCREMENTING, target, count),
            Header::NonIncrementing(target, count) => {
                self.start_methods(pbdma, NON_INCREMENTING, target, count)
            }
            Header::IncrementOnce(target, count) => self.start_methods(pbdma, 5 << 29, target, count),
            Header::Immediate(target, data) => self.run_method(pbdma, target, u32::from(data)),
            Header::EndSegment => {
                let put = self.pbdmas[pbdma].address(offset::PUT_LO);
                self.pbdmas[pbdma].set_address(offset::GET_LO, put);
                self.later(pbdma, self.timing.method_ns);
            }
            Header::Invalid(word) => {
                self.pbdmas[pbdma].set_reg(offset::PB_HEADER, word);
                self.consume(pbdma, self.timing.method_ns);
                self.stop_pbdma(pbdma, pbdma_intr::PB_ENTRY);
            }
        }
    }

    fn start_methods(&mut self, pbdma: usize, op: u32, target: Target, count: u16) {
        let header =
            pushbuffer::incrementing(target.subchannel, target.method & 0x3ffc, 0) & 0x1fff_ffff | op;
        self.pbdmas[pbdma].set_reg(offset::PB_HEADER, header);
        self.consume(pbdma, self.timing.method_ns);
        self.pbdmas[pbdma].set_reg(offset::PB_COUNT, u32::from(count));
    }

    /// Moves past the current word; the PBDMA goes on after `ns`.
    fn consume(&mut self, pbdma: usize, ns: u64) {
        let unit = &mut self.pbdmas[pbdma];
        let get = unit.address(offset::GET_LO);
        unit.set_address(offset::GET_LO, GpuVa(get.0.saturating_add(4)));
        let count = unit.reg(offset::PB_COUNT);
        if count > 0 {
            unit.set_reg(offset::PB_COUNT, count - 1);
            let header = unit.reg(offset::PB_HEADER);
            unit.set_reg(offset::PB_HEADER, next_header(header));
        }
        self.later(pbdma, ns);
    }

    fn later(&mut self, pbdma: usize, ns: u64) {
        if self.pbdmas[pbdma].channel.is_some() {
            let at = self.clock.now().saturating_add(ns);
            self.pbdmas[pbdma].state = State::Running { at };
        }
    }

    fn run_method(&mut self, pbdma: usize, target: Target, data: u32) {
        match self.execute(pbdma, target, data) {
            Outcome::Done { ns } => self.consume(pbdma, ns),
            Outcome::GiveWay => {
                self.consume(pbdma, self.timing.method_ns);
                self.pbdmas[pbdma].slice_end = self.clock.now();
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
                self.pbdmas[pbdma].slice_end = self.clock.now();
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
            Outcome::Stalled { engine, until } => {
                self.pbdmas[pbdma].state = State::Stalled { engine, until };
            }
            Outcome::Acquiring(acquire) => {
                let at = self.clock.now().saturating_add(self.acquire_retry_ns(pbdma));
                self.pbdmas[pbdma].state = State::Acquiring { at, acquire };
            }
            Outcome::Blocked(acquire) => {
                if let Some(id) = self.pbdmas[pbdma].channel {
                    self.unload(pbdma);
                    self.block_channel(id, acquire);
                }
            }
            Outcome::WrongPbdma => self.unload(pbdma),
            Outcome::Fault(refusal) => self.fault_pbdma(pbdma, refusal),
            Outcome::Done { .. } | Outcome::GiveWay | Outcome::Error(_) => {}
        }
    }

    /// The MMU refused an access of the PBDMA: the channel halts, the PBDMA is free for others.
    fn fault_pbdma(&mut self, pbdma: usize, refusal: Refusal) {
        let instance = self.pbdmas[pbdma].instance;
        self.record_fault(unit::PBDMA0 + pbdma as u8, client::PFIFO, Some(instance), refusal);
        if let Some(id) = self.pbdmas[pbdma].channel {
            self.halt_channel(id);
        }
    }
}

/// The header for the word after this one.
fn next_header(header: u32) -> u32 {
    let advanced = header & !0xfff | (header + 1) & 0xfff;
    match header >> 29 {
        1 => advanced,
        5 => advanced & 0x1fff_ffff | NON_INCREMENTING,
        _ => header,
    }
}
