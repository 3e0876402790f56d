//! The bound of host RAM, changed while VMs run.

use super::scene::{MIB, MS, Scene};
use super::{A, B};
use crate::config::GpuConfig;
use crate::event::{Action, Event};
use crate::reason::Denial;

fn with_host_ram(mebibytes: u64) -> Scene {
    Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        host_ram: mebibytes * MIB,
        ..GpuConfig::default()
    })
}

/// Why the change was refused, if it was.
fn change(scene: &mut Scene, bytes: u64) -> Option<Denial> {
    scene.take();
    scene.apply(Event::SetHostRam { bytes });
    scene.actions.iter().find_map(|action| match action {
        Action::HostRamRefused { reason } => Some(reason.clone()),
        _ => None,
    })
}

fn is_denied(scene: &Scene) -> bool {
    let denied = |action: &Action| matches!(action, Action::Denied { .. });
    scene.actions.iter().any(denied)
}

#[test]
fn more_host_ram_lets_in_a_vm_that_had_no_room() {
    let mut scene = with_host_ram(16);
    scene.attach(A, 48);
    scene.take();
    scene.attach(B, 48);
    assert!(is_denied(&scene));
    assert_eq!(change(&mut scene, 64 * MIB), None);
    scene.attach(B, 48);
    assert!(!is_denied(&scene));
    let standing = scene.manager.standing().expect("the card is up");
    assert_eq!((standing.host_ram, standing.vms.len()), (64 * MIB, 2));
}

#[test]
fn host_ram_is_not_lowered_below_what_vms_are_promised() {
    let mut scene = with_host_ram(64);
    scene.attach(A, 48);
    scene.attach(B, 48);
    let usable = scene.manager.standing().expect("the card is up").usable;
    let least = 96 * MIB - usable;
    let refused = change(&mut scene, least - 1).expect("a byte too little");
    assert!(matches!(refused, Denial::GuestVram { wanted, host_ram, .. }
        if wanted == 96 * MIB && host_ram == least - 1));
    assert_eq!(
        scene.manager.standing().expect("the card is up").host_ram,
        64 * MIB
    );
    assert_eq!(change(&mut scene, least), None);
    assert_eq!(scene.manager.standing().expect("the card is up").host_ram, least);
}

#[test]
fn lowered_host_ram_leaves_what_is_there_reachable_and_moves_no_more() {
    let mut scene = with_host_ram(64);
    scene.attach(A, 32);
    scene.bind(A, 20);
    let hold = crate::config::Hold {
        vram: Some(8 * MIB),
        is_suspended: false,
    };
    scene.apply(Event::SetHold { vm: A, hold });
    scene.pass(500 * MS);
    let spilled = |scene: &Scene| scene.manager.standing().expect("the card is up").vms[0].spilled;
    assert_eq!(spilled(&scene), 12 * MIB);
    assert_eq!(change(&mut scene, 0), None);
    scene.pass(500 * MS);
    // The hold keeps it there; nothing is dropped.
    assert_eq!(spilled(&scene), 12 * MIB);
    assert_eq!(scene.resident(A), 8 * MIB);
}
