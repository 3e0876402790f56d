//! The control API of a `serve` process: what operators get from it, and what others do not.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::io::{ErrorKind, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use host::{Config, MIB, TestHost, get};
use process::{as_user, complaint, is_root, raise_descriptor_limit, text, vramd};
use rustix::process::Signal;
use serde_json::{Value, json};
use vfio_user_server::Region;

const WAIT: Duration = Duration::from_secs(20);
/// Numbers of users and groups that no host has.
const STRANGER: u32 = 54_321;
const OPERATORS: u32 = 54_323;

/// `serve` with two cards, VMs `a` and `b` on the first and `c` on the second; `more` are lines of the control section.
fn served(more: &str) -> TestHost {
    let config = Config::new(more).gpu("g0", "64M", "");
    let config = config.vm("a", "48M", "").vm("b", "48M", "");
    TestHost::serving(&config.gpu("g1", "64M", "").vm("c", "48M", ""))
}

/// Sends the bytes of a request, and returns status and document of the answer.
fn http(host: &TestHost, request: &[u8]) -> (u16, Value) {
    let mut stream = host.connect();
    // One that is too long is answered before all of it is read.
    let _ = stream.write_all(request);
    answer(stream)
}

/// Reads an answer to its end: status and document. 0 if the connection was closed without one.
fn answer(stream: UnixStream) -> (u16, Value) {
    stream.set_read_timeout(Some(WAIT)).unwrap();
    let (status, _, body) = host::answer(stream);
    (status, serde_json::from_str(&body).unwrap_or_default())
}

/// The quotas of all connected VMs in the state that the core itself writes, not by way of the API.
fn quotas_of_the_core(host: &TestHost) -> String {
    let before = flights(host);
    host.signal(Signal::USR1);
    let start = Instant::now();
    let mut last = String::new();
    loop {
        assert!(start.elapsed() < WAIT, "no flight files are written");
        std::thread::sleep(Duration::from_millis(300));
        let after = flights(host);
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

fn flights(host: &TestHost) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(host.at("")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "jsonl"))
        .collect()
}

fn patch(vm: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("PATCH /v1/vms/{vm}/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

#[test]
fn all_cards_and_vms_are_listed_and_shown() {
    let host = served("");
    let _vmm = host.vmm("c");
    let listed = host.ask(&["list"]);
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
        host.ask(&["list", "--gpu", "g1"])["vms"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    // The same for people, where the variable names the socket.
    let table = vramd(&["list"])
        .env("VRAMD_CONTROL", host.control())
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
    let page = host.say(&["show", "c"]);
    assert!(page.contains("in VRAM       0: 0 in use, 0 idle"), "{page}");
}

#[test]
fn quota_of_a_connected_vm_changes_in_the_core() {
    let host = served("");
    let _vmm = host.vmm("a");
    let changed = host.ask(&["quota", "a", "--min", "4M", "--max", "20M", "--weight", "50"]);
    assert_eq!(changed["before"]["max"], "max");
    assert_eq!(
        changed["after"],
        json!({"min": 4 * MIB, "low": 0, "high": "max", "max": 20 * MIB, "weight": 50})
    );
    assert_eq!(changed["is_attached"], true);
    let core = quotas_of_the_core(&host);
    assert!(
        core.contains(&format!("{}", 4 * MIB)) && core.contains(&format!("{}", 20 * MIB)),
        "{core}"
    );
    // What is not named stays, and `max` takes a bound away.
    host.ask(&["quota", "a", "--max", "max", "--low", "8M"]);
    assert_eq!(
        host.ask(&["show", "a"])["quota"],
        json!({"min": 4 * MIB, "low": 8 * MIB, "high": "max", "max": "max", "weight": 50})
    );
    assert_eq!(host.ask(&["show", "a"])["quota_source"], "control");
    assert_eq!(host.ask(&["show", "b"])["quota_source"], "file");
}

#[test]
fn quota_of_a_vm_that_is_not_connected_holds_when_it_connects() {
    let host = served("");
    let changed = host.ask(&["quota", "b", "--min", "6M"]);
    assert_eq!(changed["is_attached"], false);
    assert!(!quotas_of_the_core(&host).contains(&format!("{}", 6 * MIB)));
    let _vmm = host.vmm("b");
    let core = quotas_of_the_core(&host);
    assert!(core.contains(&format!("{}", 6 * MIB)), "{core}");
}

#[test]
fn quota_that_cannot_hold_is_refused_with_what_would_be_allowed() {
    let host = served("");
    let said = host.refused(&["quota", "a", "--min", "8000M"]);
    assert!(
        said.contains("min 8000M is above the guest's VRAM: at most 48M"),
        "{said}"
    );
    // What `b` is promised while it is there leaves less for others, connected or not.
    let _vmm = host.vmm("b");
    host.ask(&["quota", "b", "--min", "32M"]);
    let said = host.refused(&["quota", "a", "--min", "40M"]);
    let most = said
        .split("at most ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .to_owned();
    host.ask(&["quota", "a", "--min", &most]);
    let _other = host.vmm("a");
    let more = most.trim_end_matches('M').parse::<u64>().unwrap() + 2;
    let said = host.refused(&["quota", "a", "--min", &format!("{more}M")]);
    assert!(
        said.contains(&format!("at most {most} now; see `vramd show a`")),
        "{said}"
    );
    for (arguments, words) in [
        (&["--min", "4M", "--max", "2M"][..], "is above max"),
        (&["--weight", "0"], "weight 0 is not between 1 and 10000"),
    ] {
        let said = host.refused(&[&["quota", "b"], arguments].concat());
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(host.ask(&["show", "b"])["quota"]["min"], 32 * MIB);
    assert_eq!(host.ask(&["show", "b"])["quota"]["weight"], 100);
}

#[test]
fn unknown_vm_names_the_command_that_lists_them_and_wrong_usage_is_2() {
    let host = served("");
    for verb in ["show", "quota"] {
        let said = host.refused(&[verb, "nobody"]);
        assert_eq!(said, "vramd: there is no vm \"nobody\"; see `vramd list`\n");
    }
    let said = host.refused(&["list", "--gpu", "g7"]);
    assert_eq!(said, "vramd: there is no gpu \"g7\"; there are g0, g1\n");
    let said = complaint(&["quota", "a", "--min", "5X"], 2);
    assert!(said.contains("is not a size such as 512M"), "{said}");
    complaint(&["quota"], 2);
    let nobody = host.path("none.sock");
    let said = complaint(&["list", "--control", &nobody], 1);
    assert!(
        said.contains("no broker listens there: start `vramd serve`"),
        "{said}"
    );
}

#[test]
fn requests_that_are_wrong_get_typed_answers_and_change_nothing() {
    let host = served("");
    let before = host.ask(&["list"]);
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
        let (told, document) = http(&host, &request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(99)]).into_owned();
        assert_eq!(
            (told, &document["error"]),
            (status, &json!(error)),
            "{shown}: {document}"
        );
        assert_ne!(document["message"], "", "{shown}");
    }
    // Nothing that is not HTTP harms.
    assert_eq!(http(&host, &[0xff; 100]).0, 400);
    assert_eq!(http(&host, &[b'a'; 100_000]).1, Value::Null);
    assert_eq!(host.ask(&["list"]), before);
    assert_eq!(http(&host, &patch("a", b"{\"min\":1}")).0, 200);
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
    let host = served("");
    let told = |more: &str| http(&host, &get(&format!("/v1/events?{more}"))).1;
    let event = |vm: &str, kind: &str| (vm.to_owned(), kind.to_owned());
    let vmm = host.vmm("a");
    let first = told("");
    assert_eq!(kinds(&first), [event("a", "attached")]);
    let after = |told: &Value| format!("after={}", told["cursor"].as_str().unwrap());
    assert_eq!(kinds(&told(&after(&first))), []);
    host.ask(&["quota", "a", "--max", "16M"]);
    host.ask(&["quota", "c", "--weight", "7"]);
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
    let all = host.ask(&["events", "--vm", "a"]);
    assert_eq!(kinds(&all).len(), 3);
    assert_eq!(all["events"][1]["text"], "quota: max max to 16M");
    let lines = host.say(&["events", "--gpu", "g1"]);
    assert!(
        lines.lines().count() == 1 && lines.contains("weight 100 to 7"),
        "{lines}"
    );
}

#[test]
fn whoever_waits_for_an_event_holds_up_nobody_and_is_answered_when_there_is_one() {
    let host = served("");
    let mut waiting = host.connect();
    waiting.write_all(&get("/v1/events?wait_ms=10000")).unwrap();
    host.ask(&["list"]);
    let start = Instant::now();
    let _vmm = host.vmm("b");
    let (status, told) = answer(waiting);
    assert_eq!((status, kinds(&told).len()), (200, 1), "{told}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// More than one answer holds: 256 of each VM are kept, and the last are what `why` and `events` are asked for.
#[test]
fn all_that_is_kept_is_told_though_one_answer_holds_less() {
    let host = served("");
    let mut sent = Vec::new();
    for weight in 1..=300 {
        for vm in ["a", "b"] {
            let body = format!("{{\"weight\":{weight}}}");
            assert_eq!(http(&host, &patch(vm, body.as_bytes())).0, 200);
            sent.push((vm.to_owned(), weight));
        }
    }
    let one = http(&host, &get("/v1/events")).1;
    assert_eq!((kinds(&one).len(), &one["has_more"]), (256, &json!(true)));
    let all = host.ask(&["events"]);
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
    let host = served("");
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
        let (status, document) = http(&host, &get(&format!("/v1/events?{query}")));
        assert_eq!(
            (status, &document["error"]),
            (400, &json!("malformed")),
            "{query}: {document}"
        );
    }
    // A cursor of an earlier run, perhaps with other cards: all that there is.
    for cursor in ["70.80", "1", "1.2.3"] {
        assert_eq!(
            http(&host, &get(&format!("/v1/events?after={cursor}"))).0,
            200,
            "{cursor}"
        );
    }
    assert!(host.refused(&["events", "--vm", "x"]).contains("there is no vm"));
    assert!(
        host.refused(&["events", "--gpu", "x"])
            .contains("there are g0, g1")
    );
    assert!(host.refused(&["why", "x"]).contains("vramd list"));
}

#[test]
fn why_says_what_a_vm_has_and_what_it_cost() {
    let host = served("");
    let _vmm = host.vmm("a");
    let why = host.ask(&["why", "a"]);
    assert_eq!(
        (&why["vm"]["name"], &why["others"][0]["name"]),
        (&json!("a"), &json!("b"))
    );
    let page = host.say(&["why", "a"]);
    assert!(
        page.starts_with("a has 0 in VRAM; nothing that it uses is in host RAM"),
        "{page}"
    );
    let page = host.say(&["why", "b"]);
    assert_eq!(page, "b is not connected\n");
}

#[test]
fn slow_clients_are_told_so_and_hold_up_nobody() {
    let host = served("");
    let mut head = host.connect();
    head.write_all(b"GET /v1/gpus HTTP/1.1\r\nhost: v").unwrap();
    let mut body = host.connect();
    body.write_all(&patch("a", b"{\"min\":1}")[..70]).unwrap();
    let idle = host.connect();
    // Sends nothing more and says so.
    let mut half = host.connect();
    half.write_all(b"GET /v1/gp").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let start = Instant::now();
    host.ask(&["list"]);
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
    assert_eq!(host.ask(&["show", "a"])["quota"]["min"], 0);
}

#[test]
fn thousand_connections_take_no_place_for_long_and_nothing_of_a_vm() {
    raise_descriptor_limit();
    let host = served("");
    let vmm = host.vmm("a");
    let before = host.descriptors();
    let crowd: Vec<_> = (0..1000).map(|_| UnixStream::connect(host.control())).collect();
    // Once it is accepted the last of them has been looked at.
    let (status, document) = http(&host, &get("/v1/gpus"));
    assert!([0, 503].contains(&status), "{status} {document}");
    assert!(host.descriptors() <= before + 88, "{}", host.descriptors());
    let start = Instant::now();
    vmm.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // None of them says anything, so all places are free again after their time, though nobody hangs up.
    while host.descriptors() > before {
        assert!(start.elapsed() < WAIT, "{} of {before}", host.descriptors());
        std::thread::sleep(Duration::from_millis(50));
    }
    host.ask(&["list"]);
    drop(crowd);
}

#[test]
fn client_that_does_not_read_is_let_go_when_the_broker_ends() {
    let mut host = served("");
    let mut never_reads = host.connect();
    never_reads.write_all(&get("/v1/vms")).unwrap();
    let _says_nothing = host.connect();
    host.stop();
    assert!(!host.at("control.sock").exists());
}

#[test]
fn only_root_the_broker_s_user_and_the_group_may_ask() {
    if !is_root() {
        return;
    }
    let met = |host: &TestHost, groups: &[u32]| {
        let socket = host.control();
        let asked = as_user((STRANGER, STRANGER), groups, move || {
            let mut stream = UnixStream::connect(socket).map_err(|error| error.kind())?;
            let _ = stream.write_all(&get("/v1/gpus"));
            Ok(answer(stream))
        });
        asked.join().unwrap()
    };
    let mode = |host: &TestHost| {
        let socket = host.at("control.sock");
        socket.metadata().unwrap().permissions().mode() & 0o777
    };
    let host = served("");
    assert_eq!(mode(&host), 0o600);
    assert_eq!(met(&host, &[]), Err(ErrorKind::PermissionDenied));
    // Somebody opened it to all: the broker still looks who comes.
    std::fs::set_permissions(host.control(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let (status, document) = met(&host, &[OPERATORS]).unwrap();
    assert_eq!((status, &document["error"]), (403, &json!("not_allowed")));
    let host = served(&format!("group = {OPERATORS}"));
    assert_eq!(mode(&host), 0o660);
    assert_eq!(met(&host, &[]), Err(ErrorKind::PermissionDenied));
    assert_eq!(met(&host, &[OPERATORS]).unwrap().0, 200);
}
