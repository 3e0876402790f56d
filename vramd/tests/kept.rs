//! What operators say of a real `serve` outlasts it, VMs come and go, and the host's file is read again.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;
#[path = "kept/reload.rs"]
mod reload;

use host::{Config, MIB, TestHost};
use process::complaint;
use serde_json::{Value, json};
use vfio_user_server::Region;

/// A card of 64M; `more` are lines of its section.
fn card(more: &str) -> Config {
    Config::new("").gpu("g", "64M", more)
}

/// `serve` with VMs `a` and `b` of 48M each on that card.
fn two_vms() -> TestHost {
    TestHost::serving(&card("").vm("a", "48M", "weight = 50").vm("b", "48M", ""))
}

#[test]
fn quota_outlasts_the_broker_and_is_shown_beside_the_files() {
    let mut host = two_vms();
    host.say(&["quota", "a", "--max", "32M", "--min", "4M"]);
    host.restart();
    let shown = host.ask(&["show", "a"]);
    assert_eq!(
        shown["quota"],
        json!({"min": 4 * MIB, "low": 0, "high": "max", "max": 32 * MIB, "weight": 50})
    );
    assert_eq!(
        shown["file_quota"],
        json!({"min": 0, "low": 0, "high": "max", "max": "max", "weight": 50})
    );
    assert_eq!(
        (&shown["quota_source"], &shown["source"]),
        (&json!("control"), &json!("file"))
    );
    let page = host.say(&["show", "a"]);
    assert!(
        page.contains("max 32M, weight 50 (changed; host.toml: min 0, max max)"),
        "{page}"
    );
    host.say(&["quota", "a", "--reset"]);
    host.restart();
    let shown = host.ask(&["show", "a"]);
    assert_eq!(
        (&shown["quota"], &shown["quota_source"]),
        (&shown["file_quota"], &json!("file"))
    );
    assert!(host.say(&["show", "a"]).contains("weight 50 (host.toml)"));
}

#[test]
fn hold_outlasts_the_broker() {
    let mut host = two_vms();
    host.say(&["freeze", "a"]);
    host.say(&["suspend", "b"]);
    host.restart();
    let vms = host.ask(&["list"])["vms"].clone();
    assert_eq!(vms[0]["hold"], json!({"vram_bytes": 0, "is_suspended": false}));
    assert_eq!(vms[1]["hold"], json!({"vram_bytes": null, "is_suspended": true}));
    let _vmm = host.vmm("a");
    assert!(host.say(&["list"]).contains("frozen"));
}

#[test]
fn vm_is_attached_connects_outlasts_the_broker_and_is_detached() {
    let mut host = two_vms();
    let said = host.say(&["attach", "c", "--guest-vram", "16M", "--max", "8M"]);
    assert!(
        said.starts_with("c: 16M guest VRAM on g at ") && said.contains("vfio-user-pci"),
        "{said}"
    );
    let vmm = host.vmm("c");
    assert_eq!(host.names(), ["a", "b", "c"]);
    assert_eq!(
        host.told("listed", None),
        [format!("given a place: {}", host.at("c.sock").display())]
    );
    let shown = host.ask(&["show", "c"]);
    assert_eq!(
        (&shown["source"], &shown["file_quota"]),
        (&json!("control"), &Value::Null)
    );
    assert_eq!(
        (&shown["quota"]["max"], &shown["quota_source"]),
        (&json!(8 * MIB), &json!("file"))
    );
    let refused = host.refused(&["detach", "c"]);
    assert!(
        refused.contains("its VMM is connected: its guest would lose its GPU; see `vramd detach c --force`"),
        "{refused}"
    );
    drop(vmm);
    host.restart();
    assert_eq!(host.names(), ["a", "b", "c"]);
    let vmm = host.vmm("c");
    let said = host.say(&["detach", "c", "--force"]);
    assert_eq!(said, "c is detached: its VMM was hung up on\n");
    assert!(vmm.read(Region::Bar0, 0, &mut [0; 4]).is_err());
    assert_eq!(
        host.told("unlisted", None),
        ["its place was taken, and its VMM hung up on"]
    );
    assert!(!host.at("c.sock").exists());
    assert!(host.refused(&["show", "c"]).contains("there is no vm \"c\""));
    host.restart();
    assert_eq!(host.names(), ["a", "b"]);
}

#[test]
fn vm_of_the_file_that_was_detached_stays_so_until_it_is_attached_by_its_name() {
    let mut host = two_vms();
    host.say(&["quota", "a", "--max", "32M"]);
    let said = host.say(&["detach", "a"]);
    assert!(
        said.ends_with("vramd attach a has it again as host.toml has it\n"),
        "{said}"
    );
    host.restart();
    assert_eq!(host.names(), ["b"]);
    let refused = host.refused(&["quota", "a", "--max", "16M"]);
    assert!(
        refused.contains("vm a is detached; see `vramd attach a`"),
        "{refused}"
    );
    let refused = host.refused(&["attach", "a", "--guest-vram", "16M"]);
    assert!(refused.contains("it is attached by its name alone"), "{refused}");
    host.say(&["attach", "a"]);
    let _vmm = host.vmm("a");
    let shown = host.ask(&["show", "a"]);
    assert_eq!(
        (&shown["guest_vram_bytes"], &shown["quota"]["max"]),
        (&json!(48 * MIB), &json!(32 * MIB))
    );
}

#[test]
fn vm_that_cannot_be_served_is_refused_with_what_would_be_and_nothing_is_left_of_it() {
    let mut host = two_vms();
    host.say(&["detach", "b"]);
    check_refusals(&host);
    let taken = host.at("b.sock");
    let refused = host.refused(&[
        "attach",
        "c",
        "--guest-vram",
        "16M",
        "--socket",
        taken.to_str().unwrap(),
    ]);
    assert!(
        refused.contains("another vm, or control, has the socket"),
        "{refused}"
    );
    assert_eq!(host.names(), ["a"]);
    host.restart();
    assert_eq!(host.names(), ["a"]);
    assert!(!host.at("c.sock").exists());
}

fn check_refusals(host: &TestHost) {
    let elsewhere = std::env::temp_dir().join("x.sock");
    let cases: [(&[&str], &str); 11] = [
        (&["a", "--guest-vram", "16M"], "it is attached by its name alone"),
        (&["c"], "guest_vram_bytes: it is needed"),
        (
            &["c d", "--guest-vram", "16M"],
            "name: \"c d\" is not 1 to 32 letters",
        ),
        (
            &["c", "--guest-vram", "1M"],
            "guest_vram_bytes: 1M is not a multiple of 1M from 8M",
        ),
        (
            &["c", "--guest-vram", "16M", "--gpu", "h"],
            "there is no gpu \"h\"; there are g",
        ),
        (&["c", "--guest-vram", "16M", "--chunk", "3M"], "vm: chunk"),
        (
            &["c", "--guest-vram", "16M", "--min", "9M", "--max", "8M"],
            "min 9437184 is above max 8388608",
        ),
        (
            &["c", "--guest-vram", "60G"],
            "does not fit beside the VMs that are connected: at most ",
        ),
        (
            &["c", "--guest-vram", "16M", "--min", "17M"],
            "at most 16M, which is all of it",
        ),
        (
            &[
                "c",
                "--guest-vram",
                "16M",
                "--socket",
                elsewhere.to_str().unwrap(),
            ],
            "serve may make no socket in",
        ),
        (
            &["c", "--guest-vram", "16M", "--socket-mode", "0777"],
            "socket_mode: \"0777\" is not \"0600\"",
        ),
    ];
    for (arguments, named) in cases {
        let refused = host.refused(&[&["attach"], arguments].concat());
        // `a` is served; the others are new.
        let named = match arguments[0] {
            "a" => "there is a vm a already; see `vramd show a`",
            _ => named,
        };
        assert!(refused.contains(named), "{arguments:?}: {refused}");
    }
}

#[test]
fn host_ram_of_a_card_is_changed_checked_and_kept() {
    let mut host = two_vms();
    let _vmms = (host.vmm("a"), host.vmm("b"));
    let refused = host.refused(&["quota", "--gpu", "g", "--host-ram", "1M"]);
    assert!(
        refused.contains("guest VRAM of all VMs (96M) exceeds usable VRAM"),
        "{refused}"
    );
    let said = host.say(&["quota", "--gpu", "g", "--host-ram", "64M"]);
    assert_eq!(said, "g has 64M of host RAM for its VMs, it had 4G\n");
    let refused = host.refused(&["attach", "c", "--guest-vram", "64M"]);
    assert!(refused.contains("with host_ram 64M"), "{refused}");
    host.say(&["quota", "--gpu", "g", "--host-ram", "1G"]);
    host.say(&["attach", "c", "--guest-vram", "64M"]);
    let _vmm = host.vmm("c");
    drop(_vmm);
    host.restart();
    let gpu = host.ask(&["list"])["gpus"][0].clone();
    assert_eq!(
        (&gpu["host_ram_bytes"], &gpu["file_host_ram_bytes"]),
        (&json!(1u64 << 30), &json!(4u64 << 30))
    );
    let refused = host.refused(&["quota", "--gpu", "h", "--host-ram", "1G"]);
    assert!(
        refused.contains("there is no gpu \"h\"; there are g"),
        "{refused}"
    );
    complaint(&["quota", "a", "--gpu", "g", "--host-ram", "1G"], 2);
    complaint(&["quota", "--gpu", "g"], 2);
    complaint(&["quota"], 2);
}

#[test]
fn what_cannot_be_kept_is_refused_and_not_done() {
    let host = two_vms();
    // Nothing can be written where the next state would be.
    std::fs::create_dir(host.at("control.state.json.new")).unwrap();
    for arguments in [
        &["quota", "a", "--max", "16M"][..],
        &["freeze", "a"],
        &["attach", "c", "--guest-vram", "16M"],
        &["detach", "b"],
        &["quota", "--gpu", "g", "--host-ram", "1G"],
    ] {
        let refused = host.refused(arguments);
        assert!(
            refused.contains("it cannot be kept in the state file: "),
            "{arguments:?}: {refused}"
        );
    }
    let vms = host.ask(&["list"])["vms"].clone();
    assert_eq!(vms[0]["quota"]["max"], "max");
    assert_eq!(vms[0]["hold"], json!({"vram_bytes": null, "is_suspended": false}));
    assert_eq!(host.names(), ["a", "b"]);
    assert!(!host.at("c.sock").exists());
    std::fs::remove_dir(host.at("control.state.json.new")).unwrap();
    host.say(&["quota", "a", "--max", "16M"]);
}

#[test]
fn state_file_that_is_none_or_anothers_keeps_serve_from_starting() {
    let mut host = two_vms();
    host.stop();
    let state = host.at("control.state.json");
    std::fs::write(&state, "{\"version\": 7}").unwrap();
    let said = host.refused_start();
    assert!(said.contains("control.state.json: it is of version 7"), "{said}");
    std::fs::remove_file(&state).unwrap();
    host.start();
    let other = TestHost::new(&Config::new(&format!("state = {state:?}")).gpu("g", "64M", ""));
    let said = other.refused_start();
    assert!(
        said.contains("is used by another vramd serve: name another by control.state"),
        "{said}"
    );
}

#[test]
fn operators_who_change_everything_at_once_leave_what_the_last_of_each_said() {
    let mut host = two_vms();
    std::thread::scope(|scope| {
        for round in 0..4u32 {
            let host = &host;
            scope.spawn(move || {
                let name = format!("n{round}");
                for weight in 1..6u32 {
                    let weight = (weight * 10 + round).to_string();
                    host.say(&["quota", "a", "--weight", &weight]);
                    host.say(&["attach", &name, "--guest-vram", "8M"]);
                    host.say(&["quota", &name, "--weight", &weight]);
                    host.say(&["detach", &name]);
                }
                host.say(&["attach", &name, "--guest-vram", "8M"]);
            });
        }
    });
    let before = host.ask(&["list"])["vms"].clone();
    assert_eq!(host.names(), ["a", "b", "n0", "n1", "n2", "n3"]);
    host.restart();
    assert_eq!(host.ask(&["list"])["vms"], before);
}
