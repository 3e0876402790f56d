//! A run in which guests and VMMs use INTx repeats from its recording.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use broker::{Compared, Replay};
use integration::sim::{Settings, run_recorded};
use vgpu::Manager;

/// Seeds of which one has a guest that looks at its interrupts.
const SEEDS: std::ops::Range<u64> = 0..8;

#[test]
fn run_with_intx_repeats_from_its_recording() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    let uses_intx = |seed: &u64| {
        let outcome = run_recorded(*seed, Settings::default(), &file).unwrap();
        assert_eq!(outcome.violation, None);
        let recorded = std::fs::read_to_string(&file).unwrap();
        ["\"MaskIntx\"", "\"kind\":\"Intx\""]
            .iter()
            .all(|what| recorded.contains(what))
    };
    let found = SEEDS.into_iter().find(uses_intx);
    assert!(found.is_some(), "no guest of these seeds uses INTx");
    let recorded = std::fs::read_to_string(&file).unwrap();
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
