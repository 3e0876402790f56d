//! An operator's day: three VMs share a card, one takes all that it sees, and is put in its place. What `top` shows on a terminal, what
//! verbs say, events, metrics and `why` tell the same story, and what the VMs compute is right at the end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::process::{Process, json, output, text};
use super::terminal::Terminal;

const MIB: u64 = 1 << 20;
/// Four VMs compute on processors that other tests use too.
const WAIT: Duration = Duration::from_secs(60);

/// `serve` with a card of 96M, and VMs that want more than it has: `web` and `batch` 40M each, `leaky` all of its 80M.
struct Host {
    folder: tempfile::TempDir,
    _broker: Process,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = format!(
            "[control]\nsocket = {:?}\n[[gpu]]\nname = \"gpu0\"\ndevice = \"model:gtx480\"\nvram = \"96M\"\n",
            at("control.sock")
        );
        for (vm, guest_vram) in [("web", 56), ("batch", 56), ("leaky", 80)] {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"gpu0\"\nsocket = {socket:?}\nguest_vram = \"{guest_vram}M\"\nram = \"1G\"\n"
            );
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

    /// Starts a VM with these words for its guest.
    fn run(&self, vm: &str, options: &str) -> Process {
        let input = self.at("input");
        std::fs::write(&input, [7; 100_000]).unwrap();
        // Kernels have none.
        let inputs = match options.contains("files") {
            true => format!("inputs = [{input:?}]\n"),
            false => String::new(),
        };
        let file = format!(
            "name = {vm:?}\nmemory = \"128M\"\noptions = \"{options}\"\n{inputs}[vgpu]\nsocket = {:?}\n",
            self.at(&format!("{vm}.sock"))
        );
        let path = self.at(&format!("{vm}.toml"));
        std::fs::write(&path, file).unwrap();
        Process::start(&["run", "--no-kvm", "--json", path.to_str().unwrap()])
    }

    fn say(&self, arguments: &[&str]) -> String {
        let socket = self.at("control.sock");
        let output = output(&[arguments, &["--control", socket.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Bytes of the VM: a figure of its usage.
    fn bytes(&self, vm: &str, figure: &str) -> u64 {
        self.ask(&["show", vm])["usage"][figure].as_u64().unwrap_or(0)
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(
                start.elapsed() < WAIT,
                "still not: {what}\n{}",
                self.say(&["list"])
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A metric of a VM.
    fn metric(&self, name: &str, vm: &str) -> u64 {
        let text = self.say(&["metrics"]);
        let start = format!("{name}{{gpu=\"gpu0\",vm=\"{vm}\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&start));
        let value = found.unwrap_or_else(|| panic!("no {start} in\n{text}"));
        value.parse::<f64>().unwrap() as u64
    }
}

/// Words for a guest that computes in 36M, so often.
fn kernel(rounds: u32) -> String {
    format!("vramd.workload=triad vramd.footprint_kib=36864 vramd.rounds={rounds}")
}

/// It ran to its end, and its results were compared with a calculation on the CPU.
fn check_end(mut vm: Process) {
    let output = vm.wait();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&output)["end"], "the workload ended");
}

#[test]
fn leak_is_seen_bounded_and_told_of_while_the_others_compute_what_is_right() {
    let host = Host::new();
    let mut terminal = Terminal::new();
    let socket = host.at("control.sock");
    let mut top = terminal.start(&["top", "--interval", "0.2", "--control", socket.to_str().unwrap()]);
    terminal.wait_for(&["leaky ", "absent"]);
    // One that takes all it sees, beside two that use 36M each and would not end.
    let mut leaky = host.run("leaky", "vramd.workload=files vramd.rounds=100000");
    let mut others = ["web", "batch"].map(|vm| host.run(vm, &kernel(100_000)));
    see_and_bound_the_leak(&host, &mut terminal);
    others.iter_mut().for_each(|vm| drop(vm.terminate()));
    // The same two, beside it still, with work that ends and is compared.
    for vm in ["web", "batch"] {
        host.wait_until("it has gone", |host| host.ask(&["show", vm])["usage"].is_null());
    }
    let (web, batch) = (host.run("web", &kernel(8)), host.run("batch", &kernel(60)));
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
fn see_and_bound_the_leak(host: &Host, terminal: &mut Terminal) {
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
fn send_away_and_bring_back(host: &Host, terminal: &mut Terminal) {
    host.wait_until("batch has its memory", |host| {
        host.bytes("batch", "resident_bytes") >= 36 * MIB
    });
    let said = host.say(&["freeze", "batch"]);
    assert!(said.starts_with("batch is frozen: 0 in VRAM, "), "{said}");
    terminal.wait_for(&["batch ", "frozen"]);
    assert_eq!(host.metric("vramd_vm_resident_bytes", "batch"), 0);
    host.say(&["thaw", "batch"]);
    host.wait_until("batch is back", |host| {
        host.bytes("batch", "resident_bytes") >= 36 * MIB
    });
}

/// A fourth comes, does its work, and goes.
fn have_a_guest_for_a_while(host: &Host, terminal: &mut Terminal) {
    host.say(&["attach", "late", "--guest-vram", "16M"]);
    terminal.wait_for(&["late ", "absent"]);
    check_end(host.run(
        "late",
        "vramd.workload=triad vramd.footprint_kib=4096 vramd.rounds=2",
    ));
    host.wait_until("late has gone", |host| {
        host.ask(&["show", "late"])["usage"].is_null()
    });
    host.say(&["detach", "late"]);
}

/// Events, metrics, accounts and lists say what was done.
fn compare_what_is_told(host: &Host) {
    let events = host.ask(&["events"])["events"].clone();
    let told = |vm: &str, kind: &str| {
        let events = events.as_array().unwrap().iter();
        let of_kind = events.filter(|event| event["vm"] == vm && event["kind"] == kind);
        let texts: Vec<_> = of_kind
            .map(|event| event["text"].as_str().unwrap().to_owned())
            .collect();
        texts
    };
    assert_eq!(told("leaky", "quota_changed"), ["quota: max max to 4M"]);
    assert_eq!(
        told("batch", "hold_changed"),
        ["frozen: its memory goes to host RAM", "its memory may come back"]
    );
    assert_eq!(told("batch", "attached").len(), 2);
    for kind in ["listed", "attached", "detached", "unlisted"] {
        assert_eq!(told("late", kind).len(), 1, "{kind}");
    }
    assert_eq!(host.metric("vramd_vm_quota_max_bytes", "leaky"), 4 * MIB);
    let shown = host.ask(&["show", "batch"]);
    let spilled_out = shown["account"]["spilled_out_bytes"].as_u64().unwrap();
    assert!(spilled_out >= 36 * MIB, "{shown}");
    assert!(host.metric("vramd_vm_spilled_out_bytes_total", "batch") >= spilled_out);
    let vms = host.ask(&["list"])["vms"].clone();
    let names: Vec<_> = vms
        .as_array()
        .unwrap()
        .iter()
        .map(|vm| vm["name"].clone())
        .collect();
    assert_eq!(json!(names), json!(["batch", "leaky", "web"]));
}
