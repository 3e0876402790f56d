//! What an operator holds back from real VMs of a real `serve`: who works goes on working, and what it computes is right.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use host::{Config, MIB, TestHost, check_end, triad};
use process::Process;
use rustix::process::Signal;
use serde_json::{Value, json};

/// `serve` with a card of 128M and VMs `a`, `b` and `c` of 64M each.
fn three_vms() -> TestHost {
    let config = Config::new("").gpu("g", "128M", "");
    let config = ["a", "b", "c"]
        .into_iter()
        .fold(config, |config, vm| config.vm(vm, "64M", ""));
    TestHost::serving(&config)
}

/// Starts a VM that uses 40M.
fn run(host: &TestHost, vm: &str) -> Process {
    host.run(vm, &triad(40, 16))
}

/// Bytes of the VM in VRAM and in host RAM.
fn places(host: &TestHost, vm: &str) -> (u64, u64) {
    let usage = &host.ask(&["show", vm])["usage"];
    let bytes = |name: &str| usage[name].as_u64().unwrap_or(0);
    (bytes("resident_bytes"), bytes("spilled_bytes"))
}

/// Waits until the VM has its memory.
fn wait_for_memory(host: &TestHost, vm: &str) {
    host.wait_until("it has its memory", |host| {
        let (resident, spilled) = places(host, vm);
        resident + spilled >= 40 * MIB
    });
}

#[test]
fn frozen_vm_works_on_from_host_ram_and_comes_back_when_thawed() {
    let host = three_vms();
    let a = run(&host, "a");
    wait_for_memory(&host, "a");
    let said = host.say(&["freeze", "a"]);
    assert!(said.starts_with("a is frozen: 0 in VRAM, "), "{said}");
    let (resident, spilled) = places(&host, "a");
    assert_eq!(resident, 0);
    assert!(spilled >= 40 * MIB, "{spilled}");
    assert!(host.say(&["list"]).contains("frozen"));
    let before = host.ask(&["show", "a"])["account"]["link_bytes"].clone();
    let refused = host.refused(&["refill", "a"]);
    assert!(
        refused.contains("it is frozen; thaw it first") && refused.contains("vramd thaw a"),
        "{refused}"
    );
    assert_eq!(
        host.ask(&["show", "a"])["account"]["link_bytes"],
        before,
        "something came back"
    );
    let thawed = host.ask(&["thaw", "a"]);
    assert_eq!(
        thawed["hold"],
        json!({ "vram_bytes": null, "is_suspended": false })
    );
    assert_eq!(thawed["usage"]["wanted_bytes"], 0);
    assert!(thawed["usage"]["resident_bytes"].as_u64() >= Some(40 * MIB));
    check_end(a);
    let texts = host.told("hold_changed", None);
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0], "frozen: its memory goes to host RAM");
}

#[test]
fn what_is_spilled_stays_away_until_it_is_called_back() {
    let host = three_vms();
    let a = run(&host, "a");
    wait_for_memory(&host, "a");
    let (resident, _) = places(&host, "a");
    let refused = host.refused(&["spill", "a", "1G"]);
    assert!(refused.contains("at most that much can be spilled"), "{refused}");
    let spilled = host.ask(&["spill", "a", "16M"]);
    let held = spilled["usage"]["resident_bytes"].as_u64().unwrap();
    assert!(
        held <= resident - 16 * MIB && held >= resident - 18 * MIB,
        "{held} of {resident}"
    );
    assert_eq!(spilled["hold"]["vram_bytes"], resident - 16 * MIB);
    let back = host.ask(&["refill", "a"]);
    assert_eq!(back["usage"]["wanted_bytes"], 0);
    check_end(a);
}

#[test]
fn suspended_vm_stands_still_and_goes_on_where_it_was() {
    let host = three_vms();
    let a = run(&host, "a");
    wait_for_memory(&host, "a");
    let said = host.say(&["suspend", "a"]);
    assert!(said.starts_with("a is suspended"), "{said}");
    check_end(run(&host, "b"));
    // The other one has done all of its work meanwhile; this one began before it and has not ended.
    assert!(host.is_connected("a"), "it ended while it was suspended");
    host.say(&["resume", "a"]);
    check_end(a);
}

#[test]
fn hold_of_a_vm_that_is_not_connected_is_there_when_it_connects() {
    let host = three_vms();
    let said = host.say(&["freeze", "c"]);
    assert!(said.contains("this holds when it connects"), "{said}");
    let refused = host.refused(&["spill", "b", "1M"]);
    assert!(refused.contains("it is not connected"), "{refused}");
    let c = run(&host, "c");
    wait_for_memory(&host, "c");
    assert_eq!(places(&host, "c").0, 0);
    check_end(c);
    // It holds for the next one of that name, too.
    assert_eq!(host.ask(&["show", "c"])["hold"]["vram_bytes"], 0);
    host.say(&["thaw", "c"]);
    assert_eq!(host.ask(&["show", "c"])["hold"]["vram_bytes"], Value::Null);
}

/// A VMM that stands still is a guest that rests. Nothing is asked of it, because its windows are messages.
#[test]
fn vm_that_rests_lends_what_another_wants_and_is_not_said_to_lack_it() {
    let settings = "windows = \"trapped\"\n[gpu.settings]\nlends_after = \"100ms\"";
    let config = Config::new("").gpu("g", "64M", settings);
    let config = config.vm("a", "64M", "").vm("b", "64M", "");
    let host = TestHost::serving(&config);
    let a = host.run("a", &triad(40, 16));
    wait_for_memory(&host, "a");
    a.signal(Signal::STOP);
    let b = host.run("b", &triad(40, 10_000));
    host.wait_until("all that b uses is in VRAM", |host| {
        let (resident, spilled) = places(host, "b");
        resident >= 40 * MIB && spilled == 0
    });
    let usage = &host.ask(&["show", "a"])["usage"];
    assert_eq!(usage["lends"], true, "{usage}");
    assert!(usage["wanted_bytes"].as_u64() > Some(20 * MIB), "{usage}");
    let said = host.say(&["why", "a"]);
    assert!(said.contains("it rests, and lends"), "{said}");
    a.signal(Signal::CONT);
    host.wait_until("a has its half again", |host| {
        host.ask(&["show", "a"])["usage"]["lends"] == false && places(host, "a").0 >= 20 * MIB
    });
    check_end(a);
    drop(b);
}
