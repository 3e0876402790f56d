//! SIGHUP: what the file changed is done, and nothing else.

use rustix::process::Signal;

use super::*;

#[test]
fn changed_quota_of_the_file_holds_and_what_an_operator_said_stays() {
    let mut host = two_vms();
    host.say(&["quota", "a", "--max", "32M"]);
    host.write(
        &card("")
            .vm("a", "48M", "weight = 70\nmax = \"16M\"")
            .vm("b", "48M", "low = \"8M\""),
    );
    host.signal(Signal::HUP);
    host.wait_until("the quota of b", |host| {
        host.ask(&["show", "b"])["quota"]["low"] == 8 * MIB
    });
    host.wait_until("the conflict", |host| {
        !host.told("file_conflict", None).is_empty()
    });
    let shown = host.ask(&["show", "a"]);
    assert_eq!(
        (&shown["quota"]["weight"], &shown["quota"]["max"]),
        (&json!(70), &json!(32 * MIB))
    );
    assert_eq!(shown["file_quota"]["max"], 16 * MIB);
    assert_eq!(
        host.told("file_conflict", None),
        [
            "host.toml says max 16M now and said max when an operator set 32M, which holds: vramd quota a --reset takes it back"
        ]
    );
    host.say(&["quota", "a", "--reset"]);
    assert_eq!(host.ask(&["show", "a"])["quota"]["max"], 16 * MIB);
    let said = host.stop();
    assert!(said.contains("is read: 2 changes done, 1 conflicts"), "{said}");
}

#[test]
fn file_that_is_wrong_changes_nothing_and_is_named() {
    let mut host = two_vms();
    host.write(&card("").vm("a", "48M", "weight = 0").vm("c", "48M", ""));
    host.signal(Signal::HUP);
    host.wait_until("the fault of the file", |host| {
        !host.told("file_conflict", None).is_empty()
    });
    host.write(&card("").vm("a", "48M", "weight = 60").vm("b", "48M", ""));
    host.signal(Signal::HUP);
    host.wait_until("the second file", |host| {
        host.ask(&["show", "a"])["quota"]["weight"] == 60
    });
    assert_eq!(host.names(), ["a", "b"]);
    let said = host.stop();
    assert!(
        said.contains("SIGHUP: nothing is changed: ") && said.contains("vm.weight"),
        "{said}"
    );
}

#[test]
fn vms_come_and_go_with_the_file_but_not_one_that_is_connected() {
    let host = two_vms();
    let vmm = host.vmm("a");
    host.write(&card("").vm("c", "48M", ""));
    host.signal(Signal::HUP);
    host.wait_until("c", |host| host.names().contains(&"c".to_owned()));
    host.wait_until("b", |host| !host.names().contains(&"b".to_owned()));
    assert_eq!(host.names(), ["a", "c"]);
    vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    let conflicts = host.told("file_conflict", None);
    assert!(
        conflicts.len() == 1
            && conflicts[0].contains("its VMM is connected")
            && conflicts[0].ends_with("vramd detach a"),
        "{conflicts:?}"
    );
    let _other = host.vmm("c");
    drop(vmm);
    host.wait_until("a can go", |host| host.tried(&["detach", "a"]).status.success());
    assert_eq!(host.names(), ["c"]);
}

#[test]
fn size_of_a_vm_changes_if_nobody_is_connected() {
    let host = two_vms();
    let _vmm = host.vmm("b");
    host.write(&card("").vm("a", "32M", "").vm("b", "32M", ""));
    host.signal(Signal::HUP);
    let bytes = |host: &TestHost, name: &str| {
        let vms = host.ask(&["list"])["vms"].clone();
        let found = vms.as_array().unwrap().iter().find(|vm| vm["name"] == name);
        found.map_or(Value::Null, |vm| vm["guest_vram_bytes"].clone())
    };
    host.wait_until("the size of a", |host| bytes(host, "a") == 32 * MIB);
    host.wait_until("the conflict of b", |host| {
        !host.told("file_conflict", None).is_empty()
    });
    assert_eq!(bytes(&host, "b"), 48 * MIB);
    let _vmm = host.vmm("a");
}

#[test]
fn card_changes_its_host_ram_and_nothing_else_while_it_runs() {
    let host = two_vms();
    let changed = card("host_ram = \"1G\"\npolicy = \"recency\"");
    host.write(&changed.vm("a", "48M", "weight = 50").vm("b", "48M", ""));
    host.signal(Signal::HUP);
    host.wait_until("host RAM", |host| {
        host.ask(&["list"])["gpus"][0]["host_ram_bytes"] == 1u64 << 30
    });
    let conflicts = host.told("file_conflict", None);
    assert_eq!(
        conflicts,
        ["all of [[gpu]] but host_ram changes when serve is started anew"]
    );
}

#[test]
fn name_that_an_operator_gave_a_vm_is_not_taken_over_by_the_file() {
    let host = two_vms();
    host.say(&["attach", "c", "--guest-vram", "16M"]);
    host.write(
        &card("")
            .vm("a", "48M", "weight = 50")
            .vm("b", "48M", "")
            .vm("c", "48M", ""),
    );
    host.signal(Signal::HUP);
    host.wait_until("the conflict", |host| {
        !host.told("file_conflict", None).is_empty()
    });
    assert_eq!(host.ask(&["show", "c"])["guest_vram_bytes"], 16 * MIB);
    host.say(&["detach", "c"]);
    host.say(&["attach", "c"]);
    assert_eq!(host.ask(&["show", "c"])["guest_vram_bytes"], 48 * MIB);
}
