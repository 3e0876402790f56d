//! In a process of its own, because the limit is that of a process.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vfio_user_server::{Accepted, FunctionInfo, Listener};

#[test]
fn client_without_a_descriptor_left_is_hung_up_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gpu.sock");
    let mut listener = Listener::bind(&path).unwrap();
    let mut vmm = UnixStream::connect(&path).unwrap();
    // The lowest free number: with the limit there, no further descriptor can be opened.
    let lowest = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(lowest),
            ..before
        },
    )
    .unwrap();
    let accepted = listener.accept(&FunctionInfo::new());
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(matches!(
        accepted.unwrap(),
        Some(Accepted::RefusedOutOfDescriptors)
    ));
    assert_eq!(vmm.read(&mut [0]).unwrap(), 0);
    assert!(
        listener.accept(&FunctionInfo::new()).unwrap().is_none(),
        "somebody was left in the queue"
    );
}
