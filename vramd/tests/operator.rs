//! What an operator gets of a `serve` process beside the control API itself: metrics, a live view, completions, manual pages.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "operator/exposition.rs"]
mod exposition;
#[path = "operator/gone.rs"]
mod gone;
#[path = "operator/looks.rs"]
mod looks;
#[path = "operator/metrics.rs"]
mod metrics;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;
#[path = "operator/story.rs"]
mod story;
#[path = "operator/terminal.rs"]
mod terminal;
#[path = "operator/top.rs"]
mod top;
#[path = "operator/verbs.rs"]
mod verbs;
#[path = "operator/watch.rs"]
mod watch;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use process::Process;
use serde_json::Value;
use vfio_user_server::{Region, RemoteFunction};

const WAIT: Duration = Duration::from_secs(60);

/// The next line of its output. Nothing after it is read.
fn next_line(process: &mut Process) -> String {
    let out = process.0.stdout.as_mut().unwrap();
    let (mut line, mut byte) = (Vec::new(), [0]);
    while out.read_exact(&mut byte).is_ok() && byte != *b"\n" {
        line.extend(byte);
    }
    process::text(&line)
}

/// `serve` with two cards, VMs `a` and `b` on the first and `c` on the second.
struct Served {
    folder: tempfile::TempDir,
    broker: Process,
    /// What it said as it was ready.
    said: Vec<String>,
}

impl Served {
    /// `more` are lines of the control section.
    fn new(more: &str) -> Served {
        Self::with_second_card(more, "model:gtx480")
    }

    /// The same where the second card is this device.
    fn with_second_card(more: &str, device: &str) -> Served {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let config = Self::config_with(&folder, more, device);
        let mut served = Served {
            broker: Process::start(&["serve", "--config", &config]),
            folder,
            said: Vec::new(),
        };
        let lines = 3 + more.lines().filter(|line| line.starts_with("metrics")).count();
        served.said = (0..lines).map(|_| next_line(&mut served.broker)).collect();
        served
    }

    /// Writes a host.toml, and returns its path.
    fn config(folder: &tempfile::TempDir, more: &str) -> String {
        Self::config_with(folder, more, "model:gtx480")
    }

    fn config_with(folder: &tempfile::TempDir, more: &str, second: &str) -> String {
        let at = |name: &str| folder.path().join(name);
        let mut config = format!("[control]\nsocket = {:?}\n{more}\n", at("control.sock"));
        for (gpu, device) in [("g0", "model:gtx480"), ("g1", second)] {
            config += &format!("[[gpu]]\nname = \"{gpu}\"\ndevice = \"{device}\"\n");
            if device.starts_with("model:") {
                config += "vram = \"64M\"\n";
            }
        }
        for (vm, gpu) in [("a", "g0"), ("b", "g0"), ("c", "g1")] {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"{gpu}\"\nsocket = {socket:?}\nguest_vram = \"48M\"\nram = \"1G\"\n"
            );
        }
        std::fs::write(at("host.toml"), config).unwrap();
        at("host.toml").to_str().unwrap().to_owned()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Connects as the VMM of a VM, and waits until it is served.
    fn vmm(&self, vm: &str) -> RemoteFunction {
        let path = self.folder.path().join(format!("{vm}.sock"));
        let vmm = RemoteFunction::connect(&path, WAIT).unwrap();
        vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
        vmm
    }

    /// Starts a verb, with its output to read from.
    fn start(&self, arguments: &[&str]) -> Process {
        let socket = self.socket();
        Process::start(&[arguments, &["--control", socket.to_str().unwrap()]].concat())
    }

    /// What is said of a verb that is not done.
    fn refused(&self, arguments: &[&str], status: i32) -> String {
        let socket = self.socket();
        process::complaint(
            &[arguments, &["--control", socket.to_str().unwrap()]].concat(),
            status,
        )
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.told(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs a verb, and returns what it prints.
    fn told(&self, arguments: &[&str]) -> String {
        let socket = self.socket();
        let output = process::output(&[arguments, &["--control", socket.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", process::text(&output.stderr));
        process::text(&output.stdout)
    }
}
