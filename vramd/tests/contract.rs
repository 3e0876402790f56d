//! `docs/contract.md` as VMMs and operators of a real `serve` see it: who has no room is told so, and nobody else feels it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::process::Command;
use std::time::{Duration, Instant};

use fermi_spec::regs::{PRAMIN_BASE, PbusReg};
use host::{Config, MIB, TestHost, check_end, triad};
use process::text;
use serde_json::Value;
use vfio_user_server::{Region, RemoteError, RemoteFunction};

const WAIT: Duration = Duration::from_secs(20);

/// A card of 64M with VMs `a` and `b` of 48M each; `more` are lines of the card's section.
fn two_vms(more: &str) -> TestHost {
    let config = Config::new("").gpu("g", "64M", more);
    TestHost::new(&config.vm("a", "48M", "").vm("b", "48M", ""))
}

/// Starts `serve` where /proc/meminfo is a file of the test's.
fn serve_with_meminfo(host: &mut TestHost) {
    let program = r#"mount --bind "$0" /proc/meminfo && exec "$@""#;
    let serve = host.command(&[]);
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", program])
        .arg(host.at("meminfo"))
        .arg(serve.get_program())
        .args(serve.get_args())
        .env_remove("RUST_LOG");
    host.start_by(&mut command);
}

/// The host that `serve` sees has so many MiB left from now on.
fn leave(host: &TestHost, mebibytes: u64) {
    let text = format!("MemTotal: 99999999 kB\nMemAvailable: {} kB\n", mebibytes << 10);
    std::fs::write(host.at("meminfo"), text).unwrap();
}

/// Waits for the last event of a VM to be that it was detached.
fn detached(host: &TestHost, vm: &str) -> Value {
    host.wait_for("it is detached", |host| {
        let last = host.events(Some(vm)).pop()?;
        (last["kind"] == "detached").then_some(last)
    })
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
    let mut host = two_vms("");
    leave(&host, 4096);
    serve_with_meminfo(&mut host);
    let (poor, neighbour) = (host.vmm("a"), host.vmm("b"));
    store_instance(&poor, 0).unwrap();
    store_instance(&neighbour, 0).unwrap();
    leave(&host, 8);
    // The broker may have looked a moment before.
    let start = Instant::now();
    let mut pages = 1..1000;
    while store_instance(&poor, pages.next().unwrap()).is_ok() {
        assert!(start.elapsed() < WAIT, "it goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = detached(&host, "a");
    let told = last["text"].as_str().unwrap();
    let words = "detached: the host has no memory left for it: 4K more of its VRAM were to be in host RAM, and the host leaves 8M";
    assert!(told.starts_with(words), "{told}");
    assert!(!host.is_connected("a") && host.is_connected("b"));
    // What it has it keeps, and the next client of that socket is told why not, until there is memory again.
    store_instance(&neighbour, 0).unwrap();
    assert!(RemoteFunction::connect(&host.at("a.sock"), WAIT).is_err());
    leave(&host, 4096);
    let again = host.vmm("a");
    store_instance(&again, 1).unwrap();
    store_instance(&neighbour, 1).unwrap();
    drop((poor, again, neighbour));
    let log = host.stop();
    assert!(
        log.contains("vm is detached: the host has no memory left for it"),
        "{log}"
    );
    assert!(
        log.contains("its VRAM image and windows may take 241M of host RAM"),
        "{log}"
    );
}

#[test]
fn vm_that_host_ram_has_no_room_for_is_refused_at_its_start_and_others_stay() {
    let mut host = two_vms("host_ram = \"16M\"");
    host.start();
    let first = host.vmm("a");
    let refused = host.run("b", &triad(8, 3)).wait();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.starts_with("vramd: ") && said.lines().count() == 1, "{said}");
    assert!(said.contains("the server closed the connection"), "{said}");
    assert!(host.is_connected("a") && !host.is_connected("b"));
    first.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    // There is room once the other has gone.
    drop(first);
    detached(&host, "a");
    let second = host.vmm("b");
    drop(second);
    let log = host.stop();
    assert!(
        log.contains("guest VRAM of all VMs (96M) exceeds usable VRAM ("),
        "{log}"
    );
}

/// Three guests together use more than the card has. All their results are right, and an operator sees who made room for whom.
#[test]
fn full_card_slows_vms_and_refuses_none_and_the_operator_sees_for_whom() {
    let all = ["a", "b", "c"];
    let config = Config::new("").gpu("g", "128M", "");
    let config = all
        .into_iter()
        .fold(config, |config, vm| config.vm(vm, "64M", ""));
    let mut host = TestHost::serving(&config);
    let vms = all.map(|vm| host.run(vm, &triad(52, 3)));
    host.wait_until("something has to go to host RAM", |host| {
        all.iter().any(|vm| host.bytes(vm, "spilled_bytes") >= MIB)
    });
    vms.into_iter().for_each(check_end);
    let events: Vec<Value> = all.iter().flat_map(|vm| host.events(Some(vm))).collect();
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
    host.stop();
}
