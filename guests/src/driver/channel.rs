//! Channels: creation, submission, completion, destruction.
//!
//! Every channel has a ring of GPFIFO entries and [`SEGMENTS`] pushbuffer segments in guest RAM, used in turn. A
//! submission is one segment and one entry; it ends with a semaphore release of its number into RAM, and its segment
//! is used again when that number has arrived. So at most [`SEGMENTS`] submissions are under way and the ring never
//! fills.

use super::poll::{self, read, wait, wait_register, write};
use super::{Driver, DriverError, USERD_OFFSET, bringup};
use crate::GuestBus;
use fermi_spec::addr::{GpuVa, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::engine::{ENGINES, Engine, PBDMAS};
use fermi_spec::gpfifo::{ENTRY_BYTES, GpEntry};
use fermi_spec::instance::{INSTANCE_BYTES, RAMFC_DEFAULTS, USERD_BYTES, offset, userd};
use fermi_spec::methods::{SemaphoreD, host};
use fermi_spec::pushbuffer::incrementing;
use fermi_spec::regs::fecs;
use fermi_spec::regs::pcopy;
use fermi_spec::regs::pgraph::graph_intr;
use fermi_spec::regs::{PbdmaReg, PcopyReg, PfifoReg, PfifoWord, PgraphReg, PmcReg, PpciReg, pfifo, ppci};

/// Channels that the driver keeps track of; their ids are 0 and up.
pub(crate) const CHANNELS_MAX: usize = 8;
/// Submissions of one channel that can be under way.
const SEGMENTS: u32 = 16;
/// Bytes of a pushbuffer segment.
const SEGMENT_BYTES: u64 = 8 << 10;
/// Most words of one submission: a segment less what the driver adds.
pub(crate) const SUBMISSION_WORDS_MAX: u32 = SEGMENT_BYTES as u32 / 4 - EPILOGUE_WORDS;
const EPILOGUE_WORDS: u32 = 7;
const RING_ENTRIES_LOG2: u32 = 9;
const RING_ENTRIES: u32 = 1 << RING_ENTRIES_LOG2;
/// Bytes of a ring, the segments, and a page of engine contexts.
const CHANNEL_DMA_BYTES: u64 = SMALL_PAGE + SEGMENTS as u64 * SEGMENT_BYTES + SMALL_PAGE;
/// Bytes of a copy engine's context (nouveau's microcode uses 256).
const CONTEXT_BYTES: u64 = 0x100;
/// Bytes at the start of PGRAPH's context without which it is one that nobody has used.
const GRAPH_HEADER_BYTES: usize = 0x100;
/// Flag that drivers set in an engine's context pointer.
const CONTEXT_VALID: u32 = 4;
/// Distance of the channels' semaphores.
const FENCE_BYTES: u64 = 16;
/// Part of the instance block that has meaning.
const INSTANCE_USED: u64 = offset::ENGINE_CONTEXTS_END.next_multiple_of(8);
/// Polls of a semaphore between two looks at PFIFO's errors.
const POLLS_PER_CHECK: u32 = 256;
/// GPCs whose first SM is asked for its errors.
const GPCS: u16 = 4;
/// USERD words that start as zero.
const USERD_WORDS: [u64; 10] = [
    userd::PUT_LO,
    userd::GET_LO,
    userd::REF,
    userd::PUT_HI,
    userd::REF_THRESHOLD,
    userd::TOP_GET_LO,
    userd::TOP_GET_HI,
    userd::GET_HI,
    userd::GP_GET,
    userd::GP_PUT,
];

/// A channel of the driver; its number is the hardware's channel id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelId(pub u8);

/// A subchannel and the object bound to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Subchannel, 0 to 7.
    pub subchannel: u8,
    /// Class, see [`fermi_spec::methods::class`].
    pub class: u16,
    /// The engine that executes it.
    pub engine: Engine,
}

/// The end of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// Channel that the submission belongs to.
    pub channel: ChannelId,
    /// Value that the channel's semaphore reaches at the end, modulo 2^32.
    pub sequence: u32,
}

/// State of a channel; memory stays with its place for the next channel there.
#[derive(Clone, Copy)]
pub(crate) struct Channel {
    is_live: bool,
    /// VRAM address of the instance block, zero if there was none here yet.
    instance: u64,
    dma_gpa: u64,
    dma_va: u64,
    /// Where PGRAPH keeps its context, zero if it was never to use PGRAPH.
    graph_gpa: u64,
    graph_va: u64,
    /// Number of the last submission.
    submitted: u32,
    /// Words in the open segment.
    queued: u32,
}

impl Channel {
    pub(crate) const fn new() -> Self {
        Self {
            is_live: false,
            instance: 0,
            dma_gpa: 0,
            dma_va: 0,
            graph_gpa: 0,
            graph_va: 0,
            submitted: 0,
            queued: 0,
        }
    }

    /// Offset of the open segment in the channel's DMA memory.
    fn segment(&self) -> u64 {
        SMALL_PAGE + u64::from(self.submitted % SEGMENTS) * SEGMENT_BYTES
    }

    fn contexts_va(&self) -> u64 {
        self.dma_va + CHANNEL_DMA_BYTES - SMALL_PAGE
    }
}

impl Driver {
    /// Creates a channel in the driver's address space with `objects` bound, and puts it on the runlist. Flushes.
    pub fn create_channel(
        &mut self,
        bus: &mut dyn GuestBus,
        objects: &[Object],
    ) -> Result<ChannelId, DriverError> {
        let index = self.channels.iter().position(|channel| !channel.is_live);
        let index = index.ok_or(DriverError::ChannelsFull)?;
        let id = ChannelId(index as u8);
        let was_used = self.provide_memory(bus, index)?;
        let uses_graph = objects.iter().any(|object| object.engine == Engine::Graph);
        if uses_graph {
            self.provide_graph_context(bus, index)?;
        }
        self.write_instance(bus, index, (was_used, uses_graph))?;
        bus.ram_write(self.fence_gpa(id), &[0; FENCE_BYTES as usize]);
        self.bar1.flush(bus, self.limit)?;
        self.space.flush(bus, self.limit)?;

        let instance = pfifo::ChannelInstance::new()
            .with_frame((self.channels[index].instance >> 12) as u32)
            .with_poll(true)
            .with_valid(true);
        write(bus, PfifoReg::ChannelInstance(index as u16), instance.into_bits());
        write(bus, PfifoReg::ChannelState(index as u16), pfifo::CHANNEL_START);
        self.channels[index].is_live = true;
        self.commit_runlist(bus)?;
        for object in objects {
            let engine = u32::from(object.engine.number()) << 16;
            let header = incrementing(object.subchannel & 7, host::SET_OBJECT, 1);
            self.queue(bus, id, &[header, engine | u32::from(object.class)])?;
        }
        Ok(id)
    }

    /// Waits for all submissions, takes the channel off the hardware and forgets it. Words that are queued but not
    /// submitted are dropped. After an error the channel counts as destroyed; the hardware's state is unknown.
    pub(crate) fn destroy_channel(
        &mut self,
        bus: &mut dyn GuestBus,
        channel: ChannelId,
    ) -> Result<(), DriverError> {
        let sequence = self.live(channel)?.submitted;
        let drained = self.wait(bus, Fence { channel, sequence });
        self.live_mut(channel)?.is_live = false;
        let number = u16::from(channel.0);
        let state = pfifo::ChannelState::from_bits(read(bus, PfifoReg::ChannelState(number)));
        write(
            bus,
            PfifoReg::ChannelState(number),
            state.with_runnable(false).into_bits(),
        );
        write(bus, PfifoReg::Preempt, u32::from(channel.0));
        wait_register(bus, self.limit, "a preempt", PfifoReg::Preempt, |value| {
            value & pfifo::PREEMPT_PENDING == 0
        })?;
        self.commit_runlist(bus)?;
        write(bus, PfifoReg::ChannelInstance(number), 0);
        drained
    }

    /// Appends words to the channel's open submission. If they do not fit, the open submission is submitted first.
    pub fn queue(
        &mut self,
        bus: &mut dyn GuestBus,
        channel: ChannelId,
        words: &[u32],
    ) -> Result<(), DriverError> {
        if words.len() > SUBMISSION_WORDS_MAX as usize {
            let words = words.len() as u64;
            return Err(DriverError::SubmissionTooLong { words });
        }
        if self.live(channel)?.queued + words.len() as u32 > SUBMISSION_WORDS_MAX {
            self.submit(bus, channel)?;
        }
        let state = *self.live(channel)?;
        // The last submission out of this segment has to be over before its words are replaced. In the first round
        // that is one before the first, which the zeroed semaphore has passed.
        let sequence = state.submitted.wrapping_add(1).wrapping_sub(SEGMENTS);
        let last = Fence { channel, sequence };
        if state.queued == 0 && !self.is_done(bus, last) {
            self.wait(bus, last)?;
        }
        self.append(bus, channel, words)
    }

    /// Submits the queued words, with a semaphore release behind them. An empty submission is a fence.
    pub fn submit(&mut self, bus: &mut dyn GuestBus, channel: ChannelId) -> Result<Fence, DriverError> {
        // An empty queue still needs its segment to be free.
        self.queue(bus, channel, &[])?;
        let fence_va = self.fences.va + u64::from(channel.0) * FENCE_BYTES;
        let sequence = self.live(channel)?.submitted.wrapping_add(1);
        let release = SemaphoreD::new()
            .with_operation(2)
            .with_release_short(true)
            .into_bits();
        let epilogue = [
            incrementing(0, host::SEMAPHORE_A, 4),
            (fence_va >> 32) as u32,
            fence_va as u32,
            sequence,
            release,
            incrementing(0, host::NON_STALL_INTERRUPT, 1),
            0,
        ];
        let used = if self.with_interrupts { 7 } else { 5 };
        self.append(bus, channel, &epilogue[..used])?;

        let state = self.live_mut(channel)?;
        let entry = GpEntry::fetch(GpuVa(state.dma_va + state.segment()), state.queued);
        let slot = u64::from(state.submitted % RING_ENTRIES);
        let ring = state.dma_gpa;
        state.submitted = sequence;
        state.queued = 0;
        bus.ram_write(ring + slot * ENTRY_BYTES, &entry.to_le_bytes());
        self.ring(bus, channel)?;
        Ok(Fence { channel, sequence })
    }

    /// Rings the channel's doorbell: stores GP_PUT. Without a submission since the last ring there is nothing behind it.
    pub fn ring(&self, bus: &mut dyn GuestBus, channel: ChannelId) -> Result<(), DriverError> {
        let doorbell = USERD_OFFSET + u64::from(channel.0) * USERD_BYTES + userd::GP_PUT;
        bus.write32(Bar::Bar1, doorbell, self.live(channel)?.submitted % RING_ENTRIES);
        Ok(())
    }

    /// Whether the submission is over and its writes have arrived.
    pub(crate) fn is_done(&self, bus: &mut dyn GuestBus, fence: Fence) -> bool {
        let reached = bus.ram_read32(self.fence_gpa(fence.channel));
        reached.wrapping_sub(fence.sequence) as i32 >= 0
    }

    /// Waits until the submission is over. Errors that PFIFO or an engine shows end the wait early.
    pub fn wait(&mut self, bus: &mut dyn GuestBus, fence: Fence) -> Result<(), DriverError> {
        self.live(fence.channel)?;
        let gpa = self.fence_gpa(fence.channel);
        let mut polls = 0;
        let waited = wait(bus, self.limit, "a submission", |bus, value| {
            *value = bus.ram_read32(gpa);
            polls += 1;
            if polls % POLLS_PER_CHECK == 0 {
                check_fifo(bus)?;
                check_engines(bus)?;
            }
            Ok((value.wrapping_sub(fence.sequence) as i32 >= 0).then_some(()))
        });
        if matches!(waited, Err(DriverError::Timeout { .. })) {
            // The reason says more than the time-out.
            self.check_device(bus)?;
        }
        if self.with_interrupts {
            self.acknowledge(bus);
        }
        waited
    }

    /// Fails if PFIFO shows an MMU fault or another error, or an engine has refused a method. Clears nothing.
    pub fn check_device(&self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        check_fifo(bus)?;
        check_engines(bus)
    }

    /// Clears the notify interrupts of all engines and arms the line for the next message.
    pub(crate) fn acknowledge(&self, bus: &mut dyn GuestBus) {
        write(bus, PmcReg::PmcIntrEnable(0), 0);
        let engines = read(bus, PfifoReg::EngineIntrSource);
        for engine in (0..ENGINES as u16).filter(|engine| engines & 1 << engine != 0) {
            write(bus, PfifoReg::EngineIntr(engine), u32::MAX);
        }
        write(bus, PpciReg::PciMsiRearm, ppci::MSI_REARM);
        write(bus, PmcReg::PmcIntrEnable(0), 1);
    }

    pub(crate) fn live(&self, channel: ChannelId) -> Result<&Channel, DriverError> {
        let found = self.channels.get(usize::from(channel.0));
        let missing = DriverError::NoChannel { channel: channel.0 };
        found.filter(|channel| channel.is_live).ok_or(missing)
    }

    fn live_mut(&mut self, channel: ChannelId) -> Result<&mut Channel, DriverError> {
        let found = self.channels.get_mut(usize::from(channel.0));
        let missing = DriverError::NoChannel { channel: channel.0 };
        found.filter(|channel| channel.is_live).ok_or(missing)
    }

    fn fence_gpa(&self, channel: ChannelId) -> u64 {
        self.fences.gpa + u64::from(channel.0) * FENCE_BYTES
    }

    /// Appends words to the open segment, which is free and has room.
    fn append(
        &mut self,
        bus: &mut dyn GuestBus,
        channel: ChannelId,
        words: &[u32],
    ) -> Result<(), DriverError> {
        let state = self.live_mut(channel)?;
        let mut at = state.dma_gpa + state.segment() + u64::from(state.queued) * 4;
        for words in words.chunks(16) {
            let mut bytes = [0; 64];
            for (target, word) in bytes.chunks_exact_mut(4).zip(words) {
                target.copy_from_slice(&word.to_le_bytes());
            }
            bus.ram_write(at, &bytes[..words.len() * 4]);
            at += words.len() as u64 * 4;
        }
        state.queued += words.len() as u32;
        Ok(())
    }

    /// Provides instance block, DMA memory and USERD for the channel at `index`; true if there was one here before.
    fn provide_memory(&mut self, bus: &mut dyn GuestBus, index: usize) -> Result<bool, DriverError> {
        let was_used = self.channels[index].instance != 0;
        if !was_used {
            let dma = self.take_dma(bus, CHANNEL_DMA_BYTES)?;
            let instance = self.memory.allocate(bus, INSTANCE_BYTES, INSTANCE_USED)?;
            let page = index as u64 * USERD_BYTES;
            self.bar1.map(
                bus,
                &mut self.memory,
                USERD_OFFSET + page..USERD_OFFSET + page + USERD_BYTES,
                super::Backing::Vram(self.userd + page),
                super::PageSize::Small,
            )?;
            self.channels[index] = Channel {
                instance,
                dma_gpa: dma.gpa,
                dma_va: dma.va,
                ..Channel::new()
            };
        }
        let channel = &mut self.channels[index];
        (channel.submitted, channel.queued) = (0, 0);
        Ok(was_used)
    }

    /// Provides a context of PGRAPH for the channel at `index`, as for a channel that has never run.
    fn provide_graph_context(&mut self, bus: &mut dyn GuestBus, index: usize) -> Result<(), DriverError> {
        if self.channels[index].graph_va == 0 {
            let image = self.take_dma(bus, u64::from(fecs::CONTEXT_BYTES))?;
            (self.channels[index].graph_gpa, self.channels[index].graph_va) = (image.gpa, image.va);
        }
        bus.ram_write(self.channels[index].graph_gpa, &[0; GRAPH_HEADER_BYTES]);
        Ok(())
    }

    fn write_instance(
        &mut self,
        bus: &mut dyn GuestBus,
        index: usize,
        (was_used, uses_graph): (bool, bool),
    ) -> Result<(), DriverError> {
        let channel = self.channels[index];
        let (block, page) = (channel.instance, self.userd + index as u64 * USERD_BYTES);
        if was_used {
            self.memory.clear(bus, block, INSTANCE_USED)?;
        }
        self.memory.show(bus, page, USERD_BYTES)?;
        for word in USERD_WORDS {
            bus.write32(Bar::Bar3, page + word, 0);
        }
        self.memory.show(bus, block, INSTANCE_BYTES)?;
        let ring_high = (channel.dma_va >> 32) as u32 | RING_ENTRIES_LOG2 << 16;
        let addresses = [
            (offset::USERD_LO, page as u32),
            (offset::USERD_HI, (page >> 32) as u32),
            (offset::GP_BASE_LO, channel.dma_va as u32),
            (offset::GP_BASE_HI, ring_high),
        ];
        for (at, value) in RAMFC_DEFAULTS.into_iter().chain(addresses) {
            bus.write32(Bar::Bar3, block + at, value);
        }
        let copy = [(Engine::Copy0, 0), (Engine::Copy1, 1)];
        let copy = copy.map(|(engine, place)| (engine, channel.contexts_va() + place * CONTEXT_BYTES));
        let graph = uses_graph.then_some((Engine::Graph, channel.graph_va));
        for (engine, context) in copy.into_iter().chain(graph) {
            let at = block + engine.context_offset();
            bus.write32(Bar::Bar3, at, context as u32 | CONTEXT_VALID);
            bus.write32(Bar::Bar3, at + 4, (context >> 32) as u32);
        }
        let (directory, limit) = (self.space.directory(), self.space.limit());
        self.memory.write_space(bus, block, directory, limit);
        Ok(())
    }

    /// Makes the hardware schedule exactly the live channels.
    fn commit_runlist(&mut self, bus: &mut dyn GuestBus) -> Result<(), DriverError> {
        self.runlist_turn ^= 1;
        let list = self.runlists[self.runlist_turn];
        self.memory.show(bus, list, SMALL_PAGE)?;
        let mut count = 0;
        let live = self
            .channels
            .iter()
            .enumerate()
            .filter(|(_, channel)| channel.is_live);
        for (id, _) in live {
            let entry = id as u64 | u64::from(pfifo::RUNLIST_ENTRY_TAG) << 32;
            let at = list + count * pfifo::RUNLIST_ENTRY_BYTES;
            bus.write64(Bar::Bar3, at, entry);
            count += 1;
        }
        bringup::flush_host_writes(bus, self.limit)?;
        let base = pfifo::RunlistBase::new().with_frame((list >> 12) as u32);
        write(bus, PfifoReg::RunlistBase, base.into_bits());
        let commit = pfifo::RunlistCommit::new()
            .with_count(count as u16)
            .with_engine(pfifo::RUNLIST_ENGINE);
        write(bus, PfifoReg::RunlistCommit, commit.into_bits());
        let is_taken = |value| value & pfifo::RUNLIST_PENDING == 0;
        wait_register(bus, self.limit, "a runlist", PfifoReg::RunlistStatus, is_taken)?;
        Ok(())
    }
}

fn check_fifo(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    let interrupts = read(bus, PfifoReg::PfifoIntr);
    if interrupts == u32::MAX {
        return Err(DriverError::NoDevice);
    }
    if interrupts & pfifo::intr::MMU_FAULT != 0 {
        let units = read(bus, PfifoReg::FaultUnits);
        let unit = units
            .trailing_zeros()
            .min(fermi_spec::fault::unit::COUNT as u32 - 1) as u16;
        let mut word = |index| read(bus, PfifoReg::FaultRecord(unit * 4 + index));
        let va = u64::from(word(1)) | u64::from(word(2)) << 32;
        let kind = word(3);
        let unit = unit as u8;
        return Err(DriverError::MmuFault { unit, va, kind });
    }
    let code = if interrupts & pfifo::intr::PBDMA != 0 {
        let source = read(bus, PfifoReg::PbdmaIntrSource).trailing_zeros();
        poll::read(bus, PbdmaReg::PbdmaIntr(source.min(PBDMAS as u32 - 1) as u16))
    } else if interrupts & pfifo::intr::CHANNEL_TABLE != 0 {
        read(bus, PfifoReg::ChannelTableError)
    } else if interrupts & pfifo::intr::SCHEDULER != 0 {
        read(bus, PfifoReg::SchedulerError)
    } else if interrupts & pfifo::intr::SWITCH != 0 {
        read(bus, PfifoWord::SwitchError)
    } else {
        return Ok(());
    };
    Err(DriverError::FifoError { interrupts, code })
}

fn check_engines(bus: &mut dyn GuestBus) -> Result<(), DriverError> {
    for (index, engine) in [(0, Engine::Copy0), (1, Engine::Copy1)] {
        if read(bus, PcopyReg::CopyIntr(index)) & pcopy::copy_intr::DISPATCH != 0 {
            let code = read(bus, PcopyReg::CopyError(index));
            return Err(DriverError::EngineError { engine, code });
        }
    }
    match read(bus, PgraphReg::GraphIntr) {
        0 => Ok(()),
        code if code & graph_intr::TRAP != 0 => {
            let mut first = |register: fn(u16) -> PgraphReg| {
                let mut values = (0..GPCS).map(|gpc| read(bus, register(gpc)));
                values.find(|value| *value != 0).unwrap_or(0)
            };
            Err(DriverError::ShaderTrap {
                warp: first(PgraphReg::MpWarpError),
                global: first(PgraphReg::MpGlobalError),
            })
        }
        code => {
            let engine = Engine::Graph;
            Err(DriverError::EngineError { engine, code })
        }
    }
}
