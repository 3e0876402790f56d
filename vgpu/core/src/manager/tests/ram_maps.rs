//! Maps of guest RAM and images that come and go in steps, and what comes between two steps.

use fermi_spec::addr::{Gpa, Iova, SMALL_PAGE};
use fermi_spec::regs::{Bar0Reg, PmcReg};

use super::scene::{MIB, Scene};
use super::{A, B, detached};
use crate::config::{Bus, GpuConfig};
use crate::event::{Action, Event, Refusal, Reply, Request, RequestId};
use crate::manager::Manager;
use crate::share::SLICE;

/// Pages that A has mapped, no two of them neighbours.
const PAGES: u64 = 400;
const FIRST: u64 = 1 << 30;

fn mapped(pins: bool) -> Scene {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        bus: Bus {
            pins,
            ..Bus::default()
        },
        ..GpuConfig::default()
    });
    for vm in [A, B] {
        scene.attach(vm, 24);
    }
    for page in 0..PAGES {
        let map = Request::MapRam {
            gpa: Gpa(FIRST + 2 * page * SMALL_PAGE),
            bytes: SMALL_PAGE,
            writable: true,
        };
        let asked = scene.ask(A, map);
        assert_eq!(scene.reply(asked), Some(&Reply::Done), "page {page}");
    }
    scene.gives_turns = false;
    scene.take();
    scene
}

/// Asks for all of A's pages to go.
fn unmap_pages(scene: &mut Scene) -> RequestId {
    let unmap = Request::UnmapRam {
        gpa: Gpa(FIRST),
        bytes: (2 * PAGES - 1) * SMALL_PAGE,
    };
    scene.ask(A, unmap)
}

fn unmaps(actions: &[Action]) -> usize {
    let unmaps = |action: &&Action| matches!(action, Action::UnmapDma { .. });
    actions.iter().filter(unmaps).count()
}

fn save_and_read(scene: &mut Scene) {
    let saved = scene.manager.save();
    let old = std::mem::replace(&mut scene.manager, Manager::new(GpuConfig::default()));
    let config = old.config.clone();
    scene.manager = Manager::load(config, &saved, old.into_volatile()).expect("its own text");
    assert_eq!(scene.manager.save(), saved);
}

/// Wakes the core until `is_over`; between any two steps B is answered and the state is saved and read. Returns how many maps went, and in how many
/// steps.
fn steps(scene: &mut Scene, is_over: impl Fn(&Scene) -> bool) -> (usize, u32) {
    let (mut gone, mut steps) = (0, 0);
    loop {
        let step = unmaps(&scene.take());
        assert!(step as u64 <= SLICE / 2_000, "step {steps} took {step} maps");
        (gone, steps) = (gone + step, steps + u32::from(step > 0));
        assert!(steps < 10_000);
        save_and_read(scene);
        let asked = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), steps);
        assert_eq!(scene.reply(asked), Some(&Reply::Done), "step {steps}");
        scene.take();
        scene.wake();
        if is_over(scene) {
            return (gone + unmaps(&scene.actions), steps);
        }
    }
}

#[test]
fn maps_of_a_vm_that_ends_go_in_steps_and_others_come_between_them() {
    for pins in [false, true] {
        let mut scene = mapped(pins);
        scene.apply(Event::Detach { vm: A });
        assert!(!scene.actions.iter().any(detached));
        let (gone, steps) = steps(&mut scene, |scene| scene.actions.iter().any(detached));
        // Its 16 MiB of RAM are among them, and its image where maps do not pin.
        let all = PAGES as usize + if pins { 4 } else { 2 };
        assert_eq!(gone, all, "pins: {pins}");
        assert!(u64::from(steps) >= PAGES * 2_000 / SLICE, "{steps} steps");
        // Bus addresses and maps are free for the next one.
        scene.gives_turns = true;
        scene.attach(A, 16);
        let asked = scene.register(A, Bar0Reg::from(PmcReg::PmcEnable), 1);
        assert_eq!(scene.reply(asked), Some(&Reply::Done));
    }
}

#[test]
fn maps_that_go_with_one_request_go_in_steps_and_it_is_answered_behind_the_last() {
    let mut scene = mapped(false);
    let asked = unmap_pages(&mut scene);
    assert_eq!(scene.reply(asked), None);
    // What the VM asks for meanwhile comes behind it.
    let behind = scene.register(A, Bar0Reg::from(PmcReg::PmcEnable), 1);
    let (gone, steps) = steps(&mut scene, |scene| scene.reply(asked).is_some());
    assert_eq!(gone, PAGES as usize);
    assert!(u64::from(steps) >= PAGES * 2_000 / SLICE, "{steps} steps");
    scene.gives_turns = true;
    scene.wake();
    assert_eq!(scene.reply(behind), Some(&Reply::Done));
    let again = Request::MapRam {
        gpa: Gpa(FIRST),
        bytes: 2 * MIB,
        writable: true,
    };
    let asked = scene.ask(A, again);
    assert_eq!(scene.reply(asked), Some(&Reply::Done), "the range is free");
}

#[test]
fn vm_that_ends_while_its_maps_go_is_rid_of_the_rest() {
    let mut scene = mapped(false);
    unmap_pages(&mut scene);
    scene.wake();
    let before = unmaps(&scene.take());
    assert!(before < PAGES as usize);
    scene.apply(Event::Detach { vm: A });
    let (gone, _) = steps(&mut scene, |scene| scene.actions.iter().any(detached));
    assert_eq!(before + gone, PAGES as usize + 2);
}

#[test]
fn maps_of_an_image_go_in_steps_before_a_reset_is_answered() {
    let mut scene = mapped(true);
    let chunks = &mut scene.running().vms.get_mut(&A).expect("it is attached").chunks;
    let all: Vec<_> = chunks.all().map(|chunk| chunks.whole(chunk)).collect();
    all.iter().for_each(|&piece| chunks.maps_mut().insert(piece));
    let reset = scene.ask(A, Request::Reset);
    let (gone, steps) = steps(&mut scene, |scene| scene.reply(reset).is_some());
    assert_eq!(gone, all.len());
    assert!(steps > 1, "{} pages go at once", all.len() * 512);
}

/// A's map of so much RAM, asked for where maps pin memory.
fn large(bytes: u64) -> (Scene, RequestId) {
    let mut scene = mapped(true);
    scene.take();
    let map = Request::MapRam {
        gpa: Gpa(2 * FIRST),
        bytes,
        writable: true,
    };
    let asked = scene.ask(A, map);
    (scene, asked)
}

fn maps(actions: &[Action]) -> Vec<(Iova, u64)> {
    let maps = |action: &Action| match action {
        Action::MapDma { iova, bytes, .. } => Some((*iova, *bytes)),
        _ => None,
    };
    actions.iter().filter_map(maps).collect()
}

#[test]
fn ram_that_is_pinned_comes_in_pieces_and_others_come_between_them() {
    let (mut scene, asked) = large(1 << 30);
    let mut pieces = Vec::new();
    while scene.reply(asked).is_none() {
        let some = maps(&scene.take());
        assert!(some.len() <= 1, "{some:?} at once");
        save_and_read(&mut scene);
        pieces.extend(some);
        let entry = Gpa(2 * FIRST);
        assert!(
            scene.running().vms[&A].ram.is_hidden(entry),
            "no entry leads there before"
        );
        let asked = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), 1);
        assert_eq!(scene.reply(asked), Some(&Reply::Done), "piece {}", pieces.len());
        scene.take();
        scene.wake();
    }
    pieces.extend(maps(&scene.take()));
    assert_eq!(pieces.len(), 128);
    assert!(pieces.iter().all(|(_, bytes)| *bytes == 8 * MIB));
    assert!(!scene.running().vms[&A].ram.is_hidden(Gpa(2 * FIRST)));
}

#[test]
fn vm_that_ends_while_its_ram_comes_unmaps_what_has_come() {
    let (mut scene, _) = large(1 << 30);
    scene.wake();
    scene.wake();
    let mut came = maps(&scene.take());
    assert!(!came.is_empty() && came.len() < 16, "{came:?}");
    scene.apply(Event::Detach { vm: A });
    let mut went = Vec::new();
    while !scene.actions.iter().any(detached) {
        scene.wake();
    }
    for action in scene.take() {
        match action {
            Action::UnmapDma { iova, bytes } if bytes == 8 * MIB => went.push((iova, bytes)),
            Action::MapDma { .. } => panic!("it goes: {action:?}"),
            _ => {}
        }
    }
    came.sort_unstable();
    went.sort_unstable();
    assert_eq!(came, went);
}

#[test]
fn ram_for_which_there_are_too_few_maps_leaves_nothing_behind() {
    let mut scene = Scene::with(GpuConfig {
        bus: Bus {
            pins: true,
            maps_max: 1100,
            ..Bus::default()
        },
        ..GpuConfig::default()
    });
    scene.attach(A, 16);
    let left = |scene: &mut Scene| {
        let vgpu = &scene.running().vms[&A];
        let ram = (vgpu.ram.count(), vgpu.ram.bytes(), vgpu.ram.hidden());
        (ram, scene.running().iova.maps_left())
    };
    let mut mapped = 0;
    loop {
        let before = left(&mut scene);
        let map = Request::MapRam {
            gpa: Gpa((mapped + 1) << 30),
            bytes: 1 << 30,
            writable: true,
        };
        let asked = scene.ask(A, map);
        match scene.reply(asked) {
            Some(Reply::Done) => mapped += 1,
            Some(Reply::Refused(Refusal::TooManyMaps)) => {
                assert_eq!(left(&mut scene), before);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(mapped > 0);
}

#[test]
fn part_of_a_range_cannot_be_unmapped_however_many_maps_it_has() {
    let (mut scene, asked) = large(64 * MIB);
    scene.gives_turns = true;
    scene.wake();
    while scene.reply(asked).is_none() {
        scene.wake();
    }
    let unmap = |at: u64, bytes| Request::UnmapRam {
        gpa: Gpa(2 * FIRST + at),
        bytes,
    };
    for part in [
        unmap(0, 4 * MIB),
        unmap(4 * MIB, 60 * MIB),
        unmap(4 * MIB, 4 * MIB),
    ] {
        let asked = scene.ask(A, part);
        assert_eq!(scene.reply(asked), Some(&Reply::Refused(Refusal::NoSuchMap)));
    }
    scene.gives_turns = false;
    scene.take();
    let asked = scene.ask(A, unmap(0, 64 * MIB));
    let (gone, steps) = steps(&mut scene, |scene| scene.reply(asked).is_some());
    assert_eq!((gone, steps), (16, 8));
}
