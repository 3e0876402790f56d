//! Errors of channels that a card survives: the guest is told, and its channel stands still until the guest has taken note.
//!
//! ```text
//!  the card's interrupt ──► acknowledged on the card at once ──► shown to the guest, its channel leaves the card
//!                                                                    └─ acknowledged by the guest ──► it goes on
//! ```
//!
//! On a card the engine stands until the driver has acknowledged an error. It would stand for all VMs, so here the host acknowledges, and
//! only the channel waits. Each error is charged to the VM's share of the broker's time ([`ERROR_FORWARDED`]), and its acknowledgement is a
//! request that waits for the VM's turn: so who makes errors on purpose makes no more than its share allows.

use super::Cx;
use super::running::Running;
use crate::device::errors::Blame;
use crate::device::units::Units;
use crate::event::VmId;
use crate::host::{Job, PhysChannel};
use crate::notice::Notice;
use crate::reason::ChannelFault;
use crate::share::ERROR_FORWARDED;

impl Running {
    /// A channel of the card made an error. `raise` shows it to the guest, and says whether there was room; a channel that makes more than
    /// its guest acknowledges is stopped for good, and so is one whose error is `fatal`.
    pub(super) fn channel_error(
        &mut self,
        physical: u8,
        (fault, is_fatal): (ChannelFault, bool),
        raise: impl FnOnce(&mut Units, Blame) -> bool,
        cx: &mut Cx<'_>,
    ) {
        let Some((vm, v)) = self.bound_as(physical) else {
            return self.nobodys(Some(physical), None, fault, cx);
        };
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(channel) = vgpu.channels.get(&v) else {
            return;
        };
        vgpu.share.charge(ERROR_FORWARDED);
        if channel.killed {
            return;
        }
        let blame = Blame {
            channel: v,
            instance: channel.guest_frame(),
        };
        let has_room = raise(&mut vgpu.units, blame);
        if is_fatal || !has_room {
            return self.kill(vm, v, None, fault, cx);
        }
        cx.tell(Notice::ChannelError {
            vm,
            channel: v,
            cause: fault,
        });
        self.stand(vm, v);
    }

    /// The channel leaves the card until its errors are acknowledged.
    fn stand(&mut self, vm: VmId, v: u8) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let Some(channel) = vgpu.channels.get_mut(&v) else {
            return;
        };
        if std::mem::replace(&mut channel.stands, true) {
            return;
        }
        let physical = channel.physical;
        self.commit_host_runlist(Job::Nothing);
        self.stop_channel(physical, Job::Nothing);
    }

    /// The guest has acknowledged an error: channels of which none is left go on, with what was submitted meanwhile.
    pub(super) fn errors_seen(&mut self, vm: VmId) {
        let Some(vgpu) = self.vms.get_mut(&vm) else { return };
        let is_held = vgpu.hold.is_suspended;
        let mut going_on: Vec<(PhysChannel, bool, Option<u32>)> = Vec::new();
        for (&v, channel) in &mut vgpu.channels {
            if !channel.stands || vgpu.units.has_error_of(v) {
                continue;
            }
            channel.stands = false;
            // One that stands still for a move, is on its way to be parked, or that an operator holds, goes on with that.
            if channel.may_run() && !is_held {
                going_on.push((channel.physical, channel.runnable, channel.due()));
            }
        }
        if going_on.is_empty() {
            return;
        }
        for (physical, _, _) in going_on.iter().filter(|(_, runnable, _)| *runnable) {
            self.card.start(*physical);
        }
        self.commit_host_runlist(Job::Nothing);
        for (physical, _, gp_put) in going_on {
            if let Some(gp_put) = gp_put {
                self.card.ring_later(physical, gp_put);
            }
        }
    }
}
