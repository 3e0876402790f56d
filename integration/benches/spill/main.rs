//! One chunk of 2 MiB spilled, and refilled, by the core and the software card, beside plain copies of as many bytes.
//!
//! A VM whose channel reaches 24 chunks is made to give up one of them by its quota, and gets it back when the quota is
//! raised. The measured time holds everything between the event and the notice that the chunk has moved: the decision,
//! taking the channel off the card, mapping the image, the copy, redirecting the shadow tables, the flush, scrubbing
//! the frames, resuming. The host runs on one thread, so no thread has to be woken. All memory has been touched
//! before, and all copies take their chunks at random from as much memory.

#[path = "../pairs/mod.rs"]
mod pairs;
mod streaming;

use std::cell::RefCell;

use fermi_spec::engine::Engine;
use integration::bench::Bench;
use integration::rig::{self, DATA, DATA_VA, RAM_VA, Rig};
use pairs::{Measure, Mode, Table, Way, nanoseconds};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use vgpu::{Direction, Event, Notice, Quota, VmId};
use vm_memory::{Bytes as _, MmapRegion, VolatileMemory as _};

const VM: VmId = VmId(0);
const ROUNDS: usize = 101;
const MIB: u64 = 1 << 20;
const CHUNK: u64 = 2 * MIB;
/// Chunks that the channel reaches.
const DATA_BYTES: u64 = 48 * MIB;
/// Where in guest RAM the guest's own copies go, and how many chunks fit.
const TARGET_GPA: u64 = 8 * MIB;
const TARGETS: u64 = 4;
const CHANNEL: u8 = 1;
/// Units of the card's work between two looks at the clock: about half a chunk.
const WORK: u32 = 256;

/// The host and its guest.
struct Host {
    bench: Bench,
    rig: Option<Rig>,
}

impl Host {
    fn new() -> Self {
        let mut bench = Bench::new(128, &[64]);
        bench.is_checked = false;
        let rig = bench.run(VM, |bus| {
            let mut rig = Rig::start(bus, DATA_BYTES);
            rig.open(bus, CHANNEL);
            assert!(rig.copies(bus, CHANNEL), "the channel works");
            rig
        });
        let memory = bench.world.vm(VM);
        touch(&memory.vram);
        touch(&memory.image);
        touch(&memory.ram);
        for at in (0..DATA_BYTES).step_by(8) {
            let at = DATA + at;
            memory
                .vram
                .as_volatile_slice()
                .write_obj(pattern(at), at as usize)
                .expect("inside");
        }
        bench.work = WORK;
        Self {
            bench,
            rig: Some(rig),
        }
    }

    fn resident(&self) -> u64 {
        let audit = self.bench.world.manager.audit().expect("the card is up");
        audit.vms[0].resident
    }

    /// Sets the quota and waits for the move that follows; microseconds.
    fn moved(&mut self, wanted: Direction, max: u64) -> f64 {
        self.bench.world.notices.clear();
        let total = nanoseconds(|| {
            let quota = Quota {
                max,
                ..Quota::default()
            };
            self.bench.world.submit(Event::SetQuota { vm: VM, quota });
            self.bench.turn_until("the move", |bench| {
                bench
                    .world
                    .notices
                    .iter()
                    .any(|(_, notice)| matches!(notice, Notice::Moved { .. }))
            });
        });
        let moved = self
            .bench
            .world
            .notices
            .iter()
            .find_map(|(_, notice)| match notice {
                Notice::Moved {
                    direction,
                    bytes,
                    pause_ns,
                    ..
                } => Some((*direction, *bytes, pause_ns.is_some())),
                _ => None,
            });
        assert_eq!(
            moved,
            Some((wanted, CHUNK, true)),
            "one chunk moved, and its user was suspended"
        );
        total / 1e3
    }

    fn spill(&mut self) -> f64 {
        let max = self.resident() - CHUNK;
        self.moved(Direction::Spill, max)
    }

    fn refill(&mut self) -> f64 {
        self.moved(Direction::Refill, u64::MAX)
    }

    /// The guest's own copy of a chunk from VRAM to its RAM: the card's part of a spill, without the core's.
    fn engine_copy(&mut self, chunk: u64) -> f64 {
        let (source, target) = (chunk * CHUNK, TARGET_GPA + chunk % TARGETS * CHUNK);
        let mut rig = self.rig.take().expect("it is always put back");
        self.bench.work = 0;
        let (rig, sequence) = self.bench.run(VM, move |bus| {
            let mut words = rig::bind_words(Engine::Copy0).to_vec();
            words.extend(rig::copy_words(
                DATA_VA + source,
                RAM_VA + target,
                0x1000,
                (CHUNK >> 12) as u32,
            ));
            let sequence = rig.submit_with_release(bus, CHANNEL, &words);
            (rig, sequence)
        });
        self.rig = Some(rig);
        self.bench.work = WORK;
        let at = Rig::semaphore_gpa(CHANNEL) as usize;
        let is_over = |bench: &Bench| {
            let word: u32 = bench
                .world
                .vm(VM)
                .ram
                .as_volatile_slice()
                .read_obj(at)
                .expect("inside");
            word == sequence
        };
        assert!(!is_over(&self.bench), "the copy has not run before it is timed");
        let total = nanoseconds(|| self.bench.turn_until("the copy", |bench| is_over(bench)));
        total / 1e3
    }

    /// Everything is in VRAM again, with the bytes that were put there.
    fn check(&mut self) {
        let memory = self.bench.world.vm(VM);
        for at in (DATA..DATA + DATA_BYTES).step_by(8) {
            let value: u64 = memory
                .vram
                .as_volatile_slice()
                .read_obj(at as usize)
                .expect("inside");
            assert_eq!(value, pattern(at), "byte {at:#x} of guest VRAM");
        }
    }
}

fn pattern(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes each page without changing it: first touches are slow and not part of a move.
fn touch(region: &MmapRegion) {
    let memory = region.as_volatile_slice();
    for at in (0..region.size()).step_by(0x1000) {
        let byte: u8 = memory.read_obj(at).expect("inside");
        memory.write_obj(byte, at).expect("inside");
    }
}

/// Two memories as large as what the VM's channel reaches, on lines as the non-temporal copy wants them.
struct Plain {
    source: Vec<u8>,
    target: Vec<u8>,
    skip: [usize; 2],
}

impl Plain {
    fn new() -> Self {
        let memory = || vec![0x5a; DATA_BYTES as usize + 0x1000];
        let (source, target) = (memory(), memory());
        let skip = [&source, &target].map(|memory| memory.as_ptr().align_offset(0x1000));
        Self { source, target, skip }
    }

    fn run(&mut self, chunk: u64, copy: impl FnOnce(&mut [u8], &mut [u8])) -> f64 {
        let [from, to] = self.skip.map(|skip| skip + (chunk * CHUNK) as usize);
        let source = &mut self.source[from..from + CHUNK as usize];
        let target = &mut self.target[to..to + CHUNK as usize];
        nanoseconds(|| copy(source, target)) / 1e3
    }
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    let host = RefCell::new(Host::new());
    let plain = RefCell::new(Plain::new());
    let rng = RefCell::new(ChaCha8Rng::seed_from_u64(1));
    let chunk = || rng.borrow_mut().random_range(0..DATA_BYTES / CHUNK);
    // Every page of every image has been in use before the clock runs.
    for _ in 0..mode.rounds(8) {
        host.borrow_mut().spill();
        host.borrow_mut().refill();
    }
    let ways: Vec<Way<'_>> = vec![
        (
            "non-temporal copy",
            Box::new(|| {
                rate(plain.borrow_mut().run(chunk(), |source, target| {
                    assert!(streaming::copy(source, target), "this processor has no AVX2");
                }))
            }),
        ),
        (
            "memcpy",
            Box::new(|| {
                rate(plain.borrow_mut().run(chunk(), |source, target| {
                    target.copy_from_slice(source);
                }))
            }),
        ),
        (
            "memcpy and scrub",
            Box::new(|| {
                rate(plain.borrow_mut().run(chunk(), |source, target| {
                    target.copy_from_slice(source);
                    source.fill(0);
                }))
            }),
        ),
        (
            "copy engine alone",
            Box::new(|| rate(host.borrow_mut().engine_copy(chunk()))),
        ),
        ("spill", Box::new(|| rate(host.borrow_mut().spill()))),
        ("refill", Box::new(|| rate(host.borrow_mut().refill()))),
    ];
    Table {
        title: "one chunk of 2 MiB",
        unit: "GB/s",
        measure: Measure::Rate,
        bases: &["non-temporal copy", "memcpy", "memcpy and scrub"],
        rounds: mode.rounds(ROUNDS),
    }
    .run(ways);
    host.borrow_mut().check();
}

/// A chunk in so many microseconds, as GB/s.
fn rate(microseconds: f64) -> f64 {
    CHUNK as f64 / microseconds / 1e3
}
