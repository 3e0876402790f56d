//! Entries that are pointed to where memory is now, step by step, and what comes between two steps.

use fermi_spec::addr::{Aperture, Gpa};
use fermi_spec::pte::{Pde, PdeAperture, Pte, SMALL_PER_LARGE, SMALL_PT_BYTES};
use fermi_spec::regs::{Bar0Reg, PffbReg, PmcReg};

use super::scene::{DIRECTORY, MIB, MS, Scene, TABLE};
use super::turns::{EXCESS, greedy, turns_until_answered, work};
use super::{A, B};
use crate::config::{GpuConfig, Quota};
use crate::event::{Action, Event, Reply, Request};
use crate::manager::Manager;
use crate::manager::mover::Stage;
use crate::share::SLICE;

/// Whether entries of a move's chunks are still to be pointed to the new place.
fn points(scene: &mut Scene) -> bool {
    let moving = scene.running().mover.current.as_ref();
    moving.is_some_and(|moving| moving.stage.points())
}

/// Whether tables are being made ready for a move.
fn reserves(scene: &mut Scene) -> bool {
    let moving = scene.running().mover.current.as_ref();
    moving.is_some_and(|moving| matches!(moving.stage, Stage::Reserving { .. }))
}

fn copies(scene: &mut Scene) -> bool {
    let moving = scene.running().mover.current.as_ref();
    moving.is_some_and(|moving| matches!(moving.stage, Stage::Copying { .. }))
}

/// Bytes that are stored to the card's memory by these actions.
fn stored(actions: &[Action]) -> usize {
    let bytes = |action: &Action| match action {
        Action::HostWrite { data, .. } => data.len(),
        _ => 0,
    };
    actions.iter().map(bytes).sum()
}

#[test]
fn chunk_that_many_entries_name_moves_in_steps_and_others_come_between_them() {
    let mut scene = greedy(None);
    let flush = scene.flush(A);
    turns_until_answered(&mut scene, flush);
    let max = scene.resident(A) - 12 * MIB;
    let quota = Quota {
        max,
        ..Quota::default()
    };
    scene.take();
    scene.apply(Event::SetQuota { vm: A, quota });
    let (mut steps, mut entries, mut cleared) = (0, 0, 0);
    for _ in 0..10_000 {
        let (before, points_before) = (work(&scene, A), points(&mut scene));
        let reserves_before = reserves(&mut scene);
        let actions = scene.actions.len();
        if copies(&mut scene) {
            scene.end_copy();
        }
        scene.wake();
        if points_before || reserves_before {
            steps += 1;
            let done = work(&scene, A) - before;
            assert!(done <= SLICE + EXCESS, "step {steps} took {done}");
            let bytes = stored(&scene.actions[actions..]);
            let most = if points_before { 1 << 18 } else { 3 << 18 };
            assert!(bytes <= most + 4096, "step {steps} stores {bytes} bytes");
            match points_before {
                true => entries += bytes / 8,
                false => cleared += bytes >> 18,
            }
            let asked = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), steps);
            assert_eq!(scene.reply(asked), Some(&Reply::Done), "step {steps}");
        } else if scene.resident(A) <= max && !scene.is_moving() {
            break;
        }
    }
    let out = scene.chunks_of(A).spilled();
    println!("{steps} steps, {entries} entries, {cleared} tables, {out} bytes out");
    // The first step of each move is not among them.
    assert!(steps > 20 && entries > 5_000, "{steps} steps, {entries} entries");
    assert!(cleared > 4, "{cleared} tables were made ready in steps");
    assert!(out > 0 && scene.resident(A) <= max);
}

#[test]
fn tables_that_a_guest_makes_while_a_move_prepares_are_made_ready_before_it_stops_anything() {
    let mut scene = greedy(None);
    scene.memory_for_moves = None;
    let quota = Quota {
        max: scene.resident(A) - 2 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    let asked = scene.actions.iter().find_map(|action| match action {
        Action::Populate { id, .. } => Some(*id),
        _ => None,
    });
    let id = asked.expect("the move has its pages made ready");
    let flush = scene.flush(A);
    turns_until_answered(&mut scene, flush);
    let stops = |scene: &Scene| scene.actions.iter().any(super::preparing::stops);
    assert!(!stops(&scene) && !reserves(&mut scene));
    // Those that it asks for once more are there by then.
    scene.memory_for_moves = Some(true);
    scene.apply(Event::Populated { id, done: true });
    let mut steps = 0;
    while reserves(&mut scene) {
        assert!(!stops(&scene), "after {steps} steps");
        let saved = scene.manager.save();
        let old = std::mem::replace(&mut scene.manager, Manager::new(GpuConfig::default()));
        scene.manager =
            Manager::load(GpuConfig::default(), &saved, old.into_volatile()).expect("its own text");
        assert_eq!(scene.manager.save(), saved);
        let asked = scene.register(B, Bar0Reg::from(PmcReg::PmcEnable), steps);
        assert_eq!(scene.reply(asked), Some(&Reply::Done), "after {steps} steps");
        scene.wake();
        steps += 1;
    }
    assert!(steps > 0, "all were made ready at once");
    scene.first("stop", super::preparing::stops);
}

/// A space whose first directory entry has a page of VRAM beside one of RAM, in one slot.
fn mixed() -> Scene {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    });
    scene.attach(A, 16);
    let table = TABLE + 0x10_0000;
    let pte = Pte::new().with_valid(true);
    let vram = pte.with_frame(((4 * MIB) >> 12) as u32);
    let ram = pte
        .with_aperture(Aperture::SysCoherent)
        .with_volatile(true)
        .with_frame(1);
    let words: Vec<u8> = [vram, ram]
        .iter()
        .flat_map(|pte| pte.into_bits().to_le_bytes())
        .collect();
    scene.put(A, table, &words);
    let pde = Pde::new()
        .with_small_aperture(PdeAperture::Vram)
        .with_small_frame((table >> 12) as u32);
    assert!(table + SMALL_PT_BYTES <= 4 * MIB, "it lies where chunk 2 begins");
    scene.put(A, DIRECTORY, &pde.into_bits().to_le_bytes());
    scene.bind(A, 2);
    scene.run_channel(A);
    scene
}

/// The two entries of that slot as they were stored last.
fn last_pair(scene: &Scene) -> Option<[Pte; 2]> {
    let mut pairs = scene.actions.iter().filter_map(|action| match action {
        Action::HostWrite { data, .. } if data.len() == 8 * SMALL_PER_LARGE => {
            let words = data
                .as_chunks()
                .0
                .iter()
                .map(|word| Pte::from_bits(u64::from_le_bytes(*word)));
            let words: Vec<Pte> = words.collect();
            let is_it = words[0].valid() && words[2..].iter().all(|pte| !pte.valid());
            is_it.then_some([words[0], words[1]])
        }
        _ => None,
    });
    pairs.next_back()
}

#[test]
fn entry_of_ram_that_is_being_unmapped_does_not_come_back_with_a_move() {
    let mut scene = mixed();
    let [vram, ram] = last_pair(&scene).expect("a slot of small entries");
    assert!(
        vram.valid() && ram.valid() && ram.aperture().is_sysram(),
        "{vram:?} {ram:?}"
    );
    // The chunk beside it is being copied.
    let quota = Quota {
        max: MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    for _ in 0..100 {
        if copies(&mut scene) {
            break;
        }
        scene.pass(MS);
    }
    assert!(copies(&mut scene), "it does not move");
    // The flush behind the unmap does not end.
    scene.held.insert(Bar0Reg::from(PffbReg::MmuConfig));
    let (gpa, bytes) = (Gpa(0), 16 * MIB);
    let unmap = scene.ask(A, Request::UnmapRam { gpa, bytes });
    assert_eq!(scene.reply(unmap), None);
    // The copy has ended behind it: what was stored last is the move's.
    let [vram, ram] = last_pair(&scene).expect("a slot of small entries");
    assert!(vram.aperture().is_sysram() && !ram.valid(), "{vram:?} {ram:?}");
    scene.end_polls(Bar0Reg::from(PffbReg::MmuConfig), true);
    scene.pass(MS);
    assert_eq!(scene.reply(unmap), Some(&Reply::Done));
}

#[test]
fn unmap_under_way_is_read_back_and_refused_without_its_range() {
    let mut scene = mixed();
    scene.held.insert(Bar0Reg::from(PffbReg::MmuConfig));
    let (gpa, bytes) = (Gpa(0), 16 * MIB);
    let unmap = scene.ask(A, Request::UnmapRam { gpa, bytes });
    assert_eq!(scene.reply(unmap), None);
    let whole = scene.manager.save();
    let range = format!(r#""hidden":[0,{bytes}]"#);
    assert!(whole.contains(&range), "no range is hidden");
    let config = GpuConfig {
        frames_arrive_zeroed: true,
        ..GpuConfig::default()
    };
    let torn = whole.replacen(&range, r#""hidden":null"#, 1);
    let volatile = scene.manager.into_volatile();
    let read = Manager::load(config.clone(), &whole, volatile).expect("its own text");
    assert_eq!(read.save(), whole);
    let error = Manager::load(config, &torn, read.into_volatile()).map(drop);
    let error = error
        .expect_err("nothing leaves that is to be unmapped")
        .to_string();
    assert!(
        error.contains("RAM comes or goes that nobody asked for"),
        "{error}"
    );
}
