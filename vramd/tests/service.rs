//! What `serve` tells the service manager that started it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::os::unix::net::{UnixDatagram, UnixStream};

use host::{Config, TestHost, WAIT};
use rustix::process::Signal;

/// A service manager's end, and the broker that it started.
struct Manager {
    host: TestHost,
    told: UnixDatagram,
}

impl Manager {
    /// Starts a broker that is to be heard each `watchdog_us`.
    fn new(watchdog_us: u32) -> Manager {
        let config = Config::default().gpu("g", "32M", "");
        let mut host = TestHost::new(&config.vm("a", "8M", ""));
        let told = UnixDatagram::bind(host.at("notify")).unwrap();
        told.set_read_timeout(Some(WAIT)).unwrap();
        let mut command = host.command(&[]);
        command
            .env("NOTIFY_SOCKET", host.at("notify"))
            .env("WATCHDOG_USEC", watchdog_us.to_string());
        host.start_by(&mut command);
        Manager { host, told }
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
    let manager = Manager::new(400_000);
    assert_eq!(manager.hear(), "READY=1\n");
    UnixStream::connect(manager.host.at("a.sock")).unwrap();
    assert_eq!(manager.hear(), "WATCHDOG=1\nSTATUS=g: 0 of 1 VMs connected\n");
    assert_eq!(manager.hear(), "WATCHDOG=1\n");
    manager.host.signal(Signal::TERM);
    while manager.hear() != "STOPPING=1\n" {}
}
