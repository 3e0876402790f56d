//! `serve` with a VM that works, one that starts when asked, and one that never comes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::process::{Process, until};

/// Longest time for the work of a VM.
const WORK_PATIENCE: Duration = Duration::from_secs(240);
/// Memory that its work takes, and of all of it the part after which it is at work.
const WORK_KIB: u64 = 40_960;
/// Rounds of the VM that works all the time: more than there is time for.
const ENDLESS: u32 = 10_000_000;
/// Rounds of the other.
const SOME: u32 = 8;

/// The running processes.
pub(super) struct Served {
    vramd: PathBuf,
    folder: PathBuf,
    broker: Process,
    worker: Process,
}

/// The fields of `vramd show --json` that are looked at.
#[derive(Deserialize)]
struct Shown {
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    resident_bytes: u64,
    spilled_bytes: u64,
}

/// The field of `vramd run --json`.
#[derive(Deserialize)]
struct Ended {
    end: String,
}

impl Served {
    /// Starts `serve` and the VM that works, and waits until it does. Files go to `folder`.
    pub(super) fn start(vramd: &Path, folder: &Path) -> Result<Self> {
        let at = |name: &str| json!(folder.join(name));
        let mut host = format!("[control]\nsocket = {}\n", at("control.sock"));
        for gpu in ["g0", "g1"] {
            host += &format!("[[gpu]]\nname = \"{gpu}\"\ndevice = \"model:gtx480\"\nvram = \"128M\"\n");
        }
        for (vm, gpu, rounds) in [("a", "g0", ENDLESS), ("b", "g0", SOME), ("c", "g1", SOME)] {
            let socket = at(&format!("{vm}.sock"));
            host += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"{gpu}\"\nsocket = {socket}\nguest_vram = \"64M\"\nram = \"1G\"\n"
            );
            let file = format!(
                "name = \"{vm}\"\nmemory = \"128M\"\noptions = \"vramd.workload=triad vramd.footprint_kib={WORK_KIB} \
                 vramd.rounds={rounds}\"\n[vgpu]\nsocket = {socket}\n"
            );
            write(&folder.join(format!("{vm}.toml")), &file)?;
        }
        let path = folder.join("host.toml");
        write(&path, &host)?;
        let mut command = Command::new(vramd);
        command.args(["serve", "--config"]).arg(&path);
        let mut broker = Process::start("vramd serve", command, folder.join("broker.log"))?;
        broker.line().context("the broker does not start")?;
        let served = Self {
            vramd: vramd.to_owned(),
            folder: folder.to_owned(),
            worker: vm(vramd, folder, "a")?,
            broker,
        };
        until("the VM's memory", || {
            let shown: Shown = serde_json::from_str(&served.told(&["show", "a", "--json"])?)?;
            let has = |usage: Usage| usage.resident_bytes + usage.spilled_bytes >= WORK_KIB << 10;
            Ok(shown.usage.is_some_and(has).then_some(()))
        })?;
        Ok(served)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// What a verb prints.
    fn told(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.vramd)
            .args(arguments)
            .arg("--control")
            .arg(self.socket())
            .output()
            .context("cannot start vramd")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "vramd {arguments:?}: {}", said.trim());
        String::from_utf8(output.stdout).context("a verb says what is no text")
    }

    /// Lets all VMs go on, sees that the one still works and that what the other computes beside it is right, and ends both.
    pub(super) fn check_work(&mut self) -> Result<()> {
        for vm in ["a", "b"] {
            self.told(&["thaw", vm, "--no-wait"])?;
            self.told(&["refill", vm, "--no-wait"])?;
            self.told(&["resume", vm])?;
            self.told(&[
                "quota", vm, "--min", "0", "--low", "0", "--high", "max", "--max", "max",
            ])?;
        }
        let mut other = vm(&self.vramd, &self.folder, "b")?;
        let line = other
            .line_within(WORK_PATIENCE)
            .context("the VM that works beside")?;
        let Ended { end } = serde_json::from_str(&line).with_context(|| format!("a VM says {line}"))?;
        let status = other.wait()?;
        ensure!(
            status.success() && end == "the workload ended",
            "a VM ended with {status}: {end}"
        );
        self.worker.check_runs()?;
        self.worker.terminate()?;
        Ok(())
    }

    /// Ends it as an operator does; an error in its log is one.
    pub(super) fn stop(self) -> Result<()> {
        self.broker.terminate_clean()
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Starts the VM of a name.
fn vm(vramd: &Path, folder: &Path, name: &str) -> Result<Process> {
    let mut command = Command::new(vramd);
    command
        .args(["run", "--no-kvm", "--json"])
        .arg(folder.join(format!("{name}.toml")));
    Process::start("vramd run", command, folder.join(format!("{name}.log")))
}
