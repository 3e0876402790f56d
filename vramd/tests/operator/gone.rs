//! One card of several is lost: the others go on, and are answered for.

use serde_json::json;
use vfio_user_server::Region;

use super::first_card;
use super::host::TestHost;
use super::process::Process;

#[test]
fn card_that_is_lost_is_named_and_the_others_are_answered_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let mut card = Process::start(&["gpu", "--socket", socket.to_str().unwrap(), "--vram", "64M"]);
    card.next_line();
    let config = first_card("").device("g1", &format!("vfio-user:{}", socket.display()), "");
    let mut host = TestHost::serving(&config.vm("c", "48M", ""));
    let (a, _c) = (host.vmm("a"), host.vmm("c"));
    assert_eq!(host.ask(&["list"])["gone"], json!([]));
    card.kill();
    let listed = host.wait_for("its card is gone", |host| {
        let listed = host.ask(&["list"]);
        (listed["gone"] != json!([])).then_some(listed)
    });
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
    let table = host.say(&["list"]);
    assert!(
        table.contains("\ngpu g1 is gone, with its VMs (c): the broker has ended"),
        "{table}"
    );
    assert_eq!(host.ask(&["list", "--gpu", "g1"])["gone"][0]["name"], "g1");
    assert_eq!(host.ask(&["list", "--gpu", "g0"])["gone"], json!([]));
    let metrics = host.say(&["metrics"]);
    assert!(metrics.contains("vramd_gpu_up{gpu=\"g0\"} 1\n"), "{metrics}");
    assert!(metrics.contains("vramd_gpu_up{gpu=\"g1\"} 0\n"), "{metrics}");
    assert!(
        !metrics.contains("vm=\"c\"") && metrics.contains("vm=\"a\""),
        "{metrics}"
    );
    let events = host.ask(&["events"]);
    assert_eq!(events["gone"][0]["name"], "g1");
    assert!(
        events["events"]
            .as_array()
            .unwrap()
            .iter()
            .any(|event| event["vm"] == "a"),
        "{events}"
    );
    assert!(host.say(&["inspect"]).contains("gpu g1 is gone"));
    let said = host.refused(&["show", "c"]);
    assert!(said.contains("the broker has ended"), "{said}");
    // The other card's VM goes on, and can be changed.
    a.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    host.say(&["quota", "a", "--max", "20M"]);
    let said = host.stop();
    assert!(said.contains("gpu g1: the broker has ended"), "{said}");
}
