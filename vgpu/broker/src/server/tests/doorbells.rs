//! Clients whose guests' stores to doorbells trap while they are quiet.

use fermi_spec::instance::{CHANNELS, USERD_BYTES, userd};
use vfio_user_server::doorbells::{PLACE, REGION_BYTES, place_in};
use vfio_user_server::{IrqIndex, Region, RemoteError, RemoteFunction};
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

use super::*;
use crate::mapping::map_shared;
use crate::testing::USERD_AT;

const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;

/// A client that has mapped BAR1.
struct Vmm {
    function: RemoteFunction,
    bar1: Arc<MmapRegion>,
    quiet: EventFd,
    stored: EventFd,
    rings: u32,
}

fn event() -> EventFd {
    EventFd::new(EFD_NONBLOCK).unwrap()
}

fn bench() -> Bench {
    let gpu = FakeGpu::default();
    gpu.card().follows_mappings = true;
    Bench::with(gpu, TestCore::default(), &["a"])
}

impl Vmm {
    fn new(bench: &Bench) -> Self {
        let function = RemoteFunction::connect(&bench.path("a"), Duration::from_secs(5)).unwrap();
        let memory = function.region_memory(Region::Bar1).unwrap().unwrap();
        let [part] = memory.parts[..] else { panic!() };
        let file = Arc::new(std::fs::File::from(memory.descriptor));
        let bar1 = map_shared(file, part.file_offset, part.bytes, true).unwrap();
        // It was given the file when it sees an answer to what follows.
        function.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
        Self {
            function,
            bar1,
            quiet: event(),
            stored: event(),
            rings: 0,
        }
    }

    fn connect(&self) {
        let function = &self.function;
        function
            .connect_unmask(IrqIndex::DeviceSpecific, &self.stored)
            .unwrap();
        function
            .connect_irq(IrqIndex::DeviceSpecific, &self.quiet)
            .unwrap();
    }

    fn watch(&self) {
        self.function.write(Region::Bar0, at::WATCH, &[0; 4]).unwrap();
    }

    fn place(&self) -> Option<(u64, u64)> {
        let mut region = [0; REGION_BYTES];
        self.function
            .read(Region::DeviceSpecific, PLACE, &mut region)
            .unwrap();
        place_in(region)
    }

    /// Error of the answer; 0 for none.
    fn arm(&self, place: u64) -> i32 {
        refusal(
            self.function
                .write(Region::DeviceSpecific, PLACE, &place.to_le_bytes()),
        )
    }

    fn ring(&mut self) {
        self.rings += 1;
        let at = (USERD_AT + userd::GP_PUT) as usize;
        self.bar1.as_volatile_slice().write_obj(self.rings, at).unwrap();
    }
}

fn refusal(outcome: Result<(), RemoteError>) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(RemoteError::Refused { errno, .. }) => errno,
        Err(other) => panic!("{other}"),
    }
}

/// Doorbells that the core has heard of.
fn rung(bench: &Bench) -> usize {
    let register = format!("w {:x}", at::RUNG);
    bench
        .gpu
        .card()
        .log
        .iter()
        .filter(|entry| **entry == register)
        .count()
}

#[test]
fn quiet_guest_s_store_is_found_when_its_vmm_says_that_it_traps() {
    let bench = bench();
    let mut vmm = Vmm::new(&bench);
    vmm.connect();
    assert_eq!(vmm.place(), None, "the guest has said nothing yet");
    vmm.watch();
    assert_eq!(vmm.place(), Some((USERD_AT, CHANNELS as u64 * USERD_BYTES)));
    // What is there at first counts as one.
    bench.wait_until(|bench| rung(bench) == 1);
    for round in 1..4 {
        vmm.ring();
        bench.wait_until(|bench| rung(bench) == 2 * round);
        assert_eq!(vmm.arm(USERD_AT), EAGAIN, "it has just rung");
        bench.wait_until(|_| vmm.quiet.read().is_ok());
        assert_eq!(vmm.arm(USERD_AT + USERD_BYTES), EAGAIN, "they lie elsewhere");
        assert_eq!(vmm.arm(USERD_AT), 0);
        assert_eq!(vmm.arm(USERD_AT), EAGAIN, "they trap already");
        // A guest whose stores did not trap would lose this.
        vmm.ring();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(rung(&bench), 2 * round, "nobody looks");
        vmm.stored.write(1).unwrap();
        bench.wait_until(|bench| rung(bench) == 2 * round + 1);
    }
}

#[test]
fn signal_that_comes_before_stores_trap_is_not_taken_for_a_store() {
    let bench = bench();
    let mut vmm = Vmm::new(&bench);
    vmm.connect();
    vmm.watch();
    bench.wait_until(|_| vmm.quiet.read().is_ok());
    let before = rung(&bench);
    vmm.stored.write(5).unwrap();
    assert_eq!(vmm.arm(USERD_AT), 0);
    vmm.ring();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(rung(&bench), before, "nobody looks");
    // An eventfd that takes the place of the other: the first can say nothing any more.
    vmm.stored = event();
    vmm.connect();
    bench.wait_until(|bench| rung(bench) == before + 1);
}

#[test]
fn store_to_the_region_that_means_nothing_is_refused() {
    let bench = bench();
    let vmm = Vmm::new(&bench);
    vmm.watch();
    assert_eq!(
        vmm.arm(USERD_AT),
        EINVAL,
        "no eventfd could say that a store traps"
    );
    vmm.connect();
    let write = |offset, data: &[u8]| refusal(vmm.function.write(Region::DeviceSpecific, offset, data));
    assert_eq!(write(PLACE, &[0; 4]), EINVAL);
    assert_eq!(write(PLACE + 8, &[0; 8]), EINVAL);
    assert_eq!(write(PLACE, &[0; 16]), EINVAL);
    let mut past = [0; REGION_BYTES];
    assert_eq!(
        refusal(vmm.function.read(Region::DeviceSpecific, 8, &mut past)),
        EINVAL
    );
    // In a batch nobody waits for the answer. The next command says that the connection is as it was.
    vmm.function
        .post(Region::DeviceSpecific, PLACE, &USERD_AT.to_le_bytes())
        .unwrap();
    vmm.function
        .post(Region::DeviceSpecific, PLACE, &USERD_AT.to_le_bytes())
        .unwrap();
    vmm.function.flush().unwrap();
    assert_eq!(vmm.place().map(|(place, _)| place), Some(USERD_AT));
}

#[test]
fn vgpu_without_windows_has_no_such_region() {
    let bench = Bench::new(TestCore::default(), &["a"]);
    let function = RemoteFunction::connect(&bench.path("a"), Duration::from_secs(5)).unwrap();
    assert_eq!(function.region_bytes(Region::DeviceSpecific), 0);
    assert!(function.connect_irq(IrqIndex::DeviceSpecific, &event()).is_err());
}
