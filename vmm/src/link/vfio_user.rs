//! A vfio-user client for one PCI function.
//!
//! It is our own because a VM must outlive a bad server: replies are checked against the request, a server that
//! answers with an error or not at all gives an error within five seconds, and [`VgpuLink::close`] wakes a call
//! that waits. The `vfio_user` crate's client ignores error replies, then waits for the rest of the expected one
//! without end, and its socket can be neither timed nor closed from outside.
//!
//! Rules:
//! 1. One request is in flight at a time (`channel` is locked for it), so a reply is the only thing to receive.
//! 2. A failure that leaves the stream's position unknown takes the link down for good.
//! 3. `close` does not take the lock: it shuts the socket, which fails whoever holds it.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::wire::{
    Command, DEVICE_IS_PCI, DMA_READ_WRITE, DeviceInfo, DmaMap, DmaUnmap, FLAGS_ERROR, FLAGS_REPLY,
    FLAGS_TYPE, Header, IRQ_TRIGGERS_EVENTFD, MSI_IRQ_INDEX, PCI_REGIONS, RegionAccess, RegionInfo, SetIrqs,
    Version,
};
use super::{LinkError, VgpuLink};

/// How long one answer may take: QEMU's limit for vfio-user messages.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Longest load or store in one request. vCPUs send 8 bytes at most.
const DATA_BYTES_MAX: usize = 4096;
/// Longest reply accepted: an access with its data, a version with its JSON, a region with its capabilities.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// What this client can do, as the protocol wants it: a JSON object ended by NUL.
const CAPABILITIES: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":1,\"max_data_xfer_size\":4096}}\0";

/// A vGPU behind a vfio-user socket.
pub struct VfioUserLink {
    channel: Mutex<Channel>,
    /// The same socket as in `channel`, for what must not wait for its lock.
    socket: UnixStream,
    is_down: AtomicBool,
    region_bytes: [u64; PCI_REGIONS as usize],
}

struct Channel {
    stream: UnixStream,
    next_id: u16,
    reply: Vec<u8>,
}

impl VfioUserLink {
    /// Connects to the server at `path`, agrees on a version and asks for the function's regions.
    pub fn connect(path: &Path) -> Result<VfioUserLink, LinkError> {
        let failed = |source| LinkError::Connect {
            path: path.display().to_string(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        VfioUserLink::over(stream, ANSWER_WAIT).map_err(|error| match error {
            LinkError::Connect { source, .. } => failed(source),
            other => other,
        })
    }

    /// The same over a connected socket, with a limit for each answer.
    pub fn over(stream: UnixStream, answer_wait: Duration) -> Result<VfioUserLink, LinkError> {
        let failed = |source| LinkError::Connect {
            path: "(connected socket)".to_owned(),
            source,
        };
        stream.set_read_timeout(Some(answer_wait)).map_err(failed)?;
        stream.set_write_timeout(Some(answer_wait)).map_err(failed)?;
        let socket = stream.try_clone().map_err(failed)?;
        let channel = Channel {
            stream,
            next_id: 0,
            reply: Vec::new(),
        };
        let mut link = VfioUserLink {
            channel: Mutex::new(channel),
            socket,
            is_down: AtomicBool::new(false),
            region_bytes: [0; PCI_REGIONS as usize],
        };
        link.negotiate()?;
        link.region_bytes = link.read_region_sizes()?;
        Ok(link)
    }

    fn negotiate(&self) -> Result<(), LinkError> {
        let ours = Version {
            major: U16::new(0),
            minor: U16::new(1),
        };
        let command = Command::Version;
        let theirs = self.request(command, &[ours.as_bytes(), CAPABILITIES], &[], |reply| {
            Version::read_from_prefix(reply).map(|(version, _)| version).ok()
        })?;
        if theirs.major.get() != 0 {
            return Err(self.broken(command, "its major version is not 0"));
        }
        Ok(())
    }

    fn read_region_sizes(&self) -> Result<[u64; PCI_REGIONS as usize], LinkError> {
        let argsz = |bytes: usize| U32::new(bytes as u32);
        let ask = DeviceInfo {
            argsz: argsz(size_of::<DeviceInfo>()),
            flags: U32::ZERO,
            num_regions: U32::ZERO,
            num_irqs: U32::ZERO,
        };
        let info: DeviceInfo = self.request_struct(Command::DeviceGetInfo, &[ask.as_bytes()])?;
        if info.flags.get() & DEVICE_IS_PCI == 0 {
            return Err(self.broken(Command::DeviceGetInfo, "it is not a PCI device"));
        }
        let mut sizes = [0; PCI_REGIONS as usize];
        let asked = (0..info.num_regions.get().min(PCI_REGIONS)).zip(sizes.iter_mut());
        for (index, size) in asked {
            let ask = RegionInfo {
                argsz: argsz(size_of::<RegionInfo>()),
                flags: U32::ZERO,
                index: U32::new(index),
                cap_offset: U32::ZERO,
                bytes: U64::ZERO,
                file_offset: U64::ZERO,
            };
            let region: RegionInfo = self.request_struct(Command::DeviceGetRegionInfo, &[ask.as_bytes()])?;
            if region.index.get() != index {
                return Err(self.broken(Command::DeviceGetRegionInfo, "it describes another region"));
            }
            *size = region.bytes.get();
        }
        Ok(sizes)
    }

    /// A request whose reply begins with `T`; what follows it is ignored, as later versions may append.
    fn request_struct<T>(&self, command: Command, parts: &[&[u8]]) -> Result<T, LinkError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        self.request(command, parts, &[], |reply| {
            T::read_from_prefix(reply).map(|(value, _)| value).ok()
        })
    }

    /// Sends one request and decodes the body of its reply; `None` from `decode` is a broken protocol.
    fn request<T>(
        &self,
        command: Command,
        parts: &[&[u8]],
        fds: &[RawFd],
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, LinkError> {
        if self.is_down.load(Ordering::Acquire) {
            return Err(LinkError::Down);
        }
        let mut channel = self.lock();
        let answer = channel.exchange(command, parts, fds).and_then(|body| {
            decode(body).ok_or(LinkError::Protocol {
                command,
                what: "its body is malformed",
            })
        });
        drop(channel);
        match answer {
            Ok(value) => Ok(value),
            Err(error @ LinkError::Refused { .. }) => Err(error),
            // Closed by us meanwhile: what the socket says then is no news.
            Err(_) if self.is_down.load(Ordering::Acquire) => Err(LinkError::Down),
            Err(error) => {
                self.close();
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        // A panic in between leaves the stream in an unknown position, which the next reply's message id shows.
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn broken(&self, command: Command, what: &'static str) -> LinkError {
        self.close();
        LinkError::Protocol { command, what }
    }
}

impl Channel {
    fn exchange(&mut self, command: Command, parts: &[&[u8]], fds: &[RawFd]) -> Result<&[u8], LinkError> {
        let message_id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let message_bytes = size_of::<Header>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = Header {
            message_id: U16::new(message_id),
            command: U16::new(command as u16),
            message_bytes: U32::new(message_bytes as u32),
            flags: U32::ZERO,
            error: U32::ZERO,
        };
        let mut message = Vec::with_capacity(message_bytes);
        message.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| message.extend_from_slice(part));
        self.send(command, &message, fds)?;
        let reply = self.receive(command)?;
        let body_from = size_of::<Header>();
        if reply.message_id.get() != message_id || reply.command.get() != command as u16 {
            return Err(LinkError::Protocol {
                command,
                what: "it answers another request",
            });
        }
        if reply.flags.get() & FLAGS_ERROR != 0 {
            return Err(LinkError::Refused {
                command,
                errno: reply.error.get() as i32,
            });
        }
        Ok(self.reply.get(body_from..).unwrap_or_default())
    }

    fn send(&mut self, command: Command, message: &[u8], fds: &[RawFd]) -> Result<(), LinkError> {
        let sent = loop {
            match self.stream.send_with_fds(&[message], fds) {
                Err(error) if error.errno() == libc::EINTR => {}
                other => break other,
            }
        };
        let sent = sent.map_err(|error| transfer_error(command, error.into(), &self.stream))?;
        // The requests are shorter than any socket buffer, so a part of one means that the write limit struck.
        if sent != message.len() {
            return Err(transfer_error(
                command,
                io::ErrorKind::TimedOut.into(),
                &self.stream,
            ));
        }
        Ok(())
    }

    /// Receives one whole reply into `self.reply`. Descriptors that come with it are discarded by the kernel.
    fn receive(&mut self, command: Command) -> Result<Header, LinkError> {
        self.reply.clear();
        self.reply.resize(
            size_of::<Header>() + size_of::<RegionAccess>() + size_of::<u64>(),
            0,
        );
        let mut have = 0;
        let header = loop {
            have += self.receive_some(command, have)?;
            if let Ok((header, _)) = Header::read_from_prefix(self.reply.get(..have).unwrap_or_default()) {
                break header;
            }
        };
        let bytes = header.message_bytes.get() as usize;
        if header.flags.get() & FLAGS_TYPE != FLAGS_REPLY {
            return Err(LinkError::Protocol {
                command,
                what: "it is not a reply",
            });
        }
        if bytes < have || bytes > REPLY_BYTES_MAX {
            return Err(LinkError::Protocol {
                command,
                what: "its length is wrong",
            });
        }
        self.reply.resize(bytes, 0);
        while have < bytes {
            have += self.receive_some(command, have)?;
        }
        Ok(header)
    }

    fn receive_some(&mut self, command: Command, have: usize) -> Result<usize, LinkError> {
        loop {
            match self.stream.read(self.reply.get_mut(have..).unwrap_or_default()) {
                Ok(0) => return Err(LinkError::HungUp { command }),
                Ok(more) => return Ok(more),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(transfer_error(command, error, &self.stream)),
            }
        }
    }
}

fn transfer_error(command: Command, source: io::Error, stream: &UnixStream) -> LinkError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            let after = stream.read_timeout().ok().flatten().unwrap_or(ANSWER_WAIT);
            LinkError::TimedOut { command, after }
        }
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => LinkError::HungUp { command },
        _ => LinkError::Io { command, source },
    }
}

fn access(region: u32, offset: u64, bytes: usize) -> Result<RegionAccess, LinkError> {
    if bytes > DATA_BYTES_MAX {
        return Err(LinkError::TooLong { region, bytes });
    }
    Ok(RegionAccess {
        offset: U64::new(offset),
        region: U32::new(region),
        count: U32::new(bytes as u32),
    })
}

impl VgpuLink for VfioUserLink {
    fn region_size(&self, region: u32) -> u64 {
        self.region_bytes.get(region as usize).copied().unwrap_or(0)
    }

    fn region_read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), LinkError> {
        let ask = access(region, offset, data.len())?;
        self.request(Command::RegionRead, &[ask.as_bytes()], &[], |reply| {
            let (answer, bytes) = RegionAccess::read_from_prefix(reply).ok()?;
            if answer.count != ask.count || bytes.len() != data.len() {
                return None;
            }
            data.copy_from_slice(bytes);
            Some(())
        })
    }

    fn region_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), LinkError> {
        let ask = access(region, offset, data.len())?;
        self.request(Command::RegionWrite, &[ask.as_bytes(), data], &[], |reply| {
            let (answer, _) = RegionAccess::read_from_prefix(reply).ok()?;
            (answer.count == ask.count).then_some(())
        })
    }

    fn dma_map(&self, gpa: u64, bytes: u64, file: BorrowedFd<'_>, offset: u64) -> Result<(), LinkError> {
        let ask = DmaMap {
            argsz: U32::new(size_of::<DmaMap>() as u32),
            flags: U32::new(DMA_READ_WRITE),
            file_offset: U64::new(offset),
            address: U64::new(gpa),
            bytes: U64::new(bytes),
        };
        self.request(Command::DmaMap, &[ask.as_bytes()], &[file.as_raw_fd()], |_| {
            Some(())
        })
    }

    fn dma_unmap(&self, gpa: u64, bytes: u64) -> Result<(), LinkError> {
        let ask = DmaUnmap {
            argsz: U32::new(size_of::<DmaUnmap>() as u32),
            flags: U32::ZERO,
            address: U64::new(gpa),
            bytes: U64::new(bytes),
        };
        self.request(Command::DmaUnmap, &[ask.as_bytes()], &[], |_| Some(()))
    }

    fn set_msi(&self, eventfd: &EventFd) -> Result<(), LinkError> {
        let ask = SetIrqs {
            argsz: U32::new(size_of::<SetIrqs>() as u32),
            flags: U32::new(IRQ_TRIGGERS_EVENTFD),
            index: U32::new(MSI_IRQ_INDEX),
            start: U32::ZERO,
            count: U32::new(1),
        };
        self.request(
            Command::DeviceSetIrqs,
            &[ask.as_bytes()],
            &[eventfd.as_raw_fd()],
            |_| Some(()),
        )
    }

    fn reset(&self) -> Result<(), LinkError> {
        self.request(Command::DeviceReset, &[], &[], |_| Some(()))
    }

    fn close(&self) {
        self.is_down.store(true, Ordering::Release);
        // Fails only if the peer closed first, which is as good.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    fn hangup_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests;
