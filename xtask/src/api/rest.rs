//! What a broker costs whose VMs do nothing: its program, its memory, its start, and its processor's time.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::io::Errno;
use serde_json::json;
use vfio_user_server::{Region, RemoteFunction};

use crate::process::{PATIENCE, Process};

/// VMs that are connected and do nothing.
const VMS: usize = 8;
/// How long they are watched.
const WATCHED: Duration = Duration::from_secs(10);
/// Most of a processor that they may take together.
const SHARE_MAX: f64 = 0.01;

/// Measures a program, prints what it costs, and demands what is promised of idle VMs. Files go to `folder`.
pub(super) fn measure(vramd: &Path, folder: &Path) -> Result<()> {
    let at = |name: &str| folder.join(name);
    let mut host = format!(
        "[control]\nsocket = {}\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"1G\"\n",
        json!(at("rest.sock"))
    );
    let sockets: Vec<_> = (0..VMS).map(|vm| at(&format!("rest{vm}"))).collect();
    for (vm, socket) in sockets.iter().enumerate() {
        host += &format!(
            "[[vm]]\nname = \"vm{vm}\"\ngpu = \"g\"\nsocket = {}\nguest_vram = \"256M\"\nram = \"1G\"\n",
            json!(socket)
        );
    }
    let path = at("rest.toml");
    fs::write(&path, host).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command = Command::new(vramd);
    command.args(["serve", "--config"]).arg(&path);
    let start = Instant::now();
    let mut broker = Process::start("vramd serve", command, at("rest.log"))?;
    for _ in 0..VMS {
        broker.line().context("the broker does not start")?;
    }
    let started = start.elapsed();
    let vmms = sockets.iter().map(|socket| {
        let vmm = RemoteFunction::connect(socket, PATIENCE)?;
        vmm.read(Region::Bar0, 0, &mut [0; 4])?;
        anyhow::Ok(vmm)
    });
    let vmms: Vec<_> = vmms.collect::<Result<_>>().context("a VM is not served")?;
    let mut events = Command::new(vramd);
    events
        .args(["events", "--follow", "--control"])
        .arg(at("rest.sock"));
    let mut events = Process::start("vramd events", events, at("rest-events.log"))?;
    for _ in 0..VMS {
        let line = events.line()?;
        ensure!(line.contains("attached"), "events says {line:?}");
    }
    let id = broker.child.id();
    let memory = fs::read_to_string(format!("/proc/{id}/smaps_rollup")).context("no memory of the broker")?;
    let (before, watched) = (processor_ns(id)?, Instant::now());
    std::thread::sleep(WATCHED);
    let share = (processor_ns(id)? - before) as f64 / watched.elapsed().as_nanos() as f64;
    println!(
        "the broker: {} KiB of program, {} KiB of it text; ready after {:.1} ms; {} KiB resident, {} of them its own; with {VMS} idle \
         VMs and a stream of events {:.3} % of a processor",
        vramd.metadata().context("no program")?.len() >> 10,
        text_bytes(vramd)? >> 10,
        started.as_secs_f64() * 1e3,
        kib(&memory, "Rss:")?,
        kib(&memory, "Anonymous:")?,
        share * 100.0
    );
    ensure!(
        share < SHARE_MAX,
        "idle VMs take more than {} % of a processor",
        SHARE_MAX * 100.0
    );
    drop(vmms);
    broker.terminate().map(drop)
}

/// Time that all threads of a process had, in ns: what a thread did that has ended is lost.
fn processor_ns(id: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{id}/task")).context("the process has ended")? {
        let path = task?.path().join("schedstat");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            // The thread has ended since it was listed.
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::SRCH)) => {
                continue;
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let ns = text
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse::<u64>().ok());
        sum += ns.with_context(|| format!("{} says {text:?}", path.display()))?;
    }
    Ok(sum)
}

/// A figure of `smaps_rollup`.
fn kib(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let figure = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    figure.with_context(|| format!("smaps_rollup has no {name}"))
}

/// Bytes of a program that are its code, without what debuggers read.
fn text_bytes(program: &Path) -> Result<u64> {
    let output = Command::new("size").arg(program).stdin(Stdio::null()).output();
    // Of binutils, which come with any linker.
    let output = output.context("cannot start size")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().nth(1).unwrap_or_default();
    let bytes = line
        .split_whitespace()
        .next()
        .and_then(|bytes| bytes.parse().ok());
    bytes.with_context(|| format!("size says {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_process_that_works_rises() {
        // Threads of this one come and go with other tests.
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let (start, id) = (Instant::now(), busy.id());
        let worked = || processor_ns(id).unwrap() > 1_000_000;
        while !worked() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(worked());
        busy.kill().unwrap();
        busy.wait().unwrap();
    }

    #[test]
    fn figures_are_found_by_name() {
        let text = "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:  1234 kB\nAnonymous:  56 kB\n";
        assert_eq!(
            (kib(text, "Rss:").unwrap(), kib(text, "Anonymous:").unwrap()),
            (1234, 56)
        );
        assert!(kib(text, "Shared:").is_err());
    }
}
