//! An operator's day: three VMs share a card, one takes all that it sees, and is put in its place. What `top` shows on a terminal, what
//! verbs say, events, metrics and `why` tell the same story, and what the VMs compute is right at the end.

use super::host::{Config, MIB, TestHost, check_end, triad};
use super::terminal::Terminal;
use super::top::top;

/// `serve` with a card of 96M, and VMs that want more than it has: `web` and `batch` 40M each, `leaky` all of its 80M.
fn three_vms() -> TestHost {
    let config = Config::new("").gpu("gpu0", "96M", "");
    let config = config.vm("web", "56M", "").vm("batch", "56M", "");
    TestHost::serving(&config.vm("leaky", "80M", ""))
}

/// A metric of a VM.
fn metric(host: &TestHost, name: &str, vm: &str) -> u64 {
    let text = host.say(&["metrics"]);
    let start = format!("{name}{{gpu=\"gpu0\",vm=\"{vm}\"}} ");
    let found = text.lines().find_map(|line| line.strip_prefix(&start));
    let value = found.unwrap_or_else(|| panic!("no {start} in\n{text}"));
    value.parse::<f64>().unwrap() as u64
}

#[test]
fn leak_is_seen_bounded_and_told_of_while_the_others_compute_what_is_right() {
    let host = three_vms();
    let mut terminal = Terminal::new();
    let mut top = top(&terminal, &host);
    terminal.wait_for(&["leaky ", "absent"]);
    // One that takes all it sees, beside two that use 36M each and would not end.
    let input = host.at("input");
    std::fs::write(&input, [7; 100_000]).unwrap();
    host.write_vm("leaky", "vramd.workload=files vramd.rounds=100000", &[&input]);
    let mut leaky = host.start_vm("leaky", &["--no-kvm"]);
    let mut others = ["web", "batch"].map(|vm| host.run(vm, &triad(36, 100_000)));
    see_and_bound_the_leak(&host, &mut terminal);
    others.iter_mut().for_each(|vm| drop(vm.terminate()));
    // The same two, beside it still, with work that ends and is compared.
    for vm in ["web", "batch"] {
        host.wait_until("it has gone", |host| !host.is_connected(vm));
    }
    let (web, batch) = (host.run("web", &triad(36, 8)), host.run("batch", &triad(36, 60)));
    send_away_and_bring_back(&host, &mut terminal);
    have_a_guest_for_a_while(&host, &mut terminal);
    compare_what_is_told(&host);
    leaky.terminate();
    check_end(web);
    check_end(batch);
    terminal.wait_for(&["leaky ", "absent"]);
    terminal.press("q");
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
}

/// Its quota is lowered, and the others have their memory back.
fn see_and_bound_the_leak(host: &TestHost, terminal: &mut Terminal) {
    // Part of it is in host RAM. Whether it moves in that second or only wants to is chance.
    terminal.wait_for(&["leaky ", "▒"]);
    host.wait_until("somebody lost memory for leaky", |host| {
        let spilled_for = host.ask(&["show", "web"])["account"]["spilled_for"].clone();
        let mut spilled_for = spilled_for.as_array().unwrap().iter();
        spilled_for.any(|of| of["vm"] == "leaky")
    });
    let why = host.say(&["why", "web"]);
    assert!(why.contains("were moved out for leaky"), "{why}");
    host.say(&["quota", "leaky", "--max", "4M"]);
    terminal.wait_for(&["leaky ", "4M", "▒"]);
    host.wait_until("leaky has 4M", |host| {
        host.bytes("leaky", "resident_bytes") <= 4 * MIB
    });
    for vm in ["web", "batch"] {
        host.wait_until("the others have theirs", |host| {
            host.bytes(vm, "wanted_bytes") == 0
        });
    }
}

/// One goes to host RAM whole, works on from there, and comes back.
fn send_away_and_bring_back(host: &TestHost, terminal: &mut Terminal) {
    host.wait_until("batch has its memory", |host| {
        host.bytes("batch", "resident_bytes") >= 36 * MIB
    });
    let said = host.say(&["freeze", "batch"]);
    assert!(said.starts_with("batch is frozen: 0 in VRAM, "), "{said}");
    terminal.wait_for(&["batch ", "frozen"]);
    assert_eq!(metric(host, "vramd_vm_resident_bytes", "batch"), 0);
    host.say(&["thaw", "batch"]);
    host.wait_until("batch is back", |host| {
        host.bytes("batch", "resident_bytes") >= 36 * MIB
    });
}

/// A fourth comes, does its work, and goes.
fn have_a_guest_for_a_while(host: &TestHost, terminal: &mut Terminal) {
    host.say(&["attach", "late", "--guest-vram", "16M"]);
    terminal.wait_for(&["late ", "absent"]);
    check_end(host.run("late", &triad(4, 2)));
    host.wait_until("late has gone", |host| !host.is_connected("late"));
    host.say(&["detach", "late"]);
}

/// Events, metrics, accounts and lists say what was done.
fn compare_what_is_told(host: &TestHost) {
    let told = |vm: &str, kind: &str| host.told(kind, Some(vm));
    assert_eq!(told("leaky", "quota_changed"), ["quota: max max to 4M"]);
    assert_eq!(
        told("batch", "hold_changed"),
        ["frozen: its memory goes to host RAM", "its memory may come back"]
    );
    assert_eq!(told("batch", "attached").len(), 2);
    for kind in ["listed", "attached", "detached", "unlisted"] {
        assert_eq!(told("late", kind).len(), 1, "{kind}");
    }
    assert_eq!(metric(host, "vramd_vm_quota_max_bytes", "leaky"), 4 * MIB);
    let shown = host.ask(&["show", "batch"]);
    let spilled_out = shown["account"]["spilled_out_bytes"].as_u64().unwrap();
    assert!(spilled_out >= 36 * MIB, "{shown}");
    assert!(metric(host, "vramd_vm_spilled_out_bytes_total", "batch") >= spilled_out);
    assert_eq!(host.names(), ["batch", "leaky", "web"]);
}
