//! Threads that make allowed and forbidden system calls, in processes of their own: a filter cannot be taken off.

use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

use super::report::EXIT_STATUS;
use super::*;

/// Tells the process of a test what to do.
const ROLE: &str = "VRAMD_TEST_ROLE";
const DEED: &str = "VRAMD_TEST_DEED";

/// Runs `as_another_process` in one.
fn process(role: &str, deed: &str) -> Output {
    command(role, deed).output().unwrap()
}

fn command(role: &str, deed: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "sandbox::tests::as_another_process",
            "--ignored",
            "--nocapture",
        ])
        .env(ROLE, role)
        .env(DEED, deed)
        .env_remove("RUST_BACKTRACE")
        .stdin(std::process::Stdio::null());
    command
}

fn deed(name: &str) {
    match name {
        "nothing" => {}
        "memory" => drop(std::hint::black_box(vec![1u8; 32 << 20])),
        "open" => match std::fs::File::open("/proc/self/status") {
            Ok(_) => println!("opened"),
            Err(error) => println!("not opened: {error}"),
        },
        "write" => {
            let path = std::env::temp_dir().join(format!("vramd-sandbox-new-{}", std::process::id()));
            match std::fs::File::options().write(true).create_new(true).open(&path) {
                Ok(_) => println!("made"),
                Err(error) => println!("not made: {error}"),
            }
        }
        "overwrite" => match std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open("/dev/null")
        {
            Ok(_) => println!("overwritten"),
            Err(error) => println!("not overwritten: {error}"),
        },
        // These fail, as the input is no such file, but are made.
        "accept" => {
            let input = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            drop(std::os::unix::net::UnixListener::from(input).accept());
        }
        "punch" => {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            let _ = rustix::fs::fallocate(std::io::stdin(), flags, 0, 4096);
        }
        "memory file" => drop(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)),
        "tap" => drop(crate::virtio::Tap::open("vramd-none0")),
        "connect" => drop(std::net::TcpStream::connect("127.0.0.1:9")),
        "program" => drop(Command::new("/bin/true").status()),
        "listen" => {
            let path = std::env::temp_dir().join(format!("vramd-sandbox-{}", std::process::id()));
            let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let client = std::os::unix::net::UnixStream::connect(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            drop((socket.accept().unwrap(), client));
        }
        "executable" => {
            let (prot, flags) = (
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            drop(vm_memory::MmapRegion::<()>::build(None, 4096, prot, flags));
        }
        "user" => drop(rustix::thread::set_thread_uid(rustix::thread::Uid::ROOT)),
        "panic" => panic!("as the test wants it"),
        other => panic!("no deed is called {other}"),
    }
}

#[test]
#[ignore = "other tests run it as a process"]
fn as_another_process() {
    let (role, name) = (std::env::var(ROLE).unwrap(), std::env::var(DEED).unwrap());
    let serving = ThreadKind::ALL.into_iter().find(|kind| kind.name() == role);
    let thread = if let Some(kind) = serving {
        Sandbox::enter_as_server().unwrap();
        std::thread::spawn(move || {
            Sandbox::confine_serving(kind).unwrap();
            deed(&name);
        })
    } else if role == Role::Server.name() {
        Sandbox::enter_as_server().unwrap();
        std::thread::spawn(move || deed(&name))
    } else {
        let role = Role::OF_A_VM
            .into_iter()
            .find(|known| known.name() == role)
            .unwrap();
        let sandbox = Sandbox::enter().unwrap();
        std::thread::spawn(move || {
            sandbox.confine(role).unwrap();
            deed(&name);
        })
    };
    let outcome = thread.join();
    println!("ended: {}", outcome.is_ok());
}

/// The end of a process that did something forbidden.
fn forbidden(role: &str, deed: &str) -> String {
    let output = process(role, deed);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(EXIT_STATUS.into()), "{text}");
    text
}

fn allowed(role: &str, deed: &str) -> String {
    let output = process(role, deed);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}{error}");
    text
}

#[test]
fn forbidden_call_ends_the_process_and_is_named_with_its_thread() {
    let line = "a thread of kind vcpu made the forbidden system call openat (257)";
    assert!(forbidden("vcpu", "open").contains(line));
    assert!(forbidden("disk", "connect").contains("of kind disk made the forbidden system call socket (41)"));
}

#[test]
fn no_thread_starts_programs_or_reaches_the_network() {
    for role in Role::OF_A_VM {
        let line = format!("of kind {} made the forbidden system call", role.name());
        assert!(forbidden(role.name(), "connect").contains(&line));
        // The C library blocks all signals there: the kernel ends the process by itself.
        let signal = process(role.name(), "program").status.signal();
        assert_eq!(signal, Some(libc::SIGSYS), "{role:?}");
    }
}

#[test]
fn every_thread_lives_dies_and_uses_memory() {
    for role in Role::OF_A_VM {
        assert!(allowed(role.name(), "nothing").contains("ended: true"));
        assert!(allowed(role.name(), "memory").contains("ended: true"));
        assert!(allowed(role.name(), "panic").contains("ended: false"));
    }
}

#[test]
fn main_may_call_what_any_thread_may() {
    let main = rules::of(Role::Main);
    let missing = Role::OF_A_VM
        .into_iter()
        .flat_map(rules::of)
        .find(|(call, _)| !main.contains_key(call));
    assert_eq!(missing.map(|(call, _)| call), None);
}

#[test]
fn server_opens_files_and_listens_but_runs_no_code_and_becomes_nobody() {
    for deed in ["nothing", "memory", "open", "listen"] {
        assert!(allowed("server", deed).contains("ended: true"), "{deed}");
    }
    assert!(allowed("server", "panic").contains("ended: false"));
    for (deed, call) in [
        ("connect", "socket (41)"),
        ("executable", "mmap (9)"),
        ("user", "setuid (105)"),
    ] {
        let line = format!("a thread of kind server made the forbidden system call {call}");
        let said = forbidden("server", deed);
        assert!(said.contains(&line), "{said}");
    }
    let signal = process("server", "program").status.signal();
    assert_eq!(signal, Some(libc::SIGSYS));
}

/// What becomes of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Made,
    Refused,
    EndsTheProcess,
}

fn answer(kind: ThreadKind, deed: &str) -> Answer {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(kind.name(), deed);
    let output = command.env("TMPDIR", folder.path()).output().unwrap();
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    if output.status.code() == Some(EXIT_STATUS.into()) {
        let line = format!("of kind {} made the forbidden system call", kind.name());
        assert!(told.contains(&line), "{told}");
        return Answer::EndsTheProcess;
    }
    assert_eq!(output.status.code(), Some(0), "{kind:?} {deed}: {said}{told}");
    match said.contains("Operation not permitted") {
        true => Answer::Refused,
        false => Answer::Made,
    }
}

#[test]
fn thread_that_serves_does_what_its_kind_does_and_nothing_of_another_kind() {
    use Answer::{EndsTheProcess as Ends, Made, Refused};
    use ThreadKind::{Card, Control, EventLoop, FlightWriter, Populator, Reaper, Signaller};
    let kinds = [
        EventLoop,
        Signaller,
        Reaper,
        Populator,
        FlightWriter,
        Card,
        Control,
    ];
    let table = [
        ("accept", [Made, Ends, Ends, Ends, Ends, Ends, Made]),
        ("memory file", [Made, Ends, Ends, Ends, Ends, Ends, Ends]),
        ("punch", [Made, Ends, Made, Made, Ends, Made, Ends]),
        (
            "write",
            [Refused, Refused, Refused, Refused, Made, Refused, Refused],
        ),
        (
            "overwrite",
            [Refused, Refused, Refused, Refused, Ends, Refused, Refused],
        ),
        ("open", [Refused; 7]),
        ("connect", [Ends; 7]),
        ("executable", [Ends; 7]),
        ("user", [Ends; 7]),
    ];
    for (deed, expected) in table {
        assert_eq!(kinds.map(|kind| answer(kind, deed)), expected, "{deed}");
    }
}

#[test]
fn thread_that_serves_starts_no_other_and_panics_with_its_message() {
    for kind in ThreadKind::ALL {
        for deed in ["nothing", "memory"] {
            assert!(allowed(kind.name(), deed).contains("ended: true"), "{kind:?}");
        }
        let signal = process(kind.name(), "program").status.signal();
        assert_eq!(signal, Some(libc::SIGSYS), "{kind:?}");
        let panicked = command(kind.name(), "panic")
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&panicked.stderr);
        assert!(told.contains("as the test wants it"), "{kind:?}: {told}");
        let said = String::from_utf8_lossy(&panicked.stdout);
        assert!(said.contains("ended: false"), "{kind:?}: {said}{told}");
    }
}

#[test]
fn main_opens_files_and_taps() {
    assert!(allowed("main", "open").contains("ended: true"));
    assert!(allowed("main", "tap").contains("ended: true"));
    let line = "a thread of kind net made the forbidden system call";
    assert!(forbidden("net", "tap").contains(line));
}

#[test]
fn thread_without_sandbox_does_as_it_likes() {
    Sandbox::none().confine(Role::Screen).unwrap();
    let mut text = String::new();
    std::fs::File::open("/proc/self/status")
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains("Seccomp:\t0"));
}
