//! Host RAM for all VMs of a card, changed while they run.

use vgpu::{Denial, Event};

use crate::broker::Broker;
use crate::error::Ended;
use crate::perform::Performer;

/// A bound of host RAM that was changed. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostRamChanged {
    /// What it was.
    pub before: u64,
    /// What it is.
    pub after: u64,
}

impl Broker {
    /// Asks for another bound of host RAM for all VMs of the card. It is refused if what VMs are promised would not fit. `answer` is
    /// called on the event loop's thread, and must not wait; it is dropped if the broker ends before.
    pub fn ask_host_ram(
        &self,
        bytes: u64,
        answer: impl FnOnce(Result<HostRamChanged, Denial>) + Send + 'static,
    ) -> Result<(), Ended> {
        self.shared().ask(move |performer| {
            let changed = performer.change_host_ram(bytes);
            Box::new(move || answer(changed))
        })
    }
}

impl Performer {
    fn change_host_ram(&mut self, bytes: u64) -> Result<HostRamChanged, Denial> {
        let before = self.core.standing().map_or(bytes, |standing| standing.host_ram);
        self.quota_refused = None;
        self.submit(Event::SetHostRam { bytes });
        match self.quota_refused.take() {
            Some(reason) => Err(reason),
            None => {
                self.happenings.host_ram_changed(before, bytes);
                Ok(HostRamChanged { before, after: bytes })
            }
        }
    }
}
