//! A scripted card around a manager: every load and poll is answered at once, unless the test holds it; every action is
//! kept in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fermi_spec::addr::{Aperture, Gpa, PhysAddr, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use fermi_spec::instance::{AddressSpacePointer, INSTANCE_BYTES, USERD_BYTES, offset, userd};
use fermi_spec::pte::{Pde, PdeAperture, Pte};
use fermi_spec::regs::pfifo::{self, ChannelInstance};
use fermi_spec::regs::{Bar0Reg, PRAMIN_BASE, PbusReg, PffbReg, PfifoReg, PmcReg, PunitsReg, pffb};

use crate::config::{GpuConfig, Quota, VmConfig};
use crate::event::{
    Action, Actions, Event, FrameOwner, HostMemory, Place, Reply, Request, RequestId, Tick, Token, VmId,
};
use crate::manager::running::Running;
use crate::manager::{Manager, Phase};
use crate::notice::Notice;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const MS: u64 = 1_000_000;
/// VRAM of the card.
const VRAM: u64 = 64 * MIB;
/// Where the broker's semaphore lies in its own memory.
const SEMAPHORE: u64 = 0x1000;
/// Where its pushbuffer names the copy engine.
const COPY_OBJECT: u64 = 0x2004;
/// Where a guest keeps its instance block, directory, table and runlist.
pub(super) const INSTANCE: u64 = 0x10_0000;
pub(super) const DIRECTORY: u64 = 0x20_0000;
pub(super) const TABLE: u64 = 0x21_0000;
const RUNLIST: u64 = 0x28_0000;
/// First byte of guest VRAM that the tables show.
pub(super) const DATA: u64 = 4 * MIB;

/// Bytes by page, zero where nobody stored.
#[derive(Default)]
pub(super) struct Pages {
    own: BTreeMap<u64, Vec<u8>>,
    vms: BTreeMap<(VmId, bool, u64), Vec<u8>>,
    /// Bytes that were read so far.
    pub(super) read_bytes: u64,
}

/// Pages of a VM's BAR1 are kept behind those of any image, from this address on.
const BAR1_PAGES: u64 = 1 << 40;

impl Pages {
    fn page(&mut self, at: Place) -> (&mut Vec<u8>, usize) {
        let empty = || vec![0; SMALL_PAGE as usize];
        let split = |at: u64| (at / SMALL_PAGE, (at % SMALL_PAGE) as usize);
        match at {
            Place::Own { offset } => {
                let (page, within) = split(offset);
                (self.own.entry(page).or_insert_with(empty), within)
            }
            Place::Ram { vm, gpa } => {
                let (page, within) = split(gpa.0);
                (self.vms.entry((vm, true, page)).or_insert_with(empty), within)
            }
            Place::Image { vm, at } => {
                let (page, within) = split(at.0);
                (self.vms.entry((vm, false, page)).or_insert_with(empty), within)
            }
            Place::Bar1 { vm, offset } => {
                let (page, within) = split(BAR1_PAGES + offset);
                (self.vms.entry((vm, false, page)).or_insert_with(empty), within)
            }
        }
    }

    fn byte(at: Place, by: u64) -> Place {
        match at {
            Place::Own { offset } => Place::Own { offset: offset + by },
            Place::Ram { vm, gpa } => Place::Ram {
                vm,
                gpa: gpa.offset(by),
            },
            Place::Image { vm, at } => Place::Image {
                vm,
                at: at.offset(by),
            },
            Place::Bar1 { vm, offset } => Place::Bar1 {
                vm,
                offset: offset + by,
            },
        }
    }
}

impl HostMemory for Pages {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        self.read_bytes += data.len() as u64;
        for (by, byte) in (0..).zip(data) {
            let (page, within) = self.page(Self::byte(at, by));
            *byte = page[within];
        }
        true
    }

    fn write(&mut self, at: Place, data: &[u8]) -> bool {
        for (by, byte) in (0..).zip(data) {
            let (page, within) = self.page(Self::byte(at, by));
            page[within] = *byte;
        }
        true
    }
}

/// A manager, its card and the clock.
pub(super) struct Scene {
    pub(super) manager: Manager,
    pub(super) memory: Pages,
    pub(super) now: u64,
    /// What loads of registers answer; others answer zero.
    pub(super) registers: BTreeMap<Bar0Reg, u32>,
    /// Every word that BAR3 shows.
    pub(super) bar3_word: u32,
    /// Registers whose polls are held until the test ends them.
    pub(super) held: BTreeSet<Bar0Reg>,
    polls: Vec<(Token, u32)>,
    /// Copies of the broker's channel end at once.
    pub(super) copies_end: bool,
    /// Maps that may be refused are.
    pub(super) refuses_maps: bool,
    /// What becomes of memory that a move asks for; `None` for no answer yet.
    pub(super) memory_for_moves: Option<bool>,
    batches: u32,
    wake_at: Option<u64>,
    /// Every action since [`Scene::take`].
    pub(super) actions: Vec<Action>,
    next_request: u64,
    /// Most bytes of guests' memory that were read for one event.
    pub(super) most_read: u64,
    /// A VM that is asked to wait for its turn gets it at once.
    pub(super) gives_turns: bool,
}

impl Scene {
    /// A card that has not been told to start.
    pub(super) fn off(config: GpuConfig) -> Self {
        let registers = BTreeMap::from([
            (Bar0Reg::from(PmcReg::Boot0), Board::Gtx480.boot0()),
            (Bar0Reg::from(PunitsReg::DesignPartitions), 1),
            (Bar0Reg::from(PffbReg::PartitionMebibytes(0)), (VRAM / MIB) as u32),
        ]);
        Self {
            manager: Manager::new(config),
            memory: Pages::default(),
            now: 1,
            registers,
            bar3_word: 0,
            held: BTreeSet::new(),
            polls: Vec::new(),
            copies_end: true,
            refuses_maps: false,
            memory_for_moves: Some(true),
            batches: 0,
            wake_at: None,
            actions: Vec::new(),
            next_request: 0,
            most_read: 0,
            gives_turns: true,
        }
    }

    /// A card that is up and hands out frames of zeros.
    pub(super) fn up() -> Self {
        Self::with(GpuConfig {
            frames_arrive_zeroed: true,
            ..GpuConfig::default()
        })
    }

    pub(super) fn with(config: GpuConfig) -> Self {
        let mut scene = Self::off(config);
        scene.apply(Event::Start);
        scene.take();
        scene
    }

    /// Applies an event and all that the card answers.
    pub(super) fn apply(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Actions::default();
            let before = self.memory.read_bytes;
            self.manager
                .apply(Tick(self.now), event, &mut self.memory, &mut actions);
            self.most_read = self.most_read.max(self.memory.read_bytes - before);
            for action in actions.drain() {
                events.extend(self.perform(&action));
                self.actions.push(action);
            }
        }
    }

    fn perform(&mut self, action: &Action) -> Option<Event> {
        match action {
            Action::HostRead {
                token,
                bar,
                offset,
                bytes,
            } => {
                let reg = Bar0Reg::decode(*offset as u32).filter(|_| *bar == Bar::Bar0);
                let word = reg.and_then(|reg| self.registers.get(&reg)).copied();
                let mut data = word.unwrap_or(0).to_le_bytes().to_vec();
                if *bar == Bar::Bar3 {
                    data = self.bar3_word.to_le_bytes().repeat(*bytes as usize / 4);
                }
                data.resize(*bytes as usize, 0);
                Some(Event::HostValue { token: *token, data })
            }
            Action::HostPoll { token, offset, .. } => {
                let held = Bar0Reg::decode(*offset).is_some_and(|reg| self.held.contains(&reg));
                if held {
                    self.polls.push((*token, *offset));
                    return None;
                }
                Some(Event::PollDone {
                    token: *token,
                    met: true,
                })
            }
            Action::Populate { id, .. } => {
                let answer = |done| Event::Populated { id: *id, done };
                self.memory_for_moves.map(answer)
            }
            Action::MapDma { iova, refusable, .. } => {
                (*refusable && self.refuses_maps).then_some(Event::MapRefused { iova: *iova })
            }
            Action::HostWrite {
                bar: Bar::Bar1,
                offset,
                ..
            } if *offset == userd::GP_PUT => {
                self.batches += 1;
                if self.copies_end {
                    self.end_copy();
                }
                None
            }
            Action::WakeAt { at } => {
                self.wake_at = Some(at.0);
                None
            }
            _ => None,
        }
    }

    /// The broker's copies that were started are done.
    pub(super) fn end_copy(&mut self) {
        let done = self.batches.to_le_bytes();
        self.memory.write(Place::Own { offset: SEMAPHORE }, &done);
    }

    /// The engine that the broker's last batch of copies goes to.
    pub(super) fn copies_by(&mut self) -> u8 {
        let mut word = [0; 4];
        self.memory.read(Place::Own { offset: COPY_OBJECT }, &mut word);
        (u32::from_le_bytes(word) >> 16 & 0x1f) as u8
    }

    /// Ends the polls of a register that are held.
    pub(super) fn end_polls(&mut self, reg: Bar0Reg, met: bool) {
        let (ended, kept) = std::mem::take(&mut self.polls)
            .into_iter()
            .partition(|(_, offset)| *offset == reg.offset());
        self.polls = kept;
        for (token, _) in ended {
            self.apply(Event::PollDone { token, met });
        }
    }

    /// Lets time pass, with the wake-ups that were asked for.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.wake_at.is_some_and(|at| at <= end) {
            self.wake();
        }
        self.now = self.now.max(end);
    }

    /// The next wake-up that was asked for, if one was.
    pub(super) fn wake(&mut self) {
        if let Some(at) = self.wake_at.take() {
            self.now = self.now.max(at) + 1;
            self.apply(Event::Wake);
        }
    }

    /// The actions so far; the next ones are counted anew.
    pub(super) fn take(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// A VM asks; the id names its answer.
    pub(super) fn ask(&mut self, vm: VmId, request: Request) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.apply(Event::Request { vm, id, request });
        if self.gives_turns {
            self.give_turns();
        }
        id
    }

    /// Lets all VMs have the turns that they wait for; the clock follows.
    fn give_turns(&mut self) {
        while let Some(at) = self.next_turn() {
            self.now = self.now.max(at.0);
            self.apply(Event::Wake);
        }
    }

    /// When a VM has its next turn, if one waits for it.
    pub(super) fn next_turn(&self) -> Option<Tick> {
        match &self.manager.phase {
            Phase::Up(running) => running.next_turn(),
            _ => None,
        }
    }

    /// A VM of so many MiB in chunks of 2 MiB, with 16 MiB of RAM mapped.
    pub(super) fn attach(&mut self, vm: VmId, mebibytes: u64) {
        self.apply(Event::Attach {
            vm,
            config: vm_config(mebibytes),
        });
        let map = Request::MapRam {
            gpa: Gpa(0),
            bytes: 16 * MIB,
            writable: true,
        };
        self.ask(vm, map);
    }

    pub(super) fn store(&mut self, vm: VmId, bar: Bar, offset: u64, data: &[u8]) -> RequestId {
        let data = data.to_vec();
        self.ask(vm, Request::Write { bar, offset, data })
    }

    /// A load that is answered at once.
    pub(super) fn load(&mut self, vm: VmId, bar: Bar, offset: u64, bytes: u32) -> Vec<u8> {
        let id = self.ask(vm, Request::Read { bar, offset, bytes });
        match self.reply(id) {
            Some(Reply::Data(data)) => data.clone(),
            other => panic!("a load is answered by {other:?}"),
        }
    }

    pub(super) fn register(&mut self, vm: VmId, reg: Bar0Reg, value: u32) -> RequestId {
        self.store(vm, Bar::Bar0, u64::from(reg.offset()), &value.to_le_bytes())
    }

    /// Stores to instance memory through PRAMIN.
    pub(super) fn put(&mut self, vm: VmId, at: u64, data: &[u8]) {
        for (by, part) in (0..).zip(data.chunks(SMALL_PAGE as usize)) {
            let at = at + by * SMALL_PAGE;
            self.register(vm, Bar0Reg::from(PbusReg::PraminBase), (at >> 16) as u32);
            self.store(vm, Bar::Bar0, u64::from(PRAMIN_BASE) + at % 0x1_0000, part);
        }
    }

    /// Writes tables that show `mebibytes` of VRAM from [`DATA`] on, and binds channel 0 with them. The answer comes when
    /// there is memory.
    pub(super) fn bind(&mut self, vm: VmId, mebibytes: u64) -> RequestId {
        let entry = self.prepare(vm, mebibytes);
        self.register(vm, Bar0Reg::from(PfifoReg::ChannelInstance(0)), entry.into_bits())
    }

    /// Everything before that: tables and an instance block. The answer is the entry of the channel table.
    pub(super) fn prepare(&mut self, vm: VmId, mebibytes: u64) -> ChannelInstance {
        let entries = (0..mebibytes * 8).map(|page| {
            Pte::new()
                .with_valid(true)
                .with_frame(((DATA + (page << 17)) >> 12) as u32)
        });
        let table: Vec<u8> = entries.flat_map(|pte| pte.into_bits().to_le_bytes()).collect();
        self.put(vm, TABLE, &table);
        let pde = Pde::new()
            .with_large_aperture(PdeAperture::Vram)
            .with_large_frame((TABLE >> 12) as u32);
        self.put(vm, DIRECTORY + 8, &pde.into_bits().to_le_bytes());
        let mut block = vec![0; INSTANCE_BYTES as usize];
        let pointer = AddressSpacePointer {
            aperture: Aperture::Vram,
            directory: PhysAddr(DIRECTORY),
            limit: (1 << 40) - 1,
        };
        let words: Vec<u8> = pointer
            .into_words()
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        let at = offset::PD_LO as usize;
        block[at..at + words.len()].copy_from_slice(&words);
        self.put(vm, INSTANCE, &block);
        self.register(vm, Bar0Reg::from(PmcReg::PmcEnable), !0);
        self.register(vm, Bar0Reg::from(PfifoReg::UserdBase), pfifo::USERD_BASE_VALID);
        ChannelInstance::new()
            .with_frame((INSTANCE >> 12) as u32)
            .with_poll(true)
            .with_valid(true)
    }

    /// Puts channel 0 on the VM's runlist and lets it run.
    pub(super) fn run_channel(&mut self, vm: VmId) {
        self.register(vm, Bar0Reg::from(PfifoReg::ChannelState(0)), pfifo::CHANNEL_START);
        self.list_channels(vm, 1);
    }

    /// Puts the channels below `count` on the VM's runlist.
    pub(super) fn list_channels(&mut self, vm: VmId, count: u32) {
        let entries = (0..count).map(|v| u64::from(pfifo::RUNLIST_ENTRY_TAG) << 32 | u64::from(v));
        let list: Vec<u8> = entries.flat_map(u64::to_le_bytes).collect();
        self.put(vm, RUNLIST, &list);
        self.register(vm, Bar0Reg::from(PfifoReg::RunlistBase), (RUNLIST >> 12) as u32);
        self.register(vm, Bar0Reg::from(PfifoReg::RunlistCommit), count | 0x1f << 20);
    }

    /// The guest flushes its TLB.
    pub(super) fn flush(&mut self, vm: VmId) -> RequestId {
        self.register(
            vm,
            Bar0Reg::from(PffbReg::TlbDirectory),
            (DIRECTORY >> 12 << 4) as u32,
        );
        self.register(
            vm,
            Bar0Reg::from(PffbReg::TlbInvalidate),
            pffb::TLB_GO | pffb::TLB_ALL_PAGES,
        )
    }

    /// The guest rings the doorbell of channel 0.
    pub(super) fn doorbell(&mut self, vm: VmId, put: u32) {
        self.store(vm, Bar::Bar1, userd::GP_PUT, &put.to_le_bytes());
    }

    /// Two VMs that share the card: the first holds all of it, the second asks for a chunk. The request that waits is the
    /// second's.
    pub(super) fn contended(mut self) -> (Self, RequestId) {
        self.attach(VmId(0), 64);
        self.bind(VmId(0), 54);
        self.run_channel(VmId(0));
        self.attach(VmId(1), 32);
        self.take();
        let request = self.bind(VmId(1), 2);
        (self, request)
    }

    /// What was answered to a request, if it was.
    pub(super) fn reply(&self, request: RequestId) -> Option<&Reply> {
        self.actions.iter().find_map(|action| match action {
            Action::Reply {
                request: of, reply, ..
            } if *of == request => Some(reply),
            _ => None,
        })
    }

    pub(super) fn notices(&self) -> impl Iterator<Item = &Notice> {
        self.actions.iter().filter_map(|action| match action {
            Action::Notice(notice) => Some(notice),
            _ => None,
        })
    }

    pub(super) fn has(&self, action: &Action) -> bool {
        self.actions.contains(action)
    }

    /// Where the first action stands that `is` it. Panics if there is none.
    pub(super) fn first(&self, what: &str, is: impl Fn(&Action) -> bool) -> usize {
        let found = self.actions.iter().position(is);
        found.unwrap_or_else(|| panic!("no {what} among {} actions", self.actions.len()))
    }

    /// Bytes of VRAM that a VM holds.
    pub(super) fn resident(&self, vm: VmId) -> u64 {
        let audit = self.manager.audit().unwrap_or_default();
        let held = audit.vms.iter().find(|held| held.vm == vm);
        held.map_or(0, |held| held.resident)
    }

    /// The state behind the card that is up, for tests that spoil it.
    pub(super) fn running(&mut self) -> &mut Running {
        match &mut self.manager.phase {
            Phase::Up(running) => running,
            _ => panic!("the card is not up"),
        }
    }

    pub(super) fn chunks_of(&mut self, vm: VmId) -> &mut crate::memory::Chunks {
        &mut self.running().vms.get_mut(&vm).expect("attached").chunks
    }

    /// Whether a move stands aside.
    pub(super) fn is_aside(&self) -> bool {
        matches!(&self.manager.phase, Phase::Up(running) if running.mover.aside.is_some())
    }

    /// Whether a move is under way.
    pub(super) fn is_moving(&self) -> bool {
        matches!(&self.manager.phase, Phase::Up(running) if !running.mover.is_idle())
    }
}

/// A VM of so many MiB in chunks of 2 MiB without promises.
pub(super) fn vm_config(mebibytes: u64) -> VmConfig {
    VmConfig {
        name: "scene".to_owned(),
        guest_vram: mebibytes * MIB,
        chunk_bytes: 2 * MIB,
        quota: Quota::default(),
        ram: crate::RAM_DEFAULT,
        channels: crate::CHANNELS_DEFAULT,
    }
}

/// A store of a word to a register.
pub(super) fn is_store(action: &Action, reg: Bar0Reg, value: u32) -> bool {
    *action
        == Action::HostWrite {
            bar: Bar::Bar0,
            offset: u64::from(reg.offset()),
            data: value.to_le_bytes().to_vec(),
        }
}

/// A doorbell of a channel of the card.
pub(super) fn rings(action: &Action, channel: u64) -> bool {
    matches!(action, Action::HostWrite { bar: Bar::Bar1, offset, .. }
        if *offset == channel * USERD_BYTES + userd::GP_PUT)
}

/// A frame of a VM becomes free.
pub(super) fn frees(action: &Action) -> bool {
    matches!(
        action,
        Action::PlaceFrames {
            owner: FrameOwner::Free,
            ..
        }
    )
}
