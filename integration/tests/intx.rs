//! A run in which guests and VMMs use INTx repeats from its recording.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use broker::{Compared, Replay};
use integration::sim::{Settings, run_recorded};
use vgpu::Manager;

/// A seed with a guest that looks at its interrupts.
const SEED: u64 = 0;

#[test]
fn run_with_intx_repeats_from_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    let outcome = run_recorded(SEED, Settings::default(), &file).unwrap();
    assert_eq!(outcome.violation, None);
    let recorded = std::fs::read_to_string(&file).unwrap();
    for what in ["\"MaskIntx\"", "\"kind\":\"Intx\""] {
        assert!(recorded.contains(what), "nothing of {what} in it");
    }
    let replay = Replay::open(&file).unwrap();
    let mut core = Manager::new(replay.config().clone());
    replay.comparing(Compared::Everything).run(&mut core).unwrap();
    // A core that takes no unmask does something else.
    let without = recorded.replace("\"masked\":false", "\"masked\":true");
    std::fs::write(&file, without).unwrap();
    let replay = Replay::open(&file).unwrap();
    let mut core = Manager::new(replay.config().clone());
    replay.comparing(Compared::Everything).run(&mut core).unwrap_err();
}
