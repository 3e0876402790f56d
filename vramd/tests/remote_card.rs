//! A card in a process of its own: `vramd gpu`, and brokers that come and go.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Output;

use process::{Process, complaint, json, output, text, write_input};
use rustix::process::Signal;
use serde_json::Value;
use vfio_user_server::serve::serve_client;
use vfio_user_server::{Accepted, Errno, FunctionInfo, IrqChange, Listener, PciFunction, Region, RegionInfo};

/// Together more than the card of 32M has.
const GUESTS: [&str; 7] = [
    "--json",
    "--no-kvm",
    "--vms",
    "2",
    "--guest-vram",
    "24M",
    "--seed",
];

/// `vramd gpu` with 32M in a folder of its own.
struct Card {
    folder: tempfile::TempDir,
    process: Process,
}

impl Card {
    fn start() -> Card {
        Self::start_with(&[])
    }

    /// With these further arguments.
    fn start_with(more: &[&str]) -> Card {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("card.sock");
        let arguments = ["gpu", "--socket", socket.to_str().unwrap(), "--vram", "32M"];
        let mut process = Process::start(&[&arguments, more].concat());
        let line = process.next_line();
        assert!(line.starts_with("gtx480: 32M VRAM at "), "{line}");
        Card { folder, process }
    }

    fn device(&self) -> String {
        format!("vfio-user:{}", self.folder.path().join("card.sock").display())
    }

    /// The words of a demo on this card.
    fn demo(&self, more: &[&str]) -> Vec<String> {
        let device = self.device();
        [&["demo", "--gpu", &device], &GUESTS[..], more]
            .concat()
            .iter()
            .map(|word| (*word).to_owned())
            .collect()
    }
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Results that must not depend on where the card is.
fn results(output: &Output) -> Vec<Value> {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = json(output);
    // Only a card in the same process can be asked what its shader cores did.
    let size = ["vram_bytes", "usable_bytes"].map(|field| &report["gpu"][field]);
    let of_card = [
        &report["ok"],
        size[0],
        size[1],
        &report["digest"],
        &report["seed"],
    ];
    let of_vms = report["vms"].as_array().unwrap().iter().flat_map(|vm| {
        let fields = [
            "name",
            "ok",
            "touched_bytes",
            "copies",
            "bytes_copied",
            "mismatches",
            "digest",
            "errors",
        ];
        fields.map(|field| vm[field].clone())
    });
    of_card.into_iter().cloned().chain(of_vms).collect()
}

#[test]
fn demo_on_a_card_in_another_process_has_the_same_results() {
    let mut card = Card::start();
    let (input, digest) = write_input(card.folder.path(), "input", 3_000_001);
    let more = ["7", "--input", input.to_str().unwrap()];
    let remote = output(&words(&card.demo(&more)));
    let embedded = output(&[&["demo", "--vram", "32M"], &GUESTS[..], &more].concat());
    assert_eq!(results(&remote), results(&embedded));
    assert_eq!(json(&remote)["vms"][1]["digest"].as_str(), Some(digest.as_str()));
    let spills = json(&remote)["vms"]
        .as_array()
        .unwrap()
        .iter()
        .map(|vm| vm["spills"].as_u64().unwrap())
        .sum::<u64>();
    assert!(spills > 0);
    let ended = card.process.terminate();
    assert_eq!(
        (ended.status.code(), text(&ended.stderr)),
        (Some(0), String::new())
    );
}

/// The workers are confined as all threads of a card are.
#[test]
fn demo_on_a_card_with_workers_has_the_same_results() {
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        eprintln!("SKIPPED: a worker wants a processor beside the card's thread");
        return;
    }
    let mut card = Card::start_with(&["--workers", "1"]);
    let more = ["11", "--workload", "matrix"];
    let remote = output(&words(&card.demo(&more)));
    let embedded = output(&[&["demo", "--vram", "32M"], &GUESTS[..], &more].concat());
    assert_eq!(results(&remote), results(&embedded));
    let ended = card.process.terminate();
    assert_eq!(
        (ended.status.code(), text(&ended.stderr)),
        (Some(0), String::new())
    );
    let said = text(&ended.stdout);
    let line = said.lines().find_map(|line| line.strip_prefix("workers: "));
    let blocks = line.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
    assert!(blocks.is_some_and(|blocks| blocks > 0), "{said}");
}

#[test]
fn card_outlives_its_broker_and_serves_the_next() {
    let card = Card::start();
    let mut first = Process::start(&words(&card.demo(&["1", "--rounds", "100000"])));
    first.wait_for_words();
    first.kill();
    let (input, digest) = write_input(card.folder.path(), "input", 1_000_001);
    let second = output(&words(&card.demo(&["2", "--input", input.to_str().unwrap()])));
    results(&second);
    assert_eq!(json(&second)["digest"].as_str(), Some(digest.as_str()));
}

#[test]
fn card_that_dies_ends_the_demo_with_the_reason() {
    let mut card = Card::start();
    let mut demo = Process::start(&words(&card.demo(&["1", "--rounds", "100000"])));
    demo.wait_for_words();
    card.process.kill();
    let ended = demo.wait();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("vramd: the broker has ended: the card is gone: the server closed the connection"),
        "{last}"
    );
    assert!(ended.stdout.is_empty());
}

#[test]
fn card_that_loses_its_power_ends_the_demo_and_serves_the_next_when_it_is_back() {
    let mut card = Card::start();
    let mut demo = Process::start(&words(&card.demo(&["1", "--rounds", "100000"])));
    demo.wait_for_words();
    card.process.signal(Signal::USR1);
    let ended = demo.wait();
    let stderr = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(
        last.starts_with("vramd: the broker has ended: the card is gone: the one at ")
            && last
                .ends_with("reads ones everywhere, as if it had lost its power: start again once it answers"),
        "{last}"
    );
    let said = complaint(&words(&card.demo(&["1"])), 1);
    assert!(
        said.contains("is not a GF100 card: it reads ones everywhere"),
        "{said}"
    );
    card.process.signal(Signal::USR2);
    let (input, digest) = write_input(card.folder.path(), "input", 1_000_001);
    let next = output(&words(&card.demo(&["2", "--input", input.to_str().unwrap()])));
    results(&next);
    assert_eq!(json(&next)["digest"].as_str(), Some(digest.as_str()));
    let ended = card.process.terminate();
    assert_eq!(
        (ended.status.code(), text(&ended.stderr)),
        (Some(0), String::new())
    );
}

#[test]
fn card_that_is_taken_is_named() {
    let card = Card::start();
    let mut first = Process::start(&words(&card.demo(&["1", "--rounds", "100000"])));
    first.wait_for_words();
    let said = complaint(&words(&card.demo(&["1"])), 1);
    assert!(
        said.starts_with("vramd: cannot attach to the card at ") && said.contains("closed the connection"),
        "{said}"
    );
    let ended = first.terminate();
    assert_eq!(text(&ended.stderr).lines().last(), Some("vramd: interrupted"));
}

#[test]
fn vram_of_a_served_card_is_not_the_demos_to_set() {
    let said = complaint(&["demo", "--gpu", "vfio-user:/nonexistent", "--vram", "32M"], 2);
    assert!(
        said.contains("--vram: the VRAM of a card in another process is set where"),
        "{said}"
    );
    let said = complaint(&["demo", "--gpu", "vfio-user:"], 2);
    assert!(said.contains("wants the path of a socket"), "{said}");
    let said = complaint(&["demo", "--gpu", "vfio-user:/nonexistent.sock"], 1);
    assert!(
        said.contains("cannot connect to the vfio-user socket /nonexistent.sock: No such file"),
        "{said}"
    );
}

#[test]
fn somebody_who_does_not_speak_the_protocol_is_no_card() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let hanging_up = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let said = complaint(&["demo", "--gpu", &format!("vfio-user:{}", path.display())], 1);
    hanging_up.join().unwrap();
    assert!(
        said.contains("the server closed the connection during Version"),
        "{said}"
    );
}

/// Every register reads zero.
struct Zeroes;

impl PciFunction for Zeroes {
    fn read(&mut self, _: Region, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn write(&mut self, _: Region, _: u64, _: &[u8]) -> Result<(), Errno> {
        Ok(())
    }

    fn change_irqs(&mut self, _: IrqChange) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Errno> {
        Ok(())
    }
}

fn serve_zeroes(path: &Path) -> std::thread::JoinHandle<()> {
    let mut listener = Listener::bind(path).unwrap();
    std::thread::spawn(move || {
        let info = FunctionInfo::new()
            .with_region(Region::Bar0, RegionInfo::read_write(32 << 20))
            .with_region(Region::Bar1, RegionInfo::read_write(128 << 20))
            .with_region(Region::Bar3, RegionInfo::read_write(64 << 20))
            .with_region(Region::Config, RegionInfo::read_write(4096));
        loop {
            if let Some(Accepted::Client(client)) = listener.accept(&info).unwrap() {
                serve_client(*client, &mut Zeroes).unwrap();
                return;
            }
            std::thread::yield_now();
        }
    })
}

#[test]
fn device_of_another_kind_is_no_card() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeroes.sock");
    let serving = serve_zeroes(&path);
    let said = complaint(&["demo", "--gpu", &format!("vfio-user:{}", path.display())], 1);
    serving.join().unwrap();
    assert!(
        said.contains("is not a GF100 card: its PCI id is 0000:0000"),
        "{said}"
    );
}
