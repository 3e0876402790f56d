//! The protocol, client side: a PCI function that lives in another process.
//!
//! A user of a function must outlive a bad server: replies are checked against the request, a server that answers
//! with an error or not at all gives an error within the bound that the caller sets, and [`RemoteFunction::close`]
//! wakes a call that waits. The `vfio_user` crate's client ignores error replies, then waits for the rest of the
//! expected one without end, and its socket can be neither timed nor closed from outside.
//!
//! Rules:
//! 1. One request is in flight at a time (the channel is locked for it), so a reply is the only thing to receive.
//! 2. Posted writes are gathered and sent before the next request, or by [`RemoteFunction::flush`]. The socket keeps
//!    order and a server takes one message after the other, so a read sees every write before it.
//! 3. A failure that leaves the stream's position unknown takes the connection down for good.
//! 4. `close` does not take the lock: it shuts the socket, so that the call that holds the lock fails.

mod channel;
mod error;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use self::channel::Channel;
pub use self::error::RemoteError;
use crate::function::{Area, REGIONS, Region};
use crate::irq::IrqIndex;
use crate::message::{
    CommandCode, DeviceInfoWire, DmaMapWire, DmaUnmapWire, IrqSetWire, RegionAccessWire, RegionInfoWire,
    SparseMmapWire, VersionWire,
};
use crate::version::{Answer, MAJOR, MINOR, proposal};

/// How long one answer may take unless the caller wants another bound: QEMU's limit for vfio-user messages.
pub const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// `VFIO_DEVICE_FLAGS_PCI` of `<linux/vfio.h>`.
const DEVICE_IS_PCI: u32 = 1 << 1;
/// `VFIO_IRQ_SET_DATA_EVENTFD` with `VFIO_IRQ_SET_ACTION_TRIGGER` and `_UNMASK`.
const IRQ_TRIGGERS_EVENTFD: u32 = (1 << 2) | (1 << 5);
const EVENTFD_UNMASKS_IRQ: u32 = (1 << 2) | (1 << 4);
/// `VFIO_REGION_INFO_FLAG_MMAP` and `VFIO_REGION_INFO_FLAG_CAPS`.
const REGION_IS_MAPPABLE: u32 = 1 << 2;
const REGION_HAS_CAPABILITIES: u32 = 1 << 3;
/// `VFIO_REGION_INFO_CAP_SPARSE_MMAP` of `<linux/vfio.h>`, by which a description of a region names its areas.
const SPARSE_MMAP: u16 = 1;
/// Areas of a region that are looked at, and the room that a description may take with them. Bytes.
const AREAS_MAX: u32 = 16;
const REGION_INFO_BYTES_MAX: u32 =
    (size_of::<RegionInfoWire>() + size_of::<SparseMmapWire>()) as u32 + 16 * AREAS_MAX;
/// Unit of memory that can be mapped. Bytes.
const PAGE_BYTES: u64 = 4096;
/// The server may read, and write, the mapped memory (`VFIO_USER_F_DMA_REGION_READ`, `_WRITE`).
const DMA_READABLE: u32 = 1;
const DMA_WRITEABLE: u32 = 1 << 1;

/// A PCI function behind a vfio-user socket. Calls come from several threads at once.
#[derive(Debug)]
pub struct RemoteFunction {
    channel: Mutex<Channel>,
    /// The same socket as in `channel`, for calls that must not wait for its lock.
    socket: UnixStream,
    is_down: AtomicBool,
    region_bytes: [u64; REGIONS],
    /// Longest transfer that both ends take.
    transfer_bytes: usize,
}

impl RemoteFunction {
    /// Connects to the server at `path`, agrees on a version and asks for the function's regions. `answer_wait`
    /// bounds the time of each answer.
    pub fn connect(path: &Path, answer_wait: Duration) -> Result<Self, RemoteError> {
        let stream = connect_within(path, answer_wait).map_err(|source| RemoteError::Connect {
            path: path.to_owned(),
            source,
        })?;
        Self::over(stream, answer_wait)
    }

    /// Does the same as [`RemoteFunction::connect`] on a connected socket.
    pub fn over(stream: UnixStream, answer_wait: Duration) -> Result<Self, RemoteError> {
        let failed = |source| RemoteError::Io {
            command: CommandCode::Version,
            source,
        };
        let socket = stream.try_clone().map_err(failed)?;
        let mut function = Self {
            channel: Mutex::new(Channel::new(stream, answer_wait).map_err(failed)?),
            socket,
            is_down: AtomicBool::new(false),
            region_bytes: [0; REGIONS],
            transfer_bytes: 0,
        };
        let answer = function.negotiate()?;
        function.transfer_bytes = answer.transfer_bytes;
        function.lock().has_batches = answer.takes_batches;
        function.region_bytes = function.read_region_sizes()?;
        Ok(function)
    }

    fn negotiate(&self) -> Result<Answer, RemoteError> {
        let command = CommandCode::Version;
        let ours = VersionWire {
            major: MAJOR,
            minor: MINOR,
        };
        let (theirs, answer) = self.request(command, &[ours.as_bytes(), &proposal()], None, |reply| {
            let (version, data) = VersionWire::read_from_prefix(reply).ok()?;
            Some((version, Answer::decode(data)?))
        })?;
        if theirs.major != MAJOR {
            return Err(self.broken(command, "its major version is not 0"));
        }
        Ok(answer)
    }

    fn read_region_sizes(&self) -> Result<[u64; REGIONS], RemoteError> {
        let ask = DeviceInfoWire {
            argsz: size_of::<DeviceInfoWire>() as u32,
            flags: 0,
            num_regions: 0,
            num_irqs: 0,
        };
        let info: DeviceInfoWire = self.request_struct(CommandCode::GetInfo, ask.as_bytes())?;
        if info.flags & DEVICE_IS_PCI == 0 {
            return Err(self.broken(CommandCode::GetInfo, "it is not a PCI device"));
        }
        let mut sizes = [0; REGIONS];
        // A server may claim more regions; those do not belong to a PCI function.
        for (index, bytes) in (0..info.num_regions).zip(&mut sizes) {
            let ask = RegionInfoWire {
                argsz: size_of::<RegionInfoWire>() as u32,
                flags: 0,
                index,
                cap_offset: 0,
                bytes: 0,
                offset: 0,
            };
            let region: RegionInfoWire = self.request_struct(CommandCode::GetRegionInfo, ask.as_bytes())?;
            if region.index != index {
                return Err(self.broken(CommandCode::GetRegionInfo, "it describes another region"));
            }
            *bytes = region.bytes;
        }
        Ok(sizes)
    }

    /// Memory that may be mapped in the place of parts of a region, if the server offers any. A server that names a part twice, or one that
    /// is not whole pages of the region, offers none.
    pub fn region_memory(&self, region: Region) -> Result<Option<RegionMemory>, RemoteError> {
        let command = CommandCode::GetRegionInfo;
        let ask = RegionInfoWire {
            argsz: REGION_INFO_BYTES_MAX,
            flags: 0,
            index: region as u32,
            cap_offset: 0,
            bytes: 0,
            offset: 0,
        };
        let region_bytes = self.region_bytes(region);
        self.with_channel(|channel| {
            let (body, descriptor) = channel.exchange_for_descriptor(command, &[ask.as_bytes()])?;
            let malformed = RemoteError::Protocol {
                command,
                what: "its body is malformed",
            };
            let (info, _) = RegionInfoWire::read_from_prefix(body).map_err(|_| malformed)?;
            let parts = memory_parts(&info, body, region_bytes);
            let parts = parts.filter(|_| info.flags & REGION_IS_MAPPABLE != 0);
            Ok(descriptor
                .zip(parts)
                .map(|(descriptor, parts)| RegionMemory { descriptor, parts }))
        })
    }

    /// Bytes in `region`; 0 if the function has none of that number.
    pub fn region_bytes(&self, region: Region) -> u64 {
        self.region_bytes.get(region as usize).copied().unwrap_or(0)
    }

    /// Reads `data.len()` bytes. If one message cannot carry them, several do, in ascending order. `data` is
    /// unspecified after an error.
    pub fn read(&self, region: Region, offset: u64, data: &mut [u8]) -> Result<(), RemoteError> {
        let mut at = offset;
        for part in data.chunks_mut(self.transfer_bytes) {
            let ask = access(region, at, part.len());
            self.request(CommandCode::RegionRead, &[ask.as_bytes()], None, |reply| {
                let (answer, bytes) = RegionAccessWire::read_from_prefix(reply).ok()?;
                if answer.count != ask.count || bytes.len() != part.len() {
                    return None;
                }
                part.copy_from_slice(bytes);
                Some(())
            })?;
            at = at.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Writes `data`, as [`RemoteFunction::read`] reads. The write has taken effect when the call returns.
    pub fn write(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), RemoteError> {
        let mut at = offset;
        for part in data.chunks(self.transfer_bytes) {
            let ask = access(region, at, part.len());
            self.request(CommandCode::RegionWrite, &[ask.as_bytes(), part], None, |reply| {
                let (answer, _) = RegionAccessWire::read_from_prefix(reply).ok()?;
                (answer.count == ask.count).then_some(())
            })?;
            at = at.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Writes without waiting for an answer or hearing of a refusal, as a posted write on a bus. Rule 2 says
    /// when it is sent.
    pub fn post(&self, region: Region, offset: u64, data: &[u8]) -> Result<(), RemoteError> {
        let mut at = offset;
        for part in data.chunks(self.transfer_bytes) {
            self.with_channel(|channel| channel.post(access(region, at, part.len()), part))?;
            at = at.wrapping_add(part.len() as u64);
        }
        Ok(())
    }

    /// Sends the posted writes that still wait.
    pub fn flush(&self) -> Result<(), RemoteError> {
        self.with_channel(Channel::flush)
    }

    /// Lets the function reach `bytes` bytes at `address`, which lie in `file` from `offset` on.
    pub fn dma_map(
        &self,
        address: u64,
        bytes: u64,
        file: &impl AsRawFd,
        offset: u64,
        is_writeable: bool,
    ) -> Result<(), RemoteError> {
        let ask = DmaMapWire {
            argsz: size_of::<DmaMapWire>() as u32,
            flags: DMA_READABLE | if is_writeable { DMA_WRITEABLE } else { 0 },
            offset,
            iova: address,
            bytes,
        };
        self.request(
            CommandCode::DmaMap,
            &[ask.as_bytes()],
            Some(file.as_raw_fd()),
            |_| Some(()),
        )
    }

    /// Takes back the memory of a `dma_map`; when the call returns, the function no longer reaches it.
    pub fn dma_unmap(&self, address: u64, bytes: u64) -> Result<(), RemoteError> {
        let ask = DmaUnmapWire {
            argsz: size_of::<DmaUnmapWire>() as u32,
            flags: 0,
            iova: address,
            bytes,
        };
        self.request(CommandCode::DmaUnmap, &[ask.as_bytes()], None, |_| Some(()))
    }

    /// Lets the function add one to `eventfd` for each interrupt of vector 0 of `index`.
    pub fn connect_irq(&self, index: IrqIndex, eventfd: &impl AsRawFd) -> Result<(), RemoteError> {
        self.set_eventfd(index, IRQ_TRIGGERS_EVENTFD, eventfd)
    }

    /// Lets whoever adds to `eventfd` unmask vector 0 of `index`.
    pub fn connect_unmask(&self, index: IrqIndex, eventfd: &impl AsRawFd) -> Result<(), RemoteError> {
        self.set_eventfd(index, EVENTFD_UNMASKS_IRQ, eventfd)
    }

    fn set_eventfd(&self, index: IrqIndex, flags: u32, eventfd: &impl AsRawFd) -> Result<(), RemoteError> {
        let ask = IrqSetWire {
            argsz: size_of::<IrqSetWire>() as u32,
            flags,
            index: index as u32,
            start: 0,
            count: 1,
        };
        self.request(
            CommandCode::SetIrqs,
            &[ask.as_bytes()],
            Some(eventfd.as_raw_fd()),
            |_| Some(()),
        )
    }

    /// Resets the function as power-on does.
    pub fn reset(&self) -> Result<(), RemoteError> {
        self.request(CommandCode::Reset, &[], None, |_| Some(()))
    }

    /// Takes the connection down: calls that wait in it fail at once.
    pub fn close(&self) {
        self.is_down.store(true, Ordering::Release);
        // This fails only if the peer closed first, which has the same effect.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// A request whose reply begins with `T`; what follows it is ignored, as later versions may append.
    fn request_struct<T>(&self, command: CommandCode, body: &[u8]) -> Result<T, RemoteError>
    where
        T: FromBytes + KnownLayout + Immutable,
    {
        self.request(command, &[body], None, |reply| {
            T::read_from_prefix(reply).map(|(value, _)| value).ok()
        })
    }

    /// Sends one request and decodes the body of its reply; `None` from `decode` is a broken protocol.
    fn request<T>(
        &self,
        command: CommandCode,
        parts: &[&[u8]],
        descriptor: Option<RawFd>,
        decode: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, RemoteError> {
        self.with_channel(|channel| {
            let body = channel.exchange(command, parts, descriptor)?;
            decode(body).ok_or(RemoteError::Protocol {
                command,
                what: "its body is malformed",
            })
        })
    }

    /// Applies rule 3: after an unclear failure the connection is down.
    fn with_channel<T>(
        &self,
        work: impl FnOnce(&mut Channel) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        if self.is_down.load(Ordering::Acquire) {
            return Err(RemoteError::Down);
        }
        let mut channel = self.lock();
        let outcome = work(&mut channel);
        drop(channel);
        match outcome {
            Ok(value) => Ok(value),
            Err(error) if error.is_refusal() => Err(error),
            // This side closed the connection meanwhile, so the socket's error means nothing more.
            Err(_) if self.is_down.load(Ordering::Acquire) => Err(RemoteError::Down),
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

    fn broken(&self, command: CommandCode, what: &'static str) -> RemoteError {
        self.close();
        RemoteError::Protocol { command, what }
    }
}

/// The socket, which reports a hang-up once the server is gone. Nothing is to be read from it.
impl AsFd for RemoteFunction {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Memory behind parts of a region.
#[derive(Debug)]
pub struct RegionMemory {
    /// File of the memory.
    pub descriptor: OwnedFd,
    /// Parts of the region, in ascending order, without overlap.
    pub parts: Vec<MemoryPart>,
}

/// A part of a region that lies in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPart {
    /// First byte in the region, page-aligned.
    pub offset: u64,
    /// Length in bytes, whole pages.
    pub bytes: u64,
    /// First byte in the file, page-aligned.
    pub file_offset: u64,
}

/// The parts that a region's description names: those of its sparse areas, or all of it. `None` if it contradicts itself.
fn memory_parts(info: &RegionInfoWire, body: &[u8], region_bytes: u64) -> Option<Vec<MemoryPart>> {
    let whole = [Area {
        offset: 0,
        bytes: region_bytes,
    }];
    let areas = match info.flags & REGION_HAS_CAPABILITIES {
        0 => whole.to_vec(),
        _ => sparse_areas(body.get(info.cap_offset as usize..)?)?,
    };
    let mut end = 0;
    let parts = areas.into_iter().map(|Area { offset, bytes }| {
        // The offset of a region in its file may be negative, as a part of it begins where the file does.
        let file_offset = info.offset.wrapping_add(offset);
        let is_whole = [offset, bytes, file_offset]
            .iter()
            .all(|value| value.is_multiple_of(PAGE_BYTES));
        let after = offset.checked_add(bytes).filter(|after| *after <= region_bytes)?;
        let is_next = offset >= end && bytes > 0;
        end = after;
        (is_whole && is_next).then_some(MemoryPart {
            offset,
            bytes,
            file_offset,
        })
    });
    parts.collect()
}

/// The areas of a sparse-mmap capability that comes first.
fn sparse_areas(capability: &[u8]) -> Option<Vec<Area>> {
    let (header, rest) = SparseMmapWire::read_from_prefix(capability).ok()?;
    if header.id != SPARSE_MMAP || header.version != 1 || header.areas > AREAS_MAX {
        return None;
    }
    let words = rest.get(..header.areas as usize * 16)?.as_chunks::<8>().0;
    let areas = words.as_chunks::<2>().0.iter().map(|[offset, bytes]| Area {
        offset: u64::from_le_bytes(*offset),
        bytes: u64::from_le_bytes(*bytes),
    });
    Some(areas.collect())
}

fn access(region: Region, offset: u64, bytes: usize) -> RegionAccessWire {
    RegionAccessWire {
        offset,
        region: region as u32,
        // At most `DATA_BYTES_MAX`.
        count: bytes as u32,
    }
}

/// The kernel waits while a listener's queue is full, but not longer than the socket's send limit.
fn connect_within(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests;
