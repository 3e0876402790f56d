//! The control API under attack by members of its group, while VMs work: their work is right and ends, the broker's own operators are
//! answered, and nothing is left of it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use process::{Process, json, output, text};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Numbers of a user and a group that no host has.
const MEMBER: u32 = 54_331;
const OPERATORS: u32 = 54_333;
/// No state is waited for longer.
const WAIT: Duration = Duration::from_secs(60);
/// Questions of the honest operator.
const QUESTIONS: u32 = 20;
/// Time between two rounds of an attacker.
const PACE: Duration = Duration::from_millis(1);
/// Connections that are kept open by one attacker.
const CROWD: usize = 1000;

/// `serve` with a card of 128M and VMs `a` and `b` of 64M, and a group that may control it.
struct Host {
    folder: tempfile::TempDir,
    broker: Process,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = format!(
            "[control]\nsocket = {:?}\ngroup = {OPERATORS}\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"128M\"\n",
            at("control.sock")
        );
        for vm in ["a", "b"] {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"g\"\nsocket = {socket:?}\nguest_vram = \"64M\"\nram = \"1G\"\n"
            );
            let file = format!(
                "name = \"{vm}\"\nmemory = \"128M\"\noptions = \"vramd.workload=triad vramd.footprint_kib=40960 \
                 vramd.rounds=16\"\n[vgpu]\nsocket = {socket:?}\n"
            );
            std::fs::write(at(&format!("{vm}.toml")), file).unwrap();
        }
        std::fs::write(at("host.toml"), config).unwrap();
        let mut broker = Process::start(&["serve", "--config", at("host.toml").to_str().unwrap()]);
        broker.first_line();
        Host { folder, broker }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn run(&self, vm: &str) -> Process {
        let file = self.folder.path().join(format!("{vm}.toml"));
        Process::start(&["run", "--no-kvm", "--json", file.to_str().unwrap()])
    }

    /// What a verb of root's answers, and how long that took.
    fn ask(&self, arguments: &[&str]) -> (serde_json::Value, Duration) {
        let socket = self.socket();
        let start = Instant::now();
        let output = output(&[arguments, &["--json", "--control", socket.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        (json(&output), start.elapsed())
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.broker.0.id());
        std::fs::read_dir(folder).unwrap().count()
    }
}

/// One who attacks, until he is told to stop.
struct Attacker {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Attacker {
    /// Repeats `round` on a thread of a member of the group. What becomes of a connection is the broker's to say.
    fn start(socket: &Path, mut round: impl FnMut(&Path) -> std::io::Result<()> + Send + 'static) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, count, socket) = (stop.clone(), rounds.clone(), socket.to_owned());
        let run = move || {
            set_thread_groups(&[Gid::from_raw(OPERATORS)]).unwrap();
            let (uid, gid) = (Uid::from_raw(MEMBER), Gid::from_raw(MEMBER));
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                if let Err(error) = round(&socket) {
                    let kinds = [
                        ErrorKind::BrokenPipe,
                        ErrorKind::ConnectionReset,
                        ErrorKind::WouldBlock,
                    ];
                    assert!(kinds.contains(&error.kind()), "{error}");
                }
                count.fetch_add(1, Ordering::Relaxed);
                // They share the processors with the VMs, which have to live on what is left.
                thread::sleep(PACE);
            }
        };
        Self {
            stop,
            rounds,
            thread: thread::spawn(run),
        }
    }

    /// Ends it; it did something.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        assert!(self.rounds.load(Ordering::Relaxed) > 0);
    }
}

fn connected(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    Ok(stream)
}

/// Sends a request, and reads the answer to its end.
fn exchange(socket: &Path, request: &[u8]) -> std::io::Result<()> {
    let mut stream = connected(socket)?;
    stream.write_all(request)?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

/// Many connections that say nothing, each opened anew as it is closed.
fn crowd() -> impl FnMut(&Path) -> std::io::Result<()> + Send {
    let mut all: Vec<UnixStream> = Vec::new();
    move |socket| {
        if all.len() >= CROWD {
            all.drain(..CROWD / 10);
        }
        all.push(connected(socket)?);
        Ok(())
    }
}

/// A request whose bytes come one by one.
fn slow(socket: &Path) -> std::io::Result<()> {
    let mut stream = connected(socket)?;
    for byte in b"PATCH /v1/vms/a/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: 999\r\n\r\n{{{{{" {
        stream.write_all(&[*byte])?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Bodies that are too long, no text, or not what is asked for.
fn wrong(socket: &Path) -> std::io::Result<()> {
    let long = vec![b' '; 1 << 20];
    for body in [&long[..], b"{\"min\xff\":1}", b"{\"mim\":1}", b"[[[[[[[[[[[["] {
        let head = format!(
            "PATCH /v1/vms/a/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        // One that is too long is answered before all of it is read.
        match exchange(socket, &[head.as_bytes(), body].concat()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            other => other?,
        }
    }
    exchange(socket, &[0xff; 3000])
}

/// Questions for events and for all VMs whose answers nobody reads.
fn unread() -> impl FnMut(&Path) -> std::io::Result<()> + Send {
    let mut all: Vec<UnixStream> = Vec::new();
    move |socket| {
        if all.len() >= 100 {
            all.clear();
        }
        for path in ["/v1/events", "/v1/events?wait_ms=10000", "/v1/vms", "/v1/metrics"] {
            let mut stream = connected(socket)?;
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: vramd\r\n\r\n").as_bytes())?;
            all.push(stream);
        }
        Ok(())
    }
}

#[test]
fn attacked_api_answers_its_own_operators_and_takes_nothing_of_vms() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: to act as another user takes root");
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let mut host = Host::new();
    let idle = host.descriptors();
    let vms = ["a", "b"].map(|vm| host.run(vm));
    let socket = host.socket();
    let attackers = [
        Attacker::start(&socket, crowd()),
        Attacker::start(&socket, slow),
        Attacker::start(&socket, wrong),
        Attacker::start(&socket, unread()),
    ];
    // Nobody but those whose broker it is has a place left: the crowd is told so, or is cut off.
    let mut longest = Duration::ZERO;
    for question in 1..=QUESTIONS {
        let (changed, took) = host.ask(&["quota", "a", "--weight", &question.to_string()]);
        assert_eq!(changed["after"]["weight"], question);
        longest = longest.max(took);
    }
    eprintln!("{QUESTIONS} changes of a quota, the longest took {longest:?}");
    for mut vm in vms {
        let ended = vm.wait();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        // Its results were compared with a calculation on the CPU.
        assert_eq!(json(&ended)["end"], "the workload ended");
    }
    // Whatever the attackers sent, the quota is the operator's.
    let (shown, _) = host.ask(&["show", "a"]);
    assert_eq!(shown["quota"]["weight"], QUESTIONS);
    attackers.into_iter().for_each(Attacker::end);
    let start = Instant::now();
    while host.descriptors() > idle {
        assert!(start.elapsed() < WAIT, "{} of {idle}", host.descriptors());
        thread::sleep(Duration::from_millis(50));
    }
    let ended = host.broker.terminate();
    let log = text(&ended.stderr);
    assert!(ended.status.success() && !log.contains("panicked"), "{log}");
    // Attackers can cause lines of the log: they are few.
    assert!(log.lines().count() < 100, "{log}");
}
