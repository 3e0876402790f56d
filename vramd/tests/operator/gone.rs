//! One card of several is lost: the others go on, and are answered for.

use std::time::{Duration, Instant};

use serde_json::json;
use vfio_user_server::Region;

use super::process::{Process, text};
use super::{Served, WAIT};

#[test]
fn card_that_is_lost_is_named_and_the_others_are_answered_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let mut card = Process::start(&["gpu", "--socket", socket.to_str().unwrap(), "--vram", "64M"]);
    card.first_line();
    let mut served = Served::with_second_card("", &format!("vfio-user:{}", socket.display()));
    let (a, _c) = (served.vmm("a"), served.vmm("c"));
    assert_eq!(served.ask(&["list"])["gone"], json!([]));
    card.kill();
    let start = Instant::now();
    let listed = loop {
        let listed = served.ask(&["list"]);
        if listed["gone"] != json!([]) {
            break listed;
        }
        assert!(start.elapsed() < WAIT, "{listed}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let names = |of: &str| {
        let all = listed[of].as_array().unwrap();
        all.iter().map(|one| one["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names("gpus"), names("vms")),
        (vec![json!("g0")], vec![json!("a"), json!("b")])
    );
    let gone = &listed["gone"][0];
    assert_eq!((&gone["name"], &gone["vms"]), (&json!("g1"), &json!(["c"])));
    let reason = gone["reason"].as_str().unwrap();
    assert!(reason.starts_with("the broker has ended: "), "{reason}");
    // For people, and for one card.
    let table = served.told(&["list"]);
    assert!(
        table.contains("\ngpu g1 is gone, with its VMs (c): the broker has ended"),
        "{table}"
    );
    assert_eq!(served.ask(&["list", "--gpu", "g1"])["gone"][0]["name"], "g1");
    assert_eq!(served.ask(&["list", "--gpu", "g0"])["gone"], json!([]));
    let metrics = served.told(&["metrics"]);
    assert!(metrics.contains("vramd_gpu_up{gpu=\"g0\"} 1\n"), "{metrics}");
    assert!(metrics.contains("vramd_gpu_up{gpu=\"g1\"} 0\n"), "{metrics}");
    assert!(
        !metrics.contains("vm=\"c\"") && metrics.contains("vm=\"a\""),
        "{metrics}"
    );
    let events = served.ask(&["events"]);
    assert_eq!(events["gone"][0]["name"], "g1");
    assert!(
        events["events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["vm"] == "a"),
        "{events}"
    );
    assert!(served.told(&["inspect"]).contains("gpu g1 is gone"));
    let said = served.refused(&["show", "c"], 1);
    assert!(said.contains("the broker has ended"), "{said}");
    // The other card's VM goes on, and can be changed.
    a.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    served.told(&["quota", "a", "--max", "20M"]);
    let ended = served.broker.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert!(
        text(&ended.stderr).contains("gpu g1: the broker has ended"),
        "{}",
        text(&ended.stderr)
    );
}
