//! Requests to the control API: any bytes, and requests that are right up to their body or path.
//!
//! Whatever comes, each answer is one that the API has, a quota that is kept is one that can hold, and the next client is answered.

use std::time::Duration;

use serde_json::Value;
use vramd::WithinProcess;

use super::PATIENCE;
use super::input::Input;

const MIB: u64 = 1 << 20;
/// Most requests of an input.
const REQUESTS_MAX: usize = 16;
/// How long clients wait: who asks for events may wait for none.
const SHORT_PATIENCE: Duration = Duration::from_millis(100);
/// Statuses that the API has, and those of bytes that are no request.
const STATUSES: [u16; 9] = [200, 400, 404, 405, 408, 409, 413, 414, 431];
const METHODS: [&str; 6] = ["GET", "PATCH", "POST", "DELETE", "HEAD", "OPTIONS"];
const PATHS: [&str; 17] = [
    "/v1/gpus",
    "/v1/gpus/g",
    "/v1/gpus/g/state",
    "/v1/vms",
    "/v1/vms/a",
    "/v1/vms/b",
    "/v1/vms/a/state",
    "/v1/vms/a/trace",
    "/v1/vms/a/quota",
    "/v1/vms/a/freeze",
    "/v1/vms/a/thaw",
    "/v1/vms/a/spill",
    "/v1/vms/a/refill",
    "/v1/vms/a/suspend",
    "/v1/vms/a/resume",
    "/v1/events",
    "/v1/metrics",
];
/// Beginnings of requests; what follows is the input's.
const BODIES: [&str; 6] = [
    "",
    "{\"min\":",
    "{\"max\":\"max\",\"weight\":",
    "{\"bytes\":",
    "{\"host_ram_bytes\":",
    "{\"name\":\"b\",\"guest_vram_bytes\":8388608,\"quota\":{\"min\":",
];

/// Starts a broker of one VM that nobody runs.
fn api(folder: &tempfile::TempDir) -> WithinProcess {
    let at = |name: &str| folder.path().join(name);
    let text = format!(
        "[control]\nsocket = {:?}\n[[gpu]]\nname = \"g\"\ndevice = \"model:gtx480\"\nvram = \"32M\"\nhost_ram = \"64M\"\n[[vm]]\nname = \"a\"\n\
         gpu = \"g\"\nsocket = {:?}\nguest_vram = \"16M\"\nram = \"64M\"\n",
        at("control.sock"),
        at("a.sock")
    );
    let path = at("host.toml");
    std::fs::write(&path, text).expect("the folder is new");
    WithinProcess::new(&path).expect("a broker with a software card")
}

/// Status and body of an answer; `None` if the connection was closed without one.
fn parsed(answer: &[u8]) -> Option<(u16, &[u8])> {
    if answer.is_empty() {
        return None;
    }
    let line = answer.strip_prefix(b"HTTP/1.1 ").expect("an answer is HTTP");
    let status = line.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
    let status = status
        .and_then(|digits| digits.parse().ok())
        .expect("an answer has a status");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    Some((status, &answer[end.expect("an answer's head ends") + 4..]))
}

/// The next request of the input.
fn request(input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8();
    let rest = input.counted(0xff);
    if kind.is_multiple_of(4) {
        return rest.to_vec();
    }
    let (method, path) = (input.choose(&METHODS), input.choose(&PATHS));
    let (query, body) = match kind % 4 {
        // A path goes on with anything that a line can have.
        1 => {
            let is_plain = |byte: &&u8| byte.is_ascii_graphic();
            let more: Vec<u8> = rest.iter().filter(is_plain).copied().collect();
            (more, Vec::new())
        }
        _ => {
            let start = input.choose(&BODIES);
            (Vec::new(), [start.as_bytes(), rest].concat())
        }
    };
    let line = [method.as_bytes(), b" ", path.as_bytes(), &query].concat();
    let head = format!(
        " HTTP/1.1\r\nhost: vramd\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [&line, head.as_bytes(), &body].concat()
}

/// Runs an input.
pub(super) fn run(data: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for the socket");
    let api = api(&folder);
    let ask = |sent: &[u8], patience| api.answer(sent, patience).expect("descriptors for a connection");
    let mut input = Input::new(data);
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let sent = request(&mut input);
        let answer = ask(&sent, SHORT_PATIENCE);
        if let Some((status, _)) = parsed(&answer) {
            assert!(
                STATUSES.contains(&status),
                "{status} to {:?}",
                String::from_utf8_lossy(&sent)
            );
        }
    }
    let answer = ask(b"GET /v1/vms HTTP/1.1\r\nhost: vramd\r\n\r\n", PATIENCE);
    let (status, body) = parsed(&answer).expect("the next client is answered");
    assert_eq!(status, 200);
    let vms: Value = serde_json::from_slice(body).expect("an answer is JSON");
    for vm in vms["vms"].as_array().expect("a list") {
        let bytes = |name: &str| vm["quota"][name].as_u64().unwrap_or(u64::MAX);
        assert!(bytes("min") <= bytes("max"), "{vm}");
        let guest_vram = vm["guest_vram_bytes"].as_u64().expect("bytes");
        assert!(bytes("min") <= guest_vram && guest_vram <= 96 * MIB, "{vm}");
        let weight = vm["quota"]["weight"].as_u64();
        assert!(
            weight.is_some_and(|weight| (1..=10_000).contains(&weight)),
            "{vm}"
        );
    }
}
