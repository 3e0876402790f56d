//! One attached client. The protocol alone can answer some messages, and they are answered
//! here; the others surface.
//!
//! ```text
//!               VERSION accepted                   hung up, fatal violation, socket error
//!  (Greeting) ──────────────────► (Attached) ─────────────────────────────────► (Closed)
//!      └──────────── anything else, refused ────────────────────────────────────────▲
//! ```
//!
//! A message that surfaces is an [`Incoming`] with a [`RequestId`]. Each such request, posted ones included, is answered
//! exactly once by one of the `reply` methods, in any order and at any time. While `UNANSWERED_MAX` of them wait,
//! or their replies would exceed `OUTGOING_BYTES_MAX`, nothing more is read: a client that does not fetch its
//! replies holds itself up.

mod incoming;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::IntoBytes;

pub use self::incoming::{BatchedWrite, Incoming, RequestId};
use crate::Errno;
use crate::bell::Bell;
use crate::bounds::{DATA_BYTES_MAX, OUTGOING_BYTES_MAX, REQUESTS_PER_TURN, UNANSWERED_MAX};
use crate::connection::{Connection, Frame, ReceiveError, reply_header};
use crate::dma::{DmaMap, DmaTable};
use crate::error::{CloseReason, ProtocolError, ReplyError};
use crate::function::FunctionInfo;
use crate::irq::IrqChange;
use crate::listener::Seat;
use crate::message::{
    Command, CommandCode, DMA_WRITE, DmaAccessWire, DmaUnmapWire, FLAG_NO_REPLY, Header, RegionAccessWire,
    SmallWrite, VersionWire, decode,
};
use crate::pending::Pending;
use crate::reaper::Reaper;
use crate::version::{MAJOR, Proposal};

/// Form of the reply to a waiting request.
#[derive(Debug)]
enum Shape {
    Read(RegionAccessWire),
    Write(RegionAccessWire),
    Multi(u64),
    Map(Arc<DmaMap>),
    Unmap(DmaUnmapWire),
    Plain,
}

#[derive(Debug)]
struct Waiting {
    header: Header,
    shape: Shape,
    promised_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Greeting,
    Attached { takes_descriptors: bool },
    Closed,
}

/// What does for the clients of one socket what must not be waited for.
#[derive(Clone, Debug)]
pub(crate) struct Helpers {
    pub(crate) reaper: Reaper,
    pub(crate) bell: Arc<Bell>,
}

impl Helpers {
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self {
            reaper: Reaper::start()?,
            bell: Arc::new(Bell::new()?),
        })
    }
}

/// One attached client of one PCI function: its socket, its memory and its unanswered requests.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    function: FunctionInfo,
    state: Standing,
    dma: DmaTable,
    waiting: Pending<RequestId, Waiting>,
    promised_bytes: usize,
    /// Stores sent upstream that might still be refused.
    upstream: u32,
    /// Why a reply could not be sent; the next turn reports it.
    send_failure: Option<CloseReason>,
    refused_map: Option<ProtocolError>,
    /// The client was sent a descriptor of memory behind a region.
    has_region_memory: bool,
    bell: Arc<Bell>,
    /// Held as long as the client exists; the listener admits no other meanwhile.
    _seat: Seat,
}

impl Client {
    /// Serves `function` on a connected socket that no [`Listener`](crate::Listener) accepted. The client speaks first.
    ///
    /// All such clients share one [`Reaper`]: a process whose clients are to have nothing in common has a listener for each.
    pub fn new(stream: UnixStream, function: FunctionInfo) -> io::Result<Self> {
        static SHARED: Mutex<Option<Helpers>> = Mutex::new(None);
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let helpers = match &mut *shared {
            Some(helpers) => helpers,
            none => none.insert(Helpers::start()?),
        };
        Self::seated(stream, function, Seat::default(), helpers)
    }

    pub(crate) fn seated(
        stream: UnixStream,
        function: FunctionInfo,
        seat: Seat,
        helpers: &Helpers,
    ) -> io::Result<Self> {
        Ok(Self {
            connection: Connection::new(stream, helpers.reaper.clone())?,
            bell: helpers.bell.clone(),
            dma: DmaTable::with_room_for(function.dma_maps_max()),
            function,
            state: Standing::Greeting,
            waiting: Pending::default(),
            promised_bytes: 0,
            upstream: 0,
            send_failure: None,
            refused_map: None,
            has_region_memory: false,
            _seat: seat,
        })
    }

    /// Why a DMA map was refused since the last call, if one was: the last of them. The client has its error reply, whose number says little.
    pub fn take_refused_map(&mut self) -> Option<ProtocolError> {
        self.refused_map.take()
    }

    /// Whether the client was sent memory behind a region, which it may have mapped since.
    pub fn has_region_memory(&self) -> bool {
        self.has_region_memory
    }

    /// The memory that this client offers.
    pub fn dma(&self) -> &DmaTable {
        &self.dma
    }

    /// Whether the version was negotiated and the client is still there.
    pub fn is_attached(&self) -> bool {
        matches!(self.state, Standing::Attached { .. })
    }

    /// Whether [`Incoming::Closed`] was handed out.
    pub fn is_closed(&self) -> bool {
        self.state == Standing::Closed
    }

    /// Requests that wait for an answer.
    #[cfg(test)]
    pub(crate) fn unanswered(&self) -> usize {
        self.waiting.len()
    }

    /// Whether to poll for input. A level-triggered poll that ignores this spins while the client is held back.
    pub fn wants_read(&self) -> bool {
        self.state != Standing::Closed
            && self.waiting.len() < UNANSWERED_MAX
            && self.connection.outgoing_bytes() + self.promised_bytes < OUTGOING_BYTES_MAX
            && self.connection.has_room()
    }

    /// Whether to poll for output.
    pub fn wants_write(&self) -> bool {
        self.connection.outgoing_bytes() > 0
    }

    /// Takes messages and appends what is to be done to `incoming`. It ends after `REQUESTS_PER_TURN` messages,
    /// or after the first one whose answer the client waits for. To be called while the socket is readable, hung up
    /// or in error, or [`Client::is_due`], and once after [`Client::wants_read`] has become true again.
    pub fn read_ready(&mut self, incoming: &mut Vec<Incoming>) {
        for _ in 0..REQUESTS_PER_TURN {
            if self.state == Standing::Closed {
                return;
            }
            if let Some(reason) = self.send_failure.take() {
                return incoming.push(self.close(reason));
            }
            if !self.wants_read() {
                if self.has_hung_up() {
                    incoming.push(self.close(CloseReason::HungUp));
                }
                return;
            }
            match self.connection.receive() {
                Ok(None) => return,
                Ok(Some(frame)) => {
                    let header = frame.header;
                    match self.take(frame) {
                        Ok(None) => {}
                        Ok(Some(request)) => {
                            let is_awaited = request.is_awaited();
                            incoming.push(request);
                            // A client that waits has sent nothing more, as a rule, and a look would cost as much
                            // as the read did.
                            if is_awaited {
                                return;
                            }
                        }
                        Err(error) => incoming.extend(self.refuse(Some(header), error)),
                    }
                }
                Err(ReceiveError::Gone(reason)) => return incoming.push(self.close(reason)),
                Err(ReceiveError::Refused { header, error }) => {
                    incoming.extend(self.refuse(header, error));
                }
            }
        }
    }

    /// Sends what is queued. To be called when the socket is writeable.
    pub fn write_ready(&mut self) {
        if let Err(reason) = self.connection.flush() {
            self.send_failure.get_or_insert(reason);
        }
    }

    /// Whether [`Client::read_ready`] has something to report that no poll shows: a send has failed, or a request
    /// was read together with the one before it. An event loop that turns only on events looks at this after
    /// replying, and takes that turn at once.
    pub fn is_due(&self) -> bool {
        self.send_failure.is_some() || (self.wants_read() && self.connection.has_read_ahead())
    }

    /// Answers a read with exactly the bytes it asked for.
    pub fn reply_read(&mut self, request: RequestId, data: &[u8]) -> Result<(), ReplyError> {
        match self.waiting.get(request).map(|waiting| &waiting.shape) {
            None => return Err(ReplyError::NotWaiting(request.0)),
            Some(Shape::Read(access)) if access.count as usize == data.len() => {}
            Some(Shape::Read(access)) => {
                return Err(ReplyError::WrongLength {
                    request: request.0,
                    expected: access.count as usize,
                    given: data.len(),
                });
            }
            Some(_) => return Err(ReplyError::WrongKind(request.0)),
        }
        self.finish(request, Ok(data))
    }

    /// Answers any request but a read: it is done.
    pub fn reply_done(&mut self, request: RequestId) -> Result<(), ReplyError> {
        if let Some(Waiting {
            shape: Shape::Read(_),
            ..
        }) = self.waiting.get(request)
        {
            return Err(ReplyError::WrongKind(request.0));
        }
        self.finish(request, Ok(&[]))
    }

    /// Answers any request: it could not be done. A map leaves the table; an unmap stays out of it.
    pub fn reply_error(&mut self, request: RequestId, error: Errno) -> Result<(), ReplyError> {
        self.finish(request, Err(error))
    }

    /// Stores `data`, at most `DATA_BYTES_MAX` bytes, at an address outside of the client's maps, as a
    /// function on a bus does: what lies between the function and memory decides, and no answer comes. The
    /// store is dropped while the client does not read, and where there is a map, with or without a descriptor.
    /// QEMU 11 takes the data from 4 bytes before the place in the specification, so the store must not be one
    /// that anybody lets through.
    pub fn store_upstream(&mut self, address: u64, data: &[u8]) {
        // Most of the room is kept for replies.
        let has_room = self.connection.outgoing_bytes() + data.len() < OUTGOING_BYTES_MAX / 4;
        let is_mapped = self.dma.find(address).is_some();
        if !self.is_attached() || !has_room || is_mapped || data.len() > DATA_BYTES_MAX as usize {
            return;
        }
        let ask = DmaAccessWire {
            address,
            count: data.len() as u64,
        };
        let header = Header {
            message_id: self.upstream as u16,
            command: DMA_WRITE,
            message_bytes: (size_of::<Header>() + size_of::<DmaAccessWire>() + data.len()) as u32,
            flags: FLAG_NO_REPLY,
            error: 0,
        };
        self.upstream = self.upstream.saturating_add(1);
        if let Err(reason) = self.connection.send(&header, &[ask.as_bytes(), data], None) {
            self.send_failure.get_or_insert(reason);
        }
    }

    fn finish(&mut self, request: RequestId, result: Result<&[u8], Errno>) -> Result<(), ReplyError> {
        let waiting = self
            .waiting
            .remove(request)
            .ok_or(ReplyError::NotWaiting(request.0))?;
        self.promised_bytes -= waiting.promised_bytes;
        if let (Shape::Map(map), Err(_)) = (&waiting.shape, &result) {
            self.dma.forget(map);
        }
        let parts: &[&[u8]] = match (&waiting.shape, &result) {
            (_, Err(_)) => &[],
            (Shape::Read(access), Ok(data)) => &[access.as_bytes(), data],
            (Shape::Write(access), Ok(_)) => &[access.as_bytes()],
            (Shape::Multi(count), Ok(_)) => &[count.as_bytes()],
            (Shape::Unmap(unmap), Ok(_)) => &[unmap.as_bytes()],
            (Shape::Map(_) | Shape::Plain, Ok(_)) => &[],
        };
        self.send(&waiting.header, result.err(), parts, None);
        Ok(())
    }

    /// Sends a reply, unless the client wants none.
    fn send(
        &mut self,
        header: &Header,
        error: Option<Errno>,
        parts: &[&[u8]],
        descriptor: Option<Arc<std::os::fd::OwnedFd>>,
    ) {
        if header.is_posted() || self.state == Standing::Closed {
            return;
        }
        let header = reply_header(header, error, parts);
        if let Err(reason) = self.connection.send(&header, parts, descriptor) {
            self.send_failure.get_or_insert(reason);
        }
    }

    /// Tells the client what it did wrong, and ends the session if it cannot go on.
    fn refuse(&mut self, header: Option<Header>, error: ProtocolError) -> Option<Incoming> {
        if let Some(header) = header {
            self.send(&header, Some(error.errno()), &[], None);
        }
        if header.is_some() && !error.is_fatal_for(self.is_attached()) {
            return None;
        }
        Some(self.close(CloseReason::Protocol(error)))
    }

    fn close(&mut self, reason: CloseReason) -> Incoming {
        // Requests go on waiting and the table stays: the embedder answers and unmaps in its own time.
        self.connection.shut_down();
        self.state = Standing::Closed;
        Incoming::Closed(reason)
    }

    /// Looks for the end of the stream while nothing is read; it would go unseen otherwise.
    fn has_hung_up(&self) -> bool {
        let mut state = [PollFd::from_borrowed_fd(
            self.connection.stream(),
            PollFlags::empty(),
        )];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let is_told = poll(&mut state, Some(&now)).is_ok_and(|count| count > 0);
        is_told
            && state
                .iter()
                .any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }

    /// Whether this command may come now; if so, whether the client takes descriptors.
    fn check_state(&self, header: &Header) -> Result<bool, ProtocolError> {
        match self.state {
            Standing::Attached { takes_descriptors } => Ok(takes_descriptors),
            Standing::Greeting if header.command == CommandCode::Version as u16 => Ok(false),
            Standing::Greeting | Standing::Closed => Err(ProtocolError::NotNegotiated {
                command: header.command,
            }),
        }
    }

    fn take(&mut self, frame: Frame) -> Result<Option<Incoming>, ProtocolError> {
        let Frame { header, descriptors } = frame;
        if header.is_upstream_reply() {
            let left = self.upstream.checked_sub(1);
            self.upstream = left.ok_or(ProtocolError::NotACommand { flags: header.flags })?;
            return Ok(None);
        }
        let takes_descriptors = self.check_state(&header)?;
        let command = decode(header.command, self.connection.body())?;
        let has_use = matches!(command, Command::DmaMap(_) | Command::SetIrqs(..));
        if let (false, Some(command), count @ 1..) =
            (has_use, CommandCode::from_wire(header.command), descriptors.len())
        {
            return Err(ProtocolError::DescriptorCount { command, count });
        }
        match command {
            Command::Version(proposal) => self.greet(&header, &proposal)?,
            Command::GetInfo { argsz } => {
                let payload = self.function.device_info(argsz)?;
                self.send(&header, None, &[&payload], None);
            }
            Command::GetRegionInfo { argsz, index } => {
                let (payload, descriptor) = self.function.region_info(argsz, index, takes_descriptors)?;
                self.has_region_memory |= descriptor.is_some();
                self.send(&header, None, &[&payload], descriptor);
            }
            Command::GetIrqInfo { argsz, index } => {
                let payload = self.function.irq_info(argsz, index)?;
                self.send(&header, None, &[&payload], None);
            }
            Command::RegionRead(access) => return self.take_read(header, access).map(Some),
            Command::RegionWrite(access, data) => return self.take_write(header, access, data).map(Some),
            Command::RegionWriteMulti(writes) => return self.take_multi(header, &writes).map(Some),
            Command::DmaMap(wire) => {
                let refused = &mut self.refused_map;
                let map = self.dma.map(&wire, descriptors);
                let map = map.inspect_err(|error| *refused = Some(error.clone()))?;
                let request = self.wait(header, Shape::Map(Arc::clone(&map)), 0);
                return Ok(Some(Incoming::DmaMap { request, map }));
            }
            Command::DmaUnmap(wire) => {
                let maps = self.dma.unmap(&wire)?;
                let request = self.wait(header, Shape::Unmap(wire), 0);
                return Ok(Some(Incoming::DmaUnmap { request, maps }));
            }
            Command::SetIrqs(wire, data) => {
                let change =
                    IrqChange::decode(&wire, &data, descriptors, &self.bell, self.function.irq_counts())?;
                let request = self.wait(header, Shape::Plain, 0);
                return Ok(Some(Incoming::Irq { request, change }));
            }
            Command::Reset if !self.function.is_resettable() => return Err(ProtocolError::NoReset),
            Command::Reset => {
                let request = self.wait(header, Shape::Plain, 0);
                return Ok(Some(Incoming::Reset { request }));
            }
        }
        Ok(None)
    }

    fn take_read(&mut self, header: Header, access: RegionAccessWire) -> Result<Incoming, ProtocolError> {
        let RegionAccessWire {
            offset,
            region,
            count,
        } = access;
        let region = self
            .function
            .check_access(CommandCode::RegionRead, region, offset, count)?;
        let request = self.wait(header, Shape::Read(access), count as usize);
        Ok(Incoming::RegionRead {
            request,
            region,
            offset,
            count,
        })
    }

    fn take_write(
        &mut self,
        header: Header,
        access: RegionAccessWire,
        data: Vec<u8>,
    ) -> Result<Incoming, ProtocolError> {
        let RegionAccessWire {
            offset,
            region,
            count,
        } = access;
        let region = self
            .function
            .check_access(CommandCode::RegionWrite, region, offset, count)?;
        let request = self.wait(header, Shape::Write(access), 0);
        Ok(Incoming::RegionWrite {
            request,
            region,
            offset,
            data,
            is_posted: header.is_posted(),
        })
    }

    /// All writes are checked before any surfaces: a batch is done or refused as a whole.
    fn take_multi(&mut self, header: Header, writes: &[SmallWrite]) -> Result<Incoming, ProtocolError> {
        let code = CommandCode::RegionWriteMulti;
        let writes = writes
            .iter()
            .map(|write| {
                let count = write.data().len() as u32;
                let region = self
                    .function
                    .check_access(code, write.region, write.offset, count)?;
                Ok(BatchedWrite {
                    region,
                    write: *write,
                })
            })
            .collect::<Result<Vec<_>, ProtocolError>>()?;
        let request = self.wait(header, Shape::Multi(writes.len() as u64), 0);
        Ok(Incoming::RegionWriteMulti {
            request,
            writes,
            is_posted: header.is_posted(),
        })
    }

    fn greet(&mut self, header: &Header, proposal: &Proposal) -> Result<(), ProtocolError> {
        if self.state != Standing::Greeting {
            return Err(ProtocolError::AlreadyNegotiated);
        }
        if header.is_posted() {
            return Err(ProtocolError::Flags {
                command: CommandCode::Version,
                flags: header.flags,
            });
        }
        let (minor, text) = proposal.answer(self.function.dma_maps_max());
        self.state = Standing::Attached {
            takes_descriptors: proposal.takes_descriptors(),
        };
        self.send(
            header,
            None,
            &[VersionWire { major: MAJOR, minor }.as_bytes(), &text],
            None,
        );
        Ok(())
    }

    /// Notes that a request waits, and that its reply will have `data_bytes` beyond the fixed part.
    fn wait(&mut self, header: Header, shape: Shape, data_bytes: usize) -> RequestId {
        let fixed_bytes = size_of::<Header>() + size_of::<DmaUnmapWire>();
        let promised_bytes = if header.is_posted() {
            0
        } else {
            fixed_bytes + data_bytes
        };
        let request = RequestId::next();
        self.promised_bytes += promised_bytes;
        self.waiting.insert(
            request,
            Waiting {
                header,
                shape,
                promised_bytes,
            },
        );
        request
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.stream()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.stream().as_raw_fd()
    }
}

#[cfg(test)]
mod tests;
