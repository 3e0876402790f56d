//! What an operator is told can be set.

use super::scene::{MIB, Scene, vm_config};
use super::{A, B};
use crate::config::{Quota, VmConfig};
use crate::event::{Action, Event};

fn with_min(min: u64, mebibytes: u64) -> VmConfig {
    let config = vm_config(mebibytes);
    VmConfig {
        quota: Quota { min, ..config.quota },
        ..config
    }
}

/// The most that is told is set, and a chunk more is not: the core that refuses knows nothing of what was told.
#[test]
fn most_that_can_be_promised_is_what_the_core_admits() {
    let mut scene = Scene::up();
    scene.attach(A, 48);
    scene.attach(B, 48);
    let mut is_set = |vm, min| {
        scene.take();
        let quota = with_min(min, 48).quota;
        scene.apply(Event::SetQuota { vm, quota });
        let is_refused = |action: &Action| matches!(action, Action::QuotaRefused { .. });
        let refused = scene.actions.iter().any(is_refused);
        (!refused, scene.manager.standing().expect("the card is up"))
    };
    let config = vm_config(48);
    let (is_done, standing) = is_set(A, 30 * MIB);
    assert!(is_done);
    let most = standing.min_most(&config, Some(B));
    assert!(most > 0 && most < 48 * MIB && most.is_multiple_of(config.chunk_bytes));
    // A VM that is to come finds the same beside the one that is promised something.
    assert_eq!(standing.min_most(&config, None), most);
    assert!(!is_set(B, most + 1).0);
    assert!(is_set(B, most).0);
    assert!(is_set(A, 0).0);
    assert_eq!(is_set(A, 0).1.min_most(&vm_config(8), None), 8 * MIB);
}
