use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;

use super::*;
use crate::testing::gpu_like;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn accept(listener: &mut Listener) -> Option<Accepted> {
    listener.accept(&gpu_like()).unwrap()
}

#[test]
fn path_of_a_running_server_is_busy() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    let _first = Listener::bind(&path).unwrap();
    assert!(matches!(Listener::bind(&path), Err(ListenerError::Busy { .. })));
}

#[test]
fn path_of_a_dead_server_is_taken_over() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    drop(UnixListener::bind(&path).unwrap());
    let mut listener = Listener::bind(&path).unwrap();
    let _vmm = UnixStream::connect(&path).unwrap();
    // Not before the first one's socket is closed.
    let start = std::time::Instant::now();
    let accepted = loop {
        match accept(&mut listener) {
            None => assert!(start.elapsed().as_secs() < 10, "still not"),
            Some(accepted) => break accepted,
        }
    };
    assert!(matches!(accepted, Accepted::Client(_)));
}

#[test]
fn lock_that_somebody_holds_on_the_folder_of_a_dead_server_is_named_and_not_waited_for() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    drop(UnixListener::bind(&path).unwrap());
    // What a VMM can do that may read the folder. A second opening is as another process.
    let held = fs::File::open(directory.path()).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    let error = Listener::bind(&path).unwrap_err();
    assert!(matches!(error, ListenerError::Locked { .. }), "{error}");
    assert!(error.to_string().contains(&format!(
        "a process holds a lock on {}",
        directory.path().display()
    )));
    assert!(path.exists());
    drop(held);
    drop(Listener::bind(&path).unwrap());
}

#[test]
fn path_of_an_ordinary_file_is_left_alone() {
    let directory = directory();
    let path = directory.path().join("notes");
    fs::write(&path, "keep").unwrap();
    assert!(matches!(
        Listener::bind(&path),
        Err(ListenerError::NotASocket { .. })
    ));
    assert_eq!(fs::read_to_string(&path).unwrap(), "keep");
}

#[test]
fn path_in_no_directory_names_the_path() {
    let error = Listener::bind(Path::new("/nonexistent/gpu.sock")).unwrap_err();
    assert_eq!(error.to_string(), "cannot listen on socket /nonexistent/gpu.sock");
}

#[test]
fn path_goes_with_the_listener() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    drop(Listener::bind(&path).unwrap());
    assert!(!path.exists());
}

#[test]
fn path_that_is_somebody_elses_by_now_stays() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    let first = Listener::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = UnixListener::bind(&path).unwrap();
    drop(first);
    assert!(path.exists());
}

#[test]
fn nobody_waiting_is_no_client() {
    let directory = directory();
    let mut listener = Listener::bind(&directory.path().join("gpu.sock")).unwrap();
    assert!(accept(&mut listener).is_none());
}

#[test]
fn second_client_is_hung_up_on_and_the_next_after_the_first_is_not() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    let mut listener = Listener::bind(&path).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let Some(Accepted::Client(client)) = accept(&mut listener) else {
        panic!("refused")
    };
    let mut second = UnixStream::connect(&path).unwrap();
    assert!(matches!(accept(&mut listener), Some(Accepted::RefusedBusy)));
    assert_eq!(second.read(&mut [0]).unwrap(), 0);
    drop(client);
    let _third = UnixStream::connect(&path).unwrap();
    // Not before the first one's socket is closed.
    let start = std::time::Instant::now();
    let accepted = loop {
        match accept(&mut listener) {
            None => assert!(start.elapsed().as_secs() < 10, "still not"),
            Some(accepted) => break accepted,
        }
    };
    assert!(matches!(accepted, Accepted::Client(_)));
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn socket_has_the_mode_that_it_is_to_have_whatever_the_umask_says() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    for mode in [0o600, 0o660, 0o666] {
        let access = SocketAccess {
            mode: Some(mode),
            ..SocketAccess::default()
        };
        let bound = BoundSocket::bind(&path, &access).unwrap();
        assert_eq!(mode_of(&path), mode);
        drop(bound);
        // So has one that takes over what a dead server left.
        drop(UnixListener::bind(&path).unwrap());
        let bound = BoundSocket::bind(&path, &access).unwrap();
        assert_eq!(mode_of(&path), mode);
        drop(bound);
        assert!(!path.exists());
    }
}

#[test]
fn socket_that_cannot_be_given_away_is_not_left_behind() {
    // Not even root can then; this thread alone.
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::CHOWN);
    set_capabilities(None, sets).unwrap();
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    let access = SocketAccess {
        owner: Some(rustix::process::geteuid().as_raw() + 1),
        ..SocketAccess::default()
    };
    let error = BoundSocket::bind(&path, &access).unwrap_err();
    assert!(matches!(error, ListenerError::Access { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn client_of_another_user_is_hung_up_on_and_the_next_one_is_not() {
    let directory = directory();
    let path = directory.path().join("gpu.sock");
    let own = fs::metadata(directory.path()).unwrap().uid();
    let bind = |users: Vec<u32>| {
        let access = SocketAccess {
            users: Some(users),
            ..SocketAccess::default()
        };
        Listener::of(BoundSocket::bind(&path, &access).unwrap()).unwrap()
    };
    let mut listener = bind(vec![own + 1]);
    let mut client = UnixStream::connect(&path).unwrap();
    let accepted = accept(&mut listener);
    assert!(
        matches!(accepted, Some(Accepted::RefusedUser { uid }) if uid == own),
        "{accepted:?}"
    );
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(listener);
    let mut listener = bind(vec![own + 1, own]);
    let _client = UnixStream::connect(&path).unwrap();
    assert!(matches!(accept(&mut listener), Some(Accepted::Client(_))));
}
