//! `docs/contract.md` as VMMs and operators of a real `serve` see it: who has no room is told so, and nobody else feels it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fermi_spec::regs::{PRAMIN_BASE, PbusReg};
use process::{Process, json, output, text};
use serde_json::Value;
use vfio_user_server::{Region, RemoteError, RemoteFunction};

const WAIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// A folder with a `host.toml` of one software card, its VMs, and a file for each VM.
struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    /// A card of so many MiB; `more` are lines of its section. Each VM sees so many MiB, and its workload has so many.
    fn new(vram: u64, more: &str, vms: &[&str], (guest_vram, footprint): (u64, u64)) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = format!(
            "[control]\nsocket = {:?}\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"{vram}M\"\n{more}\n",
            at("control.sock")
        );
        for vm in vms {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"g\"\nsocket = {socket:?}\nguest_vram = \"{guest_vram}M\"\nram = \"1G\"\n"
            );
            let file = format!(
                "name = \"{vm}\"\nmemory = \"128M\"\noptions = \"vramd.workload=triad vramd.footprint_kib={} \
                 vramd.rounds=3\"\n[vgpu]\nsocket = {socket:?}\n",
                footprint << 10
            );
            std::fs::write(at(&format!("{vm}.toml")), file).unwrap();
        }
        std::fs::write(at("host.toml"), config).unwrap();
        Host { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Process {
        let mut broker = Process::start(&["serve", "--config", self.at("host.toml").to_str().unwrap()]);
        broker.first_line();
        broker
    }

    /// The same, where /proc/meminfo is a file of the test's.
    fn serve_with_meminfo(&self) -> Process {
        let program = r#"mount --bind "$0" /proc/meminfo && exec "$@""#;
        let vramd = env!("CARGO_BIN_EXE_vramd");
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", program])
            .arg(self.at("meminfo"))
            .args([vramd, "serve", "--config", self.at("host.toml").to_str().unwrap()])
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut broker = Process(child);
        broker.first_line();
        broker
    }

    /// The host that `serve` sees has so many MiB left from now on.
    fn leaves(&self, mebibytes: u64) {
        let text = format!("MemTotal: 99999999 kB\nMemAvailable: {} kB\n", mebibytes << 10);
        std::fs::write(self.at("meminfo"), text).unwrap();
    }

    /// Connects as the VMM of a VM, and waits until it is served.
    fn vmm(&self, vm: &str) -> RemoteFunction {
        let vmm = RemoteFunction::connect(&self.at(&format!("{vm}.sock")), WAIT).unwrap();
        vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
        vmm
    }

    fn run(&self, vm: &str) -> Process {
        let file = self.at(&format!("{vm}.toml"));
        Process::start(&["run", "--no-kvm", "--json", file.to_str().unwrap()])
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

    fn events(&self, vm: &str) -> Vec<Value> {
        self.ask(&["events", "--vm", vm])["events"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Waits for the last event of a VM to be of a kind.
    fn last_event(&self, vm: &str, kind: &str) -> Value {
        let start = Instant::now();
        loop {
            let last = self.events(vm).pop().unwrap_or_default();
            if last["kind"] == kind {
                return last;
            }
            assert!(start.elapsed() < WAIT, "{last}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn is_connected(&self, vm: &str) -> bool {
        !self.ask(&["show", vm])["usage"].is_null()
    }
}

/// Whether this host lets a test show a process other files. Where it does not, that is said, and on CI it is a failure.
fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "mount",
            "--bind",
            "/proc/self/status",
            "/proc/meminfo",
        ])
        .output();
    let may = tried.as_ref().is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("SKIPPED: to show serve another /proc/meminfo takes root and unshare: {tried:?}");
        let is_required = std::env::var_os("VRAMD_REQUIRE_TOOLS").is_some();
        assert!(!is_required, "VRAMD_REQUIRE_TOOLS is set");
    }
    may
}

/// Stores a word to a page of instance memory, by the window in BAR0.
fn store_instance(vmm: &RemoteFunction, page: u64) -> Result<(), RemoteError> {
    let (base, within) = (page >> 4, (page & 15) << 12);
    let select = u64::from(PbusReg::PraminBase.offset());
    vmm.write(Region::Bar0, select, &(base as u32).to_le_bytes())?;
    vmm.write(Region::Bar0, u64::from(PRAMIN_BASE) + within, &[1, 2, 3, 4])?;
    vmm.read(Region::Bar0, 0, &mut [0; 4])
}

#[test]
fn host_that_gave_its_memory_away_costs_the_vm_that_needs_some_and_no_other() {
    if !may_mount() {
        return;
    }
    let host = Host::new(64, "", &["a", "b"], (48, 8));
    host.leaves(4096);
    let mut broker = host.serve_with_meminfo();
    let (poor, neighbour) = (host.vmm("a"), host.vmm("b"));
    store_instance(&poor, 0).unwrap();
    store_instance(&neighbour, 0).unwrap();
    host.leaves(8);
    // The broker may have looked a moment before.
    let start = Instant::now();
    let mut pages = 1..1000;
    while store_instance(&poor, pages.next().unwrap()).is_ok() {
        assert!(start.elapsed() < WAIT, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = host.last_event("a", "detached");
    let told = last["text"].as_str().unwrap();
    let words = "detached: the host has no memory left for it: 4K more of its VRAM were to be in host RAM, and the host leaves 8M";
    assert!(told.starts_with(words), "{told}");
    assert!(!host.is_connected("a") && host.is_connected("b"));
    // What it has it keeps, and the next client of that socket is told why not, until there is memory again.
    store_instance(&neighbour, 0).unwrap();
    assert!(RemoteFunction::connect(&host.at("a.sock"), WAIT).is_err());
    host.leaves(4096);
    let again = host.vmm("a");
    store_instance(&again, 1).unwrap();
    store_instance(&neighbour, 1).unwrap();
    drop((poor, again, neighbour));
    let ended = broker.terminate();
    let log = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{log}");
    assert!(
        log.contains("vm is detached: the host has no memory left for it"),
        "{log}"
    );
    assert!(log.contains("its VRAM image may take 48M of host RAM"), "{log}");
}

#[test]
fn vm_that_host_ram_has_no_room_for_is_refused_at_its_start_and_others_stay() {
    let host = Host::new(64, "host_ram = \"16M\"", &["a", "b"], (48, 8));
    let mut broker = host.serve();
    let first = host.vmm("a");
    let refused = host.run("b").wait();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.starts_with("vramd: ") && said.lines().count() == 1, "{said}");
    assert!(said.contains("the server closed the connection"), "{said}");
    assert!(host.is_connected("a") && !host.is_connected("b"));
    first.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    // There is room once the other has gone.
    drop(first);
    host.last_event("a", "detached");
    let second = host.vmm("b");
    drop(second);
    let ended = broker.terminate();
    let log = text(&ended.stderr);
    assert!(
        log.contains("guest VRAM of all VMs (96M) exceeds usable VRAM ("),
        "{log}"
    );
    assert_eq!(ended.status.code(), Some(0), "{log}");
}

/// Three guests together use more than the card has. All their results are right, and an operator sees who made room for whom.
#[test]
fn full_card_slows_vms_and_refuses_none_and_the_operator_sees_for_whom() {
    let host = Host::new(128, "", &["a", "b", "c"], (64, 52));
    let mut broker = host.serve();
    let mut vms = ["a", "b", "c"].map(|vm| host.run(vm));
    let start = Instant::now();
    let spilled = |vm: &str| {
        host.ask(&["show", vm])["usage"]["spilled_bytes"]
            .as_u64()
            .unwrap_or(0)
    };
    let all = ["a", "b", "c"];
    while all.iter().all(|vm| spilled(vm) < MIB) {
        assert!(start.elapsed() < 3 * WAIT, "nothing has to go to host RAM");
        std::thread::sleep(Duration::from_millis(5));
    }
    for vm in &mut vms {
        let ended = vm.wait();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        assert_eq!(json(&ended)["end"], "the workload ended");
    }
    let events: Vec<Value> = all.iter().flat_map(|vm| host.events(vm)).collect();
    let is = |event: &&Value, kind: &str| event["kind"] == kind;
    let given: Vec<_> = events.iter().filter(|event| is(event, "spilled")).collect();
    let for_others = given.iter().filter(|event| {
        let (of, for_vm) = (&event["vm"], &event["for_vm"]);
        for_vm.is_string() && of != for_vm && event["bytes"].as_u64() > Some(0)
    });
    let waits = events.iter().filter(|event| is(event, "waited"));
    let placed = events.iter().filter(|event| {
        let text = event["text"].as_str().unwrap_or_default();
        is(event, "waited") && text.contains("had to go to host RAM")
    });
    assert!(for_others.count() + placed.count() > 0, "{events:?}");
    assert!(waits.clone().count() > 0, "{events:?}");
    let ended = broker.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
}
