//! `vramd` as a process: its output, its exit code, and the files that remain.
//!
//! Tests that need KVM say so and pass without it; with `VRAMD_REQUIRE_KVM=1` they fail.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::process::Output;
use std::time::Duration;

use host::{Config, TestHost};
use process::{Process, complaint, json, output, text, write_input};
use serde_json::Value;

/// A small demo, oversubscribed: 48M of guest VRAM on 32M.
const SMALL: [&str; 9] = [
    "demo",
    "--json",
    "--vms",
    "2",
    "--vram",
    "32M",
    "--guest-vram",
    "24M",
    "--seed",
];

/// Whether KVM is there; said aloud if not.
fn has_kvm() -> bool {
    let open = std::fs::File::options().read(true).write(true).open("/dev/kvm");
    if let Err(error) = &open {
        let is_required = std::env::var_os("VRAMD_REQUIRE_KVM").is_some_and(|value| value == "1");
        assert!(!is_required, "VRAMD_REQUIRE_KVM=1, but {error}");
        println!("SKIPPED (no /dev/kvm): {error}");
    }
    open.is_ok()
}

/// The promised fields of the JSON of a small demo whose only input has `digest`.
fn check_small_demo(output: &Output, digest: &str, is_kvm: bool) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(output);
    assert_eq!(
        (&report["ok"], &report["kvm"]),
        (&Value::Bool(true), &Value::Bool(is_kvm)),
        "{report}"
    );
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} in {report}"));
    let vram = number(&report["gpu"]["vram_bytes"]);
    assert_eq!(vram, 32 << 20);
    assert!(number(&report["resident_peak_bytes"]) <= vram, "{report}");
    let vms = report["vms"].as_array().unwrap();
    assert_eq!(vms.len(), 2);
    assert!(
        vms.iter().map(|vm| number(&vm["touched_bytes"])).sum::<u64>() > vram,
        "{report}"
    );
    for vm in vms {
        assert_eq!(
            (&vm["ok"], vm["digest"].as_str()),
            (&Value::Bool(true), Some(digest)),
            "{vm}"
        );
        assert_eq!(number(&vm["guest_vram_bytes"]), 24 << 20);
        assert_eq!(number(&vm["exits"]) > 0, is_kvm, "{vm}");
        let pause = &vm["pause_us"];
        let [p50, p99, max] = ["p50", "p99", "max"].map(|name| pause[name].as_f64().unwrap());
        assert!(p50 <= p99 && p99 <= max, "{vm}");
        assert_eq!(number(&vm["suspensions"]) > 0, max > 0.0, "{vm}");
        let drained = vm["drain_us"]["max"].as_f64().unwrap();
        assert!(
            drained <= max && number(&vm["pauses_in_vain"]) <= number(&vm["suspensions"]),
            "{vm}"
        );
    }
    let spilled: u64 = vms.iter().map(|vm| number(&vm["spills"])).sum();
    assert!(spilled > 0, "{report}");
}

#[test]
fn small_demo_on_threads_is_right_and_says_that_it_is_no_vm() {
    let folder = tempfile::tempdir().unwrap();
    let (input, digest) = write_input(folder.path(), "input", 3_000_001);
    let input = input.to_str().unwrap();
    let output = output(&[&SMALL[..], &["7", "--no-kvm", "--input", input]].concat());
    check_small_demo(&output, &digest, false);
}

#[test]
fn small_demo_on_kvm_is_right() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, digest) = write_input(folder.path(), "input", 3_000_001);
    let input = input.to_str().unwrap();
    let output = output(&[&SMALL[..], &["7", "--input", input]].concat());
    check_small_demo(&output, &digest, true);
    for vm in json(&output)["vms"].as_array().unwrap() {
        assert_eq!(bar3_accesses(vm), 0, "BAR3 is memory of the VM: {vm}");
    }
}

/// Accesses to BAR3 that reached the broker.
fn bar3_accesses(vm: &Value) -> u64 {
    let of = |name: &str| vm["accesses"][name].as_u64().unwrap();
    of("bar3_reads") + of("bar3_writes")
}

#[test]
fn small_demo_whose_windows_are_trapped_is_right_too() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (input, digest) = write_input(folder.path(), "input", 3_000_001);
    let input = input.to_str().unwrap();
    let trapped = ["7", "--windows", "trapped", "--input", input];
    let output = output(&[&SMALL[..], &trapped].concat());
    check_small_demo(&output, &digest, true);
    for vm in json(&output)["vms"].as_array().unwrap() {
        assert!(bar3_accesses(vm) > 1000, "{vm}");
    }
}

/// Four VMs, three with kernels, on a card of which each sees half and more.
const MIX: [&str; 8] = [
    "demo",
    "--json",
    "--vram",
    "32M",
    "--guest-vram",
    "24M",
    "--seed",
    "5",
];

fn check_mix(output: &Output, is_kvm: bool) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(output);
    assert_eq!(report["kvm"], Value::Bool(is_kvm), "{report}");
    let vms = report["vms"].as_array().unwrap();
    let workloads: Vec<_> = vms.iter().map(|vm| vm["workload"].as_str().unwrap()).collect();
    assert_eq!(workloads, ["hotspot", "bfs", "matrix", "files"]);
    let touched: u64 = vms.iter().map(|vm| vm["touched_bytes"].as_u64().unwrap()).sum();
    assert!(touched > 2 * (32 << 20), "{report}");
    for vm in vms {
        assert_eq!(
            (&vm["ok"], vm["mismatches"].as_u64()),
            (&Value::Bool(true), Some(0)),
            "{vm}"
        );
    }
    for vm in &vms[..3] {
        let number = |name: &str| {
            vm["kernel"][name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name} of {vm}"))
        };
        assert_eq!(vm["kernel"]["name"], vm["workload"]);
        assert!(number("gpu_ns") > 0 && number("grids") > 0, "{vm}");
        assert!(number("checked_bytes") > number("footprint_bytes") / 4, "{vm}");
    }
    assert_eq!(vms[3]["digest"], report["digest"]);
    let shaders = &report["gpu"]["shaders"];
    assert!(
        shaders["lane_instructions"].as_u64().unwrap() > 10_000_000,
        "{shaders}"
    );
    // Some of what the kernels read was spilled.
    assert!(shaders["downstream_bytes"].as_u64().unwrap() > 0, "{shaders}");
}

#[test]
fn default_demo_mixes_kernels_with_files_and_all_are_right() {
    check_mix(&output(&[&MIX[..], &["--no-kvm"]].concat()), false);
    if has_kvm() {
        check_mix(&output(&MIX), true);
    }
}

#[test]
fn named_workloads_run_in_turn() {
    let arguments = ["--no-kvm", "--vms", "3", "--workload", "triad", "2dconv"];
    let output = output(&[&MIX[..], &arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    let workloads = [0, 1, 2].map(|vm| report["vms"][vm]["workload"].as_str().unwrap());
    assert_eq!(workloads, ["triad", "2dconv", "triad"]);
    assert_eq!(
        (&report["digest"], &report["vms"][0]["digest"]),
        (&Value::Null, &Value::Null)
    );
}

#[test]
fn several_inputs_come_back_each() {
    let folder = tempfile::tempdir().unwrap();
    let inputs =
        [("one", 1_000_000), ("two", 7)].map(|(name, bytes)| write_input(folder.path(), name, bytes));
    let paths = inputs.each_ref().map(|(path, _)| path.to_str().unwrap());
    let output = output(
        &[
            &SMALL[..],
            &["1", "--no-kvm", "--input", paths[0], "--input", paths[1]],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(&output);
    let listed = report["inputs"].as_array().unwrap();
    let digests: Vec<_> = listed
        .iter()
        .map(|input| input["sha256"].as_str().unwrap())
        .collect();
    assert_eq!(digests, inputs.each_ref().map(|(_, digest)| digest.as_str()));
    assert_eq!(report["vms"][0]["digest"], report["digest"]);
}

#[test]
fn recording_has_a_header_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let output = output(
        &[
            &SMALL[..],
            &["1", "--no-kvm", "--record", record.to_str().unwrap()],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let recorded = std::fs::read_to_string(record).unwrap();
    assert!(recorded.starts_with(r#"{"vramd_recording":2"#));
    assert!(recorded.lines().count() > 1000);
}

#[test]
fn wrong_usage_is_one_line_and_status_2() {
    let size = complaint(&["demo", "--vram", "15M"], 2);
    assert!(
        size.contains("15M is not a multiple of 1M from 16M to 64G"),
        "{size}"
    );
    let size = complaint(&["demo", "--vram", "100.5M"], 2);
    assert!(
        size.contains("'--vram <SIZE>'") && size.contains("not a multiple of 1M"),
        "{size}"
    );
    let size = complaint(&["demo", "--guest-vram", "lots"], 2);
    assert!(size.contains("is not a size such as 512M"), "{size}");
    let vms = complaint(&["demo", "--vms", "65"], 2);
    assert!(vms.contains("65 is not in 1..=64"), "{vms}");
    let workload = complaint(&["demo", "--workload", "mining"], 2);
    assert!(
        ["'mining'", "there are files, ", "hotspot", "bfs", "matrix"]
            .iter()
            .all(|part| workload.contains(part)),
        "{workload}"
    );
    let input = complaint(&["demo", "--workload", "bfs", "--input", "/dev/null"], 2);
    assert!(input.contains("--input is for the workload files"), "{input}");
    complaint(&["demo", "--vms", "0"], 2);
    complaint(&["dance"], 2);
    complaint(&["serve"], 2);
    complaint(&[], 2);
}

#[test]
fn verb_that_does_not_exist_is_wrong_usage_and_is_not_listed() {
    for verb in ["migrate", "snapshot", "restore"] {
        let said = complaint(&[verb, "a", "--max", "3M"], 2);
        assert!(said.contains("unrecognized subcommand"), "{said}");
    }
    let help = output(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    assert!(!text(&help.stdout).contains("migrate"), "{}", text(&help.stdout));
}

#[test]
fn card_that_is_not_there_cannot_be_bound() {
    for verb in ["bind", "unbind"] {
        complaint(&[verb], 2);
        let said = complaint(&[verb, "1f.2"], 2);
        assert!(said.contains("PCI address"), "{said}");
        let said = complaint(&[verb, "ffff:ff:1f.7"], 1);
        assert!(said.contains("there is no PCI function ffff:ff:1f.7"), "{said}");
    }
}

#[test]
fn doctor_has_a_remedy_for_all_that_is_missing() {
    let said = output(&["doctor", "--json"]);
    let findings = json(&said)["findings"].as_array().unwrap().clone();
    assert!(!findings.is_empty());
    for finding in &findings {
        let is_good = finding["verdict"] == "ok";
        let remedy = finding["remedy"].as_str().unwrap_or_default();
        assert_eq!(is_good, remedy.is_empty(), "{finding}");
    }
}

#[test]
fn input_that_cannot_be_used_is_named() {
    let said = complaint(&["demo", "--input", "/nonexistent/file"], 1);
    assert_eq!(
        said,
        "vramd: cannot read input /nonexistent/file: No such file or directory (os error 2)\n"
    );
    let said = complaint(&["demo", "--input", "/dev/zero"], 1);
    assert_eq!(said, "vramd: input /dev/zero is not a regular file\n");
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large");
    std::fs::File::create(&large).unwrap().set_len(64 << 20).unwrap();
    let said = complaint(
        &["demo", "--guest-vram", "24M", "--input", large.to_str().unwrap()],
        1,
    );
    assert!(
        said.contains("is too large: 16777216 bytes fit guest VRAM"),
        "{said}"
    );
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    let said = complaint(&["demo", "--input", empty.to_str().unwrap()], 1);
    assert!(said.ends_with("empty is empty\n"), "{said}");
}

#[test]
fn recording_that_cannot_be_created_is_named() {
    let said = complaint(&["demo", "--record", "/nonexistent/record"], 1);
    assert!(
        said.starts_with("vramd: cannot create recording /nonexistent/record: "),
        "{said}"
    );
}

#[test]
fn demo_that_fits_the_card_is_not_ok() {
    let arguments = [
        "demo",
        "--json",
        "--no-kvm",
        "--vms",
        "1",
        "--vram",
        "64M",
        "--guest-vram",
        "16M",
    ];
    let output = output(&arguments);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["ok"], Value::Bool(false));
    assert!(
        text(&output.stderr).contains("not oversubscribed"),
        "{}",
        text(&output.stderr)
    );
}

/// A host whose broker is not started yet, and its two VMs' files.
struct TwoVms {
    host: TestHost,
    digest: String,
}

impl TwoVms {
    fn new(options: &str) -> TwoVms {
        let config = Config::default().gpu("gpu0", "32M", "host_ram = \"1G\"");
        let host = TestHost::new(&config.vm("a", "24M", "").vm("b", "24M", ""));
        let (input, digest) = write_input(&host.at(""), "input", 3_000_001);
        for vm in ["a", "b"] {
            host.write_vm(vm, options, &[&input]);
        }
        TwoVms { host, digest }
    }

    /// With a broker that listens.
    fn serving(options: &str) -> TwoVms {
        let mut both = TwoVms::new(options);
        let line = both.host.start();
        let device = format!(
            r#"-device '{{"driver":"vfio-user-pci","socket":{{"path":"{}","#,
            both.host.path("a.sock")
        );
        assert!(
            line.starts_with("vm a: 24M guest VRAM at ") && line.contains(&device),
            "{line}"
        );
        both
    }

    fn check_run(&self, output: &Output, is_kvm: bool) {
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report = json(output);
        assert_eq!(
            (&report["ok"], &report["kvm"]),
            (&Value::Bool(true), &Value::Bool(is_kvm)),
            "{report}"
        );
        assert_eq!(
            report["digests"][0]["sha256"].as_str(),
            Some(self.digest.as_str())
        );
    }

    /// Two VMs of their own processes at one broker.
    fn run_both(mut self, more: &[&str], is_kvm: bool) {
        let mut vms = ["a", "b"].map(|vm| self.host.start_vm(vm, more));
        for vm in &mut vms {
            self.check_run(&vm.wait(), is_kvm);
        }
        let stderr = self.host.stop();
        // On a busy host a move may be late; there must be no other warning.
        let told: Vec<_> = stderr.lines().filter(|line| !line.ends_with("in time")).collect();
        assert_eq!(told, Vec::<&str>::new());
        assert!(!self.host.at("a.sock").exists() && !self.host.at("b.sock").exists());
    }
}

#[test]
fn broker_and_two_processes_on_threads_do_the_same_as_the_demo() {
    TwoVms::serving("vramd.rounds=2").run_both(&["--no-kvm"], false);
}

#[test]
fn broker_and_two_vms_on_kvm_do_the_same_as_the_demo() {
    if has_kvm() {
        TwoVms::serving("vramd.rounds=2").run_both(&[], true);
    }
}

#[test]
fn vm_process_that_dies_leaves_the_other_and_its_socket_unharmed() {
    let mut both = TwoVms::serving("vramd.rounds=30");
    let mut dying = both.host.start_vm("a", &["--no-kvm"]);
    let mut other = both.host.start_vm("b", &["--no-kvm"]);
    std::thread::sleep(Duration::from_millis(300));
    dying.kill();
    both.check_run(&other.wait(), false);
    both.check_run(&both.host.start_vm("a", &["--no-kvm"]).wait(), false);
    both.host.stop();
}

#[test]
fn broker_that_is_told_to_end_ends_its_vms_with_a_reason() {
    let mut both = TwoVms::serving("vramd.rounds=1000");
    let mut vm = both.host.start_vm("a", &["--no-kvm"]);
    std::thread::sleep(Duration::from_millis(300));
    both.host.stop();
    let ended = vm.wait();
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stderr).lines().count(), 1, "{}", text(&ended.stderr));
    assert!(!both.host.at("a.sock").exists());
}

#[test]
fn busy_socket_is_named_and_left_alone() {
    let mut both = TwoVms::serving("");
    let said = both.host.refused_start();
    assert!(
        said.contains(&format!("socket {} is in use", both.host.path("a.sock"))),
        "{said}"
    );
    assert!(both.host.at("a.sock").exists());
    both.host.stop();
}

#[test]
fn malformed_configuration_is_named_with_field_and_line() {
    let both = TwoVms::new("");
    std::fs::write(
        both.host.path("bad.toml"),
        "[[gpu]]\nname = \"gpu0\"\ndevice = \"model:gtx480\"\nvram = \"3M\"\n",
    )
    .unwrap();
    let said = complaint(&["serve", "--config", &both.host.path("bad.toml")], 1);
    assert!(
        said.contains("bad.toml:4: gpu.vram: 3M is not a multiple of 1M from 16M"),
        "{said}"
    );
    let said = complaint(&["run", &both.host.path("bad.toml")], 1);
    assert!(
        said.contains("bad.toml:1: [[gpu]]: unknown field `gpu`"),
        "{said}"
    );
    let said = complaint(&["run", &both.host.path("missing.toml")], 1);
    assert!(
        said.contains("cannot read") && said.contains("missing.toml: No such file"),
        "{said}"
    );
    let said = complaint(&["run", &both.host.path("a.toml")], 1);
    assert!(said.contains("cannot connect to the vfio-user socket"), "{said}");
}

#[test]
fn demo_that_is_interrupted_ends_with_the_reason() {
    let arguments = [&SMALL[..], &["1", "--no-kvm", "--rounds", "100000"]].concat();
    let mut demo = Process::start(&arguments);
    demo.wait_for_words();
    let ended = demo.terminate();
    let stderr = text(&ended.stderr);
    assert_eq!(
        (ended.status.code(), stderr.lines().last()),
        (Some(1), Some("vramd: interrupted"))
    );
    assert!(ended.stdout.is_empty());
}
