//! The control API of a `serve` process: what operators get from it, and what others do not.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use process::{Process, complaint, output, text, vramd};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use vfio_user_server::{Region, RemoteFunction};

const WAIT: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;
/// Numbers of users and groups that no host has.
const STRANGER: u32 = 54_321;
const OPERATORS: u32 = 54_323;

/// `serve` with two cards, VMs `a` and `b` on the first and `c` on the second.
struct Served {
    folder: tempfile::TempDir,
    broker: Process,
}

impl Served {
    /// `more` are lines of the control section.
    fn new(more: &str) -> Served {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut config = format!("[control]\nsocket = {:?}\n{more}\n", at("control.sock"));
        for gpu in ["g0", "g1"] {
            config += &format!("[[gpu]]\nname = \"{gpu}\"\ndevice = \"model:gtx480\"\nvram = \"64M\"\n");
        }
        for (vm, gpu) in [("a", "g0"), ("b", "g0"), ("c", "g1")] {
            let socket = at(&format!("{vm}.sock"));
            config += &format!(
                "[[vm]]\nname = \"{vm}\"\ngpu = \"{gpu}\"\nsocket = {socket:?}\nguest_vram = \"48M\"\nram = \"1G\"\n"
            );
        }
        std::fs::write(at("host.toml"), config).unwrap();
        let mut broker = Process::start(&["serve", "--config", at("host.toml").to_str().unwrap()]);
        broker.first_line();
        Served { folder, broker }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.at("control.sock")
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.socket()).unwrap()
    }

    /// Connects as the VMM of a VM, and waits until it is served.
    fn vmm(&self, vm: &str) -> RemoteFunction {
        let vmm = RemoteFunction::connect(&self.at(&format!("{vm}.sock")), WAIT).unwrap();
        vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
        vmm
    }

    /// Runs a verb, and returns what it prints as JSON.
    fn ask(&self, arguments: &[&str]) -> Value {
        let socket = self.socket();
        let more = ["--json", "--control", socket.to_str().unwrap()];
        let output = output(&[arguments, &more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        process::json(&output)
    }

    /// What is said of a verb that is not done.
    fn refused(&self, arguments: &[&str], status: i32) -> String {
        let socket = self.socket();
        complaint(
            &[arguments, &["--control", socket.to_str().unwrap()]].concat(),
            status,
        )
    }

    fn quota(&self, vm: &str) -> Value {
        self.ask(&["show", vm])["quota"].clone()
    }

    /// Sends the bytes of a request, and returns status and document of the answer.
    fn http(&self, request: &[u8]) -> (u16, Value) {
        let mut stream = self.connect();
        // One that is too long is answered before all of it is read.
        let _ = stream.write_all(request);
        answer(stream)
    }

    /// The quotas of all connected VMs in the state that the core itself writes, not by way of the API.
    fn quotas_of_the_core(&self) -> String {
        let before = self.flights();
        self.broker.signal(Signal::USR1);
        let start = Instant::now();
        let mut last = String::new();
        loop {
            assert!(start.elapsed() < WAIT, "no flight files are written");
            std::thread::sleep(Duration::from_millis(300));
            let after = self.flights();
            let new: Vec<_> = after.iter().filter(|path| !before.contains(path)).collect();
            let texts = new.iter().map(|path| std::fs::read_to_string(path).unwrap());
            let now: String = texts.collect();
            // One for each card, and nobody writes any more.
            if new.len() == 2 && !now.is_empty() && now == last {
                let quotas = now.split("\"quota\":").skip(1);
                return quotas.flat_map(|rest| rest.chars().take(200)).collect();
            }
            last = now;
        }
    }

    fn flights(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
            .collect()
    }

    fn descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.broker.0.id());
        std::fs::read_dir(folder).unwrap().count()
    }
}

/// Reads an answer to its end: status and document. 0 if the connection was closed without one.
fn answer(mut stream: UnixStream) -> (u16, Value) {
    stream.set_read_timeout(Some(WAIT)).unwrap();
    let mut bytes = Vec::new();
    // A server that closes with something unread resets the connection after its answer.
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    let all = String::from_utf8(bytes).unwrap();
    let Some((head, body)) = all.split_once("\r\n\r\n") else {
        return (0, Value::Null);
    };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: vramd\r\n\r\n").into_bytes()
}

fn patch(vm: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("PATCH /v1/vms/{vm}/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// Runs `work` on a thread that is another user's, in these groups.
fn as_user<T: Send + 'static>(groups: &[u32], work: impl FnOnce() -> T + Send + 'static) -> T {
    let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let run = move || {
        set_thread_groups(&groups).unwrap();
        let (uid, gid) = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
fn all_cards_and_vms_are_listed_and_shown() {
    let served = Served::new("");
    let _vmm = served.vmm("c");
    let listed = served.ask(&["list"]);
    let gpus = listed["gpus"].as_array().unwrap();
    assert_eq!(gpus[0]["vms"], json!(["a", "b"]));
    assert_eq!(gpus[1]["vms"], json!(["c"]));
    assert_eq!(gpus[0]["vram_bytes"], 64 * MIB);
    let vms = listed["vms"].as_array().unwrap();
    let connected = vms
        .iter()
        .map(|vm| (vm["name"].as_str().unwrap(), !vm["usage"].is_null()));
    assert_eq!(
        connected.collect::<Vec<_>>(),
        [("a", false), ("b", false), ("c", true)]
    );
    assert_eq!(
        served.ask(&["list", "--gpu", "g1"])["vms"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // The same for people, where the variable names the socket.
    let table = vramd(&["list"])
        .env("VRAMD_CONTROL", served.socket())
        .output()
        .unwrap();
    let table = text(&table.stdout);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let a = table
        .lines()
        .map(words)
        .find(|words| words.first().is_some_and(|word| word == "a"));
    assert_eq!(
        a.unwrap(),
        [
            "a",
            "g0",
            "not",
            "connected",
            "48M",
            "0",
            "0",
            "max",
            "max",
            "100",
            "host.toml"
        ]
    );
    let page = vramd(&["show", "c"])
        .env("VRAMD_CONTROL", served.socket())
        .output()
        .unwrap();
    assert!(
        text(&page.stdout).contains("in VRAM       0: 0 in use, 0 idle"),
        "{}",
        text(&page.stdout)
    );
}

#[test]
fn quota_of_a_connected_vm_changes_in_the_core() {
    let served = Served::new("");
    let _vmm = served.vmm("a");
    let changed = served.ask(&["quota", "a", "--min", "4M", "--max", "20M", "--weight", "50"]);
    assert_eq!(changed["before"]["max"], "max");
    assert_eq!(
        changed["after"],
        json!({"min": 4 * MIB, "low": 0, "high": "max", "max": 20 * MIB, "weight": 50})
    );
    assert_eq!(changed["is_attached"], true);
    let core = served.quotas_of_the_core();
    assert!(
        core.contains(&format!("{}", 4 * MIB)) && core.contains(&format!("{}", 20 * MIB)),
        "{core}"
    );
    // What is not named stays, and `max` takes a bound away.
    served.ask(&["quota", "a", "--max", "max", "--low", "8M"]);
    assert_eq!(
        served.quota("a"),
        json!({"min": 4 * MIB, "low": 8 * MIB, "high": "max", "max": "max", "weight": 50})
    );
    assert_eq!(served.ask(&["show", "a"])["quota_source"], "control");
    assert_eq!(served.ask(&["show", "b"])["quota_source"], "file");
}

#[test]
fn quota_of_a_vm_that_is_not_connected_holds_when_it_connects() {
    let served = Served::new("");
    let changed = served.ask(&["quota", "b", "--min", "6M"]);
    assert_eq!(changed["is_attached"], false);
    assert!(!served.quotas_of_the_core().contains(&format!("{}", 6 * MIB)));
    let _vmm = served.vmm("b");
    let core = served.quotas_of_the_core();
    assert!(core.contains(&format!("{}", 6 * MIB)), "{core}");
}

#[test]
fn quota_that_cannot_hold_is_refused_with_what_would_be_allowed() {
    let served = Served::new("");
    let said = served.refused(&["quota", "a", "--min", "8000M"], 1);
    assert!(
        said.contains("min 8000M is above the guest's VRAM: at most 48M"),
        "{said}"
    );
    // What `b` is promised while it is there leaves less for others, connected or not.
    let _vmm = served.vmm("b");
    served.ask(&["quota", "b", "--min", "32M"]);
    let said = served.refused(&["quota", "a", "--min", "40M"], 1);
    let most = said
        .split("at most ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned();
    served.ask(&["quota", "a", "--min", &most]);
    let _other = served.vmm("a");
    let more = most.trim_end_matches('M').parse::<u64>().unwrap() + 2;
    let said = served.refused(&["quota", "a", "--min", &format!("{more}M")], 1);
    assert!(
        said.contains(&format!("at most {most} now; see `vramd show a`")),
        "{said}"
    );
    for (arguments, words) in [
        (&["--min", "4M", "--max", "2M"][..], "is above max"),
        (&["--weight", "0"], "weight 0 is not between 1 and 10000"),
    ] {
        let said = served.refused(&[&["quota", "b"], arguments].concat(), 1);
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(served.quota("b")["min"], 32 * MIB);
    assert_eq!(served.quota("b")["weight"], 100);
}

#[test]
fn unknown_vm_names_the_command_that_lists_them_and_wrong_usage_is_2() {
    let served = Served::new("");
    for verb in ["show", "quota"] {
        let said = served.refused(&[verb, "nobody"], 1);
        assert_eq!(said, "vramd: there is no vm \"nobody\"; see `vramd list`\n");
    }
    let said = served.refused(&["list", "--gpu", "g7"], 1);
    assert_eq!(said, "vramd: there is no gpu \"g7\"; there are g0, g1\n");
    let said = served.refused(&["quota", "a", "--min", "5X"], 2);
    assert!(said.contains("is not a size such as 512M"), "{said}");
    served.refused(&["quota"], 2);
    let nobody = served.at("none.sock");
    let said = complaint(&["list", "--control", nobody.to_str().unwrap()], 1);
    assert!(
        said.contains("no broker listens there: start `vramd serve`"),
        "{said}"
    );
}

#[test]
fn requests_that_are_wrong_get_typed_answers_and_change_nothing() {
    let served = Served::new("");
    let before = served.ask(&["list"]);
    let chunked = |bytes: usize| {
        let head =
            b"PATCH /v1/vms/a/quota HTTP/1.1\r\nhost: vramd\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        let chunk = format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", " ".repeat(bytes));
        [head, chunk.into_bytes()].concat()
    };
    let declared = b"PATCH /v1/vms/a/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: 99999999999\r\n\r\n";
    for (request, status, error) in [
        (get("/v1/nothing"), 404, "unknown_path"),
        (get("/v1/vms/nobody"), 404, "unknown_vm"),
        (get("/v1/vms/..%2Fa"), 404, "unknown_vm"),
        (get("/v1/vms/%ff"), 400, "malformed"),
        (get("/v1/vms/a/quota"), 405, "unknown_method"),
        (patch("nobody", b"{}"), 404, "unknown_vm"),
        (patch("a", b""), 400, "malformed"),
        (patch("a", b"{\"min\":1,"), 400, "malformed"),
        (patch("a", b"{\"mim\":1}"), 400, "malformed"),
        (patch("a", b"{\"min\":-1}"), 400, "malformed"),
        (patch("a", b"{\"min\":\"16M\"}"), 400, "malformed"),
        (patch("a", b"[]"), 400, "malformed"),
        (patch("a", b"{\"min\xff\":1}"), 400, "malformed"),
        (patch("a", b"{\"weight\":10001}"), 409, "quota_refused"),
        (patch("a", &[b' '; 1 << 20]), 413, "too_large"),
        (chunked(1 << 20), 413, "too_large"),
        (declared.to_vec(), 413, "too_large"),
    ] {
        let (told, document) = served.http(&request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(99)]).into_owned();
        assert_eq!(
            (told, &document["error"]),
            (status, &json!(error)),
            "{shown}: {document}"
        );
        assert_ne!(document["message"], "", "{shown}");
    }
    // Nothing that is not HTTP harms.
    assert_eq!(served.http(&[0xff; 100]).0, 400);
    assert_eq!(served.http(&[b'a'; 100_000]).1, Value::Null);
    assert_eq!(served.ask(&["list"]), before);
    assert_eq!(served.http(&patch("a", b"{\"min\":1}")).0, 200);
}

/// Name of the VM and kind of each event.
fn kinds(told: &Value) -> Vec<(String, String)> {
    let word = |event: &Value, field: &str| event[field].as_str().unwrap().to_owned();
    let events = told["events"].as_array().unwrap();
    events
        .iter()
        .map(|event| (word(event, "vm"), word(event, "kind")))
        .collect()
}

#[test]
fn what_happened_is_told_once_and_in_order() {
    let served = Served::new("");
    let told = |more: &str| served.http(&get(&format!("/v1/events?{more}"))).1;
    let event = |vm: &str, kind: &str| (vm.to_owned(), kind.to_owned());
    let vmm = served.vmm("a");
    let first = told("");
    assert_eq!(kinds(&first), [event("a", "attached")]);
    let after = |told: &Value| format!("after={}", told["cursor"].as_str().unwrap());
    assert_eq!(kinds(&told(&after(&first))), []);
    served.ask(&["quota", "a", "--max", "16M"]);
    served.ask(&["quota", "c", "--weight", "7"]);
    drop(vmm);
    let start = Instant::now();
    let mut rest = Vec::new();
    let mut last = first.clone();
    while rest.len() < 3 {
        assert!(start.elapsed() < WAIT, "{rest:?}");
        last = told(&format!("{}&wait_ms=2000", after(&last)));
        rest.extend(kinds(&last));
    }
    // Cards come one after the other.
    rest.sort_by_key(|(vm, _)| vm.clone());
    let quota = |vm| event(vm, "quota_changed");
    assert_eq!(rest, [quota("a"), event("a", "detached"), quota("c")]);
    assert_eq!(last["lost"], 0);
    let all = served.ask(&["events", "--vm", "a"]);
    assert_eq!(kinds(&all).len(), 3);
    assert_eq!(all["events"][1]["text"], "quota: max max to 16M");
    let lines = vramd(&["events", "--gpu", "g1"])
        .env("VRAMD_CONTROL", served.socket())
        .output()
        .unwrap();
    let lines = text(&lines.stdout);
    assert!(
        lines.lines().count() == 1 && lines.contains("weight 100 to 7"),
        "{lines}"
    );
}

#[test]
fn whoever_waits_for_an_event_holds_up_nobody_and_is_answered_when_there_is_one() {
    let served = Served::new("");
    let mut waiting = served.connect();
    waiting.write_all(&get("/v1/events?wait_ms=10000")).unwrap();
    served.ask(&["list"]);
    let start = Instant::now();
    let _vmm = served.vmm("b");
    let (status, told) = answer(waiting);
    assert_eq!((status, kinds(&told).len()), (200, 1), "{told}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// More than one answer holds: 256 of each VM are kept, and the last are what `why` and `events` are asked for.
#[test]
fn all_that_is_kept_is_told_though_one_answer_holds_less() {
    let served = Served::new("");
    let mut sent = Vec::new();
    for weight in 1..=300 {
        for vm in ["a", "b"] {
            let body = format!("{{\"weight\":{weight}}}");
            assert_eq!(served.http(&patch(vm, body.as_bytes())).0, 200);
            sent.push((vm.to_owned(), weight));
        }
    }
    let one = served.http(&get("/v1/events")).1;
    assert_eq!((kinds(&one).len(), &one["has_more"]), (256, &json!(true)));
    let all = served.ask(&["events"]);
    let told = all["events"].as_array().unwrap().iter().map(|event| {
        let text = event["text"].as_str().unwrap();
        let weight = text.rsplit(' ').next().unwrap().parse().unwrap();
        (event["vm"].as_str().unwrap().to_owned(), weight)
    });
    let told: Vec<(String, u32)> = told.collect();
    assert_eq!((told.len(), &all["lost"]), (512, &json!(88)));
    assert_eq!(told, sent[88..]);
}

#[test]
fn events_that_cannot_be_told_are_refused() {
    let served = Served::new("");
    for query in [
        "after=",
        "after=x.1",
        "after=1.",
        "after=%2B1.2",
        "after=1.99999999999999999999",
        "wait_ms=10001",
        "wait_ms=-1",
        "from=1",
    ] {
        let (status, document) = served.http(&get(&format!("/v1/events?{query}")));
        assert_eq!(
            (status, &document["error"]),
            (400, &json!("malformed")),
            "{query}: {document}"
        );
    }
    // A cursor of an earlier run, perhaps with other cards: all that there is.
    for cursor in ["70.80", "1", "1.2.3"] {
        assert_eq!(
            served.http(&get(&format!("/v1/events?after={cursor}"))).0,
            200,
            "{cursor}"
        );
    }
    assert!(
        served
            .refused(&["events", "--vm", "x"], 1)
            .contains("there is no vm")
    );
    assert!(
        served
            .refused(&["events", "--gpu", "x"], 1)
            .contains("there are g0, g1")
    );
    assert!(served.refused(&["why", "x"], 1).contains("vramd list"));
}

#[test]
fn why_says_what_a_vm_has_and_what_it_cost() {
    let served = Served::new("");
    let _vmm = served.vmm("a");
    let why = served.ask(&["why", "a"]);
    assert_eq!(
        (&why["vm"]["name"], &why["others"][0]["name"]),
        (&json!("a"), &json!("b"))
    );
    let page = vramd(&["why", "a"])
        .env("VRAMD_CONTROL", served.socket())
        .output()
        .unwrap();
    let page = text(&page.stdout);
    assert!(
        page.starts_with("a has 0 in VRAM; nothing that it uses is in host RAM"),
        "{page}"
    );
    let page = vramd(&["why", "b"])
        .env("VRAMD_CONTROL", served.socket())
        .output()
        .unwrap();
    assert_eq!(text(&page.stdout), "b is not connected\n");
}

#[test]
fn slow_clients_are_told_so_and_hold_up_nobody() {
    let served = Served::new("");
    let mut head = served.connect();
    head.write_all(b"GET /v1/gpus HTTP/1.1\r\nhost: v").unwrap();
    let mut body = served.connect();
    body.write_all(&patch("a", b"{\"min\":1}")[..70]).unwrap();
    let idle = served.connect();
    // Sends nothing more and says so.
    let mut half = served.connect();
    half.write_all(b"GET /v1/gp").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let start = Instant::now();
    served.ask(&["list"]);
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    for slow in [head, body, idle] {
        let (status, document) = answer(slow);
        assert_eq!(
            (status, &document["error"]),
            (408, &json!("too_slow")),
            "{document}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    answer(half);
    assert_eq!(served.quota("a")["min"], 0);
}

#[test]
fn thousand_connections_take_no_place_for_long_and_nothing_of_a_vm() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let served = Served::new("");
    let vmm = served.vmm("a");
    let before = served.descriptors();
    let crowd: Vec<_> = (0..1000).map(|_| UnixStream::connect(served.socket())).collect();
    // Once it is accepted the last of them has been looked at.
    let (status, document) = served.http(&get("/v1/gpus"));
    assert!([0, 503].contains(&status), "{status} {document}");
    assert!(served.descriptors() <= before + 88, "{}", served.descriptors());
    let start = Instant::now();
    vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // None of them says anything, so all places are free again after their time, though nobody hangs up.
    while served.descriptors() > before {
        assert!(start.elapsed() < WAIT, "{} of {before}", served.descriptors());
        std::thread::sleep(Duration::from_millis(50));
    }
    served.ask(&["list"]);
    drop(crowd);
}

#[test]
fn client_that_does_not_read_is_let_go_when_the_broker_ends() {
    let mut served = Served::new("");
    let mut never_reads = served.connect();
    never_reads.write_all(&get("/v1/vms")).unwrap();
    let _says_nothing = served.connect();
    let ended = served.broker.terminate();
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert!(!served.socket().exists());
}

#[test]
fn only_root_the_broker_s_user_and_the_group_may_ask() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: to act as another user takes root");
        return;
    }
    let met = |served: &Served, groups: &[u32]| {
        let socket = served.socket();
        as_user(groups, move || {
            let mut stream = UnixStream::connect(socket).map_err(|error| error.kind())?;
            let _ = stream.write_all(&get("/v1/gpus"));
            Ok(answer(stream))
        })
    };
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let served = Served::new("");
    assert_eq!(mode(&served.socket()), 0o600);
    assert_eq!(met(&served, &[]), Err(ErrorKind::PermissionDenied));
    // Somebody opened it to all: the broker still looks who comes.
    std::fs::set_permissions(served.socket(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let (status, document) = met(&served, &[OPERATORS]).unwrap();
    assert_eq!((status, &document["error"]), (403, &json!("not_allowed")));
    let served = Served::new(&format!("group = {OPERATORS}"));
    assert_eq!(mode(&served.socket()), 0o660);
    assert_eq!(met(&served, &[]), Err(ErrorKind::PermissionDenied));
    assert_eq!(met(&served, &[OPERATORS]).unwrap().0, 200);
}
