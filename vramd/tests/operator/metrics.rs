//! Metrics, by the verb, by the control socket and by a port of the host.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use super::exposition::{Sample, read};
use super::host::{TestHost, WAIT, answer, get};
use super::process::text;
use super::{served, two_cards};

const MIB: f64 = 1_048_576.0;
/// A port that the kernel chooses.
const PORT: &str = "metrics = \"127.0.0.1:0\"";

/// The sample of a VM.
fn of_vm(samples: &[Sample], name: &str, vm: &str) -> Option<f64> {
    let mut samples = samples.iter();
    let found =
        samples.find(|sample| sample.name == name && sample.labels.get("vm").is_some_and(|of| of == vm));
    found.map(|sample| sample.value)
}

/// `serve` whose metrics are at a port, too.
struct WithPort {
    host: TestHost,
    port: SocketAddr,
}

impl WithPort {
    fn new() -> WithPort {
        let mut host = TestHost::serving(&two_cards(PORT));
        // Those of the VMs come first.
        let lines = std::iter::repeat_with(|| host.broker().next_line()).take(3);
        let line = lines.last().unwrap();
        let address = line.strip_prefix("metrics at http://").unwrap();
        let port = address.strip_suffix("/metrics").unwrap().parse().unwrap();
        WithPort { host, port }
    }

    fn scraper(&self) -> TcpStream {
        let stream = TcpStream::connect(self.port).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream
    }

    /// Status, head and body of an answer at the port.
    fn scraped(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = self.scraper();
        stream.write_all(request).unwrap();
        answer(stream)
    }
}

#[test]
fn verb_prints_the_figures_that_the_api_has() {
    let host = served();
    let _vmm = host.vmm("a");
    host.say(&["quota", "a", "--min", "4M", "--max", "20M", "--weight", "50"]);
    let samples = read(&host.say(&["metrics"]));
    let a = |name: &str| of_vm(&samples, name, "a");
    assert_eq!(a("vramd_vm_connected"), Some(1.0));
    assert_eq!(a("vramd_vm_quota_min_bytes"), Some(4.0 * MIB));
    assert_eq!(a("vramd_vm_quota_max_bytes"), Some(20.0 * MIB));
    assert_eq!(a("vramd_vm_quota_high_bytes"), None);
    assert_eq!(a("vramd_vm_quota_weight"), Some(50.0));
    assert_eq!(a("vramd_vm_quota_changed"), Some(1.0));
    assert_eq!(a("vramd_vm_guest_vram_bytes"), Some(48.0 * MIB));
    assert_eq!(a("vramd_vm_resident_bytes"), Some(0.0));
    assert_eq!(a("vramd_vm_pause_seconds_count"), Some(0.0));
    assert!(a("vramd_vm_connected_seconds").is_some_and(|seconds| (0.0..60.0).contains(&seconds)));
    // One whose VMM is not connected has what is promised to it, and no figures.
    let b = |name: &str| of_vm(&samples, name, "b");
    assert_eq!(b("vramd_vm_connected"), Some(0.0));
    assert_eq!(b("vramd_vm_quota_min_bytes"), Some(0.0));
    assert_eq!(
        (b("vramd_vm_resident_bytes"), b("vramd_vm_pauses_total")),
        (None, None)
    );
    // Each card says its own, and of a VM there is none whose card is another.
    let of = |name: &str| {
        samples
            .iter()
            .filter(move |sample| sample.name == name)
            .collect::<Vec<_>>()
    };
    let cards = of("vramd_gpu_promised_bytes");
    let promised = cards
        .iter()
        .map(|sample| (sample.labels["gpu"].as_str(), sample.value));
    assert_eq!(promised.collect::<Vec<_>>(), [("g0", 4.0 * MIB), ("g1", 0.0)]);
    assert!(of("vramd_gpu_up").iter().all(|sample| sample.value == 1.0));
    let c = of("vramd_vm_connected")
        .into_iter()
        .find(|sample| sample.labels["vm"] == "c");
    assert_eq!(c.unwrap().labels["gpu"], "g1");
}

#[test]
fn port_serves_metrics_to_scrapers_and_nothing_else() {
    let served = WithPort::new();
    let (status, head, body) = served.scraped(&get("/metrics"));
    assert_eq!(status, 200, "{head}");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(!read(&body).is_empty());
    // Who does not read that text gets the older one.
    let request = "GET /metrics HTTP/1.1\r\nhost: vramd\r\naccept: text/plain\r\n\r\n";
    let (status, head, body) = served.scraped(request.as_bytes());
    assert_eq!(status, 200, "{head}");
    assert!(
        head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"),
        "{head}"
    );
    assert!(body.contains("# TYPE vramd_gpu_events_total counter\n") && !body.contains("# EOF"));
    for (request, status) in [
        (get("/"), 404),
        (get("/v1/vms"), 404),
        (get("/v1/metrics"), 404),
        (
            "POST /metrics HTTP/1.1\r\nhost: vramd\r\ncontent-length: 0\r\n\r\n".into(),
            405,
        ),
        (
            "PATCH /v1/vms/a/quota HTTP/1.1\r\nhost: vramd\r\ncontent-length: 9\r\n\r\n{\"min\":1}".into(),
            404,
        ),
        ("\u{1}\u{2}nonsense\r\n\r\n".into(), 400),
    ] {
        assert_eq!(served.scraped(&request).0, status, "{}", text(&request));
    }
    let shown = served.host.ask(&["show", "a"]);
    assert_eq!(shown["quota"]["min"], 0);
}

#[test]
fn silent_scrapers_keep_no_place_and_take_none_of_operators() {
    let mut served = WithPort::new();
    let start = Instant::now();
    let silent: Vec<_> = (0..40).map(|_| served.scraper()).collect();
    // All places are taken, so this one is closed without an answer; operators have theirs.
    assert_eq!(served.scraped(&get("/metrics")).0, 0);
    served.host.say(&["list"]);
    let told: Vec<_> = silent.into_iter().map(|stream| answer(stream).0).collect();
    let (late, closed) = (
        told.iter().filter(|status| **status == 408),
        told.iter().filter(|status| **status == 0),
    );
    assert_eq!((late.count(), closed.count()), (8, 32));
    assert!(start.elapsed() < WAIT, "{:?}", start.elapsed());
    // The last of them is let go a little after it was told.
    while served.scraped(&get("/metrics")).0 != 200 {
        assert!(start.elapsed() < WAIT, "{:?}", start.elapsed());
    }
    served.host.stop();
}

#[test]
fn address_that_others_reach_is_refused_with_what_to_do() {
    for (address, words) in [
        ("0.0.0.0:9400", "can be reached from other hosts"),
        ("[::]:9400", "can be reached from other hosts"),
        ("192.0.2.1:9400", "can be reached from other hosts"),
        ("localhost:9400", "is no address and port"),
        ("9400", "is no address and port"),
    ] {
        let host = TestHost::new(&two_cards(&format!("metrics = \"{address}\"")));
        let said = host.refused_start();
        assert!(said.contains("control.metrics") && said.contains(words), "{said}");
        assert!(said.contains("write \"127.0.0.1:9400\""), "{said}");
    }
    // One that somebody has already.
    let served = WithPort::new();
    let other = TestHost::new(&two_cards(&format!("metrics = \"{}\"", served.port)));
    let said = other.refused_start();
    assert!(
        said.contains("control.metrics: cannot listen at 127.0.0.1:"),
        "{said}"
    );
}

/// Names of metrics in a text, whatever else it is.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    // One that ends so is the beginning of several.
    words
        .filter(|word| word.starts_with("vramd_") && !word.ends_with('_'))
        .collect()
}

#[test]
fn examples_name_what_is_served_and_nothing_else() {
    let host = served();
    let _vmm = host.vmm("a");
    host.say(&["quota", "a", "--high", "30M", "--max", "40M"]);
    let samples = read(&host.say(&["metrics"]));
    // A histogram is also named as a whole.
    let there: BTreeSet<_> = samples
        .iter()
        .flat_map(|sample| [sample.name.as_str(), sample.name.trim_end_matches("_bucket")])
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    for (file, least) in [
        ("examples/grafana.json", 15),
        ("examples/alerts.yaml", 10),
        ("control.md", 5),
    ] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let named = names(&text);
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "{file} names {missing:?}");
        assert!(named.len() >= least, "{file} names {named:?}");
    }
    let dashboard = std::fs::read_to_string(folder.join("examples/grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let is_drawn = |panel: &Value| panel["targets"][0]["expr"].is_string();
    assert!(panels.iter().all(is_drawn), "a panel without a question");
}
