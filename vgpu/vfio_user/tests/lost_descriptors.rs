//! In a process of its own, because the limit is that of a process.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use vfio_user_server::message::{DmaMapWire, Header};
use vfio_user_server::{Client, CloseReason, FunctionInfo, Incoming, ProtocolError};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::IntoBytes;

#[test]
fn descriptor_that_finds_no_room_ends_the_session() {
    let (mut vmm, server) = UnixStream::pair().unwrap();
    let mut client = Client::new(server, FunctionInfo::new()).unwrap();
    let version = Header {
        command: 1,
        message_bytes: 20,
        ..Header::default()
    };
    vmm.write_all(&[version.as_bytes(), &[0; 4]].concat()).unwrap();
    let map = DmaMapWire {
        argsz: 32,
        flags: 3,
        offset: 0,
        iova: 0,
        bytes: 0x1000,
    };
    let header = Header {
        command: 2,
        message_bytes: 48,
        ..Header::default()
    };
    let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    let bytes = [header.as_bytes(), map.as_bytes()].concat();
    vmm.send_with_fd(bytes.as_slice(), memory.as_raw_fd()).unwrap();
    // The lowest free number: with the limit there, no further descriptor can be received.
    let lowest = memory.try_clone().unwrap().as_raw_fd() as u64;
    let before = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(lowest),
            ..before
        },
    )
    .unwrap();
    let mut incoming = Vec::new();
    client.read_ready(&mut incoming);
    setrlimit(Resource::Nofile, before).unwrap();
    // Taken without its file, the map would look like memory that the client keeps to itself.
    let [Incoming::Closed(CloseReason::Protocol(error))] = &incoming[..] else {
        panic!("{incoming:?}")
    };
    assert_eq!(*error, ProtocolError::DescriptorsLost);
    assert!(client.dma().is_empty());
}
