//! What `inspect` and `trace` show of a broker at work.

use std::io::Write as _;

use serde_json::{Value, json};
use vfio_user_server::Region;

use super::host::{TestHost, answer, get};
use super::process::{complaint, text};
use super::served;

/// What a guest stores; nobody may see it.
const SECRET: [u8; 4] = [0xde, 0xc0, 0xad, 0x0b];
/// The first register, and two that say what the card is at.
const PMC_BOOT_0: u64 = 0;
const PMC_INTR: u64 = 0x100;
const PTIMER_TIME_0: u64 = 0x9400;
/// The window onto VRAM.
const PRAMIN: u64 = 0x70_0000;

#[test]
fn state_of_a_vm_and_of_a_card_is_a_tree_with_paths() {
    let host = served();
    let _vmm = host.vmm("a");
    let page = host.say(&["inspect", "a"]);
    assert!(page.starts_with("name: a\n"), "{page}");
    assert!(
        page.contains("\nchunks:\n  guest_vram: 48 MiB\n  chunk: 2 MiB\n"),
        "{page}"
    );
    assert!(
        page.contains("  list: 24 entries, shown if this path is asked for\n"),
        "{page}"
    );
    assert_eq!(host.say(&["inspect", "a", "chunks/list"]), "0-23: unbacked\n");
    assert_eq!(host.say(&["inspect", "a", "chunks/count/unbacked"]), "24\n");
    let state = host.ask(&["inspect", "a", "chunks"]);
    assert_eq!(
        (&state["gpu"], &state["vm"], &state["path"]),
        (&json!("g0"), &json!("a"), &json!("chunks"))
    );
    assert_eq!(
        state["state"]["guest_vram"],
        json!({"value": 48 << 20, "unit": "bytes"})
    );
    assert_eq!(state["is_cut"], false);
    // What an operator changes is seen in what decides.
    host.say(&["quota", "a", "--max", "20M"]);
    assert_eq!(host.say(&["inspect", "a", "quota/max"]), "20 MiB\n");
    let card = host.ask(&["inspect", "--gpu", "g0", "vms/vm0/name"]);
    assert_eq!((&card["vm"], &card["state"]), (&Value::Null, &json!("a")));
    let all = host.say(&["inspect"]);
    assert!(
        all.starts_with("gpu g0\nphase: up\n") && all.contains("\ngpu g1\nphase: up\n"),
        "{all}"
    );
    let all = host.ask(&["inspect"]);
    assert_eq!(all["states"].as_array().unwrap().len(), 2);
}

#[test]
fn what_cannot_be_shown_is_named() {
    let host = served();
    let _vmm = host.vmm("a");
    for (arguments, words) in [
        (
            &["inspect", "b"][..],
            "vm b: it is not connected, so there is nothing to look into; see `vramd show b`",
        ),
        (&["trace", "b"], "vm b: it is not connected"),
        (
            &["inspect", "nobody"],
            "there is no vm \"nobody\"; see `vramd list`",
        ),
        (&["trace", "nobody"], "there is no vm \"nobody\""),
        (
            &["inspect", "--gpu", "g7"],
            "there is no gpu \"g7\"; see `vramd list`",
        ),
        (
            &["inspect", "a", "chunks/none"],
            "the state of a has nothing at \"chunks/none\"; see `vramd inspect`",
        ),
        (
            &["inspect", "--gpu", "g0", "a", "chunks"],
            "with --gpu the only other word is a PATH",
        ),
    ] {
        let said = host.refused(arguments);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    complaint(&["trace", "a", "--last", "0"], 2);
    for (query, status) in [
        ("vms/a/trace?after=x", 400),
        ("vms/a/trace?after=-1", 400),
        ("vms/a/trace?most=0", 400),
        ("vms/a/trace?most=1001", 400),
        ("vms/a/trace?wait_ms=10001", 400),
        ("vms/a/trace?before=1", 400),
        ("vms/a/state?depth=1", 400),
        ("vms/a/state?path=%ff", 404),
        ("vms/b/state", 409),
        ("gpus/g7/state", 404),
        ("gpus/g0/state?path=vms//vm0///name", 200),
    ] {
        assert_eq!(http(&host, query), status, "{query}");
    }
}

/// Status of the answer to a GET.
fn http(host: &TestHost, query: &str) -> u16 {
    let mut stream = host.connect();
    stream.write_all(&get(&format!("/v1/{query}"))).unwrap();
    answer(stream).0
}

#[test]
fn trace_has_what_happened_to_one_vm_and_no_byte_of_its_guest() {
    let host = served();
    let (a, b) = (host.vmm("a"), host.vmm("b"));
    a.write(Region::Bar0, PRAMIN, &SECRET).unwrap();
    a.read(Region::Bar0, PTIMER_TIME_0, &mut [0; 4]).unwrap();
    b.read(Region::Bar0, PMC_INTR, &mut [0; 4]).unwrap();
    let lines = host.say(&["trace", "a"]);
    assert!(lines.contains("vm0 wants a vGPU with 48 MiB\n"), "{lines}");
    assert!(
        lines.contains("vm0 loads 4 B of PtimerTime0") || lines.contains("0x009400"),
        "{lines}"
    );
    assert!(lines.contains("vm0 stores 4 B to Bar0 0x700000"), "{lines}");
    assert!(!lines.contains("vm1"), "{lines}");
    let trace = host.ask(&["trace", "a", "--last", "2"]);
    let told = trace["lines"].as_array().unwrap();
    assert_eq!(
        (told.len(), &trace["vm"], &trace["gpu"]),
        (2, &json!("a"), &json!("g0"))
    );
    assert!(told[1]["at_ns"].as_u64() >= told[0]["at_ns"].as_u64(), "{trace}");
    assert!(told[1]["entry"]["Load"].is_object(), "{trace}");
    let all = lines + &host.say(&["trace", "a", "--json"]);
    for secret in [
        "dec0ad0b",
        "0badc0de",
        "195936478",
        "3737169163",
        "222,192,173,11",
    ] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}

#[test]
fn follower_is_told_what_comes_until_the_vm_goes() {
    let host = served();
    let a = host.vmm("a");
    let mut people = host.start_verb(&["trace", "a", "--follow", "--last", "50"]);
    let mut programs = host.start_verb(&["trace", "a", "--follow", "--last", "50", "--json"]);
    // What is there already: the read by which the VM was waited for, and perhaps what the broker did since by itself.
    let mut says = |words: &str| loop {
        let line = people.next_line();
        assert!(!line.is_empty(), "it ended without {words}");
        if line.contains(words) {
            break;
        }
    };
    says("vm0 loads 4 B");
    programs.next_line();
    a.read(Region::Bar0, PMC_BOOT_0, &mut [0; 2]).unwrap();
    says("vm0 loads 2 B");
    let is_it = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["entry"]["Load"]["bytes"] == 2
    };
    while !is_it(&programs.next_line()) {}
    drop(a);
    for mut follower in [people, programs] {
        let ended = follower.wait();
        assert_eq!(ended.status.code(), Some(1));
        assert!(
            text(&ended.stderr).contains("vm a: it is not connected"),
            "{}",
            text(&ended.stderr)
        );
    }
}
