//! The card as the manager uses it: arena, lanes, physical channels, runlist, copy channel.

use fermi_spec::addr::{Aperture, FRAME, FrameNo, SMALL_PAGE, VramAddr};
use fermi_spec::bar::Bar;
use fermi_spec::engine::Engine;
use fermi_spec::instance::{CHANNELS, Timeslice, USERD_BYTES, offset, userd};
use fermi_spec::pte::{SMALL_PT_ENTRIES, large_index, pde_index};
use fermi_spec::regs::windows::PraminBase;
use fermi_spec::regs::{PbusReg, PcopyReg, PffbReg, PfifoReg, PflushReg, PgraphReg, PmcReg, falcon, pfifo};
use fermi_spec::regs::{pffb, pflush};
use planted::Fault;
use serde::{Deserialize, Serialize};

use super::arena::Arena;
use super::bring_up::Layout;
use super::copy::{self, CopyChannel, CopyRun};
use super::graph::Graph;
use super::lane::{Doorbells, Job, Lane, Op, PollEnd, Tokens};
use super::lending::Lending;
use super::microcode::{Microcode, copy_engine_runs};
use crate::contained::Owner;
use crate::event::{Action, Actions, HostMemory, Tick, Token, VmId};
use crate::reason::CardOperation;
use crate::saved::Unsound;

mod inspection;
mod stopping;
mod tables;

pub(crate) use stopping::Off;
pub(crate) use tables::{OwnTables, instance_block, linear_tables, pde};

/// A channel number of the card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct PhysChannel(pub(crate) u8);

/// Where BAR1 shows the frames that the CPU copies: behind USERD, within the least BAR1 that a card may have.
pub(crate) const COPY_BAR_BASE: u64 = 8 << 20;
/// How many it shows at one time.
pub(crate) const COPY_BAR_FRAMES: usize = 32;
/// Number of the card's channel that the broker keeps for itself.
pub const OWN_CHANNEL_NUMBER: u8 = 0;
/// The broker's own channel.
pub(crate) const OWN_CHANNEL: PhysChannel = PhysChannel(OWN_CHANNEL_NUMBER);

/// What the card is to be told, in what order, and what it was asked and has not answered. It is no state: who comes back
/// without it has the card told again by whatever waits for it.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    pub(super) flush: Lane,
    fifo: Lane,
    pub(super) runlist: Lane,
    /// The list to hand over next, and what waits for it.
    next_runlist: Option<(Vec<PhysChannel>, Vec<Job>)>,
    /// Words that the list to come relies on.
    runlist_words: Vec<Op>,
    /// Work that waits for the list being handed over.
    runlist_jobs: Vec<Job>,
    doorbells: Doorbells,
}

/// The card's driver: what the card was made to be, and the lanes by which it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) arena: Arena,
    pub(crate) own: OwnTables,
    pub(crate) tokens: Tokens,
    /// What the card is being told.
    #[serde(skip)]
    pub(crate) lanes: Lanes,
    runlist_buffer: usize,
    /// Who uses each physical channel: the VM and its own number for it.
    #[serde(with = "crate::saved::array")]
    channels: Box<[Option<(VmId, u8)>; CHANNELS]>,
    /// How many of them each VM may have.
    pub(crate) lending: Lending,
    copy: CopyChannel,
    /// PMC_ENABLE as last written.
    pub(crate) pmc_enable: u32,
    /// PRAMIN window's base as last written.
    pramin_base: Option<u64>,
    /// Memory is moved by the CPU.
    pub(crate) copies_by_window: bool,
    /// Microcode of the copy engines, to be given to them again after a reset.
    microcode: Option<Box<[Microcode; 2]>>,
    /// PGRAPH, and what contexts are made from.
    pub(crate) graph: Graph,
}

/// Waits until the card's writes are in memory.
pub(crate) fn host_flushed() -> Op {
    Op::must(
        PflushReg::HostFlush,
        pflush::FLUSH_BUSY,
        0,
        CardOperation::TlbFlush,
    )
}

impl Card {
    /// A card whose arena holds all that the broker needs for its bring-up.
    pub(crate) fn new(arena: Arena, own: OwnTables, graph: Graph, tokens: Tokens) -> Self {
        Self {
            arena,
            own,
            tokens,
            lanes: Lanes::default(),
            runlist_buffer: 0,
            channels: Box::new([None; CHANNELS]),
            lending: Lending::of_channels(),
            copy: CopyChannel::default(),
            pmc_enable: !0,
            pramin_base: None,
            copies_by_window: false,
            microcode: None,
            graph,
        }
    }

    /// Checks a card that was read. `held` are the ranges of the arena that VMs hold.
    pub(crate) fn check(
        &self,
        layout: Layout,
        held: impl Iterator<Item = (VramAddr, u64, Owner)>,
    ) -> Result<(), Unsound> {
        Unsound::unless(self.runlist_buffer < self.own.runlists.len(), "runlist buffers")?;
        Unsound::unless(
            self.channels[usize::from(OWN_CHANNEL.0)].is_none(),
            "the broker's own channel is a VM's",
        )?;
        self.copy.check()?;
        let base = FrameNo(layout.arena_first).base();
        let bytes = u64::from(layout.arena_frames) * FRAME;
        let own = self.own.ranges().map(|(at, bytes)| (at, bytes, None));
        self.arena.check(base, bytes, held.chain(own))
    }

    /// Everything of bring-up but its end ([`Self::end_bring_up`]).
    ///
    /// A copy engine whose falcon stands still after the reset has no microcode. Unverified: what a card reads there.
    pub(crate) fn bring_up(&mut self, ops: Vec<Op>) {
        self.lanes.runlist.push(ops, Job::Nothing);
        for engine in [0, 1] {
            let start = Op::Write(PcopyReg::CopyControl(engine.into()).into(), falcon::CONTROL_START);
            self.lanes
                .runlist
                .push([copy_engine_runs(engine), start], Job::CopyEngineAsked(engine));
        }
        self.bring_up_graph();
        if !self.graph.has_microcode() {
            self.end_bring_up();
        }
    }

    /// Ends bring-up by the first runlist, the broker's own channel alone.
    pub(crate) fn end_bring_up(&mut self) {
        self.commit_runlist(&[], Job::BringUp);
    }

    /// Lets all lanes go on; returns the jobs that ended.
    pub(crate) fn pump(&mut self, now: Tick, actions: &mut Actions) -> Vec<(Job, bool)> {
        let Self { lanes, tokens, .. } = self;
        let mut done = lanes.flush.pump(now, tokens, &mut lanes.doorbells, actions);
        done.extend(lanes.fifo.pump(now, tokens, &mut lanes.doorbells, actions));
        loop {
            let Self { lanes, tokens, .. } = self;
            let taken = lanes.runlist.pump(now, tokens, &mut lanes.doorbells, actions);
            let ended = taken
                .iter()
                .find(|(job, _)| *job == Job::RunlistTaken)
                .map(|(_, ok)| *ok);
            done.extend(taken.into_iter().filter(|(job, _)| *job != Job::RunlistTaken));
            if let Some(ok) = ended {
                done.extend(self.lanes.runlist_jobs.drain(..).map(|job| (job, ok)));
            }
            if self.lanes.next_runlist.is_none() || !self.lanes.runlist.is_empty() {
                return done;
            }
            self.begin_runlist();
        }
    }

    /// A copy engine has no microcode: it is given some, or nobody uses it.
    pub(crate) fn supply_copy_engine(&mut self, engine: u8, microcode: Option<&[Microcode; 2]>) {
        let Some(microcode) = microcode else {
            self.copies_by_window = true;
            return;
        };
        self.microcode = Some(Box::new(microcode.clone()));
        let mut ops = self.start_copy_engine(engine);
        ops.push(copy_engine_runs(engine));
        self.lanes.runlist.push(ops, Job::CopyEngineStarted);
    }

    /// Starts a copy engine that was reset.
    pub(crate) fn start_copy_engine(&self, engine: u8) -> Vec<Op> {
        match &self.microcode {
            Some(microcode) => microcode[usize::from(engine)].upload_copy(engine),
            None if self.copies_by_window => Vec::new(),
            None => vec![Op::Write(
                PcopyReg::CopyControl(engine.into()).into(),
                falcon::CONTROL_START,
            )],
        }
    }

    /// Resets an engine and lets it take methods again. Its work ends, and its contexts are gone.
    pub(crate) fn engine_reset_steps(&self, engine: Engine) -> Vec<Op> {
        let bit = 1 << engine.enable_bit();
        let mut ops = vec![
            Op::Write(PmcReg::PmcEnable.into(), self.pmc_enable & !bit),
            Op::Write(PmcReg::PmcEnable.into(), self.pmc_enable),
            Op::Write(PfifoReg::EngineFault.into(), 1 << engine.number()),
        ];
        match engine {
            // The reset stopped its falcon.
            Engine::Copy0 => ops.extend(self.start_copy_engine(0)),
            Engine::Copy1 => ops.extend(self.start_copy_engine(1)),
            Engine::Graph => {
                ops.extend(self.graph.start());
                ops.push(Op::Write(PgraphReg::GraphIntrEnable.into(), !0));
            }
            _ => {}
        }
        ops
    }

    /// A poll ended.
    pub(crate) fn poll_done(&mut self, token: Token, met: bool) -> PollEnd {
        let lanes = &mut self.lanes;
        [&mut lanes.flush, &mut lanes.fifo, &mut lanes.runlist]
            .into_iter()
            .find(|lane| lane.waits_for(token))
            .map_or(PollEnd::GoesOn, |lane| lane.poll_done(met))
    }

    /// Drops translations of one directory, or of all.
    pub(crate) fn flush_tlb(&mut self, directory: Option<VramAddr>, job: Job) {
        let (address, scope) = match directory {
            Some(at) => ((at.0 >> 12 << 4) as u32, pffb::TLB_ALL_PAGES),
            None => (0, pffb::TLB_ALL_PAGES | pffb::TLB_ALL_DIRECTORIES),
        };
        if planted::is(Fault::FlushDropped) && matches!(job, Job::MoveFlushed(_)) {
            return self.lanes.flush.push([], job);
        }
        self.lanes.flush.push(
            [
                Op::Write(PflushReg::HostFlush.into(), 1),
                host_flushed(),
                Op::Write(PffbReg::TlbDirectory.into(), address),
                Op::Write(PffbReg::TlbInvalidate.into(), pffb::TLB_GO | scope),
                Op::must(
                    PffbReg::MmuConfig,
                    pffb::MMU_CONFIG_FLUSHED,
                    pffb::MMU_CONFIG_FLUSHED,
                    CardOperation::TlbFlush,
                ),
            ],
            job,
        );
    }

    /// Channels of the card that a VM holds.
    pub(crate) fn channels_held(&self, vm: VmId) -> usize {
        self.channels
            .iter()
            .flatten()
            .filter(|(owner, _)| *owner == vm)
            .count()
    }

    /// Gives the VM's channel a number on the card; `None` if the VM holds what it was promised and may borrow no more.
    pub(crate) fn claim_channel(&mut self, vm: VmId, channel: u8) -> Option<PhysChannel> {
        let free = (1..CHANNELS).find(|&p| self.channels[p].is_none())?;
        if !self.lending.take(vm) {
            return None;
        }
        self.channels[free] = Some((vm, channel));
        Some(PhysChannel(free as u8))
    }

    /// The channels of the card that are a VM's, whatever its accounts say.
    pub(crate) fn channels_of(&self, vm: VmId) -> Vec<PhysChannel> {
        let is_its = |channel: &u8| self.owner_of(*channel).is_some_and(|(owner, _)| owner == vm);
        (0..CHANNELS as u8).filter(is_its).map(PhysChannel).collect()
    }

    pub(crate) fn release_channel(&mut self, channel: PhysChannel) {
        if let Some((vm, _)) = self.channels[usize::from(channel.0)].take() {
            self.lending.give_back(vm);
        }
        self.lanes.doorbells.remove(&channel);
    }

    /// VM that has a physical channel.
    pub(crate) fn owner_of(&self, channel: u8) -> Option<(VmId, u8)> {
        self.channels.get(usize::from(channel)).copied().flatten()
    }

    /// Where BAR1 shows a channel's USERD.
    pub(crate) fn userd_window(channel: PhysChannel) -> u64 {
        u64::from(channel.0) * USERD_BYTES
    }

    /// USERD's place in VRAM, for the instance block.
    pub(crate) fn userd_address(&self, channel: PhysChannel) -> VramAddr {
        self.own.userd.offset(Self::userd_window(channel))
    }

    /// Rings the doorbell: at once, or with the one that waits in the lane.
    pub(crate) fn ring(&mut self, channel: PhysChannel, gp_put: u32, actions: &mut Actions) {
        match self.lanes.doorbells.get_mut(&channel) {
            Some(waiting) => *waiting = gp_put,
            None => actions.push(doorbell(channel, gp_put)),
        }
    }

    /// Channels whose doorbells wait in the lane, with their VMs.
    pub(crate) fn doorbells_to_come(&self) -> impl Iterator<Item = (VmId, u8)> {
        let waiting = self.lanes.doorbells.keys();
        waiting.filter_map(|channel| self.owner_of(channel.0))
    }

    /// Makes a channel known to PFIFO and lets it run once it is on the runlist. Its USERD begins with `shown`, and is zero behind it.
    pub(crate) fn bind(&mut self, channel: PhysChannel, instance: VramAddr, shown: &[u8], run: bool) {
        let p = u16::from(channel.0);
        let entry = pfifo::ChannelInstance::new()
            .with_frame((instance.0 >> 12) as u32)
            .with_aperture(Aperture::Vram)
            .with_poll(true)
            .with_valid(true);
        let mut page = shown.to_vec();
        page.resize(USERD_BYTES as usize, 0);
        let mut ops = vec![
            // The next user of the number may not see what the last one left, whose GP_PUT would also start the ring.
            Op::Block(Bar::Bar1, Self::userd_window(channel), page),
            Op::Write(PfifoReg::ChannelInstance(p).into(), entry.into_bits()),
        ];
        if run {
            ops.push(Op::Write(PfifoReg::ChannelState(p).into(), pfifo::CHANNEL_START));
        }
        self.lanes.fifo.push(ops, Job::Bound(channel));
    }

    /// Lets a bound channel run.
    pub(crate) fn start(&mut self, channel: PhysChannel) {
        let p = u16::from(channel.0);
        self.lanes.fifo.push(
            [Op::Write(PfifoReg::ChannelState(p).into(), pfifo::CHANNEL_START)],
            Job::Nothing,
        );
    }

    /// Keeps a bound channel from being scheduled again; what it runs goes on to its next switch point.
    pub(crate) fn disable(&mut self, channel: PhysChannel) {
        let p = u16::from(channel.0);
        self.lanes.fifo.push(
            [Op::Write(
                PfifoReg::ChannelState(p).into(),
                pfifo::CHANNEL_START & !1,
            )],
            Job::Nothing,
        );
    }

    /// Rings the doorbell behind what the preempt lane still has to do.
    pub(crate) fn ring_later(&mut self, channel: PhysChannel, gp_put: u32) {
        if self.lanes.doorbells.insert(channel, gp_put).is_none() {
            self.lanes.fifo.push([Op::Ring(channel)], Job::Nothing);
        }
    }

    /// A word of the arena, written before the next runlist is handed over.
    pub(crate) fn write_later(&mut self, at: VramAddr, word: u32) {
        let op = Op::Block(Bar::Bar3, self.arena.window(at), word.to_le_bytes().to_vec());
        self.lanes.runlist_words.push(op);
    }

    /// Hands the card a new runlist: the broker's own channel, then `channels` in order. Lists are whole, so one that
    /// the card has not begun with is replaced, and its jobs wait for the newer one.
    pub(crate) fn commit_runlist(&mut self, channels: &[PhysChannel], job: Job) {
        let (list, jobs) = self.lanes.next_runlist.get_or_insert_default();
        *list = channels.to_vec();
        if job != Job::Nothing && !jobs.contains(&job) {
            jobs.push(job);
        }
    }

    fn begin_runlist(&mut self) {
        if !self.lanes.runlist.is_empty() {
            return;
        }
        let Some((channels, jobs)) = self.lanes.next_runlist.take() else {
            return;
        };
        self.lanes.runlist_jobs = jobs;
        self.runlist_buffer ^= 1;
        let at = self.own.runlists[self.runlist_buffer];
        let mut data = Vec::with_capacity((channels.len() + 1) * 8);
        for channel in std::iter::once(&OWN_CHANNEL).chain(&channels) {
            data.extend(u32::from(channel.0).to_le_bytes());
            data.extend(pfifo::RUNLIST_ENTRY_TAG.to_le_bytes());
        }
        let commit = pfifo::RunlistCommit::new()
            .with_count(channels.len() as u16 + 1)
            .with_engine(pfifo::RUNLIST_ENGINE);
        let mut ops = std::mem::take(&mut self.lanes.runlist_words);
        ops.extend([
            Op::Block(Bar::Bar3, self.arena.window(at), data),
            Op::Write(PfifoReg::RunlistBase.into(), (at.0 >> 12) as u32),
            Op::Write(PfifoReg::RunlistCommit.into(), commit.into_bits()),
            Op::must(
                PfifoReg::RunlistStatus,
                pfifo::RUNLIST_PENDING,
                0,
                CardOperation::Runlist,
            ),
        ]);
        self.lanes.runlist.push(ops, Job::RunlistTaken);
    }

    /// Binds the broker's own channel with an empty ring: at bring-up, and after its engine had to be reset.
    pub(crate) fn own_channel_steps(own: &OwnTables, window: impl Fn(VramAddr) -> u64) -> Vec<Op> {
        let userd = own.userd.offset(Self::userd_window(OWN_CHANNEL));
        let mut block = instance_block(userd, CopyChannel::ring(), copy::RING_LOG2, own.directory);
        // The longest time slice: a batch is not interrupted by others' turns once it has begun.
        let slice = Timeslice::new()
            .with_timeout(255)
            .with_scale(15)
            .with_enable(true);
        block[offset::TIMESLICE as usize..][..4].copy_from_slice(&slice.into_bits().to_le_bytes());
        let entry = pfifo::ChannelInstance::new()
            .with_frame((own.instance.0 >> 12) as u32)
            .with_poll(true)
            .with_valid(true)
            .into_bits();
        let p = u16::from(OWN_CHANNEL.0);
        vec![
            Op::Block(Bar::Bar3, window(own.instance), block.to_vec()),
            Op::Block(Bar::Bar1, Self::userd_window(OWN_CHANNEL), vec![0; 0x100]),
            Op::Write(PflushReg::HostFlush.into(), 1),
            host_flushed(),
            Op::Write(PfifoReg::ChannelInstance(p).into(), entry),
            Op::Write(PfifoReg::ChannelState(p).into(), pfifo::CHANNEL_START),
        ]
    }

    /// The broker's own channel starts again with an empty ring.
    pub(crate) fn restart_own_channel(&mut self) {
        self.copy.restart();
        let steps = Self::own_channel_steps(&self.own, |at| self.arena.window(at));
        self.lanes.fifo.push(steps, Job::Nothing);
    }

    /// Any group of steps in the preempt lane: recovery.
    pub(crate) fn fifo_steps(&mut self, ops: Vec<Op>, job: Job) {
        self.lanes.fifo.push(ops, job);
    }

    /// Maps pages into the copy window, from its start on.
    pub(crate) fn map_window(&self, ptes: &[u64], actions: &mut Actions) {
        assert!(
            ptes.len() <= SMALL_PT_ENTRIES,
            "{} pages in the copy window",
            ptes.len()
        );
        let data = ptes.iter().flat_map(|pte| pte.to_le_bytes()).collect();
        self.arena.write(self.own.window, data, actions);
    }

    /// Shows frames in BAR1, one behind the other from [`COPY_BAR_BASE`] on. The TLB has to be flushed.
    pub(crate) fn map_copy_bar(&self, frames: &[FrameNo], actions: &mut Actions) {
        assert!(frames.len() <= COPY_BAR_FRAMES, "{} frames in BAR1", frames.len());
        let at = self.own.bar1_table.offset(COPY_BAR_BASE / FRAME * 8);
        let ptes = frames
            .iter()
            .map(|frame| copy::vram_pte(frame.base()).into_bits());
        self.arena
            .write(at, ptes.flat_map(u64::to_le_bytes).collect(), actions);
    }

    /// Has the next batch of copies go to the copy engine that is idle, if the other one is at work.
    pub(crate) fn choose_copy_engine(&mut self, is_at_work: impl Fn(Engine) -> bool) {
        self.copy.choose_engine(is_at_work);
    }

    /// Starts a batch of copies. One at a time.
    pub(crate) fn start_copy(
        &mut self,
        runs: &[CopyRun],
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        let gp_put = self.copy.submit(runs, memory);
        self.ring(OWN_CHANNEL, gp_put, actions);
    }

    /// Whether the batch started last is done.
    pub(crate) fn copy_done(&self, memory: &mut dyn HostMemory) -> bool {
        self.copy.is_done(memory)
    }

    /// A load from VRAM through PRAMIN; the answer comes with the token.
    pub(crate) fn read_vram(&mut self, at: VramAddr, bytes: u32, actions: &mut Actions) -> Token {
        let offset = self.pramin(at, actions);
        let token = self.tokens.next();
        actions.push(Action::HostRead {
            token,
            bar: Bar::Bar0,
            offset,
            bytes,
        });
        token
    }

    /// A store to VRAM through PRAMIN.
    pub(crate) fn write_vram(&mut self, at: VramAddr, data: Vec<u8>, actions: &mut Actions) {
        let offset = self.pramin(at, actions);
        actions.push(Action::HostWrite {
            bar: Bar::Bar0,
            offset,
            data,
        });
    }

    /// Points PRAMIN at the 64 KiB that hold `at`; returns where BAR0 shows it. What follows stays within a page.
    fn pramin(&mut self, at: VramAddr, actions: &mut Actions) -> u64 {
        let base = at.0 / PraminBase::UNIT;
        if self.pramin_base != Some(base) {
            self.pramin_base = Some(base);
            actions.register(PbusReg::PraminBase, base as u32);
        }
        u64::from(fermi_spec::regs::PRAMIN_BASE) + at.0 % PraminBase::UNIT
    }
}

/// The store that tells PFIFO of a new GP_PUT.
pub(crate) fn doorbell(channel: PhysChannel, gp_put: u32) -> Action {
    Action::HostWrite {
        bar: Bar::Bar1,
        offset: Card::userd_window(channel) + userd::GP_PUT,
        data: gp_put.to_le_bytes().to_vec(),
    }
}

const _: () = assert!(copy::WINDOW_BYTES / SMALL_PAGE == SMALL_PT_ENTRIES as u64);
const _: () = assert!(pde_index(copy::WINDOW_VA) == 0x800 && large_index(copy::WINDOW_VA) == 0);
const _: () = assert!(FRAME.is_multiple_of(SMALL_PAGE));
