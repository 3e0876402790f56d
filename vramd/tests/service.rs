//! What `serve` tells the service manager that started it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use process::{Process, vramd};
use rustix::process::Signal;

const WAIT: Duration = Duration::from_secs(20);

/// A service manager's end, and a folder with a `host.toml` of one software card and one VM.
struct Manager {
    folder: tempfile::TempDir,
    told: UnixDatagram,
}

impl Manager {
    fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let told = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        told.set_read_timeout(Some(WAIT)).unwrap();
        Manager { folder, told }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("a.sock")
    }

    /// Starts a broker that is to be heard each `watchdog_us`.
    fn serve(&self, watchdog_us: u32) -> Process {
        let config = self.folder.path().join("host.toml");
        let text = format!(
            "[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"32M\"\n\
             [[vm]]\nname = \"a\"\ngpu = \"g\"\nsocket = {:?}\nguest_vram = \"8M\"\n",
            self.socket()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = vramd(&["serve", "--config", config.to_str().unwrap()]);
        let notify: &Path = &self.folder.path().join("notify");
        command
            .env("NOTIFY_SOCKET", notify)
            .env("WATCHDOG_USEC", watchdog_us.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Process(command.spawn().unwrap())
    }

    /// The next message.
    fn hear(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.told.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }
}

#[test]
fn service_manager_hears_that_sockets_listen_that_brokers_answer_and_that_the_end_begins() {
    let manager = Manager::new();
    let broker = manager.serve(400_000);
    assert_eq!(manager.hear(), "READY=1\n");
    UnixStream::connect(manager.socket()).unwrap();
    assert_eq!(manager.hear(), "WATCHDOG=1\nSTATUS=g: 0 of 1 VMs connected\n");
    assert_eq!(manager.hear(), "WATCHDOG=1\n");
    broker.signal(Signal::TERM);
    while manager.hear() != "STOPPING=1\n" {}
}
