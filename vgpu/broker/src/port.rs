//! The two sides that the broker joins: the deciding core, and the VMs' ends.

use vgpu::inspect::Node;
use vgpu::{Actions, Denial, Event, HostMemory, InterruptKind, Manager, Reply, RequestId, Standing, Tick};

/// The deciding core: [`Manager`], or a script in tests.
///
/// Called with one event after the other, never concurrently; appends actions and waits for nothing.
pub trait Core: Send {
    /// Takes one event.
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions);

    /// The state at `path`, see [`vgpu::inspect`]. `None` if there is nothing at the path; a script has no state to show.
    fn inspect(&self, _now: Tick, _path: &str) -> Option<Node> {
        None
    }

    /// Who holds what of the card, see [`Manager::standing`].
    fn standing(&self) -> Option<Standing> {
        None
    }
}

impl Core for Manager {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        Manager::apply(self, now, event, memory, actions);
    }

    fn inspect(&self, now: Tick, path: &str) -> Option<Node> {
        Manager::inspect(self, now, path)
    }

    fn standing(&self) -> Option<Standing> {
        Manager::standing(self)
    }
}

/// The representative of a VM: a local caller or a socket. Called with the broker's lock held, so it must not wait and
/// must not call back.
pub(crate) trait VmPort: Send + Sync {
    /// The vGPU exists, or was refused with a reason.
    fn attached(&self, outcome: Result<(), Denial>);
    /// An answer to a request that was issued through this port.
    fn reply(&self, request: RequestId, reply: Reply);
    /// The vGPU's interrupt. INTx comes only after the VMM asked to unmask it.
    fn interrupt(&self, kind: InterruptKind);
    /// The guest has not rung for some time, and its VMM can make stores to doorbells trap.
    fn quiet(&self);
    /// The guest lets messages through from now on, or no longer; none before the first call.
    fn let_interrupts(&self, through: bool);
    /// The broker gives the VM up by itself; its requests are answered as refused, and [`VmPort::detached`] follows.
    fn expelled(&self, reason: &str);
    /// Nothing of the VM is left. Comes once, last.
    fn detached(&self);
}
