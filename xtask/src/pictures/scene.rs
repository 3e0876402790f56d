//! What the pictures show: a card, and VMs that together use more VRAM than it has.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::process::Process;

/// VRAM of the card, whose usable part is less.
const CARD: &str = "128M";
/// Name of a VM, MiB that its workload uses, and VRAM that its guest sees.
const VMS: [(&str, u32, &str); 3] = [("a", 40, "48M"), ("b", 72, "96M"), ("c", 40, "48M")];
/// More than there is time for.
const ROUNDS: u32 = 10_000_000;

/// Something that was done, and when, in seconds since 1970.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) what: String,
}

/// The running processes, and what was done to them.
pub(super) struct Scene {
    vramd: PathBuf,
    folder: PathBuf,
    broker: Process,
    vms: Vec<Process>,
    metrics: SocketAddr,
    marks: Vec<Mark>,
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

impl Scene {
    /// Starts the broker, with files in `folder`; no VM runs yet.
    pub(super) fn start(vramd: &Path, folder: &Path) -> Result<Self> {
        let at = |name: &str| json!(folder.join(name));
        let mut host = format!(
            "[control]\nsocket = {}\nmetrics = \"127.0.0.1:0\"\n[[gpu]]\nname = \"gpu0\"\ndevice = \"model:gtx480\"\n\
             vram = \"{CARD}\"\nhost_ram = \"256M\"\n",
            at("control.sock")
        );
        for (vm, mib, guest_vram) in VMS {
            let socket = at(&format!("{vm}.sock"));
            host += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"gpu0\"\nsocket = {socket}\nguest_vram = \"{guest_vram}\"\nram = \"512M\"\n"
            );
            let file = format!(
                "name = \"{vm}\"\nmemory = \"128M\"\noptions = \"vramd.workload=triad vramd.footprint_kib={} \
                 vramd.rounds={ROUNDS}\"\n[vgpu]\nsocket = {socket}\n",
                mib << 10
            );
            write(&folder.join(format!("{vm}.toml")), &file)?;
        }
        let path = folder.join("host.toml");
        write(&path, &host)?;
        let mut command = Command::new(vramd);
        command.args(["serve", "--config"]).arg(&path);
        let mut broker = Process::start("vramd serve", command, folder.join("broker.log"))?;
        let metrics = loop {
            let line = broker.line().context("the broker does not start")?;
            if let Some(address) = metrics_address(&line) {
                break address;
            }
        };
        Ok(Self {
            vramd: vramd.to_owned(),
            folder: folder.to_owned(),
            broker,
            vms: Vec::new(),
            metrics,
            marks: Vec::new(),
        })
    }

    /// Where the broker can be scraped.
    pub(super) fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Starts a VM, and lets it work for so many seconds.
    pub(super) fn run(&mut self, vm: &str, seconds: u64) -> Result<()> {
        self.mark(format!("{vm} starts"));
        let mut command = Command::new(&self.vramd);
        command
            .args(["run", "--no-kvm", "--json"])
            .arg(self.folder.join(format!("{vm}.toml")));
        let log = self.folder.join(format!("{vm}.log"));
        self.vms.push(Process::start("vramd run", command, log)?);
        self.wait(seconds)
    }

    /// Says a verb as an operator does, and lets so many seconds go by.
    pub(super) fn say(&mut self, line: &str, seconds: u64) -> Result<()> {
        self.mark(line.to_owned());
        let output = self.verb(line).output().context("cannot start vramd")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vramd {line}: {}", said.trim());
        self.wait(seconds)
    }

    /// A command with the words of a line that asks this broker.
    pub(super) fn verb(&self, line: &str) -> Command {
        let mut command = Command::new(&self.vramd);
        command
            .args(line.split_whitespace())
            .env("VRAMD_CONTROL", self.folder.join("control.sock"));
        command
    }

    fn mark(&mut self, what: String) {
        println!("{what}");
        self.marks.push(Mark { at: now(), what });
    }

    /// Lets time go by; all that was started has to be at work then.
    pub(super) fn wait(&mut self, seconds: u64) -> Result<()> {
        thread::sleep(Duration::from_secs(seconds));
        for process in self.vms.iter_mut().chain([&mut self.broker]) {
            process.check_runs()?;
        }
        Ok(())
    }

    /// Ends it as an operator does; an error in the broker's log is one.
    pub(super) fn stop(mut self) -> Result<()> {
        for vm in &mut self.vms {
            vm.terminate()?;
        }
        self.broker.terminate_clean()
    }
}

/// The address of the line in which `serve` tells where its metrics are.
fn metrics_address(line: &str) -> Option<SocketAddr> {
    let url = line.strip_prefix("metrics at http://")?;
    url.strip_suffix("/metrics")?.parse().ok()
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_that_of_the_metrics_line_alone() {
        let address = metrics_address("metrics at http://127.0.0.1:9400/metrics").unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:9400");
        assert_eq!(metrics_address("vm a: 48M guest VRAM at a.sock"), None);
        assert_eq!(metrics_address("metrics at http://somewhere/metrics"), None);
    }

    #[test]
    fn vms_want_more_than_the_card_has() {
        let wanted: u32 = VMS.iter().map(|(_, mib, _)| mib).sum();
        let card: u32 = CARD.trim_end_matches('M').parse().unwrap();
        assert!(wanted > card);
    }
}
