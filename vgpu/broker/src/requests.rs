//! Requests of VMs that the core has not answered yet.

use std::collections::BTreeMap;

use fermi_spec::addr::Gpa;
use vgpu::{Bar, Event, RequestId, VmId};

use crate::memory::RamMap;

/// Requests of one VM that may wait: what one client may have unanswered, cut into single accesses.
pub(crate) const WAITING_MAX: usize = 16 * 1024;

/// What a VM asks for.
#[derive(Debug)]
pub(crate) enum Request {
    /// Load.
    Read { bar: Bar, offset: u64, bytes: u32 },
    /// Store.
    Write { bar: Bar, offset: u64, data: Vec<u8> },
    /// Offer RAM.
    MapRam { gpa: Gpa, map: RamMap },
    /// Take RAM back.
    UnmapRam { gpa: Gpa, bytes: u64 },
    /// Reset the device.
    Reset,
}

/// What is left to do in the broker once the answer is there.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    /// Forget the map if it was refused.
    Map {
        gpa: Gpa,
        bytes: u64,
    },
    /// Forget the map if the core has let go of it.
    Unmap {
        gpa: Gpa,
        bytes: u64,
    },
}

/// By id, with a count for each VM.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    waiting: BTreeMap<RequestId, (VmId, Then)>,
    counts: BTreeMap<VmId, usize>,
}

impl Requests {
    /// Whether the VM may have one more.
    pub(crate) fn has_room(&self, vm: VmId) -> bool {
        self.counts.get(&vm).is_none_or(|count| *count < WAITING_MAX)
    }

    pub(crate) fn insert(&mut self, request: RequestId, vm: VmId, then: Then) {
        self.waiting.insert(request, (vm, then));
        *self.counts.entry(vm).or_default() += 1;
    }

    /// Takes a request of `vm`. `None` if it has none of that id, or not any more.
    pub(crate) fn take(&mut self, request: RequestId, vm: VmId) -> Option<Then> {
        self.waiting.get(&request).filter(|(owner, _)| *owner == vm)?;
        let (_, then) = self.waiting.remove(&request)?;
        self.uncount(vm);
        Some(then)
    }

    /// Takes all of a VM.
    pub(crate) fn take_all(&mut self, vm: VmId) -> Vec<RequestId> {
        self.counts.remove(&vm);
        self.waiting
            .extract_if(.., |_, (owner, _)| *owner == vm)
            .map(|(request, _)| request)
            .collect()
    }

    fn uncount(&mut self, vm: VmId) {
        if let Some(count) = self.counts.get_mut(&vm) {
            *count -= 1;
        }
    }
}

/// The event for a request whose map, if it has one, is in memory already.
pub(crate) fn event_of(vm: VmId, request: RequestId, kind: Request) -> (Event, Then, Option<(Gpa, RamMap)>) {
    match kind {
        Request::Read { bar, offset, bytes } => (
            Event::Read {
                vm,
                request,
                bar,
                offset,
                bytes,
            },
            Then::Nothing,
            None,
        ),
        Request::Write { bar, offset, data } => (
            Event::Write {
                vm,
                request,
                bar,
                offset,
                data,
            },
            Then::Nothing,
            None,
        ),
        Request::MapRam { gpa, map } => {
            let (bytes, writable) = (map.bytes, map.writable);
            let event = Event::MapRam {
                vm,
                request,
                gpa,
                bytes,
                writable,
            };
            (event, Then::Map { gpa, bytes }, Some((gpa, map)))
        }
        Request::UnmapRam { gpa, bytes } => (
            Event::UnmapRam {
                vm,
                request,
                gpa,
                bytes,
            },
            Then::Unmap { gpa, bytes },
            None,
        ),
        Request::Reset => (Event::Reset { vm, request }, Then::Nothing, None),
    }
}
