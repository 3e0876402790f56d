//! The state of a core at work as a tree: what it names, and that it can be written and read.
#![allow(clippy::unwrap_used, reason = "a test ends where it is wrong")]

use integration::bench::{Bench, gpu_config, vm_config};
use integration::rig::Rig;
use vgpu::inspect::{Node, Value};
use vgpu::{Event, Quota, VmId};

const VM: VmId = VmId(0);
const DATA_BYTES: u64 = 8 << 20;

/// Two VMs; the first has a channel and data in VRAM.
fn host() -> Bench {
    let mut bench = Bench::with(48, gpu_config(), &[vm_config(24), vm_config(24)]);
    bench.world.work_between_actions = 2;
    bench.run(VM, |bus| {
        let mut rig = Rig::start(bus, DATA_BYTES);
        rig.open(bus, 0);
        assert!(rig.fill(bus, 0, 5, DATA_BYTES));
    });
    bench
}

fn look(bench: &Bench, path: &str) -> Option<Node> {
    bench.world.manager.inspect(bench.world.now, path)
}

/// The value at a path as people see it.
fn value(bench: &Bench, path: &str) -> String {
    let node = look(bench, path).unwrap_or_else(|| panic!("nothing is at {path}"));
    node.value_at(path)
        .unwrap_or_else(|| panic!("a group is at {path}"))
        .to_string()
}

fn names(node: &Node) -> Vec<&str> {
    match node {
        Node::Group(parts) => parts.iter().map(|(name, _)| name.as_str()).collect(),
        Node::Leaf(_) => Vec::new(),
    }
}

#[test]
fn tree_names_card_vms_and_settings() {
    let bench = host();
    let shown: Vec<(&str, String)> = [
        "phase",
        "layout/vram",
        "card/lanes/flush/groups",
        "vms/vm0/name",
        "vms/vm0/quota/max",
        "vms/vm0/quota/weight",
        "vms/vm0/chunks/guest_vram",
        "vms/vm0/chunks/chunk",
        "vms/vm0/ram/size",
        "vms/vm0/channels/0/state",
        "vms/vm0/units/mmu/vram",
        "vms/vm0/units/pfifo/channel_table_entries",
        "accounts/vm0/suspensions",
        "vms/vm0/head",
        "vms/vm1/chunks/count/unbacked",
        "vms/vm1/chunks/resident",
        "move",
        "bus_addresses/maps_left",
        "settings/suspend_budget",
        "settings/batch",
        "settings/part",
    ]
    .into_iter()
    .map(|path| (path, value(&bench, path)))
    .collect();
    assert_eq!(
        shown.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(),
        [
            "up",
            "48 MiB",
            "0",
            "bench",
            "max",
            "100",
            "24 MiB",
            "2 MiB",
            "16 MiB",
            "may run",
            "24 MiB",
            "1",
            "0",
            "not blocked",
            "12",
            "0 bytes",
            "none",
            "no bound",
            "20.000000 ms",
            "8 MiB",
            "2 MiB",
        ],
        "{shown:?}"
    );
}

#[test]
fn move_in_progress_and_what_waits_for_it_are_shown() {
    let mut bench = host();
    bench.is_checked = false;
    let quota = Quota {
        max: 0,
        ..Quota::default()
    };
    bench.world.submit(Event::SetQuota { vm: VM, quota });
    bench.turn_until("the start of a move", |bench| look(bench, "move/stage").is_some());
    assert_eq!(value(&bench, "move/vm"), "vm0");
    assert_eq!(value(&bench, "move/direction"), "Spill");
    let node = look(&bench, "move").unwrap();
    for part in ["number", "cause", "stage", "chunks"] {
        assert!(
            node.at("move").is_some_and(|node| names(node).contains(&part)),
            "{node}"
        );
    }
    bench.turn_until("the end of the move", |bench| {
        look(bench, "move/stage").is_none() && value(bench, "vms/vm0/chunks/resident") == "0 bytes"
    });
    assert_ne!(value(&bench, "vms/vm0/chunks/spilled"), "0 bytes");
}

#[test]
fn chunks_are_listed_to_whoever_asks_for_them() {
    let bench = host();
    let whole = look(&bench, "").unwrap();
    assert!(matches!(
        whole.at("vms/vm0/chunks/list"),
        Some(Node::Leaf(Value::Quantity(12, _)))
    ));
    let list = look(&bench, "vms/vm0/chunks/list").unwrap();
    let runs = list.at("vms/vm0/chunks/list").unwrap();
    let text = runs.to_string();
    assert!(
        text.contains("resident, writable") && text.contains("unbacked"),
        "{text}"
    );
    assert!(
        names(runs)[0].starts_with("0-") && text.contains("-11: "),
        "{text}"
    );
    // Nothing else is in it.
    assert_eq!(
        (names(&list), names(list.at("vms").unwrap())),
        (vec!["vms"], vec!["vm0"])
    );
    assert!(look(&bench, "vms/vm7").is_none());
}

#[test]
fn every_number_has_a_unit_and_the_tree_reads_as_it_was_written() {
    let bench = host();
    for path in [
        "",
        "vms/vm0/chunks/list",
        "card/channels",
        "card/arena/free_ranges",
    ] {
        let node = look(&bench, path).unwrap();
        let text = serde_json::to_string(&node).unwrap();
        // Reading refuses numbers without units.
        assert_eq!(serde_json::from_str::<Node>(&text).unwrap(), node, "{path}");
        assert!(text.len() < 64 << 10, "{path}: {}", text.len());
    }
}
