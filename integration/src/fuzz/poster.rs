//! A hostile VM without code of its own: whatever an input says becomes requests, answered or not.

use fermi_spec::bar::Bar;
use guests::GuestBus;
use vgpu::{Request, RequestId, VmId};
use vm_memory::VolatileMemory as _;

use crate::bench::Bench;
use crate::bus::WideBus;

/// A VM whose accesses nobody waits for. Its loads are all zero.
pub(super) struct Poster<'a> {
    pub(super) bench: &'a mut Bench,
    vm: VmId,
    /// Turns of the host after each access.
    pace: u32,
    /// Id of the last request.
    pub(super) posted: RequestId,
}

impl<'a> Poster<'a> {
    pub(super) fn new(bench: &'a mut Bench, vm: VmId, pace: u32) -> Self {
        Self {
            bench,
            vm,
            pace,
            posted: RequestId(0),
        }
    }

    /// Sends a request of any kind.
    pub(super) fn post(&mut self, request: Request) {
        self.posted = self.bench.post(self.vm, request);
        (0..self.pace).for_each(|_| self.bench.turn());
    }
}

impl WideBus for Poster<'_> {
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        let bytes = bytes as u32;
        self.post(Request::Read { bar, offset, bytes });
        0
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        let data = data.to_vec();
        self.post(Request::Write { bar, offset, data });
    }
}

impl GuestBus for Poster<'_> {
    fn read32(&mut self, bar: Bar, offset: u64) -> u32 {
        self.read(bar, offset, 4) as u32
    }

    fn write32(&mut self, bar: Bar, offset: u64, value: u32) {
        self.write(bar, offset, &value.to_le_bytes());
    }

    fn write64(&mut self, bar: Bar, offset: u64, value: u64) {
        self.write(bar, offset, &value.to_le_bytes());
    }

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        if let Ok(slice) = self
            .bench
            .world
            .vm(self.vm)
            .ram
            .get_slice(gpa as usize, data.len())
        {
            slice.copy_to(data);
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        if let Ok(slice) = self
            .bench
            .world
            .vm(self.vm)
            .ram
            .get_slice(gpa as usize, data.len())
        {
            slice.copy_from(data);
        }
    }

    fn ram_read32(&mut self, gpa: u64) -> u32 {
        let mut word = [0; 4];
        self.ram_read(gpa, &mut word);
        u32::from_le_bytes(word)
    }

    fn relax(&mut self) {
        self.bench.turn();
    }

    fn now_ns(&mut self) -> u64 {
        self.bench.world.now.0
    }

    fn report(&mut self, _line: &str) {}
}
