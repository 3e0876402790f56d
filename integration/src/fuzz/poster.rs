//! A VM without code of its own: whatever an input says becomes requests, answered or not.

use fermi_spec::bar::Bar;
use guests::GuestBus;
use vgpu::{Reply, Request, RequestId, VmId};
use vm_memory::{VolatileMemory as _, VolatileSlice};

use crate::bench::Bench;
use sim_host::bus::WideBus;
use sim_host::narrow_accesses;

/// Turns within which an access is answered whose VM waits for it.
const TURNS_OF_AN_ACCESS: u32 = 400_000;

/// What a VM does once it has asked for something.
#[derive(Clone, Copy)]
pub(super) enum Pace {
    /// It asks for the next thing so many turns of the host later, answered or not. Its loads are all zero.
    After(u32),
    /// It waits for the answer, which is none of an error.
    Answered,
}

/// A VM that asks.
pub(super) struct Poster<'a> {
    pub(super) bench: &'a mut Bench,
    vm: VmId,
    pace: Pace,
    /// Id of the last request.
    pub(super) posted: RequestId,
}

impl<'a> Poster<'a> {
    pub(super) fn new(bench: &'a mut Bench, vm: VmId, pace: Pace) -> Self {
        Self {
            bench,
            vm,
            pace,
            posted: RequestId(0),
        }
    }

    /// Sends a request of any kind.
    pub(super) fn post(&mut self, request: Request) {
        self.ask(request);
    }

    fn ask(&mut self, request: Request) -> u64 {
        self.posted = self.bench.post(self.vm, request);
        match self.pace {
            Pace::After(turns) => {
                (0..turns).for_each(|_| self.bench.turn());
                0
            }
            Pace::Answered => self.answer(),
        }
    }

    /// A part of the VM's RAM; `None` where it has none, which is the input's own mistake.
    fn ram(&self, gpa: u64, bytes: usize) -> Option<VolatileSlice<'_>> {
        self.bench
            .world
            .vm(self.vm)
            .ram
            .get_slice(gpa as usize, bytes)
            .ok()
    }

    fn answer(&mut self) -> u64 {
        for _ in 0..TURNS_OF_AN_ACCESS {
            match self.bench.world.take_reply(self.vm, self.posted) {
                None => self.bench.turn(),
                Some(Reply::Done) => return 0,
                Some(Reply::Data(data)) => {
                    let mut word = [0; 8];
                    word.iter_mut().zip(data).for_each(|(to, from)| *to = from);
                    return u64::from_le_bytes(word);
                }
                Some(Reply::Refused(refusal)) => panic!("an access of {} was refused: {refusal}", self.vm),
            }
        }
        panic!("an access of {} is not answered", self.vm);
    }
}

impl WideBus for Poster<'_> {
    fn read(&mut self, bar: Bar, offset: u64, bytes: usize) -> u64 {
        let bytes = bytes as u32;
        self.ask(Request::Read { bar, offset, bytes })
    }

    fn write(&mut self, bar: Bar, offset: u64, data: &[u8]) {
        let data = data.to_vec();
        self.post(Request::Write { bar, offset, data });
    }
}

impl GuestBus for Poster<'_> {
    narrow_accesses!();

    fn ram_read(&mut self, gpa: u64, data: &mut [u8]) {
        if let Some(slice) = self.ram(gpa, data.len()) {
            slice.copy_to(data);
        }
    }

    fn ram_write(&mut self, gpa: u64, data: &[u8]) {
        if let Some(slice) = self.ram(gpa, data.len()) {
            slice.copy_from(data);
        }
    }

    fn relax(&mut self) {
        self.bench.turn();
    }

    fn now_ns(&mut self) -> u64 {
        self.bench.world.now.0
    }

    fn report(&mut self, _line: &str) {}
}
