//! A client that makes its guest's stores to doorbells trap while that is quiet ([`vfio_user_server::doorbells`]).
//!
//! Its eventfd is awaited while stores trap, and those begin with a message: a client that signals without end causes no more than its messages do.

use fermi_spec::instance::{CHANNELS, USERD_BYTES};
use vfio_user_server::doorbells::{PLACE, REGION_BYTES, region_of};
use vfio_user_server::error::ReplyError;
use vfio_user_server::irq::{IrqAction, IrqEvent, IrqOperation};
use vfio_user_server::{Errno, RequestId as ClientRequest};

use super::Session;
use crate::signaller::Signalled;

impl Session {
    /// A store has trapped.
    pub(super) fn doorbell_stored(&mut self) {
        if self.doorbells.take()
            && let Ok(mut performer) = self.shared.lock()
        {
            performer.doorbell_stored(self.attachment);
        }
    }

    /// Answers a load from the region.
    pub(super) fn read_doorbells(
        &mut self,
        request: ClientRequest,
        offset: u64,
        count: u32,
    ) -> Result<(), ReplyError> {
        let place = self
            .shared
            .lock()
            .ok()
            .and_then(|performer| performer.doorbells_at(self.attachment));
        let region = region_of(place, CHANNELS as u64 * USERD_BYTES);
        let range = offset as usize..offset as usize + count as usize;
        match region.get(range) {
            Some(data) => self.client.reply_read(request, data),
            None => self.client.reply_error(request, Errno::INVAL),
        }
    }

    /// Performs a store to the region: stores to the doorbells that lie at this place trap.
    pub(super) fn arm_doorbells(
        &mut self,
        request: ClientRequest,
        offset: u64,
        data: &[u8],
    ) -> Result<(), ReplyError> {
        let place = <[u8; REGION_BYTES / 2]>::try_from(data).map(u64::from_le_bytes);
        let (Ok(place), PLACE, true) = (place, offset, self.doorbells.is_connected()) else {
            return self.client.reply_error(request, Errno::INVAL);
        };
        if self.doorbells.interest().is_none() {
            // A signal of before is about stores that the last look sees.
            self.doorbells.clear();
        }
        let armed = self.shared.lock().map(|mut performer| {
            let is_of_use = performer.arm_doorbells(self.attachment, place);
            is_of_use.then_some(())
        });
        match armed {
            Ok(Some(())) => {
                self.doorbells.wait();
                self.client.reply_done(request)
            }
            // A broker that has ended has informed the port.
            Ok(None) | Err(_) => self.client.reply_error(request, Errno::AGAIN),
        }
    }

    /// Performs a SET_IRQS for the function's own index: the trigger says that the guest is quiet, and an eventfd unmasks when a store has
    /// trapped. `false` for what has no meaning.
    pub(super) fn connect_doorbells(&mut self, action: IrqAction, operation: IrqOperation) -> bool {
        match (action, operation) {
            (IrqAction::Trigger, IrqOperation::Connect(events)) => {
                self.signaller
                    .connect(Signalled::Quiet, events.into_iter().next());
                self.let_trap();
            }
            (IrqAction::Trigger, IrqOperation::Disconnect) => self.signaller.connect(Signalled::Quiet, None),
            (IrqAction::Unmask, IrqOperation::Connect(events)) => {
                self.replace_stored(events.into_iter().next());
                self.let_trap();
            }
            (IrqAction::Unmask, IrqOperation::Disconnect) => self.replace_stored(None),
            _ => return false,
        }
        true
    }

    /// Forgets both eventfds.
    pub(super) fn disconnect_doorbells(&mut self) {
        self.signaller.connect(Signalled::Quiet, None);
        self.replace_stored(None);
    }

    /// A client whose eventfd goes while stores trap can say nothing of them: they are looked for.
    fn replace_stored(&mut self, event: Option<IrqEvent>) {
        self.doorbell_stored();
        self.doorbells.connect(event);
    }

    /// With both eventfds the client can be told that its guest is quiet.
    fn let_trap(&mut self) {
        if self.doorbells.is_connected()
            && self.signaller.is_connected(Signalled::Quiet)
            && let Ok(mut performer) = self.shared.lock()
        {
            performer.let_trap(self.attachment);
        }
    }
}
