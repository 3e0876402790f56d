//! Chunks that take too long for one suspension move part by part.

use fermi_spec::addr::{FRAME, GuestVramAddr};
use shadow_pt::Placement;

use super::exchanging::{exchanging_with, frames_of, moved, pauses};
use super::scene::{MIB, MS, Scene};
use super::{A, B};
use crate::config::{GpuConfig, Quota};
use crate::event::Event;
use crate::manager::Manager;
use crate::memory::{ChunkNo, ChunkPlace};
use crate::notice::{Direction, Notice};

const CHUNK: u64 = 2 * MIB;
/// Four of them are a chunk.
const PART: u64 = 4 * FRAME;

fn config() -> GpuConfig {
    GpuConfig {
        frames_arrive_zeroed: true,
        batch_bytes: PART,
        part_bytes: FRAME,
        // Copies take as long as a test lets them.
        copy_budget_ns: 1_000 * MS,
        ..GpuConfig::default()
    }
}

/// A VM with 20 MiB in VRAM, which has to give one chunk of them up.
fn above_max() -> Scene {
    let mut scene = Scene::with(config());
    scene.attach(A, 32);
    scene.bind(A, 20);
    scene.run_channel(A);
    assert_eq!(scene.resident(A), 20 * MIB);
    scene.take();
    scene.copies_end = false;
    set(
        &mut scene,
        Quota {
            max: 18 * MIB,
            ..Quota::default()
        },
    );
    scene
}

fn set(scene: &mut Scene, quota: Quota) {
    scene.apply(Event::SetQuota { vm: A, quota });
}

/// Ends the copy under way, and comes to the next one.
fn end_part(scene: &mut Scene) {
    let before = pauses(scene).len();
    while pauses(scene).len() == before {
        scene.end_copy();
        scene.pass(MS);
    }
    scene.pass(25 * MS);
}

/// The chunk of which a part has been moved, and how much of it is out.
fn split(scene: &mut Scene) -> Option<(ChunkNo, u32)> {
    let chunks = scene.chunks_of(A);
    let mut all = chunks.all();
    all.find_map(|chunk| match chunks.place(chunk) {
        ChunkPlace::Split(split) => Some((chunk, split.out)),
        _ => None,
    })
}

/// Whether each 128 KiB of the chunk is in host RAM.
fn out(scene: &mut Scene, chunk: ChunkNo) -> Vec<bool> {
    let frames = (0..CHUNK / FRAME).map(|frame| GuestVramAddr(u64::from(chunk.0) * CHUNK + frame * FRAME));
    let chunks = scene.chunks_of(A);
    let is_out = |at| matches!(chunks.locate(at), Placement::Sysram(_));
    frames.map(is_out).collect()
}

fn chunks_moved(scene: &Scene) -> Vec<u32> {
    let moved = scene.notices().filter_map(|notice| match notice {
        Notice::Moved { chunks, .. } => Some(*chunks),
        _ => None,
    });
    moved.collect()
}

#[test]
fn chunk_leaves_in_as_many_suspensions_as_it_has_parts() {
    let mut scene = above_max();
    let free = scene.running().frames.free_count();
    for parts in 1..4 {
        end_part(&mut scene);
        let (chunk, out_of_it) = split(&mut scene).expect("a part is out, and a part is not");
        assert_eq!(out_of_it, parts * 4);
        let expected: Vec<bool> = (0..16).map(|frame| frame < parts * 4).collect();
        assert_eq!(out(&mut scene, chunk), expected);
        assert_eq!(scene.resident(A), 20 * MIB, "it holds its frames to the end");
        assert_eq!(scene.running().frames.free_count(), free);
        scene.chunks_of(A).check();
    }
    end_part(&mut scene);
    assert_eq!(split(&mut scene), None);
    assert_eq!(moved(&scene), [(Direction::Spill, PART, true); 4]);
    assert_eq!(chunks_moved(&scene), [0, 0, 0, 1]);
    assert_eq!(pauses(&scene), [false; 4]);
    assert_eq!(scene.resident(A), 18 * MIB);
    let frames = (CHUNK / FRAME) as u32;
    assert_eq!(scene.running().frames.free_count(), free + frames);
}

#[test]
fn chunk_comes_back_in_parts_the_last_one_first() {
    let mut scene = above_max();
    (0..4).for_each(|_| end_part(&mut scene));
    scene.take();
    set(&mut scene, Quota::default());
    scene.pass(200 * MS);
    for parts in 1..4 {
        end_part(&mut scene);
        let (chunk, _) = split(&mut scene).expect("a part is back, and a part is not");
        let expected: Vec<bool> = (0..16).map(|frame| frame < 16 - parts * 4).collect();
        assert_eq!(out(&mut scene, chunk), expected);
    }
    end_part(&mut scene);
    assert_eq!(split(&mut scene), None);
    assert_eq!(moved(&scene), [(Direction::Refill, PART, true); 4]);
    assert_eq!(scene.resident(A), 20 * MIB);
}

/// Its frames are there, so nothing can forbid that.
#[test]
fn part_goes_back_when_the_quota_lets_the_rest_not_go() {
    let mut scene = above_max();
    end_part(&mut scene);
    let free = scene.running().frames.free_count();
    set(
        &mut scene,
        Quota {
            min: 20 * MIB,
            ..Quota::default()
        },
    );
    scene.copies_end = true;
    scene.end_copy();
    scene.pass(500 * MS);
    assert_eq!(split(&mut scene), None);
    assert_eq!(scene.resident(A), 20 * MIB);
    assert_eq!(scene.running().frames.free_count(), free);
    assert!(
        moved(&scene)
            .iter()
            .any(|(direction, ..)| *direction == Direction::Refill)
    );
}

#[test]
fn vm_that_goes_between_two_parts_leaves_no_frame_behind() {
    let mut scene = Scene::with(config());
    let free = scene.running().frames.free_count();
    drop(scene);
    scene = above_max();
    end_part(&mut scene);
    assert!(split(&mut scene).is_some());
    scene.copies_end = true;
    scene.apply(Event::Detach { vm: A });
    scene.pass(500 * MS);
    assert_eq!(scene.running().frames.free_count(), free);
    assert!(scene.running().mover.begun.is_empty());
}

/// What waits for the frames has them all at once, and the next VM's chunk does not come between.
#[test]
fn demand_is_met_when_the_last_part_is_out() {
    let (mut scene, request) = Scene::with(config()).contended();
    scene.pass(200 * MS);
    assert!(scene.reply(request).is_some());
    assert_eq!(split(&mut scene), None);
    assert!(scene.resident(B) > 0);
    let parts = moved(&scene).len() as u64;
    let chunks = u64::from(chunks_moved(&scene).iter().sum::<u32>());
    assert_eq!(parts, chunks * 4);
}

#[test]
fn state_between_two_parts_is_read_as_it_was_written() {
    let mut scene = above_max();
    end_part(&mut scene);
    let whole = scene.manager.save();
    let volatile = scene.manager.into_volatile();
    let loaded = Manager::load(config(), &whole, volatile);
    assert_eq!(
        loaded
            .map(|loaded| loaded.save())
            .map_err(|error| error.to_string()),
        Ok(whole)
    );
}

#[test]
fn exchange_turns_round_in_the_suspension_of_the_last_part() {
    let (mut scene, goes, comes) = exchanging_with(config());
    let frames = frames_of(&mut scene, goes);
    scene.pass(300 * MS);
    // The two that share a suspension are half a part each.
    let alone = [4, 4, 3, 3].map(|frames| frames * FRAME);
    let went = alone.map(|bytes| (Direction::Spill, bytes, true));
    let turned = [
        (Direction::Spill, PART / 2, false),
        (Direction::Refill, PART / 2, true),
    ];
    let came = alone.map(|bytes| (Direction::Refill, bytes, true));
    assert_eq!(moved(&scene), [&went[..], &turned, &came].concat());
    assert_eq!(pauses(&scene), [false; 9]);
    assert_eq!(frames_of(&mut scene, comes), frames);
    assert!(scene.chunks_of(A).is_out(goes));
}

/// A move that fits is one move, whatever a part would be.
#[test]
fn chunk_that_fits_the_budget_moves_as_a_whole() {
    let mut scene = Scene::with(GpuConfig {
        batch_bytes: CHUNK,
        ..config()
    });
    scene.attach(A, 32);
    scene.bind(A, 20);
    set(
        &mut scene,
        Quota {
            max: 18 * MIB,
            ..Quota::default()
        },
    );
    scene.pass(100 * MS);
    assert_eq!(
        moved(&scene)
            .iter()
            .map(|(_, bytes, _)| *bytes)
            .collect::<Vec<_>>(),
        [CHUNK]
    );
}

/// By the copies before, and no less than a suspension is worth.
#[test]
fn parts_are_what_the_copy_budget_has_time_for() {
    for (part_bytes, parts) in [(FRAME, Some(0..4)), (MIB, Some(0..8)), (CHUNK, None)] {
        let mut scene = Scene::with(GpuConfig {
            copy_budget_ns: 2 * MS,
            batch_bytes: 8 * MIB,
            part_bytes,
            ..config()
        });
        scene.attach(A, 32);
        scene.bind(A, 20);
        let running = scene.running();
        (0..100).for_each(|_| running.forecast.note_copy(MIB, 4 * MS));
        let vgpu = &running.vms[&A];
        let mut all = vgpu.chunks.all();
        let there = all.find(|&chunk| vgpu.chunks.place(chunk).is_in_vram());
        let there = there.expect("some are backed");
        assert_eq!(running.next_part(vgpu, Direction::Spill, &[there], false), parts);
    }
}

/// It would wait for parts that bring it nothing, with rests between them.
#[test]
fn demand_of_another_vm_goes_before_the_rest_of_a_chunk_that_comes() {
    let mut scene = Scene::with(config());
    scene.attach(A, 64);
    scene.bind(A, 54);
    scene.run_channel(A);
    set(
        &mut scene,
        Quota {
            max: 50 * MIB,
            ..Quota::default()
        },
    );
    scene.pass(500 * MS);
    assert_eq!(scene.resident(A), 50 * MIB);
    scene.copies_end = false;
    set(&mut scene, Quota::default());
    scene.pass(50 * MS);
    end_part(&mut scene);
    let begun = split(&mut scene).expect("a part is back");
    scene.attach(B, 32);
    // More than is free.
    let request = scene.bind(B, 8);
    scene.copies_end = true;
    scene.end_copy();
    scene.take();
    while scene.reply(request).is_none() {
        scene.pass(MS);
    }
    let all = moved(&scene);
    let back = all
        .iter()
        .filter(|(direction, ..)| *direction == Direction::Refill);
    assert!(back.count() <= 1, "the part that was under way: {all:?}");
    scene.pass(500 * MS);
    assert_ne!(split(&mut scene), Some(begun), "it goes on behind that");
    assert_eq!(split(&mut scene), None);
}
