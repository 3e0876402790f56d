//! One VM's accounts are spoiled, in each way that the core can notice: that VM goes, with its reason; its neighbour's
//! memory, channel and answers stay, and nothing is free before the card has forgotten the VM.

use fermi_spec::addr::{Gpa, Iova};
use fermi_spec::regs::{Bar0Reg, PffbReg, PfifoReg};

use super::scene::{MIB, MS, Scene, frees, rings};
use super::{A, B, detached};
use crate::config::{GpuConfig, Quota};
use crate::event::{Action, Event, Reply, Request, VmId};
use crate::memory::{ChunkNo, ChunkPlace};
use crate::notice::{Direction, Notice};
use crate::reason::Inconsistency;

/// Spoils the accounts of the first VM, whose chunks from 4 MiB on are in VRAM. The second VM is like it.
type Spoil = fn(&mut Scene);

fn first_resident(scene: &mut Scene, vm: VmId) -> ChunkNo {
    let chunks = &scene.running().vms[&vm].chunks;
    let is_resident = |chunk: &ChunkNo| matches!(chunks.place(*chunk), ChunkPlace::Resident(_));
    chunks.all().find(is_resident).expect("a chunk in VRAM")
}

/// A frame that the VM counts as its own is nobody's.
fn frame_is_nobodys(scene: &mut Scene) {
    let chunk = first_resident(scene, A);
    let running = scene.running();
    let ChunkPlace::Resident(frames) = running.vms[&A].chunks.place(chunk).clone() else {
        return;
    };
    assert_eq!(running.frames.release(frames[0], A), Ok(()));
}

/// A chunk of the VM lies in its neighbour's frames.
fn frames_are_the_neighbours(scene: &mut Scene) {
    let (own, other) = (first_resident(scene, A), first_resident(scene, B));
    let running = scene.running();
    let place = running.vms[&B].chunks.place(other).clone();
    let vgpu = running.vms.get_mut(&A).expect("attached");
    vgpu.chunks.set_place(own, place);
}

fn shadow_memory_is_not_counted(scene: &mut Scene) {
    scene.running().vms.get_mut(&A).expect("attached").shadow.held = 0;
}

fn tables_are_nobodys(scene: &mut Scene) {
    let running = scene.running();
    for (at, bytes) in running.card.arena.held_by(A).collect::<Vec<_>>() {
        assert_eq!(running.card.arena.release(at, bytes, Some(A)), Ok(()));
    }
}

/// The VM's memory is in host RAM, and its accounts say that no entry can name a place there.
fn image_lies_beyond_all_addresses(scene: &mut Scene) {
    lower_max(scene);
    scene.chunks_of(A).set_image(Iova(1 << 40));
}

fn image_is_the_neighbours(scene: &mut Scene) {
    lower_max(scene);
    let image = scene.chunks_of(B).image();
    scene.chunks_of(A).set_image(image);
}

fn channel_is_the_neighbours(scene: &mut Scene) {
    let vms = &mut scene.running().vms;
    let physical = vms[&B].channels[&0].physical;
    let channel = vms.get_mut(&A).and_then(|vgpu| vgpu.channels.get_mut(&0));
    channel.expect("bound").physical = physical;
}

fn ram_is_the_neighbours(scene: &mut Scene) {
    let vms = &mut scene.running().vms;
    let (gpa, of_other) = vms[&B].ram.all().next().expect("mapped");
    vms.get_mut(&A).expect("attached").ram.insert(gpa, of_other);
}

fn lower_max(scene: &mut Scene) {
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.pass(300 * MS);
}

fn other_tables(scene: &mut Scene) {
    scene.prepare(A, 6);
    scene.flush(A);
}

fn unbind(scene: &mut Scene) {
    scene.register(A, Bar0Reg::from(PfifoReg::ChannelInstance(0)), 0);
    scene.pass(10 * MS);
}

fn reset(scene: &mut Scene) {
    scene.ask(A, Request::Reset);
}

fn detach(scene: &mut Scene) {
    scene.apply(Event::Detach { vm: A });
}

fn unmap(scene: &mut Scene) {
    let (gpa, bytes) = (Gpa(0), 16 * MIB);
    scene.ask(A, Request::UnmapRam { gpa, bytes });
}

/// Two VMs with 4 MiB of VRAM each and a running channel. The figures of the card before the first came.
fn pair() -> (Scene, (u32, u64)) {
    let mut scene = Scene::up();
    scene.attach(B, 16);
    scene.bind(B, 4);
    scene.run_channel(B);
    let running = scene.running();
    let free = (running.frames.free_count(), running.card.arena.free_bytes());
    scene.attach(A, 16);
    scene.bind(A, 4);
    scene.run_channel(A);
    scene.take();
    (scene, free)
}

fn given_up(scene: &Scene) -> Vec<&Inconsistency> {
    let reasons = scene.actions.iter().filter_map(|action| match action {
        Action::GiveUp { vm, reason } => {
            assert_eq!(*vm, A);
            Some(reason)
        }
        _ => None,
    });
    reasons.collect()
}

fn check(case: &str, spoil: Spoil, notice: fn(&mut Scene)) -> Inconsistency {
    let (mut scene, free) = pair();
    let of_b = scene.running().vms[&B].chunks.frames().collect::<Vec<_>>();
    spoil(&mut scene);
    notice(&mut scene);
    let reasons = given_up(&scene);
    let told: Vec<_> = scene.notices().collect();
    assert_eq!(reasons.len(), 1, "{reasons:?} of case {case}: {told:?}");
    let reason = reasons[0].clone();
    scene.pass(50 * MS);
    scene.first("detached", detached);
    assert!(
        scene.manager.under_way().is_empty(),
        "{:?}",
        scene.manager.under_way()
    );

    // The neighbour: its frames are its own alone, its channel is on the card, its requests are answered.
    scene.take();
    assert_eq!(scene.running().vms[&B].chunks.frames().collect::<Vec<_>>(), of_b);
    scene.doorbell(B, 7);
    scene.first("doorbell", |action| rings(action, 1));
    let flushed = scene.flush(B);
    assert_eq!(scene.reply(flushed), Some(&Reply::Done));
    let config = GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    };
    let running = scene.running();
    assert_eq!(running.check(&config), Ok(()));
    assert_eq!(
        (running.frames.free_count(), running.card.arena.free_bytes()),
        free,
        "{case}"
    );

    // The number is free for another VM, which gets what it needs.
    scene.attach(A, 16);
    let bound = scene.bind(A, 4);
    assert_eq!(scene.reply(bound), Some(&Reply::Done));
    // The scripted memory keeps what the first VM wrote, tables that show more among it.
    assert!(scene.resident(A) >= 4 * MIB && scene.resident(B) == 4 * MIB);
    assert!(given_up(&scene).is_empty());
    assert_eq!(scene.running().check(&config), Ok(()));
    reason
}

type Noticed = (&'static str, fn(&mut Scene));

const LOWER_MAX: Noticed = ("max", lower_max);
const OTHER_TABLES: Noticed = ("tables", other_tables);
const UNBIND: Noticed = ("unbind", unbind);
const RESET: Noticed = ("reset", reset);
const DETACH: Noticed = ("detach", detach);
const UNMAP: Noticed = ("unmap", unmap);

#[test]
fn frame_that_is_not_held_costs_its_vm_alone() {
    for (name, notice) in [LOWER_MAX, RESET, DETACH] {
        for spoil in [frame_is_nobodys as Spoil, frames_are_the_neighbours] {
            let reason = check(name, spoil, notice);
            assert!(matches!(reason, Inconsistency::NotHeld { .. }), "{reason:?}");
        }
    }
}

#[test]
fn shadow_memory_that_is_counted_wrong_costs_its_vm_alone() {
    for (name, notice) in [UNBIND, RESET, DETACH] {
        let reason = check(name, shadow_memory_is_not_counted, notice);
        assert!(matches!(reason, Inconsistency::ShadowMemory { .. }), "{reason:?}");
    }
    for (name, notice) in [OTHER_TABLES, UNBIND, RESET, DETACH] {
        let reason = check(name, tables_are_nobodys, notice);
        assert!(matches!(reason, Inconsistency::NotHeld { .. }), "{reason:?}");
    }
}

#[test]
fn channel_that_is_not_held_costs_its_vm_alone() {
    for (name, notice) in [UNBIND, RESET, DETACH] {
        let reason = check(name, channel_is_the_neighbours, notice);
        assert!(matches!(reason, Inconsistency::NotHeld { .. }), "{reason:?}");
    }
}

#[test]
fn bus_addresses_that_are_not_held_cost_their_vm_alone() {
    for (name, notice) in [UNMAP, DETACH] {
        let reason = check(name, ram_is_the_neighbours, notice);
        assert!(matches!(reason, Inconsistency::NotHeld { .. }), "{reason:?}");
    }
}

#[test]
fn panic_over_its_state_costs_its_vm_alone() {
    fn panics(scene: &mut Scene) {
        let nothing: Option<()> = scene
            .running()
            .with_budget(A, "being tested", |_| panic!("on purpose"));
        assert_eq!(nothing, None);
        scene.flush(B);
    }
    let expected = Inconsistency::Panicked {
        doing: "being tested".to_owned(),
        message: "on purpose".to_owned(),
    };
    assert_eq!(check("panic", |_| (), panics), expected);
}

#[test]
fn image_that_is_not_held_costs_its_vm_alone() {
    for spoil in [image_lies_beyond_all_addresses as Spoil, image_is_the_neighbours] {
        for (name, notice) in [OTHER_TABLES, DETACH] {
            let reason = check(name, spoil, notice);
            assert!(matches!(reason, Inconsistency::NotHeld { .. }), "{reason:?}");
        }
    }
}

/// Nothing is copied from there.
#[test]
fn refill_from_an_image_that_is_not_held_costs_its_vm_alone() {
    let raise_max = |scene: &mut Scene| {
        let (vm, quota) = (A, Quota::default());
        let image = scene.chunks_of(A).image();
        scene.apply(Event::SetQuota { vm, quota });
        scene.doorbell(A, 8);
        scene.pass(2000 * MS);
        assert_eq!(given_up(scene), [&Inconsistency::on_bus(image)]);
        let is_begun = |notice: &Notice| {
            matches!(
                notice,
                Notice::MoveStarted {
                    vm: A,
                    direction: Direction::Refill,
                    ..
                }
            )
        };
        assert!(scene.notices().any(is_begun), "no refill was begun");
        let is_done = |notice: &Notice| {
            matches!(
                notice,
                Notice::Moved {
                    vm: A,
                    direction: Direction::Refill,
                    ..
                }
            )
        };
        assert!(!scene.notices().any(is_done), "another's memory was copied");
    };
    for spoil in [image_lies_beyond_all_addresses as Spoil, image_is_the_neighbours] {
        check("refill", spoil, raise_max);
    }
}

/// From the moment that a VM is given up nothing of it is free until the card has forgotten it.
#[test]
fn nothing_of_a_vm_that_is_given_up_is_free_before_its_last_flush() {
    let (mut scene, _) = pair();
    let held = scene.running().vms[&A].chunks.frames().count();
    scene.held.insert(Bar0Reg::from(PfifoReg::Preempt));
    let what = "a test says so".to_owned();
    scene.running().inconsistent(A, Inconsistency::Stage { what });
    scene.flush(B);
    assert_eq!(given_up(&scene).len(), 1);
    lower_max(&mut scene);
    reset(&mut scene);
    detach(&mut scene);
    assert!(
        !scene.actions.iter().any(frees),
        "free while its channel is on the card"
    );
    scene.held = [Bar0Reg::from(PffbReg::MmuConfig)].into();
    scene.end_polls(Bar0Reg::from(PfifoReg::Preempt), true);
    scene.pass(10 * MS);
    assert!(!scene.actions.iter().any(frees), "free before the flush");
    scene.held.clear();
    for _ in 0..4 {
        scene.end_polls(Bar0Reg::from(PffbReg::MmuConfig), true);
    }
    scene.pass(50 * MS);
    scene.first("detached", detached);
    let freed = scene.actions.iter().map(|action| match action {
        Action::PlaceFrames { frames, .. } if frees(action) => frames.len(),
        _ => 0,
    });
    assert_eq!(freed.sum::<usize>(), held);
}
