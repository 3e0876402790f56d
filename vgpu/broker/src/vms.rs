//! The VMs of the performer, by attachment.

use std::collections::BTreeMap;
use std::sync::Arc;

use fermi_spec::addr::Gpa;
use vfio_user_server::{Pending, Reaper};
use vgpu::{Refusal, Reply, Request, RequestId, Tick, VmConfig, VmId};

use crate::perform::emptying::Emptying;
use crate::port::VmPort;

/// Most requests of one VM that may wait: as many as one client may have unanswered, cut into single accesses.
pub(crate) const WAITING_MAX: usize = 16 * 1024;

/// The broker's own work once a request is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    /// Forget the map if it was refused.
    Map {
        gpa: Gpa,
        bytes: u64,
    },
    /// Forget the map if the core has released it.
    Unmap {
        gpa: Gpa,
        bytes: u64,
    },
}

impl Then {
    pub(crate) fn after(request: &Request) -> Self {
        match *request {
            Request::Read { .. }
            | Request::Write { .. }
            | Request::ReadConfig { .. }
            | Request::WriteConfig { .. }
            | Request::MaskIntx { .. }
            | Request::Reset => Self::Nothing,
            Request::MapRam { gpa, bytes, .. } => Self::Map { gpa, bytes },
            Request::UnmapRam { gpa, bytes } => Self::Unmap { gpa, bytes },
        }
    }
}

/// State of an attachment; [`crate::perform`] has the picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VmState {
    Attaching,
    /// The client left before the core had decided.
    AttachingToLeave,
    Attached,
    Leaving,
}

/// One VM, from the request to attach until nothing of it is left.
pub(crate) struct Vm {
    /// Its quota is the one that it has.
    pub(crate) config: VmConfig,
    pub(crate) serial: u64,
    /// When it asked for its vGPU: what is told of its number from before is another VM's.
    pub(crate) since: Tick,
    pub(crate) state: VmState,
    pub(crate) port: Arc<dyn VmPort>,
    /// Requests that the core has not answered yet.
    pub(crate) waiting: Pending<RequestId, Then>,
    /// Lets go of what the VM leaves.
    pub(crate) reaper: Reaper,
    pub(crate) emptying: Emptying,
    /// Why it was put out, if it was.
    pub(crate) put_out: Option<String>,
}

impl Vm {
    /// Answers all waiting requests with an error.
    pub(crate) fn refuse_all(&mut self) {
        self.emptying = Emptying::default();
        for (request, _) in std::mem::take(&mut self.waiting) {
            self.port.reply(request, Reply::Refused(Refusal::NotAttached));
        }
    }
}

/// An attachment. Unlike a [`VmId`] its number is never used again, so a holder of an old one cannot act
/// for a new VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attachment {
    pub(crate) vm: VmId,
    pub(crate) serial: u64,
}

/// The VM that asks, if the core may get its request. One that may not is answered.
pub(crate) fn admit(vms: &mut BTreeMap<VmId, Vm>, attachment: Attachment, id: RequestId) -> Option<&mut Vm> {
    let entry = vms
        .get_mut(&attachment.vm)
        .filter(|entry| entry.serial == attachment.serial)?;
    let refusal = if entry.state != VmState::Attached {
        Refusal::NotAttached
    } else if entry.waiting.len() >= WAITING_MAX {
        Refusal::TooManyWaiting
    } else {
        return Some(entry);
    };
    entry.port.reply(id, Reply::Refused(refusal));
    None
}
