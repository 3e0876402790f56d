//! The card's interrupt as its client has set it up.
//!
//! ```text
//!   MSI    message of the card ─ bus master ─► eventfd
//!   INTx   level of the pin ─ not disabled ─ not masked ─► eventfd, and masked until the client unmasks
//! ```
//!
//! INTx masks itself when it fires, as vfio's does: the client unmasks when its guest has had its turn, and if the pin is
//! still high the eventfd is signalled again. The client unmasks by a message or by an eventfd of its own.

use std::fmt;

use fermi_model::FermiModel;
use vfio_user_server::{Errno, IrqAction, IrqChange, IrqEvent, IrqIndex, IrqOperation};

/// State of a client's INTx.
#[derive(Debug, Default)]
struct Intx {
    event: Option<IrqEvent>,
    is_masked: bool,
}

/// Numbers of signals sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PinCounts {
    /// Messages (MSI) sent.
    pub(super) messages: u64,
    /// MSIs of the card that could not be delivered.
    pub(super) messages_lost: u64,
    /// Times that INTx was signalled.
    pub(super) levels: u64,
}

impl fmt::Display for PinCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            messages,
            messages_lost,
            levels,
        } = self;
        write!(
            f,
            "interrupts: {messages} by MSI, {levels} by INTx; messages without a receiver: {messages_lost}"
        )
    }
}

/// The interrupts of one client.
#[derive(Debug, Default)]
pub(super) struct Pins {
    msi: Option<IrqEvent>,
    intx: Intx,
    pub(super) counts: PinCounts,
}

impl Pins {
    /// Sends the signals that are due.
    pub(super) fn update(&mut self, model: &mut FermiModel) {
        if model.take_interrupt() {
            self.send_message(model);
        }
        if self.intx.event.is_some() && !self.intx.is_masked {
            self.assert(model);
        }
    }

    fn send_message(&mut self, model: &FermiModel) {
        match &self.msi {
            // An eventfd that cannot be written is a mistake of its owner.
            Some(event) if model.is_bus_master() && event.signal().is_ok() => self.counts.messages += 1,
            _ => self.counts.messages_lost += 1,
        }
    }

    fn assert(&mut self, model: &FermiModel) {
        let is_open = model.interrupt_line() && !model.is_intx_disabled();
        if let Some(event) = self.intx.event.as_ref().filter(|_| is_open) {
            self.intx.is_masked = true;
            self.counts.levels += 1;
            // The same holds here.
            let _ = event.signal();
        }
    }

    /// The client lets INTx through again; it is signalled at the next look if the pin is high.
    pub(super) fn unmask(&mut self) {
        self.intx.is_masked = false;
    }

    /// The client is gone, or the function was reset: no eventfd is connected.
    pub(super) fn reset(&mut self) {
        self.msi = None;
        self.intx = Intx::default();
    }

    /// Performs a SET_IRQS. The caller handles the eventfd that unmasks INTx.
    pub(super) fn change(&mut self, change: IrqChange) -> Result<Unmasker, Errno> {
        match change {
            IrqChange::DisableAll {
                index: IrqIndex::Intx,
            } => {
                self.intx = Intx::default();
                return Ok(Unmasker::Gone);
            }
            IrqChange::DisableAll { index: IrqIndex::Msi } => self.msi = None,
            // Without vectors there is nothing to disable.
            IrqChange::DisableAll { .. } => {}
            IrqChange::Vectors {
                index: IrqIndex::Intx,
                action,
                operation,
                ..
            } => return self.change_intx(action, operation),
            IrqChange::Vectors {
                index: IrqIndex::Msi,
                action: IrqAction::Trigger,
                operation,
                ..
            } => match operation {
                IrqOperation::Connect(mut events) => self.msi = events.pop(),
                IrqOperation::Disconnect => self.msi = None,
                IrqOperation::Apply => self.test(IrqIndex::Msi),
                IrqOperation::ApplyWhere(chosen) if chosen.contains(&true) => self.test(IrqIndex::Msi),
                IrqOperation::ApplyWhere(_) => {}
            },
            IrqChange::Vectors { .. } => return Err(Errno::INVAL),
        }
        Ok(Unmasker::Unchanged)
    }

    fn change_intx(&mut self, action: IrqAction, operation: IrqOperation) -> Result<Unmasker, Errno> {
        let is_applied = match &operation {
            IrqOperation::Apply => true,
            IrqOperation::ApplyWhere(chosen) => chosen.contains(&true),
            IrqOperation::Connect(_) | IrqOperation::Disconnect => false,
        };
        match (action, operation) {
            (IrqAction::Trigger, IrqOperation::Connect(mut events)) => {
                self.intx = Intx {
                    event: events.pop(),
                    is_masked: false,
                };
            }
            (IrqAction::Trigger, IrqOperation::Disconnect) => {
                self.intx = Intx::default();
                return Ok(Unmasker::Gone);
            }
            (IrqAction::Unmask, IrqOperation::Connect(mut events)) => {
                return Ok(events.pop().map_or(Unmasker::Unchanged, Unmasker::New));
            }
            (IrqAction::Unmask, IrqOperation::Disconnect) => return Ok(Unmasker::Gone),
            // The kernel's vfio has no eventfd that masks either.
            (IrqAction::Mask, IrqOperation::Connect(_) | IrqOperation::Disconnect) => {
                return Err(Errno::INVAL);
            }
            (IrqAction::Trigger, _) if is_applied => self.test(IrqIndex::Intx),
            (IrqAction::Mask, _) if is_applied => self.intx.is_masked = true,
            (IrqAction::Unmask, _) if is_applied => self.unmask(),
            _ => {}
        }
        Ok(Unmasker::Unchanged)
    }

    /// The client tries its own eventfd.
    fn test(&self, index: IrqIndex) {
        let event = match index {
            IrqIndex::Msi => self.msi.as_ref(),
            _ => self.intx.event.as_ref(),
        };
        if let Some(event) = event {
            // The same holds as in `send_message`.
            let _ = event.signal();
        }
    }
}

/// Change of the eventfd that unmasks INTx.
#[derive(Debug)]
pub(super) enum Unmasker {
    /// The eventfd stays.
    Unchanged,
    /// There is no such eventfd any more.
    Gone,
    /// A new eventfd to wait for.
    New(IrqEvent),
}
