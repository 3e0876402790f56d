//! The two sides that the broker joins: the deciding core, and the VMs' ends.

use vgpu::{Actions, Denial, Event, HostMemory, Manager, Reply, RequestId, Tick};

/// The deciding core: [`Manager`], or a script in tests.
///
/// Called with one event after the other, never concurrently; appends actions and waits for nothing.
pub trait Core: Send {
    /// Takes one event.
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions);
}

impl Core for Manager {
    fn apply(&mut self, now: Tick, event: Event, memory: &mut dyn HostMemory, actions: &mut Actions) {
        Manager::apply(self, now, event, memory, actions);
    }
}

/// The representative of a VM: a local caller or a socket. Called with the broker's lock held, so it must not wait and
/// must not call back.
pub(crate) trait VmPort: Send + Sync {
    /// The vGPU exists, or was refused with a reason.
    fn attached(&self, outcome: Result<(), Denial>);
    /// An answer to a request that was issued through this port.
    fn reply(&self, request: RequestId, reply: Reply);
    /// The vGPU's interrupt.
    fn interrupt(&self);
    /// The broker gives the VM up by itself; its requests are answered as refused, and [`VmPort::detached`] follows.
    fn expelled(&self, reason: &str);
    /// Nothing of the VM is left. Comes once, last.
    fn detached(&self);
}
