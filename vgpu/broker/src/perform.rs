//! Feeds the core one event after the other and performs its actions, in order.
//!
//! ```text
//!  event ──► queue ──► core.apply ──► actions, each at once ──┬─► card, memory, timer
//!              ▲                                              ├─► reply, interrupt ──► the VM's port
//!              └──── value of a read, end of a poll ◄─────────┘
//! ```
//!
//! Rules:
//! 1. One thread at a time is in here, under the broker's lock, and it does not wait: nothing here blocks but short
//!    accesses to the card.
//! 2. The actions of one event are all performed before the next event is applied, so their order is the order in
//!    which they were issued. Values read meanwhile queue up behind.
//! 3. A VM is forgotten at [`Action::Detached`] and not before; from the moment it is to leave, nothing of it reaches
//!    the core any more.
//!
//! A VM: `Attaching ─Attached─► Attached ─detach─► Leaving ─Detached─► gone`; one that is to leave while it is
//! attaching leaves when the core has decided.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermi_spec::addr::{FrameNo, Gpa, Iova};
use fermi_spec::bar::Bar;
use fermi_spec::regs::PmcReg;
use vfio_user_server::{Pending, Reaper};
use vgpu::{
    Action, Actions, Denial, Event, FrameOwner, HostGpu, InterruptKind, MoveId, Notice, Place, Reply,
    Request, RequestId, Tick, VmConfig, VmId,
};
use vmm_sys_util::timerfd::TimerFd;

use crate::error::{AttachError, Ended, StartError};
use crate::flights::{FlightFolder, Flights};
use crate::happenings::HappeningLog;
use crate::memory::{Memory, RamMap};
use crate::notices::NoticeLog;
use crate::perform::emptying::{Emptied, Emptying};
use crate::polls::{PERIOD_NS, Poll};
use crate::populator::Populator;
use crate::port::{Core, VmPort};
use crate::questions::Roster;
use crate::record::Recorder;
use crate::remote::Waker;
use crate::stats::Stats;
use crate::status::Status;
use crate::sweep::Sweep;
use crate::vms::{Attachment, Then, Vm, VmState, admit};

pub(crate) mod emptying;
mod failures;
mod populating;
mod windows;

/// Most VMs attached at a time. The card has 128 channels, and a guest needs at least two.
pub const VMS_MAX: u16 = 64;

/// Time between two looks for the card's interrupt, where no eventfd signals it.
const INTERRUPT_PERIOD_NS: u64 = 500_000;

/// Time between two looks whether the card still answers, while a VM is attached. A lost card sends no interrupt and no
/// error, and guests that wait for memory to change do not read it: without a look the loss would go unnoticed.
const PRESENCE_PERIOD_NS: u64 = 500_000_000;

/// Everything under the broker's lock.
pub(crate) struct Performer {
    pub(crate) core: Box<dyn Core>,
    /// `None` once lost; its DMA maps go with it.
    gpu: Option<Box<dyn HostGpu>>,
    recorder: Option<Recorder>,
    memory: Memory,
    /// Has pages ready for moves.
    for_moves: Populator<MoveId>,
    /// Has pages ready that VMs were promised.
    for_vms: Populator<Attachment>,
    pub(crate) vms: BTreeMap<VmId, Vm>,
    pub(crate) roster: Roster,
    next_serial: u64,
    polls: Vec<Poll>,
    queue: VecDeque<Event>,
    actions: Actions,
    pub(crate) stats: Stats,
    notices: NoticeLog,
    pub(crate) happenings: HappeningLog,
    flights: Flights,
    status: Arc<Status>,
    waker: Arc<Waker>,
    start: Instant,
    timer: TimerFd,
    /// When the timer will fire.
    armed: Option<Tick>,
    wake_at: Option<Tick>,
    /// When to look whether the card answers.
    look_at: Tick,
    /// No eventfd signals the card's interrupt.
    asks_for_interrupt: bool,
    /// Looks for doorbells in memory that clients map.
    sweep: Sweep,
    /// VMs to detach once the present actions are done, with the reasons.
    expulsions: Vec<(VmId, String)>,
    /// Images that the VMs' reapers have emptied.
    emptied: Arc<Emptied>,
    /// Why the last quota was refused.
    pub(crate) quota_refused: Option<Denial>,
    ended: Option<Ended>,
}

impl Performer {
    pub(crate) fn new(
        core: Box<dyn Core>,
        gpu: Box<dyn HostGpu>,
        recorder: Option<Recorder>,
        flights: Option<FlightFolder>,
        asks_for_interrupt: bool,
        status: Arc<Status>,
        waker: Arc<Waker>,
    ) -> Result<Self, StartError> {
        let timer = TimerFd::new().map_err(|error| StartError::System {
            what: "a timer",
            source: error.into(),
        })?;
        let start = Instant::now();
        let memory = Memory::new()?;
        let no_thread = |source| StartError::System {
            what: "the threads that have memory ready",
            source,
        };
        let ahead = || (waker.clone(), memory.counter_of_ahead());
        let (for_moves, for_vms) = (ahead(), ahead());
        Ok(Self {
            core,
            gpu: Some(gpu),
            recorder,
            memory,
            for_moves: Populator::start(for_moves.0, for_moves.1).map_err(no_thread)?,
            for_vms: Populator::start(for_vms.0, for_vms.1).map_err(no_thread)?,
            vms: BTreeMap::new(),
            roster: Roster::default(),
            next_serial: 0,
            polls: Vec::new(),
            queue: VecDeque::new(),
            actions: Actions::default(),
            stats: Stats::default(),
            notices: NoticeLog::new(start),
            happenings: HappeningLog::default(),
            flights: Flights::new(flights).map_err(|source| StartError::System {
                what: "the thread that writes what happened last",
                source,
            })?,
            status,
            waker,
            start,
            timer,
            armed: None,
            wake_at: None,
            look_at: Tick(PRESENCE_PERIOD_NS),
            asks_for_interrupt,
            sweep: Sweep::default(),
            expulsions: Vec::new(),
            emptied: Arc::default(),
            quota_refused: None,
            ended: None,
        })
    }

    /// The timer that [`Performer::timer_fired`] is to be called for.
    pub(crate) fn timer(&self) -> &TimerFd {
        &self.timer
    }

    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// `Err` once the broker has ended.
    pub(crate) fn check_running(&self) -> Result<(), Ended> {
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// Applies an event and everything that follows from it at once.
    pub(crate) fn submit(&mut self, event: Event) {
        self.queue.push_back(event);
        self.run();
    }

    /// Announces a VM whose client may store to `window_bytes` of memory beside. Its port hears whether it got its vGPU, perhaps before
    /// this returns.
    pub(crate) fn attach(
        &mut self,
        port: Arc<dyn VmPort>,
        config: VmConfig,
        reaper: Reaper,
        window_bytes: u64,
    ) -> Result<Attachment, AttachError> {
        self.check_running()?;
        config.check()?;
        let vm = (0..VMS_MAX).map(VmId).find(|vm| !self.vms.contains_key(vm));
        let vm = vm.ok_or(AttachError::TooManyVms)?;
        self.memory
            .check_host(config.guest_vram.saturating_add(window_bytes))?;
        self.memory
            .add_vm(vm, &config.name, config.guest_vram, reaper.clone())
            .map_err(AttachError::Image)?;
        self.stats.attach(vm, &config.name, config.guest_vram);
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = Vm {
            config: config.clone(),
            serial,
            since: self.now(),
            state: VmState::Attaching,
            port,
            waiting: Pending::default(),
            reaper,
            emptying: Emptying::default(),
            put_out: None,
        };
        self.vms.insert(vm, entry);
        self.submit(Event::Attach { vm, config });
        Ok(Attachment { vm, serial })
    }

    /// The VM is gone. Its port hears of it when nothing is left.
    pub(crate) fn detach(&mut self, attachment: Attachment) {
        if self.entry(attachment).is_some() {
            self.leave(attachment.vm);
            self.run();
        }
    }

    fn entry(&self, attachment: Attachment) -> Option<&Vm> {
        self.vms
            .get(&attachment.vm)
            .filter(|entry| entry.serial == attachment.serial)
    }

    fn leave(&mut self, vm: VmId) {
        let Some(entry) = self.vms.get_mut(&vm) else {
            return;
        };
        match entry.state {
            VmState::Attached => {
                entry.state = VmState::Leaving;
                entry.refuse_all();
                self.queue.push_back(Event::Detach { vm });
            }
            VmState::Attaching => entry.state = VmState::AttachingToLeave,
            VmState::AttachingToLeave | VmState::Leaving => {}
        }
    }

    /// Takes a VM's request; the answer comes through its port, perhaps before this returns. One whose VM is gone is
    /// dropped: its port has been informed. Maps of RAM come with their memory, see [`Performer::map_ram`].
    pub(crate) fn request(&mut self, attachment: Attachment, id: RequestId, request: Request) {
        if let Some(entry) = admit(&mut self.vms, attachment, id) {
            entry.waiting.insert(id, Then::after(&request));
            if let Some(request) = entry.emptying.admit(id, request) {
                let vm = attachment.vm;
                self.submit(Event::Request { vm, id, request });
            }
        }
    }

    /// The same for a range of RAM at `gpa`, with the memory that lies there.
    pub(crate) fn map_ram(&mut self, attachment: Attachment, id: RequestId, gpa: Gpa, map: RamMap) {
        let Some(entry) = admit(&mut self.vms, attachment, id) else {
            return;
        };
        let vm = attachment.vm;
        if let Err(refusal) = self.memory.has_room(vm, gpa, map.bytes) {
            return entry.port.reply(id, Reply::Refused(refusal));
        }
        let request = Request::MapRam {
            gpa,
            bytes: map.bytes,
            writable: map.writable,
        };
        entry.waiting.insert(id, Then::after(&request));
        let request = entry.emptying.admit(id, request);
        self.memory.insert_ram(vm, gpa, map);
        if let Some(request) = request {
            self.submit(Event::Request { vm, id, request });
        }
    }

    /// The timer fired: polls, the core's wake-up, the interrupt if nothing else signals it.
    pub(crate) fn timer_fired(&mut self) {
        self.armed = None;
        // Also forgets that it fired. Reading it would wait if another thread had set it anew in between.
        if let Err(error) = self.timer.clear() {
            log::error!("cannot clear the timer: {error}");
        }
        self.recheck_polls();
        let now = self.now();
        if self.wake_at.is_some_and(|at| at <= now) {
            self.wake_at = None;
            self.queue.push_back(Event::Wake);
        }
        if self.look_at <= now {
            self.look_at = now.after(PRESENCE_PERIOD_NS);
            self.look_at_card();
        }
        self.look_for_doorbells(now);
        self.run();
    }

    pub(crate) fn now(&self) -> Tick {
        Tick(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn run_queue(&mut self) {
        if self.asks_for_interrupt && self.gpu.as_mut().is_some_and(|gpu| gpu.take_interrupt()) {
            self.queue.push_back(Event::HostInterrupt);
        }
        while self.ended.is_none() {
            if let Some(event) = self.queue.pop_front() {
                self.step(event);
            } else if let Some((vm, reason)) = self.expulsions.pop() {
                self.expel(vm, &reason);
            } else {
                self.on_card(None, |gpu| gpu.flush());
                return self.arm();
            }
        }
    }

    /// The card may be gone, or the connection to it cut: an access finds out.
    pub(crate) fn look_at_card(&mut self) {
        self.on_card(None, |gpu| {
            gpu.read(Bar::Bar0, PmcReg::Boot0.offset().into(), &mut [0; 4])
        });
        self.run();
    }

    fn step(&mut self, event: Event) {
        self.stats.event(&event);
        let now = self.now();
        self.flights.recorder.event(now, &event);
        let (core, memory, actions) = (&mut *self.core, &mut self.memory, &mut self.actions);
        match &mut self.recorder {
            Some(recorder) => recorder.apply(core, now, event, memory, actions),
            None => core.apply(now, event, memory, actions),
        }
        self.expulsions.extend(self.memory.take_starved());
        let mut actions = std::mem::take(&mut self.actions);
        self.flights.recorder.actions(actions.as_slice());
        for action in actions.drain() {
            self.perform(now, action);
        }
        self.actions = actions;
    }

    fn perform(&mut self, now: Tick, action: Action) {
        match action {
            Action::Attached { vm } => self.attached(vm),
            Action::Denied { vm, reason } => self.denied(vm, reason),
            Action::QuotaRefused { reason, .. } | Action::HostRamRefused { reason } => {
                self.quota_refused = Some(reason);
            }
            Action::Detached { vm } => self.detached(vm),
            Action::GiveUp { vm, reason } => self.give_up(vm, &reason),
            Action::Reply { vm, request, reply } => self.reply(vm, request, reply),
            Action::HostWrite { bar, offset, data } => {
                self.on_card(None, |gpu| gpu.write(bar, offset, &data));
            }
            Action::HostRead {
                token,
                bar,
                offset,
                bytes,
            } => {
                let mut data = vec![0xff; bytes as usize];
                self.on_card(None, |gpu| gpu.read(bar, offset, &mut data));
                self.queue.push_back(Event::HostValue { token, data });
            }
            Action::HostPoll {
                token,
                offset,
                mask,
                value,
                timeout_ns,
            } => {
                self.poll(Poll {
                    token,
                    offset,
                    mask,
                    value,
                    deadline: now.after(timeout_ns),
                });
            }
            Action::MapDma {
                iova,
                bytes,
                memory,
                writable,
                refusable,
            } => self.map_dma(iova, (memory, bytes), writable, refusable),
            Action::UnmapDma { iova, bytes } => self.on_card(None, |gpu| gpu.unmap_dma(iova, bytes)),
            Action::PlaceFrames { frames, owner } => self.place(&frames, owner),
            Action::DropImage { vm, at, bytes } => self.drop_image(vm, at, bytes),
            Action::Populate {
                id,
                vm,
                images,
                frames,
            } => self.populate(id, vm, &images, &frames),
            Action::Reserve { vm, images } => self.reserve(vm, &images),
            Action::Lend(passage) => self.change_place(&passage, true),
            Action::TakeBack(passage) => self.change_place(&passage, false),
            Action::PlaceUserd { vm, at } => self.place_userd(vm, at),
            Action::WatchChannel(watch) => self.sweep.watch_channel(watch, now),
            Action::Interrupt { vm, kind } => self.interrupt(vm, kind),
            Action::LetInterrupts { vm, through } => {
                if let Some(entry) = self.vms.get(&vm).filter(|entry| entry.state == VmState::Attached) {
                    entry.port.let_interrupts(through);
                }
            }
            Action::WakeAt { at } => self.wake_at = Some(at),
            Action::CardLost { operation } => self.give_card_up(operation),
            Action::Notice(notice) => self.notice(&notice),
        }
    }

    fn notice(&mut self, notice: &Notice) {
        self.stats.notice(notice);
        self.status.notice(notice);
        let vms = &self.vms;
        self.happenings.notice(notice, vms);
        self.notices
            .log(notice, |vm| vms.get(&vm).map(|vm| vm.config.name.as_str()));
    }

    fn map_dma(&mut self, iova: Iova, (place, bytes): (Place, u64), writable: bool, refusable: bool) {
        let owner = owner_of(place);
        // A refusable map costs no VM its vGPU.
        let payer = owner.filter(|_| !refusable);
        let mut refused = None;
        match self.memory.dma_memory(place, bytes) {
            Ok(memory) => self.on_card(payer, |gpu| {
                let mapped = gpu.map_dma(iova, memory, writable);
                mapped.inspect_err(|error| refused = Some(error.to_string()))
            }),
            Err(error) => {
                self.failed(payer, &error.to_string());
                refused = Some(error.to_string());
            }
        }
        match (refused, owner) {
            (Some(_), _) if refusable => self.queue.push_back(Event::MapRefused { iova }),
            // Without its own memory the broker moves nothing, for no VM.
            (Some(reason), None) => self.fail(&reason),
            _ => {}
        }
    }

    fn attached(&mut self, vm: VmId) {
        let Some(entry) = self.vms.get_mut(&vm) else {
            return;
        };
        match entry.state {
            VmState::Attaching => {
                entry.state = VmState::Attached;
                let name = entry.config.name.clone();
                self.happenings.came(&name);
                entry.port.attached(Ok(()));
                let held = self.hold_from_start(vm, &name);
                self.queue.extend(held);
            }
            VmState::AttachingToLeave => {
                entry.state = VmState::Leaving;
                self.queue.push_back(Event::Detach { vm });
            }
            VmState::Attached | VmState::Leaving => {}
        }
    }

    fn denied(&mut self, vm: VmId, reason: Denial) {
        let Some(entry) = self.vms.remove(&vm) else { return };
        self.memory.remove_vm(vm);
        self.stats.forget(vm);
        if entry.state == VmState::Attaching {
            entry.port.attached(Err(reason));
        }
        entry.port.detached();
    }

    fn detached(&mut self, vm: VmId) {
        let Some(mut entry) = self.vms.remove(&vm) else {
            return;
        };
        // Answers the requests that neither the core nor `leave` has answered.
        entry.refuse_all();
        self.sweep.leave(vm);
        self.memory.remove_vm(vm);
        self.stats.detach(vm);
        entry.port.detached();
        self.happenings.went(&entry.config.name, entry.put_out.as_deref());
        self.notices
            .vm(log::Level::Info, &entry.config.name, format_args!("vm detached"));
    }

    fn reply(&mut self, vm: VmId, request: RequestId, reply: Reply) {
        let Some(entry) = self.vms.get_mut(&vm) else {
            return;
        };
        let Some(then) = entry.waiting.remove(request) else {
            return;
        };
        let is_refused = matches!(reply, Reply::Refused(_));
        match then {
            Then::Map { gpa, bytes } if is_refused => self.memory.remove_ram(vm, gpa, bytes),
            Then::Unmap { gpa, bytes } if !is_refused => self.memory.remove_ram(vm, gpa, bytes),
            Then::Map { .. } | Then::Unmap { .. } | Then::Nothing => {}
        }
        let next = entry.emptying.answered(request);
        entry.port.reply(request, reply);
        self.go_on(vm, next);
    }

    fn place(&mut self, frames: &[FrameNo], owner: FrameOwner) {
        let vm = match owner {
            FrameOwner::Vm { vm, .. } => Some(vm),
            FrameOwner::Broker | FrameOwner::Free => None,
        };
        self.on_card(vm, |gpu| gpu.place_frames(frames, owner));
    }

    fn interrupt(&mut self, vm: VmId, kind: InterruptKind) {
        if let Some(entry) = self.vms.get(&vm).filter(|entry| entry.state == VmState::Attached) {
            self.stats.interrupt(vm);
            entry.port.interrupt(kind);
        }
    }

    fn poll(&mut self, poll: Poll) {
        let now = self.now();
        let mut over = None;
        self.on_card(None, |gpu| {
            over = poll.look(gpu, now)?;
            Ok(())
        });
        // A card that fails to answer does not make a poll last.
        match over.or((now >= poll.deadline).then_some(false)) {
            Some(met) => self.queue.push_back(Event::PollDone {
                token: poll.token,
                met,
            }),
            None => self.polls.push(poll),
        }
    }

    fn recheck_polls(&mut self) {
        for poll in std::mem::take(&mut self.polls) {
            self.poll(poll);
        }
    }

    /// Sets the timer to the next time at which something is due.
    fn arm(&mut self) {
        let is_used = !self.vms.is_empty();
        let due = [
            (!self.polls.is_empty()).then(|| self.now().after(PERIOD_NS)),
            (is_used && self.asks_for_interrupt).then(|| self.now().after(INTERRUPT_PERIOD_NS)),
            is_used.then_some(self.look_at),
            self.wake_at,
            self.sweep.due(),
        ];
        let Some(due) = due.into_iter().flatten().min() else {
            return;
        };
        // A timer that fires earlier will come back here.
        if self.armed.is_some_and(|armed| armed <= due) {
            return;
        }
        let wait = Duration::from_nanos(due.since(self.now()).max(1));
        match self.timer.reset(wait, None) {
            Ok(()) => self.armed = Some(due),
            Err(error) => {
                // Without a timer nothing that was begun would ever end.
                log::error!("cannot set the timer: {error}");
                self.fail("its timer failed");
            }
        }
    }
}

fn owner_of(place: Place) -> Option<VmId> {
    match place {
        Place::Ram { vm, .. } | Place::Image { vm, .. } | Place::Bar1 { vm, .. } => Some(vm),
        Place::Own { .. } => None,
    }
}
