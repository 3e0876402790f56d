//! A client's INTx: the eventfds are the session's, the mask is the core's.
//!
//! ```text
//!   trigger set ─► eventfd known, unmask ─┐
//!   mask, unmask ─────────────────────────┼─► a request to the core, in its turn ─► answered
//!   trigger cleared ─► no eventfd, mask ──┤
//!   unmask eventfd signalled ─────────────┘  not polled before the core's answer, nor while its queue is full
//! ```
//!
//! So a signal that the core sends has an eventfd, and one that is dropped because the trigger was just cleared is masked in the core:
//! it comes again, if the line is still up, when the trigger is set.

use vfio_user_server::error::ReplyError;
use vfio_user_server::irq::{IrqAction, IrqOperation};
use vfio_user_server::{Errno, RequestId as ClientRequest};
use vgpu::Request;

use super::{Answer, Piece, Session};
use crate::signaller::Signalled;

const INTX: Signalled = Signalled::Intx;

impl Session {
    /// Performs a SET_IRQS for INTx.
    ///
    /// An eventfd to unmask by is what KVM signals at the guest's end of interrupt (`KVM_IRQFD_FLAG_RESAMPLE`); one to mask by is refused, which the
    /// kernel does too. Nothing is done to an INTx that no trigger was set for, as in the kernel (Linux `drivers/vfio/pci/vfio_pci_intrs.c`, `is_intx`).
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
                self.unmask.connect(None);
                self.mask_intx(request, true)
            }
            (IrqAction::Mask, IrqOperation::Connect(_) | IrqOperation::Disconnect) => {
                self.client.reply_error(request, Errno::OPNOTSUPP)
            }
            _ if !self.signaller.is_connected(INTX) => self.client.reply_error(request, Errno::INVAL),
            (IrqAction::Unmask, IrqOperation::Connect(events)) => {
                self.unmask.connect(events.into_iter().next());
                self.unmask.wait();
                self.client.reply_done(request)
            }
            (IrqAction::Unmask, IrqOperation::Disconnect) => {
                self.unmask.connect(None);
                self.client.reply_done(request)
            }
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

    /// The client's eventfd has unmasked it. Who signals it would not hear of a refusal: until the core has room, the signal stays in the eventfd.
    pub(super) fn unmasked(&mut self) {
        if self.has_room() && self.unmask.take() {
            let id = self.issue(Piece::Unmask);
            // A broker that has ended has informed the port.
            if let Ok(mut performer) = self.shared.lock() {
                performer.request(self.attachment, id, Request::MaskIntx { masked: false });
            }
        }
    }

    fn mask_intx(&mut self, request: ClientRequest, masked: bool) -> Result<(), ReplyError> {
        self.gather(request, Answer::Done, 0, [(Request::MaskIntx { masked }, 0..0)])
    }
}
