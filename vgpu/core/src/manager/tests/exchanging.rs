//! Chunks of a VM change places while it is stopped once.

use fermi_spec::addr::{FRAME, SMALL_PAGE};
use fermi_spec::bar::Bar;
use fermi_spec::pte::Pte;
use rand_chacha::ChaCha8Rng;

use super::scene::{DATA, MIB, MS, Scene, TABLE};
use super::{A, rolled_back};
use crate::config::{GpuConfig, Quota};
use crate::event::Event;
use crate::manager::Manager;
use crate::memory::{ChunkNo, ChunkPlace, Reach};
use crate::notice::{Direction, Notice};
use crate::policy::{Observation, Occasion, Policy, Proposal, Snapshot, Usage, WorkWanted, Worth};
use crate::reason::{MoveCause, RollBack};

const CHUNK: u64 = 2 * MIB;

/// Proposes one exchange, and nothing else.
struct Once {
    leave: Vec<ChunkNo>,
    come: Vec<ChunkNo>,
}

impl Policy for Once {
    fn propose(&mut self, _: &Snapshot<'_>, occasion: Occasion, _: &mut ChaCha8Rng) -> Proposal {
        let is_calm = matches!(occasion, Occasion::Pass | Occasion::Tick);
        if !is_calm || self.leave.is_empty() {
            return Proposal::Nothing;
        }
        Proposal::Exchange {
            vm: A,
            leave: std::mem::take(&mut self.leave),
            come: std::mem::take(&mut self.come),
            cause: MoveCause::Exchange { within: A },
        }
    }

    fn observe(&mut self, _: &Observation<'_>) -> Worth {
        Worth::Nothing
    }

    fn wants_work(&self) -> WorkWanted {
        WorkWanted::Nothing
    }

    fn save(&self) -> String {
        String::new()
    }

    fn restore(&mut self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn wants_tick(&self, _: Usage) -> bool {
        true
    }
}

/// A VM with more than fits, all of it mapped for stores. The first chunk that is in VRAM and the first that is not are to change places.
fn exchanging() -> (Scene, ChunkNo, ChunkNo) {
    exchanging_with(GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    })
}

pub(super) fn exchanging_with(config: GpuConfig) -> (Scene, ChunkNo, ChunkNo) {
    let mut scene = Scene::with(config);
    scene.attach(A, 64);
    scene.bind(A, 60);
    scene.run_channel(A);
    scene.pass(300 * MS);
    let chunks = scene.chunks_of(A);
    let all = || ((DATA / CHUNK) as u32..).map(ChunkNo).take(30);
    let goes = all().find(|chunk| chunks.place(*chunk).is_in_vram());
    let comes = all().find(|chunk| *chunks.place(*chunk) == ChunkPlace::Spilled);
    let (goes, comes) = goes.zip(comes).expect("some fit, and some do not");
    scene.running().policy = Box::new(Once {
        leave: vec![goes],
        come: vec![comes],
    });
    scene.take();
    (scene, goes, comes)
}

/// Of each pause whether it was in vain.
pub(super) fn pauses(scene: &Scene) -> Vec<bool> {
    let resumed = scene.notices().filter_map(|notice| match notice {
        Notice::Resumed { is_rolled_back, .. } => Some(*is_rolled_back),
        _ => None,
    });
    resumed.collect()
}

/// What moved, with whether its notice has a pause.
pub(super) fn moved(scene: &Scene) -> Vec<(Direction, u64, bool)> {
    let moved = scene.notices().filter_map(|notice| match notice {
        Notice::Moved {
            direction,
            bytes,
            pause_ns,
            ..
        } => Some((*direction, *bytes, pause_ns.is_some())),
        _ => None,
    });
    moved.collect()
}

pub(super) fn frames_of(scene: &mut Scene, chunk: ChunkNo) -> Vec<u32> {
    let frames = scene.chunks_of(A).place(chunk).frames();
    frames.into_iter().flatten().map(|frame| frame.0).collect()
}

#[test]
fn what_comes_has_the_frames_of_what_left_and_the_vm_stands_still_once() {
    let (mut scene, goes, comes) = exchanging();
    let (frames, free) = (frames_of(&mut scene, goes), scene.running().frames.free_count());
    let resident = scene.resident(A);
    scene.pass(100 * MS);
    assert_eq!(
        moved(&scene),
        [(Direction::Spill, CHUNK, false), (Direction::Refill, CHUNK, true)]
    );
    assert_eq!(pauses(&scene), [false]);
    assert_eq!(frames_of(&mut scene, comes), frames);
    assert!(scene.chunks_of(A).is_out(goes));
    assert_eq!(scene.running().frames.free_count(), free);
    assert_eq!(scene.resident(A), resident);
    assert!(!scene.is_moving());
}

#[test]
fn who_stores_to_what_comes_alone_stands_still_too() {
    let (mut scene, goes, comes) = exchanging();
    // What leaves can be loaded only.
    let first = u64::from(goes.0) * CHUNK - DATA;
    for page in (first..first + CHUNK).step_by(FRAME as usize) {
        let pte = Pte::new()
            .with_valid(true)
            .with_read_only(true)
            .with_frame(((DATA + page) >> 12) as u32);
        scene.put(A, TABLE + page / FRAME * 8, &pte.into_bits().to_le_bytes());
    }
    scene.flush(A);
    assert_eq!(scene.chunks_of(A).reach(goes), Reach::ReadOnly);
    assert_eq!(scene.chunks_of(A).reach(comes), Reach::Writable);
    scene.pass(100 * MS);
    assert!(scene.chunks_of(A).place(comes).is_in_vram());
    assert_eq!(pauses(&scene), [false]);
}

#[test]
fn vm_at_its_min_exchanges_too() {
    let (mut scene, _, comes) = exchanging();
    let min = scene.resident(A);
    let quota = Quota {
        min,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.pass(100 * MS);
    assert!(scene.chunks_of(A).place(comes).is_in_vram());
    assert_eq!(scene.resident(A), min);
}

/// The exchange begins, and its first half ends; later copies end when the test says so.
fn end_first_half(scene: &mut Scene) {
    scene.copies_end = false;
    while !scene.is_moving() {
        scene.pass(MS);
    }
    scene.end_copy();
    scene.pass(2 * MS);
}

/// A first half is done, and the second one's copy does not end.
fn half_done() -> (Scene, ChunkNo, ChunkNo) {
    let (mut scene, goes, comes) = exchanging();
    end_first_half(&mut scene);
    assert_eq!(moved(&scene), [(Direction::Spill, CHUNK, false)]);
    (scene, goes, comes)
}

/// What is read has an owner for each frame and each table, those between the halves too.
#[test]
fn state_between_the_halves_is_read_as_it_was_written() {
    let (scene, ..) = half_done();
    let config = GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    };
    let whole = scene.manager.save();
    let volatile = scene.manager.into_volatile();
    let loaded = Manager::load(config, &whole, volatile);
    assert_eq!(loaded.map(|loaded| loaded.save()).ok(), Some(whole));
}

#[test]
fn copy_that_fails_in_the_second_half_leaves_both_chunks_in_host_ram_and_the_vm_goes_on() {
    let (mut scene, goes, comes) = half_done();
    let free = scene.running().frames.free_count();
    assert_eq!(
        pauses(&scene),
        [] as [bool; 0],
        "it stands still for the second half"
    );
    scene.pass(200 * MS);
    assert_eq!(rolled_back(&scene), Some(RollBack::CopyOverTime));
    assert_eq!(pauses(&scene), [true]);
    assert!(scene.chunks_of(A).is_out(goes) && scene.chunks_of(A).is_out(comes));
    assert_eq!(scene.running().frames.free_count(), free + (CHUNK / FRAME) as u32);
    // Its memory may move again.
    let chunks = scene.chunks_of(A);
    assert!(!chunks.is_moving(goes) && !chunks.is_moving(comes));
}

#[test]
fn vm_goes_in_either_half() {
    let first = || {
        let (mut scene, goes, comes) = exchanging();
        scene.copies_end = false;
        while !scene.is_moving() {
            scene.pass(MS);
        }
        (scene, goes, comes)
    };
    let halves: [&dyn Fn() -> (Scene, ChunkNo, ChunkNo); 2] = [&first, &half_done];
    for (begin, moved_before) in halves.into_iter().zip([0, 1]) {
        let (mut scene, ..) = begin();
        assert_eq!(moved(&scene).len(), moved_before);
        let free = scene.running().frames.free_count();
        let held = (scene.resident(A) / FRAME) as u32;
        scene.apply(Event::Detach { vm: A });
        assert!(
            !scene.actions.iter().any(super::detached),
            "the engine still copies"
        );
        scene.copies_end = true;
        scene.end_copy();
        scene.pass(200 * MS);
        assert!(!scene.is_moving() && scene.actions.iter().any(super::detached));
        // Between the halves its frames are those of no chunk.
        let between = moved_before as u32 * (CHUNK / FRAME) as u32;
        assert_eq!(scene.running().frames.free_count(), free + held + between);
    }
}

#[test]
fn what_comes_needs_no_more_frames_than_what_leaves_has() {
    let (mut scene, goes, comes) = exchanging();
    let also = ChunkNo(comes.0 + 1);
    scene.running().policy = Box::new(Once {
        leave: vec![goes],
        come: vec![comes, also],
    });
    scene.pass(100 * MS);
    assert_eq!(
        moved(&scene),
        [(Direction::Spill, CHUNK, false), (Direction::Refill, CHUNK, true)]
    );
}

#[test]
fn vm_whose_high_is_lowered_meanwhile_loses_and_gets_nothing_back() {
    let (mut scene, goes, comes) = exchanging();
    scene.copies_end = false;
    while !scene.is_moving() {
        scene.pass(MS);
    }
    let quota = Quota {
        high: scene.resident(A) - CHUNK,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.copies_end = true;
    scene.end_copy();
    scene.pass(20 * MS);
    assert_eq!(moved(&scene), [(Direction::Spill, CHUNK, true)]);
    assert_eq!((rolled_back(&scene), pauses(&scene)), (None, vec![false]));
    let chunks = scene.chunks_of(A);
    assert!(chunks.is_out(goes) && chunks.is_out(comes));
    assert!(!chunks.is_moving(goes) && !chunks.is_moving(comes));
}

/// A window's store needs memory while the second half is under way, for which the VM's `max` has room.
#[test]
fn what_comes_in_an_exchange_counts_before_it_is_there() {
    let (mut scene, goes, comes) = exchanging();
    let max = scene.resident(A);
    let quota = Quota {
        max,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    end_first_half(&mut scene);
    assert_eq!(scene.resident(A), max - CHUNK, "the first half is done");
    let chunks = scene.chunks_of(A);
    let unbacked = chunks
        .all()
        .find(|&chunk| *chunks.place(chunk) == ChunkPlace::Unbacked);
    let unbacked = unbacked.expect("4 MiB are not mapped");
    // Behind USERD.
    scene.store(
        A,
        Bar::Bar1,
        u64::from(unbacked.0 + 1) * CHUNK - SMALL_PAGE,
        &[1; 4],
    );
    assert_eq!(
        *scene.chunks_of(A).place(unbacked),
        ChunkPlace::Spilled,
        "{unbacked:?}"
    );
    scene.end_copy();
    scene.pass(MS);
    assert!(scene.chunks_of(A).is_out(goes) && scene.chunks_of(A).place(comes).is_in_vram());
    assert_eq!(scene.resident(A), max);
}
