//! The fuzz targets' bodies over the committed corpus and over random inputs from fixed seeds.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use std::fs;
use std::path::PathBuf;

use integration::fuzz::{self, Target};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Largest random input.
const INPUT_BYTES_MAX: usize = 1_500;

fn corpus(target: Target) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target.name)
}

fn run_corpus(target: Target) {
    let mut paths: Vec<PathBuf> = fs::read_dir(corpus(target))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} has a corpus", target.name);
    for path in paths {
        println!("{}", path.display());
        (target.body)(&fs::read(path).unwrap());
    }
}

fn run_random(target: Target, inputs: u64) {
    for seed in 0..inputs {
        println!("{} seed {seed}", target.name);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let bytes = rng.random_range(0..INPUT_BYTES_MAX);
        let data: Vec<u8> = (0..bytes).map(|_| rng.random()).collect();
        (target.body)(&data);
    }
}

fn run(name: &str, inputs: u64) {
    let target = fuzz::target(name).unwrap();
    run_corpus(target);
    run_random(target, inputs);
}

#[test]
fn bars_survive_any_input() {
    run("bars", 200);
}

#[test]
fn channels_survive_any_input() {
    run("channels", 200);
}

#[test]
fn config_files_are_read_or_refused() {
    run("config_files", 500);
}

#[test]
fn control_requests_are_answered_or_cut_off() {
    run("control_request", 20);
}

#[test]
fn descriptors_cost_only_their_sender() {
    run("descriptors", 4);
}

#[test]
fn kernel_sets_hold_for_any_code() {
    run("kernel_sets", 300);
}

#[test]
fn launches_of_any_ring_are_found_in_bounded_looks() {
    run("launches", 300);
}

#[test]
fn page_tables_survive_any_input() {
    run("page_tables", 100);
}

#[test]
fn shader_survives_any_input() {
    run("shader", 100);
}

#[test]
fn syncs_cost_others_no_more_than_a_slice() {
    run("sync_cost", 6);
}

#[test]
fn two_clients_cost_the_victim_nothing() {
    run("two_clients", 20);
}

#[test]
fn vfio_user_survives_any_input() {
    run("vfio_user", 30);
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let fuzz = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    for &target in fuzz::TARGETS {
        assert!(
            fuzz.join("fuzz_targets")
                .join(target.name)
                .with_extension("rs")
                .is_file()
        );
        assert!(corpus(target).is_dir());
    }
}
