//! The core's state as text: a run whose core is written and read again and again is the run whose core never was, and a
//! text that is no state is refused.

use integration::bench::{Bench, gpu_config};
use integration::rewrite::Rewrites;
use integration::sim::{Outcome, Settings, Telling, run};
use vgpu::{LoadError, Manager, Volatile};

/// Compares a run with one whose core is written and read before one event in so many: each event and the digest of its
/// actions, each notice.
fn assert_same(seed: u64, settings: Settings, one_in: u32) -> Outcome {
    let settings = Settings {
        telling: Telling::Events,
        ..settings
    };
    let rewrites = Some(Rewrites::Drawn { seed, one_in });
    let (once, again) = (run(seed, settings), run(seed, Settings { rewrites, ..settings }));
    assert_eq!(again.violation, once.violation, "seed {seed}");
    let mut lines = once.log.lines().zip(again.log.lines());
    let differs = lines.find(|(once, again)| once != again);
    assert_eq!(differs, None, "seed {seed}: the first line that differs");
    assert_eq!(once.log.len(), again.log.len(), "seed {seed}");
    assert!(again.rewrites.0 > 20, "seed {seed}: {:?}", again.rewrites);
    again
}

#[test]
fn core_that_was_written_and_read_goes_on_as_it_would_have() {
    let (mut moves, mut roll_backs) = (0, 0);
    let mut refused = 0;
    for seed in 3000..3006 {
        let outcome = assert_same(seed, Settings::default(), 100);
        moves += outcome.moves.0 + outcome.moves.1;
        roll_backs += outcome.roll_backs;
        refused += outcome.rewrites.1;
    }
    assert!(
        moves > 0 && roll_backs > 0,
        "{moves} moves, {roll_backs} roll-backs"
    );
    assert!(
        refused > 100,
        "of texts with a wrong number {refused} were refused"
    );
}

#[test]
fn policy_goes_on_from_what_it_remembers() {
    let settings = Settings {
        hostile_policy: true,
        ..Settings::default()
    };
    let outcome = assert_same(3100, settings, 100);
    assert!(outcome.moves.0 + outcome.moves.1 > 0, "nothing moved");
}

/// Of a card with two VMs.
fn state() -> String {
    Bench::new(64, &[16, 16]).world.manager.save()
}

fn load(text: &str) -> LoadError {
    let loaded = Manager::load(gpu_config(), text, Volatile::default());
    loaded.map(drop).expect_err("what is under way is missing")
}

#[test]
fn state_that_is_cut_off_is_refused_wherever_it_ends() {
    let text = state();
    for length in (0..text.len()).step_by(97) {
        let error = load(&text[..length]);
        assert!(matches!(error, LoadError::Malformed(_)), "at {length}: {error}");
    }
}

#[test]
fn state_of_another_version_is_refused_whatever_it_holds() {
    let error = load(r#"{"vramd_state":99,"cards":[]}"#);
    assert_eq!(
        error.to_string(),
        "it has format 99, this program reads format 17"
    );
}

#[test]
fn state_whose_sums_do_not_fit_is_refused() {
    let wrong = state().replacen(r#""free_bytes":"#, r#""free_bytes":1"#, 1);
    let error = load(&wrong);
    assert_eq!(
        error.to_string(),
        "it contradicts itself: free bytes of the arena"
    );
}

#[test]
fn state_without_what_is_under_way_is_refused() {
    assert!(matches!(load(&state()), LoadError::Volatile));
}

#[test]
fn state_is_refused_by_a_host_with_another_bus() {
    let mut config = gpu_config();
    config.bus.maps_max = 7;
    let error = Manager::load(config, &state(), Volatile::default()).map(drop);
    let error = error.expect_err("it was promised more maps");
    assert_eq!(error.to_string(), "it contradicts itself: the bus is another one");
}
