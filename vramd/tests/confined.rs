//! What `serve` and `gpu` give up, and who may connect to a VM's socket.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod process;

use std::fs::Permissions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fermi_spec::addr::Aperture;
use fermi_spec::regs::PbusReg;
use fermi_spec::regs::windows::WindowBlock;
use host::{Config, TestHost};
use process::{Process, as_user, is_root, text};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::Signal;
use vfio_user_server::{Region, RemoteFunction};

const WAIT: Duration = Duration::from_secs(20);
/// Numbers of users that no host has.
const STRANGER: u32 = 54_321;
const VMM: u32 = 54_322;
/// The only VM's socket, in a folder that is not there.
const SOCKET: &str = "vm/a.sock";

/// A host without operators, with one software card that has a worker and VM `a` at [`SOCKET`]; `more` are lines of the VM's section.
fn one_vm(more: &str) -> (TestHost, PathBuf) {
    with_socket(Config::default().gpu("g", "32M", "workers = 1"), more)
}

fn with_socket(card: Config, more: &str) -> (TestHost, PathBuf) {
    let host = TestHost::new(&card.vm_at("a", &format!("FOLDER/{SOCKET}"), "8M", more));
    let socket = host.at(SOCKET);
    (host, socket)
}

/// Whether all threads of a process have a filter of system calls, or none has.
fn is_filtered(process: &Process) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
    let modes = tasks.map(|task| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        line.unwrap().trim() == "2"
    });
    let modes: Vec<_> = modes.collect();
    assert!(modes.iter().all(|mode| *mode == modes[0]), "{modes:?}");
    modes[0]
}

/// Owner, group and mode.
fn whose(path: &Path) -> (u32, u32, u32) {
    let metadata = path.symlink_metadata().unwrap();
    let mode = metadata.permissions().mode() & 0o777;
    (metadata.uid(), metadata.gid(), mode)
}

/// What becomes of a connection of such a user.
#[derive(PartialEq, Eq, Debug)]
enum Met {
    /// The kernel lets it not even connect.
    NoRight,
    /// The broker hangs up at once.
    HungUp,
    /// It is served.
    Served,
}

fn connect_as(uid: u32, gid: u32, socket: &Path) -> Met {
    let path = socket.to_path_buf();
    let met = as_user((uid, gid), &[], move || {
        if RemoteFunction::connect(&path, WAIT).is_ok() {
            return Met::Served;
        }
        match UnixStream::connect(&path) {
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
                Met::NoRight
            }
            Ok(mut stream) => {
                assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
                Met::HungUp
            }
        }
    });
    met.join().unwrap()
}

/// A line of a process's status, without its name.
fn status_of(process: &Process, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn has_no_rights(process: &Process) {
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(status_of(process, set), "0000000000000000", "{set}");
    }
    assert_eq!(status_of(process, "NoNewPrivs:"), "1");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.0.id())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    assert_eq!(
        core.unwrap().split_whitespace().collect::<Vec<_>>()[4..],
        ["0", "0", "bytes"]
    );
}

/// A card in a process of its own, its socket's folder, and a host whose card it is with its VM's socket.
fn served_card() -> (tempfile::TempDir, Process, (TestHost, PathBuf)) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let mut card = Process::start(&["gpu", "--socket", socket.to_str().unwrap(), "--vram", "32M"]);
    card.next_line();
    let card_of_host = Config::default().device("g", &format!("vfio-user:{}", socket.display()), "");
    (folder, card, with_socket(card_of_host, ""))
}

#[test]
fn card_and_broker_give_up_their_rights_and_still_serve() {
    let (_folder, mut card, (mut host, socket)) = served_card();
    has_no_rights(&card);
    host.start();
    has_no_rights(host.broker());
    drop(RemoteFunction::connect(&socket, WAIT).unwrap());
    host.stop();
    assert_eq!(card.terminate().status.code(), Some(0));
}

#[test]
fn all_threads_are_filtered_unless_the_operator_wants_none_to_be() {
    let (mut host, socket) = one_vm("");
    for (more, expected) in [(&[][..], true), (&["--no-seccomp"][..], false)] {
        host.start_by(&mut host.command(more));
        assert_eq!(is_filtered(host.broker()), expected);
        drop(RemoteFunction::connect(&socket, WAIT).unwrap());
        let socket = host.at("card.sock");
        let arguments = ["gpu", "--socket", socket.to_str().unwrap(), "--vram", "32M"];
        let mut card = Process::start(&[&arguments[..], more].concat());
        card.next_line();
        assert_eq!(is_filtered(&card), expected);
        drop(RemoteFunction::connect(&socket, WAIT).unwrap());
        assert_eq!(card.terminate().status.code(), Some(0));
        host.stop();
    }
}

/// Filters of each thread, by name.
fn filters_of_threads(process: &Process) -> Vec<(String, u32)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.0.id())).unwrap();
    let filters = tasks.map(|task| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
                .trim()
        };
        (
            field("Name:").to_owned(),
            field("Seccomp_filters:").parse().unwrap(),
        )
    });
    filters.collect()
}

#[test]
fn each_thread_has_the_filter_of_its_kind_besides_the_process_s() {
    let (mut host, socket) = one_vm("");
    host.start();
    let client = RemoteFunction::connect(&socket, WAIT).unwrap();
    let threads = filters_of_threads(host.broker());
    for name in ["broker", "card", "flight", "irq a", "reaper"] {
        assert!(threads.iter().any(|(thread, _)| thread == name), "{threads:?}");
    }
    // Main starts the others.
    let of_process = threads.iter().find(|(name, _)| name == "vramd").unwrap().1;
    let wider = threads.iter().filter(|(_, filters)| *filters <= of_process);
    assert_eq!(wider.count(), 1, "{threads:?}");
    drop(client);
    host.stop();
}

#[test]
fn memory_taken_from_a_filtered_broker_costs_its_client_alone() {
    let config = Config::default().gpu("g", "32M", "");
    let mut host = TestHost::serving(&config.vm("a", "8M", "").vm("b", "8M", ""));
    let (hostile, friendly) = (host.vmm("a"), host.vmm("b"));
    // With this seal the broker cannot forbid that it shrinks.
    let ram = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&ram, 1 << 20).unwrap();
    fcntl_add_seals(&ram, SealFlags::SEAL).unwrap();
    hostile.dma_map(0, 1 << 20, &ram, 0, true).unwrap();
    ftruncate(&ram, 0).unwrap();
    // The broker reads the window's tables there.
    let block = WindowBlock::new()
        .with_aperture(Aperture::SysCoherent)
        .with_enable(true);
    let bar3 = u64::from(PbusReg::Bar3Block.offset());
    let _ = hostile.write(Region::Bar0, bar3, &block.into_bits().to_le_bytes());
    let start = Instant::now();
    while hostile.read(Region::Bar3, 0, &mut [0; 4]).is_ok() {
        assert!(start.elapsed() < WAIT, "nothing is read there");
    }
    friendly.read(Region::Bar0, 0, &mut [0; 4]).unwrap();
    let told = host.stop();
    assert!(told.contains("its RAM was truncated"), "{told}");
}

#[test]
fn filtered_broker_tells_of_a_lost_card_and_writes_what_happened() {
    let (_folder, mut card, (mut host, socket)) = served_card();
    host.start();
    let client = RemoteFunction::connect(&socket, WAIT).unwrap();
    card.kill();
    let ended = host.broker().wait();
    let told = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.contains("what happened last is in "), "{told}");
    drop(client);
}

#[test]
fn filtered_broker_writes_what_happened_last_when_it_is_asked() {
    let (mut host, socket) = one_vm("");
    host.start();
    assert!(is_filtered(host.broker()));
    host.signal(Signal::USR1);
    host.broker().wait_for_words();
    // It ends with status 4 if a system call was forbidden.
    host.stop();
    let names = std::fs::read_dir(socket.parent().unwrap()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        names
            .iter()
            .any(|name| name.to_string_lossy().starts_with("vramd-flight-")),
        "{names:?}"
    );
}

#[test]
fn card_becomes_the_user_that_it_is_told() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    chown(folder.path(), Some(54_321), Some(54_321)).unwrap();
    let socket = folder.path().join("card.sock");
    let mut process = Process::start(&[
        "gpu",
        "--socket",
        socket.to_str().unwrap(),
        "--vram",
        "32M",
        "--user",
        "54321:54321",
    ]);
    process.next_line();
    assert_eq!(status_of(&process, "Uid:"), "54321 54321 54321 54321");
    assert_eq!(status_of(&process, "Gid:"), "54321 54321 54321 54321");
    has_no_rights(&process);
    drop(RemoteFunction::connect(&socket, WAIT).unwrap());
    assert_eq!(process.terminate().status.code(), Some(0));
}

#[test]
fn card_s_socket_is_its_owners_alone_or_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("card.sock");
    let (uid, gid, _) = whose(folder.path());
    let path = socket.to_str().unwrap();
    let group = gid.to_string();
    let told = ["--socket-group", &*group, "--socket-mode", "0666"];
    for (more, mode) in [(&told[..0], 0o600), (&told[..2], 0o660), (&told[..], 0o666)] {
        let mut card = Process::start(&[&["gpu", "--socket", path, "--vram", "32M"], more].concat());
        card.next_line();
        assert_eq!(whose(&socket), (uid, gid, mode), "{more:?}");
        drop(RemoteFunction::connect(&socket, WAIT).unwrap());
        assert_eq!(card.terminate().status.code(), Some(0));
        assert!(!socket.exists());
    }
    let mut refused = Process::start(&["gpu", "--socket", path, "--socket-mode", "0777"]);
    let ended = refused.wait();
    assert_eq!(ended.status.code(), Some(2));
    assert!(text(&ended.stderr).contains("its owner connects"));
}

#[test]
fn client_of_another_user_is_no_client_of_a_card() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("card.sock");
    let group = VMM.to_string();
    let mut card = Process::start(&[
        "gpu",
        "--socket",
        socket.to_str().unwrap(),
        "--vram",
        "32M",
        "--socket-group",
        &group,
    ]);
    card.next_line();
    assert_eq!(whose(&socket), (0, VMM, 0o660));
    assert_eq!(connect_as(STRANGER, STRANGER, &socket), Met::NoRight);
    assert_eq!(connect_as(VMM, VMM, &socket), Met::Served);
    assert_eq!(card.terminate().status.code(), Some(0));
}

#[test]
fn socket_is_its_owners_alone_and_so_is_its_folder() {
    let (mut host, socket) = one_vm("");
    host.start();
    let own = whose(&host.at(""));
    assert_eq!(whose(&socket), (own.0, own.1, 0o600));
    assert_eq!(whose(socket.parent().unwrap()), (own.0, own.1, 0o710));
    drop(RemoteFunction::connect(&socket, WAIT).unwrap());
    host.stop();
    assert!(!socket.exists());
}

#[test]
fn client_of_another_user_is_hung_up_on_where_the_mode_would_let_it() {
    if !is_root() {
        return;
    }
    let (mut host, socket) = one_vm(&format!(
        "socket_owner = {VMM}\nsocket_group = {VMM}\nsocket_users = [{VMM}]"
    ));
    host.start();
    assert_eq!(whose(&socket), (VMM, VMM, 0o660));
    let folder = socket.parent().unwrap().to_path_buf();
    assert_eq!(whose(&folder), (0, VMM, 0o711));
    assert_eq!(connect_as(STRANGER, STRANGER, &socket), Met::NoRight);
    // Of the socket's group, but none of its users.
    assert_eq!(connect_as(STRANGER, VMM, &socket), Met::HungUp);
    assert_eq!(connect_as(VMM, VMM, &socket), Met::Served);
    assert_eq!(connect_as(0, 0, &socket), Met::Served);
    let told = host.stop();
    assert!(
        told.contains(&format!("a client of user {STRANGER} was disconnected")),
        "{told}"
    );
    assert!(!socket.exists());
}

#[test]
fn socket_that_somebody_opened_to_all_is_still_its_owners() {
    if !is_root() {
        return;
    }
    let (mut host, socket) = one_vm(&format!("socket_owner = {VMM}"));
    host.start();
    assert_eq!(whose(&socket), (VMM, 0, 0o600));
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    assert_eq!(connect_as(STRANGER, STRANGER, &socket), Met::HungUp);
    assert_eq!(connect_as(VMM, VMM, &socket), Met::Served);
    host.stop();
}

#[test]
fn broker_of_another_user_makes_sockets_that_are_that_users() {
    if !is_root() {
        return;
    }
    let (mut host, socket) = one_vm("");
    host.start_by(&mut host.command(&["--user", &format!("{STRANGER}:{STRANGER}")]));
    has_no_rights(host.broker());
    assert_eq!(status_of(host.broker(), "Uid:"), "54321 54321 54321 54321");
    assert_eq!(whose(&socket), (STRANGER, STRANGER, 0o600));
    assert_eq!(connect_as(STRANGER, STRANGER, &socket), Met::Served);
    host.stop();
    // Its folder is that user's, so it could remove the socket.
    assert!(!socket.exists());
}

#[test]
fn limit_of_descriptors_is_raised_to_what_vms_can_need_or_the_start_says_so() {
    let (mut host, socket) = one_vm("");
    let serve = host.command(&[]);
    let limited = |limit: &str| {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
            .arg(serve.get_program())
            .args(serve.get_args());
        command
    };
    host.start_by(&mut limited("-Sn 256"));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", host.broker().0.id())).unwrap();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let current: u64 = files.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(current > 1000, "{files}");
    drop(RemoteFunction::connect(&socket, WAIT).unwrap());
    host.stop();
    let refused = Process::spawn(&mut limited("-n 256")).wait();
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(
        said.contains("this process may have 256: raise the limit"),
        "{said}"
    );
}

#[test]
fn serve_says_whether_landlock_is_enforced() {
    let (mut host, _) = one_vm("");
    host.start_by(host.command(&[]).env("RUST_LOG", "info"));
    let said = host.stop();
    assert!(
        said.contains("landlock: enforced") || said.contains("landlock: not enforced"),
        "{said}"
    );
}

#[test]
fn folder_that_cannot_be_made_is_named() {
    let config = Config::default().gpu("g", "32M", "");
    let host = TestHost::new(&config.vm_at("a", "FOLDER/vm/deep/a.sock", "8M", ""));
    let said = host.refused_start();
    let expected = format!("vm a: cannot make folder {}", host.path("vm/deep"));
    assert!(said.contains(&expected), "{said}");
}
