//! What goes wrong: a panic, a card or a VM that is given up, and the end of the broker.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use vgpu::flight_recorder::{Excerpt, Flight};
use vgpu::inspect::Node;
use vgpu::{CardOperation, HostGpu, HostGpuError, Inconsistency, Tick, VmId};

use super::Performer;
use crate::error::Ended;
use crate::flights::message_of;
use crate::vms::VmState;

impl Performer {
    /// The clock, and what happened last.
    pub(crate) fn flight(&self) -> (Tick, Flight) {
        (self.now(), self.flights.recorder.flight())
    }

    /// What happened last to an attached VM, see [`vgpu::flight_recorder::FlightRecorder::excerpt`].
    pub(crate) fn excerpt(&self, vm: VmId, after: Option<u64>, most: usize) -> Excerpt {
        let since = self.vms.get(&vm).map_or(self.now(), |entry| entry.since);
        self.flights.recorder.excerpt(vm, since, after, most)
    }

    /// The core's state at a path. `None` if there is nothing at it, or a panic left a state that cannot be read.
    pub(crate) fn inspect(&self, path: &str) -> Option<Node> {
        let now = self.now();
        catch_unwind(AssertUnwindSafe(|| self.core.inspect(now, path)))
            .ok()
            .flatten()
    }

    fn write_flight(&mut self, reason: &str) {
        let state = self.inspect("");
        self.flights.write(self.now(), reason, state);
    }

    /// Ends the broker because something went wrong, and writes what happened before.
    pub(crate) fn fail(&mut self, reason: &str) {
        if self.ended.is_none() {
            self.write_flight(reason);
            self.end(reason);
        }
    }

    /// The core does not know any more what the card reaches: as if it had left the bus.
    pub(super) fn give_card_up(&mut self, operation: CardOperation) {
        let reason = format!("the card is lost: a {operation} did not end");
        log::error!("{reason}; all VMs are detached");
        self.fail(&reason);
    }

    /// Ends the broker: every VM is out, the card is let go.
    pub(crate) fn end(&mut self, reason: &str) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(Ended {
            reason: reason.to_owned(),
        });
        self.gpu = None;
        self.queue.clear();
        self.polls.clear();
        for (vm, mut entry) in std::mem::take(&mut self.vms) {
            entry.refuse_all();
            entry.port.expelled(reason);
            entry.port.detached();
            self.memory.remove_vm(vm);
            self.stats.detach(vm);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.flush();
        }
        self.status.end(reason);
        // The event loop has to hang up on clients that it has, or only listens for.
        self.waker.wake();
    }

    /// A panic leaves the lock poisoned, so that nobody goes on with what it left behind; but what led to it is written.
    pub(super) fn run(&mut self) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.run_queue())) {
            // What the core wanted done before it panicked.
            self.flights.recorder.actions(self.actions.as_slice());
            let reason = format!("panic in the broker: {}", message_of(&*panic));
            self.write_flight(&reason);
            resume_unwind(panic);
        }
    }

    /// Puts a VM out for the reason that is logged and told to its port.
    pub(super) fn expel(&mut self, vm: VmId, reason: &str) {
        let Some(entry) = self.vms.get_mut(&vm) else {
            return;
        };
        if entry.state == VmState::Leaving {
            return;
        }
        entry.put_out = Some(reason.to_owned());
        self.notices.vm(
            log::Level::Error,
            &entry.config.name,
            format_args!("vm is detached: {reason}"),
        );
        self.flights
            .recorder
            .remark(format!("{vm} is detached: {reason}"));
        entry.port.expelled(reason);
        self.leave(vm);
    }

    /// The core found its accounts of a VM wrong. What led to it is written, that VM is out, and the others go on.
    pub(super) fn give_up(&mut self, vm: VmId, reason: &Inconsistency) {
        let what = format!("the broker's accounts of {vm} are wrong: {reason}");
        let state = self.inspect("");
        self.flights.write_beside(self.now(), &what, state);
        self.expel(vm, &what);
    }

    /// Some client took memory away.
    pub(crate) fn expel_torn(&mut self) {
        for vm in self.memory.torn_vms() {
            self.expel(
                vm,
                "its RAM was truncated or could not be read while it was attached",
            );
        }
        self.run();
    }

    /// Does something on the card. A lost card ends the broker; another failure is counted, and costs the VM for whom
    /// it was done its vGPU: what it would go on with is not what the core believes.
    pub(super) fn on_card(
        &mut self,
        for_vm: Option<VmId>,
        work: impl FnOnce(&mut dyn HostGpu) -> Result<(), HostGpuError>,
    ) {
        let Some(gpu) = &mut self.gpu else { return };
        match work(&mut **gpu) {
            Ok(()) => {}
            Err(error @ HostGpuError::Lost { .. }) => {
                log::error!("{error}; all VMs are detached");
                self.fail(&error.to_string());
            }
            Err(error) => self.failed(for_vm, &error.to_string()),
        }
    }

    pub(super) fn failed(&mut self, for_vm: Option<VmId>, what: &str) {
        self.stats.host_error();
        self.notices.host_error(what);
        self.flights.recorder.remark(format!("host error: {what}"));
        self.expulsions.extend(for_vm.map(|vm| (vm, what.to_owned())));
    }
}
