//! The control API under attack by members of its group, while VMs work: their work is right and ends, the broker's own operators are
//! answered, and nothing is left of it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use host::{Config, TestHost, check_end, triad};
use process::{as_user, is_root, raise_descriptor_limit};

/// Numbers of a user and a group that no host has. Each attacker is a user of his own behind the first, with a pace of his own.
const MEMBER: u32 = 54_331;
const ATTACKERS: u32 = 54_341;
const OPERATORS: u32 = 54_333;
/// Questions of the honest operator.
const QUESTIONS: u32 = 20;
/// Time between two rounds of an attacker.
const PACE: Duration = Duration::from_millis(1);
/// Connections that are kept open by one attacker.
const CROWD: usize = 1000;

/// One who attacks, until he is told to stop.
struct Attacker {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Attacker {
    /// Repeats `round` on a thread of a member of the group, the one of that number. What becomes of a connection is the broker's to say.
    fn start(
        number: u32,
        socket: &Path,
        mut round: impl FnMut(&Path) -> std::io::Result<()> + Send + 'static,
    ) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, count, socket) = (stop.clone(), rounds.clone(), socket.to_owned());
        let run = move || {
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
            thread: as_user((ATTACKERS + number, MEMBER), &[OPERATORS], run),
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
    if !is_root() {
        return;
    }
    raise_descriptor_limit();
    // A group may control it.
    let config = Config::new(&format!("group = {OPERATORS}")).gpu("g", "128M", "");
    let mut host = TestHost::serving(&config.vm("a", "64M", "").vm("b", "64M", ""));
    let idle = host.descriptors();
    let vms = ["a", "b"].map(|vm| host.run(vm, &triad(40, 16)));
    let socket = PathBuf::from(host.control());
    let attackers = [
        Attacker::start(0, &socket, crowd()),
        Attacker::start(1, &socket, slow),
        Attacker::start(2, &socket, wrong),
        Attacker::start(3, &socket, unread()),
    ];
    // Nobody but those whose broker it is has a place left: the crowd is told so, or is cut off.
    let mut longest = Duration::ZERO;
    for question in 1..=QUESTIONS {
        let start = Instant::now();
        let changed = host.ask(&["quota", "a", "--weight", &question.to_string()]);
        longest = longest.max(start.elapsed());
        assert_eq!(changed["after"]["weight"], question);
    }
    eprintln!("{QUESTIONS} changes of a quota, the longest took {longest:?}");
    vms.into_iter().for_each(check_end);
    // Whatever the attackers sent, the quota is the operator's.
    let shown = host.ask(&["show", "a"]);
    assert_eq!(shown["quota"]["weight"], QUESTIONS);
    attackers.into_iter().for_each(Attacker::end);
    host.wait_until("as many descriptors as before", |host| host.descriptors() <= idle);
    let log = host.stop();
    assert!(!log.contains("panicked"), "{log}");
    // Attackers can cause lines of the log: they are few.
    assert!(log.lines().count() < 100, "{log}");
}

/// Answers to so many questions that a member of the group asks as fast as they are answered, by their status.
fn answers(socket: &Path, user: u32, questions: u32) -> Vec<(String, String)> {
    let socket = socket.to_owned();
    let ask = move || {
        let question = || -> std::io::Result<(String, String)> {
            let mut stream = connected(&socket)?;
            stream.write_all(b"GET /v1/gpus HTTP/1.1\r\nhost: vramd\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
            Ok((status, answer))
        };
        (0..questions).map(|_| question().unwrap()).collect()
    };
    as_user((user, user), &[OPERATORS], ask).join().unwrap()
}

#[test]
fn member_who_asks_too_often_is_told_so_and_nobody_else_is_concerned() {
    if !is_root() {
        return;
    }
    let config = Config::new(&format!("group = {OPERATORS}")).gpu("g", "64M", "");
    let host = TestHost::serving(&config.vm("a", "32M", ""));
    let socket = PathBuf::from(host.control());
    let told = answers(&socket, MEMBER, 600);
    let done = told.iter().filter(|(status, _)| status == "200").count();
    let refused: Vec<_> = told.iter().filter(|(status, _)| status == "429").collect();
    // 200 at once, and then 50 a second: an answer takes some milliseconds at most.
    assert!(
        (200..500).contains(&done) && done + refused.len() == 600,
        "{done} of 600"
    );
    for words in [
        "too_often",
        "asks more often than 50 times a second: try again in ",
    ] {
        assert!(refused[0].1.contains(words), "{}", refused[0].1);
    }
    let another = answers(&socket, ATTACKERS, 20);
    assert!(another.iter().all(|(status, _)| status == "200"), "{another:?}");
    // Root's answers are not counted.
    for _ in 0..3 {
        host.ask(&["show", "a"]);
    }
}
