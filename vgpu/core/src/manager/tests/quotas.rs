//! What an operator may set, and what becomes of memory that is held.

use fermi_spec::pte::Pte;

use super::scene::{DATA, MIB, MS, Scene, TABLE, vm_config};
use super::{A, B};
use crate::config::{Bus, GpuConfig, Quota};
use crate::event::{Action, Event, VmId};
use crate::memory::{ChunkNo, ChunkPlace};
use crate::notice::{Direction, Notice};
use crate::reason::{Denial, SettingError};

const NONE: VmId = VmId(7);

fn promise(min: u64) -> Quota {
    Quota {
        min,
        ..Quota::default()
    }
}

/// Sets a quota. Why it is refused, if it is.
fn set(scene: &mut Scene, vm: VmId, quota: Quota) -> Option<Denial> {
    scene.take();
    scene.apply(Event::SetQuota { vm, quota });
    scene.actions.iter().find_map(|action| match action {
        Action::QuotaRefused { vm: of, reason } if *of == vm => Some(reason.clone()),
        _ => None,
    })
}

fn quota_of(scene: &Scene, vm: VmId) -> Option<Quota> {
    let audit = scene.manager.audit()?;
    audit.vms.iter().find(|of| of.vm == vm).map(|of| of.quota)
}

/// Sets a quota that is refused, and changes nothing. Why?
fn refused(scene: &mut Scene, vm: VmId, quota: Quota) -> Denial {
    let before = quota_of(scene, vm);
    let reason = set(scene, vm, quota).unwrap_or_else(|| panic!("{quota:?} is not refused"));
    assert_eq!(quota_of(scene, vm), before);
    reason
}

#[test]
fn quota_that_contradicts_itself_is_refused_with_both_figures() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    let (min, below) = (8 * MIB, 4 * MIB);
    let max = Quota {
        max: below,
        ..promise(min)
    };
    let above_max = SettingError::MinAboveMax { min, max: below };
    assert_eq!(refused(&mut scene, A, max), Denial::Settings(above_max));
    let high = Quota {
        high: below,
        ..promise(min)
    };
    let above_high = SettingError::MinAboveHigh { min, high: below };
    assert_eq!(refused(&mut scene, A, high), Denial::Settings(above_high));
    for weight in [0, 10_001] {
        let quota = Quota {
            weight,
            ..Quota::default()
        };
        let reason = Denial::Settings(SettingError::Weight { weight });
        assert_eq!(refused(&mut scene, A, quota), reason);
    }
}

#[test]
fn promises_of_all_vms_fit_the_card_whatever_is_set() {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    scene.attach(B, 64);
    assert_eq!(set(&mut scene, A, promise(40 * MIB)), None);
    let reason = refused(&mut scene, B, promise(20 * MIB));
    assert!(
        matches!(reason, Denial::Min { promised, usable } if promised == 60 * MIB && usable < promised),
        "{reason:?}"
    );
    // What A had no more is there for B.
    assert_eq!(set(&mut scene, A, promise(30 * MIB)), None);
    assert_eq!(set(&mut scene, B, promise(20 * MIB)), None);
    assert_eq!(quota_of(&scene, B), Some(promise(20 * MIB)));
    // It had these already.
    assert_eq!(set(&mut scene, B, promise(20 * MIB)), None);
}

#[test]
fn promise_takes_whole_chunks_and_no_more_than_guest_vram() {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    scene.attach(B, 8);
    // Of B's chunks of 2 MiB a byte takes one; more than its 8 MiB it cannot hold.
    assert_eq!(set(&mut scene, A, promise(46 * MIB)), None);
    assert_eq!(set(&mut scene, B, promise(u64::MAX)), None);
    let reason = refused(&mut scene, A, promise(64 * MIB));
    assert!(
        matches!(reason, Denial::Min { promised, .. } if promised == 72 * MIB),
        "{reason:?}"
    );
    assert_eq!(set(&mut scene, B, promise(1)), None);
    let reason = refused(&mut scene, A, promise(64 * MIB));
    assert!(
        matches!(reason, Denial::Min { promised, .. } if promised == 66 * MIB),
        "{reason:?}"
    );
}

#[test]
fn attach_that_promises_too_much_is_denied() {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    assert_eq!(set(&mut scene, A, promise(40 * MIB)), None);
    let mut config = vm_config(64);
    config.quota = promise(20 * MIB);
    scene.apply(Event::Attach { vm: B, config });
    let is_denied = |action: &Action| matches!(action, Action::Denied { vm: B, reason: Denial::Min { promised, .. } } if *promised == 60 * MIB);
    assert!(scene.actions.iter().any(is_denied));
}

#[test]
fn nobody_s_quota_is_not_set() {
    let none = Denial::NotAttached { vm: NONE };
    assert_eq!(refused(&mut Scene::up(), NONE, promise(0)), none);
    let mut off = Scene::off(GpuConfig::default());
    assert_eq!(refused(&mut off, NONE, promise(0)), none);
}

#[test]
fn max_below_what_a_vm_holds_spills_down_to_it() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    assert_eq!(scene.resident(A), 20 * MIB);
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    scene.apply(Event::SetQuota { vm: A, quota });
    scene.pass(200 * MS);
    assert_eq!(scene.resident(A), 8 * MIB);
    assert!(scene.notices().any(|notice| {
        matches!(
            notice,
            Notice::Moved {
                direction: Direction::Spill,
                ..
            }
        )
    }));
}

/// The guest's tables show these MiB of its data from now on, and it flushes.
pub(super) fn show(scene: &mut Scene, vm: VmId, data: std::ops::Range<u64>, mebibytes: u64) {
    let page = |page: u64| match data.contains(&(page / 8)) {
        true => Pte::new()
            .with_valid(true)
            .with_frame(((DATA + (page << 17)) >> 12) as u32),
        false => Pte::new(),
    };
    let pages = (0..mebibytes * 8).map(page);
    let table: Vec<u8> = pages.flat_map(|pte| pte.into_bits().to_le_bytes()).collect();
    scene.put(vm, TABLE, &table);
    scene.flush(vm);
}

/// MiB of its data in VRAM.
fn data_in_vram(scene: &mut Scene, vm: VmId, data: std::ops::Range<u64>) -> u64 {
    let chunks = scene.chunks_of(vm);
    let is_there = |mebibyte: &u64| {
        let chunk = ChunkNo(((DATA / MIB + mebibyte) / 2) as u32);
        matches!(chunks.place(chunk), ChunkPlace::Resident(_) | ChunkPlace::Both(_))
    };
    data.filter(is_there).count() as u64
}

/// Two VMs want more than there is: 54 MiB of the card's 54, and 30.
fn two_that_want_more(quota: Quota) -> Scene {
    let mut scene = Scene::up();
    scene.attach(A, 64);
    scene.bind(A, 54);
    scene.attach(B, 64);
    assert_eq!(set(&mut scene, B, quota), None);
    scene.bind(B, 30);
    scene.pass(1000 * MS);
    scene
}

#[test]
fn weights_divide_what_two_vms_want() {
    let scene = two_that_want_more(Quota::default());
    assert!(
        (26..=28).contains(&(scene.resident(B) / MIB)),
        "{}",
        scene.resident(B)
    );
    let half = Quota {
        weight: 50,
        ..Quota::default()
    };
    let scene = two_that_want_more(half);
    assert!(
        (16..=20).contains(&(scene.resident(B) / MIB)),
        "{}",
        scene.resident(B)
    );
    assert_eq!(scene.resident(A) + scene.resident(B), 54 * MIB);
}

#[test]
fn raised_min_or_low_is_restored() {
    let low = Quota {
        low: 30 * MIB,
        ..Quota::default()
    };
    for quota in [promise(30 * MIB), low] {
        let mut scene = two_that_want_more(Quota::default());
        assert!(scene.resident(B) < 30 * MIB);
        assert_eq!(set(&mut scene, B, quota), None);
        scene.pass(1000 * MS);
        assert_eq!(scene.resident(B), 30 * MIB, "{quota:?}");
    }
}

#[test]
fn high_is_reached_in_the_background_and_not_refilled_above() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    let quota = Quota {
        high: 8 * MIB,
        ..Quota::default()
    };
    assert_eq!(set(&mut scene, A, quota), None);
    let request = scene.bind(A, 20);
    assert_eq!(scene.resident(A), 20 * MIB, "a demand is met above it");
    scene.pass(1000 * MS);
    assert!(scene.reply(request).is_some());
    assert_eq!(scene.resident(A), 8 * MIB);
    scene.take();
    scene.pass(1000 * MS);
    assert_eq!(
        scene.notices().count(),
        0,
        "nothing comes back, and nothing else goes"
    );
    assert_eq!(set(&mut scene, A, Quota::default()), None);
    scene.pass(1000 * MS);
    assert_eq!(scene.resident(A), 20 * MIB);
}

#[test]
fn spill_to_high_that_failed_is_tried_again_though_nothing_is_spilled() {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        bus: Bus {
            pins: true,
            ..Bus::default()
        },
        ..GpuConfig::default()
    });
    scene.attach(A, 32);
    let quota = Quota {
        high: 8 * MIB,
        ..Quota::default()
    };
    assert_eq!(set(&mut scene, A, quota), None);
    scene.refuses_maps = true;
    scene.bind(A, 20);
    scene.pass(50 * MS);
    assert_eq!(scene.resident(A), 20 * MIB);
    scene.refuses_maps = false;
    scene.pass(5000 * MS);
    assert_eq!(scene.resident(A), 8 * MIB);
}

#[test]
fn lowered_max_takes_idle_memory_first() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    scene.bind(A, 20);
    show(&mut scene, A, 0..8, 20);
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    assert_eq!(set(&mut scene, A, quota), None);
    scene.pass(200 * MS);
    assert_eq!(
        (data_in_vram(&mut scene, A, 0..8), scene.resident(A)),
        (8, 8 * MIB)
    );
}

#[test]
fn demand_at_max_takes_the_vms_idle_memory_first() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    assert_eq!(set(&mut scene, A, quota), None);
    scene.bind(A, 8);
    show(&mut scene, A, 0..0, 8);
    show(&mut scene, A, 8..16, 16);
    scene.pass(20 * MS);
    assert_eq!(
        (data_in_vram(&mut scene, A, 8..16), scene.resident(A)),
        (8, 8 * MIB)
    );
    let in_host_ram = |notice: &Notice| matches!(notice, Notice::Backed { resident: false, .. });
    assert!(!scene.notices().any(in_host_ram));
    // Nothing is idle any more: host RAM it is, at once.
    show(&mut scene, A, 8..20, 20);
    assert_eq!(scene.notices().filter(|notice| in_host_ram(notice)).count(), 2);
}

/// What has begun to go by one rule is not brought back by another one.
#[test]
fn idle_memory_goes_in_parts_for_what_its_own_vm_demands_at_its_min() {
    let mut scene = Scene::with(GpuConfig {
        frames_arrive_zeroed: true,
        batch_bytes: MIB / 2,
        part_bytes: MIB / 2,
        ..GpuConfig::default()
    });
    scene.attach(A, 32);
    let quota = Quota {
        max: 8 * MIB,
        ..promise(8 * MIB)
    };
    assert_eq!(set(&mut scene, A, quota), None);
    scene.bind(A, 8);
    show(&mut scene, A, 0..0, 8);
    scene.take();
    show(&mut scene, A, 8..16, 16);
    scene.pass(100 * MS);
    assert_eq!(
        (data_in_vram(&mut scene, A, 8..16), scene.resident(A)),
        (8, 8 * MIB)
    );
    let moves = scene.notices().filter_map(|notice| match notice {
        Notice::Moved { direction, bytes, .. } => Some((*direction, *bytes)),
        _ => None,
    });
    let moves: Vec<_> = moves.collect();
    let goes = [(Direction::Spill, MIB / 2); 16];
    assert!(moves.starts_with(&goes), "{moves:?}");
}

#[test]
fn what_a_sync_makes_idle_is_exchanged_by_the_next_pass() {
    let mut scene = Scene::up();
    scene.attach(A, 32);
    let quota = Quota {
        max: 8 * MIB,
        ..Quota::default()
    };
    assert_eq!(set(&mut scene, A, quota), None);
    scene.bind(A, 8);
    show(&mut scene, A, 8..16, 16);
    assert_eq!(data_in_vram(&mut scene, A, 8..16), 0);
    scene.pass(1000 * MS);
    assert_eq!(
        (data_in_vram(&mut scene, A, 8..16), scene.resident(A)),
        (8, 8 * MIB)
    );
}

#[test]
fn min_alone_protects_idle_memory_and_not_from_its_own_vm() {
    let low = Quota {
        low: 8 * MIB,
        ..Quota::default()
    };
    for (quota, kept) in [(promise(8 * MIB), 8 * MIB), (low, 0), (promise(0), 0)] {
        let mut scene = Scene::up();
        scene.attach(A, 32);
        assert_eq!(set(&mut scene, A, quota), None);
        scene.bind(A, 8);
        show(&mut scene, A, 0..0, 8);
        scene.attach(B, 64);
        scene.bind(B, 54);
        scene.pass(1000 * MS);
        assert_eq!(scene.resident(A), kept);
        show(&mut scene, A, 8..16, 16);
        scene.pass(1000 * MS);
        assert_eq!(
            (data_in_vram(&mut scene, A, 8..16), scene.resident(A)),
            (8, 8 * MIB)
        );
    }
}
