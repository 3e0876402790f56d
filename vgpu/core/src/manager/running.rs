//! The manager while the card is up: dispatch of events, and what must hold after each.

use std::collections::{BTreeMap, BTreeSet};

use fermi_spec::addr::{FrameNo, VramAddr};
use planted::Fault;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::ahead::Ahead;
use super::claim::Claim;
use super::contexts::{GonePages, GoneSpace, Keeping};
use super::demands::Demands;
use super::engine_looks::Look;
use super::engine_time::Samples;
use super::forecast::Forecast;
use super::gpu_time::GpuTime;
use super::images::maps_of;
use super::limits::Breach;
use super::moments::EnginesAsked;
use super::mover::Mover;
use super::teardown::Leaving;
use super::wakeups::Wakeups;
use super::watchdog::Watchdog;
use super::{Cx, live_userd, parking};
use crate::config::{GpuConfig, Hold, Quota, VmConfig};
use crate::device::pci::ConfigSpace;
use crate::device::ram::IovaSpace;
use crate::device::{Queued, Vgpu, promised_slots};
use crate::event::{
    Action, Event, Place, REQUESTS_WAITING_MAX, Refusal, Reply, Request, RequestId, Tick, Token, VmId,
};
use crate::host::bring_up::{Identity, Layout};
use crate::host::interrupt::Scan;
use crate::host::lane::PollEnd;
use crate::host::{Card, Job, PhysChannel};
use crate::inspect::{Inspect, Tree};
use crate::memory::Frames;
use crate::notice::Notice;
use crate::policy::{Observation, Policy};
use crate::reason::{CardOperation, Denial, Inconsistency};

/// What nobody keeps: questions to the card, and what is left to do in an event. With [`Lanes`](crate::host::card::Lanes) all but state.
#[derive(Debug, Default)]
pub(super) struct Volatile {
    pub(super) scan: Scan,
    /// Questions who is on an engine, which is blocked until the answer.
    pub(super) looks: BTreeMap<Token, Look>,
    pub(super) watchdog: Watchdog,
    pub(super) samples: Samples,
    pub(super) gpu_time: GpuTime,
    pub(super) parking: parking::Asked,
    pub(super) ahead: Ahead,
    /// Channels that the card was asked about: whether they have work.
    pub(super) activity: BTreeMap<Token, (VmId, u8, PhysChannel, Tick)>,
    /// How far channels have come whose USERD the guest maps.
    pub(super) progress: live_userd::Asked,
    /// Pieces of images that are read for guests: number in [`Running::keeping`], and the first byte.
    pub(super) kept: BTreeMap<Token, (u64, usize)>,
    /// Instance blocks that are read for guests.
    pub(super) blocks: BTreeMap<Token, (VmId, u8, VramAddr)>,
    /// Who is on the engines, asked for moves that are about to stop their VM.
    pub(super) engines_asked: Vec<EnginesAsked>,
    /// VMs that lost an address space: what their channels reach is to be noted.
    pub(super) reach_changed: BTreeSet<VmId>,
    /// VMs whose accounts were found wrong within this event.
    pub(super) inconsistent: BTreeMap<VmId, Inconsistency>,
    /// VMs whose queue may go on.
    pub(super) ready: BTreeSet<VmId>,
    pub(super) wakeups: Wakeups,
}

/// The manager while the card is up. A field is state, to be written and read, unless it says that it is skipped.
#[derive(Serialize, Deserialize)]
pub(crate) struct Running {
    /// From the operator, at each start anew.
    #[serde(skip)]
    pub(super) config: GpuConfig,
    /// A policy writes and reads its own state.
    #[serde(skip, default = "some_policy")]
    pub(super) policy: Box<dyn Policy>,
    #[serde(skip)]
    pub(super) volatile: Volatile,
    pub(super) card: Card,
    pub(super) layout: Layout,
    pub(super) frames: Frames,
    pub(super) vms: BTreeMap<VmId, Vgpu>,
    pub(super) iova: IovaSpace,
    boot0: u32,
    pub(super) mover: Mover,
    pub(super) demands: Demands,
    /// Free frames that a pass collected for one VM.
    pub(super) claim: Option<Claim>,
    pub(super) leaving: BTreeMap<PhysChannel, Leaving>,
    /// Spaces that wait for the flush after which their tables are free.
    pub(super) spaces_leaving: BTreeMap<u64, GoneSpace>,
    /// Images of channels that are off the card, which are read.
    #[serde(default)]
    pub(super) keeping: BTreeMap<u64, Keeping>,
    /// Pages that wait for the flush after which they are free.
    #[serde(default)]
    pub(super) pages_leaving: BTreeMap<u64, GonePages>,
    pub(super) next_leaving: u64,
    pub(super) rng: ChaCha8Rng,
    /// What pauses take on this card.
    #[serde(default)]
    pub(super) forecast: Forecast,
    /// Proposals of the policy that a limit cut or refused, by the limit.
    pub(super) breaches: BTreeMap<Breach, u64>,
    /// When the card is asked next how far channels have come, no later than a VM wants to know.
    #[serde(default)]
    pub(super) progress_at: Option<Tick>,
    /// When the next refill pass is due, and whether the policy finds one worth while at once.
    pub(super) pass_at: Tick,
    pub(super) pass_wanted: bool,
}

/// Stands there until whoever reads a state puts its own.
fn some_policy() -> Box<dyn Policy> {
    crate::policy::PolicyName::default().policy(&GpuConfig::default())
}

impl Running {
    pub(super) fn new(
        config: GpuConfig,
        policy: Box<dyn Policy>,
        card: Card,
        identity: &Identity,
        layout: Layout,
        iova: IovaSpace,
    ) -> Self {
        let mut frames = Frames::new(layout.frames);
        for frame in (0..layout.frames).filter(|&frame| !layout.is_usable(frame)) {
            frames.take(FrameNo(frame));
        }
        Self {
            rng: ChaCha8Rng::seed_from_u64(config.seed),
            forecast: Forecast::default(),
            policy,
            config,
            card,
            layout,
            frames,
            vms: BTreeMap::new(),
            iova,
            boot0: identity.boot0,
            volatile: Volatile::default(),
            mover: Mover::default(),
            demands: Demands::default(),
            claim: None,
            breaches: BTreeMap::new(),
            leaving: BTreeMap::new(),
            spaces_leaving: BTreeMap::new(),
            keeping: BTreeMap::new(),
            pages_leaving: BTreeMap::new(),
            next_leaving: 0,
            progress_at: None,
            pass_at: Tick::default(),
            pass_wanted: false,
        }
    }

    pub(super) fn usable_bytes(&self) -> u64 {
        u64::from(self.layout.usable) * fermi_spec::addr::FRAME
    }

    /// Applies an event. An error is the operation that the card did not do and everything relies on: nothing was given
    /// to anybody since, and nothing may be from now on.
    pub(super) fn apply(&mut self, event: Event, cx: &mut Cx<'_>) -> Result<(), CardOperation> {
        match event {
            Event::Start => {}
            Event::Attach { vm, config } => self.attach(vm, config, cx),
            Event::LetWindows { vm } => self.let_windows(vm),
            Event::Doorbells { vm, channels } => self.doorbells(vm, &channels),
            Event::Detach { vm } => self.detach(vm, cx),
            Event::Request { vm, id, request } => match self.register_at_once(vm, &request, cx.now) {
                Some(register) => {
                    if self.access_at_once(vm, (id, request), register, cx) {
                        return Ok(());
                    }
                }
                None => self.enqueue(vm, id, request, cx),
            },
            Event::HostValue { token, data } => self.host_value(token, data, cx),
            Event::PollDone { token, met } => match self.card.poll_done(token, met) {
                PollEnd::GoesOn => {}
                PollEnd::Failed(job) => self.on_job(job, false, cx),
                PollEnd::CardLost(operation) => return Err(operation),
            },
            Event::MapRefused { iova } => self.map_refused(iova),
            Event::Populated { id, done } => self.populated(id, done, cx),
            Event::HostInterrupt => {
                // The look that the end of a copy asks for is the one that verifies it.
                if !self.verify_copy(cx) {
                    self.look_at_card(cx);
                }
            }
            Event::Wake => {
                self.volatile.wakeups.rang();
                self.give_turn(cx.now);
                if self.look_at().is_some_and(|at| at <= cx.now) {
                    self.look_at_card(cx);
                }
            }
            Event::SetHold { vm, hold } => self.set_hold(vm, hold, cx.now),
            Event::SetQuota { vm, quota } => {
                if let Err(reason) = self.set_quota(vm, quota) {
                    cx.actions.push(Action::QuotaRefused { vm, reason });
                }
            }
            Event::SetHostRam { bytes } => {
                if let Err(reason) = self.set_host_ram(bytes) {
                    cx.actions.push(Action::HostRamRefused { reason });
                }
            }
        }
        self.settle(cx);
        Ok(())
    }

    /// Goes on with everything that can go on, then tells what changed.
    pub(super) fn settle(&mut self, cx: &mut Cx<'_>) {
        loop {
            let jobs = self.card.pump(cx.now, cx.actions);
            let mut progressed = !jobs.is_empty();
            for (job, ok) in jobs {
                self.on_job(job, ok, cx);
            }
            while let Some(vm) = self.volatile.ready.pop_first() {
                self.serve(vm, cx);
                progressed = true;
            }
            while let Some(vm) = self.volatile.reach_changed.pop_first() {
                self.note_reach(vm, cx.now);
                progressed = true;
            }
            progressed |= self.go_on_reserving(cx);
            progressed |= self.check_rest(cx);
            progressed |= self.check_moment(cx);
            progressed |= self.check_copy(cx);
            progressed |= self.go_on_pointing(cx);
            progressed |= self.check_aside(cx);
            progressed |= self.end_patience(cx);
            progressed |= self.check_held(cx.now);
            progressed |= self.relieve(cx);
            progressed |= self.finish_leaving(cx);
            progressed |= self.check_left(cx);
            progressed |= self.check_parking(cx);
            progressed |= self.serve_parked(cx);
            progressed |= self.give_up_inconsistent(cx);
            if !progressed {
                break;
            }
        }
        self.tell_demands(cx);
        self.trim_images(cx);
        self.notify_due(cx.now);
        for vgpu in self.vms.values_mut() {
            vgpu.tell_signal(cx);
        }
        self.tell_usage(cx);
        self.sample_engines(cx);
        self.share_engines(cx);
        self.ask_progress(cx);
        self.ask_wake(cx);
    }

    fn on_job(&mut self, job: Job, ok: bool, cx: &mut Cx<'_>) {
        match job {
            Job::BringUp
            | Job::Nothing
            | Job::RunlistTaken
            | Job::CopyEngineAsked(_)
            | Job::CopyEngineStarted
            | Job::GraphStarted
            | Job::GoldenMade => {}
            Job::GraphRestarted => self.graph_restarted(cx),
            Job::SyncFlushed(vm) => self.sync_flushed(vm, cx),
            Job::UnmapFlushed(vm) => self.unmap_flushed(vm, cx),
            Job::WindowFlushed(id) => self.window_flushed(id, cx),
            Job::MoveFlushed(id) => self.move_flushed(id, cx),
            Job::Suspended(id) => self.suspended(id, ok, cx),
            Job::Resumed(pause) => self.resumed(pause, cx),
            Job::Preempted(vm, channel) => self.preempted(vm, channel, ok, cx),
            Job::Runlist(vm) => self.runlist_taken(vm),
            Job::Bound(channel) => self.in_table(channel),
            Job::OffList(channel) => self.off_list(channel),
            Job::Stopped(channel) => self.stopped(channel, ok, cx),
            Job::ParkedOffList(channel) => self.parked_off_list(channel),
            Job::ParkedStopped(channel) => self.parked_stopped(channel, ok, cx),
            Job::SpaceFlushed(number) => self.space_flushed(number),
            Job::PagesFlushed(number) => self.pages_flushed(number),
            Job::OwnReset => self.own_reset(ok, cx),
            Job::VmFlushed(vm) => self.vm_flushed(vm, cx),
        }
    }

    fn host_value(&mut self, token: Token, data: Vec<u8>, cx: &mut Cx<'_>) {
        let Card { tokens, .. } = &mut self.card;
        if let Some(findings) = self.volatile.scan.value(token, &data, tokens, cx.actions) {
            for finding in findings {
                self.found(finding, cx);
            }
            return;
        }
        if !self.engine_value(token, &data, cx)
            && !self.watchdog_value(token, &data, cx)
            && !self.activity_value(token, &data, cx.now)
            && !self.ahead_value(token, &data)
            && !self.block_value(token, &data, cx)
            && !self.kept_value(token, &data, cx)
            && !self.moment_value(token, &data, cx)
            && !self.sample_value(token, &data, cx)
            && !self.share_value(token, &data, cx)
            && !self.parking_value(token, &data, cx)
            && !self.progress_value(token, &data, cx)
            && !self.window_value(token, &data, cx)
        {
            self.value_for_vm(token, data, cx);
        }
    }

    fn enqueue(&mut self, vm: VmId, id: RequestId, request: Request, cx: &mut Cx<'_>) {
        let refusal = match self.vms.get_mut(&vm) {
            Some(vgpu) if vgpu.is_detaching() => Refusal::NotAttached,
            Some(vgpu) if vgpu.queue.len() >= REQUESTS_WAITING_MAX => Refusal::TooManyWaiting,
            Some(vgpu) => {
                vgpu.queue.push_back(Queued::new(id, request, cx.now));
                self.volatile.ready.insert(vm);
                return;
            }
            None => Refusal::NotAttached,
        };
        cx.actions.push(Action::Reply {
            vm,
            request: id,
            reply: Reply::Refused(refusal),
        });
    }

    fn attach(&mut self, vm: VmId, config: VmConfig, cx: &mut Cx<'_>) {
        let admitted = self.admit(vm, &config).and_then(|()| {
            let (bytes, iova) = (config.bus_bytes(), &mut self.iova);
            let at = iova.allocate(bytes, Some(vm)).0.ok_or_else(|| {
                let usable = iova.usable();
                Denial::BusAddresses { bytes, usable }
            })?;
            let needed = maps_of(&config, self.config.bus.pins);
            if !iova.reserve_maps(needed, Some(vm)) {
                // It was given just now.
                let _ = iova.release(at, vm);
                let left = iova.maps_left();
                return Err(Denial::DmaMaps { needed, left });
            }
            Ok(at)
        });
        match admitted {
            Ok(start) => {
                let pci = ConfigSpace::of(&self.config);
                let bytes = config.guest_vram;
                self.card.lending.promise(vm, config.channels);
                let slots = promised_slots(bytes, &self.card.graph);
                self.card.arena.lending.promise(vm, slots);
                let vgpu = Vgpu::new(vm, config, self.boot0, pci, start);
                if !self.config.bus.pins {
                    cx.actions.push(Action::MapDma {
                        iova: vgpu.chunks.image(),
                        bytes,
                        memory: Place::Image {
                            vm,
                            at: fermi_spec::addr::GuestVramAddr(0),
                        },
                        writable: true,
                        refusable: false,
                    });
                }
                self.vms.insert(vm, vgpu);
                cx.accounts.open(vm, cx.now);
                cx.actions.push(Action::Attached { vm });
            }
            Err(reason) => cx.actions.push(Action::Denied { vm, reason }),
        }
    }

    /// What can be refused is the start of a VM, never a guest's mapping: everything is promised here.
    fn admit(&self, vm: VmId, config: &VmConfig) -> Result<(), Denial> {
        config.check()?;
        if self.vms.contains_key(&vm) {
            return Err(Denial::AttachedAlready { vm });
        }
        let channels = self.card.lending.admit(config.channels);
        channels.map_err(Denial::channels)?;
        self.check_host_ram(self.config.host_ram, config.guest_vram)?;
        self.check_min(vm, config)?;
        let slots = promised_slots(config.guest_vram, &self.card.graph);
        self.card.arena.lending.admit(slots).map_err(Denial::shadows)
    }

    /// All guest VRAM has room in VRAM and `host_ram` together, `more` bytes of a VM that is to start included.
    fn check_host_ram(&self, host_ram: u64, more: u64) -> Result<(), Denial> {
        let usable = self.usable_bytes();
        let vms = self.vms.values().map(|vgpu| vgpu.config.guest_vram);
        let wanted = vms.fold(more, u64::saturating_add);
        match wanted > usable.saturating_add(host_ram) {
            true => Err(Denial::GuestVram {
                wanted,
                usable,
                host_ram,
            }),
            false => Ok(()),
        }
    }

    /// Host RAM for all VMs changes, unless they are promised more. What is there beyond a lower bound comes back as VRAM allows.
    fn set_host_ram(&mut self, bytes: u64) -> Result<(), Denial> {
        self.check_host_ram(bytes, 0)?;
        self.config.host_ram = bytes;
        self.pass_wanted = true;
        Ok(())
    }

    /// What all VMs are promised must be there, the VM with this configuration included.
    fn check_min(&self, vm: VmId, config: &VmConfig) -> Result<(), Denial> {
        let others = self.vms.values().filter(|vgpu| vgpu.id != vm);
        let promised = others
            .map(|vgpu| vgpu.config.promised())
            .fold(config.promised(), u64::saturating_add);
        let usable = self.usable_bytes();
        match promised > usable {
            true => Err(Denial::Min { promised, usable }),
            false => Ok(()),
        }
    }

    /// What a VM is promised changes, unless that could not be kept.
    fn set_quota(&mut self, vm: VmId, quota: Quota) -> Result<(), Denial> {
        let is_checked = !planted::is(Fault::QuotaNotChecked);
        if is_checked {
            quota.check()?;
        }
        let of = self.vms.get(&vm).ok_or(Denial::NotAttached { vm })?;
        let config = VmConfig {
            quota,
            ..of.config.clone()
        };
        if is_checked {
            self.check_min(vm, &config)?;
        }
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.config = config;
        }
        self.observe(&Observation::QuotaChanged { vm, quota });
        Ok(())
    }

    /// Memory follows by the quota in force. Channels that are held are not scheduled again: what they run goes on to its next
    /// switch point. Those that are let go run what was submitted meanwhile.
    fn set_hold(&mut self, vm: VmId, hold: Hold, now: Tick) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let is_suspended = hold.is_suspended && !planted::is(Fault::SuspendedRuns);
        let hold = Hold { is_suspended, ..hold };
        let before = std::mem::replace(&mut vgpu.hold, hold);
        if before.vram != hold.vram {
            let quota = vgpu.quota();
            self.observe(&Observation::QuotaChanged { vm, quota });
        }
        if before.is_suspended != hold.is_suspended {
            let vgpu = self.vms.get_mut(&vm).filter(|_| !hold.is_suspended);
            self.pass_wanted |= vgpu.is_some_and(|vgpu| vgpu.note_let_go(now));
            self.hold_channels(vm);
        }
    }

    fn tell_usage(&mut self, cx: &mut Cx<'_>) {
        let resident: u64 = self.vms.values().map(|vgpu| vgpu.chunks.resident()).sum();
        let card = resident + self.card.arena.bytes();
        for vgpu in self.vms.values_mut() {
            let usage = (vgpu.chunks.resident(), vgpu.chunks.spilled());
            if usage != vgpu.told {
                vgpu.told = usage;
                let (resident, spilled) = usage;
                cx.tell(Notice::Usage {
                    vm: vgpu.id,
                    resident,
                    spilled,
                    card,
                });
            }
        }
    }

    /// A guest did what no driver does. The log hears of the 1st, 2nd, 4th… time.
    pub(super) fn guest_error(&mut self, vm: VmId, what: impl FnOnce() -> String, cx: &mut Cx<'_>) {
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.guest_errors += 1;
            if vgpu.guest_errors.is_power_of_two() {
                cx.tell(Notice::GuestError { vm, what: what() });
            }
        }
    }
}

impl Inspect for Running {
    fn inspect(&self, tree: &mut Tree<'_>) {
        tree.part("layout", &self.layout);
        tree.group("frames", |tree| {
            tree.count("usable", self.layout.usable as usize);
            tree.count("free", self.frames.free_count() as usize);
            let searches = self.frames.searches();
            tree.count("searches", searches.found as usize);
            tree.count("words_looked_at", searches.words as usize);
        });
        tree.part("card", &self.card);
        tree.group("vms", |tree| {
            self.vms.iter().for_each(|(vm, vgpu)| tree.part(vm, vgpu));
        });
        match &self.mover.current {
            Some(moving) => tree.part("move", moving),
            None => tree.name("move", "none"),
        }
        if let Some(moving) = &self.mover.aside {
            tree.part("move_aside", moving);
        }
        if !self.mover.begun.is_empty() {
            tree.group("moved_in_part", |tree| {
                (0..)
                    .zip(&self.mover.begun)
                    .for_each(|(i, begun): (u32, _)| tree.part(i, begun));
            });
        }
        tree.part("forecast", &self.forecast);
        tree.part("demands", &self.demands);
        match &self.claim {
            Some(claim) => tree.part("claim", claim),
            None => tree.name("claim", "none"),
        }
        tree.group("channels_leaving", |tree| {
            for (physical, leaving) in &self.leaving {
                tree.group(physical.0, |tree| {
                    tree.name("vm", leaving.vm);
                    tree.name("stage", format_args!("{:?}", leaving.stage));
                });
            }
        });
        tree.count("spaces_leaving", self.spaces_leaving.len());
        tree.count("images_that_are_kept", self.keeping.len());
        tree.count("images_leaving", self.pages_leaving.len());
        tree.part("bus_addresses", &self.iova);
        tree.due_in("refill_pass_in", self.pass_at);
        tree.flag("refill_pass_is_wanted", self.pass_wanted);
        tree.part("wakeups", &self.volatile.wakeups);
        tree.part("watchdog", &self.volatile.watchdog);
        tree.part("gpu_time", &self.volatile.gpu_time);
        tree.part("settings", &self.config);
    }
}
