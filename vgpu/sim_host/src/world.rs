//! A whole host on one thread: the core, the software card, the memory of all VMs.
//!
//! The world performs the core's actions, in order, and feeds results back at once. Nothing happens by itself: the
//! owner steps the card and moves the clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fermi_model::{
    Backing, Capabilities, CopyMicrocode, FermiModel, ModelConfig, Stepped, SystemBus, Timing,
};
use fermi_spec::addr::{FRAME, FrameNo, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::board::Board;
use vgpu::flight_recorder::{Flight, FlightRecorder};
use vgpu::{
    Action, Actions, Denial, Event, FrameOwner, GpuConfig, GraphMicrocode, HostMemory, InterruptKind,
    Manager, Notice, Place, Reply, RequestId, Tick, Token, VmConfig, VmId,
};
use vm_memory::{MmapRegion, VolatileMemory};

mod arena;
mod bytes;
mod failure;
mod host_memory;
mod iommu;
mod requests;
mod restless;
mod windows;

use bytes::{LEFT_BEHIND, fill, zero};
pub use host_memory::HostMemoryPace;
use iommu::Iommu;
use restless::Restless;
pub use windows::Mapped;
pub(crate) use windows::WindowAccess;
use windows::Windows;

/// Bytes of the broker's DMA memory.
const OWN_BYTES: usize = 1 << 20;
/// Events that follow from one at the same moment. More of them have no end.
const FOLLOWED_MAX: u32 = 1_000_000;

/// Memory of one VM.
pub struct VmMemory {
    /// RAM of the VM, from GPA 0.
    pub ram: Arc<MmapRegion>,
    /// VRAM of the VM as the card shows it: bytes of resident chunks at their guest addresses.
    pub vram: Arc<MmapRegion>,
    /// Parts of its VRAM in host RAM: instance memory and spilled chunks at their guest addresses.
    pub image: Arc<MmapRegion>,
    /// Bytes of a chunk of its VRAM.
    chunk_bytes: u64,
    /// Its window file, if its client has mapped it.
    windows: Option<Windows>,
    /// Its client changes memory while it is read.
    restless: Option<Restless>,
    /// Numbers of interrupts raised, by kind.
    interrupts: BTreeMap<InterruptKind, u64>,
    /// Result of its attach: done, or the reason of the refusal.
    pub attached: Option<Result<(), Denial>>,
    /// Whether it is detached, with nothing left.
    pub detached: bool,
}

impl VmMemory {
    fn interrupt(&mut self, kind: InterruptKind) {
        *self.interrupts.entry(kind).or_default() += 1;
    }

    /// Number of interrupts of a kind that were raised.
    pub fn interrupts_of(&self, kind: InterruptKind) -> u64 {
        self.interrupts.get(&kind).copied().unwrap_or(0)
    }
}

/// Plain memory for the core.
struct Memory {
    own: Arc<MmapRegion>,
    vms: BTreeMap<VmId, VmMemory>,
}

impl Memory {
    fn find(&self, at: Place) -> Option<(&Arc<MmapRegion>, u64)> {
        match at {
            Place::Ram { vm, gpa } => self.vms.get(&vm).map(|memory| (&memory.ram, gpa.0)),
            Place::Image { vm, at } => self.vms.get(&vm).map(|memory| (&memory.image, at.0)),
            Place::Bar1 { vm, offset } => Some((self.vms.get(&vm)?.windows.as_ref()?.bar1(), offset)),
            Place::Own { offset } => Some((&self.own, offset)),
        }
    }
}

impl HostMemory for Memory {
    fn read(&mut self, at: Place, data: &mut [u8]) -> bool {
        if let Place::Ram { vm, .. } | Place::Image { vm, .. } | Place::Bar1 { vm, .. } = at
            && let Some(memory) = self.vms.get_mut(&vm)
        {
            memory.disturb(at, data.len());
        }
        let slice = self
            .find(at)
            .and_then(|(region, offset)| region.get_slice(offset as usize, data.len()).ok());
        match slice {
            Some(slice) => {
                slice.copy_to(data);
                true
            }
            None => {
                data.fill(0xff);
                false
            }
        }
    }

    fn write(&mut self, at: Place, data: &[u8]) -> bool {
        let slice = self
            .find(at)
            .and_then(|(region, offset)| region.get_slice(offset as usize, data.len()).ok());
        slice.map(|slice| slice.copy_from(data)).is_some()
    }
}

struct Poll {
    token: Token,
    offset: u32,
    mask: u32,
    value: u32,
    until: Tick,
}

/// Called while events are applied.
pub type OnEvent = Box<dyn FnMut(Tick, &Event, &[Action])>;

/// What the owner of a world has done around each event. The default does nothing.
pub trait Watch: Default + Sized {
    /// Applies an event, or has somebody else apply it.
    fn apply(
        &mut self,
        manager: &mut Manager,
        now: Tick,
        event: Event,
        memory: &mut dyn HostMemory,
        actions: &mut Actions,
    ) {
        manager.apply(now, event, memory, actions);
    }

    /// Looks at the world after an event, when its actions are done.
    fn after(&mut self, world: &World<Self>, event: &Event, actions: &[Action]) {
        let _ = (world, event, actions);
    }
}

/// Nobody watches.
impl Watch for () {}

/// One host on one thread: core, card, memory of all VMs and the clock.
pub struct World<W: Watch = ()> {
    /// The core with all VMs.
    pub manager: Manager,
    config: GpuConfig,
    /// The card that the core drives.
    pub model: FermiModel,
    memory: Memory,
    iommu: Arc<Iommu>,
    /// The broker's frames, at their own VRAM addresses from `arena_base` on.
    arena: BTreeMap<FrameNo, Arc<MmapRegion>>,
    owners: BTreeMap<FrameNo, FrameOwner>,
    polls: Vec<Poll>,
    events: VecDeque<Event>,
    replies: BTreeMap<(VmId, RequestId), Reply>,
    /// Requests whose answers nobody waits for.
    posted: BTreeSet<(VmId, RequestId)>,
    refused: BTreeMap<String, u64>,
    /// All notices of the core, in order.
    pub notices: Vec<(Tick, Notice)>,
    wake_at: Option<Tick>,
    flight: FlightRecorder,
    /// Work that the card does after each action, as a real card does not wait until all actions of one decision
    /// are done. Its clock runs ahead of the host's by that.
    pub work_between_actions: u32,
    /// The clock is the card's: no event that a step leads to comes before what the card did in it.
    pub is_on_card_time: bool,
    /// Every n-th map that may be refused is refused; 0 refuses none.
    pub refuse_maps: u64,
    refusable_maps: u64,
    /// When the last one came.
    refusable_at: Option<Tick>,
    /// How the host gives memory that moves ask for.
    pub host_memory: HostMemoryPace,
    /// Starts of the maps that the card must not store to.
    read_only: BTreeSet<u64>,
    /// What is done around each event.
    pub watch: W,
    /// Time on the simulation's clock.
    pub now: Tick,
    /// The core has given the card up.
    pub is_lost: bool,
    next_request: u64,
    /// Called for each event applied, with the actions it led to.
    pub on_event: OnEvent,
}

fn region(bytes: usize) -> Arc<MmapRegion> {
    Arc::new(MmapRegion::new(bytes).expect("memory for the simulation"))
}

impl<W: Watch> World<W> {
    /// A card with `vram_bytes` and a core that has been told to start. Its PGRAPH is strict: the core gives it microcode.
    pub fn new(vram_bytes: u64, config: GpuConfig) -> Self {
        Self::with_microcode(vram_bytes, config, CopyMicrocode::default())
    }

    /// The same with copy engines of a kind.
    pub fn with_microcode(vram_bytes: u64, mut config: GpuConfig, copy_microcode: CopyMicrocode) -> Self {
        let stand_in = GraphMicrocode::for_software_card();
        config.graph.get_or_insert(stand_in);
        let manager = Manager::new(config.clone());
        Self::make(vram_bytes, (config, manager), copy_microcode, W::default())
    }

    /// Like [`World::new`], with a core that was made with `config`, watched from the first event on. PGRAPH is strict if the core has
    /// microcode for it.
    pub fn with_manager(vram_bytes: u64, config: GpuConfig, manager: Manager, watch: W) -> Self {
        Self::make(vram_bytes, (config, manager), CopyMicrocode::default(), watch)
    }

    fn make(
        vram_bytes: u64,
        (config, manager): (GpuConfig, Manager),
        copy_microcode: CopyMicrocode,
        watch: W,
    ) -> Self {
        let iommu = Arc::new(Iommu::default());
        let model = ModelConfig {
            board: Board::Gtx480,
            vram_bytes,
            timing: Timing::of(Board::Gtx480),
            copy_microcode,
            strict: config.graph.is_some(),
            capabilities: Capabilities::NONE,
        };
        let mut world = Self {
            manager,
            config,
            model: FermiModel::new(model, Arc::clone(&iommu) as Arc<dyn SystemBus>)
                .expect("a card of that size"),
            memory: Memory {
                own: region(OWN_BYTES),
                vms: BTreeMap::new(),
            },
            iommu,
            arena: BTreeMap::new(),
            owners: BTreeMap::new(),
            polls: Vec::new(),
            events: VecDeque::new(),
            replies: BTreeMap::new(),
            posted: BTreeSet::new(),
            refused: BTreeMap::new(),
            notices: Vec::new(),
            wake_at: None,
            flight: FlightRecorder::default(),
            work_between_actions: 0,
            is_on_card_time: false,
            refuse_maps: 0,
            refusable_maps: 0,
            refusable_at: None,
            host_memory: HostMemoryPace::default(),
            read_only: BTreeSet::new(),
            watch,
            now: Tick(1),
            is_lost: false,
            next_request: 0,
            on_event: Box::new(|_, _, _| ()),
        };
        world.submit(Event::Start);
        world
    }

    /// Makes memory for a VM and asks the core to attach it.
    pub fn attach(&mut self, vm: VmId, config: VmConfig, ram_bytes: usize) {
        let vram = config.guest_vram as usize;
        let memory = VmMemory {
            ram: region(ram_bytes),
            vram: region(vram),
            image: region(vram),
            chunk_bytes: config.chunk_bytes,
            windows: None,
            restless: None,
            interrupts: BTreeMap::new(),
            attached: None,
            detached: false,
        };
        self.memory.vms.insert(vm, memory);
        self.submit(Event::Attach { vm, config });
    }

    /// The settings that the core was made with.
    pub fn config(&self) -> &GpuConfig {
        &self.config
    }

    /// A VM's memory, and what it was told.
    pub fn vm(&self, vm: VmId) -> &VmMemory {
        &self.memory.vms[&vm]
    }

    /// Bytes of a chunk of a VM's VRAM.
    pub fn chunk_bytes(&self, vm: VmId) -> u64 {
        self.vm(vm).chunk_bytes
    }

    /// Feeds an event, and every event that follows from it at once.
    pub fn submit(&mut self, event: Event) {
        self.events.push_back(event);
        self.drain();
    }

    /// Lets the card work for a while.
    pub fn step(&mut self, work: u32) -> Stepped {
        let stepped = self.model.step(self.now.0, work);
        if self.is_on_card_time {
            self.now = Tick(self.now.0.max(self.model.gpu_time()));
        }
        if self.model.take_interrupt() {
            self.events.push_back(Event::HostInterrupt);
        }
        self.drain();
        stepped
    }

    /// Checks polls and the wake-up, whose time may have come; whether one had.
    pub fn look(&mut self) -> bool {
        let mut done = Vec::new();
        for poll in std::mem::take(&mut self.polls) {
            match self.poll(&poll) {
                Some(met) => done.push(Event::PollDone {
                    token: poll.token,
                    met,
                }),
                None => self.polls.push(poll),
            }
        }
        self.events.extend(done);
        self.events.extend(self.host_memory.take_due(self.now));
        let rung = self.take_doorbells();
        self.events.extend(rung);
        if self.wake_at.is_some_and(|at| at <= self.now) {
            self.wake_at = None;
            self.events.push_back(Event::Wake);
        }
        let has_come = !self.events.is_empty();
        self.drain();
        has_come
    }

    /// Time at which something is due by the clock alone.
    pub fn next_due(&self) -> Option<Tick> {
        let polls = self.polls.iter().map(|poll| poll.until);
        let timed = polls.chain(self.host_memory.next_due()).chain(self.wake_at);
        timed.chain(self.next_sweep()).min()
    }

    fn begin_poll(&mut self, poll: Poll) {
        let token = poll.token;
        match self.poll(&poll) {
            Some(met) => self.events.push_back(Event::PollDone { token, met }),
            None => self.polls.push(poll),
        }
    }

    fn poll(&mut self, poll: &Poll) -> Option<bool> {
        let mut word = [0; 4];
        self.model.bar_read(Bar::Bar0, u64::from(poll.offset), &mut word);
        match u32::from_le_bytes(word) & poll.mask == poll.value {
            true => Some(true),
            false if self.now >= poll.until => Some(false),
            false => None,
        }
    }

    fn drain(&mut self) {
        let mut actions = Actions::default();
        let mut followed = 0;
        while let Some(event) = self.events.pop_front() {
            followed += 1;
            assert!(
                followed < FOLLOWED_MAX,
                "one event is followed by others without end: {event:?}"
            );
            let shown = event.clone();
            self.flight.event(self.now, &event);
            self.watch
                .apply(&mut self.manager, self.now, event, &mut self.memory, &mut actions);
            self.flight.actions(actions.as_slice());
            (self.on_event)(self.now, &shown, actions.as_slice());
            let list: Vec<Action> = actions.drain().collect();
            for action in &list {
                self.perform(action.clone());
                if self.work_between_actions > 0 {
                    self.model.step(self.now.0, self.work_between_actions);
                }
            }
            // Out of the world while it looks at it.
            let mut watch = std::mem::take(&mut self.watch);
            watch.after(self, &shown, &list);
            self.watch = watch;
            if self.model.take_interrupt() {
                self.events.push_back(Event::HostInterrupt);
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Attached { vm } => self.with_vm(vm, |memory| memory.attached = Some(Ok(()))),
            Action::Denied { vm, reason } => self.with_vm(vm, |memory| memory.attached = Some(Err(reason))),
            // The VM keeps what it has; `laws` looks at that.
            Action::QuotaRefused { .. } | Action::HostRamRefused { .. } => {}
            Action::Detached { vm } => self.forget(vm),
            Action::Reply { vm, request, reply } => self.answer((vm, request), reply),
            Action::HostWrite { bar, offset, data } => self.model.bar_write(bar, offset, &data),
            Action::HostRead {
                token,
                bar,
                offset,
                bytes,
            } => {
                let mut data = vec![0; bytes as usize];
                self.model.bar_read(bar, offset, &mut data);
                self.events.push_back(Event::HostValue { token, data });
            }
            Action::HostPoll {
                token,
                offset,
                mask,
                value,
                timeout_ns,
            } => {
                let poll = Poll {
                    token,
                    offset,
                    mask,
                    value,
                    until: self.now.after(timeout_ns),
                };
                self.begin_poll(poll);
            }
            Action::MapDma {
                iova,
                bytes,
                memory,
                refusable,
                writable,
            } => match refusable && self.refuses() {
                true => self.events.push_back(Event::MapRefused { iova }),
                false => {
                    self.map_dma(iova, bytes, memory);
                    self.read_only.extend((!writable).then_some(iova.0));
                }
            },
            Action::UnmapDma { iova, bytes } => self.unmap_dma(iova, bytes),
            Action::PlaceFrames { frames, owner } => self.place_all(&frames, owner),
            Action::Populate { id, .. } => self.events.extend(self.host_memory.ask(id, self.now)),
            Action::DropImage { vm, at, bytes } => self.drop_image(vm, at.0, bytes),
            Action::Lend(passage) => self.change_place(&passage, true),
            Action::TakeBack(passage) => self.change_place(&passage, false),
            Action::PlaceUserd { vm, at } => self.place_userd(vm, at),
            Action::WatchChannel(watch) => self.watch_channel(watch),
            // Guests here are told of every interrupt, and have no machine that routes them. The laws refuse `GiveUp`. All pages are
            // there.
            Action::LetInterrupts { .. } | Action::GiveUp { .. } | Action::Reserve { .. } => {}
            Action::Interrupt { vm, kind } => self.with_vm(vm, |memory| memory.interrupt(kind)),
            Action::WakeAt { at } => self.wake_at = Some(at),
            Action::CardLost { .. } => self.is_lost = true,
            Action::Notice(notice) => self.notices.push((self.now, notice)),
        }
    }

    /// Whether this refusable map is one that the host refuses: of those that come together at most the first.
    fn refuses(&mut self) -> bool {
        if self.refusable_at.replace(self.now) == Some(self.now) {
            return false;
        }
        self.refusable_maps += 1;
        self.refuse_maps > 0 && self.refusable_maps.is_multiple_of(self.refuse_maps)
    }

    /// Whole maps without a gap.
    fn unmap_dma(&mut self, iova: Iova, bytes: u64) {
        let mut maps = self.iommu.maps.lock().expect("one thread");
        let mut at = iova.0;
        while at < iova.0 + bytes {
            let gone = maps.remove(&at);
            let gone = gone.unwrap_or_else(|| panic!("{at:#x} unmapped without a map"));
            self.read_only.remove(&at);
            at += gone.len() as u64;
        }
        assert_eq!(at, iova.0 + bytes, "a part of a map is unmapped");
    }

    fn map_dma(&mut self, iova: Iova, bytes: u64, memory: Place) {
        let found = self.memory.find(memory);
        let backing =
            found.and_then(|(region, at)| Backing::new(Arc::clone(region), at as usize, bytes as usize));
        let backing = backing.expect("the core maps memory that exists");
        let before = self
            .iommu
            .maps
            .lock()
            .expect("one thread")
            .insert(iova.0, backing);
        assert!(before.is_none(), "{iova} is mapped twice");
    }

    fn with_vm(&mut self, vm: VmId, change: impl FnOnce(&mut VmMemory)) {
        change(
            self.memory
                .vms
                .get_mut(&vm)
                .expect("the core speaks of VMs that exist"),
        );
    }

    fn place_all(&mut self, frames: &[FrameNo], owner: FrameOwner) {
        for (i, &frame) in (0..).zip(frames) {
            self.place(frame, owner.behind(i));
        }
    }

    fn place(&mut self, frame: FrameNo, owner: FrameOwner) {
        let old = self.owners.insert(frame, owner).unwrap_or(FrameOwner::Free);
        assert!(
            old == FrameOwner::Free || owner == FrameOwner::Free,
            "frame {frame:?} goes from {old:?} to {owner:?} without being free between"
        );
        if let FrameOwner::Vm { vm, at } = old {
            let vram = Arc::clone(&self.memory.vms[&vm].vram);
            zero(&vram, at.0, FRAME);
        }
        let backing = match owner {
            FrameOwner::Free => None,
            FrameOwner::Broker => {
                let memory = self.arena.entry(frame).or_insert_with(|| region(FRAME as usize));
                Backing::new(Arc::clone(memory), 0, FRAME as usize)
            }
            FrameOwner::Vm { vm, at } => Backing::new(
                Arc::clone(&self.memory.vms[&vm].vram),
                at.0 as usize,
                FRAME as usize,
            ),
        };
        if let FrameOwner::Vm { vm, at } = owner
            && !self.config.frames_arrive_zeroed
        {
            fill(&self.memory.vms[&vm].vram, at.0, FRAME, LEFT_BEHIND);
        }
        self.model
            .place_frame(frame, backing)
            .expect("the core places frames that exist");
    }

    /// Owner of a frame, as the core last set it.
    pub fn owner(&self, frame: FrameNo) -> FrameOwner {
        self.owners.get(&frame).copied().unwrap_or(FrameOwner::Free)
    }

    /// What happened last.
    pub fn flight(&self) -> Flight {
        self.flight.flight()
    }

    /// Whether the card reaches all of a page.
    pub fn is_mapped(&self, at: Iova, bytes: u64) -> bool {
        let found = self.iommu.resolve(at, bytes);
        found.is_some_and(|backing| backing.len() as u64 == bytes)
    }

    /// Whether the card may store to a bus address, if it is mapped at all.
    pub fn is_writable(&self, at: Iova) -> bool {
        let maps = self.iommu.maps.lock().expect("one thread");
        let map = maps.range(..=at.0).next_back();
        map.is_some_and(|(start, _)| !self.read_only.contains(start))
    }

    /// Bus addresses mapped now.
    pub fn dma_maps(&self) -> usize {
        self.iommu.maps.lock().expect("one thread").len()
    }
}
