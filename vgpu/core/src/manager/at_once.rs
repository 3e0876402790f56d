//! Accesses to registers that nobody else hears of.
//!
//! A load from a register changes nothing, and most stores leave a value in registers of their own VM: nobody can go on because of
//! either. So what follows other events ([`Running::settle`]) is left out. It looks at every VM, and is most of what an access costs.

use std::ops::ControlFlow;

use fermi_spec::bar::Bar;
use fermi_spec::regs::{Piece, Width};
use mmio::decode_write;
use planted::Fault;

use super::Cx;
use super::requests::{Step, Written, word};
use super::running::Running;
use crate::device::effect::Effect;
use crate::device::{Queued, Vgpu};
use crate::event::{Action, Reply, Request, RequestId, Tick, VmId};

/// The register that is all a request is about.
fn one_register(request: &Request) -> Option<(u32, Width)> {
    let (offset, bytes) = match request {
        Request::Read {
            bar: Bar::Bar0,
            offset,
            bytes,
        } => (*offset, *bytes as usize),
        Request::Write {
            bar: Bar::Bar0,
            offset,
            data,
        } => (*offset, data.len()),
        _ => return None,
    };
    if bytes == 0 {
        return None;
    }
    match Piece::first(offset, bytes) {
        Piece::Register { offset, width } if width.bytes() == bytes => Some((offset, width)),
        _ => None,
    }
}

impl Vgpu {
    /// Tells the VM's client of the interrupt that its registers ask for.
    pub(super) fn tell_signal(&mut self, cx: &mut Cx<'_>) {
        if let Some(kind) = self.units.take_signal()
            && !self.is_detaching()
            && !planted::is(Fault::InterruptLost)
        {
            cx.actions.push(Action::Interrupt { vm: self.id, kind });
        }
    }

    fn answer_at_once(&mut self, request: RequestId, reply: Reply, cx: &mut Cx<'_>) {
        let vm = self.id;
        cx.actions.push(Action::Reply { vm, request, reply });
        self.tell_signal(cx);
    }
}

impl Running {
    /// The register that a request is about, if nothing of its VM or of the card waits and it may be executed now.
    pub(super) fn register_at_once(
        &mut self,
        vm: VmId,
        request: &Request,
        now: Tick,
    ) -> Option<(u32, Width)> {
        let register = one_register(request)?;
        let (is_settled, vms) = (self.is_settled(now), self.vms.len());
        let vgpu = self.vms.get_mut(&vm).filter(|_| is_settled)?;
        let is_next = !vgpu.is_detaching() && vgpu.queue.is_empty() && vgpu.blocked.is_none();
        // A load is answered whoever's turn it is.
        let may = is_next && (matches!(request, Request::Read { .. }) || vgpu.share.has_turn(vms, now));
        may.then_some(register)
    }

    /// Executes an access to one register. Whether it was answered and changed no more than registers of its VM; if not, what follows an event has to follow.
    pub(super) fn access_at_once(
        &mut self,
        vm: VmId,
        (id, request): (RequestId, Request),
        (offset, width): (u32, Width),
        cx: &mut Cx<'_>,
    ) -> bool {
        if let Request::Write { data, .. } = &request {
            let value = word(data);
            let queued = Queued::new(id, request, cx.now);
            if !self.store_at_once(vm, queued, (offset, width, value), cx) {
                return false;
            }
        } else {
            let value = self.register_read(vm, offset, width, cx);
            if let Some(vgpu) = self.vms.get_mut(&vm) {
                let data = value.to_le_bytes()[..width.bytes()].to_vec();
                vgpu.answer_at_once(id, Reply::Data(data), cx);
            }
        }
        let is_all = self.volatile.inconsistent.is_empty();
        debug_assert!(
            !is_all || self.follows_nothing(cx),
            "an access to {offset:#x} of {vm} was answered too soon"
        );
        is_all
    }

    /// Whether the store was answered and left no more than a value. With many VMs it is the looks for this one that make a store dearer than with
    /// one VM, so there is one here for a store that does.
    fn store_at_once(
        &mut self,
        vm: VmId,
        queued: Queued,
        (offset, width, value): (u32, Width, u32),
        cx: &mut Cx<'_>,
    ) -> bool {
        let (id, write) = (queued.id, decode_write(offset, width, value));
        let Some(vgpu) = self.vms.get_mut(&vm) else {
            return false;
        };
        vgpu.share.charge(queued.work());
        let written = vgpu.write_to_unit(&write);
        if matches!(written, Written::Yes(Effect::None)) && !vgpu.shows_other_than_seen() {
            vgpu.answer_at_once(id, Reply::Done, cx);
            return true;
        }
        let effect = self.follow_written(vm, (offset, value), (write, written), cx);
        let vgpu = self.vms.get_mut(&vm);
        if let Some(vgpu) = vgpu.filter(|vgpu| effect == Effect::None && !vgpu.shows_other_than_seen()) {
            vgpu.answer_at_once(id, Reply::Done, cx);
            return true;
        }
        let step = match self.follow_store(vm, queued, effect, cx) {
            ControlFlow::Continue(_) => Step::Done(Reply::Done),
            ControlFlow::Break(step) => step,
        };
        self.finish(vm, id, step, cx);
        false
    }

    /// Whether nothing is to be done behind an event.
    fn follows_nothing(&mut self, cx: &mut Cx<'_>) -> bool {
        let before = cx.actions.as_slice().len();
        self.settle(cx);
        cx.actions.as_slice().len() == before
    }
}
