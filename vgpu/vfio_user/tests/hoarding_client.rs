//! In a process of its own, because it counts the descriptors of the process.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that fails")]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vfio_user_server::message::{DmaMapWire, Header, IrqSetWire};
use vfio_user_server::{Client, FunctionInfo, Incoming, IrqIndex};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::IntoBytes;

fn message(command: u16, body: &[u8]) -> Vec<u8> {
    let message_bytes = (16 + body.len()) as u32;
    [
        Header {
            command,
            message_bytes,
            ..Header::default()
        }
        .as_bytes(),
        body,
    ]
    .concat()
}

fn held() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn send(vmm: &UnixStream, bytes: &[u8], descriptor: OwnedFd) {
    // The server stops reading at some point; what the socket does not take then is not sent.
    let _ = vmm.send_with_fd(bytes, descriptor.as_raw_fd());
}

#[test]
fn client_that_hoards_stays_within_the_bound_of_its_function() {
    let info = FunctionInfo::new()
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 4);
    // What all clients share is there before anything is counted.
    let (_ours, other) = UnixStream::pair().unwrap();
    let _other = Client::new(other, info.clone()).unwrap();
    let at_first = held();
    let (mut vmm, server) = UnixStream::pair().unwrap();
    vmm.set_nonblocking(true).unwrap();
    let before = held();
    let mut client = Client::new(server, info.clone()).unwrap();
    vmm.write_all(&message(1, &[0, 0, 0, 0])).unwrap();
    let mut hoard: Vec<Incoming> = Vec::new();
    let mut most = 0;
    for page in 0..1000 {
        let memory = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 0x1000).unwrap();
        let map = DmaMapWire {
            argsz: 32,
            flags: 3,
            offset: 0,
            iova: page << 12,
            bytes: 0x1000,
        };
        send(&vmm, &message(2, map.as_bytes()), memory);
        client.read_ready(&mut hoard);
        let irqs = IrqSetWire {
            argsz: 20,
            flags: 4 | 32,
            index: 1,
            start: 3,
            count: 1,
        };
        send(
            &vmm,
            &message(8, irqs.as_bytes()),
            eventfd(0, EventfdFlags::empty()).unwrap(),
        );
        client.read_ready(&mut hoard);
        most = most.max(held() - before);
    }
    assert!(hoard.len() > 60, "the client got nowhere: {}", hoard.len());
    assert!(most <= info.descriptors_max(), "{most} descriptors held");
    drop((client, hoard, vmm));
    // A thread closes them.
    let start = std::time::Instant::now();
    while held() != at_first {
        assert!(
            start.elapsed().as_secs() < 10,
            "descriptors outlived their client"
        );
        std::thread::yield_now();
    }
}
