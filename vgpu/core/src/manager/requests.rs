//! A VM's queue: requests are executed in order, and the head may block.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use fermi_spec::regs::{VgaReg, Width};
use mmio::{Bar0Read, Bar0Write, decode_read, decode_write};
use planted::Fault;

use super::Cx;
use super::running::Running;
use crate::contained::contained;
use crate::device::effect::Effect;
use crate::device::pci::{self, ConfigSpace};
use crate::device::tables::Reader;
use crate::device::{Blocked, LeaveStage, Queued, Remap, SyncStage, Vgpu};
use crate::event::{Action, HostMemory, Reply, Request, RequestId, Token, VmId};
use crate::memory::GuestPage;
use crate::notice::Notice;
use crate::reason::Inconsistency;
use crate::share::PAGE_FETCHED;

/// How executing a request ended.
pub(super) enum Step {
    /// It is done: send this answer.
    Done(Reply),
    /// It waits for this, and keeps its place.
    Blocked(Blocked),
}

/// The value of up to four bytes that a guest stores.
pub(super) fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(word)
}

/// Reads guest memory for the broker.
pub(super) fn reader<'a>(vgpu: &'a Vgpu, memory: &'a mut dyn HostMemory) -> Reader<'a> {
    Reader {
        vm: vgpu.id,
        chunks: &vgpu.chunks,
        ram: &vgpu.ram,
        fetched: &vgpu.fetched,
        memory,
        missing: Vec::new(),
    }
}

/// Whether a unit of a VM has taken a store.
pub(super) enum Written {
    Yes(Effect),
    /// It is not for a unit, or none takes it.
    No,
    Panicked(Inconsistency),
}

impl Vgpu {
    /// Stores to the unit that has the register.
    pub(super) fn write_to_unit(&mut self, write: &Bar0Write) -> Written {
        match *write {
            Bar0Write::Register { reg, value } => {
                match contained("writing a register", || self.units.write(reg, value)) {
                    Ok(effect) => Written::Yes(effect),
                    Err(what) => Written::Panicked(what),
                }
            }
            Bar0Write::MsiRearm => {
                self.units.pmc.rearm();
                Written::Yes(Effect::None)
            }
            Bar0Write::Unmodelled { offset, value } if self.units.write_unnamed(offset, value) => {
                Written::Yes(Effect::None)
            }
            _ => Written::No,
        }
    }
}

impl Running {
    /// Executes the VM's queue, up to a request that blocks, and looks at what it has submitted with what is left of its turn: a look takes all of
    /// one, and a guest can submit what takes hundreds.
    pub(super) fn serve(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        if self
            .vms
            .get(&vm)
            .is_some_and(|vgpu| vgpu.leave.stage() == Some(LeaveStage::Unmapping))
        {
            return self.go_on_unmapping(vm, cx);
        }
        self.serve_requests(vm, cx);
        self.serve_work(vm, cx);
    }

    fn serve_requests(&mut self, vm: VmId, cx: &mut Cx<'_>) {
        loop {
            if !self.has_turn(vm, cx.now) {
                return;
            }
            self.serve_doorbells(vm, cx);
            let Some(vgpu) = self.vms.get_mut(&vm) else { return };
            let request = match vgpu.blocked.take() {
                None => match vgpu.queue.pop_front() {
                    Some(request) => request,
                    None => return,
                },
                // The code that made the VM ready knows that the wait is over; an unmet condition blocks again.
                Some(
                    Blocked::Move { request } | Blocked::Demand { request } | Blocked::Context { request },
                ) => request,
                Some(Blocked::Sync(sync)) => {
                    let step = self.advance_sync(vm, sync, cx);
                    match step {
                        Some(step) => {
                            if !self.conclude(vm, step, cx) {
                                return;
                            }
                            continue;
                        }
                        None => return,
                    }
                }
                Some(Blocked::Remap(remap)) if remap.can_go_on() => match self.advance_remap(vm, remap, cx) {
                    Some(_) => continue,
                    None => return,
                },
                Some(other) => {
                    vgpu.blocked = Some(other);
                    return;
                }
            };
            vgpu.share.charge(request.work());
            let id = request.id;
            let step = self.execute(vm, request, cx);
            if !self.finish(vm, id, step, cx) {
                return;
            }
        }
    }

    /// Answers a request that is done, or records what it waits for; `true` if the queue may go on.
    pub(super) fn finish(&mut self, vm: VmId, id: RequestId, step: Step, cx: &mut Cx<'_>) -> bool {
        let Step::Done(reply) = step else {
            return self.conclude(vm, step, cx);
        };
        cx.actions.push(Action::Reply {
            vm,
            request: id,
            reply,
        });
        if let Some(vgpu) = self.vms.get_mut(&vm)
            && !planted::is(Fault::FetchedTableKept)
        {
            vgpu.fetched.clear();
        }
        true
    }

    /// Records a block; `true` if there was none and the queue may go on. The caller, who knows the request, replies.
    fn conclude(&mut self, vm: VmId, step: Step, cx: &mut Cx<'_>) -> bool {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        match step {
            Step::Done(_) => true,
            Step::Blocked(Blocked::Sync(sync)) => match self.advance_sync(vm, sync, cx) {
                Some(step) => self.conclude(vm, step, cx),
                None => false,
            },
            Step::Blocked(Blocked::Remap(remap)) => match self.advance_remap(vm, remap, cx) {
                Some(step) => self.conclude(vm, step, cx),
                None => false,
            },
            Step::Blocked(blocked) => {
                vgpu.blocked = Some(blocked);
                false
            }
        }
    }

    fn execute(&mut self, vm: VmId, queued: Queued, cx: &mut Cx<'_>) -> Step {
        match &queued.kind {
            Request::Read { .. } | Request::Write { .. } => self.bar_access(vm, queued, cx),
            Request::ReadConfig { offset, .. } => {
                let (offset, mut data) = (*offset, queued.answer);
                if let Some(vgpu) = self.vms.get(&vm) {
                    vgpu.units.read_config(offset, &mut data);
                }
                Step::Done(Reply::Data(data))
            }
            Request::WriteConfig { offset, data } => {
                self.change_config(vm, cx, |config| config.write(*offset, data));
                Step::Done(Reply::Done)
            }
            Request::MapRam { gpa, bytes, writable } => {
                let (gpa, bytes) = (*gpa, *bytes);
                match self.reserve_ram(vm, (gpa, bytes), *writable, cx) {
                    Ok(()) => Step::Blocked(Blocked::Remap(Remap::new(queued, (gpa, bytes), false))),
                    Err(refusal) => Step::Done(Reply::Refused(refusal)),
                }
            }
            Request::UnmapRam { gpa, bytes } => {
                let (gpa, bytes) = (*gpa, *bytes);
                self.unmap_ram(vm, queued, gpa, bytes)
            }
            Request::MaskIntx { masked } => {
                if let Some(vgpu) = self.vms.get_mut(&vm) {
                    vgpu.units.mask_intx(*masked);
                }
                Step::Done(Reply::Done)
            }
            Request::Reset => self.begin_reset(vm, queued, cx),
        }
    }

    /// Performs the piece at hand of an access to BAR0, which is a register's. The request comes back when that piece is
    /// over and others may follow.
    pub(super) fn register_piece(
        &mut self,
        vm: VmId,
        mut request: Queued,
        (offset, width): (u32, Width),
        cx: &mut Cx<'_>,
    ) -> ControlFlow<Step, Queued> {
        let end = request.done + width.bytes();
        if let Request::Write { data, .. } = &request.kind {
            let value = word(&data[request.done..end]);
            let effect = self.register_write(vm, offset, width, value, cx);
            request = self.follow_store(vm, request, effect, cx)?;
        } else {
            let value = self.register_read(vm, offset, width, cx);
            request.answer[request.done..end].copy_from_slice(&value.to_le_bytes()[..width.bytes()]);
        }
        request.done = end;
        ControlFlow::Continue(request)
    }

    /// What a store to a register leads to: windows show something else, and work for the mediator.
    pub(super) fn follow_store(
        &mut self,
        vm: VmId,
        request: Queued,
        effect: Effect,
        cx: &mut Cx<'_>,
    ) -> ControlFlow<Step, Queued> {
        match self.follow_windows(vm, request, &effect, cx) {
            Ok(rest) if effect == Effect::None => ControlFlow::Continue(rest),
            Ok(rest) => self.take_effect(vm, rest, effect, cx),
            Err(blocked) => ControlFlow::Break(Step::Blocked(*blocked)),
        }
    }

    pub(super) fn register_read(&mut self, vm: VmId, offset: u32, width: Width, cx: &mut Cx<'_>) -> u32 {
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return width.ones();
        };
        match decode_read(offset, width) {
            Bar0Read::Register(reg) => {
                let read = contained("reading a register", || vgpu.units.read(reg, cx.now));
                self.believe(vm, read).unwrap_or(width.ones())
            }
            Bar0Read::Prom { offset, width } => pci::read_prom(&vgpu.units.pci, offset, width),
            Bar0Read::PciMirror { offset, width } => vgpu.units.read_mirror(offset, width),
            Bar0Read::VgaCrtc { .. } => pci::read_vga(VgaReg::VgaCrtc),
            Bar0Read::Unmodelled { offset } => match vgpu.units.read_unnamed(offset) {
                Some(value) => value,
                None => {
                    self.guest_error(vm, || format!("load from unmodelled register {offset:#08x}"), cx);
                    0
                }
            },
            Bar0Read::Narrow { width, .. } => width.ones(),
        }
    }

    /// Work that a store to a register leaves to the mediator. A store that no unit takes is noted and leaves none.
    pub(super) fn register_write(
        &mut self,
        vm: VmId,
        offset: u32,
        width: Width,
        value: u32,
        cx: &mut Cx<'_>,
    ) -> Effect {
        let write = decode_write(offset, width, value);
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return Effect::None;
        };
        let written = vgpu.write_to_unit(&write);
        self.follow_written(vm, (offset, value), (write, written), cx)
    }

    /// What a store of `value` to `offset` leaves to the mediator that its VM's units have taken, or not.
    pub(super) fn follow_written(
        &mut self,
        vm: VmId,
        (offset, value): (u32, u32),
        (write, written): (Bar0Write, Written),
        cx: &mut Cx<'_>,
    ) -> Effect {
        match (write, written) {
            (_, Written::Panicked(what)) => {
                self.inconsistent(vm, what);
                Effect::None
            }
            (Bar0Write::PciMirror { offset, width, value }, _) => {
                self.change_config(vm, cx, |config| pci::write_mirror(config, offset, width, value));
                Effect::None
            }
            (Bar0Write::Prom { .. } | Bar0Write::VgaCrtc { .. }, _) => Effect::None,
            (_, Written::No | Written::Yes(Effect::Refused)) => {
                let text = || format!("store of {value:#x} to register {offset:#08x}, which takes none");
                self.guest_error(vm, text, cx);
                Effect::None
            }
            (_, Written::Yes(effect)) => effect,
        }
    }

    /// Acts on a store to a register. It may block; a sync goes on with the rest of the access when it is over.
    fn take_effect(
        &mut self,
        vm: VmId,
        request: Queued,
        effect: Effect,
        cx: &mut Cx<'_>,
    ) -> ControlFlow<Step, Queued> {
        let rest = request.rest();
        let step = match effect {
            Effect::None | Effect::Refused => Step::Done(Reply::Done),
            Effect::Flush(directory) => self.begin_flush(vm, request, directory),
            Effect::ChannelInstance(channel, entry) if entry.valid() => {
                self.begin_bind(vm, request, channel, entry, cx)
            }
            Effect::ChannelInstance(channel, _) => {
                self.unbind(vm, channel, cx);
                Step::Done(Reply::Done)
            }
            Effect::ChannelState(channel, run) => self.channel_state(vm, request, channel, run, cx),
            Effect::Runlist(base, count) => self.runlist_commit(vm, request, base, count, cx),
            Effect::Preempt(channel) => {
                self.preempt(vm, channel, cx);
                Step::Done(Reply::Done)
            }
            Effect::ErrorSeen => {
                self.errors_seen(vm);
                Step::Done(Reply::Done)
            }
            Effect::ResetFifo => {
                self.unbind_all(vm, cx);
                Step::Done(Reply::Done)
            }
        };
        match (step, rest) {
            (Step::Done(Reply::Done), Some(rest)) => ControlFlow::Continue(rest),
            (step, _) => ControlFlow::Break(step),
        }
    }

    /// Changes a VM's configuration space, and tells whether interrupts are let through if that changed too.
    fn change_config(&mut self, vm: VmId, cx: &mut Cx<'_>, change: impl FnOnce(&mut ConfigSpace)) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let config = &mut vgpu.units.pci;
        let (before, had_msi) = (config.can_interrupt(), config.is_msi_enabled());
        change(config);
        let through = config.can_interrupt();
        // Whoever switches messages on has missed those before: a line that is up is told anew.
        if config.is_msi_enabled() && !had_msi {
            vgpu.units.pmc.rearm();
        }
        if through != before {
            cx.actions.push(Action::LetInterrupts { vm, through });
        }
    }

    /// Starts fetching pages of guest tables that lie in VRAM.
    pub(super) fn fetch(
        &mut self,
        vm: VmId,
        pages: &[GuestPage],
        cx: &mut Cx<'_>,
    ) -> BTreeMap<Token, GuestPage> {
        let mut tokens = BTreeMap::new();
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return tokens;
        };
        let unique: BTreeSet<GuestPage> = pages.iter().copied().collect();
        vgpu.share.charge(unique.len() as u64 * PAGE_FETCHED);
        for page in unique {
            if let shadow_pt::Placement::Vram(at) = vgpu.chunks.locate(page.base())
                && self.frames.is_at(at, vm)
            {
                let token = self
                    .card
                    .read_vram(at, fermi_spec::addr::SMALL_PAGE as u32, cx.actions);
                tokens.insert(token, page);
            }
        }
        if !tokens.is_empty() {
            let pages = tokens.len() as u32;
            cx.tell(Notice::TablesFetched { vm, pages });
        }
        tokens
    }

    /// Takes a value from the card that a VM's request waits for.
    pub(super) fn value_for_vm(&mut self, token: Token, data: Vec<u8>, cx: &mut Cx<'_>) {
        let Some(vgpu) = self.vms.values_mut().find(|vgpu| waits_for(vgpu, token)) else {
            return;
        };
        let vm = vgpu.id;
        let mut came = None;
        let mut keep = |vgpu: &mut Vgpu, page: GuestPage| {
            came = Some(page);
            // Whatever the card answers, the page is there then: nobody asks for it again.
            let mut bytes = Box::new([0xff; fermi_spec::addr::SMALL_PAGE as usize]);
            bytes.iter_mut().zip(&data).for_each(|(to, from)| *to = *from);
            vgpu.fetched.insert(page, bytes);
        };
        let goes_on = match vgpu.blocked.take() {
            Some(Blocked::Value {
                mut request, length, ..
            }) => {
                if let Some(part) = request.answer.get_mut(request.done..request.done + length) {
                    part.fill(0xff);
                    part.iter_mut().zip(&data).for_each(|(to, from)| *to = *from);
                }
                request.done += length;
                vgpu.queue.push_front(request);
                true
            }
            Some(Blocked::Fetch { mut pages, request }) => {
                if let Some(page) = pages.remove(&token) {
                    keep(vgpu, page);
                }
                let is_complete = pages.is_empty();
                match is_complete {
                    true => vgpu.queue.push_front(request),
                    false => vgpu.blocked = Some(Blocked::Fetch { pages, request }),
                }
                is_complete
            }
            Some(Blocked::Sync(mut sync)) => {
                let mut complete = true;
                if let SyncStage::Read { fetching } = &mut sync.stage {
                    if let Some(page) = fetching.remove(&token) {
                        keep(vgpu, page);
                    }
                    complete = fetching.is_empty();
                }
                vgpu.blocked = Some(Blocked::Sync(sync));
                complete
            }
            other => {
                vgpu.blocked = other;
                true
            }
        };
        if let Some(page) = came.filter(|_| data.len() as u64 == fermi_spec::addr::SMALL_PAGE) {
            self.adopt(vm, page, cx);
        }
        if goes_on {
            self.volatile.ready.insert(vm);
        }
    }
}

fn waits_for(vgpu: &Vgpu, token: Token) -> bool {
    match &vgpu.blocked {
        Some(Blocked::Value { token: waited, .. }) => *waited == token,
        Some(Blocked::Fetch { pages, .. }) => pages.contains_key(&token),
        Some(Blocked::Sync(sync)) => match &sync.stage {
            SyncStage::Read { fetching } => fetching.contains_key(&token),
            SyncStage::Seek { .. }
            | SyncStage::Back { .. }
            | SyncStage::Build
            | SyncStage::Flush
            | SyncStage::Bind { .. } => false,
        },
        _ => false,
    }
}
