//! Every kernel on the software GF100, in sizes around those of its blocks, against its reference.

mod small_card;

use card::BareMachine;
use fermi_model::BareCard;
use guests::{Input, KernelSummary, Machine, Options, Summary, run, scratch_words};
use kernels::NAMES;
use small_card::{MIB, flip_vram_byte, small_card};

/// Footprints of less than a block, of some blocks and a rest, of several launches' worth.
const FOOTPRINTS_KIB: [u64; 4] = [1, 37, 500, 3000];
const INPUTS: &[Input<'static>] = &[];

fn run_kernel(
    command_line: &str,
    on_line: fn(&mut BareCard, &str),
) -> (BareMachine, Result<Summary, guests::DriverError>) {
    let mut bus = small_card();
    bus.on_line = on_line;
    let options = Options::parse(command_line).expect("a command line of ours");
    let words = scratch_words(options.workload, options.footprint.unwrap_or(48 * MIB));
    // Data that an earlier run left there must not matter.
    let mut scratch = vec![0x5555_5555; words];
    let machine = Machine {
        dma: MIB..8 * MIB,
        scratch: &mut scratch,
        inputs: INPUTS,
        options,
    };
    let outcome = run(&mut bus, machine);
    (bus, outcome)
}

fn summary_of(command_line: &str) -> (BareMachine, KernelSummary) {
    let (bus, outcome) = run_kernel(command_line, |_, _| ());
    match outcome {
        Ok(Summary::Kernel(summary)) => (bus, summary),
        other => panic!("{command_line}: {other:?}"),
    }
}

#[test]
fn every_kernel_agrees_with_its_reference_in_every_size() {
    for name in NAMES {
        for kib in FOOTPRINTS_KIB {
            let command_line =
                format!("vramd.workload={name} vramd.footprint_kib={kib} vramd.rounds=2 vramd.seed={kib}");
            let (bus, summary) = summary_of(&command_line);
            assert_eq!(summary.mismatches, 0, "{command_line}: {:#?}", bus.lines);
            assert!(
                summary.checked_bytes > 0 && summary.gpu_ns > 0,
                "{command_line}: {summary:?}"
            );
            assert!(
                summary.grids >= 2 && summary.footprint_bytes <= kib.max(4) * 1024,
                "{summary:?}"
            );
        }
    }
}

/// The number of a field of the line that says what was copied.
fn told_of_copies(bus: &BareMachine, field: &str) -> u64 {
    let line = bus.lines.iter().find(|line| line.starts_with(r#"{"coherence":"#));
    let rest = line.and_then(|line| line.split(&format!(r#""{field}":"#)).nth(1));
    let digits = rest.and_then(|rest| rest.split([',', '}']).next());
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_else(|| panic!("no {field}: {:#?}", bus.lines))
}

#[test]
fn every_kernel_is_right_on_buffers_with_two_copies() {
    for name in NAMES {
        for scheme in ["amm", "naive"] {
            let command_line = format!(
                "vramd.workload={name} vramd.footprint_kib=300 vramd.rounds=2 vramd.repeats=2 vramd.coherence={scheme}"
            );
            let (bus, summary) = summary_of(&command_line);
            assert_eq!(summary.mismatches, 0, "{command_line}: {:#?}", bus.lines);
            assert!(summary.checked_bytes > 0 && summary.grids >= 2, "{summary:?}");
            assert_eq!(told_of_copies(&bus, "breaches"), 0, "{command_line}");
            assert!(told_of_copies(&bus, "to_cpu") > 0, "{command_line}");
            let in_vain: u64 = ["eager_bytes", "non_stale_bytes", "private_bytes"]
                .map(|field| told_of_copies(&bus, field))
                .iter()
                .sum();
            assert_eq!(in_vain == 0, scheme == "amm", "{command_line}: {in_vain} bytes");
        }
    }
}

#[test]
fn copies_by_hand_are_right_and_refused_where_a_plan_has_none() {
    for name in ["hotspot", "kmeans"] {
        let (bus, summary) = summary_of(&format!(
            "vramd.workload={name} vramd.footprint_kib=300 vramd.rounds=2 vramd.coherence=manual"
        ));
        assert_eq!(summary.mismatches, 0, "{name}: {:#?}", bus.lines);
        assert_eq!(told_of_copies(&bus, "breaches"), 0, "{name}");
    }
    let (_, outcome) = run_kernel("vramd.workload=triad vramd.coherence=manual", |_, _| ());
    let error = outcome.unwrap_err().to_string();
    assert_eq!(error, "the kernel does not copy its buffers by hand");
}

#[test]
fn buffers_with_two_copies_fill_the_ram_there_is() {
    let (_, summary) = summary_of("vramd.workload=triad vramd.rounds=1 vramd.coherence=amm");
    assert!(
        summary.footprint_bytes > MIB && summary.footprint_bytes < 7 * MIB,
        "{summary:?}"
    );
    let (_, outcome) = run_kernel(
        "vramd.workload=triad vramd.footprint_kib=9000 vramd.coherence=amm",
        |_, _| (),
    );
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("DMA memory"), "{error}");
}

/// Flips one byte of the kernel's buffers, which begin behind 4 MiB of the driver's and 2 MiB + 128 KiB for launches.
fn spoil_result(card: &mut BareCard, line: &str) {
    if line.contains(r#""done":1,"total":1,"phase":"run""#) {
        flip_vram_byte(card, (6 << 20) + (128 << 10) + 1);
    }
}

#[test]
fn one_flipped_byte_is_one_word_that_is_wrong() {
    // Buffer 0 of triad is its output, that of hotspot an input: both are compared.
    for name in ["triad", "hotspot"] {
        let command_line = format!("vramd.workload={name} vramd.footprint_kib=100 vramd.rounds=1");
        let (bus, outcome) = run_kernel(&command_line, spoil_result);
        let summary = outcome.unwrap();
        assert_eq!(
            (summary.mismatches(), summary.is_ok()),
            (1, false),
            "{:#?}",
            bus.lines
        );
        assert!(
            bus.lines
                .iter()
                .any(|line| line.starts_with(r#"{"wrong":{"buffer":""#))
        );
        assert!(bus.lines.iter().any(|line| line.contains(r#""ok":false"#)));
    }
}

#[test]
fn large_footprint_fills_the_vram_there_is() {
    let (_, summary) = summary_of("vramd.workload=triad vramd.rounds=1");
    assert!(summary.footprint_bytes > 57 * MIB, "{summary:?}");
    assert_eq!(summary.checked_bytes, summary.footprint_bytes);
    let (_, outcome) = run_kernel("vramd.workload=triad vramd.footprint_kib=70000", |_, _| ());
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("do not fit"), "{error}");
}

#[test]
fn too_little_memory_for_the_reference_is_refused() {
    let mut bus = small_card();
    let machine = Machine {
        dma: MIB..8 * MIB,
        scratch: &mut [0; 100],
        inputs: INPUTS,
        options: Options::parse("vramd.workload=hotspot vramd.footprint_kib=100").unwrap(),
    };
    let error = run(&mut bus, machine).unwrap_err().to_string();
    assert!(error.contains("the reference needs"), "{error}");
    assert_eq!(bus.lines, [format!(r#"{{"error":"{error}"}}"#)]);
}

#[test]
fn spoiled_frontier_does_not_keep_a_search_going() {
    // A round starts from the inputs alone, whatever the one before left.
    let (_, first) = summary_of("vramd.workload=bfs vramd.footprint_kib=200 vramd.rounds=1");
    let (_, third) = summary_of("vramd.workload=bfs vramd.footprint_kib=200 vramd.rounds=3");
    assert_eq!((third.grids, third.mismatches), (3 * first.grids, 0));
}
