//! The allocator of VRAM frames beside a free list behind a mutex, at one and two threads.
//!
//! Each client searches from a place of its own and goes on where it found the last frame, as the core's clients do.

#[path = "pairs/cores.rs"]
mod cores;
#[path = "pairs/mod.rs"]
mod pairs;

use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use fermi_spec::addr::FrameNo;
use pairs::{Measure, Mode, Table, Way};
use vgpu::memory::Frames;

/// 512 GiB of VRAM: so large that caches do not decide the result.
const FRAMES: u32 = 4 << 20;
const ROUNDS: usize = 41;
/// Pairs of allocation and release that each thread does in a round.
const PAIRS: u32 = 1 << 17;

/// The operations of both allocators.
trait Allocator: Sync {
    fn allocate(&self, start: u32) -> u32;
    fn release(&self, frame: u32);
}

impl Allocator for Frames {
    fn allocate(&self, start: u32) -> u32 {
        Frames::allocate(self, start).expect("frames are left").0
    }

    fn release(&self, frame: u32) {
        Frames::release(self, FrameNo(frame));
    }
}

/// A free list, the obvious way.
struct FreeList(Mutex<Vec<u32>>);

impl FreeList {
    fn new() -> Self {
        Self(Mutex::new((0..FRAMES).rev().collect()))
    }
}

impl Allocator for FreeList {
    fn allocate(&self, _start: u32) -> u32 {
        let mut free = self.0.lock().expect("nobody panics");
        free.pop().expect("frames are left")
    }

    fn release(&self, frame: u32) {
        self.0.lock().expect("nobody panics").push(frame);
    }
}

/// Runs `work(start)` on `threads` threads at once, each on a processor of its own. Returns millions of operations
/// a second, with `count` of them on each.
fn rate(threads: u32, count: u32, work: impl Fn(u32) + Sync) -> f64 {
    let barrier = Barrier::new(threads as usize);
    let cpus = cores::processors();
    let spans = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                let cpu = cpus[thread as usize % cpus.len()];
                scope.spawn(move || {
                    cores::pin(&[cpu]);
                    barrier.wait();
                    let start = Instant::now();
                    work(FRAMES / threads * thread);
                    (start, Instant::now())
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().expect("no thread panics"))
            .collect::<Vec<_>>()
    });
    let start = spans.iter().map(|span| span.0).min().expect("a thread ran");
    let end = spans.iter().map(|span| span.1).max().expect("a thread ran");
    f64::from(threads * count) / (end - start).as_nanos() as f64 * 1e3
}

/// An eighth of all frames, none given back: short, so that a busy machine does not take the processor away.
fn allocation(threads: u32, allocator: &dyn Allocator) -> f64 {
    let count = FRAMES / 8 / threads;
    rate(threads, count, |start| {
        let mut next = start;
        for _ in 0..count {
            next = black_box(allocator.allocate(next)) + 1;
        }
    })
}

/// One frame at a time.
fn churn(threads: u32, allocator: &dyn Allocator) -> f64 {
    rate(threads, PAIRS, |start| {
        for _ in 0..PAIRS {
            allocator.release(black_box(allocator.allocate(start)));
        }
    })
}

fn main() {
    let mode = Mode::from_arguments();
    if mode == Mode::List {
        return;
    }
    for threads in [1, 2] {
        let plural = if threads == 1 { "" } else { "s" };
        for (name, work) in [
            ("allocation alone", allocation as fn(u32, &dyn Allocator) -> f64),
            ("allocate and release", churn),
        ] {
            let ways: Vec<Way<'_>> = vec![
                (
                    "mutex and free list",
                    Box::new(|| work(threads, &FreeList::new())),
                ),
                (
                    "vgpu::memory::Frames",
                    Box::new(|| work(threads, &Frames::new(FRAMES))),
                ),
            ];
            Table {
                title: &format!("frames: {name}, {threads} thread{plural}"),
                unit: "M/s",
                measure: Measure::Rate,
                bases: &["mutex and free list"],
                rounds: mode.rounds(ROUNDS),
            }
            .run(ways);
        }
    }
}
