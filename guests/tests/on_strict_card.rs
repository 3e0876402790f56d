//! Driver and file workload on a card that panics at whatever a correct driver does not do.

mod strict_card;

use guests::driver::{Copier, Copy, CopyPath, Driver, DriverConfig, DriverError, PageSize};
use guests::{GuestBus, Input, Machine, Options, Summary, run};
use sha2::{Digest, Sha256};
use strict_card::StrictCard;

const MIB: u64 = 1 << 20;
const VRAM_BYTES: usize = 64 << 20;
const RAM_BYTES: usize = 16 << 20;
/// Not aligned, so that pieces and pages do not agree.
const INPUT_GPA: u64 = 8 * MIB + 0x123;

fn bytes_of(seed: u32, count: usize) -> Vec<u8> {
    let words = (0..count as u32).map(|index| (index ^ seed).wrapping_mul(0x9e37_79b1));
    words.map(|word| (word >> 24) as u8).collect()
}

fn card_with_inputs<'a>(lengths: &[u64], names: &'a [&'a str]) -> (StrictCard, Vec<Input<'a>>) {
    let mut card = StrictCard::new(VRAM_BYTES, RAM_BYTES);
    let mut inputs = Vec::new();
    let mut gpa = INPUT_GPA;
    for (&bytes, name) in lengths.iter().zip(names) {
        card.ram_write(gpa, &bytes_of(bytes as u32, bytes as usize));
        inputs.push(Input { name, gpa, bytes });
        gpa += bytes + 77;
    }
    (card, inputs)
}

fn machine<'a>(inputs: &'a [Input<'a>], command_line: &'a str) -> Machine<'a> {
    let options = Options::parse(command_line).expect("a command line of ours");
    Machine {
        dma: MIB..4 * MIB,
        scratch: &mut [],
        inputs,
        options,
    }
}

fn run_two_files(on_line: fn(&mut StrictCard, &str)) -> (StrictCard, Summary) {
    let (mut card, inputs) = card_with_inputs(&[1_500_001, 300_000], &["a", "b"]);
    card.on_line = on_line;
    let summary = run(&mut card, machine(&inputs, "vramd.rounds=5 vramd.seed=3")).expect("a run to the end");
    (card, summary)
}

fn is_end_of_phase(line: &str) -> bool {
    let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    let progress = &value["progress"];
    progress["done"] == progress["total"]
}

#[test]
fn files_come_back_whole() {
    let (card, summary) = run_two_files(|_, _| ());
    assert!(summary.is_ok(), "{summary:?}");
    let digest: [u8; 32] = Sha256::digest(bytes_of(300_000, 300_000)).into();
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!(r#"{{"digest":{{"input":"b","sha256":"{hex}","bytes":300000}}}}"#);
    assert!(card.lines.contains(&line), "{:#?}", card.lines);
    assert!(card.lines.last().unwrap().starts_with(r#"{"result":{"ok":true,"#));
}

#[test]
fn all_three_engines_copy() {
    let (card, _) = run_two_files(|_, _| ());
    let engines: Vec<_> = card.copies.keys().copied().collect();
    assert_eq!(engines, [0x9039, 0x0004_90b5, 0x0005_90b8]);
}

#[test]
fn same_seed_gives_the_same_accesses() {
    let (first, _) = run_two_files(|_, _| ());
    let (second, _) = run_two_files(|_, _| ());
    assert_eq!((first.accesses, first.lines), (second.accesses, second.lines));
}

#[test]
fn one_wrong_byte_is_one_mismatch() {
    let (card, summary) = run_two_files(|card, line| {
        if line.contains("move") && is_end_of_phase(line) {
            card.vram[48 << 20] ^= 0x40;
        }
    });
    assert_eq!((summary.mismatches(), summary.is_ok()), (1, false));
    let found = card
        .lines
        .iter()
        .filter(|line| line.starts_with(r#"{"mismatch":"#));
    assert_eq!(found.count(), 1);
}

#[test]
fn untouched_vram_need_not_be_zero() {
    let (mut card, inputs) = card_with_inputs(&[10_000], &["a"]);
    card.vram.fill(0xff);
    let summary = run(&mut card, machine(&inputs, "vramd.zeroed=0 vramd.rounds=1")).unwrap();
    assert!(summary.is_ok(), "{summary:?}");
}

#[test]
fn interrupts_change_nothing_in_the_outcome() {
    let (mut card, inputs) = card_with_inputs(&[10_000], &["a"]);
    let summary = run(&mut card, machine(&inputs, "vramd.interrupts=1 vramd.rounds=1")).unwrap();
    assert!(summary.is_ok(), "{summary:?}");
}

#[test]
fn inputs_beyond_vram_are_refused_by_name() {
    let (mut card, mut inputs) = card_with_inputs(&[10_000], &["a"]);
    inputs[0].bytes = 128 << 20;
    let error = run(&mut card, machine(&inputs, "")).unwrap_err();
    assert!(matches!(error, DriverError::InputTooLarge { .. }), "{error:?}");
}

#[test]
fn bring_up_and_a_submission_cost_what_is_documented() {
    let mut card = StrictCard::new(VRAM_BYTES, RAM_BYTES);
    let total = |card: &StrictCard| card.accesses.iter().sum::<u64>();
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let mut driver = Driver::start(&mut card, &config).unwrap();
    let started = total(&card);
    let channel = driver.create_channel(&mut card, &[]).unwrap();
    let created = total(&card);
    let fence = driver.submit(&mut card, channel).unwrap();
    driver.wait(&mut card, fence).unwrap();
    let submitted = total(&card);
    assert!(started < 100, "bring-up: {started} accesses");
    assert!(created - started < 130, "channel: {} accesses", created - started);
    assert_eq!(submitted - created, 1);
}

#[test]
fn destroyed_channel_can_be_created_again() {
    let mut card = StrictCard::new(VRAM_BYTES, RAM_BYTES);
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let mut driver = Driver::start(&mut card, &config).unwrap();
    for _ in 0..20 {
        let mut copier = Copier::new(&mut driver, &mut card).unwrap();
        let (source, target) = (1 << 32, (1 << 32) + 0x2_0000);
        let vram = Driver::data_start();
        driver
            .map_vram(&mut card, source, vram, 0x4_0000, PageSize::Large)
            .unwrap();
        driver.flush_tlb(&mut card).unwrap();
        card.vram[vram as usize] = 7;
        let copy = Copy {
            source,
            target,
            bytes: 100_000,
        };
        copier
            .copy(&mut driver, &mut card, CopyPath::Copy1, copy)
            .unwrap();
        copier.finish(&mut driver, &mut card).unwrap();
        copier.destroy(&mut driver, &mut card).unwrap();
    }
    assert_eq!(card.vram[Driver::data_start() as usize + 0x2_0000], 7);
}

#[test]
fn mapping_that_is_not_aligned_is_refused() {
    let mut card = StrictCard::new(VRAM_BYTES, RAM_BYTES);
    let config = DriverConfig::new(MIB..4 * MIB, &Options::default());
    let mut driver = Driver::start(&mut card, &config).unwrap();
    let error = driver.map_vram(&mut card, 1 << 32, 0x1000, 0x2_0000, PageSize::Large);
    assert!(matches!(error, Err(DriverError::BadMapping { .. })), "{error:?}");
}

#[test]
fn workload_fits_the_documented_stack() {
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    let (mut card, inputs) = card_with_inputs(&[1_500_001], &["a"]);
    std::thread::scope(|scope| {
        let body = || run(&mut card, machine(&inputs, "vramd.rounds=1")).is_ok_and(|summary| summary.is_ok());
        assert!(thread.spawn_scoped(scope, body).unwrap().join().unwrap());
    });
}
