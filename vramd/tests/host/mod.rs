//! A `serve` of a test's own: its host.toml, its VMs, and operators who ask it.

use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use vfio_user_server::{Region, RemoteFunction};

use super::process::{Process, complaint, json, output, text, vramd};

pub(crate) const MIB: u64 = 1 << 20;
/// No state is waited for longer: VMs compute on processors that other tests use too.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// What a host.toml says. `FOLDER` in a line is the folder in which the file lies.
#[derive(Default)]
pub(crate) struct Config {
    control: String,
    gpus: String,
    vms: String,
    last_gpu: String,
}

impl Config {
    /// Operators have a socket; `more` are lines of its section.
    pub(crate) fn new(more: &str) -> Self {
        Self {
            control: format!("[control]\nsocket = \"FOLDER/control.sock\"\n{more}\n"),
            ..Self::default()
        }
    }

    /// One more software card; `more` are lines of its section.
    pub(crate) fn gpu(self, name: &str, vram: &str, more: &str) -> Self {
        self.device(name, "model:gtx480", &format!("vram = \"{vram}\"\n{more}"))
    }

    /// One more card, whichever it is.
    pub(crate) fn device(mut self, name: &str, device: &str, more: &str) -> Self {
        self.gpus += &format!("[[gpu]]\nname = {name:?}\ndevice = {device:?}\n{more}\n");
        self.last_gpu = name.to_owned();
        self
    }

    /// One more VM, on the last of the cards; `more` are lines of its section.
    pub(crate) fn vm(self, name: &str, guest_vram: &str, more: &str) -> Self {
        self.vm_at(name, &format!("FOLDER/{name}.sock"), guest_vram, more)
    }

    /// The same with another socket than usual.
    pub(crate) fn vm_at(mut self, name: &str, socket: &str, guest_vram: &str, more: &str) -> Self {
        let gpu = &self.last_gpu;
        self.vms += &format!(
            "[[vm]]\nname = {name:?}\ngpu = {gpu:?}\nsocket = {socket:?}\nguest_vram = {guest_vram:?}\nram = \"1G\"\n{more}\n"
        );
        self
    }
}

/// A host's folder, which others may enter, and its broker once it is started.
pub(crate) struct TestHost {
    folder: tempfile::TempDir,
    broker: Option<Process>,
}

impl TestHost {
    /// With a host.toml, and nobody who serves it.
    pub(crate) fn new(config: &Config) -> Self {
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            broker: None,
        };
        std::fs::set_permissions(host.folder.path(), Permissions::from_mode(0o711)).unwrap();
        host.write(config);
        host
    }

    /// With a broker that listens.
    pub(crate) fn serving(config: &Config) -> Self {
        let mut host = Self::new(config);
        host.start();
        host
    }

    /// Writes host.toml anew, as editors do: the file is another one afterwards.
    pub(crate) fn write(&self, config: &Config) {
        let all = [&*config.control, &*config.gpus, &*config.vms].concat();
        let all = all.replace("FOLDER", &self.path(""));
        std::fs::write(self.at("host.toml.new"), all).unwrap();
        std::fs::rename(self.at("host.toml.new"), self.at("host.toml")).unwrap();
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The same as a word of a command.
    pub(crate) fn path(&self, name: &str) -> String {
        let path = self.at(name).to_str().unwrap().to_owned();
        path.trim_end_matches('/').to_owned()
    }

    /// The command that serves.
    pub(crate) fn command(&self, more: &[&str]) -> Command {
        vramd(&[&["serve", "--config", &self.path("host.toml")], more].concat())
    }

    pub(crate) fn start(&mut self) -> String {
        self.start_by(&mut self.command(&[]))
    }

    /// Starts it in a way of the test's, waits until it listens, and returns its first line.
    pub(crate) fn start_by(&mut self, command: &mut Command) -> String {
        self.broker.insert(Process::spawn(command)).next_line()
    }

    /// What is said of a broker that does not start.
    pub(crate) fn refused_start(&self) -> String {
        complaint(&["serve", "--config", &self.path("host.toml")], 1)
    }

    pub(crate) fn broker(&mut self) -> &mut Process {
        self.broker.as_mut().expect("it was started")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.broker.as_ref().expect("it was started").signal(signal);
    }

    /// Descriptors that the broker has open.
    pub(crate) fn descriptors(&self) -> usize {
        let broker = self.broker.as_ref().expect("it was started");
        let folder = format!("/proc/{}/fd", broker.0.id());
        std::fs::read_dir(folder).unwrap().count()
    }

    /// Has it end as it should, and returns what it said.
    pub(crate) fn stop(&mut self) -> String {
        let ended = self.broker().terminate();
        let said = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        said
    }

    pub(crate) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    /// Writes the file of a VM, with words for its guest.
    pub(crate) fn write_vm(&self, vm: &str, options: &str, inputs: &[&Path]) {
        let socket = self.path(&format!("{vm}.sock"));
        let file = format!(
            "name = {vm:?}\nmemory = \"128M\"\noptions = {options:?}\ninputs = {inputs:?}\n[vgpu]\nsocket = {socket:?}\n"
        );
        std::fs::write(self.at(&format!("{vm}.toml")), file).unwrap();
    }

    /// Starts a VM whose file is written.
    pub(crate) fn start_vm(&self, vm: &str, more: &[&str]) -> Process {
        let file = self.path(&format!("{vm}.toml"));
        Process::start(&[&["run", "--json", &file], more].concat())
    }

    /// Starts a VM on threads, with words for its guest.
    pub(crate) fn run(&self, vm: &str, options: &str) -> Process {
        self.write_vm(vm, options, &[]);
        self.start_vm(vm, &["--no-kvm"])
    }

    /// Connects as the VMM of a VM, and waits until it is served.
    pub(crate) fn vmm(&self, vm: &str) -> RemoteFunction {
        let vmm = RemoteFunction::connect(&self.at(&format!("{vm}.sock")), WAIT).unwrap();
        vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
        vmm
    }

    /// The operators' socket.
    pub(crate) fn control(&self) -> String {
        self.path("control.sock")
    }

    /// Connects as a client of the API.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.control()).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    /// Starts a verb, with its output to read from.
    pub(crate) fn start_verb(&self, arguments: &[&str]) -> Process {
        Process::start(&[arguments, &["--control", &self.control()]].concat())
    }

    /// What becomes of a verb.
    pub(crate) fn tried(&self, arguments: &[&str]) -> Output {
        output(&[arguments, &["--control", &self.control()]].concat())
    }

    /// What a verb prints that is done.
    pub(crate) fn say(&self, arguments: &[&str]) -> String {
        let output = self.tried(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The same as a document.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// What is said of a verb that is not done.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        complaint(&[arguments, &["--control", &self.control()]].concat(), 1)
    }

    /// Names of all VMs.
    pub(crate) fn names(&self) -> Vec<String> {
        let vms = self.ask(&["list"])["vms"].clone();
        let names = vms.as_array().unwrap().iter();
        names.map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
    }

    /// A figure of the usage of a VM; 0 if it is not connected.
    pub(crate) fn bytes(&self, vm: &str, figure: &str) -> u64 {
        self.ask(&["show", vm])["usage"][figure].as_u64().unwrap_or(0)
    }

    pub(crate) fn is_connected(&self, vm: &str) -> bool {
        !self.ask(&["show", vm])["usage"].is_null()
    }

    /// All events, or those of a VM, even of one that has no place any more.
    pub(crate) fn events(&self, vm: Option<&str>) -> Vec<Value> {
        let events = self.ask(&["events"])["events"].take();
        let mut events = events.as_array().unwrap().clone();
        events.retain(|event| vm.is_none_or(|vm| event["vm"] == vm));
        events
    }

    /// Texts of events of a kind.
    pub(crate) fn told(&self, kind: &str, vm: Option<&str>) -> Vec<String> {
        let events = self.events(vm).into_iter();
        let of_kind = events.filter(|event| event["kind"] == kind);
        of_kind
            .map(|event| event["text"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Looks until something is there.
    pub(crate) fn wait_for<T>(&self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            let waited = start.elapsed();
            let list = || text(&self.tried(&["list"]).stdout);
            assert!(waited < WAIT, "still not: {what}\n{}", list());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        self.wait_for(what, |host| is_so(host).then_some(()));
    }
}

/// Words for a guest that computes in so many MiB, so often.
pub(crate) fn triad(mebibytes: u64, rounds: u32) -> String {
    let kibibytes = mebibytes << 10;
    format!("vramd.workload=triad vramd.footprint_kib={kibibytes} vramd.rounds={rounds}")
}

/// A VM ran to its end, and its results were compared with a calculation on the CPU.
pub(crate) fn check_end(mut vm: Process) {
    let output = vm.wait();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(json(&output)["end"], "the workload ended");
}

/// A request that changes nothing.
pub(crate) fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: vramd\r\n\r\n").into_bytes()
}

/// Reads an answer to its end: status, head and body. 0 if the connection was closed without one.
pub(crate) fn answer(mut stream: impl Read) -> (u16, String, String) {
    let mut bytes = Vec::new();
    // A server that closes with something unread resets the connection after its answer.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    let all = String::from_utf8(bytes).unwrap();
    let Some((head, body)) = all.split_once("\r\n\r\n") else {
        return (0, String::new(), String::new());
    };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}
