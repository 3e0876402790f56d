//! A client's INTx: the eventfd is the session's, the mask is the core's.
//!
//! ```text
//!   trigger set ─► eventfd known, unmask ─┐
//!   mask, unmask ─────────────────────────┼─► a request to the core, in its turn ─► answered
//!   trigger cleared ─► no eventfd, mask ──┘
//! ```
//!
//! So a signal that the core sends has an eventfd, and one that is dropped because the trigger was just cleared is masked in the core:
//! it comes again, if the line is still up, when the trigger is set.

use vfio_user_server::error::ReplyError;
use vfio_user_server::irq::{IrqAction, IrqOperation};
use vfio_user_server::{Errno, RequestId as ClientRequest};
use vgpu::Request;

use super::{Answer, Session};
use crate::signaller::Signalled;

const INTX: Signalled = Signalled::Intx;

impl Session {
    /// Performs a SET_IRQS for INTx.
    ///
    /// An eventfd to unmask by is refused: the client unmasks by messages then, as QEMU does without KVM. Nothing is done to an INTx
    /// that no trigger was set for, which is what the kernel answers too (Linux `drivers/vfio/pci/vfio_pci_intrs.c`, `is_intx`).
    pub(super) fn change_intx(
        &mut self,
        request: ClientRequest,
        action: IrqAction,
        operation: IrqOperation,
    ) -> Result<(), ReplyError> {
        let is_applied = match &operation {
            IrqOperation::Apply => true,
            IrqOperation::ApplyWhere(chosen) => chosen.first() == Some(&true),
            IrqOperation::Connect(_) | IrqOperation::Disconnect => false,
        };
        match (action, operation) {
            (IrqAction::Trigger, IrqOperation::Connect(events)) => {
                self.signaller.connect(INTX, events.into_iter().next());
                self.mask_intx(request, false)
            }
            (IrqAction::Trigger, IrqOperation::Disconnect) => {
                self.signaller.connect(INTX, None);
                self.mask_intx(request, true)
            }
            (IrqAction::Mask | IrqAction::Unmask, IrqOperation::Connect(_) | IrqOperation::Disconnect) => {
                self.client.reply_error(request, Errno::OPNOTSUPP)
            }
            _ if !self.signaller.is_connected(INTX) => self.client.reply_error(request, Errno::INVAL),
            (IrqAction::Mask, _) if is_applied => self.mask_intx(request, true),
            (IrqAction::Unmask, _) if is_applied => self.mask_intx(request, false),
            (IrqAction::Trigger, _) if is_applied => {
                // The client tries its own eventfd.
                self.signaller.raise(INTX);
                self.client.reply_done(request)
            }
            // A bool that is false.
            _ => self.client.reply_done(request),
        }
    }

    fn mask_intx(&mut self, request: ClientRequest, masked: bool) -> Result<(), ReplyError> {
        self.gather(request, Answer::Done, 0, [(Request::MaskIntx { masked }, 0..0)])
    }
}
