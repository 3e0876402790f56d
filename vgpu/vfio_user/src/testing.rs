//! The other end of the socket for tests: sends any bytes, right or wrong.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::{FromBytes, IntoBytes};

use crate::client::{Client, Incoming};
use crate::function::{FunctionInfo, Region, RegionInfo};
use crate::irq::IrqIndex;
use crate::message::{DmaMapWire, Header, RegionAccessWire};
use crate::reaper::{ForeignFd, Reaper};

pub(crate) const NO_REPLY: u32 = 1 << 4;

/// The shape of a GPU function: BAR0 32 MiB, BAR1 128 MiB, BAR3 64 MiB, INTx and one MSI.
pub(crate) fn gpu_like() -> FunctionInfo {
    FunctionInfo::new()
        .with_region(Region::Bar0, RegionInfo::read_write(32 << 20))
        .with_region(Region::Bar1, RegionInfo::read_write(128 << 20))
        .with_region(Region::Bar3, RegionInfo::read_write(64 << 20))
        .with_region(Region::Config, RegionInfo::read_write(4096))
        .with_irqs(IrqIndex::Intx, 1)
        .with_irqs(IrqIndex::Msi, 1)
}

pub(crate) fn memory(bytes: u64) -> OwnedFd {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// Descriptors as they come out of a socket.
pub(crate) fn foreign<const N: usize>(descriptors: [OwnedFd; N]) -> Vec<ForeignFd> {
    let reaper = Reaper::start().unwrap();
    let foreign = |descriptor| ForeignFd::new(descriptor, reaper.clone());
    descriptors.into_iter().map(foreign).collect()
}

/// A message; `body` is whatever the test wants it to be.
pub(crate) fn message(id: u16, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let message_bytes = (16 + body.len()) as u32;
    let header = Header {
        message_id: id,
        command,
        message_bytes,
        flags,
        error: 0,
    };
    [header.as_bytes(), body].concat()
}

pub(crate) fn version(data: &[u8]) -> Vec<u8> {
    message(0, 1, 0, &[&[0, 0, 1, 0], data].concat())
}

pub(crate) fn read(id: u16, region: u32, offset: u64, count: u32) -> Vec<u8> {
    message(
        id,
        9,
        0,
        RegionAccessWire {
            offset,
            region,
            count,
        }
        .as_bytes(),
    )
}

pub(crate) fn write(id: u16, flags: u32, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = RegionAccessWire {
        offset,
        region,
        count: data.len() as u32,
    };
    message(id, 10, flags, &[access.as_bytes(), data].concat())
}

pub(crate) fn map(id: u16, iova: u64, bytes: u64) -> Vec<u8> {
    let wire = DmaMapWire {
        argsz: 32,
        flags: 3,
        offset: 0,
        iova,
        bytes,
    };
    message(id, 2, 0, wire.as_bytes())
}

/// Both ends, and what has surfaced so far.
pub(crate) struct Pair {
    pub(crate) vmm: UnixStream,
    pub(crate) client: Client,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(gpu_like())
    }

    pub(crate) fn with(function: FunctionInfo) -> Self {
        let (vmm, server) = UnixStream::pair().unwrap();
        vmm.set_nonblocking(true).unwrap();
        Self {
            vmm,
            client: Client::new(server, function).unwrap(),
        }
    }

    pub(crate) fn attached() -> Self {
        Self::attached_to(gpu_like())
    }

    pub(crate) fn attached_to(function: FunctionInfo) -> Self {
        let mut pair = Self::with(function);
        assert!(pair.say(&version(b"")).is_empty());
        assert_eq!(pair.reply().0.error, 0);
        pair
    }

    /// Sends bytes and lets the server take one turn.
    pub(crate) fn say(&mut self, bytes: &[u8]) -> Vec<Incoming> {
        self.vmm.write_all(bytes).unwrap();
        self.turn()
    }

    pub(crate) fn say_with(&mut self, bytes: &[u8], descriptors: &[OwnedFd]) -> Vec<Incoming> {
        let raw: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        assert_eq!(self.vmm.send_with_fds(&[bytes], &raw).unwrap(), bytes.len());
        self.turn()
    }

    pub(crate) fn turn(&mut self) -> Vec<Incoming> {
        let mut incoming = Vec::new();
        self.client.read_ready(&mut incoming);
        incoming
    }

    /// The next reply, which has to be there.
    pub(crate) fn reply(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; 16];
        self.vmm.read_exact(&mut header).unwrap();
        let header = Header::read_from_bytes(&header).unwrap();
        let mut body = vec![0; header.message_bytes as usize - 16];
        self.vmm.read_exact(&mut body).unwrap();
        (header, body)
    }

    /// errno of the next reply.
    pub(crate) fn error(&mut self) -> i32 {
        let (header, body) = self.reply();
        assert_eq!(header.flags & 0x21, 0x21, "no error reply: {header:?}");
        assert!(body.is_empty());
        header.error as i32
    }

    pub(crate) fn has_reply(&self) -> bool {
        let mut byte = [0];
        rustix::net::recv(&self.vmm, &mut byte, rustix::net::RecvFlags::PEEK)
            .is_ok_and(|(bytes, _)| bytes > 0)
    }
}
