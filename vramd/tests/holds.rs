//! What an operator holds back from real VMs of a real `serve`: who works goes on working, and what it computes is right.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use process::{Process, complaint, json, output, text};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// No state of a VM is waited for longer.
const WAIT: Duration = Duration::from_secs(60);

/// `serve` with a card of 128M and VMs `a`, `b` and `c` of 64M each.
struct Host {
    folder: tempfile::TempDir,
    _broker: Process,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = format!(
            "[control]\nsocket = {:?}\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"128M\"\n",
            at("control.sock")
        );
        for vm in ["a", "b", "c"] {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"g\"\nsocket = {socket:?}\nguest_vram = \"64M\"\nram = \"1G\"\n"
            );
            let file = format!(
                "name = \"{vm}\"\nmemory = \"128M\"\noptions = \"vramd.workload=triad vramd.footprint_kib=40960 \
                 vramd.rounds=16\"\n[vgpu]\nsocket = {socket:?}\n"
            );
            std::fs::write(at(&format!("{vm}.toml")), file).unwrap();
        }
        std::fs::write(at("host.toml"), config).unwrap();
        let mut broker = Process::start(&["serve", "--config", at("host.toml").to_str().unwrap()]);
        broker.first_line();
        Host {
            folder,
            _broker: broker,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the VM of a name.
    fn run(&self, vm: &str) -> Process {
        let file = self.at(&format!("{vm}.toml"));
        Process::start(&["run", "--no-kvm", "--json", file.to_str().unwrap()])
    }

    /// What a verb prints.
    fn say(&self, arguments: &[&str]) -> String {
        let socket = self.at("control.sock");
        let output = output(&[arguments, &["--control", socket.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let socket = self.at("control.sock");
        complaint(&[arguments, &["--control", socket.to_str().unwrap()]].concat(), 1)
    }

    /// Bytes of the VM in VRAM and in host RAM.
    fn places(&self, vm: &str) -> (u64, u64) {
        let usage = &self.ask(&["show", vm])["usage"];
        let bytes = |name: &str| usage[name].as_u64().unwrap_or(0);
        (bytes("resident_bytes"), bytes("spilled_bytes"))
    }

    /// Waits until the VM has its memory.
    fn wait_for_memory(&self, vm: &str) {
        let start = Instant::now();
        loop {
            let (resident, spilled) = self.places(vm);
            if resident + spilled >= 40 * MIB {
                return;
            }
            assert!(start.elapsed() < WAIT, "{vm} has {resident} and {spilled} bytes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Its results were compared with a calculation on the CPU, and were right.
fn check_end(mut vm: Process) {
    let output = vm.wait();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&output)["end"], "the workload ended");
}

#[test]
fn frozen_vm_works_on_from_host_ram_and_comes_back_when_thawed() {
    let host = Host::new();
    let a = host.run("a");
    host.wait_for_memory("a");
    let said = host.say(&["freeze", "a"]);
    assert!(said.starts_with("a is frozen: 0 in VRAM, "), "{said}");
    let (resident, spilled) = host.places("a");
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
    let events = host.ask(&["events"]);
    let texts: Vec<_> = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["kind"] == "hold_changed")
        .collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(texts[0]["text"], "frozen: its memory goes to host RAM");
}

#[test]
fn what_is_spilled_stays_away_until_it_is_called_back() {
    let host = Host::new();
    let a = host.run("a");
    host.wait_for_memory("a");
    let (resident, _) = host.places("a");
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
    let host = Host::new();
    let a = host.run("a");
    host.wait_for_memory("a");
    let said = host.say(&["suspend", "a"]);
    assert!(said.starts_with("a is suspended"), "{said}");
    let mut b = host.run("b");
    let output = b.wait();
    assert!(output.status.success(), "{}", text(&output.stderr));
    // The other one has done all of its work meanwhile; this one began before it and has not ended.
    let a_is_there = !host.ask(&["show", "a"])["usage"].is_null();
    assert!(a_is_there, "it ended while it was suspended");
    host.say(&["resume", "a"]);
    check_end(a);
}

#[test]
fn hold_of_a_vm_that_is_not_connected_is_there_when_it_connects() {
    let host = Host::new();
    let said = host.say(&["freeze", "c"]);
    assert!(said.contains("this holds when it connects"), "{said}");
    let refused = host.refused(&["spill", "b", "1M"]);
    assert!(refused.contains("it is not connected"), "{refused}");
    let c = host.run("c");
    host.wait_for_memory("c");
    assert_eq!(host.places("c").0, 0);
    check_end(c);
    // It holds for the next one of that name, too.
    assert_eq!(host.ask(&["show", "c"])["hold"]["vram_bytes"], 0);
    host.say(&["thaw", "c"]);
    assert_eq!(host.ask(&["show", "c"])["hold"]["vram_bytes"], Value::Null);
}
