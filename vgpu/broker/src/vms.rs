//! VMs as the performer knows them.

use std::sync::Arc;

use vfio_user_server::Pending;
use vgpu::{Refusal, Reply, RequestId, VmId};

use crate::port::VmPort;
use crate::requests::Then;

/// The picture is in [`crate::perform`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VmState {
    Attaching,
    /// Gone before the core had decided.
    AttachingToLeave,
    Attached,
    Leaving,
}

/// One VM, from the request to attach until nothing of it is left.
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(crate) serial: u64,
    pub(crate) state: VmState,
    pub(crate) port: Arc<dyn VmPort>,
    /// Requests that the core has not answered yet.
    pub(crate) waiting: Pending<RequestId, Then>,
}

impl Vm {
    /// Answers whatever still waits: it will not be done.
    pub(crate) fn refuse_all(&mut self) {
        for (request, _) in std::mem::take(&mut self.waiting) {
            self.port.reply(request, Reply::Refused(Refusal::NotAttached));
        }
    }
}

/// An attachment. Unlike a [`VmId`] it is never used again, so whoever holds an old one cannot speak for a new VM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Attachment {
    pub(crate) vm: VmId,
    pub(crate) serial: u64,
}
