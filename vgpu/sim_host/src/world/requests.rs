//! Requests of VMs and their answers.

use std::collections::BTreeMap;

use vgpu::{Event, Reply, Request, RequestId, VmId};

use super::{Watch, World};

impl<W: Watch> World<W> {
    /// Sends a VM's request; the id names its answer.
    pub fn ask(&mut self, vm: VmId, request: Request) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.submit(Event::Request { vm, id, request });
        id
    }

    /// Sends a VM's request whose answer nobody waits for.
    pub fn post(&mut self, vm: VmId, request: Request) {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.posted.insert((vm, id));
        self.submit(Event::Request { vm, id, request });
    }

    /// Whether a request that was posted has no answer yet.
    pub fn has_unanswered(&self, vm: VmId) -> bool {
        let all = (vm, RequestId(0))..=(vm, RequestId(u64::MAX));
        self.posted.range(all).next().is_some()
    }

    /// Why requests that were posted were refused, and how many.
    pub fn refused(&self) -> &BTreeMap<String, u64> {
        &self.refused
    }

    /// The answer to a request, once.
    pub fn take_reply(&mut self, vm: VmId, request: RequestId) -> Option<Reply> {
        self.replies.remove(&(vm, request))
    }

    /// Somebody waits for the answer, or it was posted.
    pub(super) fn answer(&mut self, request: (VmId, RequestId), reply: Reply) {
        if self.posted.remove(&request) {
            if let Reply::Refused(refusal) = reply {
                *self.refused.entry(refusal.to_string()).or_default() += 1;
            }
            return;
        }
        let before = self.replies.insert(request, reply);
        assert!(before.is_none(), "{request:?} answered twice");
    }

    /// The VM is gone: it gets no answers any more.
    pub(super) fn forget(&mut self, vm: VmId) {
        self.posted.retain(|(of, _)| *of != vm);
        self.with_vm(vm, |memory| memory.detached = true);
    }
}
