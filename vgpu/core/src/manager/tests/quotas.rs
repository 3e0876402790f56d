//! What an operator may set, and what becomes of memory that is held.

use super::scene::{MIB, MS, Scene, vm_config};
use super::{A, B};
use crate::config::{GpuConfig, Quota};
use crate::event::{Action, Event, VmId};
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
