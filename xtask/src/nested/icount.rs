//! `cargo xtask nested --icount`: figures that repeat whatever else runs on this machine.
//!
//! The outer machine has one processor and counts instructions: one is one virtual nanosecond, waiting costs
//! nothing. A broker with a software card and one VM run in it. The result is the length of paths through software;
//! the time that hardware takes for an exit is not in it.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::baseline::{Figure, Figures};
use super::{PATIENCE, SHMEM_HUGE_PAGES, SUCCESS, boots};
use crate::guest::{Clock, Guest, GuestConfig, Processor};
use crate::host_env::{GuestFile, HostEnv};

const RAM_MIB: u32 = 1024;
/// RAM of the inner VM, the same as for the peers' figures.
pub(super) const VM_RAM: &str = "128M";
const VM_RAM_KIB: u64 = 128 << 10;
pub(super) const SOCKET: &str = "/run/a.sock";
const TRAPPED_SOCKET: &str = "/run/trapped.sock";
/// Number of boots, of which the median counts.
const BOOTS: usize = 3;
const TRACING: &str = "/sys/kernel/debug/tracing";
/// Where a program's pages lie decides which 16 of them the kernel maps at one fault, so with random addresses resident
/// memory differs by 20 % from one run to the next.
const FIXED_LAYOUT: &str = "norandmaps";

/// When one boot began and when the guest did.
const FIRST: &str = "sched_process_exec: filename=/bin/vramd-vm ";
const ENTRY: &str = "kvm_entry: ";

/// The fields of `vramd run --json` that are read.
#[derive(Deserialize)]
struct Run {
    end: String,
    kvm: bool,
    exits: u64,
    console: Vec<String>,
}

/// Boots the machine, takes all figures, and ends it.
pub(super) fn measure(environment: &HostEnv, vramd: &Path, folder: &Path) -> Result<Figures> {
    let start = Instant::now();
    let root = folder.join("root.cpio");
    let mut files = files(vramd, folder)?;
    let (contestants, more) = boots::contestants(environment, folder)?;
    files.extend(more);
    environment.write_first_root(&root, &files)?;
    let mut machines = 0;
    let mut start_machine = || {
        machines += 1;
        let folder = folder.join(format!("machine{machines}"));
        std::fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        machine(environment, &root, &folder)
    };
    let mut guest = start_machine()?;
    println!(
        "the machine that counts is up after {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let mut figures = Figures::default();
    let (mut boots, mut exits) = (Vec::new(), 0);
    for _ in 0..BOOTS {
        let (time, boot) = boot(&mut guest)?;
        boots.push(time);
        exits = boot.exits;
    }
    boots.sort_unstable();
    figures.insert(Figure::FirstInstruction, boots[BOOTS / 2]);
    let lines = run(&mut guest, "latency")?.console;
    figures.insert(Figure::PortRead, median_of(&lines, "port")?);
    figures.insert(Figure::RemoteRead, median_of(&lines, "register")?);
    let lines = run(&mut guest, "doorbell")?.console;
    figures.insert(Figure::Doorbell, median_of(&lines, "doorbell")?);
    let lines = run(&mut guest, "idle-doorbell")?.console;
    figures.insert(Figure::IdleDoorbell, median_of(&lines, "idle-doorbell")?);
    figures.insert(Figure::TrappedDoorbell, trapped_doorbell(&mut guest)?);
    let memory = memory(&mut guest, exits)?;
    figures.insert(Figure::Anonymous, memory.anonymous_kib);
    figures.insert(Figure::Resident, memory.resident_kib);
    boots::measure(guest, start_machine, &contestants, &mut figures)?.power_off()?;
    println!("measured in {:.1} s", start.elapsed().as_secs_f64());
    Ok(figures)
}

/// Boots the machine and starts a broker in it. Logs go to `folder`.
fn machine(environment: &HostEnv, root: &Path, folder: &Path) -> Result<Guest> {
    let config = GuestConfig {
        processor: Processor::EpycRome,
        clock: Clock::Instructions,
        ram_mib: RAM_MIB,
        card: None,
        root,
        disks: &[],
        has_iommu: false,
        kernel_options: FIXED_LAYOUT,
    };
    let mut guest = Guest::boot(environment, &config, folder)?;
    guest.succeed("load host", PATIENCE)?;
    guest.succeed(&format!("echo advise >{SHMEM_HUGE_PAGES}"), PATIENCE)?;
    serve(&mut guest, "host", SOCKET)?;
    Ok(guest)
}

/// Starts a broker with `/etc/CONFIG.toml`, and returns when it has made its socket. `$!` is its process.
fn serve(guest: &mut Guest, config: &str, socket: &str) -> Result<()> {
    let serve = format!(
        "vramd serve --config /etc/{config}.toml >/dev/null 2>{config}.log & until [ -S {socket} ]; do kill -0 $! || break; \
         usleep 10000; done; [ -S {socket} ]"
    );
    guest
        .succeed(&serve, PATIENCE)
        .context("the broker does not start")?;
    Ok(())
}

/// Time of a doorbell that is a message, with a broker of its own whose VMs have no windows that are memory.
fn trapped_doorbell(guest: &mut Guest) -> Result<u64> {
    serve(guest, "trapped", TRAPPED_SOCKET)?;
    guest.succeed("trapped=$!", PATIENCE)?;
    let lines = run(guest, "doorbell-trapped")?.console;
    guest.succeed("kill $trapped; wait $trapped; true", PATIENCE)?;
    median_of(&lines, "doorbell")
}

fn files(vramd: &Path, folder: &Path) -> Result<Vec<GuestFile>> {
    let mut files = GuestFile::vramd(vramd)?;
    let host = |socket, settings| {
        format!(
            "[[gpu]]\nname = \"gpu\"\ndevice = \"model:gtx480\"\nvram = \"64M\"\nhost_ram = \"256M\"\n{settings}\
             [[vm]]\nname = \"a\"\ngpu = \"gpu\"\nsocket = \"{socket}\"\nguest_vram = \"32M\"\n"
        )
    };
    let vm = |socket, test| {
        format!(
            "name = \"a\"\nmemory = \"{VM_RAM}\"\noptions = \"vramd.workload=hotspot bare.test={test}\"\n[vgpu]\nsocket = \"{socket}\"\n"
        )
    };
    let texts = [
        ("host", host(SOCKET, "")),
        ("trapped", host(TRAPPED_SOCKET, "windows = \"trapped\"\n")),
        ("boot", vm(SOCKET, "boot")),
        ("latency", vm(SOCKET, "latency")),
        ("doorbell", vm(SOCKET, "doorbell")),
        ("idle-doorbell", vm(SOCKET, "idle-doorbell")),
        ("doorbell-trapped", vm(TRAPPED_SOCKET, "doorbell")),
        ("spin", vm(SOCKET, "spin")),
    ];
    for (name, text) in texts {
        let from = folder.join(format!("{name}.toml"));
        std::fs::write(&from, text).with_context(|| format!("cannot write {}", from.display()))?;
        let to = format!("etc/{name}.toml");
        files.push(GuestFile { to, from });
    }
    Ok(files)
}

/// Runs a test of the bare guest.
fn run(guest: &mut Guest, test: &str) -> Result<Run> {
    let command = format!("vramd run /etc/{test}.toml --json");
    // It is not a workload, and so not counted as a success.
    let output = guest.run(&command, PATIENCE)?;
    let line = output.lines.iter().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("{command:?} says {}", output.text()))?;
    let run: Run = serde_json::from_str(line).with_context(|| format!("{command:?} says {line}"))?;
    ensure!(run.end == SUCCESS && run.kvm, "{command:?} says {line}");
    Ok(run)
}

/// ns from the start of a VM's process to its guest's first instruction, and the other figures of that run.
fn boot(guest: &mut Guest) -> Result<(u64, Run)> {
    let on = format!(
        "cd {TRACING} && echo mono >trace_clock && echo >trace && echo 1 >events/sched/sched_process_exec/enable && \
         echo 1 >events/kvm/kvm_entry/enable && echo 1 >tracing_on; cd /"
    );
    guest.succeed(&on, PATIENCE)?;
    let run = run(guest, "boot")?;
    // Events that are not written down cost something too, in each figure that follows.
    guest.succeed(
        &format!("cd {TRACING} && echo 0 >tracing_on && echo 0 >events/enable; cd /"),
        PATIENCE,
    )?;
    let trace = guest.succeed(
        &format!("grep -m 1 '{FIRST}' {TRACING}/trace; grep -m 1 '{ENTRY}' {TRACING}/trace"),
        PATIENCE,
    )?;
    let [exec, entry] = [FIRST, ENTRY].map(|event| {
        let line = trace.lines.iter().find(|line| line.contains(event));
        line.and_then(|line| time_of(line))
    });
    let (exec, entry) = exec
        .zip(entry)
        .with_context(|| format!("the trace says {}", trace.text()))?;
    let time = entry.checked_sub(exec).context("the guest ran before its VM")?;
    Ok((time, run))
}

/// ns in a line of the kernel's trace: `vramd-71 [000] d..1. 12.345678: kvm_entry: …`.
pub(super) fn time_of(line: &str) -> Option<u64> {
    let time = line
        .split_ascii_whitespace()
        .find_map(|word| word.strip_suffix(':')?.split_once('.'));
    let (seconds, microseconds) = time?;
    let microseconds = format!("{microseconds:0<6}").get(..6)?.parse::<u64>().ok()?;
    Some((seconds.parse::<u64>().ok()? * 1_000_000 + microseconds) * 1000)
}

/// Parses `latency=NAME min_ns=N median_ns=N`.
fn median_of(lines: &[String], name: &str) -> Result<u64> {
    let start = format!("latency={name} ");
    let line = lines.iter().find_map(|line| line.strip_prefix(&start));
    let median = line.and_then(|line| line.split_once("median_ns=")?.1.trim().parse().ok());
    median.with_context(|| format!("no time of a {name} in {lines:?}"))
}

/// Memory of a VM's process besides its guest's RAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Memory {
    pub(super) anonymous_kib: u64,
    pub(super) resident_kib: u64,
}

impl Memory {
    /// Parses `/proc/PID/smaps`; the map that is as large as the guest's RAM is left out.
    pub(super) fn parse(smaps: &[String]) -> Result<Self> {
        let mut memory = Self::default();
        let (mut is_guests, mut has_ram) = (false, false);
        for line in smaps {
            let mut words = line.split_ascii_whitespace();
            let kib = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            match words.next() {
                Some("Rss:") if !is_guests => memory.resident_kib += kib(words.next()),
                Some("Anonymous:") if !is_guests => memory.anonymous_kib += kib(words.next()),
                Some("Size:") => {
                    is_guests = kib(words.next()) == VM_RAM_KIB;
                    has_ram |= is_guests;
                }
                _ => {}
            }
        }
        ensure!(has_ram, "the VM's process has no map as large as its guest's RAM");
        Ok(memory)
    }
}

/// Figures of a VM whose guest spins. The guest does so after fewer exits than `exits`, the number of a guest that
/// reports more; from then on each tick of the host is one exit.
fn memory(guest: &mut Guest, exits: u64) -> Result<Memory> {
    let start = format!(
        "vramd run /etc/spin.toml --json >/dev/null 2>&1 & vm=$!; until [ \"$(cat /sys/kernel/debug/kvm/exits)\" -gt \
         {exits} ]; do kill -0 $vm || break; usleep 10000; done; kill -0 $vm"
    );
    guest.succeed(&start, PATIENCE)?;
    let smaps = guest.succeed("cat /proc/$vm/smaps", PATIENCE)?;
    guest.succeed("kill $vm; wait $vm; true", PATIENCE)?;
    Memory::parse(&smaps.lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_from_lines_of_a_trace() {
        let line = "           vramd-71      [000] d..1.    12.345678: kvm_entry: vcpu 0, rip 0x100000";
        assert_eq!(time_of(line), Some(12_345_678_000));
        assert_eq!(time_of("# tracer: nop"), None);
        assert_eq!(time_of(""), None);
    }

    #[test]
    fn medians_are_found_by_name() {
        let lines = [
            "latency=port min_ns=5 median_ns=7",
            "latency=register min_ns=8 median_ns=9",
        ];
        let lines = lines.map(str::to_owned);
        assert_eq!(median_of(&lines, "register").unwrap(), 9);
        assert!(median_of(&lines, "doorbell").is_err());
    }

    #[test]
    fn ram_of_the_guest_is_not_its_process_s() {
        let smaps = "55d0-55d1 r--p 00000000 00:02 7   /bin/vramd\nSize: 300 kB\nRss:   300 kB\nAnonymous:  0 kB\n\
                     7f00-7f08 rw-s 00000000 00:01 9   /memfd:ram\nSize: 131072 kB\nRss:  5000 kB\nAnonymous: 1 kB\n\
                     7ffc-7ffd rw-p 00000000 00:00 0   [stack]\nSize: 132 kB\nRss:   12 kB\nAnonymous: 12 kB\nVmFlags: rd\n";
        let smaps: Vec<_> = smaps.lines().map(str::to_owned).collect();
        let memory = Memory {
            anonymous_kib: 12,
            resident_kib: 312,
        };
        assert_eq!(Memory::parse(&smaps).unwrap(), memory);
        assert!(Memory::parse(&smaps[..4]).is_err());
    }
}
