//! Requests of VMs that the core has not answered yet.

use fermi_spec::addr::Gpa;
use fermi_spec::bar::Bar;
use vgpu::{Event, RequestId, VmId};

use crate::memory::RamMap;

/// Most requests of one VM that may wait: as many as one client may have unanswered, cut into single accesses.
pub(crate) const WAITING_MAX: usize = 16 * 1024;

/// A request of a VM to the core.
#[derive(Debug)]
pub(crate) enum Request {
    /// A load from a BAR.
    Read { bar: Bar, offset: u64, bytes: u32 },
    /// A store to a BAR.
    Write { bar: Bar, offset: u64, data: Vec<u8> },
    /// Offers a range of RAM for DMA.
    MapRam { gpa: Gpa, map: RamMap },
    /// Take RAM back.
    UnmapRam { gpa: Gpa, bytes: u64 },
    /// Reset the device.
    Reset,
}

/// The broker's own work once the answer is there.
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
