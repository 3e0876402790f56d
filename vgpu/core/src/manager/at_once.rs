//! Accesses to registers that nobody else hears of.
//!
//! A load from a register changes nothing, and most stores leave a value in registers of their own VM: nobody can go on because of
//! either. So what follows other events ([`Running::settle`]) is left out. It looks at every VM, and is most of what an access costs.

use std::ops::ControlFlow;

use fermi_spec::bar::Bar;
use fermi_spec::regs::{Piece, Width};
use planted::Fault;

use super::Cx;
use super::requests::{Step, word};
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
        let is_idle = |vgpu: &Vgpu| !vgpu.is_detaching() && vgpu.queue.is_empty() && vgpu.blocked.is_none();
        let is_next = self.is_settled(now) && self.vms.get(&vm).is_some_and(is_idle);
        // A load is answered whoever's turn it is.
        let may = is_next && (matches!(request, Request::Read { .. }) || self.has_turn(vm, now));
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
        let reply = match &request {
            Request::Write { data, .. } => {
                let value = word(data);
                let queued = Queued::new(id, request, cx.now);
                if let Some(vgpu) = self.vms.get_mut(&vm) {
                    vgpu.share.charge(queued.work());
                }
                let effect = self.register_write(vm, offset, width, value, cx);
                if effect != Effect::None || self.shows_other_than_seen(vm) {
                    let step = match self.follow_store(vm, queued, effect, cx) {
                        ControlFlow::Continue(_) => Step::Done(Reply::Done),
                        ControlFlow::Break(step) => step,
                    };
                    self.finish(vm, id, step, cx);
                    return false;
                }
                Reply::Done
            }
            _ => {
                let value = self.register_read(vm, offset, width, cx);
                Reply::Data(value.to_le_bytes()[..width.bytes()].to_vec())
            }
        };
        cx.actions.push(Action::Reply {
            vm,
            request: id,
            reply,
        });
        if let Some(vgpu) = self.vms.get_mut(&vm) {
            vgpu.tell_signal(cx);
        }
        let is_all = self.volatile.inconsistent.is_empty();
        debug_assert!(
            !is_all || self.follows_nothing(cx),
            "an access to {offset:#x} of {vm} was answered too soon"
        );
        is_all
    }

    /// Whether nothing is to be done behind an event.
    fn follows_nothing(&mut self, cx: &mut Cx<'_>) -> bool {
        let before = cx.actions.as_slice().len();
        self.settle(cx);
        cx.actions.as_slice().len() == before
    }
}
